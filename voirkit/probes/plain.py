"""What crosses from one process to another: plain values as they are, of anything else what it is.

Must never run the program's code: no ``repr``, no ``==``, no attribute of an object whose class is not known.
"""

from __future__ import annotations

import sys
from typing import Any

LONGEST_TUPLE = 16
LONGEST_TEXT = 65_536

EXACT = frozenset({int, float, bool, str, complex, type(None)})
_CONTAINERS = frozenset({tuple, list, dict, set, frozenset, str, bytes, bytearray})
_mro: Any = type.__dict__["__mro__"].__get__
_qualname: Any = type.__dict__["__qualname__"].__get__
_module: Any = type.__dict__["__module__"].__get__


def plain(value: Any) -> Any:
    """A value as another process gets it.

    Returns:
        Numbers (numpy's too), strings, booleans, None and short tuples of them; for anything else ``summary(value)``.
    """
    found = _simple(value)
    if found is not _OTHER:
        return found
    if tuple in _mro(type(value)) and tuple.__len__(value) <= LONGEST_TUPLE:
        items = [_simple(item) for item in tuple.__iter__(value)]
        if all(item is not _OTHER for item in items):
            return tuple(items)
    return summary(value)


def summary(value: Any) -> dict[str, Any]:
    """What a value is: ``$type``, and where they are known ``shape`` and ``dtype``, or ``len``."""
    kind = type(value)
    module = _module(kind)
    name = _qualname(kind)
    found: dict[str, Any] = {"$type": f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name}
    if kind in _CONTAINERS:
        found["len"] = len(value)
        return found
    try:
        if _is_a(kind, "torch", "Tensor"):
            _describe_tensor(value, found)
        elif _is_a(kind, "numpy", "ndarray"):
            array = sys.modules["numpy"].ndarray
            found.update(shape=list(array.shape.__get__(value)), dtype=str(array.dtype.__get__(value)))
    except Exception:  # a library that is half imported, or of another version
        pass
    return found


def _describe_tensor(value: Any, found: dict[str, Any]) -> None:
    # Without torch's function overrides: a mode or a subclass of the program's would see that somebody asks (checked with 2.1 to 2.15).
    tensor, c = sys.modules["torch"].Tensor, sys.modules["torch"]._C
    with c.DisableTorchFunction():
        shape, dtype = tensor.shape.__get__(value), tensor.dtype.__get__(value)
    found.update(shape=[n if type(n) is int else None for n in shape], dtype=str(dtype))


class _Other:
    """Stands for what is not simple."""


_OTHER: Any = _Other()


def _simple(value: Any) -> Any:
    """A number, string, boolean or None, of exactly that type; or _OTHER."""
    kind = type(value)
    if kind in EXACT:
        return value if kind is not str or len(value) <= LONGEST_TEXT else _OTHER
    if _is_a(kind, "numpy", "generic"):
        found = sys.modules["numpy"].generic.item(value)
        return found if type(found) in EXACT else _OTHER
    for base in (int, float, str):
        if base in _mro(kind):
            exact = getattr(base, f"__{base.__name__}__")(value)
            return exact if base is not str or len(exact) <= LONGEST_TEXT else _OTHER
    return _OTHER


def _is_a(kind: type, module: str, name: str) -> bool:
    """Whether a class is or derives from one of a module that the program may have imported."""
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and base in _mro(kind)


__all__ = ["EXACT", "plain", "summary"]
