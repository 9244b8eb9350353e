"""What ``torch.compile`` compiled again, where its graphs broke, and what it left to eager mode: from the marks to a short list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.run_steps import records
from voirkit.analysis.verdict.evidence import Evidence
from voirkit.report import duration
from voirkit.report.sections import AnyCell, Block, Column, Figure, Figures, Lines, Section, Table

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

_KEYS = {"recompilation": "recompilations", "graph break": "graph_breaks", "eager fallback": "eager_fallbacks"}  # of the part, by mark


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``compilations`` of a summary: three lists of ``{function, place, reason, n, total_s}``, with ``ranks`` where there are several.
    ``n`` and ``total_s`` are of the rank where the most of it was."""
    seen: dict[tuple[str, str, str, str], dict[int, list[int]]] = {}  # by what, function, place, reason: times of each rank
    for run in runs:
        found = records(run, "mark")
        names = [category == "compile" for category, _ in found.names]
        chosen = np.flatnonzero(np.array(names, dtype=bool)[found.name])
        for i in chosen[np.argsort(found.start_ns[chosen], kind="stable")].tolist():
            about = found.arguments[found.args[i]]
            key = (found.names[found.name[i]][1], *(str(about.get(key, "")) for key in ("function", "place", "reason")))
            seen.setdefault(key, {}).setdefault(found.processes[found.process[i]][0], []).append(int(found.value[i]))
    if not seen:
        return None
    part: dict[str, list[dict[str, Any]]] = {key: [] for key in _KEYS.values()}
    for (what, function, place, reason), by_rank in seen.items():
        most = max(by_rank.values(), key=lambda times: (len(times), sum(times)))
        row = {"function": function, "place": place, "reason": reason, "n": len(most), "total_s": sum(most) * 1e-9}
        part[_KEYS[what]].append({**row, **({"ranks": sorted(by_rank)} if summary["world_size"] > 1 else {})})
    return {"compilations": part}


def recompilations(part: Mapping[str, Any], phases: Sequence[str]) -> Iterator[Evidence]:
    """What was compiled again, that which took longest first; ``details`` have its ``total_s``."""
    by_place: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in part["recompilations"]:
        by_place.setdefault((row["function"], PurePath(row["place"]).name), []).append(row)
    times = {key: sum(row["total_s"] for row in rows) for key, rows in by_place.items()}
    for (function, place), took_s in sorted(times.items(), key=lambda item: -item[1]):
        rows = by_place[function, place]
        n, why = sum(row["n"] for row in rows), rows[0]["reason"]
        do = (
            f"Keep {function} ({place}) from being compiled again: {why} no longer held. A number that changes belongs in a tensor; for "
            "shapes that change, torch.compile(..., dynamic=True), or pad them to a few sizes."
        )
        yield Evidence(f"torch.compile compiled it again {n} times", took_s / sum(times.values()), do, details={"total_s": took_s})


def sections(part: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """The figures, and a table of what and why."""
    again, breaks, eager = (part.get(key) or [] for key in _KEYS.values())
    took_s, n_again, n_breaks = sum(row["total_s"] for row in again), *(sum(row["n"] for row in rows) for rows in (again, breaks))
    figures = [
        Figure("recompilations", n_again, "", "lower", f"{duration(took_s)} in all" if n_again else ""),
        Figure("graph breaks", n_breaks, "", "lower"),
        Figure("functions in eager mode", len(eager), "", "lower"),
    ]
    rows = [row for what, chosen in (("eager", eager), ("recompiled", again), ("graph break", breaks)) for row in _rows(what, chosen)]
    heads = (
        "", Column("function", True), Column("at", True, 80), "n", "time", Column("ranks", True, 100), Column("why", True, 0, True),
    )  # fmt: skip
    blocks: list[Block] = [Figures([one for one in figures if one.value]), Table(heads, rows)]
    note = " n and time are of the rank with the most." if summary["world_size"] > 1 else ""
    yield Section("compile", "Recompilations and graph breaks", blocks, f"A recompilation names the guard that failed.{note}")


def _rows(what: str, events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[AnyCell, ...]]:
    """A row for each function and place, those with the most first, with all reasons."""
    by_place: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in events:
        by_place.setdefault((row["function"], row["place"]), []).append(row)
    for (function, place), rows in sorted(by_place.items(), key=lambda item: -sum(row["n"] for row in item[1])):
        took_s, ranks = sum(row["total_s"] for row in rows), sorted({rank for row in rows for rank in row.get("ranks", ())})
        times = f"{sum(row['n'] for row in rows)}", duration(took_s) if took_s else ""
        yield what, function, PurePath(place).name, *times, ", ".join(map(str, ranks)), Lines([row["reason"] for row in rows])
