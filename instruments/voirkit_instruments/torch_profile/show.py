"""torch's operators by phase as a person reads them in a terminal, and what is to be known of the window in which they were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.figure import duration, figure, size

_NAME = 1  # the column
_MOST = 4  # operators of a phase
_LITTLE = 0.02  # of all time: an operator below it has no row

Document = Mapping[str, Any]
Row = Mapping[str, Any]


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    if summary.get("torch_profile"):
        yield 8, torch_profile_part(summary["torch_profile"], width)


def torch_profile_part(found: Document, width: int) -> RenderableType:
    """The operators that take most time in each phase: calls, own time on the host and on a device, memory; all of them a step.

    Args:
        found: The key ``torch_profile`` of a summary.
        width: Columns of the terminal.
    """
    lines = [Text(f" {line}", style="dim") for line in said(found)]
    if not found["phases"]:
        return Group(*lines)
    heads = ("phase", "operator", "calls", "self", "of phase", "on device", "takes")
    cells = list(_rows(found))
    at_least = (0, 0, 40, 30, 64, 52, 80)
    shown = [at for at, least in enumerate(at_least) if width >= least and any(row[at] for row in cells)]
    widths = {at: max(len(row[at]) for row in [heads, *cells]) for at in shown}
    room = max(width - sum(widths[at] + 2 for at in shown if at != _NAME) - 2, 12)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for at in shown:
        table.add_column(
            heads[at], no_wrap=True, justify="left" if at <= _NAME else "right", width=min(widths[at], room) if at == _NAME else widths[at]
        )
    for row in cells:
        table.add_row(*(Text(_within(row[at], room)) for at in shown))
    return Group(table, *lines)


def _within(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}…"


def a_step(found: Document) -> float:
    """What figures of the window are multiplied by to be those of one step of one rank."""
    return 1 / max(len(found["steps"]) * max(len(found["ranks"]), 1), 1)


def taken_by(found: Document) -> str:
    """The key by which operators are ranked: time on a device, if there is any."""
    return "self_device_s" if any(part["self_device_s"] for part in found["phases"].values()) else "self_cpu_s"


def _rows(found: Document) -> Iterator[tuple[str, ...]]:
    each, key = a_step(found), taken_by(found)
    total = sum(part[key] for part in found["phases"].values())
    for phase, part in found["phases"].items():
        rows = sorted(part["operators"].items(), key=lambda item: -item[1][key])
        for at, (name, row) in enumerate([item for item in rows if item[1][key] >= _LITTLE * total][:_MOST]):
            time_s = part["time_s"]
            yield (
                "" if at else phase,
                name,
                figure(row["calls"] * each),
                duration(row["self_cpu_s"] * each),
                f"{row['self_cpu_s'] / time_s:.0%}" if time_s else "",
                duration(row["self_device_s"] * each) if row["self_device_s"] else "",
                size(row["bytes"] * each) if row["bytes"] else "",
            )


def said(found: Document) -> Iterator[str]:
    """What was recorded, and what can be trusted of it."""
    steps = found["steps"]
    if steps:
        which = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps, {steps[0]} to {steps[-1]}"
        slower = (
            f"; their forward, backward and optimizer take {found['slower']:.1f} times as long as others'" if found.get("slower") else ""
        )
        yield f"operators a step, by torch {found['torch']}'s profiler, of {which}{slower}"
    if found.get("why"):
        yield f"{found['why']}"
    kernels = sorted((found.get("kernels") or {}).items(), key=lambda item: -item[1]["device_s"])[:_MOST]
    if kernels:
        yield "kernels  " + ", ".join(f"{name[:40]} {row['calls']:,} in {duration(row['device_s'])}" for name, row in kernels)
    if found.get("left_out"):
        yield f"{found['left_out']:,} events were more than are read, and are left out"
    if steps:
        error = duration(found["clock_error_s"] or 0)
        yield f"loader workers are not seen by it; on the run's clock to {error}; torch's own trace: {found['file']}"
