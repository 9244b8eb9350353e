"""What a name in a selector stands for: a function, or what is in scope where it is written."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's code, not a class's


class Scope(Mapping[str, Any]):
    """The names that are in scope in a frame: its locals as they are now, its globals as they are when asked."""

    def __init__(self, frame: FrameType) -> None:
        self._locals = locals_of(frame)
        self._globals = frame.f_globals

    def __getitem__(self, name: str) -> Any:
        for names in (self._locals, self._globals, vars(builtins)):
            if name in names:
                return names[name]
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter({**self._globals, **self._locals})

    def __len__(self) -> int:
        return len({**self._globals, **self._locals})


def locals_of(frame: FrameType, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Those of a function's or class's variables that are set (only some ``names``); at the top of a module none."""
    there = frame.f_locals
    if there is frame.f_globals:
        return {}
    found = dict(there) if names is None else {name: there[name] for name in names if name in there}
    # Before 3.13 a function's dictionary stays with the frame and would keep the values alive; unless the program holds it too,
    # take them out, but for what the program or a debugger has put there itself.
    code = frame.f_code
    if type(there) is dict and code.co_flags & OPTIMIZED and sys.getrefcount(there) <= 3:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            there.pop(name, None)
    return found


class NotDefinedYet(Exception):
    """A function that an absolute reference names is not there yet: no import, or no ``def``, has run."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


def bare(thing: Any) -> Any:
    """A function without what is around it: static and class methods, properties, functools.wraps."""
    while True:
        if isinstance(thing, (staticmethod, classmethod)):
            thing = thing.__func__
        elif isinstance(thing, property):
            thing = thing.fget
        elif hasattr(thing, "__wrapped__"):
            thing = thing.__wrapped__
        else:
            return thing
