"""``--memory-snapshot``: the growth and the peak of memory in each phase of training."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names, one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.report.sections import Section

INSTRUMENT = Instrument(
    "memory",
    group="look deeper",
    options=(
        Option(
            "--memory-snapshot",
            "report the memory of each phase, with --torch-profile of each operator too, and keep"
            " CUDA's history of allocations; =tracemalloc adds Python objects and slows the program"
            " down",
            type=one_of("rss", "tracemalloc"),
            const="rss",
            metavar="tracemalloc",
        ),
    ),
    record="voirkit_instruments.memory.record:record",
    in_children=False,
    parts={"memory": dict},
    schema=__name__,
    sections="voirkit_instruments.memory:sections",
    priority=1,  # begins before the steps instrument, from which it learns of the phases
)

__getattr__ = lazy_names(__name__, memory_snapshot="record")

_HEADS = {"rss": "process", "python": "python's objects", "device": "on the device"}


def sections(memory: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section on memory by phase. For each kind of memory that was read, it has the
    growth, summed over all times that the phase was entered, and the peak."""
    from voirkit.report import size
    from voirkit.report.sections import Block, Section, Table, Text

    phases = memory.get("phases")
    if not phases:
        return
    kinds = [kind for kind in _HEADS if any(kind in row for row in phases.values())]
    heads = ["memory of", "times"]
    for kind in kinds:
        heads += [f"{_HEADS[kind]} grew", "at most"]
    rows = []
    for phase, row in phases.items():
        cells = [phase, f"{row['n']:,}" if row.get("n") is not None else ""]
        for kind in kinds:
            usage = row.get(kind)
            if usage:
                growth = usage["growth"]
                sign = "-" if growth < 0 else ""
                cells += [f"{sign}{size(abs(growth))}", size(usage["peak"])]
            else:
                cells += ["", ""]
        rows.append(cells)
    blocks: list[Block] = [Table(heads, rows, most=len(rows))]
    if memory.get("snapshot"):
        blocks.append(
            Text(
                f"every allocation on the device: {memory['snapshot']}"
                " (https://pytorch.org/memory_viz draws it)"
            )
        )
    yield Section("memory", "Memory by phase", blocks, least=7)
