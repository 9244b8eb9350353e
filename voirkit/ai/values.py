"""Turns what an annotation is given as argument into what a trace can hold: numbers, strings, booleans, None.

Nothing here raises, runs code of a value's own type, or asks an unknown object for its representation.
"""

from __future__ import annotations

import sys
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLAIN = frozenset({int, float, str, bool, type(None)})
TEXT = 256  # characters of the text of a list, tuple, set or dictionary
DEPTH = 4  # of lists in lists


class TagValue:
    """A value with DFTracer's marks on it; only the value is recorded."""

    def __init__(self, value: Any, dtype: Any = None, tag_type: Any = None) -> None:
        self._value, self._tag_type = value, tag_type

    def value(self) -> tuple[int, Any]:
        """DFTracer's pair of the mark and the value."""
        return getattr(self._tag_type, "value", 0), self._value


def plain(value: Any) -> Any:
    """A value as a trace holds it: lists and the like as their text (at most 256 characters), an unknown object as its type's name."""
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
    """A value that should be a whole number, such as an epoch; what is none is recorded as it is."""
    kind = type(value)
    if kind is int:
        return value
    found = plain(value)
    return int(found) if type(found) is bool else found


def real(value: Any) -> Any:
    """A value that should be a number."""
    found = plain(value)
    try:
        return float(found) if type(found) in (int, bool) else found
    except OverflowError:
        return found


def key(name: Any) -> str:
    """The name of an argument."""
    found = name if type(name) is str else plain(name)
    return (found if type(found) is str else _text(found, 1))[:TEXT]


def mapping(given: Any) -> dict[str, Any]:
    """Arguments that were given as a dictionary, as a trace holds them; what is no dictionary is one argument, ``args``."""
    if type(given) is not dict:
        try:
            given = dict(given)
        except Exception:
            return {"args": plain(given)}
    return {k if type(k) is str else key(k): v if type(v) in PLAIN else plain(v) for k, v in given.copy().items()}


def _builtin(value: Any) -> Any:
    """The number or string that an object of a derived type is, without asking that type: ``numpy.float64``, an ``IntEnum``."""
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    return "".join((value, ""))


def _array_scalar(value: Any) -> Any:
    """A number of numpy's as python's."""
    try:
        found = value.item()
    except Exception:
        found = None
    return found if type(found) in PLAIN else name_of_type(type(value))


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is str:
        return repr(value[:TEXT])
    if kind in PLAIN:
        return repr(value) if kind is not int or value.bit_length() < 1024 else "<int>"  # python refuses to write very long ones
    if kind not in (list, tuple, dict, set, frozenset):
        found = plain(value) if issubclass(kind, (int, float, str)) else None
        return name_of_type(kind) if found is None else _text(found, depth)
    if depth == 0:
        return "..."
    shown = list(islice(value.copy().items() if kind is dict else value.copy() if kind is set else value, TEXT))
    if kind is dict:
        return "{" + ", ".join(f"{_text(k, depth - 1)}: {_text(v, depth - 1)}" for k, v in shown) + "}"
    body = ", ".join(_text(item, depth - 1) for item in shown)
    if kind is list:
        return f"[{body}]"
    if kind is tuple:
        return f"({body},)" if len(shown) == 1 else f"({body})"
    return "{" + body + "}" if body else f"{kind.__name__}()"


def name_of_type(kind: type) -> str:
    """``<torch.Tensor>``, by what the type's own slots hold."""
    name = type.__dict__["__qualname__"].__get__(kind)
    module = type.__dict__["__module__"].__get__(kind)
    return f"<{module}.{name}>" if isinstance(module, str) and module != "builtins" else f"<{name}>"
