"""What a name in a selector stands for: a function of the script or of a module, or what is in scope where the selector is written."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any


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
    """A function that an absolute reference names is not there yet: its module is not imported, or its ``def`` has not run."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


def follow(reference: str) -> Any:
    """The live object of an absolute reference such as ``//f`` or ``/pkg.mod/Class/method``, decorators taken off.

    Returns:
        A function, or what else stands under the name; None if it is inside a function and so has no name.

    Raises:
        NotDefinedYet: It is not there yet.
    """
    _, module_name, *path = reference.split("/")
    module = sys.modules.get(module_name or "__main__")
    if module is None:
        raise NotDefinedYet(module_name)
    found: Any = module
    for i, part in enumerate(path):
        names = _names(found)
        if part not in names:
            if i and callable(found) and not isinstance(found, type):
                return None  # //outer/inner
            raise NotDefinedYet(module_name)
        found = bare(names[part])
    return found


def _names(thing: Any) -> Mapping[str, Any]:
    names = dict(vars(thing)) if hasattr(thing, "__dict__") else {}
    for base in getattr(thing, "__mro__", ())[1:]:
        for name, value in vars(base).items():
            names.setdefault(name, value)
    return names


def bare(thing: Any) -> Any:
    """A function without what is around it: static and class methods, properties, decorators that use functools.wraps."""
    while True:
        if isinstance(thing, (staticmethod, classmethod)):
            thing = thing.__func__
        elif isinstance(thing, property):
            thing = thing.fget
        elif hasattr(thing, "__wrapped__") and not hasattr(thing, "__ptera_info__"):
            thing = thing.__wrapped__
        else:
            return thing
