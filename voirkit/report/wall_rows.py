"""The account of the whole wall time, as every report begins with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voirkit.report.figure import duration
from voirkit.runs.wall import evaluation_name

_LEAST = 0.005  # of the run: what is less is not shown


def shown_parts(wall: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The parts of a summary's ``wall`` that a report shows, the largest first."""
    parts = {name: part for name, part in wall["parts"].items() if part["share"] >= _LEAST or name == "training"}
    return dict(sorted(parts.items(), key=lambda item: -item[1]["total_s"]))


def wall_line(wall: Mapping[str, Any], evaluation: Mapping[str, Any] | None = None) -> str:
    """One line: ``import 41% (1.6 s) · training 30% (1.2 s) · …``.

    Args:
        wall: Of a summary.
        evaluation: Of it too: it says what the part of that name is called.
    """
    names = {"evaluation": evaluation_name(evaluation)}
    parts = shown_parts(wall).items()
    return " · ".join(f"{names.get(name, name)} {part['share']:.0%} ({duration(part['total_s'])})" for name, part in parts)
