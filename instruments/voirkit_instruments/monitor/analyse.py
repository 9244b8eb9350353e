"""What the samples of ``--monitor`` come to over a run: least, mean and most of each figure; and their curves on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from voirkit.report import duration
from voirkit.report.sections import Block, Grid, OnPage, Point, Section, Series, begin_ns, written
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


# how it is shown

_MOST_POINTS = 300
_MOST_PLOTS = 48
_NAMES = {
    "cpu": "processor cores that the run used", "host_cpu": "the machine's processors, busy", "rss": "memory of all processes",
    "shared": "of it shared", "host_memory": "the machine's memory in use", "processes": "processes", "read": "read", "write": "written",
    "disk_read": "the machine's disks, read", "disk_write": "the machine's disks, written", "net_sent": "the machine's network, sent",
    "net_received": "the machine's network, received",
}  # fmt: skip


def sections(part: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """See ``voirkit.instrument.Instrument``."""
    interval = part.get("interval_s")
    every = f", every {duration(interval)}" if interval else ""
    note = f"Of the first rank{every}. A point is the mean of its neighbourhood."
    yield Section("monitor", "Processor, memory, devices", [OnPage(_plots)], note)


def _plots(run: Run) -> Iterator[Block]:
    order = list(_NAMES)
    sampled = sorted(samples(run), key=lambda one: (order.index(one.name) if one.name in order else len(order), one.name))[:_MOST_PLOTS]
    if not sampled:
        return
    first, last = min(float(one.at_ns[0]) for one in sampled), max(float(one.at_ns[-1]) for one in sampled)
    zero = begin_ns(run, int(first))
    plots = []
    for one in sampled:
        most = float(np.nanmax(one.values))
        if most > 0:
            mean, name = float(np.nanmean(one.values)), _NAMES.get(one.name, one.name.replace("_", " "))
            caption = f"{name}: mean {written(mean, one.units)}, at most {written(most, one.units)}"
            across = (first - zero) / 1e9, (last - zero) / 1e9
            points = _thinned((one.at_ns - zero) / 1e9, one.values)
            plots.append(Series({one.name: points}, caption, one.units, "s", from_zero=True, across=across))
    if plots:
        yield Grid(plots)


def _thinned(at_s: Array, values: Array) -> list[Point]:
    """At most so many points: the means of neighbours."""
    parts = min(len(at_s), _MOST_POINTS)
    means = [(float(x.mean()), float(y.mean())) for x, y in zip(np.array_split(at_s, parts), np.array_split(values, parts), strict=True)]
    return [(x, y if np.isfinite(y) else None) for x, y in means]
