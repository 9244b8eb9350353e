"""Summaries of the samples of ``--monitor``: minimum, mean and maximum of each value, and its
curve on the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from voirkit.report import duration
from voirkit.report.sections import Block, Grid, OnPage, Point, Section, Series, begin_ns, written
from voirkit_instruments.monitor import COUNTS
from voirkit_instruments.monitor.analyse_growth import growth

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.analysis.nesting import Array
    from voirkit.runs.opened import Run

_MEMORY = "rss"
_SAMPLES = "FROM spans WHERE kind = 'counter' AND category = 'monitor'"


class Sampled(NamedTuple):
    """A monitored value over time."""

    name: str  # the value's name, such as ``rss``
    units: str  # units of the values
    at_ns: Array  # when the values were sampled, ascending
    # the samples; for a counter, its increase per second since the previous sample
    values: Array
    mean: float  # mean of the values; for a counter, weighted by time
    total: float | None = None  # total increase of a counter; None for other values


def samples(run: Run) -> Iterator[Sampled]:
    """Yield the monitored values of the first rank that was monitored."""
    query = (
        f"SELECT name, value_key, start_ns, number {_SAMPLES} AND rank = (SELECT min(rank)"
        f" {_SAMPLES}) ORDER BY start_ns"
    )
    columns = {
        key: np.asarray(column)
        for key, column in run.connection().execute(query).fetchnumpy().items()
    }
    for name in np.unique(columns["name"]).tolist():
        is_named = columns["name"] == name
        units = str(columns["value_key"][is_named][0])
        at_ns = columns["start_ns"][is_named].astype(np.float64)
        values = columns["number"][is_named].astype(np.float64)
        if name not in COUNTS:
            yield Sampled(name, units, at_ns, values, float(values.mean()))
        elif at_ns[-1] > at_ns[0]:
            intervals_ns = np.diff(at_ns)
            later = intervals_ns > 0
            seconds = intervals_ns[later] / 1e9
            rates = np.diff(values)[later] / seconds
            total = float(values[-1] - values[0])
            mean = total / float(seconds.sum())
            yield Sampled(name, f"{units}/s", at_ns[1:][later], rates, mean, total)


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``monitor`` of a summary: ``{"min", "mean", "max", "units"}`` by name of a value,
    with ``total`` for counters and ``growth`` for memory that grows steadily."""
    figures = {sampled.name: _figures(sampled) for sampled in samples(runs[0])}
    if not figures:
        return None
    return {"monitor": {**(summary.get("monitor") or {}), **figures}}


def _figures(sampled: Sampled) -> dict[str, Any]:
    values = sampled.values
    figures = {
        "min": float(values.min()),
        "mean": sampled.mean,
        "max": float(values.max()),
        "units": sampled.units,
    }
    if sampled.total is not None:
        figures["total"] = sampled.total
    if sampled.name == _MEMORY:
        grows = growth(sampled.at_ns / 1e9, values)
        if grows:
            figures["growth"] = grows
    return figures


# the report section

_MOST_POINTS = 300
_MOST_PLOTS = 48
_NAMES = {
    "cpu": "processor cores that the run used",
    "host_cpu": "the machine's processors, busy",
    "rss": "memory of all processes",
    "shared": "of it shared",
    "host_memory": "the machine's memory in use",
    "processes": "processes",
    "read": "read",
    "write": "written",
    "disk_read": "the machine's disks, read",
    "disk_write": "the machine's disks, written",
    "net_sent": "the machine's network, sent",
    "net_received": "the machine's network, received",
}


def sections(part: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section on CPU, memory and devices, with curves on the HTML page."""
    interval = part.get("interval_s")
    every = f", every {duration(interval)}" if interval else ""
    note = f"Of the first rank{every}. A point is the mean of its neighbourhood."
    yield Section("monitor", "Processor, memory, devices", [OnPage(_plots)], note)


def _plots(run: Run) -> Iterator[Block]:
    figures = sorted(samples(run), key=_plot_order)[:_MOST_PLOTS]
    if not figures:
        return
    first_ns = min(float(figure.at_ns[0]) for figure in figures)
    last_ns = max(float(figure.at_ns[-1]) for figure in figures)
    zero_ns = begin_ns(run, int(first_ns))
    across = (first_ns - zero_ns) / 1e9, (last_ns - zero_ns) / 1e9
    plots = []
    for figure in figures:
        most = float(np.nanmax(figure.values))
        if most <= 0 or np.isnan(most):
            continue
        name, units = figure.name, figure.units
        mean = float(np.nanmean(figure.values))
        label = _NAMES.get(name, name.replace("_", " "))
        caption = f"{label}: mean {written(mean, units)}, at most {written(most, units)}"
        points = _thin_out((figure.at_ns - zero_ns) / 1e9, figure.values)
        plots.append(Series({name: points}, caption, units, "s", from_zero=True, across=across))
    if plots:
        yield Grid(plots)


def _plot_order(figure: Sampled) -> tuple[int, str]:
    """Sort key of a value: values with a label come first, in the order of the labels."""
    labelled = list(_NAMES)
    place = labelled.index(figure.name) if figure.name in labelled else len(labelled)
    return place, figure.name


def _thin_out(at_s: Array, values: Array) -> list[Point]:
    """Return at most ``_MOST_POINTS`` points, each the mean of neighbouring samples."""
    parts = min(len(at_s), _MOST_POINTS)
    points: list[Point] = []
    for times, part in zip(np.array_split(at_s, parts), np.array_split(values, parts), strict=True):
        mean = float(part.mean())
        points.append((float(times.mean()), mean if np.isfinite(mean) else None))
    return points
