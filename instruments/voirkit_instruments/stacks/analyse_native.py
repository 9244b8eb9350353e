"""``native.json``: which C functions and libraries each loader operation and each phase of training used (docs/native.md).

Also of runs that were killed, if what their profiler recorded can be read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import NONE, Array
from voirkit.runs.directory import kept_counts, record_stems, write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.runs.other_processes import has_settled
from voirkit_instruments.stacks import NATIVE_FILE, NATIVE_FOLDER
from voirkit_instruments.stacks.analyse_frames import ELSEWHERE, OPERATION, PHASE, RecordedSpans
from voirkit_instruments.stacks.analyse_samples import EVENT, Batch, PerfReader, count_native_stacks, perf_script

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

SCHEMA = 1
OTHER_PROCESSES = "other processes"
TIME = "cpu-clock"  # the event whose numbers are nanoseconds
_BY_PREFERENCE = ("cycles", TIME)  # what shares are shares of
_SHORT = 3  # functions of an operation that the summary names


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``native`` of a summary, with ``native.json`` made or brought up to date; see ``voirkit.instrument.Instrument``."""
    run = runs[0]
    stems = record_stems(os.path.join(run.path, NATIVE_FOLDER))
    counts = [one for stem in stems if (one := kept_counts(stem, SCHEMA, partial(_count, run, stem))) is not None]
    if not counts:
        return None
    document = figures(counts)
    if rank_and_world_size()[0] == 0:  # the first rank writes what there is one of
        try:
            write_json(os.path.join(run.path, NATIVE_FILE), document)
        except OSError as exc:
            run.warnings.append(f"{NATIVE_FILE} cannot be written ({exc.strerror}).")
    return {"native": _shortened(document)}


def _count(run: Run, stem: str, record: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]] | None:
    data = f"{stem}.data"
    if not os.path.exists(data) or not has_settled(record, "profiler_pid"):
        return None
    try:
        return count(run, record, data), ()
    except (OSError, KeyError, TypeError) as exc:
        run.warnings.append(f"--native: {NATIVE_FOLDER}/{os.path.basename(data)} cannot be read ({exc}).")
        return None


def count(run: Run, record: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Join what perf, or py-spy, recorded of a process and those that it started with what the run recorded of them.

    Args:
        record: Of the profiler: ``tool``, ``rank``, ``host``, ``began_ns``, ``ended_ns``.

    Raises:
        OSError: perf is not there, or cannot read the file.
    """
    known = {key: record.get(key) for key in ("tool", "version", "frequency_hz", "rank", "host")}
    spans = RecordedSpans(run, record["rank"], record["host"])
    if record.get("tool") == "py-spy":
        with open(data, encoding="utf-8", errors="replace") as lines:
            counted = count_native_stacks(lines, {name for group, name in spans.names if group == OPERATION})
        return {"schema": SCHEMA, **known, "events": [EVENT], "user_only": True, "lost": 0, **counted}
    reader = PerfReader()
    counts = SampleCounts(spans, reader, record["began_ns"])
    counts.add(reader.batches(perf_script(data)), record.get("ended_ns"))
    return {
        "schema": SCHEMA, **known, "events": sorted(reader.events), "user_only": reader.user_only,
        "samples": reader.samples, "lost": reader.lost, "unread": reader.unread, "rows": counts.document(),
    }  # fmt: skip


class SampleCounts:
    """Counts by row (an operation, a phase, elsewhere, other processes), code, thread (its own or another of its process) and event. What
    comes out can be added to that of other ranks and read without perf."""

    def __init__(self, recorded: RecordedSpans, reader: PerfReader, began_ns: int) -> None:
        self._recorded, self._reader, self._until_ns = recorded, reader, began_ns
        self._rows = [*recorded.names, (ELSEWHERE, ""), (OTHER_PROCESSES, "")]
        self._counts: dict[tuple[int, int, int, int], list[int]] = {}  # (row, code, of another thread, event): [samples, of the event]
        self._elapsed_ns = np.zeros(len(recorded.names), dtype=np.int64)
        self._starts = np.zeros(len(recorded.names), dtype=np.int64)

    def add(self, batches: Iterable[Batch], ended_ns: int | None) -> None:
        """Count all samples.

        Args:
            batches: Of samples, in the order of time.
            ended_ns: When sampling ended; None if only the last sample shows it.
        """
        for batch in batches:
            self._add(batch)
        if ended_ns is not None and ended_ns > self._until_ns:
            self._measure(self._recorded.between(self._until_ns, ended_ns), ended_ns)

    def _add(self, batch: Batch) -> None:
        last = int(batch.time_ns.max()) + 1
        spans = self._recorded.between(min(self._until_ns, int(batch.time_ns.min())), last)
        is_known = np.isin(batch.pid, np.fromiter(self._recorded.processes, np.int64, len(self._recorded.processes)))
        is_inside = np.zeros(len(batch.pid), dtype=bool)
        for group in (OPERATION, PHASE):
            row, is_other = np.full(len(batch.pid), NONE, dtype=np.int64), np.zeros(len(batch.pid), dtype=np.int64)
            for pid, tid in np.unique(np.stack([batch.pid, batch.tid], axis=1), axis=0).tolist():
                chosen = (batch.pid == pid) & (batch.tid == tid)
                row[chosen], is_other[chosen] = self._recorded.owners(group, spans[group], pid, tid, batch.time_ns[chosen])
            self._count(batch, row, is_other, row != NONE)
            is_inside |= row != NONE
        names, none = len(self._recorded.names), np.zeros(len(is_inside), dtype=np.int64)
        self._count(batch, none + names, none, is_known & ~is_inside)
        self._count(batch, none + names + 1, none, ~is_known)
        self._measure(spans, last)

    def _count(self, batch: Batch, row: Array, is_other: Array, chosen: Array) -> None:
        if not chosen.any():
            return
        keys = np.stack([row[chosen], batch.code[chosen], is_other[chosen], batch.event[chosen]], axis=1)
        unique, which = np.unique(keys, axis=0, return_inverse=True)
        which = which.reshape(-1)  # numpy 2.0 gives it the shape of a column
        weights = np.zeros(len(unique), dtype=np.int64)
        np.add.at(weights, which, batch.period[chosen])
        for key, n, weight in zip(unique.tolist(), np.bincount(which).tolist(), weights.tolist(), strict=True):
            counts = self._counts.setdefault(tuple(key), [0, 0])
            counts[0] += n
            counts[1] += weight

    def _measure(self, spans: Any, until_ns: int) -> None:
        """Add how long operations and phases lasted since the last time."""
        for group in spans.values():
            for own in group.values():
                self._elapsed_ns += own.elapsed_ns(self._until_ns, until_ns, len(self._elapsed_ns))
                self._starts += own.starts(self._until_ns, until_ns, len(self._starts))
        self._until_ns = until_ns

    def document(self) -> list[dict[str, Any]]:
        """The rows as JSON holds them: ``group``, ``name``, ``elapsed_ns``, ``n``, and ``code``: one entry for each function and thread."""
        codes, events = list(self._reader.codes), list(self._reader.events)
        by_row: dict[int, dict[tuple[int, int], dict[str, list[int]]]] = {}
        for (row, code, is_other, event), counts in self._counts.items():
            by_row.setdefault(row, {}).setdefault((code, is_other), {})[events[event]] = counts
        rows = []
        for number, (group, name) in enumerate(self._rows):
            is_timed = number < len(self._elapsed_ns)
            if not is_timed and number not in by_row:
                continue
            entries = [
                {**codes[code]._asdict(), "other_threads": bool(is_other), "events": amounts}
                for (code, is_other), amounts in sorted(by_row.get(number, {}).items())
            ]
            elapsed, n = (int(self._elapsed_ns[number]), int(self._starts[number])) if is_timed else (None, None)
            rows.append({"group": group, "name": name, "elapsed_ns": elapsed, "n": n, "code": entries})
        return rows


def figures(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``native.json`` from the counts of one or more ranks."""
    events = sorted({event for counts in ranks for event in counts["events"]})
    event = next((wanted for wanted in _BY_PREFERENCE if wanted in events), events[0] if events else TIME)
    parts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for counts in ranks:
        for row in counts["rows"]:
            parts.setdefault((row["group"], row["name"]), []).append(row)
    is_timed = TIME in events or not events
    rows = {name: _row(one, event, is_timed) for name, one in parts.items()}
    by_samples = sorted(rows.items(), key=lambda item: (-item[1]["samples"], item[0][1]))
    operations, phases = ({name: row for (of, name), row in by_samples if of == group} for group in (OPERATION, PHASE))
    functions = {name: list(row["functions"]) for name, row in operations.items()}
    users: dict[str, list[str]] = {}
    for name, keys in functions.items():
        for key in keys:
            users.setdefault(key, []).append(name)
    first = ranks[0]
    return {
        "schema": SCHEMA, "tool": first["tool"], "version": first["version"], "event": event, "events": events,
        "frequency_hz": first["frequency_hz"], "kernel_seen": not any(counts["user_only"] for counts in ranks),
        **{key: sum(counts[key] for counts in ranks) for key in ("samples", "lost", "unread")},
        "operations": operations, "phases": phases,
        "elsewhere": rows.get((ELSEWHERE, "")), "other_processes": rows.get((OTHER_PROCESSES, "")),
        "op_to_func": functions, "common_funcs_to_op": {key: names for key, names in users.items() if len(names) > 1},
    }  # fmt: skip


def _row(parts: Sequence[Mapping[str, Any]], event: str, is_timed: bool) -> dict[str, Any]:
    entries = [entry for part in parts for entry in part["code"]]
    total = _amount(entries, event)
    by_function: dict[str, list[Mapping[str, Any]]] = {}
    by_library: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        function, library = entry["function"], entry["library"]
        by_function.setdefault(f"{library}|?" if function is None else f"{function}|{library}", []).append(entry)
        by_library.setdefault(library, []).append(entry)

    def share(chosen: Sequence[Mapping[str, Any]]) -> float:
        return _amount(chosen, event) / total if total else 0.0

    def by_amount(groups: Mapping[str, list[Mapping[str, Any]]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
        return sorted(groups.items(), key=lambda item: (-_amount(item[1], event), item[0]))

    functions = {
        key: {
            **{name: chosen[0][name] for name in ("function", "library", "kernel")}, "share": share(chosen),
            "samples": _samples(chosen, event),
            "samples_of_other_threads": _samples([one for one in chosen if one["other_threads"]], event), **_amounts(chosen, is_timed),
        }
        for key, chosen in by_amount(by_function)
    }  # fmt: skip
    own, other = ([entry for entry in entries if entry["other_threads"] is is_other] for is_other in (False, True))
    elapsed = [part["elapsed_ns"] for part in parts if part["elapsed_ns"] is not None]
    return {
        "n": sum(part["n"] for part in parts if part["n"] is not None) if elapsed else None,
        "elapsed_s": sum(elapsed) / 1e9 if elapsed else None,
        "samples": _samples(own, event),
        **_amounts(own, is_timed),
        "other_threads": {"samples": _samples(other, event), **_amounts(other, is_timed)},
        "kernel_share": share([entry for entry in entries if entry["kernel"]]),
        "libraries": {library: share(chosen) for library, chosen in by_amount(by_library)},
        "functions": functions,
    }


def _amount(entries: Iterable[Mapping[str, Any]], event: str) -> int:
    return sum(entry["events"].get(event, (0, 0))[1] for entry in entries)


def _samples(entries: Iterable[Mapping[str, Any]], event: str) -> int:
    return sum(entry["events"].get(event, (0, 0))[0] for entry in entries)


def _amounts(entries: Sequence[Mapping[str, Any]], is_timed: bool) -> dict[str, Any]:
    """``on_cpu_s``, and what hardware counters counted, each function's own."""
    counters = sorted({event for entry in entries for event in entry["events"]} - {TIME, EVENT, ""})
    amounts: dict[str, Any] = {"on_cpu_s": _amount(entries, TIME) / 1e9 if is_timed else None}
    if counters:
        amounts["counters"] = {event.replace("-", "_"): _amount(entries, event) for event in counters}
    return amounts


def _shortened(document: Mapping[str, Any]) -> dict[str, Any]:
    """The key ``native`` of a summary."""
    rows = {
        group: {name: _short_row(row) for name, row in document[group].items() if row["samples"] or row["other_threads"]["samples"]}
        for group in ("operations", "phases")
    }
    known = {key: document[key] for key in ("tool", "event", "frequency_hz", "kernel_seen", "samples", "lost")}
    elsewhere = document["elsewhere"]
    return {**known, **rows, "elsewhere": _short_row(elsewhere) if elsewhere else None, "file": NATIVE_FILE}


def _short_row(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("samples", "on_cpu_s", "elapsed_s", "kernel_share")
    functions = {key: function["share"] for key, function in [*row["functions"].items()][:_SHORT]}
    return {**{key: row[key] for key in keys}, "other_threads_s": row["other_threads"]["on_cpu_s"], "functions": functions}
