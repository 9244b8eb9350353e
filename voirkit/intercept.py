"""Patches of library functions, installed while an instrument needs them and removed afterwards.

The first of three ways that fits is taken: code around the body of a function written in Python,
which leaves the function object in place (``voirkit.probes.around``); another object in a class's
namespace; a method wrapped with wrapt (checked with 1.16 to 2.5). A wrapper must call the original
exactly once, let its exceptions through, and remove its own frame from their tracebacks.
"""

from __future__ import annotations

import gc
from _thread import _local  # threading's, which is imported where the program imports it

from voirkit.imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, FunctionType, ModuleType
    from typing import Any

    from voirkit.probes.around import Around

    Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


_NOTHING: Any = object()
_TRIES = 5
_CHANGED_SINCE = "has been changed by somebody else since"


class ThreadState(_local):
    """The state of each thread, for patches that nest and act in the outermost alone; one object
    for each purpose."""

    inside = 0

    def __deepcopy__(self, memo: object) -> ThreadState:
        return self  # torch.compile copies the constants of code, of which it is one


class Patches:
    """The changes of one instrument in libraries; a table that can be shown, and undone.

    Args:
        checked: The versions of each library, by the package's name (``python``: the standard
            library), in which it was checked that its patches fit.
    """

    def __init__(self, checked: Mapping[str, str] | None = None) -> None:
        self.checked = checked or {}
        self._wrapped: dict[tuple[Any, str], tuple[Any, Any]] = {}
        self._around: dict[str, tuple[FunctionType, Around]] = {}
        self._arounds: list[Around] = []
        # for each patch, by its full name, the problem with it; empty if there is none
        self.table: dict[str, str] = {}
        self._is_over = False

    def when(
        self, module: str, install: Callable[[ModuleType], None], off: Callable[[str, str], None]
    ) -> None:
        """``when_there``, for modules that are imported before ``remove``."""
        when_there(module, lambda library: None if self._is_over else install(library), off)

    @property
    def names(self) -> list[str]:
        """``module.Class.method`` of each, as long as it is in place."""
        return [_name(owner, name) for owner, name in self._wrapped] + list(self._around)

    def around(
        self, name: str, function: object, around: Around, qualname: str | None = None
    ) -> bool:
        """Do something around the body of a function. Its decorators are looked through, but for
        those that ``around`` cannot do without.

        Args:
            name: Its name in the table.
            function: The function.
            around: The functions that are called around it.
            qualname: As for ``Around.code``.

        Returns:
            True if it is done; if not, the table says why.
        """
        from types import FunctionType

        from voirkit.probes import weave
        from voirkit.probes.source import NoSource

        if not isinstance(function, FunctionType):
            self.table[name] = "is not there" if function is None else "is not written in Python"
            return False
        try:
            code = _code(around, function, qualname)
        except NoSource as exc:
            self.table[name] = str(exc)
            return False
        except Exception as exc:  # source that is not what any version of python or torch has
            self.table[name] = f"cannot be compiled again ({type(exc).__name__})"
            return False
        if weave.code_of(function) is not code:
            self._around[name] = (function, around)
            weave.set_code(function, code)
        if around not in self._arounds:
            self._arounds.append(around)
        self.table[name] = ""
        return True

    def put(
        self,
        owner: type | ModuleType,
        name: str,
        replacement: object,
        parameters: Sequence[str] = (),
    ) -> bool:
        """Put something into the namespace of a class or module itself; an attribute of a class
        above it comes to light when it is removed.

        Args:
            parameters: Those that the function which is replaced has to have, if it is written in
                Python.

        Returns:
            True if it is there now; if not, the table says why.
        """
        before = vars(owner).get(name, _NOTHING)
        full_name = _name(owner, name)
        unknown = _unknown(before, parameters)
        if unknown:
            self.table[full_name] = f"has no parameter {unknown[0]}"
            return False
        try:
            setattr(owner, name, replacement)
        except (TypeError, AttributeError) as exc:
            self.table[full_name] = str(exc)
            return False
        self._wrapped[owner, name] = (before, replacement)
        self.table[full_name] = ""
        return True

    def wrap(
        self, owner: type, name: str, wrapper: Wrapper, parameters: Sequence[str] = ()
    ) -> bool:
        """Wrap a method that the class itself defines.

        Args:
            owner: The class.
            name: The method's name.
            wrapper: Called as ``wrapper(wrapped, instance, args, kwargs)`` in place of the method.
            parameters: As for ``put``.

        Returns:
            True if it is wrapped now; False if the class defines no such method with these
            parameters or does not let itself be changed.
        """
        if (owner, name) in self._wrapped:
            return True
        original = vars(owner).get(name)
        if not callable(original):
            return False
        from wrapt import FunctionWrapper  # 70 ms of CPU: only who wraps something pays

        return self.put(owner, name, FunctionWrapper(original, wrapper), parameters)

    def remove(self) -> None:
        """Put all back; a patch that somebody else has changed since stays as it is, and the table
        says so."""
        self._is_over = True
        while self._wrapped:
            (owner, name), (before, replacement) = self._wrapped.popitem()
            if vars(owner).get(name) is not replacement:
                self.table[_name(owner, name)] = _CHANGED_SINCE
            elif before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        if self._around:
            from voirkit.probes import weave
        while self._around:
            name, (function, around) = self._around.popitem()
            if around.is_made_here(weave.code_of(function)):
                weave.set_code(function, around.less(function))
            else:
                self.table[name] = _CHANGED_SINCE
        while self._arounds:
            self._arounds.pop().forget()


def _code(around: Around, function: FunctionType, qualname: str | None) -> CodeType:
    """The function's code with ``around`` in it. Where two threads make syntax trees at once,
    python loses count of how deep it is in one of them (SystemError, cpython#106905): then once
    more. A tree has so many objects that python would look for garbage among all that torch has
    made (0.2 s), which it would not do without voirkit: collection is off meanwhile."""
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(_TRIES):
            try:
                return around.code(function, qualname)
            except SystemError:
                continue
        return around.code(function, qualname)
    finally:
        if collects:
            gc.enable()


def when_there(
    module: str, install: Callable[[ModuleType], None], off: Callable[[str, str], None]
) -> None:
    """Put patches in place as soon as their module is imported.

    Args:
        module: Its full name.
        install: Called with the module.
        off: Called with that name and the reason if it raises: the module is not like any known
            one.
    """

    def imported(library: ModuleType) -> None:
        try:
            install(library)
        except Exception as exc:  # of a module that is not like those that were checked
            off(module, f"{type(exc).__name__}: {exc}")

    when_imported(module, imported)


def _unknown(function: Any, parameters: Sequence[str]) -> list[str]:
    """Those that a function cannot be passed, as far as its code tells."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & 0x08:  # CO_VARKEYWORDS
        return []
    return [name for name in parameters if name not in code.co_varnames]


def _name(owner: Any, name: str) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    return f"{owner.__name__}.{name}"


def without_this_frame(exc: BaseException) -> None:
    """Take the frame that has just caught an exception out of its traceback; to be followed by a
    bare ``raise``.

    Such a ``raise`` does not put the frame in again on Python 3.11 and later. On 3.10 it does, and
    the frame is seen.
    """
    if exc.__traceback__ is not None:
        exc.__traceback__ = exc.__traceback__.tb_next
