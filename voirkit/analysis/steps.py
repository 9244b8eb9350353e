"""From the spans of a training process to its steps: how long each took, and where its time went.

What a step and a phase are is defined in docs/steps.md. Each instant of a step counts for one phase, the innermost, so that the phases
of a step sum to its time exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from voirkit.analysis.nesting import Array, exclusive_ns
from voirkit.analysis.requests import Work, as_read
from voirkit.analysis.turns import OUTSIDE, Cut, Kind, Request, Turn, cut

PHASES = ("wait", "transfer", "forward", "backward", "optimizer", "other")
PARTS = ("loss", "zero_grad", "checkpoint", "communication", "voirkit", "rest")  # of other
_COLUMNS = (*PHASES[:-1], *PARTS)
WAIT, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, LOSS, ZERO_GRAD, CHECKPOINT, COMMUNICATION, VOIRKIT, REST = range(len(_COLUMNS))

_FREEING_NS = 100_000

# What each span of the steps instrument counts for; all of comm is communication.
MEANING = {
    ("dataloader", "iter"): WAIT,
    ("dataloader", "fetch"): WAIT,
    ("dataloader", "end"): WAIT,
    ("dataloader", "queue"): WAIT,
    ("device", "transfer"): TRANSFER,
    ("compute", "forward"): FORWARD,
    ("compute", "backward"): BACKWARD,
    ("compute", "step"): OPTIMIZER,
    ("compute", "loss"): LOSS,
    ("compute", "zero_grad"): ZERO_GRAD,
    ("checkpoint", "capture"): CHECKPOINT,
    ("checkpoint", "restart"): CHECKPOINT,
    ("voirkit", "look"): VOIRKIT,
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
        own_ns: Shape (n, 11): time by wait, transfer, forward, backward, optimizer, loss, zero_grad, checkpoint, communication,
            voirkit's own looks, rest; each row sums to its ``time_ns``.
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
        saving_between_ns: Time in checkpoints since the first step of training that is in no step: those after a loop's last batch.
    """

    train: Table
    evaluation: Table
    wait_known: bool
    device: DeviceTable | None = None
    episodes: frozenset[int] = frozenset()
    saving_between_ns: int = 0


def steps_of(timeline: Timeline) -> Steps:
    """The steps of a thread."""
    timeline = _copies_in_a_row(timeline)
    steps = _steps_of(timeline)
    return replace(steps, saving_between_ns=_saving_between(timeline, steps)) if len(steps.train) else steps


def _saving_between(timeline: Timeline, steps: Steps) -> int:
    since = (timeline.meaning == CHECKPOINT) & (timeline.start_ns >= steps.train.start_ns.min())
    spent = int(exclusive_ns(timeline.start_ns, timeline.duration_ns)[since].sum())
    return max(spent - sum(int(table.own_ns[:, CHECKPOINT].sum()) for table in (steps.train, steps.evaluation)), 0)


def _steps_of(timeline: Timeline) -> Steps:
    requests = as_read(timeline.requests, _work(timeline))
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
    if not training:
        return Steps(_between_optimizer_steps(timeline, made, turn_of), evaluation, wait_known=False)
    table = _table(made.turns, training, requests, own, time)
    stepped = timeline.start_ns[timeline.leads & (turn_of == OUTSIDE)]
    ends = [r for r in requests if r.kind is Kind.END and r.episode in trains] if len(stepped) > 1 else []
    for end, until in zip(ends, [*(r.end_ns for r in ends[1:]), np.iinfo(np.int64).max], strict=True) if ends else ():
        if np.diff(np.searchsorted(stepped, (end.end_ns, until))) > 1:
            more = _going_on(timeline, made, turn_of, end.end_ns, until, table)
            given = np.array([_items(t, requests) for t in made.turns if t.episode == end.episode])
            table = _joined(table, replace(more, items=np.resize(given, len(more))))  # the same batches, in their order
    return Steps(table, evaluation, wait_known=True, episodes=frozenset(trains))


def _copies_in_a_row(timeline: Timeline) -> Timeline:
    """Copies one after the other as one: what lies between them, giving back the memory of the one before (40 us for 4 MB), is its cost."""
    start, duration = timeline.start_ns, timeline.duration_ns
    between = start[1:] - start[:-1] - duration[:-1]
    copies = (timeline.meaning[1:] == TRANSFER) & (timeline.meaning[:-1] == TRANSFER)
    near = copies & (between > 0) & (between <= np.minimum(_FREEING_NS, duration[:-1] // 10))
    longer = duration.copy()
    longer[:-1][near] += between[near]
    return replace(timeline, duration_ns=longer)


def _work(timeline: Timeline) -> Work:
    """The spans that tell whether a step was done."""
    kind = np.zeros(REST + 1, dtype=np.int64)
    kind[[FORWARD, BACKWARD, OPTIMIZER]] = Work.FORWARD, Work.BACKWARD, Work.OPTIMIZER
    kind = kind[timeline.meaning]
    chosen = kind != 0
    start = timeline.start_ns[chosen]
    return Work(start, start + timeline.duration_ns[chosen], kind[chosen])


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


def _between_optimizer_steps(timeline: Timeline, made: Cut, turn_of: Array) -> Table:
    """Steps of a script whose batches come from no loader: from one step of its first optimizer to the next."""
    outside = turn_of == OUTSIDE
    ends = (timeline.start_ns + timeline.duration_ns)[timeline.leads & outside]
    work = timeline.start_ns[outside & (timeline.meaning == FORWARD)]
    if not len(ends):
        return _between(timeline, made, turn_of, ends)
    first = work[0] if len(work) and work[0] < ends[0] else ends[0]
    return _between(timeline, made, turn_of, np.concatenate(([first], ends)) if first < ends[0] else ends)


def _going_on(timeline: Timeline, made: Cut, turn_of: Array, at_ns: int, until_ns: int, table: Table) -> Table:
    """Steps that go on with batches that the loader gave before (``itertools.cycle``), after it had no more.

    Args:
        timeline: The thread's.
        made: How it was cut.
        turn_of: To which turn each span belongs.
        at_ns: When the loader had no more.
        until_ns: When it next had no more.
        table: The steps of loops over loaders.
    """
    again = table.start_ns[table.start_ns > at_ns]
    until = min([until_ns, *again[:1].tolist()])
    inside = (turn_of == OUTSIDE) & (timeline.start_ns >= at_ns) & (timeline.start_ns < until)
    ends = (timeline.start_ns + timeline.duration_ns)[timeline.leads & inside]
    calls = timeline.start_ns[inside & (timeline.meaning == FORWARD)]
    # Not what remains of a loop (a last step of the optimizer): several steps, and each with its own call of the model.
    if len(ends) < 2 or not np.all(np.diff(np.searchsorted(calls, np.concatenate(([at_ns], ends))))):
        return _between(timeline, made, turn_of, ends[:0])
    # A step ends as long after its optimizer's as the steps before it did.
    begun, steps = table.start_ns[table.start_ns < at_ns], np.flatnonzero(timeline.leads & (turn_of != OUTSIDE))
    stepped = (timeline.start_ns + timeline.duration_ns)[steps[timeline.start_ns[steps] < at_ns]]
    tail = (
        int(np.median((begun + table.time_ns[: len(begun)])[-len(stepped) :] - stepped[-len(begun) :])) if len(begun) == len(stepped) else 0
    )
    limits = np.append(calls[np.searchsorted(calls, ends[:-1])], until)
    return _between(timeline, made, turn_of, np.concatenate(([at_ns], np.minimum(ends + max(tail, 0), limits))))


def _between(timeline: Timeline, made: Cut, turn_of: Array, edges: Array) -> Table:
    """Steps from one time to the next, without the loops over loaders between them. What they wait for is not known, nor their items."""
    n = max(len(edges) - 1, 0)
    if not n:
        nothing = np.zeros(0, dtype=np.int64)
        return _completed(nothing, nothing, nothing, np.zeros((0, len(_COLUMNS))))
    turn = np.searchsorted(edges, timeline.start_ns, side="right") - 1
    turn = np.where((turn_of == OUTSIDE) & (turn >= 0) & (turn < n), turn, OUTSIDE)
    return _completed(edges[:-1], np.diff(_outside_ns(made, edges)), np.full(n, -1), _by_turn(timeline, turn, n))


def _outside_ns(made: Cut, at_ns: Array) -> Array:
    """How much of the time before each instant belongs to no turn; from some beginning of its own."""
    if not made.edges:
        return at_ns
    edges = np.asarray(made.edges)
    lasting = np.append(np.diff(edges), 0) * (np.asarray(made.owners) == OUTSIDE)
    before = np.concatenate(([0], np.cumsum(lasting)[:-1]))
    piece = np.searchsorted(edges, at_ns, side="right") - 1
    within = np.where(np.asarray(made.owners)[piece] == OUTSIDE, at_ns - edges[piece], 0)
    return np.where(piece < 0, at_ns - edges[0], before[piece] + within)


def _joined(first: Table, second: Table) -> Table:
    """The steps of both, ascending by start."""
    if not len(second):
        return first
    order = np.argsort(np.concatenate((first.start_ns, second.start_ns)), kind="stable")
    columns = ("start_ns", "time_ns", "items", "own_ns")
    return Table(*(np.concatenate((getattr(first, name), getattr(second, name)))[order] for name in columns))
