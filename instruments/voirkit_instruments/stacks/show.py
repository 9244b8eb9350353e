"""The part of a run's table that says which functions its phases were seen in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.figure import duration

_MOST = 12  # phases
_LINES = 3  # the column
_LEAST = 0.005  # of the stacks of its kind of process


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    if summary.get("flame"):
        yield 6, flame_part(summary["flame"], width)


def flame_part(flame: Mapping[str, Any], width: int) -> RenderableType:
    """A row for each phase: how many stacks were seen in it, which share of all, the functions that were innermost most often.

    Args:
        flame: The key ``flame`` of a summary.
        width: Columns of the terminal.
    """
    heads = ("stacks in", "seen", "share", "lines of the program", "innermost functions")
    if not flame["phases"]:
        return Group(*(Text(f" {line}", style="dim") for line in said(flame)))
    rows = [(phase, row) for phase, row in flame["phases"].items() if row["share"] >= _LEAST][:_MOST]
    cells = [
        (
            f"{row['of']}s: {phase}" if row["of"] == "worker" else phase,
            f"{row['samples']:,}",
            f"{row['share']:.1%}",
            _lines(row.get("lines") or {}),
            _functions(row["functions"]),
        )
        for phase, row in rows
    ]
    shown = [at for at, least in enumerate((0, 52, 40, 72, 0)) if width >= least and any(row[at] for row in cells)]
    last = len(heads) - 1
    wide = {at: max(len(row[at]) for row in [heads, *cells]) for at in shown}
    wide[last] = max(min(wide[last], width - 2 * len(shown) - sum(wide[at] for at in shown[:-1])), len(heads[last]))
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for at in shown:
        justify: Any = "left" if at in (0, _LINES, last) else "right"
        table.add_column(heads[at], no_wrap=True, overflow="ellipsis", justify=justify, min_width=wide[at], max_width=wide[at])
    for row in cells:
        table.add_row(*(Text(row[at]) for at in shown))
    return Group(table, *(Text(f" {line}", style="dim") for line in said(flame)))


def _lines(lines: Mapping[str, float]) -> str:
    """The two that were seen most often; the folder of a file stays away."""
    return ", ".join(f"{share:.0%} {at.rpartition('/')[2]}" for at, share in list(lines.items())[:2] if share >= 0.005)


def _functions(functions: Mapping[str, float]) -> str:
    return ", ".join(f"{share:.0%} {name.partition(' (')[0]}" for name, share in functions.items() if share >= 0.005)


def said(flame: Mapping[str, Any]) -> Iterator[str]:
    """What is to be known of the stacks: who took them, what they cost, how true their phases are."""
    who = f"{flame['samples']:,} stacks by {flame['tool']}, {flame['rate_hz']} times a second"
    who += " of threads that hold the GIL" if flame["gil"] else ""
    lost = f", {flame['lost']:,} lost" if flame["lost"] else ""
    yield f"{who}{lost}; {flame['files']['speedscope']} opens in https://www.speedscope.app"
    clock, cost = flame["clock"], flame["cost"]
    parts = []
    if cost["tool_s"]:
        parts.append(f"cost: {duration(cost['tool_s'])} of a processor beside the program ({cost['of_a_processor']:.1%} of one)")
    if clock["compared"]:
        parts.append(f"of {clock['compared']:,} stacks that name a phase {clock['agreement']:.1%} were seen in it by the clock")
    if parts:
        yield "; ".join(parts)
