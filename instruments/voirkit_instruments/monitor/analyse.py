"""What the samples of ``--monitor`` come to over a run: least, mean and most of each figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from voirkit_instruments.monitor import COUNTS

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.analysis.nesting import Array
    from voirkit.runs.opened import Run

_SAMPLES = "FROM spans WHERE kind = 'counter' AND category = 'monitor'"


class Sampled(NamedTuple):
    """A figure over time."""

    name: str  # such as ``rss``
    units: str  # of the values
    at_ns: Array  # when they were sampled, ascending
    values: Array  # what was sampled; of what is counted, how much there was in a second since the sample before
    mean: float  # of the values, by the time that they are of
    total: float | None = None  # of what is counted, how much there was in all, else None


def samples(run: Run) -> Iterator[Sampled]:
    """The figures of the first rank that was monitored."""
    query = f"SELECT name, value_key, start_ns, number {_SAMPLES} AND rank = (SELECT min(rank) {_SAMPLES}) ORDER BY start_ns"
    columns = {key: np.asarray(column) for key, column in run.connection().execute(query).fetchnumpy().items()}
    for name in np.unique(columns["name"]).tolist():
        chosen = columns["name"] == name
        units = str(columns["value_key"][chosen][0])
        at_ns, values = (columns[key][chosen].astype(np.float64) for key in ("start_ns", "number"))
        if name not in COUNTS:
            yield Sampled(name, units, at_ns, values, float(values.mean()))
        elif at_ns[-1] > at_ns[0]:
            later = np.diff(at_ns) > 0
            seconds, total = np.diff(at_ns)[later] / 1e9, float(values[-1] - values[0])
            yield Sampled(name, f"{units}/s", at_ns[1:][later], np.diff(values)[later] / seconds, total / float(seconds.sum()), total)


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``monitor`` of a summary: by name ``{"min", "mean", "max", "units"}``, with ``total`` of what is counted."""
    found = {
        one.name: {
            "min": float(one.values.min()), "mean": one.mean, "max": float(one.values.max()), "units": one.units,
            **({} if one.total is None else {"total": one.total}),
        }
        for one in samples(runs[0])
    }  # fmt: skip
    return {"monitor": {**(summary.get("monitor") or {}), **found}} if found else None
