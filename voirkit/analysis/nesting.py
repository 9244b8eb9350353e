"""Which span of a thread lies in which: what is needed to count each instant once, for the
innermost."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # numpy.ndarray
NONE = -1  # in place of the index of a span


def outer_first(start_ns: Array, duration_ns: Array) -> Array:
    """The order of spans ascending by start, of two that start together the longer first."""
    order = np.argsort(start_ns, kind="stable")
    same = np.diff(start_ns[order]) == 0
    # few: sorting all by two keys takes three times as long
    places = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    together = order[places]
    order[places] = together[np.lexsort((-duration_ns[together], start_ns[together]))]
    return order


def distinct(codes: Array) -> list[int]:
    """Which of the numbers 0, 1, 2 ... occur, ascending; ``np.unique`` takes twenty times as long
    and imports numpy.ma."""
    numbers: list[int] = np.flatnonzero(np.bincount(codes)).tolist()
    return numbers


def begins_inside(start_ns: Array, end_ns: Array) -> Array:
    """Which of some spans, ascending by start, begin before an earlier one ends."""
    inside = np.zeros(len(start_ns), dtype=bool)
    inside[1:] = start_ns[1:] < np.maximum.accumulate(end_ns)[:-1]
    return inside


def parents(start_ns: Array, duration_ns: Array) -> Array:
    """The span in which each lies directly.

    Args:
        start_ns: Of the spans of one thread, ascending; of two that start together the longer
            first. Shape (n,).
        duration_ns: Same shape.

    Returns:
        Indices, same shape; -1 for those that lie in none. Spans that overlap without one lying in
        the other (none do, if one thread recorded them as calls) are taken for nested where the
        later starts.
    """
    parent = np.full(len(start_ns), NONE)
    ends = start_ns + duration_ns
    level = np.arange(len(start_ns))
    while len(level):
        inside = begins_inside(start_ns[level], ends[level])
        outer, inner = level[~inside], level[inside]
        if not len(inner):
            break
        # Those at the next level are the children; the rest lie deeper, and find a nearer one in a
        # later round.
        parent[inner] = outer[np.searchsorted(outer, inner) - 1]
        level = inner
    return parent


def exclusive_ns(start_ns: Array, duration_ns: Array) -> Array:
    """How long each span lasted without those inside it, never negative; arguments and shape as of
    ``parents``."""
    return without_children(duration_ns.astype(np.int64), parents(start_ns, duration_ns))


def without_children(amounts: Array, parent: Array) -> Array:
    """An amount of each span without those of the spans directly in it; ``parent`` as ``parents``
    gives it. Never negative."""
    inner = parent >= 0
    children = np.bincount(parent[inner], weights=amounts[inner], minlength=len(amounts))
    return np.maximum(amounts - children.astype(amounts.dtype), 0)


def innermost(start_ns: Array, end_ns: Array, at_ns: Array) -> Any:
    """The innermost span that each instant lies in.

    Args:
        start_ns: Of the spans of one thread, ascending; of two that start together the longer
            first. Shape (n,).
        end_ns: Same shape; an instant at a span's end is outside it.
        at_ns: Instants, in any order. Shape (m,).

    Returns:
        Indices of spans, -1 where there is none; shape (m,).
    """
    owner = np.full(len(at_ns), NONE, dtype=np.int64)
    remaining = np.arange(len(start_ns))
    while len(remaining):
        inside = begins_inside(start_ns[remaining], end_ns[remaining])
        level = remaining[~inside]  # these lie beside each other
        place = np.searchsorted(start_ns[level], at_ns, side="right") - 1
        candidate = level[np.maximum(place, 0)]
        hit = (place >= 0) & (at_ns < end_ns[candidate])
        owner[hit] = candidate[hit]
        remaining = remaining[inside]
    return owner
