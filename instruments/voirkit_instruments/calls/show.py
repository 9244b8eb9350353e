"""Calls in reports: which functions were called, how often and for how long, their time by phase, what varies between steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voirkit.report.figure import duration
from voirkit.report.sections import Amounts, Block, Column, Details, InText, OnPage, Section, Stacked, Table, Text
from voirkit.runs.summary import PHASES

_MOST = 20  # functions that a terminal shows, and that are drawn
_NAMED = 4  # functions that vary between steps
_MANY_RANKS = 8
_HEADS = (
    Column("function", left=True, cut=True), Column("self"), Column("total", narrowest=42), Column("n", narrowest=52),
    Column("mean", narrowest=66), Column("longest", narrowest=100), Column("a step", narrowest=76), Column("errors"),
)  # fmt: skip
OUTSIDE = "outside of steps"

Calls = Mapping[str, Any]


def sections(calls: Calls, summary: Mapping[str, Any]) -> Iterator[Section]:
    functions = calls.get("by_function")
    if not functions:
        return
    cells = [_cells(name, row) for name, row in functions.items()]
    more = calls["functions"] - len(cells)
    title = f"all {len(cells)} functions" if more <= 0 else f"{len(cells)} functions; {more} more had less"
    first, *rest = _facts(calls)
    blocks: list[Block] = [first, InText([Table(_HEADS, cells, most=_MOST, total=calls["functions"])]), *rest]
    blocks.append(OnPage([*_by_phase(functions), Details(title, [Table(_HEADS, cells)])]))
    blocks.append(Amounts("time of their own", {short(name): row["self_s"] for name, row in functions.items()}, "s"))
    yield Section("calls", "Calls", blocks, "self is the time without the recorded calls inside, total with them.")


def _cells(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    a_step = row.get("a_step")
    often = "" if not a_step else f"{a_step['median']}" + (f" ({a_step['min']}..{a_step['max']})" if a_step["min"] < a_step["max"] else "")
    times = (duration(row["self_s"]), duration(row["total_s"]), f"{row['n']:,}", duration(row["mean_s"]), duration(row["max_s"]))
    return short(name), *times, often, f"{row['errors']:,}" if row["errors"] else ""


def _by_phase(functions: Mapping[str, Any]) -> Iterator[Block]:
    """The functions with most time of their own within steps."""
    rows = []
    for name, row in functions.items():
        phases = {phase: one["self_s"] for phase, one in row["phases"].items() if phase != OUTSIDE}
        if sum(phases.values()) > 0:
            rows.append((short(name), phases, duration(sum(phases.values()))))
    if rows:
        rows.sort(key=lambda row: -sum(row[1].values()))
        yield Stacked(rows[:_MOST], "s", "time of their own within steps, by phase", (*PHASES, OUTSIDE))


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


def _facts(calls: Calls) -> Iterator[Text]:
    """How many, of how many functions; their time by phase; what is not called equally often in all steps; ranks; a line each."""
    parts = [f"{calls['events']:,} calls of {calls['functions']:,} functions"]
    if calls["errors"]:
        parts.append(f"{calls['errors']:,} raised an exception")
    steps = calls.get("by_step")
    if steps:
        each = steps["calls"]
        spread = f" ({each['min']:,}..{each['max']:,})" if each["min"] < each["max"] else ""
        parts.append(f"{each['median']:,} a step{spread}")
    skipped = sum(why["n"] for why in (calls.get("skipped") or {}).values())
    if skipped:
        parts.append(f"{skipped:,} functions could not be watched")
    if calls.get("every", 1) > 1:
        parts.append(f"one step in {calls['every']:,} was recorded")
    yield _line("calls", parts)
    phases = dict(calls["by_phase"])
    outside, inside = phases.pop(OUTSIDE, None), sum(row["self_s"] for row in phases.values())
    ordered = sorted(phases.items(), key=lambda item: -item[1]["self_s"])
    parts = [f"{phase} {row['self_s'] / inside:.0%} ({row['n']:,})" for phase, row in ordered if inside]
    if parts:
        yield _line("their time by phase", [*parts, *([f"{OUTSIDE} {duration(outside['self_s'])} ({outside['n']:,})"] if outside else [])])
    if steps and steps["varying"]:
        rest = len(steps["varying"]) - _NAMED
        names = ", ".join(map(short, steps["varying"][:_NAMED]))
        yield Text(names + (f" and {rest} more" if rest > 0 else ""), "not called equally often in all steps")
    ranks = calls["by_rank"]
    if len(ranks) > 1:
        parts = [f"{row['rank']}: {row['n']:,} in {duration(row['self_s'])}" for row in ranks[:_MANY_RANKS]]
        yield _line("by rank", [*parts, *([f"{len(ranks) - _MANY_RANKS} more"] if len(ranks) > _MANY_RANKS else [])])


def _line(label: str, parts: list[str]) -> Text:
    return Text(" · ".join(parts), label)
