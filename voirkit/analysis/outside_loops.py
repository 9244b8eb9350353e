"""Training and evaluation outside of loops over loaders, as synthetic requests for batches.

Training gets one request per step of the leading optimizer, the one whose steps count as training
steps (the first, until another takes over). Evaluation by hand, model calls between steps
(nanoGPT's ``estimate_loss``), gets one request per model call. The code that cuts loops over
loaders into steps then handles them too, or excludes them from the steps around them.

*Work* is the model calls, backward passes and optimizer steps of a thread. A *turn* is a
``StepInterval``: the time from one request for a batch to the next request to the same iterator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.segmentation import OUTSIDE, Kind, Request, StepInterval, Work
from voirkit.analysis.work_times import NEVER, first_from


@dataclass(frozen=True)
class Loops:
    """The loops over loaders, and the turn in which each span of work lies."""

    turn: Array  # for each span of work, the index of its turn, or ``OUTSIDE``; shape (n,)
    turns: Sequence[StepInterval]
    trains: frozenset[int]  # the episodes (iterators) in which a model is trained

    @cached_property
    def training_turns(self) -> list[StepInterval]:
        """The turns of loops that train."""
        return [turn for turn in self.turns if turn.episode in self.trains]

    @cached_property
    def training_starts_ns(self) -> Array:
        """Start of each turn of the loops that train, ascending."""
        return np.array([turn.start_ns for turn in self.training_turns], dtype=np.int64)


@dataclass(frozen=True)
class LeaderSteps:
    """Consecutive steps of one optimizer that no loop over a loader interrupts."""

    start_ns: Array  # start of each step of the leading optimizer; shape (n,), ascending
    # For each of these steps, the end of the last step of any optimizer before the leading
    # optimizer steps again: optimizers that step one after the other form one training step.
    end_ns: Array
    # end of the training before these steps (by another optimizer, or in a loop over a loader)
    after_ns: int
    # True if a loop over a loader came before these steps; steps without a model call then belong
    # to that loop
    is_rest: bool = False
    # Number of batches that the loop before had read ahead. The same number of backward passes
    # after that loop belong to it too.
    ahead: int = 0


def steps_outside(work: Work, loops: Loops, since_ns: int = 0) -> list[LeaderSteps]:
    """Return the training steps that lie in no loop over a loader.

    If no optimizer step was recorded at all (it is compiled, or written by hand), each backward
    pass counts as a step.

    Args:
        work: All work, ascending by start.
        loops: The loops over loaders.
        since_ns: Work before this time is left out.
    """
    kind = Work.OPTIMIZER if (work.kind == Work.OPTIMIZER).any() else Work.BACKWARD
    is_outside = (loops.turn == OUTSIDE) & (work.start_ns >= since_ns)
    steps = np.flatnonzero((work.kind == kind) & is_outside)
    if not len(steps):
        return []
    turns = loops.training_turns
    ends_ns = [turn.start_ns if turn.end_ns is None else turn.end_ns for turn in turns]
    latest_ends_ns = np.maximum.accumulate(ends_ns or [0])
    turns_before = np.searchsorted(loops.training_starts_ns, work.start_ns[steps], side="right")
    stretches = []
    for n_before in np.unique(turns_before).tolist():
        between_turns = steps[turns_before == n_before]
        if not n_before:
            stretches += _split_by_leader(work, between_turns, after_ns=0)
            continue
        turn_end_ns = int(latest_ends_ns[n_before - 1])
        first, *later = _split_by_leader(work, between_turns, turn_end_ns)
        ahead = _read_ahead(work, loops, turns[n_before - 1].episode)
        stretches += [replace(first, is_rest=True, ahead=ahead), *later]
    return stretches


def _split_by_leader(work: Work, steps: Array, after_ns: int) -> list[LeaderSteps]:
    """Split uninterrupted steps into groups of consecutive steps, each with one leading optimizer.

    Args:
        work: All work, ascending by start.
        steps: Indices of the steps in ``work``, ascending.
        after_ns: The end of the training before these steps.
    """
    stretches = []
    rows = leading_steps(steps, work.optimizer[steps])
    for i, leading in enumerate(rows):
        next_row = rows[i + 1][0] if i + 1 < len(rows) else steps[-1] + 1
        lasts = steps[np.searchsorted(steps, [*leading[1:], next_row]) - 1]
        stretches.append(LeaderSteps(work.start_ns[leading], work.end_ns[lasts], after_ns))
        after_ns = int(work.end_ns[lasts[-1]])
    return stretches


def leading_steps(steps: Array, optimizer: Array) -> list[Array]:
    """Return the steps of the leading optimizer, one array for each group of consecutive steps with
    the same leader.

    The first optimizer leads at first. If another optimizer steps much more often between two
    leading steps than it usually does, or more often after the last leading step than ever between
    two, it trains alone there. From there on, the leader is determined anew, and a new group
    begins.

    Args:
        steps: Indices of optimizer steps, ascending; shape (n,).
        optimizer: The number of the optimizer of each step; shape (n,).
    """
    stretches = []
    while len(steps):
        leading = np.flatnonzero(optimizer == optimizer[0])
        counts_between = _count_steps_between(optimizer, leading)
        takeovers = [_first_takeover(counts) for counts in counts_between.values()]
        gap = min((gap for gap in takeovers if gap is not None), default=None)
        if gap is not None:
            stretches.append(steps[leading[: gap + 1]])
            next_leader = int(leading[gap]) + 1
        else:
            stretches.append(steps[leading])
            behind = int(leading[-1]) + 1
            ahead = _first_that_goes_on(optimizer[behind:], counts_between)
            if ahead is None:
                break
            next_leader = behind + ahead
        steps, optimizer = steps[next_leader:], optimizer[next_leader:]
    return stretches


def _count_steps_between(optimizer: Array, leading: Array) -> dict[int, Array]:
    """Return for each other optimizer the number of its steps between each leading step and the
    next."""
    inside = optimizer[: leading[-1]]
    counts = {}
    for other in np.unique(inside).tolist():
        if other != optimizer[0]:
            places = np.flatnonzero(inside == other)
            counts[other] = np.diff(np.searchsorted(places, leading))
    return counts


def _first_takeover(between: Array) -> int | None:
    """Return the index of the first leading step after which another optimizer takes over; None if
    there is none.

    It takes over if it steps much more often than usual before the next leading step, or steps only
    in this one of many intervals. Optimizers that step in a cycle do not take over, even if one
    steps several times in a cycle, or only in some: that recurs more than twice.

    Args:
        between: The number of steps of the other optimizer after each leading step.
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


def _first_that_goes_on(behind: Array, counts_between: dict[int, Array]) -> int | None:
    """Return the index in ``behind`` of the first step of an optimizer that steps more often there
    than ever between two leading steps; None if there is none.

    Args:
        behind: The optimizer of each step after the last leading step.
        counts_between: The counts of ``_count_steps_between``.
    """
    optimizers, counts = np.unique(behind, return_counts=True)
    most_between = np.zeros(len(optimizers), dtype=np.int64)
    for i, optimizer in enumerate(optimizers.tolist()):
        if optimizer in counts_between:
            most_between[i] = counts_between[optimizer].max()
    going_on = optimizers[counts > most_between]
    return int(np.argmax(np.isin(behind, going_on))) if len(going_on) else None


def _read_ahead(work: Work, loops: Loops, episode: int) -> int:
    """Return the number of batches that a loop requests before it trains on the first batch. It
    trains on as many after its last request (transformers' Trainer)."""
    turns = np.flatnonzero([turn.episode == episode for turn in loops.turns])
    takes_gradients = (work.kind == Work.BACKWARD) | ((work.kind == Work.FORWARD) & work.grad)
    is_trained = np.isin(turns, loops.turn[takes_gradients])
    return int(np.argmax(is_trained)) if is_trained.any() else 0


def requests_of_steps(
    stretches: Sequence[LeaderSteps], work: Work, first_episode: int
) -> list[Request]:
    """Return a request at the start of each step, and an ``END`` at the end of each group of steps.

    A step starts where the optimizer step before it ends; the first step starts with the first
    work. A model call before it that was not trained on cannot be distinguished from that work.

    Args:
        stretches: Groups of consecutive steps; each group gets an episode of its own.
        work: Model calls and backward passes in no loop over a loader, without evaluation.
        first_episode: The number of the first episode; later ones count down from it.
    """
    requests: list[Request] = []
    episode = first_episode
    for steps in stretches:
        work_ns = _first_work_ns(work, steps)
        n_rest = int(np.searchsorted(steps.end_ns, work_ns)) if steps.is_rest else 0
        if n_rest == len(steps.end_ns):
            continue
        begin_ns = min(work_ns, int(steps.start_ns[n_rest]))
        *next_ns, end_ns = steps.end_ns[n_rest:].tolist()
        for at_ns in (begin_ns, *next_ns):
            requests.append(Request(Kind.FETCH, at_ns, at_ns, episode, episode))
        requests.append(Request(Kind.END, end_ns, end_ns, episode, episode))
        episode -= 1
    return requests


def _first_work_ns(work: Work, steps: LeaderSteps) -> int:
    """Return the start of the first work after the training before these steps and after its
    batches that were read ahead; ``NEVER`` if there is none."""
    first = int(np.searchsorted(work.start_ns, steps.after_ns))
    read_ahead = np.flatnonzero(work.kind[first:] == Work.BACKWARD)[: steps.ahead]
    if len(read_ahead):
        first += int(read_ahead[-1]) + 1
    return int(work.start_ns[first]) if first < len(work.start_ns) else NEVER


# finding evaluation by hand


# A model that is called under no_grad in this share of the steps, or more, is a part of the steps
# (a teacher, a target network), not an evaluation.
_OFTEN = 0.5


@dataclass(frozen=True)
class Marks:
    """Events, besides work and loops, that distinguish evaluation from training. Times are in
    nanoseconds, ascending."""

    # calls of a module's ``train()`` and ``eval()``: (time, True for training mode)
    modes: Sequence[tuple[int, bool]]
    zeroed_ns: Array  # times at which gradients were set to zero
    saved_ns: Array  # times at which checkpoints were written
    # (start, end) of evaluations that the script annotates
    annotated: Sequence[tuple[int, int]] = ()
    fetched_ns: Sequence[int] = ()  # times of requests to loaders that returned a batch
    asked_ns: Sequence[int] = ()  # times of all requests to loaders, except releases of iterators


@dataclass(frozen=True)
class Calls:
    """Consecutive model calls of an evaluation."""

    start_ns: list[int]  # start of each call; the first is the start of the evaluation
    end_ns: int  # end of the evaluation


def evaluating(work: Work, marks: Marks, loops: Loops, steps_ns: Array) -> Array:
    """True for model calls that evaluate but lie in no evaluation loop, and for backward passes
    that belong to these calls; shape (n,).

    A model call evaluates if nothing is trained on its result and it is made
    - where the script says that it evaluates (``voirkit.ai``, ``give(task="eval")``);
    - between ``eval()`` and the next ``train()``;
    - without gradients between two steps: after the work of a step, and before the next request for
      a batch or ``zero_grad()``;
    - without gradients elsewhere, in fewer than half of the steps.
    Backward passes in evaluations by the first two rules belong to the evaluation (forces,
    attacks), unless an optimizer steps.

    Args:
        work: All work, ascending by start.
        marks: Events that distinguish evaluation from training.
        loops: The loops over loaders.
        steps_ns: Ends of the steps that lie in no loop over a loader, ascending.
    """
    # the last element is for work outside of loops: there ``loops.turn`` is OUTSIDE, which is -1
    in_training = np.array([turn.episode in loops.trains for turn in loops.turns] + [True])
    is_candidate = in_training[loops.turn]
    calls = is_candidate & (work.kind == Work.FORWARD) & ~_in_optimizer(work)
    is_backward = work.kind == Work.BACKWARD
    trained_ns = work.of(Work.TRAINS).start_ns
    is_declared = declared_evaluation(work, marks)
    # a model call with gradients before any training is no evaluation: it may only build the model
    if len(trained_ns):
        is_differentiated = np.append((is_declared & is_backward)[1:], False)
        is_annotated = _annotation(work, marks) >= 0
        is_built = ~work.grad | (work.start_ns > trained_ns[0])
        calls &= is_built | is_annotated | is_differentiated
    evaluates = (calls | (is_candidate & is_backward)) & is_declared
    quiet = np.flatnonzero(calls & ~evaluates & ~work.grad)
    if not len(quiet):
        return evaluates
    # work in evaluation loops is left out, because models there may compute gradients too
    training = work.chosen(_trains(work, evaluates | ~is_candidate))
    is_between = _between_steps(quiet, work, training, _zeroed(work, marks), loops)
    is_inside = loops.turn[quiet] != OUTSIDE
    steps_amid = np.searchsorted(steps_ns, work.start_ns[quiet[~is_between & ~is_inside]])
    n_steps = len(np.unique(steps_amid))
    n_turns = len(np.unique(loops.turn[quiet[~is_between & is_inside]]))
    is_seldom = np.where(
        is_inside,
        n_turns < _OFTEN * len(loops.training_turns),
        n_steps < _OFTEN * len(steps_ns),
    )
    evaluates[quiet[is_between | is_seldom]] = True
    return evaluates


def _between_steps(
    quiet: Array, work: Work, training: Work, zeroed_ns: Array, loops: Loops
) -> Array:
    """True for model calls after the work of one step and before the next step.

    Args:
        quiet: Indices in ``work`` of model calls without gradients; shape (m,).
        work: All work, ascending by start.
        training: The part of ``work`` that trains.
        zeroed_ns: Times at which gradients were set to zero, ascending.
        loops: The loops over loaders.

    Returns:
        Shape (m,).
    """
    quiet_ns = work.start_ns[quiet]
    turn_of_call = loops.turn[quiet]
    is_inside = turn_of_call != OUTSIDE
    next_trained = np.searchsorted(training.start_ns, quiet_ns)
    next_trained_ns = np.append(training.start_ns, NEVER)[next_trained]
    # True if the last training work before the call is another model call, which still waits for
    # its backward pass
    is_after_call = np.append(training.kind == Work.FORWARD, False)[next_trained - 1]
    ends_ns = [NEVER if turn.end_ns is None else turn.end_ns for turn in loops.turns]
    turn_end_ns = np.array([*ends_ns, NEVER], dtype=np.int64)[turn_of_call]
    next_zeroed_ns = np.where(work.training[quiet], first_from(zeroed_ns, quiet_ns), NEVER)
    next_step_ns = np.minimum(first_from(loops.training_starts_ns, quiet_ns), next_zeroed_ns)
    is_last = next_trained_ns >= np.where(is_inside, turn_end_ns, next_step_ns)
    is_behind_all = ~is_inside & (next_trained_ns == NEVER)
    is_between: Array = (~is_after_call & is_last) | is_behind_all
    return is_between


def requests_of_evaluation(
    evaluates: Array,
    work: Work,
    marks: Marks,
    loops: Loops,
    first_episode: int,
    requests: Sequence[Request] = (),
) -> tuple[list[Request], set[int]]:
    """Return synthetic requests for evaluation by hand, and the iterators that its batches came
    from. The requests are one at the start of each model call that evaluates, and an ``END`` at the
    end of each row of consecutive calls.

    Args:
        evaluates: True for work that evaluates, as ``evaluating`` returns it.
        work: All work, ascending by start.
        marks: Events that distinguish evaluation from training.
        loops: The loops over loaders.
        first_episode: The number of the first episode; later ones count down from it.
        requests: The requests to loaders; requests for the batches of an evaluation are a part of
            the evaluation.
    """
    rows = _EvaluationRows(evaluates, work, marks, loops).rows()
    rows, iterators = _with_their_draws(rows, requests, work, loops)
    requests_of_rows: list[Request] = []
    for k, calls in enumerate(rows):
        episode = first_episode - k
        for start_ns in calls.start_ns:
            requests_of_rows.append(Request(Kind.FETCH, start_ns, start_ns, episode, episode))
        requests_of_rows.append(Request(Kind.END, calls.end_ns, calls.end_ns, episode, episode))
    return requests_of_rows, iterators


def _with_their_draws(
    rows: list[Calls], requests: Sequence[Request], work: Work, loops: Loops
) -> tuple[list[Calls], set[int]]:
    """Return the rows of evaluation calls, extended to include the requests for their batches
    (``u, v = next(held_out)`` between two steps), and the iterators that the batches came from.

    The requests of a row are the last ones before it, with no work between, to one loader. They
    count only if at least half of the batches of this loader are requested so.
    """
    readings = sorted(
        (request for request in requests if request.kind in (Kind.ITER, Kind.FETCH)),
        key=lambda request: request.start_ns,
    )
    draws_of_rows = _draws_of_rows(rows, readings, work, loops)
    fetches_of_rows: Counter[int] = Counter()
    for draws in draws_of_rows:
        fetches_of_rows.update(draw.loader for draw in draws if draw.kind is Kind.FETCH)
    fetches = Counter(request.loader for request in readings if request.kind is Kind.FETCH)
    whole: list[Calls] = []
    iterators: set[int] = set()
    for row, draws in zip(rows, draws_of_rows, strict=True):
        if draws and 2 * fetches_of_rows[draws[0].loader] >= fetches[draws[0].loader]:
            iterators |= {draw.episode for draw in draws}
            row = replace(row, start_ns=[draws[-1].start_ns, *row.start_ns[1:]])
        whole.append(row)
    return whole, iterators


def _draws_of_rows(
    rows: Sequence[Calls], requests: Sequence[Request], work: Work, loops: Loops
) -> list[list[Request]]:
    """Return for each row the last requests to one loader before it with no work between, the
    latest first."""
    # starts of training steps; a request at such a time is for the step's own batch
    openings_ns = {turn.start_ns for turn in loops.training_turns}
    work_ends_ns = np.maximum.accumulate(work.end_ns) if len(work.end_ns) else work.end_ns
    draws_of_rows = []
    for row in rows:
        n_worked = int(np.searchsorted(work.start_ns, row.start_ns[0]))
        worked_ns = int(work_ends_ns[n_worked - 1]) if n_worked else 0
        draws_of_rows.append(_draws_before(row.start_ns[0], requests, worked_ns, openings_ns))
    return draws_of_rows


def _draws_before(
    begin_ns: int, requests: Sequence[Request], worked_ns: int, openings_ns: set[int]
) -> list[Request]:
    """Return the requests directly before a time, the latest first: the last request, and the
    requests before it as long as they are to the same loader.

    Args:
        begin_ns: The time.
        requests: The requests to loaders, ascending by start.
        worked_ns: End of the work that began before ``begin_ns``. Only requests that start no
            earlier are returned.
        openings_ns: Starts of the training steps. A request that starts at one of these is for the
            step's own batch: only the requests after it are returned.
    """
    draws: list[Request] = []
    last = bisect_left(requests, begin_ns, key=lambda request: request.start_ns) - 1
    for i in range(last, -1, -1):
        request = requests[i]
        if request.start_ns < worked_ns or request.start_ns in openings_ns:
            break
        if draws and request.loader != draws[0].loader:
            break
        draws.append(request)
    return draws


class _EvaluationRows:
    """Groups the model calls that evaluate into rows of consecutive calls without training between.
    A row in evaluation mode lasts from ``eval()`` to ``train()``."""

    def __init__(self, evaluates: Array, work: Work, marks: Marks, loops: Loops) -> None:
        self._evaluates, self._work, self._marks, self._loops = evaluates, work, marks, loops
        training = work.chosen(_trains(work, evaluates))
        self._trained_ns = training.start_ns
        self._trained_ends_ns = training.end_ns
        if len(training.end_ns):
            self._trained_ends_ns = np.maximum.accumulate(training.end_ns)
        self._off_ns, self._on_ns = _switches(marks)
        self._is_by_mode = _in_evaluation_mode(work, marks)
        self._annotation = _annotation(work, marks)

    def rows(self) -> list[Calls]:
        """Return the rows, in the order of their calls."""
        work, turn = self._work, self._loops.turn
        is_call = self._evaluates & (work.kind == Work.FORWARD)
        calls = np.flatnonzero(is_call | self._stands_for_call(is_call))
        if not len(calls):
            return []
        calls_ns = work.start_ns[calls]
        n_trained = np.searchsorted(self._trained_ns, calls_ns)
        n_turns = np.searchsorted(self._loops.training_starts_ns, calls_ns, side="right")
        is_apart = (np.diff(n_trained) != 0) | (np.diff(n_turns) != 0)
        is_apart |= np.diff(turn[calls]) != 0
        return [self._row(row) for row in np.split(calls, 1 + np.flatnonzero(is_apart))]

    def _stands_for_call(self, is_call: Array) -> Array:
        """True for the backward passes of annotated evaluations that have no recorded model call:
        their model is a plain function. These passes count as calls."""
        is_annotated = self._evaluates & (self._annotation >= 0)
        is_backward = is_annotated & (self._work.kind == Work.BACKWARD)
        has_call = np.isin(self._annotation, self._annotation[is_annotated & is_call])
        is_unseen: Array = is_backward & ~has_call
        return is_unseen

    def _row(self, calls: Array) -> Calls:
        first, last = int(calls[0]), int(calls[-1])
        index = self._loops.turn[first]
        turn = None if index == OUTSIDE else self._loops.turns[index]
        begin_ns = self._begin_ns(first, turn)
        end_ns = self._end_ns(last, turn)
        for annotation in (self._annotation[first], self._annotation[last]):
            if annotation >= 0:
                annotated_ns = self._marks.annotated[annotation]
                begin_ns = min(begin_ns, annotated_ns[0])
                end_ns = max(end_ns, annotated_ns[1])
        if turn is not None:
            begin_ns = max(begin_ns, turn.start_ns)
            end_ns = end_ns if turn.end_ns is None else min(end_ns, turn.end_ns)
        return Calls([begin_ns, *self._work.start_ns[calls[1:]].tolist()], end_ns)

    def _begin_ns(self, first: int, turn: StepInterval | None) -> int:
        """Return the start of the evaluation: its first call; or, in evaluation mode, the first
        ``eval()`` after the last ``train()``, training or start of the turn before that call."""
        begin_ns = int(self._work.start_ns[first])
        if not self._is_by_mode[first]:
            return begin_ns
        n_trained = int(np.searchsorted(self._trained_ns, begin_ns))
        trained_ns = int(self._trained_ends_ns[n_trained - 1]) if n_trained else 0
        turn_ns = 0 if turn is None else turn.start_ns
        since_ns = max(_last_before(self._on_ns, begin_ns), trained_ns, turn_ns)
        return min(begin_ns, _next_from(self._off_ns, since_ns))

    def _end_ns(self, last: int, turn: StepInterval | None) -> int:
        """Return the end of the evaluation: the end of its last call and of the backward passes
        that belong to it. In evaluation mode it is the next ``train()``, or an earlier checkpoint,
        training or end of the turn."""
        end_ns = int(self._work.end_ns[last])
        switched_ns = _next_from(self._on_ns, end_ns)
        if self._is_by_mode[last] and switched_ns != NEVER:
            over_ns = min(
                switched_ns,
                _next_from(self._marks.saved_ns, end_ns),
                _next_from(self._trained_ns, end_ns),
                _next_from(self._loops.training_starts_ns, end_ns),
            )
            if turn is not None and turn.end_ns is not None:
                over_ns = min(over_ns, turn.end_ns)
            end_ns = max(end_ns, over_ns)
        for following in range(last + 1, len(self._evaluates)):
            is_backward = self._work.kind[following] == Work.BACKWARD
            if not self._evaluates[following] or not is_backward:
                break
            end_ns = max(end_ns, int(self._work.end_ns[following]))
        return end_ns


def _next_from(times_ns: Array, at_ns: int) -> int:
    """Return the first of ``times_ns`` at or after a time; ``NEVER`` if there is none."""
    place = int(np.searchsorted(times_ns, at_ns))
    return int(times_ns[place]) if place < len(times_ns) else NEVER


def _last_before(times_ns: Array, at_ns: int) -> int:
    """Return the last of ``times_ns`` before a time; 0 if there is none."""
    place = int(np.searchsorted(times_ns, at_ns))
    return int(times_ns[place - 1]) if place else 0


def _switches(marks: Marks) -> tuple[Array, Array]:
    """Return the times at which modules were switched to evaluation mode, and the times at which
    they were switched to training mode."""
    off_ns = [at_ns for at_ns, training in marks.modes if not training]
    on_ns = [at_ns for at_ns, training in marks.modes if training]
    return np.array(off_ns, dtype=np.int64), np.array(on_ns, dtype=np.int64)


def _trains(work: Work, evaluates: Array) -> Array:
    """True for work that is a part of training: all work except evaluation and model calls without
    gradients."""
    return ~evaluates & ((work.kind != Work.FORWARD) | work.grad)


def _in_optimizer(work: Work) -> Array:
    """True for work inside of an optimizer's step: the work of its closure."""
    inside: Array = _step_around(work, work.start_ns)[0]
    return inside


def _step_around(work: Work, at_ns: Array) -> tuple[Array, Array, Array]:
    """Return three arrays: True for each time that lies in an optimizer's step, and the start and
    the end of that step."""
    steps = work.of(Work.OPTIMIZER)
    step = np.searchsorted(steps.start_ns, at_ns, side="right") - 1
    # the appended last element is for times before all steps, whose index is -1
    begins_ns = np.append(steps.start_ns, 0)[step]
    ends_ns = np.append(steps.end_ns, 0)[step]
    return (step >= 0) & (at_ns < ends_ns), begins_ns, ends_ns


def _zeroed(work: Work, marks: Marks) -> Array:
    """Return the times at which gradients were set to zero, ascending. If a closure does it inside
    of the optimizer's step (LBFGS), the start of that step counts."""
    walks_ns = work.of(Work.BACKWARD).start_ns
    is_inside, begins_ns, ends_ns = _step_around(work, marks.zeroed_ns)
    is_by_closure = is_inside & (first_from(walks_ns, marks.zeroed_ns) < ends_ns)
    return np.sort(np.where(is_by_closure, begins_ns, marks.zeroed_ns))


def declared_evaluation(work: Work, marks: Marks) -> Array:
    """True for work where the script declares an evaluation, by the mode of its models or by an
    annotation; shape (n,)."""
    is_declared: Array = _in_evaluation_mode(work, marks) | (_annotation(work, marks) >= 0)
    return is_declared


def _in_evaluation_mode(work: Work, marks: Marks) -> Array:
    """True for work between an ``eval()`` and the next ``train()``, of any module, if nothing is
    trained in this stretch of time.

    A stretch with backward passes (forces, attacks) evaluates only if no optimizer steps in it, and
    one of these holds: it is at the end of a step; no optimizer steps after it, but one did before;
    such stretches in the middle of steps are at most half as many as the backward passes elsewhere;
    they lie in at most half of the steps with backward passes. Otherwise it is a part of each step
    (adversarial training).
    """
    begins_ns, on_ns = _switches(marks)
    if not len(begins_ns):
        return np.zeros(len(work.start_ns), dtype=bool)
    ends_ns = first_from(on_ns, begins_ns)
    walks_ns = work.of(Work.BACKWARD).start_ns
    updates_ns = work.of(Work.OPTIMIZER).start_ns
    has_walk = first_from(walks_ns, begins_ns) < ends_ns
    has_update = first_from(updates_ns, begins_ns) < ends_ns
    evaluates = ~has_walk
    stretch, is_inside = _stretch_around(work.start_ns, begins_ns, ends_ns)
    if len(updates_ns):
        is_unused = first_from(updates_ns, begins_ns) == NEVER
        elsewhere = work.chosen(~is_inside | has_update[stretch])
        fetched_ns = _outside_of_stretches(marks.fetched_ns, begins_ns, ends_ns, has_update)
        asked_ns = _outside_of_stretches(marks.asked_ns, begins_ns, ends_ns, has_update)
        is_at_end = _at_end_of_step(elsewhere, fetched_ns, asked_ns, begins_ns, ends_ns)
        is_apart = is_unused | is_at_end
        amid_ns = begins_ns[has_walk & ~has_update & ~is_apart]
        trained_ns = walks_ns[~_stretch_around(walks_ns, begins_ns, ends_ns)[1]]
        n_steps_amid = len(np.unique(np.searchsorted(updates_ns, amid_ns)))
        n_steps_trained = len(np.unique(np.searchsorted(updates_ns, trained_ns)))
        is_seldom = len(amid_ns) <= _OFTEN * len(trained_ns)
        is_seldom = is_seldom or n_steps_amid <= _OFTEN * n_steps_trained
        evaluates |= is_apart | is_seldom
    is_valid = ~has_update & evaluates
    is_quiet = ~work.training | (work.kind == Work.BACKWARD)
    is_evaluated: Array = is_inside & is_valid[stretch] & is_quiet
    return is_evaluated


def _stretch_around(at_ns: Array, begins_ns: Array, ends_ns: Array) -> tuple[Array, Array]:
    """Return for each time the index of the last stretch (time between a begin and its end) that
    begins before it, and True if the time lies in that stretch."""
    stretch = np.searchsorted(begins_ns, at_ns, side="right") - 1
    return stretch, (stretch >= 0) & (at_ns < ends_ns[stretch])


def _outside_of_stretches(
    times: Sequence[int], begins_ns: Array, ends_ns: Array, has_update: Array
) -> Array:
    """Return the times that lie in no stretch (time between a begin and its end), or in a stretch
    in which an optimizer steps."""
    at_ns = np.asarray(times, dtype=np.int64)
    stretch, is_inside = _stretch_around(at_ns, begins_ns, ends_ns)
    outside: Array = at_ns[~is_inside | has_update[stretch]]
    return outside


def _at_end_of_step(
    work: Work, fetched_ns: Array, asked_ns: Array, begins_ns: Array, ends_ns: Array
) -> Array:
    """True for stretches of time at the end of a training step.

    Such a stretch follows an optimizer's step, with nothing but model calls without gradients
    between. The next request to a loader, or the end of all work, follows it. If only one optimizer
    step was made, that is not required, so stretches before the training count too.

    Args:
        work: The work outside of the stretches.
        fetched_ns: Times of requests to loaders that returned a batch, outside of the stretches;
            ascending.
        asked_ns: Times of all requests to loaders, outside of the stretches; ascending.
        begins_ns: Start of each stretch; shape (n,), ascending.
        ends_ns: End of each stretch; shape (n,).
    """
    trained = work.chosen((work.kind != Work.FORWARD) | work.grad)
    before = np.searchsorted(trained.start_ns, begins_ns) - 1
    kind_before = np.append(trained.kind, Work.OPTIMIZER)[before]
    over_ns = np.append(trained.end_ns, 0)[before]
    next_work_ns = first_from(work.start_ns, ends_ns)
    last_asked_ns = np.append(asked_ns, -1)[np.searchsorted(asked_ns, begins_ns) - 1]
    # True if the last request before a stretch returned a batch; if not, its loop has ended
    is_fetched = np.isin(last_asked_ns, fetched_ns)
    # and if no other batch is requested between the stretch and the next work: that work then uses
    # this batch
    is_fetched &= first_from(fetched_ns, ends_ns) > next_work_ns
    has_batch = is_fetched & (first_from(fetched_ns, over_ns) < begins_ns)
    is_single = np.count_nonzero(trained.kind == Work.OPTIMIZER) == 1
    is_asked = first_from(asked_ns, ends_ns) <= next_work_ns
    is_last = is_asked | (next_work_ns == NEVER) | is_single
    is_behind: Array = (kind_before == Work.OPTIMIZER) & ~has_batch & is_last
    return is_behind


def _annotation(work: Work, marks: Marks) -> Array:
    """Return for each span of work the index of the annotated evaluation in which it lies; -1 for
    none. Annotations in which an optimizer steps do not count; if no optimizer steps in the whole
    run, annotations with a backward pass do not count."""
    if not marks.annotated:
        return np.full(len(work.start_ns), -1)
    begins_ns, ends_ns = np.array(marks.annotated, dtype=np.int64).T
    trained_ns = work.of(Work.OPTIMIZER).start_ns
    if not len(trained_ns):
        trained_ns = work.of(Work.BACKWARD).start_ns
    n_before = np.searchsorted(trained_ns, begins_ns)
    is_valid = n_before == np.searchsorted(trained_ns, ends_ns)
    annotation, is_inside = _stretch_around(work.start_ns, begins_ns, ends_ns)
    return np.where(is_inside & is_valid[annotation], annotation, -1)
