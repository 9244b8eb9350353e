"""Calls in a report: the functions that were called, by their own time, by phase, and how often in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration
from voirkit.report.html.components import Html, folded, said, section, stacked, table
from voirkit.report.html.differences import Pair, compared_by_name
from voirkit.runs.step_phases import PHASES
from voirkit_instruments.calls.show import OUTSIDE, facts, short

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_DRAWN = 20
_ORDER = (*PHASES, OUTSIDE)


def calls(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Of runs with --calls."""
    found = summary.get("calls")
    if not found or not found.get("by_function"):
        return None
    rows = list(found["by_function"].items())
    inside = [(name, {phase: one["self_s"] for phase, one in row["phases"].items() if phase != OUTSIDE}) for name, row in rows]
    inside = sorted((row for row in inside if sum(row[1].values()) > 0), key=lambda row: -sum(row[1].values()))[:_DRAWN]
    drawn = [(short(name), phases, duration(sum(phases.values()))) for name, phases in inside]
    cells = [
        (
            short(name), *(duration(row[f"{key}_s"]) for key in ("self", "total")), f"{row['n']:,}", duration(row["mean_s"]),
            duration(row["max_s"]), _often(row.get("a_step")), f"{row['errors']:,}" if row["errors"] else "",
        )
        for name, row in rows
    ]  # fmt: skip
    more = found["functions"] - len(rows)
    parts: list[Any] = [said(line) for line in facts(found)]
    if drawn:
        parts.append(stacked(drawn, duration, caption="time of their own within steps, by phase", order=_ORDER))
    heads = ("function", "self", "total", "n", "mean", "longest", "a step", "errors")
    parts.append(folded(f"all {len(rows)} functions" if more <= 0 else f"{len(rows)} functions; {more} more had less", table(heads, cells)))
    return section("calls", "Calls", *parts, note="self is the time without the recorded calls inside, total with them.")


def _often(a_step: Mapping[str, Any] | None) -> str:
    if not a_step:
        return ""
    return f"{a_step['median']}" + (f" ({a_step['min']}..{a_step['max']})" if a_step["min"] < a_step["max"] else "")


def compared(summaries: Pair) -> Html | None:
    """The section of the page of two runs."""
    return compared_by_name(summaries, "calls", "by_function", "Calls", "self_s", duration, short)
