"""Reads what an attribute has been set to without running any code of the program: no property, no ``__getattr__``.

For places where an attribute is set by something that has no value to look at: ``self.x, y = pair``, ``for self.x in``.
"""

from __future__ import annotations

import sys
from types import GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

from voirkit import streams
from voirkit.probes.names import mangled

if TYPE_CHECKING:
    from collections.abc import Callable

_bases: Any = type.__dict__["__mro__"].__get__  # a metaclass may have a `__mro__` of its own
_names: Any = type.__dict__["__dict__"].__get__
_told: set[tuple[str, int, str]] = set()


class NotStored(Exception):
    """The attribute is not kept in the object itself: only code of the program could tell."""


def stored(thing: Any, name: str) -> Any:
    """What an object keeps under a name, in its ``__dict__`` or a slot.

    Raises:
        NotStored: It keeps nothing there: the name is a property's, or the class has its own way to keep it.
    """
    for base in _bases(type(thing)):
        found = _names(base).get(name)
        if type(found) is MemberDescriptorType:
            try:
                return found.__get__(thing)
            except AttributeError:
                raise NotStored from None
        if found is not None and any("__set__" in _names(kind) for kind in _bases(type(found))):
            raise NotStored
    try:
        return _own_names(thing)[name]
    except (AttributeError, KeyError):
        raise NotStored from None


def _own_names(thing: Any) -> dict[str, Any]:
    kinds = [_names(base)["__dict__"] for base in _bases(type(thing)) if "__dict__" in _names(base)]
    if any(type(kind) is not GetSetDescriptorType for kind in kinds):
        raise NotStored
    found: dict[str, Any] = object.__getattribute__(thing, "__dict__")
    return found


def reader(path: str) -> Callable[[Any], Any]:
    """A function that follows ``x.y`` from an object, for the place that has just set it.

    Raises:
        NotStored: By the function; it has been said, once for each place.
    """
    parts = path.split(".")[1:]

    def read(thing: Any) -> Any:
        frame = sys._getframe(1)
        for part in parts:
            try:
                thing = stored(thing, mangled(part, frame.f_code))
            except NotStored:
                _tell(path, frame)
                raise
        return thing

    return read


def _tell(path: str, frame: Any) -> None:
    place = (frame.f_code.co_filename, frame.f_lineno, path)
    if place not in _told:
        _told.add(place)
        what = f"'{path}' is set in line {frame.f_lineno} of {frame.f_code.co_name} ({frame.f_code.co_filename})"
        streams.report(f"{what}, and is not kept as a plain attribute: only running code of the program could tell its value, so no event.")
