"""The test whether memory grows steadily, in contrast to memory that rises and falls."""

from __future__ import annotations

from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.runs import thresholds as limits

_MOST = 256  # maximum number of samples that are used; the slopes of all their pairs are computed
_PARTS = 8


def growth(at_s: Array, held_bytes: Array) -> dict[str, Any] | None:
    """Return the growth of memory over the second half of a run, if it is steady; otherwise None.

    Args:
        at_s: Times of the samples, ascending; seconds, shape (n,).
        held_bytes: Bytes held at each sample, shape (n,).

    Returns:
        ``bytes_a_second``, the slope; ``grown``, the bytes added in that half; ``middle`` and
        ``end``, the bytes held in the first and the last eighth of that half.

    The slope is the Theil-Sen estimate, the median of the slopes between all pairs of samples. So
    single peaks, and workers that start and end with each epoch, do not change it. Growth is steady
    if the slope is large enough, and if most eighths of the half hold more than the eighth before.
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
    """Return the median of the slopes between all pairs of samples, in bytes per second."""
    indices = np.unique(np.linspace(0, len(at_s) - 1, min(len(at_s), _MOST)).astype(int))
    first, second = np.triu_indices(len(indices), 1)
    time, bytes_ = at_s[indices], held_bytes[indices]
    apart = time[second] - time[first]
    grown = bytes_[second] - bytes_[first]
    return float(np.median(grown[apart > 0] / apart[apart > 0]))
