"""The first screen of a report: what ran and how it ended, the verdict, where the time of a step goes, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration
from voirkit.report.html_marks import Html, paragraph, section, stacked, strong

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

PHASES = ("wait", "transfer", "forward", "backward", "optimizer", "other")


def first(run: Run, summary: Mapping[str, Any]) -> Html:
    """Always there."""
    verdict, steps = summary.get("verdict"), summary.get("steps")
    said = [paragraph(strong(verdict["kind"]), " ", verdict["because"])] if verdict else []
    if steps and steps["n"]:
        row = {phase: steps["phases"][phase]["total_s"] for phase in PHASES}
        said.append(stacked([("a step", row, duration(steps["time_s"]["median"]))], duration))
    return section("first", " ".join(map(str, summary.get("command") or [])) or run.name, *said)
