"""What the flags that look deeper have found of a phase: the hottest source line, the operator, the system call and its file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ASKS = re.compile(r"^(async )?for\b|\bnext\(")  # the line that asks for a batch says nothing of what is waited for
_LEAST = 0.2  # of the phase's time: less explains nothing

Summary = Mapping[str, Any]


def source_lines(summary: Summary, phase: str) -> list[tuple[str, float]]:
    """With ``--flame``, the lines of the program that a phase was seen in most often, with their text, and their shares of the phase."""
    row = ((summary.get("flame") or {}).get("phases") or {}).get(phase) or {}
    texts = row.get("text") or {}
    hot = [(place, share) for place, share in (row.get("lines") or {}).items() if share >= _LEAST]
    found = sorted((line for line in hot if phase != "wait" or not _ASKS.search(texts.get(line[0], ""))), key=lambda line: -line[1])
    return [(" ".join(filter(None, (place.rpartition("/")[2], texts.get(place)))), share) for place, share in found]


def source_line(summary: Summary, phase: str) -> tuple[str, float] | None:
    """The first of them."""
    return next(iter(source_lines(summary, phase)), None)


def operator(summary: Summary, *phases: str) -> tuple[str, float] | None:
    """With ``--torch-profile``, the operator that takes most of some phases by itself, and its share of their operators' time."""
    spent: dict[str, float] = {}
    for phase in phases:
        for name, row in ((((summary.get("torch_profile") or {}).get("phases") or {}).get(phase) or {}).get("operators") or {}).items():
            spent[name] = spent.get(name, 0.0) + max(row.get("self_device_s", 0.0), row.get("self_cpu_s", 0.0))
    total = sum(spent.values())
    name, seconds = max(((name, s) for name, s in spent.items() if not name.startswith("(")), key=lambda item: item[1], default=("", 0.0))
    return (name, seconds / total) if total and seconds >= _LEAST * total else None


def system_call(summary: Summary, *phases: str) -> tuple[str, float] | None:
    """With ``--syscalls``, the call that takes most of some phases, with the file that most was read from or written to, and its share."""
    found = summary.get("syscalls") or {}
    lasted = sum((found.get("totals") or {}).get(phase, {}).get("lasted_s") or 0.0 for phase in phases)
    spent: dict[str, float] = {}
    moved = 0
    for phase in phases:
        for name, row in ((found.get("phases") or {}).get(phase) or {}).items():
            spent[name] = spent.get(name, 0.0) + (row.get("seconds") or 0.0)
            moved += row.get("bytes") or 0
    name, seconds = max(spent.items(), key=lambda item: item[1], default=("", 0.0))
    if not lasted or seconds < _LEAST * lasted:
        return None
    file = max(found.get("files") or (), key=lambda row: row["read"] + row["written"], default=None) if moved else None
    where = f" on {file['path']}" if file else ""
    return f"{name}(){where}", min(seconds / lasted, 1.0)
