"""Brings the times of torch's profiler onto the run's clock, by marks that stand on both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array

_US = 1000


class Clock(NamedTuple):
    """From the wall clock, as torch's profiler has it, to the run's.

    Attributes:
        offset_ns: To be added.
        error_ns: By how much a time may be wrong; the marks say nothing closer.
    """

    offset_ns: int
    error_ns: int

    def __call__(self, at_ns: Array) -> Array:
        """Times on the run's clock."""
        return at_ns + self.offset_ns


def clock(seen_ns: Array, marks: Sequence[Sequence[int]]) -> Clock:
    """Find the offset that all marks agree with.

    Args:
        seen_ns: Where the profiler has them, ascending; shape (n,).
        marks: For each, the run's clock before and after it.

    Raises:
        ValueError: There are none, or not as many.

    A mark lies between its two readings of the run's clock, so each bounds the offset from both sides; what all of them leave open is the
    error. If they contradict each other (one of the clocks was corrected meanwhile), the middle one counts, and the error is the largest.
    """
    if not len(seen_ns) or len(seen_ns) != len(marks):
        raise ValueError(f"of {len(marks)} marks {len(seen_ns)} were recorded")
    seen_ns = np.asarray(seen_ns, np.int64)
    step = _US if not (seen_ns % _US).any() else 1  # torch 2.1 cuts times to whole microseconds
    between = np.asarray(marks, np.int64) - seen_ns[:, None]
    low, high = int(between[:, 0].max()) - (step - 1), int(between[:, 1].min())
    if low <= high:
        return Clock((low + high) // 2, (high - low + 1) // 2 + step)
    middles = between.mean(axis=1)
    offset = int(np.median(middles))
    return Clock(offset, int(np.abs(middles - offset).max()) + step)
