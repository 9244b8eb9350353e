"""torch's operators by phase, and its kernels, on the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration, figure, size
from voirkit.report.html.components import Html, bars, colour, folded, legend, section, table
from voirkit_instruments.torch_profile.show import a_step, said, taken_by

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_BARS = 16
_HEADS = ("operator", "calls", "self", "in all", "own kernels", "takes", "gives back")


def torch_profile(run: Run, summary: Mapping[str, Any]) -> str | None:
    """A bar of operators for each phase, and below it all of them."""
    found = summary.get("torch_profile")
    parts = [*_profile(found)] if found and found["phases"] else []
    if not found or not (parts or found.get("why")):
        return None
    return section("torch-profile", "Operators", *parts, note=". ".join(said(found)))


def _profile(found: Mapping[str, Any]) -> Iterator[Html]:
    each, key = a_step(found), taken_by(found)
    ranked = sorted(
        ((row[key] * each, phase, name, row) for phase, part in found["phases"].items() for name, row in part["operators"].items()),
        key=lambda item: -item[0],
    )[:_BARS]
    rows = [(name, taken, f"{duration(taken)} in {figure(row['calls'] * each)} calls") for taken, _, name, row in ranked]
    colours = {phase: colour(phase) for phase in found["phases"]}
    what = "time of the kernels that each starts itself" if key == "self_device_s" else "each one's own time on the host"
    yield legend(colours)
    yield bars(rows, [colours[phase] for _, phase, _, _ in ranked], caption=f"A step: {what}, without that of operators inside it")
    for phase, part in found["phases"].items():
        cells = [_cells(name, row, each) for name, row in part["operators"].items()]
        yield folded(f"{phase}: {len(cells)} operators", table(_HEADS, cells, caption="A step"))
    if found["kernels"]:
        heads = ("kernel", "calls", "in all", "of phase")
        kernels = [
            (name, figure(row["calls"] * each), duration(row["device_s"] * each), ", ".join(row["phases"]))
            for name, row in found["kernels"].items()
        ]
        yield folded(f"{len(kernels)} kernels", table(heads, kernels, left=(0, 3), caption="A step"))


def _cells(name: str, row: Mapping[str, Any], each: float) -> tuple[str, ...]:
    taken, freed = (size(row[key] * each) if row[key] else "" for key in ("bytes", "freed"))
    device = duration(row["self_device_s"] * each) if row["self_device_s"] else ""
    return (name, figure(row["calls"] * each), duration(row["self_cpu_s"] * each), duration(row["cpu_s"] * each), device, taken, freed)
