"""Methods of libraries wrapped while an instrument needs them, and put back afterwards.

Checked with wrapt 1.16 to 2.5. A wrapper must call what it wraps exactly once, let its exceptions through, and take its
own frame out of their tracebacks.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class Patches:
    """The methods that one instrument has wrapped; a table that can be shown, and undone.

    Attributes:
        names: ``module.Class.method`` of each, as long as it is wrapped.
    """

    def __init__(self) -> None:
        self._wrapped: dict[tuple[type, str], tuple[Any, Any]] = {}

    @property
    def names(self) -> list[str]:
        return [f"{owner.__module__}.{owner.__qualname__}.{name}" for owner, name in self._wrapped]

    def wrap(self, owner: type, name: str, wrapper: Wrapper) -> bool:
        """Wrap a method that the class itself defines.

        Args:
            owner: The class.
            name: The method's name.
            wrapper: Called as ``wrapper(wrapped, instance, args, kwargs)`` in place of the method.

        Returns:
            Whether it is wrapped now; False if the class defines no such method or does not let itself be changed.
        """
        if (owner, name) in self._wrapped:
            return True
        original = vars(owner).get(name)
        if not callable(original):
            return False
        from wrapt import FunctionWrapper  # 70 ms of CPU: only who wraps something pays

        replacement = FunctionWrapper(original, wrapper)
        try:
            setattr(owner, name, replacement)
        except (TypeError, AttributeError):  # a class written in C
            return False
        self._wrapped[owner, name] = (original, replacement)
        return True

    def remove(self) -> None:
        """Put the methods back; one that somebody else has wrapped since stays as it is."""
        while self._wrapped:
            (owner, name), (original, replacement) = self._wrapped.popitem()
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)


def without_this_frame(exc: BaseException) -> None:
    """Take the frame that has just caught an exception out of its traceback; to be followed by a bare ``raise``.

    Such a ``raise`` does not put the frame in again on Python 3.11 and later. On 3.10 it does, and the frame is seen.
    """
    if exc.__traceback__ is not None:
        exc.__traceback__ = exc.__traceback__.tb_next
