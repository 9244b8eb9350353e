"""Turns the arguments of annotations into values that a trace can hold: numbers, strings, booleans,
None.

Nothing here raises, runs code of a value's own type, or asks an unknown object for its
representation.
"""

from __future__ import annotations

import sys
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLAIN = frozenset({int, float, str, bool, type(None)})
TEXT = 256  # limit in characters of the text of a list, tuple, set or dictionary
DEPTH = 4  # nesting levels of lists and other containers that are written out


class TagValue:
    """A value with DFTracer's data type and tag type; only the value is recorded."""

    def __init__(self, value: Any, dtype: Any = None, tag_type: Any = None) -> None:
        self._value, self._tag_type = value, tag_type

    def value(self) -> tuple[int, Any]:
        """Return (number of the tag type, value), as DFTracer does."""
        return getattr(self._tag_type, "value", 0), self._value


def plain(value: Any) -> Any:
    """Return a value as a trace holds it. A list, tuple, set or dictionary becomes text of at most
    256 characters, and an unknown object the name of its type."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is TagValue:
        return plain(value._value)
    if issubclass(kind, (int, float, str)):
        return _builtin(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, getattr(numpy, "generic", ())):
        return _array_scalar(value)
    return _text(value, DEPTH)[:TEXT]


def whole(value: Any) -> Any:
    """Convert a value that should be an integer, such as an epoch; a bool becomes an int, and other
    values are converted as by ``plain``."""
    kind = type(value)
    if kind is int:
        return value
    converted = plain(value)
    return int(converted) if type(converted) is bool else converted


def real(value: Any) -> Any:
    """Convert a value that should be a number to a float; other values are converted as by
    ``plain``."""
    converted = plain(value)
    try:
        return float(converted) if type(converted) in (int, bool) else converted
    except OverflowError:
        return converted


def key(name: Any) -> str:
    """Return the name of an argument as a string of at most 256 characters."""
    converted = name if type(name) is str else plain(name)
    if type(converted) is not str:
        converted = _text(converted, 1)
    return converted[:TEXT]


def mapping(given: Any) -> dict[str, Any]:
    """Convert a dictionary of arguments to names and values that a trace can hold. An object that
    is no dictionary becomes one argument, ``args``."""
    if type(given) is not dict:
        try:
            given = dict(given)
        except Exception:  # any object may be passed, and its own code runs here
            return {"args": plain(given)}
    return {
        k if type(k) is str else key(k): v if type(v) in PLAIN else plain(v)
        for k, v in given.copy().items()
    }


def _builtin(value: Any) -> Any:
    """Return the plain number or string of an object of a derived type (``numpy.float64``, an
    ``IntEnum``) without calling methods of that type."""
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    return "".join((value, ""))


def _array_scalar(value: Any) -> Any:
    """Return a numpy scalar as a Python value, or the name of its type if it has none."""
    try:
        number = value.item()
    except Exception:  # ``item`` of a derived type may raise
        number = None
    return number if type(number) in PLAIN else name_of_type(type(value))


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is str:
        return repr(value[:TEXT])
    if kind in PLAIN:
        # long integers are left out: Python refuses to convert very long ones to text
        return repr(value) if kind is not int or value.bit_length() < 1024 else "<int>"
    if kind not in (list, tuple, dict, set, frozenset):
        if issubclass(kind, (int, float, str)):
            return _text(plain(value), depth)
        return name_of_type(kind)
    if depth == 0:
        return "..."
    return _text_of_items(value, kind, depth - 1)


def _text_of_items(value: Any, kind: type, depth: int) -> str:
    """Return the text of a list, tuple, dictionary or set, with at most its first 256 items."""
    if kind is dict:
        pairs = islice(value.copy().items(), TEXT)
        body = ", ".join(f"{_text(k, depth)}: {_text(v, depth)}" for k, v in pairs)
        return f"{{{body}}}"
    # A set is copied, since other threads may change it meanwhile; a list may change while it is
    # iterated over.
    items = list(islice(value.copy() if kind is set else value, TEXT))
    body = ", ".join(_text(item, depth) for item in items)
    if kind is list:
        return f"[{body}]"
    if kind is tuple:
        return f"({body},)" if len(items) == 1 else f"({body})"
    return f"{{{body}}}" if body else f"{kind.__name__}()"


def name_of_type(kind: type) -> str:
    """Return a type's name, such as ``<torch.Tensor>``, from the slots of the type itself, so that
    no code of the type runs."""
    name = type.__dict__["__qualname__"].__get__(kind)
    module = type.__dict__["__module__"].__get__(kind)
    return f"<{module}.{name}>" if isinstance(module, str) and module != "builtins" else f"<{name}>"
