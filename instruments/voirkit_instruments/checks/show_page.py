"""``--checks`` in a report: what was found and by what evidence, what could not be told, what was looked for and is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.html.components import Html, folded, heading, paragraph, section, strong, table, text

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


def checks(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Of runs with --checks."""
    found = summary.get("checks")
    if not found:
        return None
    parts: list[Any] = []
    for check in found:
        if check["found"]:
            at = [f"step {check['step']:,}"] if check.get("step") is not None else []
            at += [str(check["where"])] if check.get("where") else []
            parts += [heading(check["name"]), paragraph(strong(", ".join(at)), " " if at else "", text(check["because"], 1200))]
            parts.append(paragraph(strong("next "), text(check.get("next") or "", 1200)) if check.get("next") else None)
            evidence = check.get("evidence") or {}
            if evidence:
                parts.append(table(("evidence", ""), [(key, text(_words(value), 600)) for key, value in evidence.items()], left=(0, 1)))
    unknown = [(check["name"], check["because"]) for check in found if check["found"] is None]
    if unknown:
        parts.append(folded(f"{len(unknown)} could not be told", table(("check", "why"), unknown, left=(0, 1))))
    healthy = [(check["name"], check["because"]) for check in found if check["found"] is False]
    if healthy:
        parts.append(folded(f"{len(healthy)} looked for and not found", table(("check", "seen"), healthy, left=(0, 1))))
    n = sum(check["found"] is True for check in found)
    return section("checks", "Silent bugs", *parts, note=f"{len(found)} looked for, {n or 'none'} found.")


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
