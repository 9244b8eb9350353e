"""Patches of library functions, in place only while an instrument needs them.

There are three ways to patch, and the first one that fits is used. The code of a function written
in Python is extended around its body, and the function object stays (``voirkit.probes.around``). An
attribute of a class or module is replaced. A method is wrapped with wrapt (checked with 1.16 to
2.5). A wrapper must call the original exactly once, let its exceptions through, and remove its own
frame from their tracebacks.
"""

from __future__ import annotations

import gc
from _thread import _local  # threading.local, without importing threading before the program does

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
    """State of each thread, for patches that nest and act only in the outermost call; each purpose
    has an object of its own."""

    inside = 0

    def __deepcopy__(self, memo: object) -> ThreadState:
        return self  # torch.compile copies the constants of code objects, and this is one of them


class Patches:
    """The patches of one instrument in libraries; they can be listed in a table, and removed.

    Args:
        checked: For each library, the versions with which its patches were checked, by the name of
            the package (``python``: the standard library).
    """

    def __init__(self, checked: Mapping[str, str] | None = None) -> None:
        self.checked = checked or {}
        self._wrapped: dict[tuple[Any, str], tuple[Any, Any]] = {}
        self._around: dict[str, tuple[FunctionType, Around]] = {}
        self._arounds: list[Around] = []
        # full name of each patch -> the problem with the patch; empty if there is no problem
        self.table: dict[str, str] = {}
        self._is_over = False

    def when(
        self, module: str, install: Callable[[ModuleType], None], off: Callable[[str, str], None]
    ) -> None:
        """Call ``when_there``, but install nothing in a module that is imported after
        ``remove``."""
        when_there(module, lambda library: None if self._is_over else install(library), off)

    @property
    def names(self) -> list[str]:
        """``module.Class.method`` of each patch that is in place."""
        return [_name(owner, name) for owner, name in self._wrapped] + list(self._around)

    def around(
        self, name: str, function: object, around: Around, qualname: str | None = None
    ) -> bool:
        """Run code around the body of a function. If the function is a decorator's wrapper, that is
        the body of the wrapper.

        Args:
            name: The function's name in the table.
            function: The function.
            around: The functions that are called around its body.
            qualname: As for ``Around.code``.

        Returns:
            True if the function was patched; otherwise the table says why not.
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
        except Exception as exc:  # the source is unlike that of any known version
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
        """Set an attribute in the namespace of a class or module itself. If the attribute was
        inherited from a base class, it is visible again after ``remove``.

        Args:
            parameters: Parameters that the replaced function must have, if it is written in Python.

        Returns:
            True if the attribute is set now; otherwise the table says why not.
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
            True if the method is wrapped now; False if the class defines no such method with these
            parameters, or cannot be changed.
        """
        if (owner, name) in self._wrapped:
            return True
        original = vars(owner).get(name)
        if not callable(original):
            return False
        from wrapt import FunctionWrapper  # imported only here: it takes 70 ms of CPU time

        return self.put(owner, name, FunctionWrapper(original, wrapper), parameters)

    def remove(self) -> None:
        """Restore all originals. A patch that other code has changed since then stays as it is, and
        the table says so."""
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
    """Return the code object of a function with ``around`` in it.

    If two threads make syntax trees at the same time, Python can lose count of the depth of one
    tree (SystemError, cpython#106905); then this function tries again. Garbage collection is off
    meanwhile. Otherwise the many objects of a tree would start a collection over all objects of
    torch (0.2 s), which would not happen without voirkit.
    """
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
    """Install patches as soon as a module is imported, or at once if it is imported already.

    Args:
        module: Full name of the module.
        install: Called with the module.
        off: Called with the module's name and the reason if ``install`` raises: the module is
            unlike any known version.
    """

    def imported(library: ModuleType) -> None:
        try:
            install(library)
        except Exception as exc:  # the module is unlike the versions that were checked
            off(module, f"{type(exc).__name__}: {exc}")

    when_imported(module, imported)


def _unknown(function: Any, parameters: Sequence[str]) -> list[str]:
    """Return those of the ``parameters`` that a function does not have, as far as its code object
    tells."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & 0x08:  # CO_VARKEYWORDS: it takes any keyword
        return []
    return [name for name in parameters if name not in code.co_varnames]


def _name(owner: Any, name: str) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    return f"{owner.__name__}.{name}"


def without_this_frame(exc: BaseException) -> None:
    """Remove the frame that has just caught an exception from the exception's traceback; to be
    followed by a bare ``raise``.

    On Python 3.11 and later, that ``raise`` does not add the frame again. On 3.10 it does, and the
    frame stays visible.
    """
    if exc.__traceback__ is not None:
        exc.__traceback__ = exc.__traceback__.tb_next
