"""The operator that takes most of some phases, for the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voirkit.analysis.verdict.evidence import LEAST, Evidence


def operators(profile: Mapping[str, Any], phases: Sequence[str]) -> list[Evidence]:
    """The one that takes most of the phases by itself, and its share of their operators' time."""
    spent: dict[str, float] = {}
    for phase in phases:
        for name, row in (((profile.get("phases") or {}).get(phase) or {}).get("operators") or {}).items():
            spent[name] = spent.get(name, 0.0) + max(row.get("self_device_s", 0.0), row.get("self_cpu_s", 0.0))
    total = sum(spent.values())
    name, seconds = max(((name, s) for name, s in spent.items() if not name.startswith("(")), key=lambda item: item[1], default=("", 0.0))
    return [Evidence(name, seconds / total)] if total and seconds >= LEAST * total else []
