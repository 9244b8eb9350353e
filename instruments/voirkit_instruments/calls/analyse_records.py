"""The calls of one rank as columns of numbers, in chunks, and as rows for those who write them out one by one; and the step and phase of
each, by the records of the steps instrument (docs/steps.md).
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
from voirkit.runs.opened import Run
from voirkit.runs.parquet import CodedSpans, quoted, within
from voirkit.runs.summary import PHASES

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
    phase: str  # "wait", "transfer", "forward", "backward", "optimizer" or "other"
    start_ns: int  # on the host's clock (time.perf_counter_ns)
    duration_ns: int
    self_ns: int  # without the recorded calls in it
    depth: int  # how many recorded calls it lies in
    module: str
    function: str
    object: int  # id of the object whose method it is; 0 of none
    arguments: Mapping[str, Any]  # args, kwargs, returns, error, bound as recorded; keys without content are left out
    operands: tuple[tuple[str, int], ...]  # the tensors among arguments and results, as (where, id)


def ranks_of(run: Run) -> list[int]:
    """The ranks that have recorded calls."""
    return sorted({rank for rank, _, _ in run.recorded(KIND)})


class Recorded:
    """The calls that one rank, or only its ``thread`` (host, pid, tid), has recorded."""

    def __init__(self, run: Run, rank: int, when: When, thread: tuple[str, int, int] | None = None) -> None:
        self.rank, self._when = rank, when
        which = f"rank = {rank}"
        if thread is not None:
            which += f" AND host = {quoted(thread[0])} AND pid = {thread[1]} AND tid = {thread[2]}"
        self._spans = CodedSpans(run.connection(), "the_calls", f"SELECT * FROM spans WHERE kind = {quoted(KIND)} AND {which}")
        self._operands = f"SELECT * FROM spans WHERE kind = {quoted(OPERAND)} AND {which}"
        self.functions, self.texts, self.threads = self._spans.names, self._spans.arguments, self._spans.owners
        self.arguments: Sequence[Mapping[str, Any]] = [json.loads(text) for text in self.texts]

    @property
    def trains(self) -> tuple[str, int, int] | None:
        """The thread that trains; None: not known."""
        return self._when.thread

    @property
    def failed(self) -> Array:
        """By index of arguments, whether a call with them raised an exception."""
        return np.array([isinstance(one.get("error"), str) for one in self.arguments], dtype=bool)

    def chunks(self, chunk: int = CHUNK) -> Iterator[Calls]:
        """The calls, each once, in chunks by the time at which they began; memory does not grow with the run. A call that goes on when its
        chunk ends is in the one in which it ends."""
        going: list[Calls] = []
        for low, high in self._spans.ranges(chunk):
            calls = joined([*going, self._between(low, high)])
            calls = nested(calls.select(np.lexsort((-calls.duration_ns, calls.start_ns, calls.thread))))
            over = np.ones(len(calls), dtype=bool) if high is None else calls.start_ns + calls.duration_ns <= high
            going = [calls.select(~over)]
            yield calls.select(over)

    def _between(self, low: int | None, high: int | None) -> Calls:
        coded = "start_ns, duration_ns, n.code AS function, a.code AS args, o.code AS thread, coalesce(value, 0) AS object"
        columns = self._spans.fetch(coded, within(low, high))
        start, duration = columns["start_ns"], columns["duration_ns"]
        task, step, phase = self._when.place(start, duration)
        new = {"self_ns": duration, "depth": np.full(len(start), -1), "inside_itself": np.zeros(len(start), dtype=bool)}
        return Calls(**columns, **new, task=task, step=step, phase=phase)

    def operands(self, calls: Calls) -> list[tuple[tuple[str, int], ...]]:
        """The tensors of each of some calls, as (where, id); they are found by the time at which their call began, on its thread."""
        if not len(calls):
            return []
        low, high = int(calls.start_ns.min()), int(calls.start_ns.max()) + 1
        rows = self._spans.rows(
            "SELECT o.code, start_ns, value, json_extract_string(args, '$.at') FROM "
            f"({self._operands} AND {within(low, high)}) JOIN the_calls_owners o USING (host, pid, tid)"
        )
        known: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for thread, start, value, where in rows:
            known.setdefault((thread, start), []).append((where, value))
        return [tuple(known.get(key, ())) for key in zip(calls.thread.tolist(), calls.start_ns.tolist(), strict=True)]

    def rows(self, chunk: int = CHUNK // 4) -> Iterator[Call]:
        """The calls one by one, ordered as ``chunks`` orders them."""
        for calls in self.chunks(chunk):
            operands = self.operands(calls)
            columns = (calls.thread, calls.task, calls.step, calls.phase, calls.start_ns, calls.duration_ns, calls.self_ns, calls.depth)
            more = (calls.function, calls.object, calls.args)
            for at, row in enumerate(zip(*(column.tolist() for column in (*columns, *more)), strict=True)):
                thread, task, step, phase, start, duration, own, depth, function, its_object, args = row
                what = (*self.functions[function], its_object, self.arguments[args], operands[at])
                when = (TASKS[task], None if step < 0 else step, PHASES[phase])
                yield Call._make((self.rank, *self.threads[thread], *when, start, duration, own, depth, *what))


@dataclass(frozen=True)
class Calls:
    """Calls of one rank; arrays of shape (n,). Ascending by thread, start, and of the same start the longer first."""

    thread: Array  # this, function and args are indices into the tables of ``Recorded``
    start_ns: Array
    duration_ns: Array
    function: Array
    args: Array
    object: Array  # id of the object whose method it is; 0 of none
    self_ns: Array  # time without the calls in it that were recorded
    depth: Array  # how many recorded calls it lies in
    inside_itself: Array  # whether one of those is of the same function: its time is counted by that one
    task: Array  # index into ``TASKS``
    step: Array  # its number, from 0; -1 outside
    phase: Array  # index into ``PHASES``

    def __len__(self) -> int:
        return len(self.start_ns)

    def select(self, chosen: Array) -> Calls:
        """Those of these indices, or where a mask is true."""
        return joined([self], chosen)


def joined(parts: list[Calls], chosen: Array | None = None) -> Calls:
    """Several one after the other; only the chosen ones."""
    whole = {field.name: np.concatenate([getattr(one, field.name) for one in parts]) for field in fields(Calls)}
    return Calls(**(whole if chosen is None else {key: values[chosen] for key, values in whole.items()}))


def nested(calls: Calls) -> Calls:
    """The same with ``self_ns``, ``depth`` and ``inside_itself``. A call that is new comes with ``self_ns`` = ``duration_ns`` and depth -1.
    One that went on when the chunk before ended comes again as this has left it."""
    edges = np.flatnonzero(np.diff(calls.thread)) + 1
    found = np.full(len(calls), -1)
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(calls)], strict=True):
        own = parents(calls.start_ns[low:high], calls.duration_ns[low:high])
        found[low:high] = np.where(own >= 0, own + low, -1)
    depth, again = np.zeros(len(calls), dtype=np.int64), calls.inside_itself.copy()
    outer, left = found, np.flatnonzero(found >= 0)
    while len(left):
        depth[left] += 1
        again[left] |= calls.function[left] == calls.function[outer[left]]
        outer = np.where(outer >= 0, found[outer], -1)
        left = left[outer[left] >= 0]
    return replace(calls, self_ns=_without_inner(calls, found), depth=depth, inside_itself=again)


def _without_inner(calls: Calls, outer: Array) -> Array:
    new = (outer >= 0) & (calls.depth < 0)  # those that come again were taken from their callers before
    inner = np.bincount(outer[new], weights=calls.duration_ns[new], minlength=len(calls)).astype(np.int64)
    return np.maximum(calls.self_ns - inner[: len(calls)], 0)


TASKS = ("", "train", "evaluation")  # "": outside of both
_OTHER = len(PHASES) - 1
NONE = -1


@dataclass(frozen=True)
class Pieces:
    """Time cut into pieces, each of one owner: the innermost of the intervals it lies in. What lies in none has owner -1."""

    edges: Array  # where each piece begins, ascending; it lasts until the next, the last one for ever. Shape (n,).
    owners: Array  # of each piece. Shape (n,).

    def during(self, start_ns: Array, duration_ns: Array) -> Array:
        """The owner of the piece that holds at least half of each interval; -2 if none does."""
        piece = np.searchsorted(self.edges, start_ns + duration_ns // 2, side="right") - 1
        ends = np.append(self.edges[1:], np.iinfo(np.int64).max)
        known = np.maximum(piece, 0)
        held = np.minimum(start_ns + duration_ns, ends[known]) - np.maximum(start_ns, self.edges[known])
        owners = np.where(piece < 0, NONE, self.owners[known])
        return np.where((piece < 0) | (2 * held >= duration_ns), owners, -2)

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
    which: Array = np.arange(len(start_ns))
    if outermost:
        which = which[outer < 0]
    if not len(which):
        return Pieces(np.full(1, np.iinfo(np.int64).min), np.full(1, NONE))
    starts = start_ns[which]
    ends = starts + duration_ns[which]
    at = np.concatenate((ends, starts))
    owners = np.concatenate((outer[which], which))
    # Of what happens at the same moment: first the ends, the inner ones before the outer ones, then the starts, the outer ones first.
    order = np.lexsort((np.concatenate((-starts, -ends)), np.repeat([0, 1], len(which)), at))
    return Pieces(at[order], owners[order])


class When:
    """Steps and phases of one rank.

    Args:
        steps: Its steps; None: not known.
        start_ns: Of the phases of the thread that trains, ascending, of two that start together the longer first.
        duration_ns: Same shape.
        meaning: What each is (``steps.MEANING``). Same shape.
    """

    def __init__(self, steps: Steps | None, start_ns: Array, duration_ns: Array, meaning: Array) -> None:
        self.thread: tuple[str, int, int] | None = None  # (host, pid, tid) of the thread that trains; None: not known
        self._steps, self._task, self._number = _of_steps(steps)
        self._inner, self._outer = pieces(start_ns, duration_ns), pieces(start_ns, duration_ns, outermost=True)
        of_meaning = np.minimum(np.arange(REST), _OTHER)  # the parts of other come after the phases
        self._phase = np.append(of_meaning[meaning], _OTHER)  # that of owner -1 last

    def place(self, start_ns: Array, duration_ns: Array) -> tuple[Array, Array, Array]:
        """Task, step and phase of some calls: those in which at least half of each lies, or, if it is longer, in which it began. A call
        that asks for a batch or steps an optimizer begins before the phase that it is, by the time it takes to record either."""
        owner: Array = self._steps.during(start_ns, duration_ns)
        owner = np.where(owner == -2, self._steps.owners_at(start_ns), owner)
        phase: Array = self._inner.during(start_ns, duration_ns)
        phase = np.where(phase == -2, self._outer.during(start_ns, duration_ns), phase)
        phase = np.where(phase == -2, self._inner.owners_at(start_ns), phase)
        return self._task[owner], self._number[owner], self._phase[phase]


def _of_steps(steps: Steps | None) -> tuple[Pieces, Array, Array]:
    """The pieces of steps, with task and number of each owner; those of owner -1 last."""
    if steps is None:
        nothing = np.zeros(0, dtype=np.int64)
        return pieces(nothing, nothing), np.zeros(1, dtype=np.int64), np.full(1, NONE)
    train, evaluation = steps.train, steps.evaluation
    start = np.concatenate((train.start_ns, evaluation.start_ns)).astype(np.int64)
    lasting = np.concatenate((train.time_ns + _loops_inside(steps), evaluation.time_ns)).astype(np.int64)
    task = np.repeat([1, 2], [len(train), len(evaluation)])
    number = np.concatenate((np.arange(len(train)), np.arange(len(evaluation))))
    order = np.lexsort((-lasting, start))
    return pieces(start[order], lasting[order]), np.append(task[order], 0), np.append(number[order], NONE)


def _loops_inside(steps: Steps) -> Array:
    """How long the evaluation lasted that lies within each step of training, whose time is without it."""
    train, evaluation = steps.train, steps.evaluation
    found = np.zeros(len(train), dtype=np.int64)
    if not len(train) or not len(evaluation):
        return found
    order = np.argsort(evaluation.start_ns, kind="stable")
    start, time = evaluation.start_ns[order], evaluation.time_ns[order]
    step = np.searchsorted(train.start_ns, start, side="right") - 1
    first = np.diff(step, prepend=-2) != 0
    held = (step >= 0) & (start <= (train.start_ns + train.time_ns)[np.maximum(step, 0)])
    begins = np.flatnonzero(first)
    inside = np.repeat(held[begins], np.diff(np.append(begins, len(step))))  # a loop whose first batch lies in the step
    np.add.at(found, step[inside], time[inside])
    return found


def when(run: Run) -> dict[int, When]:
    """What is known of each rank that recorded phases."""
    recorded = run_steps.records(run)
    steps = {rank.rank: rank.steps for rank in run_steps.read_steps(run)}
    best: dict[int, tuple[int, int, Array]] = {}
    for number, (rank, _, _) in enumerate(recorded.processes):
        trainings = phases.training_threads(recorded, number)
        if trainings and (rank not in best or len(trainings[0]) > best[rank][0]):
            best[rank] = len(trainings[0]), number, trainings[0]
    found = {rank: _of_thread(recorded, number, chosen, steps.get(rank)) for rank, (_, number, chosen) in best.items()}
    for rank in set(steps) - set(found):
        found[rank] = unknown(steps[rank])
    return found


def unknown(steps: Steps | None = None) -> When:
    """Where no phases were recorded."""
    nothing = np.zeros(0, dtype=np.int64)
    return When(steps, nothing, nothing, nothing)


def _of_thread(recorded: Records, process: int, chosen: Array, steps: Steps | None) -> When:
    meaning = phases.meanings(recorded.names)[recorded.name[chosen]]
    known: Sequence[int] = chosen[meaning >= 0]
    found = When(steps, recorded.start_ns[known], recorded.duration_ns[known], meaning[meaning >= 0])
    _, host, pid = recorded.processes[process]
    found.thread = host, pid, int(recorded.tid[chosen[0]])
    return found
