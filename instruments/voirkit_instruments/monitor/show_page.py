"""What ``--monitor`` sampled, over time: processors, memory, storage, network, GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.report.figure import duration, figure, size
from voirkit.report.html.components import Html, join, section
from voirkit.report.html.plots import TIME, lines, seconds
from voirkit.report.html.steps import begin_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from voirkit.analysis.nesting import Array
    from voirkit.runs.opened import Run

_POINTS = 300
_PLOTS = 48
_COUNTED = ("read", "write", "disk_read", "disk_write", "net_sent", "net_received")  # bytes since some beginning: drawn per second
_WITH_UNITS = ("bytes", "bytes/s", "share")
_OWN = "kind = 'counter' AND category = 'monitor' AND rank = 0"
_NAMES = {
    "cpu": "processor cores that the run used", "host_cpu": "the machine's processors, busy", "rss": "memory of all processes",
    "shared": "of it shared", "host_memory": "the machine's memory in use", "processes": "processes", "read": "read", "write": "written",
    "disk_read": "the machine's disks, read", "disk_write": "the machine's disks, written", "net_sent": "the machine's network, sent",
    "net_received": "the machine's network, received",
}  # fmt: skip


def monitor(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Small pictures side by side, on one axis of time."""
    connection = run.connection()
    found = connection.execute(
        f"SELECT name, any_value(value_key), min(start_ns), max(start_ns) FROM spans WHERE {_OWN} GROUP BY name"
    ).fetchall()
    if not found:
        return None
    first, last = min(row[2] for row in found), max(row[3] for row in found)
    zero = begin_ns(run, first)
    order = list(_NAMES)
    found.sort(key=lambda row: (order.index(row[0]) if row[0] in order else len(order), row[0]))
    plots = []
    for name, units, *_ in found[:_PLOTS]:
        columns = connection.execute(f"SELECT start_ns, number FROM spans WHERE {_OWN} AND name = ? ORDER BY start_ns", [name]).fetchnumpy()
        at, values = (np.asarray(columns[key], dtype=np.float64) for key in ("start_ns", "number"))
        if name in _COUNTED and len(at) > 1:
            per_second = np.diff(values) / np.maximum(np.diff(at) / 1e9, 1e-9)
            at, values, units = at[1:], np.maximum(per_second, 0.0), "bytes/s"
        if len(values) and np.nanmax(values) > 0:
            shown = _shown(str(units))
            mean, most = (shown(float(of(values))) for of in (np.nanmean, np.nanmax))
            caption = f"{_NAMES.get(name, name.replace('_', ' '))}: mean {mean}, at most {most}"
            points = _thinned((at - zero) / 1e9, values)
            plots.append(
                lines(
                    {name: points},
                    shown if units in _WITH_UNITS else figure,
                    seconds,
                    caption,
                    TIME,
                    kind="small",
                    across=((first - zero) / 1e9, (last - zero) / 1e9),
                )
            )
    if not plots:
        return None
    interval = (summary.get("monitor") or {}).get("interval_s")
    note = f"Of the first rank{f', every {duration(interval)}' if interval else ''}. A point is the mean of its neighbourhood."
    return section("monitor", "Processor, memory, devices", Html(f'<div class="small">{join(plots)}</div>'), note=note)


def _thinned(at: Array, values: Array) -> list[tuple[float, float | None]]:
    """At most so many points: the means of neighbours."""
    pieces = min(len(at), _POINTS)
    points = []
    for x, y in zip(np.array_split(at, pieces), np.array_split(values, pieces), strict=True):
        mean = float(y.mean())
        points.append((float(x.mean()), mean if np.isfinite(mean) else None))
    return points


def _shown(units: str) -> Callable[[float], str]:
    if units in ("bytes", "bytes/s"):
        return lambda value: size(value) + units[5:]
    if units == "share":
        return lambda value: f"{value:.0%}"
    return lambda value: f"{figure(value)} {units}".rstrip()
