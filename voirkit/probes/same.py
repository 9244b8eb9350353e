"""Whether two pieces of code are the same in all that the program could tell: what they do, their constants, their places in the source."""

from __future__ import annotations

from itertools import zip_longest
from types import CodeType
from typing import Any

_PARTS = (
    "co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars", "co_cellvars", "co_names",
    "co_varnames", "co_code", "co_exceptiontable",
)  # fmt: skip


# Set by ``types.coroutine`` on the code of a generator function that is there already; no source says so.
AWAITABLE = 0x100  # inspect.CO_ITERABLE_COROUTINE


def is_same(one: CodeType, other: CodeType, same_start: bool = True) -> bool:
    """Whether they are; with ``same_start=False`` the line in which they begin may differ."""
    if same_start and one.co_firstlineno != other.co_firstlineno:
        return False
    if one.co_flags | AWAITABLE != other.co_flags | AWAITABLE:
        return False
    if any(getattr(one, part, None) != getattr(other, part, None) for part in _PARTS):
        return False
    if len(one.co_consts) != len(other.co_consts) or not all(map(_is_same_constant, one.co_consts, other.co_consts)):
        return False
    if same_start and one.co_linetable == other.co_linetable:
        return True
    return all(map(_is_same_place, *zip(*zip_longest(_places(one), _places(other), fillvalue=()), strict=True)))


def _places(code: CodeType) -> list[tuple[Any, ...]]:
    if hasattr(code, "co_positions"):
        return list(code.co_positions())
    return list(code.co_lines())


def _is_same_place(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """With python -X no_debug_ranges there are only lines."""
    if len(one) == len(other) == 4 and (one[1:] == (None,) * 3 or other[1:] == (None,) * 3):
        return bool(one[0] == other[0])
    return one == other


def _is_same_constant(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is CodeType:
        return is_same(one, other)
    if kind is tuple:
        return len(one) == len(other) and all(map(_is_same_constant, one, other))
    if kind is frozenset:
        return {(type(c), c) for c in one} == {(type(c), c) for c in other}
    if kind is slice:  # a constant since 3.14
        return all(map(_is_same_constant, (one.start, one.stop, one.step), (other.start, other.stop, other.step)))
    if kind in (float, complex):
        return repr(one) == repr(other)  # 0.0 and -0.0, nan
    if kind in (int, str, bytes):
        return bool(one == other)
    return one is other  # None, True, ...; or an object that a tool has put there
