"""Puts something around functions of the program and of libraries for the loader instrument, each once, and keeps why it could not.

A function that asks for its own local variables is left alone, since it would find two more.
"""

from __future__ import annotations

import weakref
from types import FunctionType, MethodType

from voirkit.intercept import Patches
from voirkit.probes import weave
from voirkit.probes.around import Around
from voirkit.probes.compatibility import watch_picklers
from voirkit_instruments.steps.torch_functions import COMPILING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.loader.record_spans import Here

_ASKING = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe"}


class LoaderPatches:
    """The patches of the loader instrument.

    Args:
        here: Says where each thread is.

    Attributes:
        patches: The table of them.
    """

    def __init__(self, here: Here) -> None:
        self.patches = Patches()
        self._here = here
        self._known: dict[int, weakref.ref[FunctionType]] = {}
        self._arounds: dict[tuple[Any, ...], Around] = {}

    def put(
        self, name: str, function: Any, enter: Any, leave: Any, most: int, passed: tuple[str, ...] = (), left: tuple[str, ...] = (),
        value: bool = False, anywhere: bool = False,
    ) -> bool:  # fmt: skip
        """Put something around a function, through its decorators.

        Args:
            name: What it is called in the table.
            function: The function.
            enter, leave, most, passed, left, value: As for ``Around``.
            anywhere: The program may ask ``torch.compile`` to compile it.

        Returns:
            Whether it is there now.
        """
        function = innermost(function)
        if type(function) is not FunctionType:
            self.patches.table[name] = "is not written in Python"
            return False
        if self.has(function):
            return True
        if _ASKING & set(function.__code__.co_names):
            self.patches.table[name] = "asks for its own local variables"
            return False
        plain = COMPILING if anywhere and "torch" in function.__globals__ and "torch" not in function.__code__.co_varnames else ()
        unasked = anywhere and not plain
        key = (enter, leave, most, passed, left, value, bool(plain), unasked)
        around = self._arounds.get(key)
        if around is None:
            around = self._arounds[key] = Around(self._here, most, enter, leave, passed, value, plain, left, unasked)
        if not self.patches.around(self._unique(name, function), function, around):
            return False
        watch_picklers(weave.own_code)  # the code may be a lambda's that is pickled by value
        key_of = id(function)
        self._known[key_of] = weakref.ref(function, lambda _: self._known.pop(key_of, None))
        return True

    def has(self, function: FunctionType) -> bool:
        """Whether something is around a function."""
        known = self._known.get(id(function))
        return known is not None and known() is function

    def _unique(self, name: str, function: FunctionType) -> str:
        """A name for the table, which undoes by name: lambdas are many, and have one."""
        return (
            name
            if name not in self.patches.table
            else f"{name} at {function.__code__.co_filename}:{function.__code__.co_firstlineno} {id(function)}"
        )

    def remove(self) -> None:
        """Put all back."""
        self.patches.remove()
        self._known.clear()


def innermost(function: Any) -> Any:
    """The function that a method is of, or that decorators written in Python stand around."""
    if type(function) is MethodType:
        function = function.__func__
    while type(function) is FunctionType and type(function.__dict__.get("__wrapped__")) is FunctionType:
        function = function.__dict__["__wrapped__"]
    return function


def parameter(function: FunctionType, which: int) -> tuple[str, bool] | None:
    """The name of a parameter by position, and whether it is the tuple that has it; None: there is none."""
    code = function.__code__
    if code.co_argcount > which:
        return code.co_varnames[which], False
    if code.co_flags & 0x04:  # *args
        return code.co_varnames[code.co_argcount + code.co_kwonlyargcount], True
    return None
