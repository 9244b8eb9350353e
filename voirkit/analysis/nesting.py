"""Which span of a thread lies in which: what is needed to count each instant once, for the innermost."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # numpy.ndarray


def exclusive_ns(start_ns: Array, duration_ns: Array) -> Array:
    """How long each span lasted without those inside it.

    Args:
        start_ns: Of the spans of one thread, ascending; of two that start together the longer first. Shape (n,).
        duration_ns: Same shape.

    Returns:
        Nanoseconds, same shape, never negative. Spans that overlap without one lying in the other (none do, if one thread
        recorded them as calls) are taken for nested where the later starts.
    """
    own = duration_ns.astype(np.int64, copy=True)
    if not len(own):
        return own
    ends = start_ns + duration_ns
    level = np.arange(len(own))
    while len(level):
        reached = np.maximum.accumulate(ends[level])
        inside = np.zeros(len(level), dtype=bool)
        inside[1:] = start_ns[level[1:]] < reached[:-1]
        outer, inner = level[~inside], level[inside]
        if not len(inner):
            break
        # The children: those at the next level. The rest lie deeper, and are theirs to subtract.
        deeper = np.zeros(len(inner), dtype=bool)
        parents = outer[np.searchsorted(outer, inner) - 1]
        reached = np.maximum.accumulate(ends[inner])
        deeper[1:] = start_ns[inner[1:]] < reached[:-1]
        children = inner[~deeper]
        own -= np.bincount(parents[~deeper], weights=duration_ns[children], minlength=len(own)).astype(np.int64)
        level = inner
    return np.maximum(own, 0)
