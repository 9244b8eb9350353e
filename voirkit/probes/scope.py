"""What a name in a selector stands for: a function, or what is in scope where it is written."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class Scope(Mapping[str, Any]):
    """The names that are in scope in a frame: its locals as they are now, its globals as they are when asked."""

    def __init__(self, frame: FrameType) -> None:
        self._locals = {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
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
