"""The system call that takes most of some phases, for the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voirkit.analysis.verdict.evidence import LEAST, Evidence


def system_calls(found: Mapping[str, Any], phases: Sequence[str]) -> list[Evidence]:
    """The one that takes most of the phases, with the file that most was read from or written to, and its share of their time."""
    lasted = sum((found.get("totals") or {}).get(phase, {}).get("lasted_s") or 0.0 for phase in phases)
    spent: dict[str, float] = {}
    moved = 0
    for phase in phases:
        for name, row in ((found.get("phases") or {}).get(phase) or {}).items():
            spent[name] = spent.get(name, 0.0) + (row.get("seconds") or 0.0)
            moved += row.get("bytes") or 0
    name, seconds = max(spent.items(), key=lambda item: item[1], default=("", 0.0))
    if not lasted or seconds < LEAST * lasted:
        return []
    file = max(found.get("files") or (), key=lambda row: row["read"] + row["written"], default=None) if moved else None
    where = f" on {file['path']}" if file else ""
    return [Evidence(f"{name}(){where}", min(seconds / lasted, 1.0))]
