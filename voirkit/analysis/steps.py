"""From the spans of a training process to its steps: how long each took, and where its time went.

What a step and a phase are is defined in docs/steps.md. Each instant of a step counts for one
phase, the innermost, so that the phases of a step sum to its time exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from voirkit.analysis.drawn_batches import set_aside_evaluations
from voirkit.analysis.loader_requests import iterator_of, normalize_requests
from voirkit.analysis.nesting import NONE, Array, exclusive_ns, innermost, outer_first
from voirkit.analysis.outside_loops import (
    Loops,
    Marks,
    declared_evaluation,
    evaluating,
    requests_of_evaluation,
    requests_of_steps,
    steps_outside,
)
from voirkit.analysis.segmentation import (
    LET_GO,
    OUTSIDE,
    Kind,
    Request,
    Segmentation,
    StepInterval,
    Work,
    split_at_requests,
)
from voirkit.analysis.work_times import NEVER, first_from
from voirkit.phase_table import COLUMN, COLUMNS, PHASES

# Columns of ``Table.own_ns``.
WAIT = COLUMN["wait"]
TRANSFER = COLUMN["transfer"]
FORWARD = COLUMN["forward"]
BACKWARD = COLUMN["backward"]
OPTIMIZER = COLUMN["optimizer"]
COMMUNICATION = COLUMN["communication"]
LOSS = COLUMN["loss"]
ZERO_GRAD = COLUMN["zero_grad"]
CHECKPOINT = COLUMN["checkpoint"]
COMPILE = COLUMN["compile"]
IMPORT = COLUMN["import"]
GC = COLUMN["gc"]
VOIRKIT = COLUMN["voirkit"]
REST = COLUMN["rest"]

# What is a part of the run's wall time by itself, wherever it happens, and none of training's or
# evaluation's.
ASIDE = {"checkpoint": CHECKPOINT, "compile": COMPILE, "import": IMPORT, "gc": GC}
# The same of starting and stopping workers of loaders; in a step of training it is a part of the
# wait.
WORKERS = "workers"

_FREEING_NS = 100_000


@dataclass(frozen=True)
class Timeline:
    """The spans of one thread, ascending by start; arrays of shape (n,)."""

    start_ns: Array  # on the process's clock
    duration_ns: Array  # nanoseconds
    meaning: Array  # index into ``COLUMNS``; shape (n,)
    optimizer: Array  # of a step of an optimizer, which one
    grad: Array  # of a module call, whether it was made with gradients
    training: Array  # of a module call, whether the module was in training mode
    requests: Sequence[Request]  # what was asked of loaders, ascending by start
    # when modules were switched by ``train()`` and ``eval()``, ascending, and whether to training
    modes: Sequence[tuple[int, bool]] = ()
    # by loader, how many batches an epoch has, where that is known
    lengths: Mapping[int, int] = field(default_factory=dict)
    # from when to when the script itself says that it evaluates, ascending
    annotated: Sequence[tuple[int, int]] = ()
    # whether a span starts or stops workers of a loader; None for no such span
    workers: Array | None = None


@dataclass(frozen=True)
class Table:
    """Steps of one kind; arrays of shape (n,), or (n, phases)."""

    start_ns: Array  # when each began
    time_ns: Array  # how long it took, without loops that lie in it (an evaluation every 100 steps)
    items: Array  # how many items its batch held; -1 if that is not known
    # shape (n, 14): time by wait, transfer, forward, backward, optimizer, communication, loss,
    # zero_grad, checkpoint, compilation, imports, garbage collections, voirkit's own looks, rest;
    # each row sums to its ``time_ns``
    own_ns: Array
    # how long the loops lasted that lie in it and are no part of its ``time_ns``; None is given for
    # none
    loops_ns: Array = None

    def __post_init__(self) -> None:
        if self.loops_ns is None:
            # one number in memory
            object.__setattr__(self, "loops_ns", np.broadcast_to(np.int64(0), len(self.time_ns)))

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def end_ns(self) -> Array:
        """When each ended by the clock, with the loops that lie in it."""
        return self.start_ns + self.time_ns + self.loops_ns

    def chosen(self, rows: Array | slice) -> Table:
        """Only some steps, or all in another order."""
        return Table(*(getattr(self, column.name)[rows] for column in fields(self)))

    def phase_ns(self, phase: str) -> Array:
        """Time in a phase by step; ``other`` is all that is none of the rest."""
        if phase == "other":
            return self.own_ns[:, LOSS:].sum(axis=1)
        return self.own_ns[:, PHASES.index(phase)]


def concatenated(tables: Sequence[Table]) -> Table:
    """The steps of several tables, one table after the other."""
    return Table(
        *(
            np.concatenate([getattr(table, column.name) for table in tables])
            for column in fields(Table)
        )
    )


@dataclass(frozen=True)
class DeviceTable:
    """Steps of training as a GPU saw them."""

    # each to the end of the work that was started in it. Forward, backward and optimizer are the
    # device's time, wait and the parts of other that of the host while the device had nothing to
    # do, rest that in which nothing is known of either.
    table: Table
    # by step, how much of forward, backward and optimizer was work that ended as soon as the host
    # had started it: in that time the device could have done more. Shape (n,).
    launching_ns: Array


@dataclass(frozen=True)
class Uncounted:
    """Training that lies in no counted step and in no evaluation."""

    optimizer_steps: int
    backward_passes: int
    first_ns: int  # when the first of them began

    def __bool__(self) -> bool:
        return bool(self.optimizer_steps or self.backward_passes)

    def plus(self, other: Uncounted) -> Uncounted:
        """Both together."""
        if not self or not other:
            return self or other
        return Uncounted(
            self.optimizer_steps + other.optimizer_steps,
            self.backward_passes + other.backward_passes,
            min(self.first_ns, other.first_ns),
        )


ALL_COUNTED = Uncounted(0, 0, 0)


@dataclass(frozen=True)
class Steps:
    """The steps of one thread, or of several that take turns."""

    train: Table  # those of training
    evaluation: Table  # those of loops in which a model is called and nothing is trained
    wait_known: bool  # whether the time that training waits for batches could be seen
    device: DeviceTable | None = None  # those of training on the clock of a GPU, if one was used
    # numbers of the iterators whose batches were trained on; not kept in a rollup
    episodes: frozenset[int] = frozenset()
    # time in checkpoints since the first step of training that is in no step: those after a loop's
    # last batch
    saving_between_ns: int = 0
    # by part of the wall time (``ASIDE``, ``WORKERS``), what is in no step: before the first of all
    # steps, and since then
    aside_ns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uncounted: Uncounted = ALL_COUNTED
    # time in which workers of loaders are started or stopped in steps of evaluation
    workers_in_evaluation_ns: int = 0

    @property
    def tables(self) -> tuple[Table, Table]:
        """The steps of training, and those of evaluation."""
        return self.train, self.evaluation

    @property
    def first_ns(self) -> int:
        """When the first step of training or evaluation began; ``NEVER`` if there is none."""
        return min(
            (int(table.start_ns.min()) for table in self.tables if len(table)), default=NEVER
        )

    def phase_time_ns(self, column: int) -> int:
        """The time in a column of ``COLUMNS`` in all steps of training and evaluation."""
        return sum(int(table.own_ns[:, column].sum()) for table in self.tables)

    def training_steps_at(self, at_ns: Array) -> Array:
        """The step of training in which each instant lies, ``NONE`` for none, and for what lies in
        an evaluation within a step."""
        return self.steps_at(at_ns)[0]

    def steps_at(self, at_ns: Array) -> tuple[Array, Array]:
        """The step of training, and that of evaluation, in which each instant lies: the innermost;
        ``NONE`` for the other, or for none."""
        start_ns = np.concatenate((self.train.start_ns, self.evaluation.start_ns))
        end_ns = np.concatenate((self.train.end_ns, self.evaluation.end_ns))
        order = outer_first(start_ns, end_ns - start_ns)
        row = np.append(order, NONE)[innermost(start_ns[order], end_ns[order], at_ns)]
        n_train = len(self.train)
        return np.where(row < n_train, row, NONE), np.maximum(row - n_train, NONE)


_NOTHING: Array = np.zeros(0, np.int64)
_NO_TABLE = Table(_NOTHING, _NOTHING, _NOTHING, np.zeros((0, len(COLUMNS)), np.int64))
NO_STEPS = Steps(_NO_TABLE, _NO_TABLE, wait_known=True)


def steps_of(timeline: Timeline) -> Steps:
    """The steps of a thread."""
    timeline = _copies_in_a_row(timeline)
    steps = _steps_of(timeline)
    steps = replace(steps, aside_ns={**_aside(timeline, steps), **steps.aside_ns})
    if not len(steps.train):
        return steps
    return replace(steps, saving_between_ns=_saving_between(timeline, steps))


def _aside(timeline: Timeline, steps: Steps) -> dict[str, tuple[int, int]]:
    own_ns = exclusive_ns(timeline.start_ns, timeline.duration_ns)
    is_early = timeline.start_ns < steps.first_ns
    aside_ns = {}
    for name, column in ASIDE.items():
        is_meant = timeline.meaning == column
        before_ns = int(own_ns[is_meant & is_early].sum())
        since_ns = int(own_ns[is_meant & ~is_early].sum())
        aside_ns[name] = before_ns, max(since_ns - steps.phase_time_ns(column), 0)
    return aside_ns


def _saving_between(timeline: Timeline, steps: Steps) -> int:
    is_since = timeline.start_ns >= steps.train.start_ns.min()
    own_ns = exclusive_ns(timeline.start_ns, timeline.duration_ns)
    saving_ns = int(own_ns[is_since & (timeline.meaning == CHECKPOINT)].sum())
    return max(saving_ns - steps.phase_time_ns(CHECKPOINT), 0)


def _steps_of(timeline: Timeline) -> Steps:
    work = _work(timeline)
    marks = _marks(timeline)
    resumed_ns = [at_ns for at_ns, training in timeline.modes if training]
    apart = work.chosen((work.kind != Work.BACKWARD) | ~declared_evaluation(work, marks))
    of_loops, held_out = set_aside_evaluations(timeline.requests, apart, resumed_ns)
    requests = normalize_requests(of_loops, apart, timeline.lengths)
    loop_episodes = {request.episode for request in requests}
    segmentation = split_at_requests(requests)
    trains = _training_episodes(segmentation, apart, requests, marks.zeroed_ns)
    stepped, evaluated_by_hand, iterators = _outside_of_loops(
        timeline, work, marks, segmentation, trains, [*of_loops, *held_out]
    )
    if stepped or evaluated_by_hand:
        trains |= {request.episode for request in stepped}
        held_by_evaluation = iterators - trains
        in_loops = [request for request in requests if request.episode not in held_by_evaluation]
        requests = _merged([in_loops, stepped, evaluated_by_hand])
        segmentation = split_at_requests(requests)
    turn_of = segmentation.turns_at(timeline.start_ns)
    is_model_work = np.isin(timeline.meaning, (FORWARD, BACKWARD))
    evaluates = _episodes_with(segmentation, turn_of, is_model_work) - trains
    own_ns = _time_by_turn(timeline, turn_of, len(segmentation.turns))
    time_ns = _turn_times(segmentation)
    training = _closed_turns(segmentation, trains)
    evaluated = _closed_turns(segmentation, evaluates)
    train = _table(segmentation.turns, training, requests, own_ns, time_ns)
    evaluation = _table(segmentation.turns, evaluated, requests, own_ns, time_ns)
    trained_loops = trains & loop_episodes
    wait_known = any(segmentation.turns[i].episode in trained_loops for i in training)
    since_ns = _known_since(timeline.requests, segmentation, trains)
    going_on = _turns_that_go_on(segmentation, requests)
    uncounted = _uncounted(segmentation, work, [*training, *evaluated, *going_on], since_ns)
    episodes = frozenset(map(iterator_of, trained_loops))
    steps = Steps(train, evaluation, wait_known, episodes=episodes, uncounted=uncounted)
    if timeline.workers is None:
        return steps
    exclusive = exclusive_ns(timeline.start_ns, timeline.duration_ns)
    workers_ns = np.where(np.asarray(timeline.workers), exclusive, 0)
    return _with_workers(steps, timeline, workers_ns, turn_of, training, evaluated)


def _closed_turns(segmentation: Segmentation, episodes: Collection[int]) -> list[int]:
    """The turns of some iterators that are over."""
    return [
        i
        for i, turn in enumerate(segmentation.turns)
        if turn.end_ns is not None and turn.episode in episodes
    ]


def _with_workers(
    steps: Steps,
    timeline: Timeline,
    workers_ns: Array,
    turn_of: Array,
    training: Sequence[int],
    evaluated: Sequence[int],
) -> Steps:
    """The steps with the time in which workers are started and stopped, but for that in steps of
    training.

    Args:
        workers_ns: Of each span how much of that time it is.
        turn_of: Of each span the turn in which it begins.
        training: The turns that are steps of training.
        evaluated: Those that are steps of evaluation.
    """
    in_evaluation = np.isin(turn_of, evaluated)
    in_no_step = ~in_evaluation & ~np.isin(turn_of, training)
    is_early = timeline.start_ns < steps.first_ns
    before_ns = int(workers_ns[in_no_step & is_early].sum())
    since_ns = int(workers_ns[in_no_step & ~is_early].sum())
    return replace(
        steps,
        aside_ns={WORKERS: (before_ns, since_ns)},
        workers_in_evaluation_ns=int(workers_ns[in_evaluation].sum()),
    )


def _turns_that_go_on(segmentation: Segmentation, requests: Sequence[Request]) -> list[int]:
    """The turns that are not over where the records end, as of a run that was killed: their steps
    are not left out."""
    over = {request.episode for request in requests if request.kind >= Kind.END}
    last = {turn.episode: i for i, turn in enumerate(segmentation.turns)}
    return [
        i
        for episode, i in last.items()
        if episode not in over and segmentation.turns[i].end_ns is None
    ]


def _uncounted(
    segmentation: Segmentation, work: Work, counted_turns: Sequence[int], since_ns: int
) -> Uncounted:
    """The training in no counted turn, of what began since a time."""
    turn_of = segmentation.turns_at(work.start_ns)
    is_counted = np.isin(turn_of, counted_turns)
    is_trained = (work.kind & Work.TRAINS) != 0
    left_out = ~is_counted & is_trained & (work.start_ns >= since_ns)
    if not left_out.any():
        return ALL_COUNTED
    kinds = work.kind[left_out]
    steps = int(np.count_nonzero(kinds == Work.OPTIMIZER))
    return Uncounted(steps, len(kinds) - steps, int(work.start_ns[left_out][0]))


def _marks(timeline: Timeline) -> Marks:
    saved_ns = timeline.start_ns[timeline.meaning == CHECKPOINT]
    zeroed_ns = timeline.start_ns[timeline.meaning == ZERO_GRAD]
    fetched_ns = [request.start_ns for request in timeline.requests if request.kind is Kind.FETCH]
    asked_ns = [request.start_ns for request in timeline.requests if request.kind not in LET_GO]
    return Marks(timeline.modes, zeroed_ns, saved_ns, timeline.annotated, fetched_ns, asked_ns)


def _outside_of_loops(
    timeline: Timeline,
    work: Work,
    marks: Marks,
    segmentation: Segmentation,
    trains: frozenset[int],
    requests: Sequence[Request],
) -> tuple[list[Request], list[Request], set[int]]:
    """Requests that nobody made, where steps begin that no loop over a loader tells of; and where
    evaluation does, with the iterators whose batches went there."""
    turn = segmentation.turns_at(work.start_ns)
    loops = Loops(turn, segmentation.turns, trains)
    stretches = steps_outside(work, loops, _known_since(timeline.requests, segmentation, trains))
    step_ends_ns = work.start_ns[:0]
    if stretches:
        step_ends_ns = np.concatenate([steps.end_ns for steps in stretches])
    evaluates = evaluating(work, marks, loops, step_ends_ns)
    # -1 is a loader that is not known
    first_episode = min([request.episode - 1 for request in timeline.requests] + [-2])
    is_step_work = (turn == OUTSIDE) & ~evaluates & (work.kind != Work.OPTIMIZER)
    steps = requests_of_steps(stretches, work.chosen(is_step_work), first_episode)
    if not evaluates.any():
        return steps, [], set()
    first_episode -= len(stretches)
    evaluation, iterators = requests_of_evaluation(
        evaluates, work, marks, loops, first_episode, requests
    )
    return steps, evaluation, iterators


def _known_since(
    requests: Sequence[Request], segmentation: Segmentation, trains: frozenset[int]
) -> int:
    """Where only the end of a run is known, its first loop may have begun before: what lies before
    its requests is then a part of it."""
    first = next((turn for turn in segmentation.turns if turn.episode in trains), None)
    if first is None or first.episode < 0:  # what came through a queue has no iterator here
        return 0
    is_made = any(
        request.episode == first.episode and request.kind is Kind.ITER for request in requests
    )
    return 0 if is_made else first.start_ns


def _merged(loops: Sequence[Sequence[Request]]) -> list[Request]:
    """Requests by their start; of those at one time, ends come first, the innermost loop's first of
    all: it stands behind the others."""
    order = []
    for depth, requests in enumerate(loops):
        for request in requests:
            place = -depth if request.kind is Kind.END else depth
            order.append((request.start_ns, place, request))
    return [request for _, _, request in sorted(order, key=lambda row: row[:2])]


def _copies_in_a_row(timeline: Timeline) -> Timeline:
    """Copies one after the other as one: what lies between them, giving back the memory of the one
    before (40 us for 4 MB), is its cost."""
    start, duration = timeline.start_ns, timeline.duration_ns
    between = start[1:] - start[:-1] - duration[:-1]
    copies = (timeline.meaning[1:] == TRANSFER) & (timeline.meaning[:-1] == TRANSFER)
    near = copies & (between > 0) & (between <= np.minimum(_FREEING_NS, duration[:-1] // 10))
    longer = duration.copy()
    longer[:-1][near] += between[near]
    return replace(timeline, duration_ns=longer)


def _work(timeline: Timeline) -> Work:
    """The spans that show whether a step was done."""
    kinds = np.zeros(REST + 1, dtype=np.int64)
    kinds[[FORWARD, BACKWARD, OPTIMIZER]] = Work.FORWARD, Work.BACKWARD, Work.OPTIMIZER
    kind = kinds[timeline.meaning]
    rows = kind != 0
    start_ns = timeline.start_ns[rows]
    return Work(
        start_ns,
        start_ns + timeline.duration_ns[rows],
        kind[rows],
        timeline.optimizer[rows],
        timeline.grad[rows],
        timeline.training[rows],
    )


def _training_episodes(
    segmentation: Segmentation, work: Work, requests: Sequence[Request], zeroed_ns: Array
) -> frozenset[int]:
    """The iterators on whose batches something is trained: an optimizer steps there, or, where none
    does in the whole run, gradients are taken by a model that is not in evaluation mode.

    Where gradients alone are taken, they are trained with if an optimizer steps with them
    afterwards, before they are set to zero: at once, or in a later loop over the same loader; or if
    they are accumulated over that loader when the run ends. Others are of an evaluation (forces,
    attacks, Fisher information). So are those of an iterator whose models are all in evaluation
    mode, and whose optimizers step in no loop that trains.
    """
    turn_of = segmentation.turns_at(work.start_ns)
    trains = (work.kind & Work.TRAINS) != 0
    called = work.kind == Work.FORWARD
    in_training = _episodes_with(segmentation, turn_of, called & work.training & work.grad)
    in_evaluation = _episodes_with(segmentation, turn_of, called & ~work.training) - in_training
    if not (work.kind == Work.OPTIMIZER).any():
        return frozenset(_episodes_with(segmentation, turn_of, trains) - in_evaluation)
    steps = _episodes_with(segmentation, turn_of, work.kind == Work.OPTIMIZER)
    steps -= _with_optimizers_of_their_own(segmentation, work, turn_of, steps, in_evaluation)
    loader_of = {request.episode: request.loader for request in requests}
    of_training = {loader_of.get(episode) for episode in steps} - {-1}
    is_inside = trains & (turn_of != OUTSIDE)
    gradients = _Gradients(segmentation, work.chosen(is_inside), turn_of[is_inside])
    next_update_ns = first_from(work.of(Work.OPTIMIZER).start_ns, gradients.end_ns)
    next_pass_ns = first_from(work.of(Work.BACKWARD).start_ns, gradients.end_ns)
    is_cleared: Array = first_from(zeroed_ns, gradients.end_ns) < next_update_ns
    n_zeroed_before = np.searchsorted(zeroed_ns, gradients.start_ns)
    is_zeroed_within: Array = np.searchsorted(zeroed_ns, gradients.end_ns) > n_zeroed_before
    for i, episode in enumerate(gradients.episodes):
        if episode in steps or episode in in_evaluation or is_cleared[i]:
            continue
        is_of_training = loader_of.get(episode) in of_training
        if next_update_ns[i] == NEVER:  # no optimizer step follows these gradients
            is_training = episode in in_training and is_of_training and not is_zeroed_within[i]
        else:
            is_training = next_pass_ns[i] >= next_update_ns[i] or is_of_training
        if is_training:
            steps.add(episode)
    return frozenset(steps)


class _Gradients:
    """The time in which something is trained on the batches of each iterator.

    Attributes:
        episodes: The iterators, ascending.
        start_ns: When that began, by iterator.
        end_ns: When the last of it was over, by iterator.
    """

    def __init__(self, segmentation: Segmentation, work: Work, turn_of: Array) -> None:
        episode_of = segmentation.episodes[turn_of]
        episodes, firsts = np.unique(episode_of, return_index=True)
        _, lasts = np.unique(episode_of[::-1], return_index=True)
        self.episodes: list[int] = episodes.tolist()
        self.start_ns: Array = work.start_ns[firsts]
        self.end_ns: Array = work.end_ns[::-1][lasts]


def _with_optimizers_of_their_own(
    segmentation: Segmentation, work: Work, turn_of: Array, steps: set[int], in_evaluation: set[int]
) -> set[int]:
    """The iterators in whose turns optimizers step, of an evaluation that has optimizers of its own
    (an attack on its inputs)."""
    outer = steps - in_evaluation
    inner = steps & in_evaluation
    if not outer or not inner:
        return set()
    updates = work.chosen(work.kind == Work.OPTIMIZER)
    turn_of_update = turn_of[work.kind == Work.OPTIMIZER]
    is_inside = turn_of_update != OUTSIDE
    optimizer = updates.optimizer[is_inside]
    episode_of = segmentation.episodes[turn_of_update[is_inside]]
    trained = set(optimizer[np.isin(episode_of, list(outer))].tolist())
    trained |= set(updates.optimizer[~is_inside].tolist())
    return {
        episode
        for episode in inner
        if trained.isdisjoint(optimizer[episode_of == episode].tolist())
    }


def _episodes_with(segmentation: Segmentation, turn_of: Array, is_meant: Array) -> set[int]:
    """The iterators in whose turns some of the work lies."""
    return set(segmentation.episodes[turn_of[is_meant & (turn_of != OUTSIDE)]].tolist())


def _time_by_turn(timeline: Timeline, turn_of: Array, n_turns: int) -> Array:
    """Time by turn and meaning, shape (n_turns, 14), in nanoseconds; the rest is 0."""
    own_ns = exclusive_ns(timeline.start_ns, timeline.duration_ns)
    inside = turn_of != OUTSIDE
    cells = turn_of[inside] * len(COLUMNS) + timeline.meaning[inside]
    n_cells = n_turns * len(COLUMNS)
    time_ns = np.bincount(cells, weights=own_ns[inside], minlength=n_cells)
    return time_ns[:n_cells].reshape(n_turns, len(COLUMNS))


def _turn_times(segmentation: Segmentation) -> Array:
    """The time of each turn, without the loops that lie in it; turns that were never closed have no
    right figure here."""
    n_turns = len(segmentation.turns)
    if not n_turns:
        return np.zeros(0, dtype=np.int64)
    edges, owners = np.asarray(segmentation.edges), np.asarray(segmentation.owners)
    lasting_ns = np.diff(edges, append=edges[-1])
    inside = owners != OUTSIDE
    time_ns = np.bincount(owners[inside], weights=lasting_ns[inside], minlength=n_turns)
    return time_ns.astype(np.int64)


def _table(
    turns: Sequence[StepInterval],
    rows: Sequence[int],
    requests: Sequence[Request],
    own_ns: Array,
    time_ns: Array,
) -> Table:
    """The steps of some turns, by index."""
    rows = list(rows)
    items = np.array([_items(turns[i], requests) for i in rows], dtype=np.int64)
    start_ns = np.array([turns[i].start_ns for i in rows], dtype=np.int64)
    end_ns = np.array([turns[i].end_ns for i in rows], dtype=np.int64)
    table = _completed(start_ns, time_ns[rows], items, own_ns[rows])
    return replace(table, loops_ns=np.maximum(end_ns - start_ns - table.time_ns, 0))


def _completed(start_ns: Array, time_ns: Array, items: Array, own_ns: Array) -> Table:
    """A table whose rows sum to the time: what is in no span is the rest."""
    own_ns = own_ns.astype(np.int64)
    own_ns[:, REST] = np.maximum(time_ns - own_ns.sum(axis=1), 0)
    return Table(start_ns, own_ns.sum(axis=1), items, own_ns)


def _items(turn: StepInterval, requests: Sequence[Request]) -> int:
    """The number of items of the loop's own loader, -1 if that is not known: one that is asked
    beside it (``zip``) brings other halves of the same items."""
    items = next(
        (requests[i].items for i in turn.requests if requests[i].episode == turn.episode), None
    )
    return -1 if items is None else items


# Steps on the clock of a GPU: what it worked on, what it waited for, from the spans of the host and
# those of the device. The host only starts the work of forward and backward: how long it took, and
# when a step was really over, the device's spans tell. They are on the host's clock already.

_WORK = (FORWARD, BACKWARD, OPTIMIZER)
# What of the host is said of the time in which the device has nothing to do; the rest is the
# script's own Python, and starting of work.
_OF_HOST = (WAIT, TRANSFER, CHECKPOINT, COMMUNICATION)
_SLACK_NS = 20_000  # how far the clock of events may be off
# a device that ends no later than this after the host, or this part of the host's time, was starved
_LATE_NS, _LATE = 50_000, 0.1


def on_device(host: Timeline, device: Timeline, table: Table) -> DeviceTable | None:
    """Steps as the device saw them.

    Args:
        host: The spans of the training thread.
        device: Those of the work that it started, ascending by start.
        table: Its training steps by the host's clock.

    Returns:
        The same steps, each to the end of what was started in it, with the time of the device by
        phase; None if too little of the device is known.
    """
    of_host, of_device = _match(host, device)
    if not len(table) or len(of_device) < 2:
        return None
    start_ns, end_ns = table.start_ns, table.start_ns + table.time_ns
    launched_ns = host.start_ns[of_host]
    finished_ns = (device.start_ns + device.duration_ns)[of_device]
    step = np.searchsorted(start_ns, launched_ns, side="right") - 1
    is_inside = (step >= 0) & (launched_ns < end_ns[np.maximum(step, 0)])
    if np.unique(step[is_inside]).size < len(table) / 2:
        return None
    over_ns = end_ns.copy()
    np.maximum.at(over_ns, step[is_inside], finished_ns[is_inside])
    over_ns = np.maximum.accumulate(over_ns)
    begin_ns = start_ns.copy()
    begin_ns[1:] = np.maximum(begin_ns[1:], over_ns[:-1])  # the work of the step before goes on
    over_ns = np.maximum(over_ns, begin_ns)
    own_ns = _time_between(begin_ns, over_ns, _segments(host, device))
    time_ns = over_ns - begin_ns
    own_ns[:, REST] += np.maximum(time_ns - own_ns.sum(axis=1), 0)
    is_starved = is_inside & _starved(host, device, of_host, of_device)
    launching_ns = np.zeros(len(table))
    np.add.at(launching_ns, step[is_starved], device.duration_ns[of_device[is_starved]])
    work_ns = own_ns[:, list(_WORK)].sum(axis=1)
    launching_ns = np.minimum(launching_ns, work_ns).astype(np.int64)
    return DeviceTable(Table(begin_ns, own_ns.sum(axis=1), table.items, own_ns), launching_ns)


def _match(host: Timeline, device: Timeline) -> tuple[Array, Array]:
    """Indices of host spans and of the device spans of the work that they started. The n-th device
    span of a kind is of the n-th host span of that kind, but for the first, which have none before
    CUDA is in use."""
    hosts, devices = [], []
    for meaning in np.unique(device.meaning).tolist():
        of_host = np.flatnonzero(host.meaning == meaning)
        of_device = np.flatnonzero(device.meaning == meaning)
        n = min(len(of_host), len(of_device))
        of_device = of_device[len(of_device) - n :]
        latest_launch_ns = device.start_ns[of_device] + _SLACK_NS
        first = len(of_host) - n
        # no work begins before it is started
        while first and (latest_launch_ns < host.start_ns[of_host[first : first + n]]).any():
            first -= 1
        hosts.append(of_host[first : first + n])
        devices.append(of_device)
    if not hosts:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(hosts), np.concatenate(devices)


def _starved(host: Timeline, device: Timeline, of_host: Array, of_device: Array) -> Array:
    """True for work that ended as soon as the host had started the last of it: the device had time
    left."""
    launched_ns = (host.start_ns + host.duration_ns)[of_host]
    late_ns = (device.start_ns + device.duration_ns)[of_device] - launched_ns
    limit_ns = np.maximum(_LATE_NS, _LATE * host.duration_ns[of_host])
    return np.isin(device.meaning[of_device], _WORK) & (late_ns < limit_ns)


def _segments(host: Timeline, device: Timeline) -> list[tuple[int, int, int]]:
    """(start, end, meaning), one after the other: the device's work, and that of the host while
    there was none."""
    busy = _flat(device)
    segments = list(busy)
    first = 0  # the first of the device's that may overlap
    for start, end, meaning in _flat(host):
        if meaning not in _OF_HOST:
            continue
        while first < len(busy) and busy[first][1] <= start:
            first += 1
        i = first
        while i < len(busy) and busy[i][0] < end:
            busy_start, busy_end, _ = busy[i]
            if busy_start > start:
                segments.append((start, busy_start, meaning))
            start = max(start, busy_end)
            i += 1
        if start < end:
            segments.append((start, end, meaning))
    return sorted(segments)


def _flat(timeline: Timeline) -> list[tuple[int, int, int]]:
    """(start, end, meaning) of the innermost span at each instant."""
    segments: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int]] = []  # (end, meaning)
    now = 0

    def advance(until: int) -> None:
        nonlocal now
        while open_ and now < until:
            end, meaning = open_[-1]
            if end > now:
                segments.append((now, min(end, until), meaning))
                now = min(end, until)
            if end <= until:
                open_.pop()
        now = until

    rows = zip(
        timeline.start_ns.tolist(),
        timeline.duration_ns.tolist(),
        timeline.meaning.tolist(),
        strict=True,
    )
    for start, duration, meaning in rows:
        advance(start)
        open_.append((start + duration, meaning))
    while open_:
        end = open_[-1][0]
        if end <= now:
            open_.pop()
        else:
            advance(end)
    return segments


def _time_between(
    begin_ns: Array, over_ns: Array, segments: Sequence[tuple[int, int, int]]
) -> Array:
    """Time by step and meaning, shape (n, 14)."""
    own_ns = np.zeros((len(begin_ns), len(COLUMNS)), dtype=np.int64)
    if not segments:
        return own_ns
    starts_ns, ends_ns, meanings = (
        np.array(column, dtype=np.int64) for column in zip(*segments, strict=True)
    )
    for meaning in np.unique(meanings).tolist():
        start_ns, end_ns = starts_ns[meanings == meaning], ends_ns[meanings == meaning]
        points_ns = np.stack([start_ns, end_ns], axis=1).ravel()
        spent_ns = np.zeros(len(points_ns))
        spent_ns[1::2] = np.cumsum(end_ns - start_ns)
        spent_ns[2::2] = spent_ns[1:-1:2]
        base_ns = points_ns[0]  # of 64 bits a float has 53
        spent_at_end = np.interp(over_ns - base_ns, points_ns - base_ns, spent_ns)
        spent_at_begin = np.interp(begin_ns - base_ns, points_ns - base_ns, spent_ns)
        own_ns[:, meaning] = np.round(spent_at_end - spent_at_begin).astype(np.int64)
    return own_ns
