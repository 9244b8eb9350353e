"""The system calls of a run: what its tracers wrote, counted; also of runs that were killed.

The counts of each rank are kept beside the log; a log that was there only to be counted is then removed.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voirkit.runs.directory import read_json, write_json
from voirkit.runs.other_processes import has_settled, locked
from voirkit.runs.parquet import quoted
from voirkit_instruments.syscalls import FOLDER
from voirkit_instruments.syscalls.analyse_attribution import Attribution, TraceContext
from voirkit_instruments.syscalls.analyse_figures import figures, merge_documents
from voirkit_instruments.syscalls.analyse_kernel import KernelLog, RingError
from voirkit_instruments.syscalls.analyse_strace import SyscallLogError, read_strace
from voirkit_instruments.syscalls.record_markers import OTHER, OWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

SCHEMA = 1
_KEPT_MODES = ("full", "files")  # modes whose logs are of use beyond the counts
_DEEPEST = 8  # operations that lie in each other


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``syscalls`` of a summary; see ``voirkit.instrument.Instrument``."""
    run = runs[0]
    documents = [document for folder, stem in _records(run) if (document := _counts(run, folder, stem)) is not None]
    return {"syscalls": merge_documents(documents)} if documents else None


def is_by_strace(run: Run) -> bool:
    """Whether strace has traced a run: each system call stopped for it, so that all times with calls in them are far too long."""
    records = (read_json(os.path.join(folder, f"{stem}.json"), SCHEMA) for folder, stem in _records(run))
    return any(record is not None and record.get("tool") == "strace" for record in records)


def _records(run: Run) -> Iterator[tuple[str, str]]:
    """(folder, stem) of the files of each traced process."""
    folder = os.path.join(run.path, FOLDER)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".json") and not name.endswith((".counts.json", ".ring.json")):
            yield folder, name.removesuffix(".json")


def _counts(run: Run, folder: str, stem: str) -> dict[str, Any] | None:
    """The counts of a rank, made by the first that needs them: others at the same moment wait for it."""
    path = os.path.join(folder, f"{stem}.counts.json")
    counts = read_json(path, SCHEMA)
    if counts is not None:
        return counts
    try:
        with locked(os.path.join(folder, f"{stem}.lock")):
            return read_json(path, SCHEMA) or _count(run, folder, stem)
    except OSError:  # the folder is read-only: nobody keeps or removes anything there
        return _count(run, folder, stem)


def _count(run: Run, folder: str, stem: str) -> dict[str, Any] | None:
    """Count what a tracer wrote, and keep the counts."""
    record = read_json(os.path.join(folder, f"{stem}.json"), SCHEMA)
    if record is None or not has_settled(record, "tracer_pid"):
        return None
    try:
        document = _document(run, folder, stem, record)
    except (SyscallLogError, RingError, OSError, KeyError, TypeError, ValueError) as exc:
        run.warnings.append(f"--syscalls: what {record.get('tool')} wrote cannot be counted ({exc}).".replace("\n", " "))
        return None
    known = {key: record.get(key) for key in ("tool", "mode", "trusted", "cut")}
    document = {"schema": SCHEMA, **known, "cost": _cost(record, document), **document}
    try:
        write_json(os.path.join(folder, f"{stem}.counts.json"), document)
        if record.get("ended") and record.get("mode") not in _KEPT_MODES:
            for name in os.listdir(folder):
                if name == f"{stem}.strace" or (name.startswith(f"{stem}.") and name.endswith((".ring", ".mapped"))):
                    os.remove(os.path.join(folder, name))
    except OSError:
        pass  # the next reader of the run counts again
    return document


def _document(run: Run, folder: str, stem: str, record: Mapping[str, Any]) -> dict[str, Any]:
    if record["tool"] == "counters":
        return counters_document(folder, stem)
    context = _context(run, record)
    if record["tool"] == "strace":
        return read_strace(os.path.join(folder, record["log"]), context)
    if not any(name.startswith(f"{stem}.") and name.endswith(".ring") for name in os.listdir(folder)):
        raise RingError("the counts that were kept are damaged, and what they were made of was removed")
    log = KernelLog(os.path.join(folder, stem))
    document = figures(Attribution(context).add(log.events()), timed=True)
    return document | ({"lost": log.lost} if log.lost else {})


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
    """What a rank's processes counted of themselves (``--syscalls=counters``), as a document like those of tracers.

    Calls of all kinds that read are ``read``, those that write ``write``; ``usage`` is {phase: {column: number}}.
    """
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
