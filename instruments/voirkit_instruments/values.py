"""Given values in few words, and as plain numbers.

Never raises, never makes a long text, and never calls an unknown object's ``__repr__``.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from voirkit_instruments.steps.tensor_memory import is_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LONGEST_TEXT = 80
_MOST_ELEMENTS = 4
_DEEPEST = 2


def number(value: Any, *, wait: bool = True) -> Any:
    """The plain number that a one-element tensor, array or numpy scalar holds; a plain number as it is; else None.

    Args:
        value: Anything.
        wait: Whether to read from a device too. That waits until the device has computed the value.
    """
    if type(value) in (bool, int, float):
        return value
    try:
        if not may_be_read(value) or (not wait and not _on_cpu(value)):
            return None
        size = value.numel() if hasattr(value, "numel") else value.size
        plain = value.item() if size == 1 else None
        return plain if type(plain) in (bool, int, float) else None
    except Exception:  # not a tensor, or one without data (meta, fake)
        return None


def may_be_read(value: Any) -> bool:
    """Whether the elements of a tensor are in memory; true of whatever is no tensor."""
    torch = sys.modules.get("torch")
    return not isinstance(value, getattr(torch, "Tensor", ())) or is_readable(torch, value)  # type: ignore[arg-type]  # it is torch


def _on_cpu(value: Any) -> bool:
    return str(getattr(value, "device", "cpu")) == "cpu"  # numpy 2 arrays say "cpu" too


def brief(value: Any, depth: int = 0) -> str:
    """The value in few words: a number, a short text, or type, shape, dtype and device of a tensor.

    A one-element tensor shows its number only if it lies in the CPU's memory: reading another waits for the device.
    """
    try:
        return _brief(value, depth)
    except Exception:  # an object may raise from any attribute
        return type(value).__qualname__


def _brief(value: Any, depth: int) -> str:
    kind = type(value)
    if value is None or kind in (bool, int):
        return str(value) if value is None or abs(value) < 10**30 else f"int of {value.bit_length()} bits"
    if kind is float:
        return f"{value:.6g}"
    if kind in (str, bytes):
        return repr(value) if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]!r}… ({len(value)})"
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        plain = number(value, wait=False)
        text = f"{kind.__name__}{[int(n) for n in shape]} {str(value.dtype).removeprefix('torch.')}"
        if not _on_cpu(value):
            text += f" {value.device}"
        return text if plain is None else f"{text} = {_brief(plain, depth)}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return _elements(kind.__name__, [brief(e, depth + 1) for e in _first(value, depth)], len(value), depth)
    if isinstance(value, dict):
        pairs = [f"{brief(k, depth + 1)}: {brief(value[k], depth + 1)}" for k in _first(value, depth)]
        return _elements(kind.__name__, pairs, len(value), depth)
    if isinstance(value, Namespace):
        pairs = [f"{name}={brief(held, depth + 1)}" for name, held in list(vars(value).items())[:20]]
        return _elements("Namespace", pairs, len(vars(value)), depth)
    return kind.__qualname__ if not isinstance(value, type) else f"class {value.__qualname__}"


def _first(values: Any, depth: int) -> list[Any]:
    return [held for _, held in zip(range(_MOST_ELEMENTS), values, strict=False)] if depth < _DEEPEST else []


def _elements(name: str, shown: list[str], length: int, depth: int) -> str:
    more = [f"… {length} in all"] if length > len(shown) else []
    return f"{name}({', '.join(shown + more)})"
