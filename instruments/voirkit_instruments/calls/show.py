"""The part of a run's table that says which functions were called, how often, and for how long. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.figure import duration

_MOST = 20  # functions
_NAMED = 4  # functions that vary between steps
_MANY_RANKS = 8
OUTSIDE = "outside of steps"

Calls = Mapping[str, Any]


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    calls = summary.get("calls")
    if calls and calls.get("by_function"):
        yield 6, calls_part(calls, width)


def calls_part(calls: Calls, width: int) -> RenderableType:
    """How many; the functions, most time of their own first, with as many columns as there is room for; phases, ranks and steps.

    Args:
        calls: The key ``calls`` of a summary.
        width: Columns of the terminal.
    """
    rows = list(calls["by_function"].items())
    cells = [_cells(name, row) for name, row in rows[:_MOST]]
    fits = {"function": 0, "self": 0, "total": 42, "n": 52, "mean": 66, "a step": 76, "errors": 0}
    shown = [at for at, (name, least) in enumerate(fits.items()) if width >= least and (name != "errors" or calls["errors"])]
    widths = [max(len(row[at]) for row in [tuple(fits), *cells]) for at in range(len(fits))]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for at in shown:
        room = max(width - sum(widths[other] for other in shown[1:]) - 2 * len(shown), 12) if not at else None
        justify: Any = "right" if at else "left"
        table.add_column(list(fits)[at], no_wrap=True, overflow="ellipsis", justify=justify, max_width=room)
    for row in cells:
        table.add_row(*(Text(row[at]) for at in shown))
    more = [Text(f" {calls['functions'] - len(cells)} more functions: voirkit report --json", style="dim")] * (
        calls["functions"] > len(cells)
    )
    first, *rest = facts(calls)
    return Group(first, table, *more, *rest)


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    a_step = row.get("a_step")
    often = "" if not a_step else f"{a_step['median']}" + (f" ({a_step['min']}..{a_step['max']})" if a_step["min"] < a_step["max"] else "")
    errors = f"{row['errors']:,}" if row["errors"] else ""
    return short(name), duration(row["self_s"]), duration(row["total_s"]), f"{row['n']:,}", duration(row["mean_s"]), often, errors


def short(name: str) -> str:
    """A function as people call it: ``F.relu``, ``optim.Adam.step``, ``nn.Linear.__call__``, ``data.DataLoader.__iter__``."""
    for long, brief in (
        ("torch.nn.functional.", "F."),
        ("torch.nn.modules.", "nn."),
        ("torch.optim.", "optim."),
        ("torch.utils.data.", "data."),
    ):
        if name.startswith(long):
            rest = name[len(long) :]
            return brief + (rest if brief == "F." else rest.partition(".")[2] or rest)
    return name


def facts(calls: Calls) -> Iterator[Text]:
    """How many, of how many functions; their time by phase; what is not called equally often in all steps; ranks; a line each."""
    said = [f"{calls['events']:,} calls of {calls['functions']:,} functions"]
    if calls["errors"]:
        said.append(f"{calls['errors']:,} raised an exception")
    steps = calls.get("by_step")
    if steps:
        each = steps["calls"]
        spread = f" ({each['min']:,}..{each['max']:,})" if each["min"] < each["max"] else ""
        said.append(f"{each['median']:,} a step{spread}")
    skipped = sum(why["n"] for why in (calls.get("skipped") or {}).values())
    if skipped:
        said.append(f"{skipped:,} functions could not be watched")
    if calls.get("every", 1) > 1:
        said.append(f"one step in {calls['every']:,} was recorded")
    yield _line("calls", *said)
    phases = dict(calls["by_phase"])
    outside, inside = phases.pop(OUTSIDE, None), sum(row["self_s"] for row in phases.values())
    ordered = sorted(phases.items(), key=lambda item: -item[1]["self_s"])
    said = [f"{phase} {row['self_s'] / inside:.0%} ({row['n']:,})" for phase, row in ordered if inside]
    if said:
        yield _line("their time by phase", *said, f"outside of steps {duration(outside['self_s'])} ({outside['n']:,})" if outside else "")
    if steps and steps["varying"]:
        named = [short(name) for name in steps["varying"][:_NAMED]]
        rest = len(steps["varying"]) - len(named)
        yield _line("not called equally often in all steps", ", ".join(named) + (f" and {rest} more" if rest else ""))
    ranks = calls["by_rank"]
    if len(ranks) > 1:
        named = [f"{row['rank']}: {row['n']:,} in {duration(row['self_s'])}" for row in ranks[:_MANY_RANKS]]
        yield _line("by rank", *named, f"{len(ranks) - _MANY_RANKS} more" if len(ranks) > _MANY_RANKS else "")


def _line(name: str, *said: str) -> Text:
    return Text.assemble((f"{name}  ", "dim"), " · ".join(one for one in said if one))
