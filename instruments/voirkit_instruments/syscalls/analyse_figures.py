"""The figures of a log as a document: by phase, kind of thread and call, what waits apart from what works; how two differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from voirkit_instruments.syscalls.analyse_attribution import Attribution, add_rows
from voirkit_instruments.syscalls.analyse_events import WAITS
from voirkit_instruments.syscalls.analyse_over_time import merge_over_time
from voirkit_instruments.syscalls.analyse_threads import Rows

_TOP = 20
_THREAD_KINDS = ("main", "autograd", "other", "worker", "child")


def figures(attribution: Attribution, timed: bool) -> dict[str, Any]:
    """``syscalls`` of a summary (docs/syscalls.md).

    Args:
        attribution: The sums.
        timed: Whether the log has durations; without, ``seconds`` are None.

    Returns:
        ``phases``: {phase: {call: {calls, errors, seconds, bytes}}} of all threads (``all`` of a log without markers);
        ``threads``: the same by kind of thread; ``entered``: {kind: {phase: times}}; ``totals``: {phase: {entered, lasted_s,
        working, waiting}}; ``waits``: which calls count as waiting; ``operations``; ``files``; ``folders``;
        ``over_time``: as ``OverTime.document``, None of a log without times; ``calls``; ``markers``; ``own``; ``uring``.
    """
    phases: dict[str, Rows] = {}
    threads: dict[str, dict[str, Rows]] = {}
    for process in attribution.tree.processes:
        for (kind, phase), rows in process.rows.items():
            if kind not in ("main", "autograd", "other"):
                kind = process.kind
            # A worker names itself with its first marker: what stood before it belongs there too.
            phase = "all" if not attribution.markers else "worker" if kind.startswith("worker") and phase == "other" else phase
            add_rows(phases.setdefault(phase, {}), rows)
            add_rows(threads.setdefault(kind, {}).setdefault(phase, {}), rows)
    times: dict[str, list[float]] = {}
    entered: dict[str, dict[str, int]] = {}
    for (kind, phase), (n, lasted) in attribution.times.items():
        entered.setdefault(kind, {})[phase] = int(n)
        sums = times.setdefault(phase, [0, 0.0])
        sums[0] += n
        sums[1] += lasted
    phases = _by_calls(phases)
    return {
        "phases": {phase: calls(rows, timed) for phase, rows in phases.items()},
        "threads": {
            kind: {phase: calls(rows, timed) for phase, rows in _by_calls(threads[kind]).items()}
            for kind in sorted(threads, key=_kind_order)
        },
        "totals": {phase: _total(rows, times.get(phase), timed) for phase, rows in phases.items()},
        "entered": entered,
        "waits": sorted({name for rows in phases.values() for name in rows if name in WAITS}),
        "operations": {name: calls(rows, timed) for name, rows in _by_calls(attribution.operations).items()},
        "files": attribution.files.files.top(_TOP),
        "folders": attribution.files.folders.top(_TOP),
        "over_time": attribution.over_time.document(timed),
        "calls": attribution.calls, "markers": attribution.markers, "uring": attribution.uring,
        "own": {"calls": attribution.own[0], "seconds": attribution.own[1] if timed else None},
    }  # fmt: skip


def calls(rows: Rows, timed: bool) -> dict[str, dict[str, Any]]:
    """Rows by name, those with the most calls first."""
    return {
        name: {
            "calls": int(row[0]), "errors": int(row[1]), "seconds": row[2] if timed else None, "bytes": int(row[3]),
            **({"waited": row[4]} if row[4] and name not in WAITS else {}),
        }
        for name, row in sorted(rows.items(), key=lambda item: (-item[1][0], item[0]))
    }  # fmt: skip


def working_and_waiting_s(name: str, call: Mapping[str, Any], waits: Collection[str]) -> tuple[float, float]:
    """The seconds of a row in which its calls worked, and those in which they waited; zeros if they are unknown.

    Args:
        name: Of the call.
        call: Its figures.
        waits: The calls of which all time is waiting.
    """
    seconds = call["seconds"] or 0.0
    waited = seconds if name in waits else call.get("waited", 0.0)
    return seconds - waited, waited


def _total(rows: Rows, times: list[float] | None, timed: bool) -> dict[str, Any]:
    total: dict[str, Any] = {"entered": int(times[0]) if times else None, "lasted_s": times[1] if times else None}
    waited = sum(row[4] for name, row in rows.items() if name not in WAITS)
    for key, waits, moved_s in (("working", False, -waited), ("waiting", True, waited)):
        chosen = [row for name, row in rows.items() if (name in WAITS) is waits]
        counts, errors, seconds, moved = (sum(row[column] for row in chosen) for column in range(4))
        total[key] = {"calls": int(counts), "errors": int(errors), "seconds": seconds + moved_s if timed else None, "bytes": int(moved)}
    return total


def _by_calls(phases: Mapping[str, Rows]) -> dict[str, Rows]:
    """Phases with the most calls first."""
    return dict(sorted(phases.items(), key=lambda item: (-sum(row[0] for row in item[1].values()), item[0])))


def _kind_order(kind: str) -> tuple[int, int, str]:
    word, _, number = kind.partition(" ")
    return _THREAD_KINDS.index(word) if word in _THREAD_KINDS else len(_THREAD_KINDS), int(number) if number.isdigit() else 0, kind


def merge_documents(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several logs as those of one, such as those of a run's ranks."""
    if len(documents) == 1:
        return documents[0]
    merged: dict[str, Any] = _merge([{key: value for key, value in one.items() if key != "over_time"} for one in documents])
    return {**merged, "over_time": merge_over_time([one.get("over_time") for one in documents])}


def _merge(values: Sequence[Any]) -> Any:
    """Sums numbers, unites what has names; of files those of all logs."""
    values = [value for value in values if value is not None]
    first = values[0] if values else None
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _merge([value[key] for value in values if key in value]) for key in keys}
    if isinstance(first, list):
        items = [item for value in values for item in value]
        if not all(isinstance(item, dict) and "path" in item for item in items):
            return [item for at, item in enumerate(items) if item not in items[:at]]
        rows: dict[str, dict[str, Any]] = {}
        for row in items:
            rows[row["path"]] = _merge([rows[row["path"]], row]) if row["path"] in rows else row
        return sorted(rows.values(), key=lambda row: -(row["read"] + row["written"]))[: 2 * _TOP]
    return first if isinstance(first, bool) or not isinstance(first, int | float) else sum(values)


class Difference(NamedTuple):
    """A call in two logs: how many, how many failed, how long and how many bytes in the first and the second.

    ``more_...`` is the second's less the first's. None is what a log does not have, and a difference from it.
    """

    phase: str
    name: str
    calls: tuple[int, int]
    errors: tuple[int | None, int | None]
    seconds: tuple[float | None, float | None]
    bytes: tuple[int, int]
    more_calls: int
    more_errors: int | None
    more_seconds: float | None


_COLUMNS = ("calls", "errors", "seconds", "bytes")
_ALL = "all"


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """What two documents differ in, by phase and call, the largest difference of calls first; calls that are the same too.

    If one of them has no phases, all are compared as one; of two tracers the seconds are not compared, since they measure different things.
    """
    phases = [first["phases"], second["phases"]]
    if (_ALL in phases[0]) is not (_ALL in phases[1]):
        phases = [{_ALL: _sum_phases(one)} for one in phases]
    missing = [_missing_call(one) for one in phases]
    same_tool = first.get("tool", "strace") == second.get("tool", "strace")  # a log of one's own is strace's
    differences = []
    for phase in dict.fromkeys([*phases[0], *phases[1]]):
        rows = [one.get(phase, {}) for one in phases]
        for name in dict.fromkeys([*rows[0], *rows[1]]):
            a, b = (row.get(name, empty) for row, empty in zip(rows, missing, strict=True))
            pairs: list[Any] = [(a[column], b[column]) for column in _COLUMNS]
            if not same_tool:
                pairs[_COLUMNS.index("seconds")] = None, None
            more = [None if None in pair else pair[1] - pair[0] for pair in pairs[:3]]
            differences.append(Difference(phase, name, *pairs, *more))
    return sorted(differences, key=lambda row: (-abs(row.more_calls), -abs(row.more_seconds or 0), row.phase, row.name))


def _sum_phases(phases: Mapping[str, Any]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for rows in phases.values():
        for name, call in rows.items():
            sums.setdefault(name, []).append(call)
    return {name: {column: total(call[column] for call in rows) for column in _COLUMNS} for name, rows in sums.items()}


def total(values: Iterable[float | None]) -> Any:
    """A sum; None if one of them is unknown."""
    values = list(values)
    return None if None in values else sum(value for value in values if value is not None)


def _missing_call(phases: Mapping[str, Any]) -> dict[str, Any]:
    """A call that a document does not have: of a column that no call has a value in, zero would not be known."""
    rows = [call for calls in phases.values() for call in calls.values()]
    return {column: None if rows and all(call[column] is None for call in rows) else 0 for column in _COLUMNS}
