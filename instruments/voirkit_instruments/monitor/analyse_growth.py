"""Whether memory grows steadily, told from memory that comes and goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.runs import thresholds as limits

_MOST = 256  # samples of which every pair is looked at
_PARTS = 8


def growth(at_s: Array, held_bytes: Array) -> dict[str, Any] | None:
    """How memory grows over the second half of a run, if it does so steadily; otherwise None.

    Args:
        at_s: When it was looked at, ascending; seconds, shape (n,).
        held_bytes: Same shape.

    Returns:
        ``bytes_a_second``; ``grown``, the bytes of that half; and how many were held in its
        ``middle`` and at its ``end``.

    Steady is: the median of the slopes between all pairs of samples (Theil and Sen), so that
    workers that come and go with each epoch and single peaks count for nothing, and a rise from
    most of the half's eighths to the next.
    """
    if not len(at_s):
        return None
    half = at_s >= (at_s[0] + at_s[-1]) / 2
    at_s, held_bytes = at_s[half], held_bytes[half]
    lasted = float(at_s[-1] - at_s[0])
    if len(at_s) < limits.FEW_SAMPLES or lasted < limits.CREEP_LEAST_S:
        return None
    slope = _slope(at_s, held_bytes)
    grown, usual = slope * lasted, float(np.median(held_bytes))
    if grown < max(limits.CREEPS * usual, limits.CREEP_BYTES):
        return None
    parts = [float(np.median(part)) for part in np.array_split(held_bytes, _PARTS)]
    if np.mean(np.diff(parts) > 0) < limits.CREEP_RISES:
        return None
    return {"bytes_a_second": slope, "grown": grown, "middle": parts[0], "end": parts[-1]}


def _slope(at_s: Array, held_bytes: Array) -> float:
    """The median slope between two samples, bytes a second."""
    indices = np.unique(np.linspace(0, len(at_s) - 1, min(len(at_s), _MOST)).astype(int))
    first, second = np.triu_indices(len(indices), 1)
    time, bytes_ = at_s[indices], held_bytes[indices]
    apart = time[second] - time[first]
    grown = bytes_[second] - bytes_[first]
    return float(np.median(grown[apart > 0] / apart[apart > 0]))
