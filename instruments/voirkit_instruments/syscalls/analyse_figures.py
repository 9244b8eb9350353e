"""The figures of a log as a document: by phase and call, by kind of thread, what waits apart from what works, files, operations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from voirkit_instruments.syscalls import analyse_over_time as over_time
from voirkit_instruments.syscalls.analyse_attribution import NOTHING, Attribution, Rows
from voirkit_instruments.syscalls.analyse_events import WAITS

_TOP = 20


def figures(found: Attribution, timed: bool) -> dict[str, Any]:
    """``syscalls`` of a summary (docs/syscalls.md).

    Args:
        found: The sums.
        timed: Whether the log has durations; without, ``seconds`` are None.

    Returns:
        ``phases``: {phase: {call: {calls, errors, seconds, bytes}}} of all threads (``all`` of a log without markers);
        ``threads``: the same by kind of thread; ``entered``: {kind: {phase: times}}; ``totals``: {phase: {entered, lasted_s,
        working, waiting}}; ``waits``: which calls count as waiting; ``operations``; ``files``; ``folders``;
        ``over_time``: as ``OverTime.document``, None of a log without times; ``calls``; ``markers``; ``own``; ``uring``.
    """
    phases: dict[str, Rows] = {}
    threads: dict[str, dict[str, Rows]] = {}
    for (task, kind, phase), rows in found.rows.items():
        shown = kind if kind in ("main", "autograd", "other") else task.kind
        # A worker tells what it is with its first marker: what stood before it belongs there too.
        named = "all" if not found.markers else "worker" if shown.startswith("worker") and phase == "other" else phase
        _add(phases.setdefault(named, {}), rows)
        _add(threads.setdefault(shown, {}).setdefault(named, {}), rows)
    times: dict[str, list[float]] = {}
    entered_by: dict[str, dict[str, int]] = {}
    for (kind, phase), (entered, lasted) in found.times.items():
        entered_by.setdefault(kind, {})[phase] = int(entered)
        sums = times.setdefault(phase, [0, 0.0])
        sums[0] += entered
        sums[1] += lasted
    return {
        "phases": {phase: calls(rows, timed) for phase, rows in _ordered(phases)},
        "threads": {kind: {phase: calls(rows, timed) for phase, rows in _ordered(threads[kind])} for kind in sorted(threads, key=_place)},
        "totals": {phase: _total(rows, times.get(phase), timed) for phase, rows in _ordered(phases)},
        "entered": entered_by,
        "waits": sorted({name for rows in phases.values() for name in rows if name in WAITS}),
        "operations": {name: calls(rows, timed) for name, rows in _ordered(found.operations)},
        "files": found.files.files.top(_TOP),
        "folders": found.files.folders.top(_TOP),
        "over_time": found.over_time.document(timed),
        "calls": found.calls, "markers": found.markers, "uring": found.uring,
        "own": {"calls": found.own[0], "seconds": found.own[1] if timed else None},
    }  # fmt: skip


def calls(rows: Rows, timed: bool) -> dict[str, dict[str, Any]]:
    """Rows by name, those with the most calls first."""
    ordered = sorted(rows.items(), key=lambda item: (-item[1][0], item[0]))
    return {
        name: {
            "calls": int(row[0]), "errors": int(row[1]), "seconds": row[2] if timed else None, "bytes": int(row[3]),
            **({"waited": row[4]} if row[4] and name not in WAITS else {}),
        }
        for name, row in ordered
    }  # fmt: skip


def divided(name: str, call: Mapping[str, Any], waits: Collection[str]) -> tuple[float, float]:
    """The seconds of a row in which its calls worked, and those in which they waited; zeros if they are not known.

    Args:
        name: Of the call.
        call: Its figures.
        waits: The calls of which all time is waiting.
    """
    seconds = call["seconds"] or 0.0
    if name in waits:
        return 0.0, seconds
    waited = call.get("waited", 0.0)
    return seconds - waited, waited


def _total(rows: Rows, times: list[float] | None, timed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"entered": int(times[0]) if times else None, "lasted_s": times[1] if times else None}
    for key, waits in (("working", False), ("waiting", True)):
        chosen = [row for name, row in rows.items() if (name in WAITS) is waits]
        waited = sum(row[4] for name, row in rows.items() if name not in WAITS)
        seconds = sum(row[2] for row in chosen) + (waited if waits else -waited)
        found[key] = {
            "calls": int(sum(row[0] for row in chosen)), "errors": int(sum(row[1] for row in chosen)),
            "seconds": seconds if timed else None, "bytes": int(sum(row[3] for row in chosen)),
        }  # fmt: skip
    return found


def _add(to: Rows, rows: Mapping[str, list[float]]) -> None:
    for name, row in rows.items():
        sums = to.setdefault(name, NOTHING[:])
        for at, value in enumerate(row):
            sums[at] += value


def _ordered(phases: Mapping[str, Rows]) -> list[tuple[str, Rows]]:
    """Phases with the most calls first."""
    return sorted(phases.items(), key=lambda item: (-sum(row[0] for row in item[1].values()), item[0]))


def _place(kind: str) -> tuple[int, int, str]:
    order = ("main", "autograd", "other", "worker", "child")
    word, _, number = kind.partition(" ")
    return order.index(word) if word in order else len(order), int(number) if number.isdigit() else 0, kind


def merged(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several logs as those of one, such as those of a run's ranks."""
    if len(documents) == 1:
        return documents[0]
    found: dict[str, Any] = _merge([{key: value for key, value in one.items() if key != "over_time"} for one in documents])
    return {**found, "over_time": over_time.merged([one.get("over_time") for one in documents])}


def _merge(values: list[Any]) -> Any:
    """Sums numbers, unites what has names; of files those of all logs."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values if value for key in value)
        return {key: _merge([value[key] for value in values if value and key in value]) for key in keys}
    if isinstance(first, list):
        if all(isinstance(item, dict) and "path" in item for value in values for item in value or ()):
            rows: dict[str, dict[str, Any]] = {}
            for row in (row for value in values for row in value or ()):
                rows[row["path"]] = _merge([rows[row["path"]], row]) | {"path": row["path"]} if row["path"] in rows else row
            return sorted(rows.values(), key=lambda row: -(row["read"] + row["written"]))[: 2 * _TOP]
        return list(dict.fromkeys(item for value in values for item in value or ()))
    if isinstance(first, bool) or not isinstance(first, int | float):
        return first
    return sum(value for value in values if value is not None)
