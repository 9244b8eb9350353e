"""What each phase did to the memory (``--memory-snapshot``) as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.figure import size

_HEADS = {"rss": "process", "python": "python's objects", "device": "on the device"}


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    if (summary.get("memory") or {}).get("phases"):
        yield 7, memory_part(summary["memory"])


def memory_part(memory: Mapping[str, Any]) -> RenderableType:
    """A row a phase: by how much what is held grew in it in all, and the most that was held; of each kind of memory that was read.

    Args:
        memory: The key ``memory`` of a summary, with ``phases``.
    """
    heads, rows = cells_of(memory["phases"])
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if not memory.get("snapshot"):
        return table
    return Group(
        table, Text(f" every allocation on the device: {memory['snapshot']} (https://pytorch.org/memory_viz draws it)", style="dim")
    )


def cells_of(phases: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
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
