"""Memory that creeps: what the samples of a run's memory report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.runs import thresholds as limits

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_MOST = 256  # samples of which every pair is looked at
_PARTS = 8


def memory_creep(run: Run) -> dict[str, Any] | None:
    """An alert if the first rank's memory creeps; None without samples of it (``--monitor``)."""
    if not run.recorded("counter"):
        return None
    query = (
        "SELECT start_ns, number FROM spans WHERE kind = 'counter' AND category = 'monitor' AND name = 'rss' AND rank = 0 ORDER BY start_ns"
    )
    found = run.connection().execute(query).fetchnumpy()
    return creep(np.asarray(found["start_ns"]) / 1e9, np.asarray(found["number"]))


def creep(at_s: Array, held_bytes: Array) -> dict[str, Any] | None:
    """An alert if memory grows steadily over the second half of a run.

    Args:
        at_s: When it was looked at, ascending; seconds, shape (n,).
        held_bytes: Same shape.

    Steady is: the median of the slopes between all pairs of samples (Theil and Sen), so that workers that come and go with each epoch and
    single peaks count for nothing, and a rise from most of the half's eighths to the next.
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
    an_hour = slope * 3600
    return {
        "kind": "memory-creep",
        "because": f"Memory grows by {an_hour / 1e9:.2g} GB an hour: it was {parts[0] / 1e9:.3g} GB in the middle of the run, "
        f"{parts[-1] / 1e9:.3g} GB at its end.",
        "next": "Look for what is kept from every step: losses with their graph (keep loss.item()), lists of outputs, caches of a dataset.",
        "evidence": {"bytes_per_s": slope, "grown": grown, "middle": parts[0], "end": parts[-1]},
    }


def _slope(at_s: Array, held_bytes: Array) -> float:
    """The median slope between two samples, bytes a second."""
    chosen = np.unique(np.linspace(0, len(at_s) - 1, min(len(at_s), _MOST)).astype(int))
    first, second = np.triu_indices(len(chosen), 1)
    time, bytes_ = at_s[chosen], held_bytes[chosen]
    apart = time[second] - time[first]
    return float(np.median((bytes_[second] - bytes_[first])[apart > 0] / apart[apart > 0]))
