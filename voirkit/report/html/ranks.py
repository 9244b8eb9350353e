"""The ranks of a run, or the processes that train, beside each other: what a step takes each, and what of it; a straggler stands out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.analysis.of_run import of_run
from voirkit.report.figure import duration
from voirkit.report.html.components import Html, folded, section, stacked, table
from voirkit.report.html.first import spread
from voirkit.report.html.steps import picture
from voirkit.report.labels import name_of_row, rows_of_processes
from voirkit.runs.step_phases import shown_phases

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_ROWS = 128  # ranks that are drawn
_PICTURES = 8  # ranks whose steps are drawn over time
_COLUMNS = 150

Summary = Mapping[str, Any]


def ranks(run: Run, summary: Summary) -> Html | None:
    """A bar for each rank, and the steps over time of the first ones."""
    rows = rows_of_processes(summary)
    if len(rows) < 2:
        return None
    slow = ((summary.get("verdict") or {}).get("evidence") or {}).get("rank")
    bars, phases = [], shown_phases(rows[0]["phases"])
    for row in rows[:_ROWS]:
        median = row["time_s"]["median"]
        means = {phase: row["phases"][phase]["share"] * median for phase in phases}
        name = name_of_row(row) + (" (the straggler)" if row["rank"] == slow and slow is not None else "")
        bars.append((name, means, duration(median)))
    cells = [
        (name_of_row(row), row["host"], f"{row['steps']:,}", *spread(row["time_s"]), *(f"{row['phases'][p]['share']:.1%}" for p in phases))
        for row in rows[:_ROWS]
    ]
    note = "A median step of each, divided as its steps are in all."
    if len(rows) > _ROWS:
        note += f" The first {_ROWS} of {len(rows)}; voirkit report --json has all."
    parts = [
        stacked(bars, duration, order=phases),
        folded("the same as a table", table(("", "host", "steps", "a step", "p10 .. p90", *phases), cells, left=(0, 1))),
    ]
    drawn = [rank for rank in of_run(run) if len(rank.steps.train)][1:_PICTURES]
    if drawn:
        parts.append(folded("steps of the others over time", *(_named(run, rank) for rank in drawn)))
    return section("ranks", "Ranks", *parts, note=note)


def _named(run: Run, rank: Any) -> Html:
    name = f"process {rank.processes[0][1]}" if rank.alone else f"rank {rank.rank}"
    return picture(run, rank, _COLUMNS, f"{name} on {rank.host}: time of a step")
