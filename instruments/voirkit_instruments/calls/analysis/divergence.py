"""The first call at which two runs differ: in what is called, with what, on what, or in what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.calls.analysis.sequence import Codes, Thread

LIKE = 5  # calls that must be the same again after those that only one run makes
_FURTHEST = 200  # of them
_NUMBERS = ("float", "int")  # the types that stand for numbers which vary without end


@dataclass(frozen=True)
class Divergence:
    """Where two runs part; numbers of calls are places in the sequence of the thread that trains.

    Attributes:
        kind: ``function``, ``given``, ``object``, ``result``, ``end`` (one of them calls no more).
        at: The first call that differs; the same in both runs.
        extra: How many calls the first and the second run make here that the other does not; (0, 0) if that can not be told.
    """

    kind: str
    at: int
    extra: tuple[int, int] = (0, 0)


def first_divergence(first: Thread, second: Thread, codes: Codes) -> Divergence | None:
    """Where two sequences of calls begin to differ; None if they do not. Compared are entries and ends of calls, in their order in time."""
    n = min(len(first), len(second))
    same = _Same(codes.sets)
    of_kind = {
        "function": first.function[:n] != second.function[:n],
        "given": same.differ(first.given[:n], second.given[:n]),
        "object": (first.object[:n] != second.object[:n]) & (first.object[:n] >= 0) & (second.object[:n] >= 0),
    }
    entered = np.logical_or.reduce(list(of_kind.values())) if n else np.zeros(0, dtype=bool)
    at = int(np.argmax(entered)) if entered.any() else n
    ended = _first_end(first, same.differ(first.result[:at], second.result[:at]), at)
    if ended is not None:
        return Divergence("result", ended)
    if at < n:
        kind = next(name for name, differs in of_kind.items() if differs[at])
        return Divergence(kind, at, _extra(first, second, at) if kind == "function" else (0, 0))
    if len(first) != len(second):
        return Divergence("end", n, (len(first) - n, len(second) - n))
    return None


def _first_end(thread: Thread, differs: Array, at: int) -> int | None:
    """Of the calls whose results differ the one that ended first, if that was before the call ``at`` began."""
    which = np.flatnonzero(differs)
    if at < len(thread):
        which = which[thread.end_ns[which] <= thread.start_ns[at]]
    return int(which[np.argmin(thread.end_ns[which])]) if len(which) else None


def _extra(first: Thread, second: Thread, at: int) -> tuple[int, int]:
    """How many calls only one of them makes, before both go on alike."""
    a, b = first.function[at : at + _FURTHEST + LIKE], second.function[at : at + _FURTHEST + LIKE]
    for more in range(1, _FURTHEST + 1):
        if _goes_on(a[more:], b):
            return more, 0
        if _goes_on(b[more:], a):
            return 0, more
    return 0, 0


def _goes_on(longer: Array, other: Array) -> bool:
    like = min(LIKE, len(longer), len(other))
    return bool(like and np.array_equal(longer[:like], other[:like]))


class _Same:
    """Whether sets are the same, though some of their numbers may have been left out."""

    def __init__(self, sets: Sequence[Mapping[str, Any]]) -> None:
        self._sets = sets

    def differ(self, first: Array, second: Array) -> Array:
        """Where two sequences of sets are not the same."""
        found: Array = first != second
        which = np.flatnonzero(found)
        if len(which):
            pairs, place = np.unique(np.stack([first[which], second[which]]), axis=1, return_inverse=True)
            apart = np.array([not same(self._sets[a], self._sets[b]) for a, b in pairs.T.tolist()], dtype=bool)
            found[which] = apart[place.reshape(-1)]
        return found


def same(first: Any, second: Any) -> bool:
    """Whether two summaries are; one of a number that was left out (``{"type": "float"}``) is like any such number."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return (first == second and type(first) is type(second)) or _left_out(first, second) or _left_out(second, first)


def _left_out(one: Any, other: Any) -> bool:
    return isinstance(one, dict) and one.get("type") in _NUMBERS and len(one) == 1 and type(other).__name__ == one["type"]


def counts(first: Thread, second: Thread, codes: Codes) -> dict[tuple[str, str], tuple[int, int]]:
    """Of the functions that are not called equally often: how often in each; the greatest difference first."""
    size = len(codes.functions)
    a, b = (np.bincount(thread.function, minlength=size) for thread in (first, second))
    order = np.argsort(-np.abs(a - b), kind="stable")
    return {codes.functions[at]: (int(a[at]), int(b[at])) for at in order.tolist() if a[at] != b[at]}
