"""Nesting of the spans of a thread: each instant is counted once, for the innermost span."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # numpy.ndarray
NONE = -1  # stands for no span, where the index of a span is expected


def outer_first(start_ns: Array, duration_ns: Array) -> Array:
    """Return the indices that sort spans by start. Of two spans with the same start, the longer
    comes first."""
    order = np.argsort(start_ns, kind="stable")
    same = np.diff(start_ns[order]) == 0
    # only spans with equal starts are sorted by duration too: sorting all spans by two keys takes
    # three times as long
    places = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    together = order[places]
    order[places] = together[np.lexsort((-duration_ns[together], start_ns[together]))]
    return order


def distinct(codes: Array) -> list[int]:
    """Return the distinct values of an array of small non-negative integers, ascending.
    ``np.unique`` takes twenty times as long, and imports numpy.ma."""
    numbers: list[int] = np.flatnonzero(np.bincount(codes)).tolist()
    return numbers


def begins_inside(start_ns: Array, end_ns: Array) -> Array:
    """True for each span that begins before an earlier span ends. The spans must be ascending by
    start."""
    inside = np.zeros(len(start_ns), dtype=bool)
    inside[1:] = start_ns[1:] < np.maximum.accumulate(end_ns)[:-1]
    return inside


def parents(start_ns: Array, duration_ns: Array) -> Array:
    """Return the index of each span's parent: the innermost span that contains it.

    Args:
        start_ns: Starts of the spans of one thread, ascending; of two with the same start, the
            longer first. Shape (n,).
        duration_ns: Durations of the spans; shape (n,).

    Returns:
        Indices, shape (n,); -1 for spans without a parent. If two spans overlap without nesting,
        the earlier counts as the parent of the later. Spans of calls in one thread never do.
    """
    parent = np.full(len(start_ns), NONE)
    ends = start_ns + duration_ns
    level = np.arange(len(start_ns))
    while len(level):
        inside = begins_inside(start_ns[level], ends[level])
        outer, inner = level[~inside], level[inside]
        if not len(inner):
            break
        # Each inner span gets the outer span around it as its parent. For its direct children that
        # is final; spans that lie deeper get a nearer parent in a later round.
        parent[inner] = outer[np.searchsorted(outer, inner) - 1]
        level = inner
    return parent


def exclusive_ns(start_ns: Array, duration_ns: Array) -> Array:
    """Return the duration of each span minus the spans inside it, at least 0. Arguments and shape
    are those of ``parents``."""
    return without_children(duration_ns.astype(np.int64), parents(start_ns, duration_ns))


def without_children(amounts: Array, parent: Array) -> Array:
    """Return the amount of each span minus the amounts of its direct children, at least 0.
    ``parent``: the indices that ``parents`` returns."""
    inner = parent >= 0
    children = np.bincount(parent[inner], weights=amounts[inner], minlength=len(amounts))
    return np.maximum(amounts - children.astype(amounts.dtype), 0)


def innermost(start_ns: Array, end_ns: Array, at_ns: Array) -> Any:
    """Return the innermost span that contains each instant.

    Args:
        start_ns: Starts of the spans of one thread, ascending; of two with the same start, the
            longer first. Shape (n,).
        end_ns: Ends of the spans, shape (n,); the end itself is outside of the span.
        at_ns: Instants, in any order. Shape (m,).

    Returns:
        Indices of spans, shape (m,); -1 for instants in no span.
    """
    owner = np.full(len(at_ns), NONE, dtype=np.int64)
    remaining = np.arange(len(start_ns))
    while len(remaining):
        inside = begins_inside(start_ns[remaining], end_ns[remaining])
        level = remaining[~inside]  # the outermost of the remaining spans, which do not overlap
        place = np.searchsorted(start_ns[level], at_ns, side="right") - 1
        candidate = level[np.maximum(place, 0)]
        hit = (place >= 0) & (at_ns < end_ns[candidate])
        owner[hit] = candidate[hit]
        remaining = remaining[inside]
    return owner
