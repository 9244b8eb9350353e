"""The system calls of a run: what its tracers wrote, counted; also of runs that were killed.

The counts of each rank are kept beside the log; a log that was there only to be counted is then removed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NamedTuple

from voirkit.analysis.verdict.evidence import LEAST, Evidence
from voirkit.runs.directory import file_beside, kept_counts, read_json, record_stems
from voirkit.runs.other_processes import has_settled
from voirkit.runs.parquet import quoted
from voirkit_instruments.syscalls import FOLDER
from voirkit_instruments.syscalls.analyse_attribution import Attribution, Rows, TraceContext, add_rows
from voirkit_instruments.syscalls.analyse_calls import DESCRIPTOR_CALLS, WAITS, merge_over_time
from voirkit_instruments.syscalls.analyse_kernel import KernelLog, RingError
from voirkit_instruments.syscalls.analyse_strace import HOW_TO_TRACE, OF_LTRACE, OF_PERF, PACKED, StraceLog, SyscallLogError, bounded_lines
from voirkit_instruments.syscalls.record_phases import OTHER, OWN

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

SCHEMA = 1
_KEPT_MODES = ("full", "files")  # modes whose logs are of use beyond the counts
_DEEPEST = 8  # operations that lie in each other


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``syscalls`` of a summary; see ``voirkit.instrument.Instrument``."""
    documents = [one for _, one in _documents(runs[0])]
    return {"syscalls": merge_documents(documents)} if documents else None


def summarise_rank(runs: Sequence[Run], rank: int) -> dict[str, Any] | None:
    """The same of one rank."""
    documents = [one for run in runs for stem, one in _documents(run) if (read_json(f"{stem}.json", SCHEMA) or {}).get("rank") == rank]
    return merge_documents(documents) if documents else None


def _documents(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """What was counted of each process that was traced, by the stem of its record."""
    stems = record_stems(os.path.join(run.path, FOLDER))
    return [(stem, one) for stem in stems if (one := kept_counts(stem, SCHEMA, partial(_count, run, stem))) is not None]


def is_by_strace(run: Run) -> bool:
    """Whether strace has traced a run: each system call stopped for it, so that all times with calls in them are far too long."""
    records = (read_json(f"{stem}.json", SCHEMA) for stem in record_stems(os.path.join(run.path, FOLDER)))
    return any(record is not None and record.get("tool") == "strace" for record in records)


def _count(run: Run, stem: str, record: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]] | None:
    if not has_settled(record, "tracer_pid"):
        return None
    try:
        document = _document(run, *os.path.split(stem), record)
    except (SyscallLogError, RingError, OSError, KeyError, TypeError, ValueError) as exc:
        run.warnings.append(f"--syscalls: what {record.get('tool')} wrote cannot be counted ({exc}).".replace("\n", " "))
        return None
    known = {key: record.get(key) for key in ("tool", "mode", "trusted", "cut")}
    is_over = record.get("ended") and record.get("mode") not in _KEPT_MODES
    return {"schema": SCHEMA, **known, "cost": _cost(record, document), **document}, (".strace", ".ring", ".mapped") if is_over else ()


def _document(run: Run, folder: str, stem: str, record: Mapping[str, Any]) -> dict[str, Any]:
    if record["tool"] == "counters":
        return counters_document(folder, stem)
    context = _context(run, record)
    if record["tool"] == "strace":
        return read_strace(file_beside(os.path.join(folder, stem), record["log"]), context)
    if not any(name.startswith(f"{stem}.") and name.endswith(".ring") for name in os.listdir(folder)):
        raise RingError("the counts that were kept are damaged, and what they were made of was removed")
    log = KernelLog(os.path.join(folder, stem))
    document = figures(Attribution(context).add(log.events()), timed=True)
    return document | ({"lost": log.lost} if log.lost else {})


def read_strace(path: str, context: TraceContext | None = None) -> dict[str, Any]:
    """The figures of a log. Raises SyscallLogError: it is not there, or no log of strace."""
    log = StraceLog()
    try:
        with open(path, "rb") as raw, TextIOWrapper(raw, encoding="latin-1", newline="\n") as lines:  # strace escapes all that is not ASCII
            if b"\0" in raw.peek()[:8192]:  # it may have no lines at all, and more than memory holds
                packed = ", and has to be unpacked first" if path.endswith(PACKED) else ""
                raise SyscallLogError(f"it is no text{packed}.", where=path, next=HOW_TO_TRACE)
            attribution = Attribution(context).add(log.events(bounded_lines(lines)))
    except OSError as exc:
        raise SyscallLogError(f"it cannot be read: {exc.strerror}.", where=path) from None
    if any(text.endswith(OF_LTRACE) for _, text in log.examples):
        raise SyscallLogError("it is a log of ltrace, whose calls are those of libraries.", where=path, next=HOW_TO_TRACE)
    if not attribution.calls and not attribution.own[0] and not attribution.markers:
        raise SyscallLogError(_why_empty(log), where=path, next=HOW_TO_TRACE)
    document = figures(attribution, log.timed)
    document["log"] = {
        "lines": log.lines, "unread": log.unread, "torn": log.torn, "dated": log.dated, "signals": log.signals,
        "examples": [{"line": number, "text": text} for number, text in log.examples],
    }  # fmt: skip
    return document


def _why_empty(log: StraceLog) -> str:
    if not log.lines:
        return "it is empty."
    if any(OF_PERF.match(text) for _, text in log.examples):
        return "it is a log of perf trace, which writes calls otherwise than strace."
    if any("% time" in text or "usecs/call" in text for _, text in log.examples):
        return "it is the table that strace -c prints, which has no calls in it."
    return f"no line of it is a system call as strace prints them; line {log.examples[0][0] if log.examples else 1} is not."


def _context(run: Run, record: Mapping[str, Any]) -> TraceContext:
    by_wall_clock = record["tool"] == "strace"
    (run_0, wall_0), (run_1, wall_1) = record["clocks"][0], record["clocks"][-1]
    stretch = (run_1 - run_0) / (wall_1 - wall_0) if wall_1 > wall_0 else 1.0  # the wall clock may be corrected meanwhile

    def to_run_ns(time: float) -> int:
        return run_0 + round((time * 1e9 - wall_0) * stretch) if by_wall_clock else round(time * 1e9)

    began_ns = (run.manifest.get("clocks") or {}).get("time_ns") or record["began_time_ns"]
    return TraceContext(
        pid=record["pid"],
        threads={int(tid): name for tid, name in record["threads"].items()},
        files={int(number): path for number, path in record["files"].items()},
        own_threads=frozenset(record.get("own") or ()),
        own_folder=record["run_dir"],
        operation=_loader_operations(run, record["rank"], record["host"], to_run_ns),
        origin=float(began_ns if by_wall_clock else began_ns - wall_0 + run_0) * 1e-9,  # the same for all ranks of a run
    )


def _loader_operations(run: Run, rank: int, host: str, to_run_ns: Callable[[float], int]) -> Callable[[int, float], str | None] | None:
    """The innermost loader operation of a thread at a time of the tracer's, by what ``--loader`` recorded; None if it recorded none."""
    chosen = f"rank = {int(rank)} AND host = {quoted(host)} AND kind = 'loader' AND category = 'operation'"
    spans: dict[int, tuple[list[int], list[int], list[str]]] = {}
    query = f"SELECT tid, start_ns, duration_ns, name FROM spans WHERE {chosen} ORDER BY tid, start_ns, duration_ns DESC"
    for batch in run.fetch(query):
        for tid, start, duration, name in batch:
            starts, ends, names = spans.setdefault(tid, ([], [], []))
            starts.append(start)
            ends.append(start + duration)
            names.append(name)

    def operation(tid: int, began: float) -> str | None:
        if tid not in spans or began != began:
            return None
        starts, ends, names = spans[tid]
        now = to_run_ns(began)
        last = bisect_right(starts, now)
        return next((names[i] for i in reversed(range(max(last - _DEEPEST, 0), last)) if ends[i] > now), None)

    return operation if spans else None


def _cost(record: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """What tracing cost: the tracer's time on a processor, and how much longer each call took the program."""
    if record["tool"] == "counters":
        edges, edge_s = record.get("edges", 0), record.get("edge_s", 0.0)
        return {"tracer_s": None, "call_s": None, "edge_s": edge_s, "program_s": edge_s * edges, "events": edges}
    call_s = max(record.get("traced_call_s", 0.0) - record["plain_call_s"], 0.0)
    n = (document.get("calls") or 0) + (document.get("markers") or 0) + (document.get("own") or {}).get("calls", 0)
    plain_call_s = record["plain_call_s"]
    return {"tracer_s": record.get("took_s"), "call_s": call_s, "plain_call_s": plain_call_s, "program_s": call_s * n, "events": n}


def counters_document(folder: str, stem: str) -> dict[str, Any]:
    """What a rank's processes counted of themselves (``--syscalls=counters``), as a document like those of tracers. Calls of all kinds that
    read are ``read``, those that write ``write``; ``usage`` is {phase: {column: number}}."""
    from voirkit_instruments.syscalls.record_counters import COLUMNS, ENDING, count_files, read_counts

    threads: dict[str, dict[str, dict[str, Any]]] = {}
    phases: dict[str, dict[str, Any]] = {}
    usage: dict[str, dict[str, float]] = {}
    entered: dict[str, dict[str, int]] = {}
    for path in count_files(folder, stem):
        worker, rows = read_counts(path)
        kind = "main" if path.endswith(f"/{stem}{ENDING}") else f"worker {worker}" if worker >= 0 else "child"
        for name, row in rows.items():
            if name == OWN:
                continue
            phase = "worker" if worker >= 0 and name == OTHER else name
            for calls in (threads.setdefault(kind, {}).setdefault(phase, {}), phases.setdefault(phase, {})):
                for deed in ("read", "write"):
                    if row[f"{deed}_calls"]:
                        call = calls.setdefault(deed, _unseen())
                        call["calls"] += row[f"{deed}_calls"]
                        call["bytes"] += row[f"{deed}_bytes"]
            times = entered.setdefault(kind, {})
            times[phase] = times.get(phase, 0) + row["entered"]
            sums = usage.setdefault(phase, dict.fromkeys(COLUMNS, 0))
            for column, value in row.items():
                sums[column] += value
    totals = {}
    for phase, sums in usage.items():
        working = {key: sum(call[key] for call in phases[phase].values()) for key in ("calls", "bytes")}
        totals[phase] = {
            "entered": int(sums["entered"]), "lasted_s": sums["lasted_ns"] * 1e-9,
            "working": {**_unseen(), **working, "seconds": sums["system_us"] * 1e-6}, "waiting": _unseen(),
        }  # fmt: skip
    return {
        "entered": entered, "phases": {phase: calls for phase, calls in phases.items() if calls}, "threads": threads, "usage": usage,
        "waits": [], "operations": {}, "files": [], "folders": [], "over_time": None, "totals": totals,
        "calls": sum(call["calls"] for calls in phases.values() for call in calls.values()), "markers": 0, "uring": 0,
        "own": {"calls": 0, "seconds": None},
    }  # fmt: skip


def _unseen() -> dict[str, Any]:
    return {"calls": 0, "errors": None, "seconds": None, "bytes": 0}


_TOP = 20
_THREAD_KINDS = ("main", "autograd", "other", "worker", "child")


def figures(attribution: Attribution, timed: bool) -> dict[str, Any]:
    """``syscalls`` of a summary (docs/syscalls.md).

    Args:
        timed: Whether the log has durations; without, ``seconds`` are None.

    Returns:
        ``phases``: {phase: {call: {calls, errors, seconds, bytes}}} of all threads (``all`` of a log without markers);
        ``threads``: the same by kind of thread; ``entered``: {kind: {phase: times}}; ``totals``: {phase: {entered, lasted_s,
        working, waiting}}; ``waits``: which calls count as waiting; ``operations``; ``files``; ``folders``;
        ``shared_memory``: {phase: opens}; ``over_time``: as ``OverTime.document``, None of a log without times; ``calls``; ``markers``;
        ``own``; ``uring``.
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
        "shared_memory": attribution.shared_memory,
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
    """The seconds of a row in which its calls worked, and those in which they waited, as those in ``waits`` do all the time; 0: unknown."""
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
    return dict(sorted(phases.items(), key=lambda item: (-sum(row[0] for row in item[1].values()), item[0])))


def _kind_order(kind: str) -> tuple[int, int, str]:
    word, _, number = kind.partition(" ")
    return _THREAD_KINDS.index(word) if word in _THREAD_KINDS else len(_THREAD_KINDS), int(number) if number.isdigit() else 0, kind


def merge_documents(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several logs as those of one, such as those of a run's ranks."""
    if len(documents) == 1:
        return documents[0]
    merged: dict[str, Any] = merge([{key: value for key, value in one.items() if key != "over_time"} for one in documents])
    return {**merged, "over_time": merge_over_time([one.get("over_time") for one in documents])}


def merge(values: Sequence[Any]) -> Any:
    """Documents or parts of them as one: sums numbers, unites what has names; of files those of all."""
    values = [value for value in values if value is not None]
    first = values[0] if values else None
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: merge([value[key] for value in values if key in value]) for key in keys}
    if isinstance(first, list):
        items = [item for value in values for item in value]
        if not all(isinstance(item, dict) and "path" in item for item in items):
            return [item for at, item in enumerate(items) if item not in items[:at]]
        rows: dict[str, dict[str, Any]] = {}
        for row in items:
            rows[row["path"]] = merge([rows[row["path"]], row]) if row["path"] in rows else row
        return sorted(rows.values(), key=lambda row: -(row["read"] + row["written"]))[: 2 * _TOP]
    return first if isinstance(first, bool) or not isinstance(first, int | float) else sum(values)


class Difference(NamedTuple):
    """A call in two logs: how many, how many failed, how long and how many bytes in the first and the second. ``more_...`` is the second's
    less the first's. None is what a log does not have, and a difference from it."""

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
    """What two documents differ in, by phase and call, the largest difference of calls first; calls that are the same too. If one of them
    has no phases, all are compared as one; of two tracers the seconds are not compared, since they measure different things."""
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


def system_calls(found: Mapping[str, Any], phases: Sequence[str]) -> list[Evidence]:
    """The one that takes most of the phases, one on files with that which most was moved to or from, and its share of their time."""
    lasted = sum((found.get("totals") or {}).get(phase, {}).get("lasted_s") or 0.0 for phase in phases)
    spent: dict[str, float] = {}
    moved = 0
    for phase in phases:
        for name, row in ((found.get("phases") or {}).get(phase) or {}).items():
            spent[name] = spent.get(name, 0.0) + (row.get("seconds") or 0.0)
            moved += row.get("bytes") or 0
    name, seconds = max(spent.items(), key=lambda item: item[1], default=("", 0.0))
    if not lasted or seconds < LEAST * lasted:
        return []
    file = max(found.get("files") or (), key=lambda row: row["read"] + row["written"], default=None)
    where = f" on {file['path']}" if file and moved and name in DESCRIPTOR_CALLS else ""
    return [Evidence(f"{name}(){where}", min(seconds / lasted, 1.0))]
