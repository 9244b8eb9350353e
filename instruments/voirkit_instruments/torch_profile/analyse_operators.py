"""Gives each operator and kernel of a recording to a phase of training, sums them, and puts them into the trace of the run.

What the training thread does belongs to the phase it is in then. What another thread of the process does (autograd's) belongs to the phase
that the training thread is in then: backward, which waits for it. A kernel belongs to the phase in which it was started.

The trace that torch's profiler writes (Chrome's format, Kineto; checked with what torch 2.15 writes) is read event by event, since the file
may be larger than memory, and its times are brought onto the run's clock.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array, innermost, parents, without_children
from voirkit.analysis.phases import Records, meanings
from voirkit.analysis.steps import VOIRKIT
from voirkit.runs.opened import Run
from voirkit.runs.parquet import COLUMNS, OPTIONS, file
from voirkit.runs.summary import PHASES
from voirkit.runs.trace_files import clean
from voirkit.trace.layout import folder_of

OPERATOR, ANNOTATION, RUNTIME, KERNEL, MEMORY = range(5)
CATEGORIES = ("operator", "annotation", "runtime", "kernel", "memory")
_CATEGORY = {
    "cpu_op": OPERATOR, "user_annotation": ANNOTATION, "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME,
    "hip_runtime": RUNTIME, "xpu_runtime": RUNTIME, "xpu_driver": RUNTIME,
    "kernel": KERNEL, "gpu_memcpy": KERNEL, "gpu_memset": KERNEL, "cpu_instant_event": MEMORY,
}  # fmt: skip
MOST_EVENTS = 4_000_000
_CHUNK = 1 << 20
_LARGEST = 1 << 24  # characters of an object, and around them all: a packed file of a few bytes may hold any number
_US = 1000
_BASE = re.compile(r'"baseTimeNanoseconds":\s*(\d+)')


class Events:
    """The events of one trace; arrays of shape (n,), in the order of the file.

    Attributes:
        category: One of ``OPERATOR``, ``ANNOTATION`` (what the program or torch calls a part of it), ``RUNTIME`` (calls that start
            work on a device), ``KERNEL`` (that work) and ``MEMORY``.
        name: Index into ``names``.
        tid: The thread; of a kernel its stream.
        device: Of kernels and memory, else -1.
        linked: What a kernel and the call that started it have in common; else -1.
        bytes: Of memory: allocated, negative if freed.
    """

    def __init__(self, path: str) -> None:
        """Read a file; ``path`` may end in ``.gz``. Raises OSError: it cannot be read; ValueError: it is no such trace, or torn."""
        columns = {key: array("q") for key in ("category", "name", "tid", "device", "linked", "bytes")}
        times = {key: array("d") for key in ("ts", "dur")}
        names: dict[str, int] = {}
        self.left_out = 0  # events beyond ``MOST_EVENTS``
        self._base_ns = 0
        for event in self._read(path):
            category = _CATEGORY.get(event.get("cat", ""))
            if category is None or event.get("ph") not in ("X", "i"):
                continue
            if len(times["ts"]) >= MOST_EVENTS:
                self.left_out += 1
                continue
            more = event.get("args") or {}
            times["ts"].append(event["ts"])
            times["dur"].append(event.get("dur", 0))
            columns["category"].append(category)
            columns["name"].append(names.setdefault(event["name"], len(names)))
            columns["tid"].append(_whole(event.get("tid")))
            columns["device"].append(_whole(more.get("device", more.get("Device Id"))))
            columns["linked"].append(_whole(more.get("correlation")))
            columns["bytes"].append(_whole(more.get("Bytes"), 0))
        plain: dict[str, Array] = {key: np.frombuffer(values, np.int64) for key, values in columns.items()}
        self.category, self.name, self.tid = plain["category"], plain["name"], plain["tid"]
        self.device, self.linked, self.bytes = plain["device"], plain["linked"], plain["bytes"]
        self.start_ns: Array = _nanoseconds(times["ts"]) + self._base_ns  # nanoseconds of the wall clock
        self.duration_ns: Array = _nanoseconds(times["dur"])
        self.names = list(names)  # by index

    def _read(self, path: str) -> Iterator[dict[str, Any]]:
        open_file: Any = gzip.open if path.endswith(".gz") else open
        with open_file(path, "rt", encoding="utf-8", errors="replace") as file:
            head = ""
            while '"traceEvents"' not in head:
                chunk = file.read(_CHUNK)
                if not chunk or len(head) > _LARGEST:
                    raise ValueError("it is no trace of torch's profiler")
                head += chunk
            before, _, rest = head.partition('"traceEvents"')
            rest = yield from _objects(rest[rest.index("[") + 1 :], file)
            found = _BASE.search(before) or _BASE.search(rest + file.read(_LARGEST))
            self._base_ns = int(found[1]) if found else 0


def _objects(text: str, file: IO[str]) -> Any:
    """The objects of a list, of which a beginning has been read; returns what was read behind it."""
    decode, at = json.JSONDecoder().raw_decode, 0
    while True:
        while at < len(text) and text[at] in " \n\r\t,":
            at += 1
        if at < len(text) and text[at] == "]":
            return text[at:]
        try:
            found, at = decode(text, at)
        except ValueError:
            chunk = file.read(_CHUNK)
            if not chunk or len(text) - at > _LARGEST:
                raise ValueError("it is torn") from None
            text, at = text[at:] + chunk, 0
        else:
            yield found


def _whole(value: Any, otherwise: int = -1) -> int:
    return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else otherwise


def _nanoseconds(microseconds: array[float]) -> Array:
    return np.round(np.frombuffer(microseconds, np.float64) * 1000).astype(np.int64)


class Clock(NamedTuple):
    """From the wall clock, as torch's profiler has it, to the run's."""

    offset_ns: int  # to be added
    error_ns: int  # by how much a time may be wrong; the marks say nothing closer

    def __call__(self, at_ns: Array) -> Array:
        """Times on the run's clock."""
        return at_ns + self.offset_ns


def find_clock(seen_ns: Array, marks: Sequence[Sequence[int]]) -> Clock:
    """Find the offset that all marks agree with.

    Args:
        seen_ns: Where the profiler has them, ascending; shape (n,).
        marks: For each, the run's clock before and after it.

    Raises:
        ValueError: There are none, or not as many.

    A mark lies between its two readings of the run's clock, so each bounds the offset from both sides; what all of them leave open is the
    error. If they contradict each other (one of the clocks was corrected meanwhile), the middle one counts, and the error is the largest.
    """
    if not len(seen_ns) or len(seen_ns) != len(marks):
        raise ValueError(f"of {len(marks)} marks {len(seen_ns)} were recorded")
    seen_ns = np.asarray(seen_ns, np.int64)
    step = _US if not (seen_ns % _US).any() else 1  # torch 2.1 cuts times to whole microseconds
    between = np.asarray(marks, np.int64) - seen_ns[:, None]
    low, high = int(between[:, 0].max()) - (step - 1), int(between[:, 1].min())
    if low <= high:
        return Clock((low + high) // 2, (high - low + 1) // 2 + step)
    middles = between.mean(axis=1)
    offset = int(np.median(middles))
    return Clock(offset, int(np.abs(middles - offset).max()) + step)


MOST = 40  # operators of a phase, and kernels, that have a row of their own
OTHERS = "(others)"
_SUMS = ("calls", "cpu_s", "device_s", "self_cpu_s", "self_device_s", "bytes", "freed")
OTHER = PHASES.index("other")
EVALUATION, OWN = len(PHASES), len(PHASES) + 1
NAMES = (*PHASES, "evaluation", "voirkit")  # the last: what instruments call as they look at tensors

Row = dict[str, Any]


class AttributedEvents:
    """A recording's events, of which each has its place; arrays of shape (n,).

    Args:
        start_ns: When each began, on the run's clock.
        evaluation: (start, end) of what is no training.

    Attributes:
        parent: The operator, annotation or call that each lies in directly; of memory the one that took it, of a kernel the call that
            started it; -1 if there is none.
        self_ns: Time without what lies in it, and without other phases: LBFGS's step calls forward and backward. 0 of memory.
        device_ns: Time of the kernels started in it, and in what lies in it.
        self_device_ns: Of those started in itself: in calls that lie in it directly.
    """

    def __init__(self, events: Events, start_ns: Array, phases: PhasesOfThread, evaluation: Sequence[tuple[int, int]]) -> None:
        n = len(start_ns)
        self.parent = np.full(n, -1, np.int64)
        self.self_ns = events.duration_ns.copy()
        on_host = np.flatnonzero(np.isin(events.category, (OPERATOR, ANNOTATION, RUNTIME)))
        memory = np.flatnonzero(events.category == MEMORY)
        self.phase = phases.phase_at(start_ns, evaluation)  # index into ``NAMES``
        edges_ns = phases.edges_ns(evaluation)
        for tid in np.unique(events.tid[on_host]).tolist():
            own = on_host[events.tid[on_host] == tid]
            own = own[np.lexsort((-events.duration_ns[own], start_ns[own]))]
            inside = parents(start_ns[own], events.duration_ns[own])
            self.parent[own] = np.where(inside >= 0, own[inside], -1)
            self.self_ns[own] = without_children(events.duration_ns[own], inside)
            changes_ns = np.unique(np.concatenate((start_ns[own], start_ns[own] + events.duration_ns[own], edges_ns)))
            at = innermost(start_ns[own], start_ns[own] + events.duration_ns[own], changes_ns[:-1])
            away = (at >= 0) & (phases.phase_at(changes_ns[:-1], evaluation) != self.phase[own][at])
            elsewhere_ns = np.bincount(at[away], np.diff(changes_ns)[away], len(own)).astype(np.int64)
            self.self_ns[own] = np.maximum(self.self_ns[own] - elsewhere_ns, 0)
            allocations = memory[events.tid[memory] == tid]
            at = innermost(start_ns[own], start_ns[own] + np.maximum(events.duration_ns[own], 1), start_ns[allocations])
            self.parent[allocations] = np.where(at >= 0, own[at], -1)
        self.self_ns[memory] = 0
        self._attribute_kernels(events, n)

    def _attribute_kernels(self, events: Events, n: int) -> None:
        kernels = np.flatnonzero(events.category == KERNEL)
        started = np.flatnonzero((events.category == RUNTIME) & (events.linked >= 0))
        started = started[np.argsort(events.linked[started], kind="stable")]
        self.device_ns, self.self_device_ns = np.zeros(n, np.int64), np.zeros(n, np.int64)
        if len(kernels) and len(started):
            at = np.minimum(np.searchsorted(events.linked[started], events.linked[kernels]), len(started) - 1)
            is_linked = events.linked[started[at]] == events.linked[kernels]
            kernels, calls = kernels[is_linked], started[at[is_linked]]
            self.parent[kernels] = calls
            self.phase[kernels] = self.phase[calls]
            lasted = events.duration_ns[kernels]
            np.add.at(self.self_device_ns, np.where(self.parent[calls] >= 0, self.parent[calls], calls), lasted)
            holders = calls
            while len(holders):
                np.add.at(self.device_ns, holders, lasted)
                inside = self.parent[holders] >= 0
                holders, lasted = self.parent[holders[inside]], lasted[inside]


class PhasesOfThread:
    """The phases of the training thread, as they were recorded. ``chosen``: indices of those of the thread, ascending by start, outer
    before inner."""

    def __init__(self, records: Records, chosen: Array) -> None:
        meaning = meanings(records.names)[records.name[chosen]]
        chosen, meaning = chosen[meaning >= 0], meaning[meaning >= 0]
        self._start_ns = records.start_ns[chosen]
        self._end_ns = self._start_ns + records.duration_ns[chosen]
        self._phase = np.where(meaning == VOIRKIT, OWN, np.minimum(meaning, OTHER))

    def phase_at(self, at_ns: Array, evaluation: Sequence[tuple[int, int]] = ()) -> Any:
        """Index into ``NAMES`` of the phase that the thread is in at each instant."""
        at = innermost(self._start_ns, self._end_ns, at_ns)
        phase = np.where(at >= 0, self._phase[at] if len(self._phase) else OTHER, OTHER)
        for begin, end in evaluation:
            phase[(at_ns >= begin) & (at_ns < end)] = EVALUATION
        return phase

    def times_ns(self, begin_ns: int, end_ns: int, evaluation: Sequence[tuple[int, int]] = ()) -> dict[str, int]:
        """How long the thread is in each of ``NAMES`` between two instants."""
        edges = self.edges_ns(evaluation)
        edges = np.unique(np.concatenate(([begin_ns, end_ns], edges[(edges > begin_ns) & (edges < end_ns)])))
        lasting = np.bincount(self.phase_at(edges[:-1], evaluation), np.diff(edges), len(NAMES))
        return {name: int(spent) for name, spent in zip(NAMES, lasting, strict=True)}

    def edges_ns(self, evaluation: Sequence[tuple[int, int]] = ()) -> Array:
        """When the phase may change; in no order."""
        return np.concatenate((self._start_ns, self._end_ns, np.array(evaluation, dtype=np.int64).reshape(-1)))


def figures(events: Events, attributed: AttributedEvents, chosen: Array) -> dict[str, Any]:
    """The sums of the chosen events.

    Args:
        chosen: Whether each counts; shape (n,).
    """
    on_host = np.isin(events.category, (OPERATOR, ANNOTATION, RUNTIME)) & chosen
    allocations = (events.category == MEMORY) & chosen & (events.device < 0)
    holder = np.maximum(attributed.parent, 0)
    has_holder = allocations & (attributed.parent >= 0)
    parts = {
        "calls": (on_host, np.ones(len(chosen)), None),
        "cpu_s": (on_host, events.duration_ns / 1e9, None),
        "device_s": (on_host, attributed.device_ns / 1e9, None),
        "self_cpu_s": (on_host, attributed.self_ns / 1e9, None),
        "self_device_s": (on_host, attributed.self_device_ns / 1e9, None),
        "bytes": (has_holder, np.maximum(events.bytes, 0), holder),
        "freed": (has_holder, np.maximum(-events.bytes, 0), holder),
    }
    n = len(events.names)
    phases: dict[str, dict[str, Row]] = {}
    for number, phase in enumerate(NAMES):
        sums = {}
        for key, (which, amounts, at) in parts.items():
            which = np.flatnonzero(which & (attributed.phase == number))
            names = events.name[which if at is None else at[which]]
            sums[key] = np.bincount(names, weights=amounts[which], minlength=n)
        rows = {
            events.names[i]: {key: float(sums[key][i]) if key.endswith("_s") else int(sums[key][i]) for key in _SUMS}
            for i in np.flatnonzero(sums["calls"]).tolist()
        }
        if rows:
            phases[phase] = rows
    kernels: dict[str, Row] = {}
    which = np.flatnonzero((events.category == KERNEL) & chosen)
    for name, phase, lasted in zip(
        events.name[which].tolist(), attributed.phase[which].tolist(), events.duration_ns[which].tolist(), strict=True
    ):
        row = kernels.setdefault(events.names[name], {"calls": 0, "device_s": 0.0, "phases": {}})
        row["calls"] += 1
        row["device_s"] += lasted / 1e9
        row["phases"][NAMES[phase]] = row["phases"].get(NAMES[phase], 0.0) + lasted / 1e9
    return {"phases": {phase: {"operators": rows} for phase, rows in phases.items()}, "kernels": kernels}


def merge_figures(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of several recordings or ranks."""
    phases: dict[str, dict[str, dict[str, Row]]] = {}
    kernels: dict[str, Row] = {}
    for part in parts:
        for phase, found in part["phases"].items():
            rows = phases.setdefault(phase, {"operators": {}})["operators"]
            for name, row in found["operators"].items():
                _add(rows.setdefault(name, dict.fromkeys(row, 0)), row)
        for name, row in part["kernels"].items():
            kernel = kernels.setdefault(name, {"calls": 0, "device_s": 0.0, "phases": {}})
            kernel["calls"] += row["calls"]
            kernel["device_s"] += row["device_s"]
            _add(kernel["phases"], row["phases"])
    return {"phases": {phase: phases[phase] for phase in NAMES if phase in phases}, "kernels": kernels}


def _add(into: dict[str, Any], row: Mapping[str, Any]) -> None:
    for key, value in row.items():
        into[key] = into.get(key, 0) + value


def shorten(document: dict[str, Any]) -> dict[str, Any]:
    """The same with the rows that matter, those that take most time first; what is left out is summed in one."""
    for found in document["phases"].values():
        rows = sorted(found["operators"].items(), key=lambda item: -max(item[1]["self_cpu_s"], item[1]["self_device_s"]))
        kept = dict(rows[:MOST])
        for _, row in rows[MOST:]:
            _add(kept.setdefault(OTHERS, {}), row)
        found.update(
            operators=kept, **{key: sum(row[key] for _, row in rows) for key in ("calls", "self_cpu_s", "self_device_s", "bytes", "freed")}
        )
    kernels = sorted(document["kernels"].items(), key=lambda item: -item[1]["device_s"])
    document["kernels"] = dict(kernels[:MOST])
    for _, row in kernels[MOST:]:
        rest = document["kernels"].setdefault(OTHERS, {"calls": 0, "device_s": 0.0, "phases": {}})
        rest["calls"] += row["calls"]
        rest["device_s"] += row["device_s"]
        _add(rest["phases"], row["phases"])
    return document


def put_into_trace(
    run: Run,
    record: Mapping[str, Any],
    recording: Mapping[str, Any],
    events: Events,
    attributed: AttributedEvents,
    start_ns: Array,
    chosen: Array,
) -> None:
    """Write the chosen events into the trace, so that exports and queries have them beside the phases, on the same clock.

    Kind ``operator`` (category ``operator``, ``annotation`` or ``runtime``; in the thread that called it) and kind ``kernel`` (in the
    thread that started it, with ``device`` and ``stream`` among its arguments). The file has a name of its own: writing it again changes
    nothing.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    import duckdb

    rank, stem = int(record["rank"]), os.path.basename(recording["file"]).partition(".")[0]
    for kind in ("operator", "kernel"):
        which = np.flatnonzero(chosen & ((events.category == KERNEL) == (kind == "kernel")))
        if not len(which):
            continue
        folder = os.path.join(folder_of(run.path), f"kind={kind}", f"rank={rank}")
        path = os.path.join(folder, f"profile-{stem}.parquet")
        try:
            os.makedirs(folder, exist_ok=True)
            _write(run, path, kind, record, _columns(events, attributed, start_ns, which), events.names)
        except duckdb.Error as exc:
            raise OSError(f"{path} cannot be written: {exc}".partition("\n")[0]) from None


def _columns(events: Events, attributed: AttributedEvents, start_ns: Array, which: Array) -> dict[str, Array]:
    caller = np.where(attributed.parent[which] >= 0, attributed.parent[which], which)
    is_kernel = events.category[which] == KERNEL
    return {
        "start_ns": start_ns[which], "duration_ns": events.duration_ns[which],
        "name": events.name[which], "category": events.category[which],
        "tid": np.where(is_kernel, events.tid[caller], events.tid[which]), "stream": events.tid[which], "device": events.device[which],
    }  # fmt: skip


def _write(run: Run, path: str, kind: str, record: Mapping[str, Any], columns: dict[str, Array], names: list[str]) -> None:
    connection = run.connection()
    texts, categories = (np.array(values, dtype=object) for values in ([clean(name) for name in names], CATEGORIES))
    connection.register("profile_rows", {key: np.ascontiguousarray(values) for key, values in columns.items()})
    connection.register("profile_names", {"code": np.arange(len(names)), "text": texts})
    connection.register("profile_categories", {"code": np.arange(len(CATEGORIES)), "text": categories})
    args = "concat('{\"device\":', r.device, ',\"stream\":', r.stream, '}')" if kind == "kernel" else "NULL"
    own = {
        "start_ns": "r.start_ns", "duration_ns": "r.duration_ns", "category": "c.text", "name": "n.text", "args": args, "host": "?",
        "pid": str(int(record["pid"])), "tid": "r.tid", "kind": f"'{kind}'", "rank": str(int(record["rank"])),
    }  # fmt: skip
    chosen = ", ".join(f"CAST({own.get(key, 'NULL')} AS {type_}) AS {key}" for key, type_ in COLUMNS.items())
    query = (
        f"SELECT {chosen} FROM profile_rows r JOIN profile_names n ON n.code = r.name "
        "JOIN profile_categories c ON c.code = r.category ORDER BY r.start_ns, r.duration_ns DESC"
    )
    connection.execute(f"COPY ({query}) TO {file(path + '.tmp')} ({OPTIONS})", [record["host"]]).fetchall()
    for table in ("profile_rows", "profile_names", "profile_categories"):
        connection.unregister(table)
    os.replace(path + ".tmp", path)
