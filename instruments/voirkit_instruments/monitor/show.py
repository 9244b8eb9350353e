"""What ``--monitor`` sampled, drawn over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.report import duration
from voirkit.report.sections import Block, Grid, OnPage, Point, Section, Series, begin_ns, written
from voirkit_instruments.monitor.analyse import samples

if TYPE_CHECKING:
    from voirkit.analysis.nesting import Array
    from voirkit.runs.opened import Run

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
