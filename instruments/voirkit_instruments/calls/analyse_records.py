"""The recorded calls of one rank, as arrays in chunks or as one row per call, with the step and
phase of each call.

Steps and phases come from the records of the steps instrument (docs/steps.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis import phases, run_steps
from voirkit.analysis.nesting import Array, parents
from voirkit.analysis.phases import Records
from voirkit.analysis.steps import REST, Steps
from voirkit.phase_table import PHASES
from voirkit.runs.opened import Run
from voirkit.runs.parquet import CodedSpans, quoted, within

KIND, OPERAND = "call", "operand"
CHUNK = 1_000_000  # calls in a chunk; 300 MB with the arrays computed from them


class Call(NamedTuple):
    """One recorded call, with its rank, thread, step and phase."""

    rank: int
    host: str
    pid: int
    tid: int
    task: str  # kind of step: "train" or "evaluation"; empty outside of steps
    step: int | None  # number of the step, from 0; None outside of steps
    phase: str  # part of the step, one of ``PHASES``
    start_ns: int  # on the host's clock (time.perf_counter_ns)
    duration_ns: int
    self_ns: int  # duration without the recorded calls inside this one
    depth: int  # number of recorded calls around this one
    module: str
    function: str
    object: int  # id of the object whose method was called; 0 if none
    # with keys args, kwargs, returns, error, bound as recorded; keys without content are left out
    arguments: Mapping[str, Any]
    operands: tuple[tuple[str, int], ...]  # the tensors among arguments and results, as (where, id)


def ranks_of(run: Run) -> list[int]:
    """Return the ranks that have recorded calls, in ascending order."""
    return sorted({rank for rank, _, _ in run.recorded(KIND)})


class Recorded:
    """The recorded calls of one rank, or of one ``thread`` (host, pid, tid) of this rank."""

    def __init__(
        self, run: Run, rank: int, when: When, thread: tuple[str, int, int] | None = None
    ) -> None:
        self.rank = rank
        self._when = when
        condition = f"rank = {rank}"
        if thread is not None:
            host, pid, tid = thread
            condition += f" AND host = {quoted(host)} AND pid = {pid} AND tid = {tid}"
        self._spans = CodedSpans(
            run.connection(),
            "the_calls",
            f"SELECT * FROM spans WHERE kind = {quoted(KIND)} AND {condition}",
        )
        self._operands = f"SELECT * FROM spans WHERE kind = {quoted(OPERAND)} AND {condition}"
        self.functions = self._spans.names
        self.texts = self._spans.arguments
        self.threads = self._spans.owners
        self.arguments: Sequence[Mapping[str, Any]] = [json.loads(text) for text in self.texts]

    @property
    def trains(self) -> tuple[str, int, int] | None:
        """(host, pid, tid) of the training thread; None if unknown."""
        return self._when.thread

    @property
    def failed(self) -> Array:
        """Mask over ``arguments``: True if a call with these arguments raised an exception."""
        raised = [isinstance(values.get("error"), str) for values in self.arguments]
        return np.array(raised, dtype=bool)

    def chunks(self, chunk: int = CHUNK) -> Iterator[Calls]:
        """Yield each call once, in chunks ordered by start, so that memory does not grow with the
        run. A call that is still running when its chunk ends comes with the chunk in which it
        ends."""
        going: list[Calls] = []
        for low, high in self._spans.ranges(chunk):
            calls = joined([*going, self._between(low, high)])
            order = np.lexsort((-calls.duration_ns, calls.start_ns, calls.thread))
            calls = nested(calls.select(order))
            if high is None:
                is_over = np.ones(len(calls), dtype=bool)
            else:
                is_over = calls.start_ns + calls.duration_ns <= high
            going = [calls.select(~is_over)]
            yield calls.select(is_over)

    def _between(self, low: int | None, high: int | None) -> Calls:
        selection = (
            "start_ns, duration_ns, n.code AS function, a.code AS args, o.code AS thread,"
            " coalesce(value, 0) AS object"
        )
        columns = self._spans.fetch(selection, within(low, high))
        start, duration = columns["start_ns"], columns["duration_ns"]
        task, step, phase = self._when.place(start, duration)
        return Calls(
            **columns,
            self_ns=duration,
            depth=np.full(len(start), -1),
            inside_itself=np.zeros(len(start), dtype=bool),
            task=task,
            step=step,
            phase=phase,
        )

    def operands(self, calls: Calls) -> list[tuple[tuple[str, int], ...]]:
        """Return the tensors of each call, as (where, id). They are looked up by the thread and the
        start of the call."""
        if not len(calls):
            return []
        low, high = int(calls.start_ns.min()), int(calls.start_ns.max()) + 1
        rows = self._spans.rows(
            "SELECT o.code, start_ns, value, json_extract_string(args, '$.at') FROM"
            f" ({self._operands} AND {within(low, high)}) JOIN the_calls_owners o USING (host, pid,"
            " tid)"
        )
        by_call: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for thread, start, value, where in rows:
            by_call.setdefault((thread, start), []).append((where, value))
        keys = zip(calls.thread.tolist(), calls.start_ns.tolist(), strict=True)
        return [tuple(by_call.get(key, ())) for key in keys]

    def rows(self, chunk: int = CHUNK // 4) -> Iterator[Call]:
        """Yield the calls one by one, in the order of ``chunks``."""
        for calls in self.chunks(chunk):
            operands = self.operands(calls)
            columns = (
                calls.thread,
                calls.task,
                calls.step,
                calls.phase,
                calls.start_ns,
                calls.duration_ns,
                calls.self_ns,
                calls.depth,
                calls.function,
                calls.object,
                calls.args,
            )
            rows = zip(*(column.tolist() for column in columns), operands, strict=True)
            for thread, task, step, phase, *times_and_depth, function, owner, args, tensors in rows:
                step_number = None if step < 0 else step
                where = (*self.threads[thread], TASKS[task], step_number, PHASES[phase])
                content = (*self.functions[function], owner, self.arguments[args], tensors)
                yield Call._make((self.rank, *where, *times_and_depth, *content))


@dataclass(frozen=True)
class Calls:
    """Calls of one rank, as arrays of shape (n,). They are ordered by thread, then by start; of
    calls with the same start, the longer comes first."""

    thread: Array  # ``thread``, ``function`` and ``args`` are indices into lists of ``Recorded``
    start_ns: Array
    duration_ns: Array
    function: Array
    args: Array
    object: Array  # id of the object whose method was called; 0 if none
    self_ns: Array  # duration without the recorded calls inside
    depth: Array  # number of recorded calls around the call; -1: not computed yet
    # True if the call is inside another call of the same function, whose duration includes it
    inside_itself: Array
    task: Array  # index into ``TASKS``
    step: Array  # number of the step, from 0; -1 outside of steps
    phase: Array  # index into ``PHASES``

    def __len__(self) -> int:
        return len(self.start_ns)

    def select(self, selection: Array) -> Calls:
        """Return the calls at the given indices, or where the given mask is true."""
        return joined([self], selection)


def joined(parts: list[Calls], selection: Array | None = None) -> Calls:
    """Concatenate the parts, and keep only the selected calls (None: all)."""
    columns = {}
    for field in fields(Calls):
        column = np.concatenate([getattr(part, field.name) for part in parts])
        columns[field.name] = column if selection is None else column[selection]
    return Calls(**columns)


def nested(calls: Calls) -> Calls:
    """Return the calls with ``self_ns``, ``depth`` and ``inside_itself`` filled in.

    Before, a new call has ``self_ns`` = ``duration_ns`` and depth -1. A call that was still running
    at the end of the previous chunk has the values that this function gave it then.
    """
    edges = np.flatnonzero(np.diff(calls.thread)) + 1
    caller = np.full(len(calls), -1)
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(calls)], strict=True):
        in_thread = parents(calls.start_ns[low:high], calls.duration_ns[low:high])
        caller[low:high] = np.where(in_thread >= 0, in_thread + low, -1)
    depth = np.zeros(len(calls), dtype=np.int64)
    inside_itself = calls.inside_itself.copy()
    outer, inner = caller, np.flatnonzero(caller >= 0)
    while len(inner):
        depth[inner] += 1
        inside_itself[inner] |= calls.function[inner] == calls.function[outer[inner]]
        outer = np.where(outer >= 0, caller[outer], -1)
        inner = inner[outer[inner] >= 0]
    self_ns = _without_inner(calls, caller)
    return replace(calls, self_ns=self_ns, depth=depth, inside_itself=inside_itself)


def _without_inner(calls: Calls, caller: Array) -> Array:
    """Return the duration of each call without the new calls directly inside it, in ns."""
    # only new calls: those of the previous chunk were already subtracted from the calls around them
    is_new = (caller >= 0) & (calls.depth < 0)
    inner_ns = np.bincount(
        caller[is_new], weights=calls.duration_ns[is_new], minlength=len(calls)
    ).astype(np.int64)
    return np.maximum(calls.self_ns - inner_ns[: len(calls)], 0)


TASKS = ("", "train", "evaluation")  # "": outside of steps
_OTHER = len(PHASES) - 1
NONE = -1


@dataclass(frozen=True)
class Pieces:
    """Time cut into pieces. The owner of each piece is the innermost interval that contains it, or
    -1 if no interval does."""

    # start of each piece, ascending; a piece ends where the next one begins, and the last piece has
    # no end. Shape (n,).
    edges: Array
    owners: Array  # owner of each piece: index of an interval, or -1. Shape (n,).

    def during(self, start_ns: Array, duration_ns: Array) -> Array:
        """Return the owner of the piece that contains at least half of each interval; -2 if no
        piece does."""
        end_ns = start_ns + duration_ns
        piece = np.searchsorted(self.edges, start_ns + duration_ns // 2, side="right") - 1
        piece_ends = np.append(self.edges[1:], np.iinfo(np.int64).max)
        index = np.maximum(piece, 0)
        from_ns = np.maximum(start_ns, self.edges[index])
        until_ns = np.minimum(end_ns, piece_ends[index])
        is_before_all = piece < 0
        owners = np.where(is_before_all, NONE, self.owners[index])
        holds_half = 2 * (until_ns - from_ns) >= duration_ns
        return np.where(is_before_all | holds_half, owners, -2)

    def owners_at(self, moment_ns: Array) -> Array:
        """Return the owner of the piece that contains each moment; ``NONE`` before the first
        piece."""
        piece = np.searchsorted(self.edges, moment_ns, side="right") - 1
        return np.where(piece < 0, NONE, self.owners[np.maximum(piece, 0)])


def pieces(start_ns: Array, duration_ns: Array, outermost: bool = False) -> Pieces:
    """Cut time at the starts and ends of nested intervals; owners are the intervals' indices.

    Args:
        start_ns: Ascending; of intervals with the same start, the longer comes first.
        duration_ns: Same shape.
        outermost: Leave out intervals that lie inside another one.
    """
    outer = parents(start_ns, duration_ns)
    indices: Array = np.arange(len(start_ns))
    if outermost:
        indices = indices[outer < 0]
    if not len(indices):
        return Pieces(np.full(1, np.iinfo(np.int64).min), np.full(1, NONE))
    starts = start_ns[indices]
    ends = starts + duration_ns[indices]
    edges = np.concatenate((ends, starts))
    owners = np.concatenate((outer[indices], indices))
    # Order of starts and ends at the same moment: first the ends, inner intervals before outer
    # ones; then the starts, outer intervals before inner ones.
    by_length = np.concatenate((-starts, -ends))
    is_start = np.repeat([0, 1], len(indices))
    order = np.lexsort((by_length, is_start, edges))
    return Pieces(edges[order], owners[order])


class When:
    """The steps and phases of one rank, in which calls are looked up.

    Args:
        steps: The steps of the rank; None if unknown.
        start_ns: Start of each phase of the training thread, ascending; of phases with the same
            start, the longer comes first.
        duration_ns: Same shape.
        meaning: Kind of each phase (see ``phases.meanings``). Same shape.
    """

    def __init__(
        self, steps: Steps | None, start_ns: Array, duration_ns: Array, meaning: Array
    ) -> None:
        # (host, pid, tid) of the training thread; None if unknown
        self.thread: tuple[str, int, int] | None = None
        self._steps, self._task, self._number = _step_pieces(steps)
        self._inner = pieces(start_ns, duration_ns)
        self._outer = pieces(start_ns, duration_ns, outermost=True)
        # phase of each meaning: meanings after those of the phases are parts of "other"
        of_meaning = np.minimum(np.arange(REST), _OTHER)
        self._phase = np.append(of_meaning[meaning], _OTHER)  # the last entry is for owner -1

    def place(self, start_ns: Array, duration_ns: Array) -> tuple[Array, Array, Array]:
        """Return the task, step and phase of each call: the ones that contain at least half of the
        call or, if none does, the ones in which it begins.

        A call that requests a batch, or steps an optimizer, begins shortly before its own phase:
        recording the start of the call takes time.
        """
        owner: Array = self._steps.during(start_ns, duration_ns)
        owner = np.where(owner == -2, self._steps.owners_at(start_ns), owner)
        phase: Array = self._inner.during(start_ns, duration_ns)
        phase = np.where(phase == -2, self._outer.during(start_ns, duration_ns), phase)
        phase = np.where(phase == -2, self._inner.owners_at(start_ns), phase)
        return self._task[owner], self._number[owner], self._phase[phase]


def _step_pieces(steps: Steps | None) -> tuple[Pieces, Array, Array]:
    """Return the pieces of the steps, and the task and number for each owner; last for owner -1."""
    if steps is None:
        empty = np.zeros(0, dtype=np.int64)
        return pieces(empty, empty), np.zeros(1, dtype=np.int64), np.full(1, NONE)
    train, evaluation = steps.train, steps.evaluation
    n_train, n_evaluation = len(train), len(evaluation)
    start = np.concatenate((train.start_ns, evaluation.start_ns)).astype(np.int64)
    duration = np.concatenate((train.end_ns, evaluation.end_ns)).astype(np.int64) - start
    task = np.repeat([1, 2], [n_train, n_evaluation])
    number = np.concatenate((np.arange(n_train), np.arange(n_evaluation)))
    order = np.lexsort((-duration, start))
    tasks = np.append(task[order], 0)
    numbers = np.append(number[order], NONE)
    return pieces(start[order], duration[order]), tasks, numbers


def when(run: Run) -> dict[int, When]:
    """Return the steps and phases of each rank that recorded any."""
    recorded = run_steps.records(run)
    steps = {rank.rank: rank.steps for rank in run_steps.read_steps(run)}
    # by rank: index of the process with most spans in its training thread, and these spans
    longest: dict[int, tuple[int, Array]] = {}
    for number, (rank, _, _) in enumerate(recorded.processes):
        threads = phases.training_threads(recorded, number)
        _, most_spans = longest.get(rank, (-1, ()))
        if threads and len(threads[0]) > len(most_spans):
            longest[rank] = number, threads[0]
    by_rank = {}
    for rank, (number, spans) in longest.items():
        by_rank[rank] = _when_of_thread(recorded, number, spans, steps.get(rank))
    for rank in set(steps) - set(by_rank):
        by_rank[rank] = unknown(steps[rank])
    return by_rank


def unknown(steps: Steps | None = None) -> When:
    """Return a ``When`` for a rank without recorded phases."""
    empty = np.zeros(0, dtype=np.int64)
    return When(steps, empty, empty, empty)


def _when_of_thread(recorded: Records, process: int, spans: Array, steps: Steps | None) -> When:
    meaning = phases.meanings(recorded.names)[recorded.name[spans]]
    is_phase = meaning >= 0
    phase_spans = spans[is_phase]
    place = When(
        steps, recorded.start_ns[phase_spans], recorded.duration_ns[phase_spans], meaning[is_phase]
    )
    _, host, pid = recorded.processes[process]
    place.thread = host, pid, int(recorded.tid[spans[0]])
    return place
