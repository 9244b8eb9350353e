"""Evaluation by hand: a model that is called between steps of training, in no loop over a loader of its own (nanoGPT's ``estimate_loss``).

Known as the requests for batches that nobody made, one a model call: what cuts loops over loaders takes it out of the steps around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.requests import Work
from voirkit.analysis.segmentation import OUTSIDE, Kind, Request, StepInterval

_NEVER = np.iinfo(np.int64).max
_OFTEN = 0.5  # of the steps: what is called under no_grad in so many of them is a part of them (a teacher, a target network)


@dataclass(frozen=True)
class Marks:
    """What else tells evaluation from training; nanoseconds, ascending.

    Attributes:
        modes: When a module was switched (``train()``, ``eval()``), and whether to training.
        zeroed_ns: When gradients were set to zero.
        saved_ns: When checkpoints were written.
        annotated: From when to when the script itself says that it evaluates.
    """

    modes: Sequence[tuple[int, bool]]
    zeroed_ns: Array
    saved_ns: Array
    annotated: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Calls:
    """Model calls one after the other that evaluate.

    Attributes:
        start_ns: When each began; the first where the evaluation did.
        end_ns: When the last was over.
    """

    start_ns: list[int]
    end_ns: int


def evaluating(work: Work, marks: Marks, turn: Array, turns: Sequence[StepInterval], trains: frozenset[int], steps_ns: Array) -> Array:
    """Which model calls evaluate, though they lie in no loop that does; shape (n,).

    Args:
        work: What was done, ascending by start.
        marks: What else is known.
        turn: By span of work, the turn in which it lies.
        turns: All turns.
        trains: The episodes in which something is trained.
        steps_ns: When steps that lie in no loop over a loader end, ascending.

    Evaluation is what is called, and not trained on,
    - where the script says so (``voirkit.ai``, ``give(task="eval")``);
    - between ``eval()`` and the next ``train()``;
    - without gradients between two steps: after the work of one and before the next batch is asked for, or before ``zero_grad()``;
    - without gradients at any other place of fewer than half of the steps.
    """
    asked = np.array([t.episode in trains for t in turns] + [True])[turn]  # the last is that of OUTSIDE
    calls = asked & (work.kind == Work.FORWARD) & ~_in_optimizer(work)
    trained = work.of(Work.TRAINS).start_ns
    if len(trained):  # models are called once while they are built, with gradients, before anything is trained
        calls &= ~work.grad | (work.start_ns > trained[0]) | (_annotation(work, marks) >= 0)
    found = calls & (_in_evaluation_mode(work, marks) | (_annotation(work, marks) >= 0))
    quiet = np.flatnonzero(calls & ~found & ~work.grad)
    if not len(quiet):
        return found
    training = work.chosen(_trains(work, found))
    before = np.searchsorted(training.start_ns, work.start_ns[quiet])
    after_call = np.append(training.kind == Work.FORWARD, False)[before - 1]  # its backward is still to come
    next_ns = np.append(training.start_ns, _NEVER)[before]
    inside = turn[quiet] != OUTSIDE
    ends = np.array([_NEVER if t.end_ns is None else t.end_ns for t in turns] + [_NEVER], dtype=np.int64)[turn[quiet]]
    loops = np.array([*(t.start_ns for t in turns if t.episode in trains), _NEVER], dtype=np.int64)
    loop_ns = loops[np.searchsorted(loops[:-1], work.start_ns[quiet])]
    zeroed = np.append(marks.zeroed_ns, _NEVER)[np.searchsorted(marks.zeroed_ns, work.start_ns[quiet])]
    begins = np.minimum(loop_ns, np.where(work.training[quiet], zeroed, _NEVER))
    between = ~after_call & (next_ns >= np.where(inside, ends, begins))
    between |= ~inside & (next_ns == _NEVER)
    step = np.where(inside, turn[quiet], -1 - np.searchsorted(steps_ns, work.start_ns[quiet]))
    n_loops, n_steps = len(np.unique(step[~between & inside])), len(np.unique(step[~between & ~inside]))
    seldom = np.where(inside, n_loops < _OFTEN * (len(loops) - 1), n_steps < _OFTEN * len(steps_ns))
    found[quiet[between | seldom]] = True
    return found


def requests_of_evaluation(
    chosen: Array, work: Work, marks: Marks, turn: Array, turns: Sequence[StepInterval], trains: frozenset[int], number: int
) -> list[Request]:
    """One request where each model call begins, and one that finds nothing where the last of a row of them is over.

    Args:
        chosen: Which model calls evaluate, as ``evaluating`` tells.
        work: As there.
        marks: As there.
        turn: As there.
        turns: As there.
        trains: As there.
        number: Of the first episode; the others count down.
    """
    found: list[Request] = []
    for k, calls in enumerate(_rows(chosen, work, marks, turn, turns, trains)):
        found += [Request(Kind.FETCH, at, at, number - k, number - k) for at in calls.start_ns]
        found.append(Request(Kind.END, calls.end_ns, calls.end_ns, number - k, number - k))
    return found


def _rows(chosen: Array, work: Work, marks: Marks, turn: Array, turns: Sequence[StepInterval], trains: frozenset[int]) -> list[Calls]:
    """The calls that follow each other with no training between; by mode a row lasts from ``eval()`` to ``train()``."""
    calls = np.flatnonzero(chosen)
    trained = _trains(work, chosen)
    starts = work.start_ns[trained]
    ends = np.maximum.accumulate(work.end_ns[trained]) if trained.any() else starts
    loops = np.array([t.start_ns for t in turns if t.episode in trains], dtype=np.int64)
    place = np.stack([np.searchsorted(starts, work.start_ns[calls]), np.searchsorted(loops, work.start_ns[calls], side="right")])
    apart = 1 + np.flatnonzero((np.diff(place) != 0).any(axis=0) | (np.diff(turn[calls]) != 0))
    off, on = _switches(marks)
    by_mode, annotation = _in_evaluation_mode(work, marks), _annotation(work, marks)
    found = []
    for row in np.split(calls, apart):
        first, last, own = int(row[0]), int(row[-1]), turns[turn[row[0]]] if turn[row[0]] != OUTSIDE else None
        begin, end = int(work.start_ns[first]), int(work.end_ns[last])
        if by_mode[first]:
            i = int(np.searchsorted(starts, begin))
            since = max([*_before(on, begin), *ends[:i][-1:].tolist(), *([own.start_ns] if own else []), 0])
            begin = min([begin, *_from(off, since)])
        if by_mode[last] and _from(on, end):
            closed = [own.end_ns] if own is not None and own.end_ns is not None else []
            end = max(end, min([*closed, *(at for times in (on, marks.saved_ns, starts, loops) for at in _from(times, end))]))
        around = [marks.annotated[i] for i in (annotation[first], annotation[last]) if i >= 0]
        begin, end = min([begin, *(at for at, _ in around)]), max([end, *(at for _, at in around)])
        if own is not None:
            begin, end = max(begin, own.start_ns), end if own.end_ns is None else min(end, own.end_ns)
        found.append(Calls([begin, *work.start_ns[row[1:]].tolist()], end))
    return found


def _from(times: Array, at_ns: int) -> list[int]:
    """The first of some times that is not before one; in a list, which is empty if there is none."""
    first: list[int] = times[int(np.searchsorted(times, at_ns)) :][:1].tolist()
    return first


def _before(times: Array, at_ns: int) -> list[int]:
    """The last of some times that is before one; in a list."""
    last: list[int] = times[: int(np.searchsorted(times, at_ns))][-1:].tolist()
    return last


def _switches(marks: Marks) -> tuple[Array, Array]:
    """When modules were switched to evaluation, and when to training."""
    off, on = ([at for at, training in marks.modes if training is wanted] for wanted in (False, True))
    return np.array(off, dtype=np.int64), np.array(on, dtype=np.int64)


def _trains(work: Work, evaluates: Array) -> Array:
    """Which work is a part of training: all but what evaluates, and what is called without gradients."""
    return ~evaluates & ((work.kind != Work.FORWARD) | work.grad)


def _in_optimizer(work: Work) -> Array:
    """What is done in a step of an optimizer, by its closure."""
    steps = work.of(Work.OPTIMIZER)
    at = np.searchsorted(steps.start_ns, work.start_ns, side="right") - 1
    ends = np.append(steps.end_ns, 0)  # the last is that of none
    inside: Array = (at >= 0) & (work.start_ns < ends[at])
    return inside


def _in_evaluation_mode(work: Work, marks: Marks) -> Array:
    """What is done between an ``eval()`` and the next ``train()``, of any module, between which nothing is trained."""
    off, on = _switches(marks)
    if not len(off):
        return np.zeros(len(work.start_ns), dtype=bool)
    trained = work.of(Work.TRAINS).start_ns
    until = np.append(on, _NEVER)[np.searchsorted(on, off)]
    valid = np.append(trained, _NEVER)[np.searchsorted(trained, off)] >= until
    at = np.searchsorted(off, work.start_ns, side="right") - 1
    inside: Array = (at >= 0) & valid[at] & (work.start_ns < until[at])
    return inside & ~work.training


def _annotation(work: Work, marks: Marks) -> Array:
    """In which annotation each lies, of those in which nothing is trained; -1 for none."""
    if not marks.annotated:
        return np.full(len(work.start_ns), -1)
    begins, ends = np.array(marks.annotated, dtype=np.int64).T
    trained = work.of(Work.TRAINS).start_ns
    valid = np.searchsorted(trained, begins) == np.searchsorted(trained, ends)
    at = np.searchsorted(begins, work.start_ns, side="right") - 1
    inside = (at >= 0) & valid[at] & (work.start_ns < ends[at])
    return np.where(inside, at, -1)
