"""To which step and phase of the training a moment belongs, by the records of the steps instrument (docs/steps.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from voirkit.analysis import phases, run_steps
from voirkit.analysis.nesting import Array, parents
from voirkit.analysis.phase_records import Records
from voirkit.analysis.steps import REST
from voirkit.runs.step_phases import PHASES

if TYPE_CHECKING:
    from voirkit.analysis.steps import Steps
    from voirkit.runs.opened import Run

TASKS = ("", "train", "evaluation")  # "": outside of both
_OTHER = len(PHASES) - 1
NONE = -1


@dataclass(frozen=True)
class Pieces:
    """Time cut into pieces, each of one owner: the innermost of the intervals it lies in. What lies in none has owner -1.

    Attributes:
        edges: Where each piece begins, ascending; it lasts until the next, the last one for ever. Shape (n,).
        owners: Of each piece. Shape (n,).
    """

    edges: Array
    owners: Array

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

    Attributes:
        thread: (host, pid, tid) of the thread that trains; None: not known.
    """

    def __init__(self, steps: Steps | None, start_ns: Array, duration_ns: Array, meaning: Array) -> None:
        self.thread: tuple[str, int, int] | None = None
        self._steps, self._task, self._number = _of_steps(steps)
        self._inner, self._outer = pieces(start_ns, duration_ns), pieces(start_ns, duration_ns, outermost=True)
        of_meaning = np.minimum(np.arange(REST), _OTHER)  # the parts of other come after the phases
        self._phase = np.append(of_meaning[meaning], _OTHER)  # that of owner -1 last

    def place(self, start_ns: Array, duration_ns: Array) -> tuple[Array, Array, Array]:
        """Task, step and phase of some calls: those in which at least half of each lies, or, if it is longer, in which it began.

        A call that asks for a batch or steps an optimizer begins before the phase that it is, by the time it takes to record either.
        """
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
        chosen = phases.training_thread(recorded, number)
        if chosen is not None and (rank not in best or len(chosen) > best[rank][0]):
            best[rank] = len(chosen), number, chosen
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
