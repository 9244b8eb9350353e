"""Attribution of the operators and kernels of a recording to training phases, their totals, and
their export into the trace of the run.

An operator of the training thread belongs to the phase that the thread is in. An operator of
another thread (autograd's) belongs to the phase that the training thread is in at that time, which
is backward, as it waits. A kernel belongs to the phase in which it was launched.

The input is the trace that torch's profiler writes (Chrome's format, Kineto; checked with the
output of torch 2.15). It is read event by event, since the file may be larger than memory. Its
times are converted to the run's clock.
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
from voirkit.phase_table import PHASES
from voirkit.runs.opened import Run
from voirkit.runs.parquet import COLUMNS, OPTIONS, file
from voirkit.runs.trace_files import clean
from voirkit.trace.layout import folder_of

OPERATOR, ANNOTATION, RUNTIME, KERNEL, MEMORY = range(5)
_ON_HOST = (OPERATOR, ANNOTATION, RUNTIME)
CATEGORIES = ("operator", "annotation", "runtime", "kernel", "memory")
_CATEGORY = {
    "cpu_op": OPERATOR,
    "user_annotation": ANNOTATION,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "hip_runtime": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME,
    "kernel": KERNEL,
    "gpu_memcpy": KERNEL,
    "gpu_memset": KERNEL,
    "cpu_instant_event": MEMORY,
}
MOST_EVENTS = 4_000_000
_CHUNK = 1 << 20
# limit in characters of one event and of the text around the events: a small compressed file may
# unpack to any size
_LARGEST = 1 << 24
_US = 1000
_BASE = re.compile(r'"baseTimeNanoseconds":\s*(\d+)')


class Events:
    """The events of one trace; arrays of shape (n,), in the order of the file.

    Attributes:
        category: ``OPERATOR``, ``ANNOTATION`` (a named part of the program or of torch),
            ``RUNTIME`` (a call that launches work on a device), ``KERNEL`` (this work) or
            ``MEMORY``.
        name: Index into ``names``.
        tid: Thread id; for a kernel its stream.
        device: Device of a kernel or memory event, otherwise -1.
        linked: Number shared by a kernel and the call that launched it, otherwise -1.
        bytes: For memory events: bytes allocated, negative if freed.
    """

    def __init__(self, path: str) -> None:
        """Read a file; ``path`` may end in ``.gz``. Raises OSError: the file cannot be read;
        ValueError: it is not a trace of torch's profiler, or is incomplete."""
        columns = {
            key: array("q") for key in ("category", "name", "tid", "device", "linked", "bytes")
        }
        starts_us, durations_us = array("d"), array("d")
        names: dict[str, int] = {}
        self.left_out = 0  # number of events beyond ``MOST_EVENTS``
        self._base_ns = 0
        for event in self._read(path):
            category = _CATEGORY.get(event.get("cat", ""))
            if category is None or event.get("ph") not in ("X", "i"):
                continue
            if len(starts_us) >= MOST_EVENTS:
                self.left_out += 1
                continue
            starts_us.append(event["ts"])
            durations_us.append(event.get("dur", 0))
            args = event.get("args") or {}
            device = args.get("device", args.get("Device Id"))
            columns["category"].append(category)
            columns["name"].append(names.setdefault(event["name"], len(names)))
            columns["tid"].append(_whole(event.get("tid")))
            columns["device"].append(_whole(device))
            columns["linked"].append(_whole(args.get("correlation")))
            columns["bytes"].append(_whole(args.get("Bytes"), 0))
        arrays: dict[str, Array] = {
            key: np.frombuffer(values, np.int64) for key, values in columns.items()
        }
        self.category = arrays["category"]
        self.name = arrays["name"]
        self.tid = arrays["tid"]
        self.device = arrays["device"]
        self.linked = arrays["linked"]
        self.bytes = arrays["bytes"]
        # wall clock, nanoseconds
        self.start_ns: Array = _nanoseconds(starts_us) + self._base_ns
        self.duration_ns: Array = _nanoseconds(durations_us)
        self.names = list(names)  # ``name`` has indices into this list

    def _read(self, path: str) -> Iterator[dict[str, Any]]:
        open_file: Any = gzip.open if path.endswith(".gz") else open
        with open_file(path, "rt", encoding="utf-8", errors="replace") as file:
            head = ""
            while '"traceEvents"' not in head:
                chunk = file.read(_CHUNK)
                if not chunk or len(head) > _LARGEST:
                    raise ValueError("it is no trace of torch's profiler")
                head += chunk
            before, _, behind = head.partition('"traceEvents"')
            first = behind.index("[") + 1
            tail = yield from _objects(behind[first:], file)
            match = _BASE.search(before) or _BASE.search(tail + file.read(_LARGEST))
            self._base_ns = int(match[1]) if match else 0


def _objects(text: str, file: IO[str]) -> Any:
    """Yield the objects of a JSON list whose beginning has been read into ``text``. Return the text
    after the list."""
    decode = json.JSONDecoder().raw_decode
    place = 0
    while True:
        while place < len(text) and text[place] in " \n\r\t,":
            place += 1
        if place < len(text) and text[place] == "]":
            return text[place:]
        try:
            item, place = decode(text, place)
        except ValueError:
            chunk = file.read(_CHUNK)
            if not chunk or len(text) - place > _LARGEST:
                raise ValueError("it is torn") from None
            text = text[place:] + chunk
            place = 0
        else:
            yield item


def _whole(value: Any, otherwise: int = -1) -> int:
    """Return a value if it is an integer of at most 64 bits, otherwise ``otherwise``."""
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    return otherwise


def _nanoseconds(microseconds: array[float]) -> Array:
    return np.round(np.frombuffer(microseconds, np.float64) * 1000).astype(np.int64)


class Clock(NamedTuple):
    """Converter from the wall clock of torch's profiler to the run's clock."""

    offset_ns: int  # added to a wall-clock time, gives a time of the run's clock
    error_ns: int  # largest error of a converted time, estimated from the marks

    def __call__(self, wall_ns: Array) -> Array:
        """Convert times to the run's clock."""
        return wall_ns + self.offset_ns


def find_clock(seen_ns: Array, marks: Sequence[Sequence[int]]) -> Clock:
    """Find the clock offset that agrees with all marks.

    Args:
        seen_ns: Times of the marks in the profiler's trace, ascending; shape (n,).
        marks: For each mark, the run's clock before and after it.

    Raises:
        ValueError: There are no marks, or the numbers differ.

    A mark lies between its two readings of the run's clock, so each mark limits the offset from
    both sides. The range that all marks allow gives the offset and its error. If the marks
    contradict each other (one clock was adjusted meanwhile), the median offset counts, and the
    error is the largest deviation from it.
    """
    if not len(seen_ns) or len(seen_ns) != len(marks):
        raise ValueError(f"of {len(marks)} marks {len(seen_ns)} were recorded")
    seen_ns = np.asarray(seen_ns, np.int64)
    is_cut = not (seen_ns % _US).any()
    step_ns = _US if is_cut else 1  # torch 2.1 truncates times to microseconds
    offsets_ns = np.asarray(marks, np.int64) - seen_ns[:, None]
    low = int(offsets_ns[:, 0].max()) - (step_ns - 1)
    high = int(offsets_ns[:, 1].min())
    if low <= high:
        return Clock((low + high) // 2, (high - low + 1) // 2 + step_ns)
    middles_ns = offsets_ns.mean(axis=1)
    offset_ns = int(np.median(middles_ns))
    return Clock(offset_ns, int(np.abs(middles_ns - offset_ns).max()) + step_ns)


MOST = 40  # operators of a phase, and kernels, that get a row each; the others share one row
REMAINDER = "(others)"
_SUMS = ("calls", "cpu_s", "device_s", "self_cpu_s", "self_device_s", "bytes", "freed")
OTHER = PHASES.index("other")
EVALUATION = len(PHASES)
VOIRKITS_OWN = len(PHASES) + 1
# the last name stands for operators that voirkit's instruments call to inspect tensors
NAMES = (*PHASES, "evaluation", "voirkit")

Row = dict[str, Any]


class AttributedEvents:
    """The events of a recording with their parents, phases and own times; arrays of shape (n,).

    Args:
        events: The events.
        start_ns: Start of each event on the run's clock.
        phases: The phases of the training thread.
        evaluation: (start, end) of the steps that are not training.

    Attributes:
        parent: Index of the operator, annotation or call that directly encloses each event. For a
            memory event this is the operator that allocated it, for a kernel the call that launched
            it. -1 if there is none.
        self_ns: Time without the events inside, and without time in other phases (the step of LBFGS
            calls forward and backward). 0 for memory events.
        device_ns: Time of the kernels launched in the event and in the events inside it.
        self_device_ns: Time of the kernels launched by calls directly in the event.
    """

    def __init__(
        self,
        events: Events,
        start_ns: Array,
        phases: PhasesOfThread,
        evaluation: Sequence[tuple[int, int]],
    ) -> None:
        n = len(start_ns)
        self.parent = np.full(n, -1, np.int64)
        self.phase = phases.phase_at(start_ns, evaluation)  # index into ``NAMES``
        self.self_ns = events.duration_ns.copy()
        self.device_ns = np.zeros(n, np.int64)
        self.self_device_ns = np.zeros(n, np.int64)
        on_host = np.flatnonzero(np.isin(events.category, _ON_HOST))
        memory = np.flatnonzero(events.category == MEMORY)
        for tid in np.unique(events.tid[on_host]).tolist():
            calls = on_host[events.tid[on_host] == tid]
            calls = calls[np.lexsort((-events.duration_ns[calls], start_ns[calls]))]
            self._nest(calls, start_ns, events.duration_ns)
            self._subtract_other_phases(calls, start_ns, events.duration_ns, phases, evaluation)
            allocations = memory[events.tid[memory] == tid]
            self._attribute_memory(allocations, calls, start_ns, events.duration_ns)
        self.self_ns[memory] = 0
        self._attribute_kernels(events)

    def _nest(self, calls: Array, start_ns: Array, duration_ns: Array) -> None:
        """Set the parents and own times of a thread's calls. ``calls``: their indices, ascending by
        start, outer before inner."""
        inside = parents(start_ns[calls], duration_ns[calls])
        self.parent[calls] = np.where(inside >= 0, calls[inside], -1)
        self.self_ns[calls] = without_children(duration_ns[calls], inside)

    def _subtract_other_phases(
        self,
        calls: Array,
        start_ns: Array,
        duration_ns: Array,
        phases: PhasesOfThread,
        evaluation: Sequence[tuple[int, int]],
    ) -> None:
        """Subtract from the own time of each call the time that the thread spent in other phases
        than at the call's start."""
        call_start_ns = start_ns[calls]
        call_end_ns = call_start_ns + duration_ns[calls]
        edges_ns = phases.edges_ns(evaluation)
        changes_ns = np.unique(np.concatenate((call_start_ns, call_end_ns, edges_ns)))
        call = innermost(call_start_ns, call_end_ns, changes_ns[:-1])
        phase = phases.phase_at(changes_ns[:-1], evaluation)
        is_elsewhere = (call >= 0) & (phase != self.phase[calls][call])
        lasted_ns = np.diff(changes_ns)[is_elsewhere]
        elsewhere_ns = np.bincount(call[is_elsewhere], lasted_ns, len(calls)).astype(np.int64)
        self.self_ns[calls] = np.maximum(self.self_ns[calls] - elsewhere_ns, 0)

    def _attribute_memory(
        self, allocations: Array, calls: Array, start_ns: Array, duration_ns: Array
    ) -> None:
        call_start_ns = start_ns[calls]
        call_end_ns = call_start_ns + np.maximum(duration_ns[calls], 1)
        call = innermost(call_start_ns, call_end_ns, start_ns[allocations])
        self.parent[allocations] = np.where(call >= 0, calls[call], -1)

    def _attribute_kernels(self, events: Events) -> None:
        kernels = np.flatnonzero(events.category == KERNEL)
        starters = np.flatnonzero((events.category == RUNTIME) & (events.linked >= 0))
        if not len(kernels) or not len(starters):
            return
        starters = starters[np.argsort(events.linked[starters], kind="stable")]
        links = events.linked[starters]
        place = np.searchsorted(links, events.linked[kernels])
        place = np.minimum(place, len(starters) - 1)
        is_linked = links[place] == events.linked[kernels]
        kernels = kernels[is_linked]
        calls = starters[place[is_linked]]
        self.parent[kernels] = calls
        self.phase[kernels] = self.phase[calls]
        lasted_ns = events.duration_ns[kernels]
        holders = np.where(self.parent[calls] >= 0, self.parent[calls], calls)
        np.add.at(self.self_device_ns, holders, lasted_ns)
        holders = calls
        while len(holders):
            np.add.at(self.device_ns, holders, lasted_ns)
            is_inside = self.parent[holders] >= 0
            holders = self.parent[holders[is_inside]]
            lasted_ns = lasted_ns[is_inside]


class PhasesOfThread:
    """The recorded phases of the training thread. ``spans``: indices of the thread's records,
    ascending by start, outer before inner."""

    def __init__(self, records: Records, spans: Array) -> None:
        meaning = meanings(records.names)[records.name[spans]]
        is_phase = meaning >= 0
        spans, meaning = spans[is_phase], meaning[is_phase]
        self._start_ns = records.start_ns[spans]
        self._end_ns = self._start_ns + records.duration_ns[spans]
        self._phase = np.where(meaning == VOIRKIT, VOIRKITS_OWN, np.minimum(meaning, OTHER))

    def phase_at(self, at_ns: Array, evaluation: Sequence[tuple[int, int]] = ()) -> Any:
        """Return the phase that the thread is in at each instant, as an index into ``NAMES``."""
        span = innermost(self._start_ns, self._end_ns, at_ns)
        phase = np.where(span >= 0, self._phase[span] if len(self._phase) else OTHER, OTHER)
        for start_ns, end_ns in evaluation:
            phase[(at_ns >= start_ns) & (at_ns < end_ns)] = EVALUATION
        return phase

    def times_ns(
        self, begin_ns: int, end_ns: int, evaluation: Sequence[tuple[int, int]] = ()
    ) -> dict[str, int]:
        """Return the nanoseconds that the thread spent in each phase of ``NAMES`` between two
        instants."""
        edges_ns = self.edges_ns(evaluation)
        between_ns = edges_ns[(edges_ns > begin_ns) & (edges_ns < end_ns)]
        edges_ns = np.unique(np.concatenate(([begin_ns, end_ns], between_ns)))
        phases = self.phase_at(edges_ns[:-1], evaluation)
        lasted_ns = np.bincount(phases, np.diff(edges_ns), len(NAMES))
        return {name: int(duration_ns) for name, duration_ns in zip(NAMES, lasted_ns, strict=True)}

    def edges_ns(self, evaluation: Sequence[tuple[int, int]] = ()) -> Array:
        """Return the instants at which the phase may change, unordered."""
        evaluation_ns = np.array(evaluation, dtype=np.int64).reshape(-1)
        return np.concatenate((self._start_ns, self._end_ns, evaluation_ns))


class _Column(NamedTuple):
    """A quantity that is summed over events; arrays of shape (n,)."""

    mask: Array  # mask of the events that have the quantity
    amounts: Array
    # index of the event that each amount counts for; None: the event itself
    holder: Array | None = None


def figures(events: Events, attributed: AttributedEvents, mask: Array) -> dict[str, Any]:
    """Return the totals of the events in a mask of shape (n,)."""
    columns = _columns_of_rows(events, attributed, mask)
    phases: dict[str, dict[str, Any]] = {}
    for number, phase in enumerate(NAMES):
        in_phase = attributed.phase == number
        sums = {}
        for key, column in columns.items():
            places = np.flatnonzero(column.mask & in_phase)
            holders = places if column.holder is None else column.holder[places]
            sums[key] = np.bincount(
                events.name[holders], weights=column.amounts[places], minlength=len(events.names)
            )
        rows = {}
        for i in np.flatnonzero(sums["calls"]).tolist():
            row: dict[str, float] = {key: sums[key][i].item() for key in _SUMS}
            for key in row:
                if not key.endswith("_s"):
                    row[key] = int(row[key])
            rows[events.names[i]] = row
        if rows:
            phases[phase] = {"operators": rows}
    return {"phases": phases, "kernels": _kernel_rows(events, attributed, mask)}


def _columns_of_rows(
    events: Events, attributed: AttributedEvents, mask: Array
) -> dict[str, _Column]:
    on_host = np.isin(events.category, _ON_HOST) & mask
    allocations = (events.category == MEMORY) & mask & (events.device < 0)
    has_holder = allocations & (attributed.parent >= 0)
    holder = np.maximum(attributed.parent, 0)
    columns = {"calls": _Column(on_host, np.ones(len(mask)))}
    for key, time_ns in (
        ("cpu_s", events.duration_ns),
        ("device_s", attributed.device_ns),
        ("self_cpu_s", attributed.self_ns),
        ("self_device_s", attributed.self_device_ns),
    ):
        columns[key] = _Column(on_host, time_ns / 1e9)
    for key, n_bytes in (("bytes", events.bytes), ("freed", -events.bytes)):
        columns[key] = _Column(has_holder, np.maximum(n_bytes, 0), holder)
    return columns


def _kernel_rows(events: Events, attributed: AttributedEvents, mask: Array) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    kernels = np.flatnonzero((events.category == KERNEL) & mask)
    names = events.name[kernels].tolist()
    phases = attributed.phase[kernels].tolist()
    durations_ns = events.duration_ns[kernels].tolist()
    for name, number, duration_ns in zip(names, phases, durations_ns, strict=True):
        row = rows.setdefault(events.names[name], _no_kernel())
        phase = NAMES[number]
        row["calls"] += 1
        row["device_s"] += duration_ns / 1e9
        row["phases"][phase] = row["phases"].get(phase, 0.0) + duration_ns / 1e9
    return rows


def _no_kernel() -> Row:
    return {"calls": 0, "device_s": 0.0, "phases": {}}


def merge_figures(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals of several recordings or ranks."""
    phases: dict[str, dict[str, dict[str, Row]]] = {}
    kernels: dict[str, Row] = {}
    for part in parts:
        for phase, of_phase in part["phases"].items():
            rows = phases.setdefault(phase, {"operators": {}})["operators"]
            for name, row in of_phase["operators"].items():
                _add(rows.setdefault(name, dict.fromkeys(row, 0)), row)
        for name, row in part["kernels"].items():
            _add_kernel(kernels.setdefault(name, _no_kernel()), row)
    return {
        "phases": {phase: phases[phase] for phase in NAMES if phase in phases},
        "kernels": kernels,
    }


def _add(sums: dict[str, Any], row: Mapping[str, Any]) -> None:
    for key, value in row.items():
        sums[key] = sums.get(key, 0) + value


def _add_kernel(sums: Row, row: Mapping[str, Any]) -> None:
    sums["calls"] += row["calls"]
    sums["device_s"] += row["device_s"]
    _add(sums["phases"], row["phases"])


def _largest_first(item: tuple[str, Mapping[str, float]]) -> float:
    row = item[1]
    return -max(row["self_cpu_s"], row["self_device_s"])


def shorten(document: dict[str, Any]) -> dict[str, Any]:
    """Reduce a document to the rows that take most time, longest first, and sum up the remaining
    rows in one. The document is changed and returned."""
    for phase in document["phases"].values():
        rows = sorted(phase["operators"].items(), key=_largest_first)
        operators = dict(rows[:MOST])
        for _, row in rows[MOST:]:
            _add(operators.setdefault(REMAINDER, {}), row)
        phase["operators"] = operators
        for key in ("calls", "self_cpu_s", "self_device_s", "bytes", "freed"):
            phase[key] = sum(row[key] for _, row in rows)
    kernels = sorted(document["kernels"].items(), key=lambda item: -item[1]["device_s"])
    document["kernels"] = dict(kernels[:MOST])
    for _, row in kernels[MOST:]:
        _add_kernel(document["kernels"].setdefault(REMAINDER, _no_kernel()), row)
    return document


def put_into_trace(
    run: Run,
    record: Mapping[str, Any],
    recording: Mapping[str, Any],
    events: Events,
    attributed: AttributedEvents,
    start_ns: Array,
    mask: Array,
) -> None:
    """Write the events in a mask into the trace, so that exports and queries have them beside the
    phases, on the same clock.

    The kind ``operator`` has the categories ``operator``, ``annotation`` and ``runtime``, in the
    calling thread. The kind ``kernel`` is in the thread that launched the kernel, with ``device``
    and ``stream`` as arguments. Each recording has its own file: writing it again changes nothing.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    import duckdb

    rank = int(record["rank"])
    stem = os.path.basename(recording["file"]).partition(".")[0]
    is_kernel = events.category == KERNEL
    for kind, of_kind in (("operator", ~is_kernel), ("kernel", is_kernel)):
        rows = np.flatnonzero(mask & of_kind)
        if not len(rows):
            continue
        folder = os.path.join(folder_of(run.path), f"kind={kind}", f"rank={rank}")
        path = os.path.join(folder, f"profile-{stem}.parquet")
        columns = _columns(events, attributed, start_ns, rows)
        try:
            os.makedirs(folder, exist_ok=True)
            _write(run, path, kind, record, columns, events.names)
        except duckdb.Error as exc:
            raise OSError(f"{path} cannot be written: {exc}".partition("\n")[0]) from None


def _columns(
    events: Events, attributed: AttributedEvents, start_ns: Array, rows: Array
) -> dict[str, Array]:
    """Return the columns for the trace. ``rows``: indices of events."""
    parent = attributed.parent[rows]
    category, stream = events.category[rows], events.tid[rows]
    has_caller = (category == KERNEL) & (parent >= 0)
    tid = np.where(has_caller, events.tid[parent], stream)
    return {
        "start_ns": start_ns[rows],
        "duration_ns": events.duration_ns[rows],
        "name": events.name[rows],
        "category": category,
        "tid": tid,
        "stream": stream,
        "device": events.device[rows],
    }


def _write(
    run: Run,
    path: str,
    kind: str,
    record: Mapping[str, Any],
    columns: dict[str, Array],
    names: list[str],
) -> None:
    tables: dict[str, dict[str, Array]] = {
        "profile_rows": {key: np.ascontiguousarray(values) for key, values in columns.items()},
        "profile_names": _text_table([clean(name) for name in names]),
        "profile_categories": _text_table(CATEGORIES),
    }
    connection = run.connection()
    for table, values in tables.items():
        connection.register(table, values)
    args = "NULL"
    if kind == "kernel":
        args = "concat('{\"device\":', r.device, ',\"stream\":', r.stream, '}')"
    expressions = {
        "start_ns": "r.start_ns",
        "duration_ns": "r.duration_ns",
        "category": "c.text",
        "name": "n.text",
        "args": args,
        "host": "?",
        "pid": str(int(record["pid"])),
        "tid": "r.tid",
        "kind": f"'{kind}'",
        "rank": str(int(record["rank"])),
    }
    selected = ", ".join(
        f"CAST({expressions.get(key, 'NULL')} AS {type_}) AS {key}"
        for key, type_ in COLUMNS.items()
    )
    query = (
        f"SELECT {selected} FROM profile_rows r JOIN profile_names n ON n.code = r.name "
        "JOIN profile_categories c ON c.code = r.category ORDER BY r.start_ns, r.duration_ns DESC"
    )
    copy = f"COPY ({query}) TO {file(path + '.tmp')} ({OPTIONS})"
    connection.execute(copy, [record["host"]]).fetchall()
    for table in tables:
        connection.unregister(table)
    os.replace(path + ".tmp", path)


def _text_table(texts: Sequence[str | None]) -> dict[str, Array]:
    return {"code": np.arange(len(texts)), "text": np.array(texts, dtype=object)}
