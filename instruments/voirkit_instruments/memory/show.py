"""What each phase did to the memory (``--memory-snapshot``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voirkit.report.figure import size
from voirkit.report.sections import Section, Table, Text

_HEADS = {"rss": "process", "python": "python's objects", "device": "on the device"}


def sections(memory: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """By how much what is held grew in each phase in all, and the most that was held; of each kind of memory that was read."""
    if not memory.get("phases"):
        return
    heads, rows = _cells(memory["phases"])
    blocks: list[Table | Text] = [Table(heads, rows, most=len(rows))]
    if memory.get("snapshot"):
        blocks.append(Text(f"every allocation on the device: {memory['snapshot']} (https://pytorch.org/memory_viz draws it)"))
    yield Section("memory", "Memory by phase", blocks, least=7)


def _cells(phases: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The heads and the cells of a table of ``memory.phases``."""
    kinds = [kind for kind in _HEADS if any(kind in row for row in phases.values())]
    rows = []
    for phase, row in phases.items():
        cells = [phase, f"{row['n']:,}" if row.get("n") is not None else ""]
        for kind in kinds:
            found = row.get(kind)
            cells += [f"{'-' if found['growth'] < 0 else ''}{size(abs(found['growth']))}", size(found["peak"])] if found else ["", ""]
        rows.append(cells)
    return ["memory of", "times", *(head for kind in kinds for head in (f"{_HEADS[kind]} grew", "at most"))], rows
