"""Which span of a thread an instant lies in: of several, one inside the other, the innermost."""

from __future__ import annotations

from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array

NONE = -1


def innermost(start_ns: Array, end_ns: Array, at_ns: Array) -> Any:
    """The innermost span that each instant lies in.

    Args:
        start_ns: Of the spans of one thread, ascending; of two that start together the longer first. Shape (n,).
        end_ns: Same shape; an instant at a span's end is outside it.
        at_ns: Instants, in any order. Shape (m,).

    Returns:
        Indices of spans, -1 where there is none; shape (m,).
    """
    owner = np.full(len(at_ns), NONE, dtype=np.int64)
    left = np.arange(len(start_ns))
    while len(left):
        inside = np.zeros(len(left), dtype=bool)
        inside[1:] = start_ns[left[1:]] < np.maximum.accumulate(end_ns[left])[:-1]
        level = left[~inside]  # these lie beside each other
        at = np.searchsorted(start_ns[level], at_ns, side="right") - 1
        hit = (at >= 0) & (at_ns < end_ns[level[np.maximum(at, 0)]])
        owner[hit] = level[at[hit]]
        left = left[inside]
    return owner
