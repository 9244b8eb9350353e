"""The part of a run's table that says which C functions its operations and phases spent their time in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.figure import duration

_MOST = 12  # rows; all of them are in native.json


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    if summary.get("native"):
        yield 5, native_part(summary["native"], width)


def native_part(native: Mapping[str, Any], width: int) -> RenderableType:
    """A row for each operation and phase: time on a processor, how much of what passed, the kernel's share, the hottest functions.

    Args:
        native: The key ``native`` of a summary.
        width: Columns of the terminal.
    """
    heads = ("C code of", "on CPU", "of elapsed", "kernel", "hottest functions")
    rows = [(name, row) for group in ("operations", "phases") for name, row in native[group].items()]
    rows += [("elsewhere", native["elsewhere"])] if native["elsewhere"] else []
    cells = [_cells(name, row, native) for name, row in rows[:_MOST]]
    shown = [at for at, least in enumerate((0, 0, 66, 56, 0)) if width >= least and any(row[at] for row in cells)]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    last = len(heads) - 1  # cut where there is no room
    shown = shown or [0, last]
    wide = {at: max(len(row[at]) for row in [heads, *cells]) for at in shown}
    wide[last] = max(min(wide[last], width - 2 * len(shown) - sum(wide[at] for at in shown[:-1])), len(heads[last]))
    for at in shown:
        justify: Any = "left" if at in (0, last) else "right"
        table.add_column(heads[at], no_wrap=True, overflow="ellipsis", justify=justify, min_width=wide[at], max_width=wide[at])
    for row in cells:
        table.add_row(*(Text(row[at]) for at in shown))
    said = [f"{native['samples']:,} samples of {native['event']} by {native['tool']}, {native['frequency_hz']} a second"]
    if len(rows) > _MOST:
        said.append(f"{len(rows) - _MOST} more rows")
    said.append(f"all in {native['file']}")
    if not native["kernel_seen"]:
        said.append("without the kernel")
    if native["lost"]:
        said.append(f"{native['lost']:,} lost")
    return Group(table, Text(f" {', '.join(said)}", style="dim"))


def _cells(name: str, row: Mapping[str, Any], native: Mapping[str, Any]) -> tuple[str, ...]:
    on_cpu_s = row["on_cpu_s"]
    on_cpu = "" if on_cpu_s is None else duration(on_cpu_s + (row["other_threads_s"] or 0.0))
    of_elapsed = f"{on_cpu_s / row['elapsed_s']:.0%}" if row["elapsed_s"] and on_cpu_s is not None else ""
    kernel = f"{row['kernel_share']:.0%}" if native["kernel_seen"] else ""
    functions = ", ".join(f"{share:.0%} {_name(key)}" for key, share in row["functions"].items())
    return name, on_cpu, of_elapsed, kernel, functions


def _name(key: str) -> str:
    function, _, library = key.rpartition("|")
    return f"({function})" if library == "?" else function
