"""``native.json``: the C functions and libraries that each loader operation and each phase of
training used (docs/flame.md).

It is also made for runs that were killed, if the profiler's file can be read on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import NONE, Array
from voirkit.runs.directory import kept_counts, record_stems, write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.runs.other_processes import has_settled
from voirkit_instruments.stacks import NATIVE_FILE, NATIVE_FOLDER
from voirkit_instruments.stacks.analyse_frames import (
    ELSEWHERE,
    OPERATION,
    PHASE,
    Name,
    RecordedSpans,
)
from voirkit_instruments.stacks.analyse_samples import (
    EVENT,
    Batch,
    PerfReader,
    count_native_stacks,
    perf_script,
)

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

SCHEMA = 1
OTHER_PROCESSES = "other processes"
TIME = "cpu-clock"  # perf's event that is counted in nanoseconds
_BY_PREFERENCE = ("cycles", TIME)  # events that shares are computed from, the preferred first
_SHORT = 3  # maximum number of functions of an operation in the summary


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``native`` of a summary, and make or update ``native.json``; see
    ``voirkit.instrument.Instrument``."""
    run = runs[0]
    all_counts = []
    for stem in record_stems(os.path.join(run.path, NATIVE_FOLDER)):
        counts = kept_counts(stem, SCHEMA, partial(_count, run, stem))
        if counts is not None:
            all_counts.append(counts)
    if not all_counts:
        return None
    document = figures(all_counts)
    if rank_and_world_size()[0] == 0:  # only rank 0 writes the run's file
        try:
            write_json(os.path.join(run.path, NATIVE_FILE), document)
        except OSError as exc:
            run.warnings.append(f"{NATIVE_FILE} cannot be written ({exc.strerror}).")
    return {"native": _shortened(document)}


def _count(
    run: Run, stem: str, record: Mapping[str, Any]
) -> tuple[dict[str, Any], Sequence[str]] | None:
    data = f"{stem}.data"
    if not os.path.exists(data) or not has_settled(record, "profiler_pid"):
        return None
    try:
        return count(run, record, data), ()
    except (OSError, KeyError, TypeError) as exc:
        run.warnings.append(
            f"--native: {NATIVE_FOLDER}/{os.path.basename(data)} cannot be read ({exc})."
        )
        return None


def count(run: Run, record: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Join the samples that perf or py-spy took of a process and its descendants with the run's
    records.

    Args:
        record: The record of the profiler: ``tool``, ``rank``, ``host``, ``began_ns``,
            ``ended_ns``.

    Raises:
        OSError: perf is not installed, or cannot read the file.
    """
    document: dict[str, Any] = {"schema": SCHEMA}
    for key in ("tool", "version", "frequency_hz", "rank", "host"):
        document[key] = record.get(key)
    spans = RecordedSpans(run, record["rank"], record["host"])
    if record.get("tool") == "py-spy":
        operations = {name for group, name in spans.names if group == OPERATION}
        with open(data, encoding="utf-8", errors="replace") as lines:
            counts = count_native_stacks(lines, operations)
        return {**document, "events": [EVENT], "user_only": True, "lost": 0, **counts}
    reader = PerfReader()
    sample_counts = SampleCounts(spans, reader, record["began_ns"])
    sample_counts.add(reader.batches(perf_script(data)), record.get("ended_ns"))
    return {
        **document,
        "events": sorted(reader.events),
        "user_only": reader.user_only,
        "samples": reader.samples,
        "lost": reader.lost,
        "unread": reader.unread,
        "rows": sample_counts.document(),
    }


class SampleCounts:
    """Counts of samples by row, code, thread and event.

    A row is an operation, a phase, elsewhere, or other processes. The thread is the row's own or
    another of its process. The counts can be added to those of other ranks, and read without perf.
    """

    def __init__(self, recorded: RecordedSpans, reader: PerfReader, began_ns: int) -> None:
        n_names = len(recorded.names)
        self._recorded = recorded
        self._reader = reader
        self._until_ns = began_ns
        self._rows = [*recorded.names, (ELSEWHERE, ""), (OTHER_PROCESSES, "")]
        # (row, code, 1 if not the row's own thread, event): [number of samples, amount of the
        # event]
        self._counts: dict[tuple[int, int, int, int], list[int]] = {}
        self._elapsed_ns = np.zeros(n_names, dtype=np.int64)
        self._starts = np.zeros(n_names, dtype=np.int64)

    def add(self, batches: Iterable[Batch], ended_ns: int | None) -> None:
        """Count all samples.

        Args:
            batches: Batches of samples, ordered by time.
            ended_ns: When sampling ended; None if only the last sample shows it.
        """
        for batch in batches:
            self._add(batch)
        if ended_ns is not None and ended_ns > self._until_ns:
            self._measure(self._recorded.between(self._until_ns, ended_ns), ended_ns)

    def _add(self, batch: Batch) -> None:
        recorded = self._recorded
        n = len(batch.pid)
        first_ns = min(self._until_ns, int(batch.time_ns.min()))
        end_ns = int(batch.time_ns.max()) + 1
        spans = recorded.between(first_ns, end_ns)
        threads = np.unique(np.stack([batch.pid, batch.tid], axis=1), axis=0).tolist()
        is_inside = np.zeros(n, dtype=bool)
        for group in (OPERATION, PHASE):
            row = np.full(n, NONE, dtype=np.int64)
            is_other = np.zeros(n, dtype=np.int64)
            for pid, tid in threads:
                of_thread = (batch.pid == pid) & (batch.tid == tid)
                row[of_thread], is_other[of_thread] = recorded.owners(
                    group, spans[group], pid, tid, batch.time_ns[of_thread]
                )
            is_in_group = row != NONE
            self._count(batch, row, is_other, is_in_group)
            is_inside |= is_in_group
        processes = np.fromiter(recorded.processes, np.int64, len(recorded.processes))
        is_recorded = np.isin(batch.pid, processes)
        zeros = np.zeros(n, dtype=np.int64)
        elsewhere = len(recorded.names)
        self._count(batch, zeros + elsewhere, zeros, is_recorded & ~is_inside)
        self._count(batch, zeros + elsewhere + 1, zeros, ~is_recorded)
        self._measure(spans, end_ns)

    def _count(self, batch: Batch, row: Array, is_other: Array, mask: Array) -> None:
        """Count the samples that a mask selects."""
        if not mask.any():
            return
        columns = [row[mask], batch.code[mask], is_other[mask], batch.event[mask]]
        keys, places = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        places = places.reshape(-1)  # numpy 2.0 returns it in the shape of a column
        weights = np.zeros(len(keys), dtype=np.int64)
        np.add.at(weights, places, batch.period[mask])
        sizes = np.bincount(places).tolist()
        for key, n, weight in zip(keys.tolist(), sizes, weights.tolist(), strict=True):
            counts = self._counts.setdefault(tuple(key), [0, 0])
            counts[0] += n
            counts[1] += weight

    def _measure(self, spans: Any, until_ns: int) -> None:
        """Add the durations of operations and phases since the last call."""
        n_names = len(self._starts)
        for by_thread in spans.values():
            for of_thread in by_thread.values():
                self._elapsed_ns += of_thread.elapsed_ns(self._until_ns, until_ns, n_names)
                self._starts += of_thread.starts(self._until_ns, until_ns, n_names)
        self._until_ns = until_ns

    def document(self) -> list[dict[str, Any]]:
        """Return the rows as JSON data: ``group``, ``name``, ``elapsed_ns``, ``n``, and ``code``
        with an entry for each function and kind of thread."""
        codes, events = list(self._reader.codes), list(self._reader.events)
        by_row: dict[int, dict[tuple[int, int], dict[str, list[int]]]] = {}
        for (row, code, is_other, event), counts in self._counts.items():
            by_code = by_row.setdefault(row, {})
            by_code.setdefault((code, is_other), {})[events[event]] = counts
        rows = []
        for number, (group, name) in enumerate(self._rows):
            is_timed = number < len(self._elapsed_ns)
            if not is_timed and number not in by_row:
                continue
            entries = []
            for (code, is_other), amounts in sorted(by_row.get(number, {}).items()):
                threads = {"other_threads": bool(is_other)}
                entries.append({**codes[code]._asdict(), **threads, "events": amounts})
            times: dict[str, int | None] = {"elapsed_ns": None, "n": None}
            if is_timed:
                times["elapsed_ns"] = int(self._elapsed_ns[number])
                times["n"] = int(self._starts[number])
            rows.append({"group": group, "name": name, **times, "code": entries})
        return rows


def figures(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the contents of ``native.json`` from the counts of one or more ranks."""
    events = sorted({event for counts in ranks for event in counts["events"]})
    event = _event_of_shares(events)
    parts: dict[Name, list[Mapping[str, Any]]] = {}
    for counts in ranks:
        for part in counts["rows"]:
            parts.setdefault((part["group"], part["name"]), []).append(part)
    is_timed = TIME in events or not events
    rows = {name: _row(of_name, event, is_timed) for name, of_name in parts.items()}
    operations = _rows_of_group(rows, OPERATION)
    functions = {name: list(row["functions"]) for name, row in operations.items()}
    first = ranks[0]
    document = {
        "schema": SCHEMA,
        "tool": first["tool"],
        "version": first["version"],
        "event": event,
        "events": events,
        "frequency_hz": first["frequency_hz"],
        "kernel_seen": not any(counts["user_only"] for counts in ranks),
    }
    for key in ("samples", "lost", "unread"):
        document[key] = sum(counts[key] for counts in ranks)
    return document | {
        "operations": operations,
        "phases": _rows_of_group(rows, PHASE),
        "elsewhere": rows.get((ELSEWHERE, "")),
        "other_processes": rows.get((OTHER_PROCESSES, "")),
        "op_to_func": functions,
        "common_funcs_to_op": _common_functions(functions),
    }


def _event_of_shares(events: Sequence[str]) -> str:
    """Return the event that shares are computed from."""
    for event in _BY_PREFERENCE:
        if event in events:
            return event
    return events[0] if events else TIME


def _rows_of_group(rows: Mapping[Name, dict[str, Any]], group: str) -> dict[str, dict[str, Any]]:
    """Return the operations or the phases, with the most samples first."""
    of_group = [
        (name, row) for (row_group, name), row in sorted(rows.items()) if row_group == group
    ]
    of_group.sort(key=lambda item: -item[1]["samples"])
    return dict(of_group)


def _common_functions(functions: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the functions that several operations use, with these operations."""
    users: dict[str, list[str]] = {}
    for operation, keys in functions.items():
        for key in keys:
            users.setdefault(key, []).append(operation)
    return {key: operations for key, operations in users.items() if len(operations) > 1}


_Entries = list[Mapping[str, Any]]


def _row(parts: Sequence[Mapping[str, Any]], event: str, is_timed: bool) -> dict[str, Any]:
    """Combine the rows of an operation or phase from all ranks."""
    entries = [entry for part in parts for entry in part["code"]]
    of_own_threads = [entry for entry in entries if not entry["other_threads"]]
    of_other_threads = [entry for entry in entries if entry["other_threads"]]
    kernel = [entry for entry in entries if entry["kernel"]]
    by_function = _group(entries, _function_key)
    by_library = _group(entries, itemgetter("library"))
    total = _amount(entries, event)

    def share(of_part: _Entries) -> float:
        return _amount(of_part, event) / total if total else 0.0

    functions = {}
    for key, of_function in _by_amount(by_function, event):
        functions[key] = {
            **{name: of_function[0][name] for name in ("function", "library", "kernel")},
            "share": share(of_function),
            **_function_amounts(of_function, event, is_timed),
        }
    of_others = {
        "samples": _samples(of_other_threads, event),
        **_amounts(of_other_threads, is_timed),
    }
    libraries = {name: share(part) for name, part in _by_amount(by_library, event)}
    return {
        **_times(parts),
        "samples": _samples(of_own_threads, event),
        **_amounts(of_own_threads, is_timed),
        "other_threads": of_others,
        "kernel_share": share(kernel),
        "libraries": libraries,
        "functions": functions,
    }


def _group(entries: _Entries, key: Callable[[Mapping[str, Any]], str]) -> dict[str, _Entries]:
    groups: dict[str, _Entries] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def _function_key(entry: Mapping[str, Any]) -> str:
    function, library = entry["function"], entry["library"]
    return f"{library}|?" if function is None else f"{function}|{library}"


def _by_amount(groups: Mapping[str, _Entries], event: str) -> list[tuple[str, _Entries]]:
    """Return the groups, with the largest amount of an event first."""
    return sorted(groups.items(), key=lambda item: (-_amount(item[1], event), item[0]))


def _function_amounts(entries: _Entries, event: str, is_timed: bool) -> dict[str, Any]:
    of_others = [entry for entry in entries if entry["other_threads"]]
    return {
        "samples": _samples(entries, event),
        "samples_of_other_threads": _samples(of_others, event),
        **_amounts(entries, is_timed),
    }


def _times(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``n``, how often a phase or operation began, and ``elapsed_s``, how long it lasted in
    all."""
    elapsed_ns = [part["elapsed_ns"] for part in parts if part["elapsed_ns"] is not None]
    if not elapsed_ns:
        return {"n": None, "elapsed_s": None}
    starts = [part["n"] for part in parts if part["n"] is not None]
    return {"n": sum(starts), "elapsed_s": sum(elapsed_ns) / 1e9}


def _amount(entries: Iterable[Mapping[str, Any]], event: str) -> int:
    return sum(entry["events"].get(event, (0, 0))[1] for entry in entries)


def _samples(entries: Iterable[Mapping[str, Any]], event: str) -> int:
    return sum(entry["events"].get(event, (0, 0))[0] for entry in entries)


def _amounts(entries: Sequence[Mapping[str, Any]], is_timed: bool) -> dict[str, Any]:
    """Return ``on_cpu_s`` and the hardware counters, of the functions themselves without their
    callees."""
    counters = {event for entry in entries for event in entry["events"]} - {TIME, EVENT, ""}
    amounts: dict[str, Any] = {"on_cpu_s": _amount(entries, TIME) / 1e9 if is_timed else None}
    if counters:
        amounts["counters"] = {
            event.replace("-", "_"): _amount(entries, event) for event in sorted(counters)
        }
    return amounts


def _shortened(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``native`` part of a summary: ``native.json`` with only the largest functions."""
    keys = ("tool", "event", "frequency_hz", "kernel_seen", "samples", "lost")
    short: dict[str, Any] = {key: document[key] for key in keys}
    for group in ("operations", "phases"):
        rows = short[group] = {}
        for name, row in document[group].items():
            if row["samples"] or row["other_threads"]["samples"]:
                rows[name] = _short_row(row)
    elsewhere = document["elsewhere"]
    short["elsewhere"] = _short_row(elsewhere) if elsewhere else None
    short["file"] = NATIVE_FILE
    return short


def _short_row(row: Mapping[str, Any]) -> dict[str, Any]:
    short = {key: row[key] for key in ("samples", "on_cpu_s", "elapsed_s", "kernel_share")}
    short["other_threads_s"] = row["other_threads"]["on_cpu_s"]
    largest = list(row["functions"].items())[:_SHORT]
    short["functions"] = {key: function["share"] for key, function in largest}
    return short
