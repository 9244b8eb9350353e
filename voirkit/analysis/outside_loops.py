"""Training and evaluation that lie in no loop over a loader: known as requests for batches that nobody made.

Steps of training are cut at those of the optimizer that leads there. Evaluation by hand, a model that is called between steps (nanoGPT's
``estimate_loss``), has one request a model call. What cuts loops over loaders cuts these too, or takes them out of the steps around them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.segmentation import OUTSIDE, Kind, Request, StepInterval, Work
from voirkit.analysis.work_times import NEVER, first_from


@dataclass(frozen=True)
class Led:
    """Steps of one optimizer, one after the other, that no loop of a loader interrupts."""

    start_ns: Array  # when each step of the optimizer began; shape (n,), ascending
    end_ns: Array  # when the last step of any optimizer ended before the next of them: optimizers that take turns are one step
    after_ns: int  # when what trained before them (another optimizer, a loop over a loader) was over
    is_rest: bool  # whether a loop over a loader came before: steps without a model call of their own are then what remained of it
    ahead: int = 0  # how many batches that loop had read ahead: as many walks through graphs after it are what remained of it, too


def steps_outside(work: Work, turn: Array, turns: Sequence[StepInterval], trains: frozenset[int], since_ns: int = 0) -> list[Led]:
    """The steps of training that lie in no loop over a loader.

    Args:
        work: What was done, ascending by start.
        turn: By span of work, the turn in which it lies.
        trains: The episodes in which something is trained.
        since_ns: What was done before is left out.

    Where no step of an optimizer was seen at all (it is compiled, or written by hand), the walks through graphs stand for them.
    """
    kind = Work.OPTIMIZER if (work.kind == Work.OPTIMIZER).any() else Work.BACKWARD
    steps = np.flatnonzero((work.kind == kind) & (turn == OUTSIDE) & (work.start_ns >= since_ns))
    if not len(steps):
        return []
    loops = [t for t in turns if t.episode in trains]
    begins = np.array([t.start_ns for t in loops], dtype=np.int64)
    ends = np.maximum.accumulate([t.start_ns if t.end_ns is None else t.end_ns for t in loops] or [0])
    loop = np.searchsorted(begins, work.start_ns[steps], side="right")
    found = []
    for n in np.unique(loop).tolist():
        inside = steps[loop == n]
        after = int(ends[n - 1]) if n else 0
        stretches = leading_steps(inside, work.optimizer[inside])
        for i, leading in enumerate(stretches):
            before = inside[inside < leading[0]]
            until = stretches[i + 1][0] if i + 1 < len(stretches) else inside[-1] + 1
            cuts = inside[np.searchsorted(inside, [*leading[1:], until]) - 1]
            after = int(work.end_ns[before[-1]]) if len(before) else after
            is_rest = bool(n) and not i
            ahead = _read_ahead(work, turn, turns, loops[n - 1].episode) if is_rest else 0
            found.append(Led(work.start_ns[leading], work.end_ns[cuts], after, is_rest, ahead))
    return found


def leading_steps(steps: Array, optimizer: Array) -> list[Array]:
    """The steps of the first optimizer; then, if others go on more often than ever between two of its steps, those of the first of them.

    Where another optimizer steps much more often between two of them than it usually does, it trains alone there: what follows is looked
    at anew.
    """
    stretches = []
    while len(steps):
        leading = np.flatnonzero(optimizer == optimizer[0])
        inside, behind = optimizer[: leading[-1]], optimizer[leading[-1] + 1 :]
        between = {
            which: np.diff(np.searchsorted(np.flatnonzero(inside == which), leading))
            for which in np.unique(inside).tolist()
            if which != optimizer[0]
        }
        gaps = [gap for own in between.values() if (gap := _first_takeover(own)) is not None]
        if gaps:
            stretches.append(steps[leading[: min(gaps) + 1]])
            next_ = leading[min(gaps)] + 1
        else:
            stretches.append(steps[leading])
            others, left = np.unique(behind, return_counts=True)
            most = [int(between[which].max()) if which in between else 0 for which in others.tolist()]
            more = others[left > np.array(most, dtype=np.int64)]
            if not len(more):
                break
            next_ = leading[-1] + 1 + int(np.argmax(np.isin(behind, more)))
        steps, optimizer = steps[next_:], optimizer[next_:]
    return stretches


def _first_takeover(between: Array) -> int | None:
    """After which of the leading steps another optimizer steps much more often than usual before the next, or for the only time of many;
    None for never.

    Optimizers that take turns are a cycle, also where one steps several times, or not in each: they do so more than twice.
    """
    busy = between[between > 0]
    if len(busy) > 2 or 2 <= len(busy) == len(between):
        most = 2 * float(np.median(busy))
    elif len(busy) == 1 and len(between) > 2:
        most = 0.0
    else:
        most = 1.0
    much = np.flatnonzero(between > most)
    return int(much[0]) if len(much) else None


def _read_ahead(work: Work, turn: Array, turns: Sequence[StepInterval], episode: int) -> int:
    """How many batches a loop asks for before it trains on the first, and so trains on when it has no more (transformers' Trainer)."""
    own = np.flatnonzero([t.episode == episode for t in turns])
    works = np.isin(own, turn[(work.kind == Work.BACKWARD) | ((work.kind == Work.FORWARD) & work.grad)])
    return int(np.argmax(works)) if works.any() else 0


def requests_of_steps(led: Sequence[Led], work: Work, number: int) -> list[Request]:
    """One request where each step begins, which is where the optimizer's step before it ends; one that finds nothing at the end.

    Args:
        work: Model calls and walks through graphs in no loop over a loader, without evaluation.
        number: Of the first episode; the others count down.

    The first step begins with the first work. A model call before it that nothing was trained on is not told from that.
    """
    found: list[Request] = []
    for steps in led:
        since = int(np.searchsorted(work.start_ns, steps.after_ns))
        walks = np.flatnonzero(work.kind[since:] == Work.BACKWARD)[: steps.ahead]
        begun = work.start_ns[since + (int(walks[-1]) + 1 if len(walks) else 0) :][:1]
        first = int(begun[0]) if len(begun) else int(np.iinfo(np.int64).max)
        rest = int(np.searchsorted(steps.end_ns, first)) if steps.is_rest else 0
        if rest == len(steps.end_ns):
            continue
        edges = [min(first, int(steps.start_ns[rest])), *steps.end_ns[rest:].tolist()]
        found += [Request(Kind.FETCH, at, at, number, number) for at in edges[:-1]]
        found.append(Request(Kind.END, edges[-1], edges[-1], number, number))
        number -= 1
    return found


# evaluation by hand


_OFTEN = 0.5  # of the steps: what is called under no_grad in so many of them is a part of them (a teacher, a target network)


@dataclass(frozen=True)
class Marks:
    """What else tells evaluation from training; nanoseconds, ascending."""

    modes: Sequence[tuple[int, bool]]  # when a module was switched (``train()``, ``eval()``), and whether to training
    zeroed_ns: Array  # when gradients were set to zero
    saved_ns: Array  # when checkpoints were written
    annotated: Sequence[tuple[int, int]] = ()  # from when to when the script itself says that it evaluates
    fetched_ns: Sequence[int] = ()  # when loaders were asked for batches that came
    asked_ns: Sequence[int] = ()  # when anything was asked of loaders


@dataclass(frozen=True)
class Calls:
    """Model calls one after the other that evaluate."""

    start_ns: list[int]  # when each began; the first where the evaluation did
    end_ns: int  # when the last was over


def evaluating(work: Work, marks: Marks, turn: Array, turns: Sequence[StepInterval], trains: frozenset[int], steps_ns: Array) -> Array:
    """Which model calls evaluate, though they lie in no loop that does, and which backward passes belong to them; shape (n,).

    Args:
        work: What was done, ascending by start.
        turn: By span of work, the turn in which it lies.
        trains: The episodes in which something is trained.
        steps_ns: When steps that lie in no loop over a loader end, ascending.

    Evaluation is what is called, and not trained on,
    - where the script says so (``voirkit.ai``, ``give(task="eval")``);
    - between ``eval()`` and the next ``train()``;
    - without gradients between two steps: after the work of one and before the next batch is asked for, or before ``zero_grad()``;
    - without gradients at any other place of fewer than half of the steps.
    Gradients that are taken where models evaluate by the first two rules are a part of that (forces, attacks), unless an optimizer steps.
    """
    asked = np.array([t.episode in trains for t in turns] + [True])[turn]  # the last is that of OUTSIDE
    calls = asked & (work.kind == Work.FORWARD) & ~_in_optimizer(work)
    trained = work.of(Work.TRAINS).start_ns
    is_declared = declared_evaluation(work, marks)
    if len(trained):  # models are called once while they are built, with gradients, before anything is trained
        is_differentiated = np.append((is_declared & (work.kind == Work.BACKWARD))[1:], False)
        calls &= ~work.grad | (work.start_ns > trained[0]) | (_annotation(work, marks) >= 0) | is_differentiated
    found = (calls | (asked & (work.kind == Work.BACKWARD))) & is_declared
    quiet = np.flatnonzero(calls & ~found & ~work.grad)
    if not len(quiet):
        return found
    training = work.chosen(_trains(work, found | ~asked))  # without loops that evaluate, whose models may take gradients
    before = np.searchsorted(training.start_ns, work.start_ns[quiet])
    after_call = np.append(training.kind == Work.FORWARD, False)[before - 1]  # its backward is still to come
    next_ns = np.append(training.start_ns, NEVER)[before]
    inside = turn[quiet] != OUTSIDE
    ends = np.array([NEVER if t.end_ns is None else t.end_ns for t in turns] + [NEVER], dtype=np.int64)[turn[quiet]]
    loops = np.array([*(t.start_ns for t in turns if t.episode in trains), NEVER], dtype=np.int64)
    loop_ns = loops[np.searchsorted(loops[:-1], work.start_ns[quiet])]
    zeroed = first_from(_zeroed(work, marks), work.start_ns[quiet])
    begins = np.minimum(loop_ns, np.where(work.training[quiet], zeroed, NEVER))
    between = ~after_call & (next_ns >= np.where(inside, ends, begins))
    between |= ~inside & (next_ns == NEVER)
    step = np.where(inside, turn[quiet], -1 - np.searchsorted(steps_ns, work.start_ns[quiet]))
    n_loops, n_steps = len(np.unique(step[~between & inside])), len(np.unique(step[~between & ~inside]))
    seldom = np.where(inside, n_loops < _OFTEN * (len(loops) - 1), n_steps < _OFTEN * len(steps_ns))
    found[quiet[between | seldom]] = True
    return found


def requests_of_evaluation(
    chosen: Array,
    work: Work,
    marks: Marks,
    turn: Array,
    turns: Sequence[StepInterval],
    trains: frozenset[int],
    number: int,
    requests: Sequence[Request] = (),
) -> tuple[list[Request], set[int]]:
    """One request where each model call begins, and one that finds nothing where the last of a row of them is over; and the iterators that
    gave their batches for these calls.

    Args:
        chosen: Which work evaluates, as ``evaluating`` tells, whose arguments the others are.
        number: Of the first episode; the others count down.
        requests: What loaders were asked for: a batch that is drawn for an evaluation is a part of it.
    """
    found: list[Request] = []
    rows, drawn = _with_their_draws(_rows(chosen, work, marks, turn, turns, trains), requests, work, turns, trains)
    for k, calls in enumerate(rows):
        found += [Request(Kind.FETCH, at, at, number - k, number - k) for at in calls.start_ns]
        found.append(Request(Kind.END, calls.end_ns, calls.end_ns, number - k, number - k))
    return found, drawn


def _with_their_draws(
    rows: list[Calls], requests: Sequence[Request], work: Work, turns: Sequence[StepInterval], trains: frozenset[int]
) -> tuple[list[Calls], set[int]]:
    """The rows, each from the draws of the batches that it evaluates (``u, v = next(held_out)`` between two steps), and the iterators that
    gave them.

    Those are the last that was asked for before it, with no work between, of a loader that most often is asked for that.
    """
    asks = sorted((r for r in requests if r.kind in (Kind.ITER, Kind.FETCH)), key=lambda r: r.start_ns)
    asks_ns = [r.start_ns for r in asks]
    opening_ns = {turn.start_ns for turn in turns if turn.episode in trains}  # a step's own batch
    ends_ns = np.maximum.accumulate(work.end_ns) if len(work.end_ns) else work.end_ns
    drawn: list[list[Request]] = []
    for row in rows:
        begin_ns = row.start_ns[0]
        before = int(np.searchsorted(work.start_ns, begin_ns))
        worked_ns = int(ends_ns[before - 1]) if before else 0
        own: list[Request] = []
        at = bisect_left(asks_ns, begin_ns) - 1
        while at >= 0 and asks[at].start_ns >= worked_ns and asks_ns[at] not in opening_ns:
            if own and asks[at].loader != own[0].loader:
                break
            own.append(asks[at])
            at -= 1
        drawn.append(own)
    of_evaluation = Counter(r.loader for own in drawn for r in own if r.kind is Kind.FETCH)
    in_all = Counter(r.loader for r in asks if r.kind is Kind.FETCH)
    whole: list[Calls] = []
    iterators: set[int] = set()
    for row, own in zip(rows, drawn, strict=True):
        if own and 2 * of_evaluation[own[0].loader] >= in_all[own[0].loader]:
            iterators |= {request.episode for request in own}
            row = replace(row, start_ns=[own[-1].start_ns, *row.start_ns[1:]])
        whole.append(row)
    return whole, iterators


def _rows(chosen: Array, work: Work, marks: Marks, turn: Array, turns: Sequence[StepInterval], trains: frozenset[int]) -> list[Calls]:
    """The calls that follow each other with no training between; by mode a row lasts from ``eval()`` to ``train()``."""
    calls = np.flatnonzero(chosen & (work.kind == Work.FORWARD))
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
        for gradients in range(last + 1, len(chosen)):
            if not chosen[gradients] or work.kind[gradients] != Work.BACKWARD:
                break
            end = max(end, int(work.end_ns[gradients]))
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
    inside: Array = _step_around(work, work.start_ns)[0]
    return inside


def _step_around(work: Work, at_ns: Array) -> tuple[Array, Array, Array]:
    """Of each time whether it lies in a step of an optimizer, and from when to when that is."""
    steps = work.of(Work.OPTIMIZER)
    at = np.searchsorted(steps.start_ns, at_ns, side="right") - 1
    starts, ends = np.append(steps.start_ns, 0)[at], np.append(steps.end_ns, 0)[at]  # the last are those of none
    return (at >= 0) & (at_ns < ends), starts, ends


def _zeroed(work: Work, marks: Marks) -> Array:
    """When gradients were set to zero for the work that follows. A closure (LBFGS) does it in the optimizer's step, which begins it."""
    walks = work.of(Work.BACKWARD).start_ns
    inside, starts, ends = _step_around(work, marks.zeroed_ns)
    by_closure = inside & (first_from(walks, marks.zeroed_ns) < ends)
    return np.sort(np.where(by_closure, starts, marks.zeroed_ns))


def declared_evaluation(work: Work, marks: Marks) -> Array:
    """What is done where the script says that it evaluates, by the mode of its models or by an annotation; shape (n,)."""
    declared: Array = _in_evaluation_mode(work, marks) | (_annotation(work, marks) >= 0)
    return declared


def _in_evaluation_mode(work: Work, marks: Marks) -> Array:
    """What is done between an ``eval()`` and the next ``train()``, of any module, between which nothing is trained.

    Gradients may be taken there (forces, attacks), if no optimizer steps, and for at most half of the backward passes elsewhere, or in at
    most half of the steps with such, or at the end of steps, or where no optimizer steps any more: what is done so in the middle of each
    step is a part of it (adversarial training).
    """
    off, on = _switches(marks)
    if not len(off):
        return np.zeros(len(work.start_ns), dtype=bool)
    until = first_from(on, off)
    walks, updates = work.of(Work.BACKWARD).start_ns, work.of(Work.OPTIMIZER).start_ns
    has_walk, has_update = (first_from(times, off) < until for times in (walks, updates))
    differentiates = has_walk & ~has_update
    region = np.searchsorted(off, walks, side="right") - 1
    trains = (region < 0) | (walks >= until[region])
    n_steps, n_steps_trained = (len(np.unique(np.searchsorted(updates, at))) for at in (off[differentiates], walks[trains]))
    is_seldom = np.count_nonzero(differentiates) <= _OFTEN * np.count_nonzero(trains) or n_steps <= _OFTEN * n_steps_trained
    is_seldom &= len(updates) > 0
    evaluates = ~has_walk | is_seldom
    if len(updates):
        is_unused = first_from(updates, off) == NEVER
        evaluates |= is_unused | _at_end_of_step(work, marks, off, until)
    valid = ~has_update & evaluates
    at = np.searchsorted(off, work.start_ns, side="right") - 1
    inside: Array = (at >= 0) & valid[at] & (work.start_ns < until[at])
    return inside & (~work.training | (work.kind == Work.BACKWARD))


def _at_end_of_step(work: Work, marks: Marks, begins_ns: Array, ends_ns: Array) -> Array:
    """Which stretches of time lie behind an optimizer's step, with at most calls without gradients between, and before anything is asked of
    a loader or the end of all work; of a training of a single step, also those before it."""
    trained = work.chosen((work.kind != Work.FORWARD) | work.grad)
    before = np.searchsorted(trained.start_ns, begins_ns) - 1
    kind, over_ns = np.append(trained.kind, Work.OPTIMIZER)[before], np.append(trained.end_ns, 0)[before]
    fetched, asked = np.asarray(marks.fetched_ns, dtype=np.int64), np.asarray(marks.asked_ns, dtype=np.int64)
    last_asked_ns = np.append(asked, -1)[np.searchsorted(asked, begins_ns) - 1]
    is_fetched = np.isin(last_asked_ns, fetched)  # else a loop has ended since, and its batch is left over
    has_batch = is_fetched & (first_from(fetched, over_ns) < begins_ns)
    next_work_ns = first_from(work.start_ns, ends_ns)
    is_single = np.count_nonzero(trained.kind == Work.OPTIMIZER) == 1
    is_last = (first_from(asked, ends_ns) <= next_work_ns) | (next_work_ns == NEVER) | is_single
    behind: Array = (kind == Work.OPTIMIZER) & ~has_batch & is_last
    return behind


def _annotation(work: Work, marks: Marks) -> Array:
    """In which annotation each lies, of those in which nothing is trained (no optimizer steps, or where none does at all, no gradient is
    taken); -1 for none."""
    if not marks.annotated:
        return np.full(len(work.start_ns), -1)
    begins, ends = np.array(marks.annotated, dtype=np.int64).T
    trained = work.of(Work.OPTIMIZER).start_ns
    if not len(trained):
        trained = work.of(Work.BACKWARD).start_ns
    valid = np.searchsorted(trained, begins) == np.searchsorted(trained, ends)
    at = np.searchsorted(begins, work.start_ns, side="right") - 1
    inside = (at >= 0) & valid[at] & (work.start_ns < ends[at])
    return np.where(inside, at, -1)
