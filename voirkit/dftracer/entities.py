"""Things that records have to do with, a file or a tensor: a number for each, the same in all processes."""

from __future__ import annotations

from voirkit.ai.values import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIMIT = 10_000  # things that are remembered by their names
_described: dict[int, str] = {}


def declare(kind: Any, key: Any) -> int:
    """The number of a thing: 64 bits, FNV-1a over its type and key."""
    text = f"{plain(kind)}:{plain(key)}"[:300]
    number = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "backslashreplace"):
        number = ((number ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    if len(_described) < _LIMIT:
        _described[number] = text
    return number


def described(entity: Any) -> str:
    """``type:key`` of a thing, or its number."""
    return _described.get(entity) or f"{plain(entity)}"


__all__ = ["declare", "described"]
