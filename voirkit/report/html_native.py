"""C functions in a report: what each operation of the loaders and each phase spent its time on a processor in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration
from voirkit.report.html_marks import Html, section, stacked, table

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_ROWS = 24


def native(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Of runs with --native."""
    found = summary.get("native")
    if not found:
        return None
    rows = [(name, row) for group in ("operations", "phases") for name, row in found[group].items()]
    rows += [("elsewhere", found["elsewhere"])] if found["elsewhere"] else []
    shown = rows[:_ROWS]
    drawn, cells = [], []
    for name, row in shown:
        on_cpu = None if row["on_cpu_s"] is None else row["on_cpu_s"] + (row["other_threads_s"] or 0.0)
        functions = {_name(key): share for key, share in row["functions"].items()}
        rest = 1.0 - sum(functions.values())
        drawn.append((name, {**functions, "others": max(rest, 0.0)}, "" if on_cpu is None else duration(on_cpu)))
        of_elapsed = f"{row['on_cpu_s'] / row['elapsed_s']:.0%}" if row["elapsed_s"] and row["on_cpu_s"] is not None else ""
        kernel = f"{row['kernel_share']:.0%}" if found["kernel_seen"] else ""
        hottest = ", ".join(f"{share:.0%} {_name(key)}" for key, share in row["functions"].items())
        cells.append((name, "" if on_cpu is None else duration(on_cpu), of_elapsed, kernel, hottest))
    note = f"{found['samples']:,} samples of {found['event']} by {found['tool']}, {found['frequency_hz']} a second; all in {found['file']}."
    note += "" if found["kernel_seen"] else " Without the kernel."
    note += f" {found['lost']:,} lost." if found["lost"] else ""
    note += f" {len(rows) - len(shown)} more rows." if len(rows) > len(shown) else ""
    heads = ("C code of", "on CPU", "of elapsed", "kernel", "hottest functions")
    picture = stacked(drawn, lambda share: f"{share:.0%}", 1.0, "the hottest functions of each, by share of its samples")
    return section("native", "C functions", picture, table(heads, cells, left=(0, 4)), note=note)


def _name(key: str) -> str:
    function, _, library = key.rpartition("|")
    return f"({function})" if library == "?" else function
