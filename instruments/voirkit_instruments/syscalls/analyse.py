"""``syscalls`` of a summary: counts of the calls in the logs that a run's tracers wrote, also for
runs that were killed.

The counts of each rank are stored beside its log. A log that serves only for counting is then
removed.
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
from voirkit_instruments.syscalls.analyse_attribution import (
    BYTES,
    CALLS,
    EMPTY_ROW,
    ERRORS,
    SECONDS,
    WAITED,
    Attribution,
    Row,
    Rows,
    TraceContext,
    add_rows,
)
from voirkit_instruments.syscalls.analyse_calls import (
    DESCRIPTOR_CALLS,
    MESSAGES,
    WAITS,
    merge_over_time,
)
from voirkit_instruments.syscalls.analyse_kernel import KernelLog, RingError
from voirkit_instruments.syscalls.analyse_strace import (
    HOW_TO_TRACE,
    OF_LTRACE,
    OF_PERF,
    PACKED,
    StraceLog,
    SyscallLogError,
    bounded_lines,
)
from voirkit_instruments.syscalls.record_phases import OTHER, VOIRKIT

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

SCHEMA = 1
_MODES_WITH_LOGS = ("full", "files")  # modes whose logs are kept after the calls are counted
_DEEPEST = 8  # number of last begun loader operations among which the innermost is searched


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``syscalls`` of a summary; see ``voirkit.instrument.Instrument``."""
    documents = [document for _, document in _documents(runs[0])]
    return {"syscalls": merge_documents(documents)} if documents else None


def summarise_rank(runs: Sequence[Run], rank: int) -> dict[str, Any] | None:
    """Return the section ``syscalls`` of one rank's summary; None if no calls of the rank were
    counted."""
    documents = []
    for run in runs:
        for stem, document in _documents(run):
            record = read_json(f"{stem}.json", SCHEMA) or {}
            if record.get("rank") == rank:
                documents.append(document)
    return merge_documents(documents) if documents else None


def _documents(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """Return the counts of each traced process, each with the path of its record without ending."""
    documents = []
    for stem in record_stems(os.path.join(run.path, FOLDER)):
        document = kept_counts(stem, SCHEMA, partial(_count, run, stem))
        if document is not None:
            documents.append((stem, document))
    return documents


def is_by_strace(run: Run) -> bool:
    """True if a run was traced by strace. strace stops the program at each system call, so all
    times that include calls are far too long."""
    for stem in record_stems(os.path.join(run.path, FOLDER)):
        record = read_json(f"{stem}.json", SCHEMA)
        if record is not None and record.get("tool") == "strace":
            return True
    return False


def _count(
    run: Run, stem: str, record: Mapping[str, Any]
) -> tuple[dict[str, Any], Sequence[str]] | None:
    """Return the counts of a record, and the endings of its files that are no longer needed. None
    if the program or its tracer still runs, or if the log cannot be read (with a warning)."""
    if not has_settled(record, "tracer_pid"):
        return None
    try:
        document = _document(run, *os.path.split(stem), record)
    except (SyscallLogError, RingError, OSError, KeyError, TypeError, ValueError) as exc:
        warning = f"--syscalls: what {record.get('tool')} wrote cannot be counted ({exc})."
        run.warnings.append(warning.replace("\n", " "))
        return None
    counts: dict[str, Any] = {"schema": SCHEMA}
    for key in ("tool", "mode", "trusted", "cut"):
        counts[key] = record.get(key)
    counts["cost"] = _cost(record, document)
    counts.update(document)
    if record.get("ended") and record.get("mode") not in _MODES_WITH_LOGS:
        return counts, (".strace", ".ring", ".mapped")
    return counts, ()


def _document(run: Run, folder: str, stem: str, record: Mapping[str, Any]) -> dict[str, Any]:
    if record["tool"] == "counters":
        return counters_document(folder, stem)
    context = _context(run, record)
    path = os.path.join(folder, stem)
    if record["tool"] == "strace":
        return read_strace(file_beside(path, record["log"]), context)
    names = os.listdir(folder)
    if not any(name.startswith(f"{stem}.") and name.endswith(".ring") for name in names):
        raise RingError(
            "the counts that were kept are damaged, and what they were made of was removed"
        )
    log = KernelLog(path)
    document = figures(Attribution(context).add(log.events()), timed=True)
    if log.lost:
        document["lost"] = log.lost
    return document


def read_strace(path: str, context: TraceContext | None = None) -> dict[str, Any]:
    """Return the counts of a log of strace. Raises SyscallLogError: the file is missing, or is not
    a log of strace."""
    log = StraceLog()
    try:
        # latin-1 is sufficient, because strace escapes all non-ASCII characters
        with open(path, "rb") as raw, TextIOWrapper(raw, encoding="latin-1", newline="\n") as lines:
            # A binary file is refused before any line is read: without line ends, its first line
            # could be larger than memory.
            if b"\0" in raw.peek()[:8192]:
                packed = ", and has to be unpacked first" if path.endswith(PACKED) else ""
                raise SyscallLogError(f"it is no text{packed}.", where=path, next=HOW_TO_TRACE)
            attribution = Attribution(context).add(log.events(bounded_lines(lines)))
    except OSError as exc:
        raise SyscallLogError(f"it cannot be read: {exc.strerror}.", where=path) from None
    if any(text.endswith(OF_LTRACE) for _, text in log.examples):
        raise SyscallLogError(
            "it is a log of ltrace, whose calls are those of libraries.",
            where=path,
            next=HOW_TO_TRACE,
        )
    if not attribution.calls and not attribution.own[0] and not attribution.markers:
        raise SyscallLogError(_why_empty(log), where=path, next=HOW_TO_TRACE)
    document = figures(attribution, log.timed)
    document["log"] = {
        "lines": log.lines,
        "unread": log.unread,
        "torn": log.torn,
        "dated": log.dated,
        "signals": log.signals,
        "examples": [{"line": number, "text": text} for number, text in log.examples],
    }
    return document


def _why_empty(log: StraceLog) -> str:
    if not log.lines:
        return "it is empty."
    texts = [text for _, text in log.examples]
    if any(OF_PERF.match(text) for text in texts):
        return "it is a log of perf trace, which writes calls otherwise than strace."
    if any("% time" in text or "usecs/call" in text for text in texts):
        return "it is the table that strace -c prints, which has no calls in it."
    line = log.examples[0][0] if log.examples else 1
    return f"no line of it is a system call as strace prints them; line {line} is not."


def _context(run: Run, record: Mapping[str, Any]) -> TraceContext:
    by_wall_clock = record["tool"] == "strace"
    clocks: Sequence[tuple[int, int]] = record["clocks"]
    run_0, wall_0 = clocks[0]
    run_1, wall_1 = clocks[-1]
    # ns of the run's clock per ns of the wall clock, which may be adjusted during the run
    stretch = (run_1 - run_0) / (wall_1 - wall_0) if wall_1 > wall_0 else 1.0

    def to_run_ns(time_s: float) -> int:
        time_ns = time_s * 1e9
        if by_wall_clock:
            return run_0 + round((time_ns - wall_0) * stretch)
        return round(time_ns)

    # times are counted from the start of the run, which is the same for all its ranks
    origin_ns = (run.manifest.get("clocks") or {}).get("time_ns") or record["began_time_ns"]
    if not by_wall_clock:
        origin_ns += run_0 - wall_0
    threads = {int(tid): name for tid, name in record["threads"].items()}
    files = {int(number): path for number, path in record["files"].items()}
    own_threads = frozenset(record.get("own") or ())
    operation = _loader_operations(run, record["rank"], record["host"], to_run_ns)
    return TraceContext(
        pid=record["pid"],
        threads=threads,
        files=files,
        own_threads=own_threads,
        own_folder=record["run_dir"],
        operation=operation,
        origin=float(origin_ns) * 1e-9,
    )


def _loader_operations(
    run: Run, rank: int, host: str, to_run_ns: Callable[[float], int]
) -> Callable[[int, float], str | None] | None:
    """Return a function that maps a thread and a tracer time to the innermost loader operation, as
    recorded by ``--loader``. Return None if no operations were recorded."""
    query = (
        "SELECT tid, start_ns, duration_ns, name FROM spans"
        f" WHERE rank = {int(rank)} AND host = {quoted(host)}"
        " AND kind = 'loader' AND category = 'operation'"
        " ORDER BY tid, start_ns, duration_ns DESC"
    )
    spans: dict[int, tuple[list[int], list[int], list[str]]] = {}
    for batch in run.fetch(query):
        for tid, start, duration, name in batch:
            starts, ends, names = spans.setdefault(tid, ([], [], []))
            starts.append(start)
            ends.append(start + duration)
            names.append(name)

    def operation(tid: int, time_s: float) -> str | None:
        if tid not in spans or time_s != time_s:
            return None
        starts, ends, names = spans[tid]
        time_ns = to_run_ns(time_s)
        n_begun = bisect_right(starts, time_ns)
        outermost = max(n_begun - _DEEPEST, 0)
        for i in reversed(range(outermost, n_begun)):
            if ends[i] > time_ns:
                return names[i]
        return None

    return operation if spans else None


def _cost(record: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cost of tracing: the tracer's CPU time, and the extra time of each call for the
    program."""
    if record["tool"] == "counters":
        edges = record.get("edges", 0)
        edge_s = record.get("edge_s", 0.0)
        return {
            "tracer_s": None,
            "call_s": None,
            "edge_s": edge_s,
            "program_s": edge_s * edges,
            "events": edges,
        }
    plain_call_s = record["plain_call_s"]
    call_s = max(record.get("traced_call_s", 0.0) - plain_call_s, 0.0)
    n_calls = document.get("calls") or 0
    n_markers = document.get("markers") or 0
    n_own = (document.get("own") or {}).get("calls", 0)
    n_events = n_calls + n_markers + n_own
    return {
        "tracer_s": record.get("took_s"),
        "call_s": call_s,
        "plain_call_s": plain_call_s,
        "program_s": call_s * n_events,
        "events": n_events,
    }


def counters_document(folder: str, stem: str) -> dict[str, Any]:
    """Return the counts that a rank's processes kept themselves (``--syscalls=counters``), in the
    form of a tracer's document. All kinds of read calls count as ``read``, all kinds of write calls
    as ``write``; ``usage`` is {phase: {column: number}}."""
    from voirkit_instruments.syscalls.record_counters import (
        COLUMNS,
        ENDING,
        count_files,
        read_counts,
    )

    threads: dict[str, dict[str, dict[str, Any]]] = {}
    phases: dict[str, dict[str, Any]] = {}
    usage: dict[str, dict[str, float]] = {}
    entered: dict[str, dict[str, int]] = {}
    main_path = os.path.join(folder, f"{stem}{ENDING}")
    for path in count_files(folder, stem):
        worker, rows = read_counts(path)
        is_worker = worker >= 0
        kind = f"worker {worker}" if is_worker else "child"
        if path == main_path:
            kind = "main"
        for name, row in rows.items():
            if name == VOIRKIT:
                continue
            phase = "worker" if is_worker and name == OTHER else name
            _add_counted(threads.setdefault(kind, {}).setdefault(phase, {}), row)
            _add_counted(phases.setdefault(phase, {}), row)
            times = entered.setdefault(kind, {})
            times[phase] = times.get(phase, 0) + row["entered"]
            sums = usage.setdefault(phase, dict.fromkeys(COLUMNS, 0))
            for column, value in row.items():
                sums[column] += value
    totals = {phase: _counted_total(usage[phase], calls) for phase, calls in phases.items()}
    n_calls = sum(call["calls"] for calls in phases.values() for call in calls.values())
    return {
        "entered": entered,
        "phases": {phase: calls for phase, calls in phases.items() if calls},
        "threads": threads,
        "usage": usage,
        "waits": [],
        "operations": {},
        "files": [],
        "folders": [],
        "over_time": None,
        "totals": totals,
        "calls": n_calls,
        "markers": 0,
        "uring": 0,
        "own": {"calls": 0, "seconds": None},
    }


def _add_counted(calls: dict[str, Any], row: Mapping[str, int]) -> None:
    """Add a row of counters to ``read`` and ``write`` of a phase."""
    for name in ("read", "write"):
        if row[f"{name}_calls"]:
            call = calls.setdefault(name, _unseen())
            call["calls"] += row[f"{name}_calls"]
            call["bytes"] += row[f"{name}_bytes"]


def _counted_total(usage: Mapping[str, float], calls: Mapping[str, Any]) -> dict[str, Any]:
    working = _unseen()
    working["calls"] = sum(call["calls"] for call in calls.values())
    working["bytes"] = sum(call["bytes"] for call in calls.values())
    working["seconds"] = usage["system_us"] * 1e-6
    return {
        "entered": int(usage["entered"]),
        "lasted_s": usage["lasted_ns"] * 1e-9,
        "working": working,
        "waiting": _unseen(),
    }


def _unseen() -> dict[str, Any]:
    return {"calls": 0, "errors": None, "seconds": None, "bytes": 0}


_TOP = 20
_THREAD_KINDS = ("main", "autograd", "other", "worker", "child")


def figures(attribution: Attribution, timed: bool) -> dict[str, Any]:
    """Return ``syscalls`` of a summary (docs/syscalls.md).

    Args:
        timed: True if the log has durations; otherwise ``seconds`` are None.

    Returns:
        ``phases``: {phase: {call: {calls, errors, seconds, bytes}}} of all threads; the only phase
            is ``all`` if the log has no markers.
        ``threads``: the same by kind of thread; ``entered``: {kind: {phase: times}}; ``lasted_s``:
            {kind: {phase: seconds}}.
        ``totals``: {phase: {entered, lasted_s, working, waiting}}; ``waits``: names of the calls
            that count as waiting; ``operations``; ``files``; ``folders``; ``shared_memory``:
            {phase: opens}.
        ``over_time``: see ``OverTime.document``, None if the log has no times; ``calls``;
            ``markers``; ``own``; ``uring``.
    """
    phases, threads = _rows_by_phase(attribution)
    times: dict[str, list[float]] = {}
    entered: dict[str, dict[str, int]] = {}
    lasted_s: dict[str, dict[str, float]] = {}
    for (kind, phase), (n, duration_s) in attribution.times.items():
        entered.setdefault(kind, {})[phase] = int(n)
        lasted_s.setdefault(kind, {})[phase] = duration_s
        sums = times.setdefault(phase, [0, 0.0])
        sums[0] += n
        sums[1] += duration_s
    names = {name for rows in phases.values() for name in rows}
    calls_by_thread = {}
    for kind in sorted(threads, key=_kind_order):
        calls_by_thread[kind] = _calls_by_phase(_by_calls(threads[kind]), timed)
    totals = {phase: _total(rows, times.get(phase), timed) for phase, rows in phases.items()}
    files = attribution.files
    own_calls, own_s = attribution.own
    operations = _calls_by_phase(_by_calls(attribution.operations), timed)
    return {
        "phases": _calls_by_phase(phases, timed),
        "threads": calls_by_thread,
        "totals": totals,
        "entered": entered,
        "lasted_s": lasted_s,
        "waits": sorted(names & WAITS),
        "operations": operations,
        "files": files.files.top(_TOP),
        "folders": files.folders.top(_TOP),
        "shared_memory": attribution.shared_memory,
        "over_time": attribution.over_time.document(timed),
        "calls": attribution.calls,
        "markers": attribution.markers,
        "uring": attribution.uring,
        "own": {"calls": own_calls, "seconds": own_s if timed else None},
    }


def _rows_by_phase(attribution: Attribution) -> tuple[dict[str, Rows], dict[str, dict[str, Rows]]]:
    """Return the rows of all threads by phase, phases with the most calls first, and the rows by
    kind of thread and phase."""
    phases: dict[str, Rows] = {}
    threads: dict[str, dict[str, Rows]] = {}
    for process in attribution.tree.processes:
        for (kind, phase), rows in process.rows.items():
            if kind not in ("main", "autograd", "other"):
                kind = process.kind
            if not attribution.markers:
                phase = "all"
            elif kind.startswith("worker") and phase == "other":
                # A worker identifies itself with its first marker. Its calls before that marker are
                # in ``other``, but belong to ``worker``.
                phase = "worker"
            add_rows(phases.setdefault(phase, {}), rows)
            add_rows(threads.setdefault(kind, {}).setdefault(phase, {}), rows)
    return _by_calls(phases), threads


def _calls_by_phase(phases: Mapping[str, Rows], timed: bool) -> dict[str, Any]:
    return {phase: calls(rows, timed) for phase, rows in phases.items()}


def calls(rows: Rows, timed: bool) -> dict[str, dict[str, Any]]:
    """Return the figures of each call by name, calls with the highest count first."""
    documents = {}
    for name, row in sorted(rows.items(), key=lambda item: (-item[1][CALLS], item[0])):
        document = _columns(row, row[SECONDS], timed)
        if row[WAITED] and name not in WAITS:
            document["waited"] = row[WAITED]
        documents[name] = document
    return documents


def _columns(row: Row, seconds: float, timed: bool) -> dict[str, Any]:
    calls, errors, n_bytes = (int(row[column]) for column in (CALLS, ERRORS, BYTES))
    return {
        "calls": calls,
        "errors": errors,
        "seconds": seconds if timed else None,
        "bytes": n_bytes,
    }


def working_and_waiting_s(
    name: str, call: Mapping[str, Any], waits: Collection[str]
) -> tuple[float, float]:
    """Return the seconds in which the calls of a row worked, and those in which they waited; 0 if
    unknown. Calls named in ``waits`` always wait."""
    seconds = call["seconds"] or 0.0
    waited = seconds if name in waits else call.get("waited", 0.0)
    return seconds - waited, waited


def _total(rows: Rows, times: list[float] | None, timed: bool) -> dict[str, Any]:
    """Return the totals of a phase. The time for which working calls waited counts as waiting."""
    working = _sum_rows([row for name, row in rows.items() if name not in WAITS])
    waiting = _sum_rows([row for name, row in rows.items() if name in WAITS])
    working_s = working[SECONDS] - working[WAITED]
    waiting_s = waiting[SECONDS] + working[WAITED]
    entered, lasted_s = times or (None, None)
    return {
        "entered": None if entered is None else int(entered),
        "lasted_s": lasted_s,
        "working": _columns(working, working_s, timed),
        "waiting": _columns(waiting, waiting_s, timed),
    }


def _sum_rows(rows: Sequence[Row]) -> Row:
    return [sum(row[column] for row in rows) for column in range(len(EMPTY_ROW))]


def _by_calls(phases: Mapping[str, Rows]) -> dict[str, Rows]:
    """Return phases or operations in descending order of their number of calls."""

    def order(item: tuple[str, Rows]) -> tuple[float, str]:
        phase, rows = item
        return -sum(row[CALLS] for row in rows.values()), phase

    return dict(sorted(phases.items(), key=order))


def _kind_order(kind: str) -> tuple[int, int, str]:
    word, _, number = kind.partition(" ")
    rank = _THREAD_KINDS.index(word) if word in _THREAD_KINDS else len(_THREAD_KINDS)
    return rank, int(number) if number.isdigit() else 0, kind


def merge_documents(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the figures of several logs into one document, for example those of a run's ranks."""
    if len(documents) == 1:
        return documents[0]
    without_times = [
        {key: value for key, value in document.items() if key != "over_time"}
        for document in documents
    ]
    merged: dict[str, Any] = merge(without_times)
    over_time = merge_over_time([document.get("over_time") for document in documents])
    return {**merged, "over_time": over_time}


def merge(values: Sequence[Any]) -> Any:
    """Merge documents or parts of them. Numbers are added, dictionaries are merged by key, and rows
    of files by path."""
    present = [value for value in values if value is not None]
    first = present[0] if present else None
    if isinstance(first, dict):
        return _merge_dicts(present)
    if isinstance(first, list):
        return _merge_lists(present)
    if isinstance(first, bool) or not isinstance(first, int | float):
        return first
    return sum(present)


def _merge_dicts(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    keys = dict.fromkeys(key for document in documents for key in document)
    return {
        key: merge([document[key] for document in documents if key in document]) for key in keys
    }


def _merge_lists(lists: Sequence[list[Any]]) -> list[Any]:
    items = [item for values in lists for item in values]
    if all(isinstance(item, dict) and "path" in item for item in items):
        return _merge_files(items)
    unique: list[Any] = []
    for item in items:
        if item not in unique:
            unique.append(item)
    return unique


def _merge_files(rows: Sequence[dict[str, Any]]) -> list[Any]:
    by_path: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = row["path"]
        by_path[path] = merge([by_path[path], row]) if path in by_path else row
    ordered = sorted(by_path.values(), key=lambda row: -(row["read"] + row["written"]))
    return ordered[: 2 * _TOP]


class Difference(NamedTuple):
    """A call in two logs.

    Attributes:
        calls: Number of calls in the first and in the second log; likewise ``errors``, ``seconds``
            and ``bytes``.
        more_calls: The second value minus the first; likewise ``more_errors`` and ``more_seconds``.
            Values that a log lacks are None, and so are differences from them.
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
    """Return the differences of two documents by phase and call, the largest difference in calls
    first. Calls without a difference are included. If one document has no phases, the other's are
    summed up too. Seconds are not compared between different tracers, since they measure different
    things."""
    phases_a, phases_b = first["phases"], second["phases"]
    if (_ALL in phases_a) is not (_ALL in phases_b):
        phases_a = {_ALL: _sum_phases(phases_a)}
        phases_b = {_ALL: _sum_phases(phases_b)}
    missing_a, missing_b = _missing_call(phases_a), _missing_call(phases_b)
    # a log that voirkit did not record has no ``tool``, and is one of strace
    same_tool = first.get("tool", "strace") == second.get("tool", "strace")
    differences = []
    for phase in dict.fromkeys([*phases_a, *phases_b]):
        rows_a, rows_b = phases_a.get(phase, {}), phases_b.get(phase, {})
        for name in dict.fromkeys([*rows_a, *rows_b]):
            a, b = rows_a.get(name, missing_a), rows_b.get(name, missing_b)
            differences.append(_difference(phase, name, a, b, same_tool))
    return sorted(
        differences,
        key=lambda row: (-abs(row.more_calls), -abs(row.more_seconds or 0), row.phase, row.name),
    )


def _difference(
    phase: str, name: str, a: Mapping[str, Any], b: Mapping[str, Any], same_tool: bool
) -> Difference:
    n_calls = a["calls"], b["calls"]
    errors = a["errors"], b["errors"]
    seconds = (a["seconds"], b["seconds"]) if same_tool else (None, None)
    return Difference(
        phase=phase,
        name=name,
        calls=n_calls,
        errors=errors,
        seconds=seconds,
        bytes=(a["bytes"], b["bytes"]),
        more_calls=_more(*n_calls),
        more_errors=_more(*errors),
        more_seconds=_more(*seconds),
    )


def _more(a: float | None, b: float | None) -> Any:
    return None if a is None or b is None else b - a


def _sum_phases(phases: Mapping[str, Any]) -> dict[str, Any]:
    by_name: dict[str, list[Any]] = {}
    for rows in phases.values():
        for name, call in rows.items():
            by_name.setdefault(name, []).append(call)
    return {
        name: {column: total(call[column] for call in rows) for column in _COLUMNS}
        for name, rows in by_name.items()
    }


def total(values: Iterable[float | None]) -> Any:
    """Return the sum of values; None if a value is unknown."""
    values = list(values)
    known_values = [value for value in values if value is not None]
    return sum(known_values) if len(known_values) == len(values) else None


def _missing_call(phases: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row for a call that a document does not contain. A column is None if it is None
    for all calls of the document, otherwise 0."""
    rows = [call for calls in phases.values() for call in calls.values()]
    missing = {}
    for column in _COLUMNS:
        is_unknown = rows and all(call[column] is None for call in rows)
        missing[column] = None if is_unknown else 0
    return missing


def system_calls(part: Mapping[str, Any], phases: Sequence[str]) -> list[Evidence]:
    """Return the main thread's longest call in these phases as evidence, with its share of the
    phases' time. A call on files names the file. Time that other threads wait meanwhile belongs to
    no phase."""
    phase_times_s = _of_main_thread(part, "lasted_s")
    phase_rows = _of_main_thread(part, "threads")
    lasted_s = sum(phase_times_s.get(phase, 0.0) for phase in phases)
    rows = [item for phase in phases for item in phase_rows.get(phase, {}).items()]
    if not lasted_s or not rows:
        return []
    name, seconds = _longest_call(rows)
    if seconds < LEAST * lasted_s:
        return []
    where = ""
    if name in DESCRIPTOR_CALLS - MESSAGES:
        path = _file_of_most_bytes(part, sum(row.get("bytes") or 0 for _, row in rows))
        where = f" on {path}" if path else ""
    return [Evidence(f"{name}(){where}", min(seconds / lasted_s, 1.0))]


def _of_main_thread(part: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return (part.get(key) or {}).get("main") or {}


def _longest_call(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[str, float]:
    """Return the call with the most seconds in all rows, and these seconds."""
    seconds_by_call: dict[str, float] = {}
    for name, row in rows:
        seconds = row.get("seconds") or 0.0
        seconds_by_call[name] = seconds_by_call.get(name, 0.0) + seconds
    return max(seconds_by_call.items(), key=lambda item: item[1])


def _file_of_most_bytes(part: Mapping[str, Any], n_bytes: int) -> str | None:
    """Return the file that most of the bytes read and written in some phases belong to. Files are
    counted over the whole run. A file is therefore named only if its bytes are more than half of
    the phases' bytes, and no more than all of them."""
    by_path = {row["path"]: row["read"] + row["written"] for row in part.get("files") or ()}
    for path, n_bytes_of_file in by_path.items():
        if n_bytes / 2 < n_bytes_of_file <= n_bytes:
            return str(path)
    return None
