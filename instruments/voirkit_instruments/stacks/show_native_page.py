"""C functions in a report: what each operation of the loaders and each phase spent its time on a processor in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration
from voirkit.report.html.components import Html, join, section, stacked, table, text

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_ROWS = 24
_LONGEST = 72  # characters of a function's name; all of it is in its title


def native(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Of runs with --native."""
    found = summary.get("native")
    if not found:
        return None
    rows = [(name, row) for group in ("operations", "phases") for name, row in found[group].items()]
    rows += [("elsewhere", found["elsewhere"])] if found["elsewhere"] else []
    drawn, cells = [], []
    for name, row in rows[:_ROWS]:
        on_cpu = None if row["on_cpu_s"] is None else row["on_cpu_s"] + (row["other_threads_s"] or 0.0)
        of_elapsed = f"{row['on_cpu_s'] / row['elapsed_s']:.0%}" if row["elapsed_s"] and row["on_cpu_s"] is not None else ""
        kernel = row["kernel_share"] or 0.0 if found["kernel_seen"] else 0.0
        if on_cpu:
            drawn.append((name, {"in the program": on_cpu * (1 - kernel), "in the kernel": on_cpu * kernel}, duration(on_cpu)))
        hottest = join([_function(key, share) for key, share in row["functions"].items()])
        shares = f"{kernel:.0%}" if found["kernel_seen"] else ""
        cells.append((name, "" if on_cpu is None else duration(on_cpu), of_elapsed, shares, hottest))
    note = f"{found['samples']:,} samples of {found['event']} by {found['tool']}, {found['frequency_hz']} a second; all in {found['file']}."
    note += "" if found["kernel_seen"] else " Without the kernel."
    note += f" {found['lost']:,} lost." if found["lost"] else ""
    note += f" {len(rows) - _ROWS} more rows." if len(rows) > _ROWS else ""
    heads = ("C code of", "on CPU", "of elapsed", "kernel", "hottest functions")
    picture = stacked(drawn, duration, caption="time on a processor") if drawn else None
    return section("native", "C functions", picture, table(heads, cells, left=(0, 4)), note=note)


def _function(key: str, share: float) -> Html:
    function, _, library = key.rpartition("|")
    name = f"({function})" if library == "?" else function
    return Html(f'<div title="{text(name, 1000)}">{share:.0%} {text(name, _LONGEST)}</div>')
