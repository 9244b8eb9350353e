"""Report section of ``--torch-profile``: torch's operators by phase, its kernels, and remarks on
the recorded window of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from voirkit.report import duration, figure, size
from voirkit.report.sections import (
    Amounts,
    Bars,
    Block,
    Column,
    Details,
    InText,
    OnPage,
    Section,
    Table,
    Text,
)

_MOST = 4  # operators shown per phase in a terminal, and kernels shown in the line of kernels
# an operator with a smaller share of the time of all operators has no row in a terminal
_LEAST_SHARE = 0.02
_BARS = 16

Part = Mapping[str, Any]
Row = Mapping[str, Any]


def sections(part: Part, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section: the operators that take most time in each phase, with calls, own time on
    the host and on a device, and memory. All amounts are per step and rank."""
    remarks = list(_remarks(part))
    blocks: list[Block] = []
    phases = part["phases"]
    if phases:
        # factor that turns a sum over the profiled steps of all ranks into one step of one rank
        each = 1 / max(len(part["steps"]) * max(len(part["ranks"]), 1), 1)
        has_device = any(phase["self_device_s"] for phase in phases.values())
        key = "self_device_s" if has_device else "self_cpu_s"
        blocks.append(InText([_table(part, each, key)]))
        blocks.append(OnPage([_bars(part, each, key)]))
        for name, phase in phases.items():
            blocks.append(_operators_of(name, phase["operators"], each))
        if part["kernels"]:
            blocks.append(_kernels(part["kernels"], each))
        own_times_s = {
            f"{phase} · {name}": row[key] * each for phase, name, row in _operators(part)
        }
        blocks.append(Amounts("own time of operators in a step", own_times_s, "s"))
    if phases or part.get("why"):
        blocks.append(OnPage([Text(". ".join(remarks), mood="note")]))
    blocks.append(InText([Text(line, mood="note") for line in remarks]))
    yield Section("torch-profile", "Operators", blocks, least=8)


def _operators(part: Part) -> Iterator[tuple[str, str, Row]]:
    """Yield (phase, operator, row of the operator) for all phases."""
    for name, phase in part["phases"].items():
        for operator, row in phase["operators"].items():
            yield name, operator, row


def _kernels(kernels: Mapping[str, Row], each: float) -> Details:
    rows = []
    for name, row in kernels.items():
        calls = figure(row["calls"] * each)
        rows.append((name, calls, duration(row["device_s"] * each), ", ".join(row["phases"])))
    heads = ("kernel", "calls", "in all", "of phase")
    return Details(f"{len(rows)} kernels", [Table(heads, rows, (0, 3), caption="A step")])


def _table(part: Part, each: float, key: str) -> Table:
    heads: Sequence[Column] = (
        Column("phase", left=True),
        Column("operator", left=True, cut=True),
        Column("calls", narrowest=40),
        Column("self", narrowest=30),
        Column("of phase", narrowest=64),
        Column("on device", narrowest=52),
        Column("takes", narrowest=80),
    )
    phases = part["phases"]
    least_s = _LEAST_SHARE * sum(phase[key] for phase in phases.values())
    cells = []
    for phase_name, phase in phases.items():
        ranked = sorted(phase["operators"].items(), key=lambda item: -item[1][key])
        large = [(name, row) for name, row in ranked if row[key] >= least_s]
        for nth, (name, row) in enumerate(large[:_MOST]):
            self_s = row["self_cpu_s"]
            of_phase = f"{self_s / phase['time_s']:.0%}" if phase["time_s"] else ""
            on_device = _if_any(row["self_device_s"], each, duration)
            n_bytes = _if_any(row["bytes"], each, size)
            amounts = (figure(row["calls"] * each), duration(self_s * each), of_phase)
            cells.append(("" if nth else phase_name, name, *amounts, on_device, n_bytes))
    return Table(heads, cells, most=len(cells))


def _if_any(amount: float, each: float, format_value: Callable[[float], str]) -> str:
    return format_value(amount * each) if amount else ""


def _bars(part: Part, each: float, key: str) -> Bars:
    ranked = sorted(_operators(part), key=lambda operator: -(operator[2][key] * each))[:_BARS]
    rows = []
    for _, name, row in ranked:
        time_s = row[key] * each
        calls = figure(row["calls"] * each)
        rows.append((name, time_s, f"{duration(time_s)} in {calls} calls"))
    if key == "self_device_s":
        meaning = "time of the kernels that each starts itself"
    else:
        meaning = "each one's own time on the host"
    return Bars(
        rows,
        f"A step: {meaning}, without that of operators inside it",
        [phase for phase, _, _ in ranked],
    )


def _operators_of(phase: str, operators: Mapping[str, Row], each: float) -> Details:
    heads = ("operator", "calls", "self", "in all", "own kernels", "takes", "gives back")
    rows = []
    for name, row in operators.items():
        times = [duration(row[key] * each) for key in ("self_cpu_s", "cpu_s")]
        on_device = _if_any(row["self_device_s"], each, duration)
        sizes = [_if_any(row[key], each, size) for key in ("bytes", "freed")]
        rows.append((name, figure(row["calls"] * each), *times, on_device, *sizes))
    return Details(f"{phase}: {len(rows)} operators", [Table(heads, rows, caption="A step")])


def _remarks(part: Part) -> Iterator[str]:
    steps = part["steps"]
    if steps:
        if len(steps) == 1:
            window = f"step {steps[0]}"
        else:
            window = f"{len(steps)} steps, {steps[0]} to {steps[-1]}"
        slower = ""
        if part.get("slower"):
            slower = (
                f"; their forward, backward and optimizer take {part['slower']:.1f} times as long"
                " as others'"
            )
        yield f"operators a step, by torch {part['torch']}'s profiler, of {window}{slower}"
    if part.get("why"):
        yield f"{part['why']}"
    kernels = (part.get("kernels") or {}).items()
    longest = sorted(kernels, key=lambda item: -item[1]["device_s"])[:_MOST]
    if longest:
        words = [
            f"{name[:40]} {row['calls']:,} in {duration(row['device_s'])}" for name, row in longest
        ]
        yield f"kernels  {', '.join(words)}"
    if part.get("left_out"):
        yield f"{part['left_out']:,} events were more than are read, and are left out"
    if steps:
        error = duration(part["clock_error_s"] or 0)
        yield (
            f"loader workers are not seen by it; on the run's clock to {error}; torch's own trace:"
            f" {part['file']}"
        )
