"""Who holds a model that the program calls: a larger module that it is a part of, and the attribute
or variable that has it.

The variables of the frames that called it are read, and plain tables of objects; no code of the
program is run, and nothing is kept.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from voirkit.probes.tap_emitter import SEE_LOCALS, locals_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType
    from typing import Any

_LIBRARIES = ("voirkit", "voirkit_instruments", "torch")
_MOST_FRAMES = 64


class Owner(NamedTuple):
    """Who holds a module."""

    module: Any  # the largest module of a caller that contains it; itself if there is none
    name: str | None  # the attribute of a caller's object that has it, else the outermost variable


def find_owner(module: Any, contains: Callable[[Any, Any], bool]) -> Owner:
    """Look in the frames that call this function for who holds a module.

    Args:
        module: It is being called.
        contains: Whether a module is a part of another one.
    """
    largest, attribute, variable = module, None, None
    for frame in _frames_of_program(sys._getframe(1)):
        variables = {} if not SEE_LOCALS.isdisjoint(frame.f_code.co_names) else locals_of(frame)
        caller = variables.get(_first_argument(frame) or "self")
        table = _attributes(caller)
        if "_modules" in table and "_parameters" in table:
            if caller is not largest and contains(caller, largest):
                largest, attribute, variable = caller, None, None
            continue
        if attribute is None:
            attribute = _name_in(table, largest)
        variable = _name_in(variables, largest) or _name_in(frame.f_globals, largest) or variable
    return Owner(largest, attribute or variable)


def _frames_of_program(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames that belong to the program, the innermost first."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if library not in _LIBRARIES:
            yield frame
        frame = frame.f_back


def _first_argument(frame: FrameType) -> str | None:
    """The name of a function's first argument, as a method's ``self``; a function in a method has
    it from there."""
    code = frame.f_code
    return code.co_varnames[0] if code.co_argcount else None


def _attributes(thing: Any) -> Mapping[str, Any]:
    """What an object keeps in its ``__dict__``."""
    try:
        table = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return table if type(table) is dict else {}


def _name_in(table: Mapping[str, Any], module: Any) -> str | None:
    """The name under which a table has a module."""
    for name, value in list(table.items()):
        if value is module and type(name) is str:
            return name
    return None
