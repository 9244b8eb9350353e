"""The owner of a model that the program calls: the larger module that contains it, and the
attribute or variable that holds it.

The local variables of the calling frames and the ``__dict__`` of objects are read. No code of the
program is run, and no reference is kept.
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
    """The module that contains a called module, and the name under which the program holds it."""

    # the largest module in the calling frames that contains the called module; if there is none,
    # the called module
    module: Any
    # the attribute of a calling object that holds ``module``; if there is none, the outermost
    # variable that holds it
    name: str | None


def find_owner(module: Any, contains: Callable[[Any, Any], bool]) -> Owner:
    """Find the owner of a module in the frames that call this function.

    Args:
        module: The module that is being called.
        contains: ``contains(outer, module)`` is True if ``module`` is a part of ``outer``.
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
    """Yield the frames that belong to the program, the innermost first."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if library not in _LIBRARIES:
            yield frame
        frame = frame.f_back


def _first_argument(frame: FrameType) -> str | None:
    """Return the name of a function's first argument, such as a method's ``self``; None if it has
    none. A function without arguments inside a method has ``self`` from the method."""
    code = frame.f_code
    return code.co_varnames[0] if code.co_argcount else None


def _attributes(thing: Any) -> Mapping[str, Any]:
    """Return the ``__dict__`` of an object; empty if it has none that is a plain dictionary."""
    try:
        table = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return table if type(table) is dict else {}


def _name_in(table: Mapping[str, Any], module: Any) -> str | None:
    """Return the name under which a table holds a module; None if it does not."""
    for name, value in list(table.items()):
        if value is module and type(name) is str:
            return name
    return None
