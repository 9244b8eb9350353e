"""The calls of one rank as columns of numbers, in chunks, and as rows for those who write them out
one by one; and the step and phase of each, by the records of the steps instrument (docs/steps.md).
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
CHUNK = 1_000_000  # calls at a time: 300 MB with what is made of them


class Call(NamedTuple):
    """One call."""

    rank: int
    host: str
    pid: int
    tid: int
    task: str  # "train" or "evaluation": in what kind of step; empty outside of both
    step: int | None  # its number, from 0; None outside
    phase: str  # of the step (``PHASES``)
    start_ns: int  # on the host's clock (time.perf_counter_ns)
    duration_ns: int
    self_ns: int  # without the recorded calls in it
    depth: int  # how many recorded calls it lies in
    module: str
    function: str
    object: int  # id of the object whose method it is; 0 of none
    # args, kwargs, returns, error, bound as recorded; keys without content are left out
    arguments: Mapping[str, Any]
    operands: tuple[tuple[str, int], ...]  # the tensors among arguments and results, as (where, id)


def ranks_of(run: Run) -> list[int]:
    """The ranks that have recorded calls."""
    return sorted({rank for rank, _, _ in run.recorded(KIND)})


class Recorded:
    """The calls that one rank, or only its ``thread`` (host, pid, tid), has recorded."""

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
        """The thread that trains; None: not known."""
        return self._when.thread

    @property
    def failed(self) -> Array:
        """By index of arguments, whether a call with them raised an exception."""
        raised = [isinstance(values.get("error"), str) for values in self.arguments]
        return np.array(raised, dtype=bool)

    def chunks(self, chunk: int = CHUNK) -> Iterator[Calls]:
        """The calls, each once, in chunks by the time at which they began; memory does not grow
        with the run. A call that goes on when its chunk ends is in the one in which it ends."""
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
        """The tensors of each of some calls, as (where, id); they are found by the time at which
        their call began, on its thread."""
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
        """The calls one by one, ordered as ``chunks`` orders them."""
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
    """Calls of one rank; arrays of shape (n,). Ascending by thread, start, and of the same start
    the longer first."""

    thread: Array  # this, function and args are indices into the tables of ``Recorded``
    start_ns: Array
    duration_ns: Array
    function: Array
    args: Array
    object: Array  # id of the object whose method it is; 0 of none
    self_ns: Array  # time without the calls in it that were recorded
    depth: Array  # how many recorded calls it lies in
    # whether one of those is of the same function: its time is counted by that one
    inside_itself: Array
    task: Array  # index into ``TASKS``
    step: Array  # its number, from 0; -1 outside
    phase: Array  # index into ``PHASES``

    def __len__(self) -> int:
        return len(self.start_ns)

    def select(self, selection: Array) -> Calls:
        """Those of these indices, or where a mask is true."""
        return joined([self], selection)


def joined(parts: list[Calls], selection: Array | None = None) -> Calls:
    """Several one after the other; only the selected ones."""
    columns = {}
    for field in fields(Calls):
        column = np.concatenate([getattr(part, field.name) for part in parts])
        columns[field.name] = column if selection is None else column[selection]
    return Calls(**columns)


def nested(calls: Calls) -> Calls:
    """The same with ``self_ns``, ``depth`` and ``inside_itself``. A call that is new comes with
    ``self_ns`` = ``duration_ns`` and depth -1. One that went on when the chunk before ended comes
    again as this has left it."""
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
    """The time in each call without the new calls that it made."""
    # those that come again were taken from their callers before
    is_new = (caller >= 0) & (calls.depth < 0)
    inner_ns = np.bincount(
        caller[is_new], weights=calls.duration_ns[is_new], minlength=len(calls)
    ).astype(np.int64)
    return np.maximum(calls.self_ns - inner_ns[: len(calls)], 0)


TASKS = ("", "train", "evaluation")  # "": outside of both
_OTHER = len(PHASES) - 1
NONE = -1


@dataclass(frozen=True)
class Pieces:
    """Time cut into pieces, each of one owner: the innermost of the intervals it lies in. What lies
    in none has owner -1."""

    # where each piece begins, ascending; it lasts until the next, the last one for ever. Shape
    # (n,).
    edges: Array
    owners: Array  # of each piece. Shape (n,).

    def during(self, start_ns: Array, duration_ns: Array) -> Array:
        """The owner of the piece that holds at least half of each interval; -2 if none does."""
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
        """The owner of the piece in which each moment lies."""
        piece = np.searchsorted(self.edges, moment_ns, side="right") - 1
        return np.where(piece < 0, NONE, self.owners[np.maximum(piece, 0)])


def pieces(start_ns: Array, duration_ns: Array, outermost: bool = False) -> Pieces:
    """The pieces of nested intervals, with their indices as owners.

    Args:
        start_ns: Ascending; of two that start together the longer first.
        duration_ns: Same shape.
        outermost: Leave out those that lie in others.
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
    # Of what happens at the same moment: first the ends, the inner ones before the outer ones, then
    # the starts, the outer ones first.
    by_length = np.concatenate((-starts, -ends))
    is_start = np.repeat([0, 1], len(indices))
    order = np.lexsort((by_length, is_start, edges))
    return Pieces(edges[order], owners[order])


class When:
    """Steps and phases of one rank.

    Args:
        steps: Its steps; None: not known.
        start_ns: Of the phases of the thread that trains, ascending, of two that start together the
            longer first.
        duration_ns: Same shape.
        meaning: What each is (``steps.MEANING``). Same shape.
    """

    def __init__(
        self, steps: Steps | None, start_ns: Array, duration_ns: Array, meaning: Array
    ) -> None:
        # (host, pid, tid) of the thread that trains; None: not known
        self.thread: tuple[str, int, int] | None = None
        self._steps, self._task, self._number = _step_pieces(steps)
        self._inner = pieces(start_ns, duration_ns)
        self._outer = pieces(start_ns, duration_ns, outermost=True)
        of_meaning = np.minimum(np.arange(REST), _OTHER)  # the parts of other come after the phases
        self._phase = np.append(of_meaning[meaning], _OTHER)  # that of owner -1 last

    def place(self, start_ns: Array, duration_ns: Array) -> tuple[Array, Array, Array]:
        """Task, step and phase of some calls: those in which at least half of each lies, or, if it
        is longer, in which it began. A call that asks for a batch or steps an optimizer begins
        before the phase that it is, by the time it takes to record either."""
        owner: Array = self._steps.during(start_ns, duration_ns)
        owner = np.where(owner == -2, self._steps.owners_at(start_ns), owner)
        phase: Array = self._inner.during(start_ns, duration_ns)
        phase = np.where(phase == -2, self._outer.during(start_ns, duration_ns), phase)
        phase = np.where(phase == -2, self._inner.owners_at(start_ns), phase)
        return self._task[owner], self._number[owner], self._phase[phase]


def _step_pieces(steps: Steps | None) -> tuple[Pieces, Array, Array]:
    """The pieces of steps, with task and number of each owner; those of owner -1 last."""
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
    """Steps and phases of each rank that recorded phases."""
    recorded = run_steps.records(run)
    steps = {rank.rank: rank.steps for rank in run_steps.read_steps(run)}
    # by rank, the process that recorded most phases, and the spans of its thread that trains
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
    """Steps alone, where no phases were recorded."""
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
