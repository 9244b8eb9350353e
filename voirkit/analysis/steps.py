"""From the spans of a training process to its steps: how long each took, and where its time went.

What a step and a phase are is defined in docs/steps.md. Each instant of a step counts for one phase, the innermost, so that the phases
of a step sum to its time exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from voirkit.analysis.nesting import Array, exclusive_ns
from voirkit.analysis.turns import OUTSIDE, Cut, Kind, Request, Turn, cut

PHASES = ("wait", "transfer", "forward", "backward", "optimizer", "other")
PARTS = ("loss", "zero_grad", "checkpoint", "communication", "rest")  # of other
_COLUMNS = (*PHASES[:-1], *PARTS)
WAIT, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, LOSS, ZERO_GRAD, CHECKPOINT, COMMUNICATION, REST = range(len(_COLUMNS))

_FREEING_NS = 100_000

# What each span of the steps instrument counts for; all of comm is communication.
MEANING = {
    ("dataloader", "iter"): WAIT,
    ("dataloader", "fetch"): WAIT,
    ("dataloader", "end"): WAIT,
    ("device", "transfer"): TRANSFER,
    ("compute", "forward"): FORWARD,
    ("compute", "backward"): BACKWARD,
    ("compute", "step"): OPTIMIZER,
    ("compute", "loss"): LOSS,
    ("compute", "zero_grad"): ZERO_GRAD,
    ("checkpoint", "capture"): CHECKPOINT,
    ("checkpoint", "restart"): CHECKPOINT,
}


@dataclass(frozen=True)
class Timeline:
    """The spans of one thread, ascending by start; arrays of shape (n,).

    Attributes:
        start_ns: On the process's clock.
        duration_ns: Nanoseconds.
        meaning: Index into wait, transfer … (``MEANING``).
        leads: Whether it is a step of the optimizer that was the first to step in this thread.
        requests: What was asked of loaders, ascending by start.
    """

    start_ns: Array
    duration_ns: Array
    meaning: Array
    leads: Array
    requests: Sequence[Request]


@dataclass(frozen=True)
class Table:
    """Steps of one kind; arrays of shape (n,), or (n, phases).

    Attributes:
        start_ns: When each began.
        time_ns: How long it took, without loops that lie in it (an evaluation every 100 steps).
        items: How many items its batch held; -1 if that is not known.
        own_ns: Shape (n, 10): time by wait, transfer, forward, backward, optimizer, loss, zero_grad, checkpoint, communication,
            rest; each row sums to its ``time_ns``.
    """

    start_ns: Array
    time_ns: Array
    items: Array
    own_ns: Array

    def __len__(self) -> int:
        return len(self.time_ns)

    def phase_ns(self, phase: str) -> Array:
        """Time in a phase by step; ``other`` is all that is none of the rest."""
        if phase == "other":
            return self.own_ns[:, LOSS:].sum(axis=1)
        return self.own_ns[:, PHASES.index(phase)]


@dataclass(frozen=True)
class DeviceTable:
    """Steps of training as a GPU saw them.

    Attributes:
        table: Each to the end of the work that was started in it. Forward, backward and optimizer are the device's time, wait and the
            parts of other that of the host while the device had nothing to do, rest that in which nothing is known of either.
        launching_ns: By step, how much of forward, backward and optimizer was work that ended as soon as the host had started it: in
            that time the device could have done more. Shape (n,).
    """

    table: Table
    launching_ns: Array


@dataclass(frozen=True)
class Steps:
    """The steps of one thread.

    Attributes:
        train: Those of training.
        evaluation: Those of loops in which a model is called and nothing is trained.
        wait_known: Whether the time that training waits for batches could be seen.
        device: Those of training on the clock of a GPU, if one was used.
        episodes: Numbers of the iterators whose batches were trained on; not kept in a rollup.
    """

    train: Table
    evaluation: Table
    wait_known: bool
    device: DeviceTable | None = None
    episodes: frozenset[int] = frozenset()


def steps_of(timeline: Timeline) -> Steps:
    """The steps of a thread."""
    timeline = _copies_in_a_row(timeline)
    requests = _without_read_ahead(timeline)
    made = cut(requests)
    turn_of = _owners(made, timeline.start_ns)
    n = len(made.turns)
    trains = _episodes_with(made.turns, turn_of, np.isin(timeline.meaning, (BACKWARD, OPTIMIZER)))
    calls = _episodes_with(made.turns, turn_of, timeline.meaning == FORWARD)
    own = _by_turn(timeline, turn_of, n)
    time = _time(made, n)
    training = [i for i, t in enumerate(made.turns) if t.end_ns is not None and t.episode in trains]
    evaluating = [i for i, t in enumerate(made.turns) if t.end_ns is not None and t.episode in calls - trains]
    evaluation = _table(made.turns, evaluating, requests, own, time)
    if training:
        return Steps(_table(made.turns, training, requests, own, time), evaluation, wait_known=True, episodes=frozenset(trains))
    return Steps(_between_optimizer_steps(timeline, turn_of), evaluation, wait_known=False)


def _copies_in_a_row(timeline: Timeline) -> Timeline:
    """Copies one after the other as one: what lies between them, giving back the memory of the one before (40 us for 4 MB), is its cost."""
    start, duration = timeline.start_ns, timeline.duration_ns
    between = start[1:] - start[:-1] - duration[:-1]
    copies = (timeline.meaning[1:] == TRANSFER) & (timeline.meaning[:-1] == TRANSFER)
    near = copies & (between > 0) & (between <= np.minimum(_FREEING_NS, duration[:-1] // 10))
    longer = duration.copy()
    longer[:-1][near] += between[near]
    return replace(timeline, duration_ns=longer)


def _owners(made: Cut, at_ns: Array) -> Array:
    """The turn to which each instant belongs."""
    if not made.edges:
        return np.full(len(at_ns), OUTSIDE)
    piece = np.searchsorted(np.asarray(made.edges), at_ns, side="right") - 1
    return np.where(piece < 0, OUTSIDE, np.asarray(made.owners)[piece])


def _episodes_with(turns: Sequence[Turn], turn_of: Array, chosen: Array) -> set[int]:
    return {turns[i].episode for i in np.unique(turn_of[chosen]) if i != OUTSIDE}


def _by_turn(timeline: Timeline, turn_of: Array, n: int) -> Array:
    """Time by turn and meaning, shape (n, 10), in nanoseconds; without the rest."""
    own = exclusive_ns(timeline.start_ns, timeline.duration_ns)
    inside = turn_of != OUTSIDE
    cells = turn_of[inside] * len(_COLUMNS) + timeline.meaning[inside]
    return np.bincount(cells, weights=own[inside], minlength=n * len(_COLUMNS))[: n * len(_COLUMNS)].reshape(n, len(_COLUMNS))


def _time(made: Cut, n: int) -> Array:
    """How long each turn lasted, without the loops that lie in it; turns that were never closed have no right figure here."""
    if not n:
        return np.zeros(0, dtype=np.int64)
    edges, owners = np.asarray(made.edges), np.asarray(made.owners)
    lasting = np.diff(edges, append=edges[-1])
    inside = owners != OUTSIDE
    return np.bincount(owners[inside], weights=lasting[inside], minlength=n).astype(np.int64)


def _table(turns: Sequence[Turn], chosen: Sequence[int], requests: Sequence[Request], own: Array, time: Array) -> Table:
    items = [_items(turns[i], requests) for i in chosen]
    start = [turns[i].start_ns for i in chosen]
    return _completed(np.array(start, dtype=np.int64), time[list(chosen)], np.array(items, dtype=np.int64), own[list(chosen)])


def _completed(start: Array, time: Array, items: Array, own: Array) -> Table:
    """A table whose rows sum to the time: what is in no span is the rest."""
    own = own.astype(np.int64)
    own[:, REST] = np.maximum(time - own.sum(axis=1), 0)
    return Table(start, own.sum(axis=1), items, own)


def _items(turn: Turn, requests: Sequence[Request]) -> int:
    """Of the loop's own loader: one that is asked beside it (``zip``) brings other halves of the same items."""
    known = [requests[i].items for i in turn.requests if requests[i].episode == turn.episode]
    return known[0] if known and known[0] is not None else -1


def _between_optimizer_steps(timeline: Timeline, turn_of: Array) -> Table:
    """Steps of a script whose batches come from no loader: from one step of its first optimizer to the next."""
    outside = turn_of == OUTSIDE
    ends = (timeline.start_ns + timeline.duration_ns)[timeline.leads & outside]
    work = timeline.start_ns[outside & (timeline.meaning == FORWARD)]
    if not len(ends):
        nothing = np.zeros(0, dtype=np.int64)
        return _completed(nothing, nothing, nothing, np.zeros((0, len(_COLUMNS))))
    first = work[0] if len(work) and work[0] < ends[0] else ends[0]
    edges = np.concatenate(([first], ends)) if first < ends[0] else ends
    n = len(edges) - 1
    turn = np.searchsorted(edges, timeline.start_ns, side="right") - 1
    turn = np.where(outside & (turn >= 0) & (turn < n), turn, OUTSIDE)
    own = _by_turn(timeline, turn, n)
    return _completed(edges[:-1], np.diff(edges), np.full(n, -1), own)


def _without_read_ahead(timeline: Timeline) -> list[Request]:
    """The requests as they would be if none were made a batch ahead of the work, as accelerate's loader makes them.

    Seen by work after the end of the loop's iterator and none between its first two requests. The first request is then part of
    making the iterator, and the one that found nothing begins the last step, which ends with its work.
    """
    requests = list(timeline.requests)
    works = np.isin(timeline.meaning, (BACKWARD, OPTIMIZER))
    starts, ends = timeline.start_ns[works], (timeline.start_ns + timeline.duration_ns)[works]
    if not len(starts):
        return requests
    of_episode: dict[int, list[int]] = {}
    for i, request in enumerate(requests):
        if request.kind is not Kind.ITER:
            of_episode.setdefault(request.episode, []).append(i)
    added: list[Request] = []
    for indices in of_episode.values():
        *fetches, end = indices
        if len(fetches) < 2 or requests[end].kind is not Kind.END:
            continue
        first, second = requests[fetches[0]], requests[fetches[1]]
        if np.searchsorted(starts, first.end_ns) != np.searchsorted(starts, second.start_ns):
            continue
        after = requests[end + 1].start_ns if end + 1 < len(requests) else None
        begun = np.searchsorted(starts, requests[end].end_ns)
        stop = len(starts) if after is None else np.searchsorted(starts, after)
        if begun == stop:
            continue
        items = [requests[i].items for i in fetches]
        requests[fetches[0]] = replace(first, kind=Kind.ITER)
        for i, number in zip((*fetches[1:], end), items, strict=True):
            requests[i] = replace(requests[i], kind=Kind.FETCH, items=number)
        closed = int(ends[stop - 1])
        added.append(replace(requests[end], kind=Kind.END, start_ns=closed, end_ns=closed))
    return sorted([*requests, *added], key=lambda r: r.start_ns)
