"""torch's operators by phase, and its kernels, as people read them; and what is to be known of the window in which they were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voirkit.report import duration, figure, size
from voirkit.report.sections import Amounts, Bars, Block, Column, Details, InText, OnPage, Section, Table, Text

_MOST = 4  # operators of a phase in a terminal, and kernels in a line
_LEAST_SHARE = 0.02  # of all time: an operator below it has no row in a terminal
_BARS = 16

Part = Mapping[str, Any]
Row = Mapping[str, Any]


def sections(part: Part, summary: Mapping[str, Any]) -> Iterator[Section]:
    """The operators that take most time in each phase: calls, own time on the host and on a device, memory; all of them a step."""
    remarks = list(_remarks(part))
    blocks: list[Block] = []
    if part["phases"]:
        each = 1 / max(len(part["steps"]) * max(len(part["ranks"]), 1), 1)  # from the window to one step of one rank
        key = "self_device_s" if any(one["self_device_s"] for one in part["phases"].values()) else "self_cpu_s"
        blocks += [InText([_table(part, each, key)]), OnPage([_bars(part, each, key)])]
        blocks += [_operators_of(phase, one["operators"], each) for phase, one in part["phases"].items()]
        if part["kernels"]:
            rows = [
                (name, figure(row["calls"] * each), duration(row["device_s"] * each), ", ".join(row["phases"]))
                for name, row in part["kernels"].items()
            ]
            blocks.append(
                Details(f"{len(rows)} kernels", [Table(("kernel", "calls", "in all", "of phase"), rows, (0, 3), caption="A step")])
            )
        own = {f"{phase} · {name}": row[key] * each for phase, one in part["phases"].items() for name, row in one["operators"].items()}
        blocks.append(Amounts("own time of operators in a step", own, "s"))
    if part["phases"] or part.get("why"):
        blocks.append(OnPage([Text(". ".join(remarks), mood="note")]))
    blocks.append(InText([Text(line, mood="note") for line in remarks]))
    yield Section("torch-profile", "Operators", blocks, least=8)


def _table(part: Part, each: float, key: str) -> Table:
    heads = (
        Column("phase", left=True), Column("operator", left=True, cut=True), Column("calls", narrowest=40), Column("self", narrowest=30),
        Column("of phase", narrowest=64), Column("on device", narrowest=52), Column("takes", narrowest=80),
    )  # fmt: skip
    whole = sum(one[key] for one in part["phases"].values())
    cells = []
    for phase, one in part["phases"].items():
        ranked = sorted(one["operators"].items(), key=lambda item: -item[1][key])
        for nth, (name, row) in enumerate([item for item in ranked if item[1][key] >= _LEAST_SHARE * whole][:_MOST]):
            cells.append((
                "" if nth else phase, name, figure(row["calls"] * each), duration(row["self_cpu_s"] * each),
                f"{row['self_cpu_s'] / one['time_s']:.0%}" if one["time_s"] else "",
                duration(row["self_device_s"] * each) if row["self_device_s"] else "", size(row["bytes"] * each) if row["bytes"] else "",
            ))  # fmt: skip
    return Table(heads, cells, most=len(cells))


def _bars(part: Part, each: float, key: str) -> Bars:
    ranked = sorted(
        ((row[key] * each, phase, name, row) for phase, one in part["phases"].items() for name, row in one["operators"].items()),
        key=lambda item: -item[0],
    )[:_BARS]
    rows = [(name, spent, f"{duration(spent)} in {figure(row['calls'] * each)} calls") for spent, _, name, row in ranked]
    what = "time of the kernels that each starts itself" if key == "self_device_s" else "each one's own time on the host"
    return Bars(rows, f"A step: {what}, without that of operators inside it", [phase for _, phase, _, _ in ranked])


def _operators_of(phase: str, operators: Mapping[str, Row], each: float) -> Details:
    heads = ("operator", "calls", "self", "in all", "own kernels", "takes", "gives back")
    rows = []
    for name, row in operators.items():
        on_device = duration(row["self_device_s"] * each) if row["self_device_s"] else ""
        memory = (size(row[key] * each) if row[key] else "" for key in ("bytes", "freed"))
        rows.append(
            (name, figure(row["calls"] * each), duration(row["self_cpu_s"] * each), duration(row["cpu_s"] * each), on_device, *memory)
        )
    return Details(f"{phase}: {len(rows)} operators", [Table(heads, rows, caption="A step")])


def _remarks(part: Part) -> Iterator[str]:
    steps = part["steps"]
    if steps:
        which = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps, {steps[0]} to {steps[-1]}"
        times = f"; their forward, backward and optimizer take {part['slower']:.1f} times as long as others'" if part.get("slower") else ""
        yield f"operators a step, by torch {part['torch']}'s profiler, of {which}{times}"
    if part.get("why"):
        yield f"{part['why']}"
    kernels = sorted((part.get("kernels") or {}).items(), key=lambda item: -item[1]["device_s"])[:_MOST]
    if kernels:
        yield "kernels  " + ", ".join(f"{name[:40]} {row['calls']:,} in {duration(row['device_s'])}" for name, row in kernels)
    if part.get("left_out"):
        yield f"{part['left_out']:,} events were more than are read, and are left out"
    if steps:
        error = duration(part["clock_error_s"] or 0)
        yield f"loader workers are not seen by it; on the run's clock to {error}; torch's own trace: {part['file']}"
