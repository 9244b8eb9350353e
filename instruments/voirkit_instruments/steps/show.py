"""``compilations`` of a summary and its display in reports: what ``torch.compile`` compiled again,
where its graphs broke, and what it left to eager mode."""

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

# keys in the summary, by kind of mark
_KEYS = {
    "recompilation": "recompilations",
    "graph break": "graph_breaks",
    "eager fallback": "eager_fallbacks",
}


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``compilations`` of a summary: three lists of ``{function, place, reason, n,
    total_s}``, with ``ranks`` if the world has several. ``n`` and ``total_s`` are those of the rank
    with the most occurrences. None if nothing was recorded."""
    # by (kind of mark, function, place, reason): durations, by rank
    times_ns: dict[tuple[str, str, str, str], dict[int, list[int]]] = {}
    for run in runs:
        marks = records(run, "mark")
        is_compile = np.array([category == "compile" for category, _ in marks.names], dtype=bool)
        rows = np.flatnonzero(is_compile[marks.name])
        for row in rows[np.argsort(marks.start_ns[rows], kind="stable")].tolist():
            arguments = marks.arguments[marks.args[row]]
            mark = marks.names[marks.name[row]][1]
            function, place, reason = (
                str(arguments.get(key, "")) for key in ("function", "place", "reason")
            )
            rank = marks.processes[marks.process[row]][0]
            by_rank = times_ns.setdefault((mark, function, place, reason), {})
            by_rank.setdefault(rank, []).append(int(marks.value[row]))
    if not times_ns:
        return None
    part: dict[str, list[dict[str, Any]]] = {key: [] for key in _KEYS.values()}
    for (mark, function, place, reason), by_rank in times_ns.items():
        most = max(by_rank.values(), key=lambda times: (len(times), sum(times)))
        event: dict[str, Any] = {
            "function": function,
            "place": place,
            "reason": reason,
            "n": len(most),
            "total_s": sum(most) * 1e-9,
        }
        if summary["world_size"] > 1:
            event["ranks"] = sorted(by_rank)
        part[_KEYS[mark]].append(event)
    return {"compilations": part}


def recompilations(part: Mapping[str, Any], phases: Sequence[str]) -> Iterator[Evidence]:
    """Yield evidence for the functions that were compiled again, the one that took longest first.
    ``details`` holds its ``total_s``."""
    by_place: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for event in part["recompilations"]:
        key = (event["function"], PurePath(event["place"]).name)
        by_place.setdefault(key, []).append(event)
    times_s = {key: _sum(events, "total_s") for key, events in by_place.items()}
    all_s = sum(times_s.values())
    for (function, place), took_s in sorted(times_s.items(), key=lambda item: -item[1]):
        events = by_place[function, place]
        why = events[0]["reason"]
        advice = (
            f"Keep {function} ({place}) from being compiled again: {why} no longer held. A number"
            " that changes belongs in a tensor; for shapes that change, torch.compile(...,"
            " dynamic=True), or pad them to a few sizes."
        )
        yield Evidence(
            f"torch.compile compiled it again {_sum(events, 'n')} times",
            took_s / all_s,
            advice,
            details={"total_s": took_s},
        )


def _sum(events: Sequence[Mapping[str, Any]], key: str) -> Any:
    return sum(event[key] for event in events)


def sections(part: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section with the figures and a table of functions, places and reasons."""
    recompiled = part.get("recompilations") or []
    breaks = part.get("graph_breaks") or []
    eager = part.get("eager_fallbacks") or []
    n_recompiled = _sum(recompiled, "n")
    took = f"{duration(_sum(recompiled, 'total_s'))} in all" if n_recompiled else ""
    figures = [
        Figure("recompilations", n_recompiled, "", "lower", took),
        Figure("graph breaks", _sum(breaks, "n"), "", "lower"),
        Figure("functions in eager mode", len(eager), "", "lower"),
    ]
    rows = [*_rows("eager", eager), *_rows("recompiled", recompiled), *_rows("graph break", breaks)]
    heads = (
        "",
        Column("function", True),
        Column("at", True, 80),
        "n",
        "time",
        Column("ranks", True, 100),
        Column("why", True, 0, True),
    )
    blocks: list[Block] = [
        Figures([figure for figure in figures if figure.value]),
        Table(heads, rows),
    ]
    note = " n and time are of the rank with the most." if summary["world_size"] > 1 else ""
    yield Section(
        "compile",
        "Recompilations and graph breaks",
        blocks,
        f"A recompilation names the guard that failed.{note}",
    )


def _rows(label: str, events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[AnyCell, ...]]:
    """Yield a row for each function and place, with all reasons; those with the most occurrences
    come first."""
    by_place: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for event in events:
        by_place.setdefault((event["function"], event["place"]), []).append(event)
    for (function, place), alike in sorted(by_place.items(), key=lambda item: -_sum(item[1], "n")):
        n, took_s = _sum(alike, "n"), _sum(alike, "total_s")
        took = duration(took_s) if took_s else ""
        ranks = {rank for event in alike for rank in event.get("ranks", ())}
        ranks_words = ", ".join(map(str, sorted(ranks)))
        reasons = Lines([event["reason"] for event in alike])
        yield (label, function, PurePath(place).name, str(n), took, ranks_words, reasons)
