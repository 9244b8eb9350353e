"""Computes the steps of a training process from its spans: the duration of each step, and the time
in each of its phases.

Steps and phases are defined in docs/steps.md. Each instant of a step counts for one phase, the
innermost, so that the phases of a step add up to its time exactly.

A *turn* is a ``StepInterval``: the time from one request for a batch to the next of its iterator.
An *episode* is the number of such an iterator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from voirkit import phase_names
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

# Indices of columns of ``Table.own_ns``.
WAIT = COLUMN[phase_names.WAIT]
TRANSFER = COLUMN[phase_names.TRANSFER]
FORWARD = COLUMN[phase_names.FORWARD]
BACKWARD = COLUMN[phase_names.BACKWARD]
OPTIMIZER = COLUMN[phase_names.OPTIMIZER]
COMMUNICATION = COLUMN[phase_names.COMMUNICATION]
LOSS = COLUMN["loss"]
ZERO_GRAD = COLUMN["zero_grad"]
CHECKPOINT = COLUMN["checkpoint"]
COMPILE = COLUMN["compile"]
IMPORT = COLUMN["import"]
GC = COLUMN["gc"]
VOIRKIT = COLUMN["voirkit"]
REST = COLUMN["rest"]

# Phases that the account of the run's wall time lists by themselves, with their columns: wherever
# they happen, their time counts neither as training nor as evaluation.
ASIDE = {"checkpoint": CHECKPOINT, "compile": COMPILE, "import": IMPORT, "gc": GC}
# Starting and stopping workers of loaders, which that account lists by itself too. In a training
# step, its time counts as data loader wait instead.
WORKERS = "workers"

_FREEING_NS = 100_000


@dataclass(frozen=True)
class Timeline:
    """The spans of one thread, ascending by start; arrays of shape (n,)."""

    start_ns: Array  # on the process's clock
    duration_ns: Array  # nanoseconds
    meaning: Array  # the phase, as an index into ``COLUMNS``
    optimizer: Array  # for a step of an optimizer, the number of the optimizer
    grad: Array  # for a module call, True if it was made with gradients
    training: Array  # for a module call, True if the module was in training mode
    requests: Sequence[Request]  # the requests to loaders, ascending by start
    # calls of modules' ``train()`` and ``eval()``: (time, True for training mode), ascending
    modes: Sequence[tuple[int, bool]] = ()
    # for each loader, the number of batches in an epoch, if it is known
    lengths: Mapping[int, int] = field(default_factory=dict)
    # (start, end) of the evaluations that the script declares, ascending
    annotated: Sequence[tuple[int, int]] = ()
    # True for a span that starts or stops workers of a loader; None if there is no such span
    workers: Array | None = None


@dataclass(frozen=True)
class Table:
    """Steps of one kind (training or evaluation); arrays of shape (n,), or (n, phases)."""

    start_ns: Array  # start of each step
    time_ns: Array  # duration of each step, without loops in it (an evaluation every 100 steps)
    items: Array  # number of items in the step's batch; -1 if it is not known
    # shape (n, 14): time in wait, transfer, forward, backward, optimizer, communication, loss,
    # zero_grad, checkpoint, compilation, imports, garbage collections, voirkit's own readings,
    # rest; each row adds up to the step's ``time_ns``
    own_ns: Array
    # total duration of the loops in each step, which ``time_ns`` excludes; pass None if no step
    # contains a loop
    loops_ns: Array = None

    def __post_init__(self) -> None:
        if self.loops_ns is None:
            # zeros for all steps, in memory a single number
            object.__setattr__(self, "loops_ns", np.broadcast_to(np.int64(0), len(self.time_ns)))

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def end_ns(self) -> Array:
        """The end of each step by the clock, after the loops in it."""
        return self.start_ns + self.time_ns + self.loops_ns

    def chosen(self, rows: Array | slice) -> Table:
        """Return a table of the given rows, in their order."""
        return Table(*(getattr(self, column.name)[rows] for column in fields(self)))

    def phase_ns(self, phase: str) -> Array:
        """Return the time of each step in a phase. ``other`` is the sum of all columns from
        ``LOSS`` on."""
        if phase == "other":
            return self.own_ns[:, LOSS:].sum(axis=1)
        return self.own_ns[:, PHASES.index(phase)]


def concatenated(tables: Sequence[Table]) -> Table:
    """Return the steps of several tables in one, table after table."""
    return Table(
        *(
            np.concatenate([getattr(table, column.name) for table in tables])
            for column in fields(Table)
        )
    )


@dataclass(frozen=True)
class DeviceTable:
    """Training steps on the clock of a GPU."""

    # Each step lasts to the end of the GPU work that was launched in it. The columns forward,
    # backward and optimizer are the time that the GPU spent on these phases. Wait and the other
    # phases are the time that the host spent on them while the GPU was idle. Rest is the time for
    # which neither the GPU nor the host has a record.
    table: Table
    # for each step, the GPU time in forward, backward and optimizer for work that ended as soon as
    # the host had launched it: the GPU waited for the host, and could have done more in that time.
    # Shape (n,).
    launching_ns: Array


@dataclass(frozen=True)
class Uncounted:
    """The number of optimizer steps and backward passes in no training step and no evaluation."""

    optimizer_steps: int
    backward_passes: int
    first_ns: int  # start of the first such optimizer step or backward pass

    def __bool__(self) -> bool:
        return bool(self.optimizer_steps or self.backward_passes)

    def plus(self, other: Uncounted) -> Uncounted:
        """Return the sum of both."""
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
    """The steps of one thread, or of several threads that train in turn."""

    train: Table  # training steps
    evaluation: Table  # steps of loops in which a model is called and nothing is trained
    wait_known: bool  # True if the time that training waits for batches was recorded
    device: DeviceTable | None = None  # training steps on the clock of a GPU, if one was used
    # numbers of the iterators whose batches were trained on; not kept in a roll-up
    episodes: frozenset[int] = frozenset()
    # time in checkpoints that lie in no step and after the start of the first training step, such
    # as a checkpoint after an epoch
    saving_between_ns: int = 0
    # for each name in ``ASIDE``, and for ``WORKERS``, the time in no step: (before the first step,
    # since its start)
    aside_ns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uncounted: Uncounted = ALL_COUNTED
    # time in which workers of loaders are started or stopped in steps of evaluation
    workers_in_evaluation_ns: int = 0

    @property
    def tables(self) -> tuple[Table, Table]:
        """The training steps and the evaluation steps."""
        return self.train, self.evaluation

    @property
    def first_ns(self) -> int:
        """The start of the first step of training or evaluation; ``NEVER`` if there is none."""
        return min(
            (int(table.start_ns.min()) for table in self.tables if len(table)), default=NEVER
        )

    def phase_time_ns(self, column: int) -> int:
        """Return the time in a column of ``COLUMNS`` in all steps of training and evaluation."""
        return sum(int(table.own_ns[:, column].sum()) for table in self.tables)

    def training_steps_at(self, at_ns: Array) -> Array:
        """Return the index of the training step in which each instant lies; ``NONE`` for instants
        in no training step, or in an evaluation within one."""
        return self.steps_at(at_ns)[0]

    def steps_at(self, at_ns: Array) -> tuple[Array, Array]:
        """Return the indices of the training step and of the evaluation step in which each instant
        lies. Only the innermost of the two counts; the other is ``NONE``. Both are ``NONE`` for an
        instant in no step."""
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
    """Return the steps of a thread."""
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
    """Return the indices of the turns of some iterators, without turns that have no end."""
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
    """Return the steps with the time of starting and stopping workers filled in. That time does not
    count inside of training steps.

    Args:
        steps: The steps without that time.
        timeline: The spans of the thread.
        workers_ns: The time of starting and stopping workers in each span; 0 for other spans.
        turn_of: The index of the turn in which each span begins.
        training: The indices of the turns that are training steps.
        evaluated: The indices of the turns that are evaluation steps.
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
    """Return the indices of the turns in progress where the records end, as in a killed run. Their
    optimizer steps and backward passes do not count as uncounted."""
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
    """Return the training outside of counted turns that began at or after a time."""
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
    """Return synthetic requests for steps in no loop over a loader, synthetic requests for
    evaluations by hand, and the iterators whose batches these evaluations used."""
    turn = segmentation.turns_at(work.start_ns)
    loops = Loops(turn, segmentation.turns, trains)
    stretches = steps_outside(work, loops, _known_since(timeline.requests, segmentation, trains))
    step_ends_ns = work.start_ns[:0]
    if stretches:
        step_ends_ns = np.concatenate([steps.end_ns for steps in stretches])
    evaluates = evaluating(work, marks, loops, step_ends_ns)
    # made-up iterators are numbered from -2 or lower downwards; -1 stands for an unknown loader
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
    """Return the time from which on training outside of loops can be recognized: usually 0.

    If the creation of the first training loop's iterator was not recorded, it is the start of that
    loop: only the end of the run was recorded, and earlier work may belong to the loop."""
    first = next((turn for turn in segmentation.turns if turn.episode in trains), None)
    if first is None or first.episode < 0:  # below 0: batches from a queue, without an iterator
        return 0
    is_made = any(
        request.episode == first.episode and request.kind is Kind.ITER for request in requests
    )
    return 0 if is_made else first.start_ns


def _merged(loops: Sequence[Sequence[Request]]) -> list[Request]:
    """Return the requests of several loops, ascending by start. ``loops``: the innermost loop last.
    Of requests at the same time, ``END`` requests come first, that of the innermost loop first."""
    order = []
    for depth, requests in enumerate(loops):
        for request in requests:
            place = -depth if request.kind is Kind.END else depth
            order.append((request.start_ns, place, request))
    return [request for _, _, request in sorted(order, key=lambda row: row[:2])]


def _copies_in_a_row(timeline: Timeline) -> Timeline:
    """Return the timeline with each copy (phase ``transfer``) extended to the next copy, if that
    follows at once: in between, the memory of the earlier copy is freed (40 us for 4 MB)."""
    start, duration = timeline.start_ns, timeline.duration_ns
    between = start[1:] - start[:-1] - duration[:-1]
    copies = (timeline.meaning[1:] == TRANSFER) & (timeline.meaning[:-1] == TRANSFER)
    near = copies & (between > 0) & (between <= np.minimum(_FREEING_NS, duration[:-1] // 10))
    longer = duration.copy()
    longer[:-1][near] += between[near]
    return replace(timeline, duration_ns=longer)


def _work(timeline: Timeline) -> Work:
    """Return the model calls, backward passes and optimizer steps."""
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
    """Return the iterators whose batches are used for training.

    These are the iterators in whose turns an optimizer steps. If no optimizer steps in the whole
    run, they are those with a backward pass and a model that is not in evaluation mode.

    An iterator with backward passes but no optimizer step counts if an optimizer uses its gradients
    later, before they are set to zero: at once, or in a later loop over the same loader. It also
    counts if the run ends while gradients of that loader are accumulated. Other gradients belong to
    an evaluation (forces, attacks, Fisher information). So do those of an iterator whose models are
    all in evaluation mode, and whose optimizers step in no training loop.
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
    """The time range of the training work on each iterator's batches.

    Attributes:
        episodes: The iterators, ascending.
        start_ns: For each iterator, the start of the first such work.
        end_ns: For each iterator, the end of the last such work.
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
    """Return the iterators of evaluations with optimizers of their own (an attack on the inputs),
    which step neither in training loops nor outside of loops."""
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
    """Return the iterators in whose turns any of the selected work lies. ``is_meant``: True for the
    selected work."""
    return set(segmentation.episodes[turn_of[is_meant & (turn_of != OUTSIDE)]].tolist())


def _time_by_turn(timeline: Timeline, turn_of: Array, n_turns: int) -> Array:
    """Return the time of each turn in each phase, in nanoseconds, shape (n_turns, 14). The column
    ``rest`` is 0."""
    own_ns = exclusive_ns(timeline.start_ns, timeline.duration_ns)
    inside = turn_of != OUTSIDE
    cells = turn_of[inside] * len(COLUMNS) + timeline.meaning[inside]
    n_cells = n_turns * len(COLUMNS)
    time_ns = np.bincount(cells, weights=own_ns[inside], minlength=n_cells)
    return time_ns[:n_cells].reshape(n_turns, len(COLUMNS))


def _turn_times(segmentation: Segmentation) -> Array:
    """Return the time of each turn without the loops in it; wrong for turns without an end."""
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
    """Return the table of steps for the turns with the given indices (``rows``)."""
    rows = list(rows)
    items = np.array([_items(turns[i], requests) for i in rows], dtype=np.int64)
    start_ns = np.array([turns[i].start_ns for i in rows], dtype=np.int64)
    end_ns = np.array([turns[i].end_ns for i in rows], dtype=np.int64)
    table = _completed(start_ns, time_ns[rows], items, own_ns[rows])
    return replace(table, loops_ns=np.maximum(end_ns - start_ns - table.time_ns, 0))


def _completed(start_ns: Array, time_ns: Array, items: Array, own_ns: Array) -> Table:
    """Return a table whose rows add up to ``time_ns``: the time in no span becomes ``rest``."""
    own_ns = own_ns.astype(np.int64)
    own_ns[:, REST] = np.maximum(time_ns - own_ns.sum(axis=1), 0)
    return Table(start_ns, own_ns.sum(axis=1), items, own_ns)


def _items(turn: StepInterval, requests: Sequence[Request]) -> int:
    """Return the number of items in a turn's batch; -1 if it is not known. Batches of a companion
    loader (``zip``) do not count: they hold other parts of the same items."""
    items = next(
        (requests[i].items for i in turn.requests if requests[i].episode == turn.episode), None
    )
    return -1 if items is None else items


# Steps on the clock of a GPU: when the GPU computed and when it was idle, from the spans of the
# host and of the device. In forward and backward the host only launches work for the GPU. The spans
# of the device say how long that work took and when each step really ended. Their times have been
# converted to the host's clock.

_WORK = (FORWARD, BACKWARD, OPTIMIZER)
# Phases of the host to which the device's idle time is assigned. In its other idle time the host
# runs the script's own Python code, or launches work for the device.
_OF_HOST = (WAIT, TRANSFER, CHECKPOINT, COMMUNICATION)
_SLACK_NS = 20_000  # possible error of times that come from CUDA events
# The device was starved (it waited for the host) if work of the device ended less than this long
# after the host's span that launched it: a number of ns, or a share of that span, whichever is
# larger.
_LATE_NS, _LATE = 50_000, 0.1


def on_device(host: Timeline, device: Timeline, table: Table) -> DeviceTable | None:
    """Return the training steps on the clock of a GPU.

    Args:
        host: The spans of the training thread.
        device: The GPU's spans of the work that the host launched, ascending by start.
        table: The training steps of the host.

    Returns:
        The same steps, each extended to the end of the work that was launched in it, with the
        GPU's time in each phase. None if there are no steps, if fewer than two pieces of GPU work
        were recorded, or if fewer than half of the steps have any.
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
    begin_ns[1:] = np.maximum(begin_ns[1:], over_ns[:-1])  # after the GPU work of the previous step
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
    """Return the indices of host spans, and the indices of the device spans that they launched.

    Host and device spans of one phase are matched in order. The first host spans have no device
    span, as CUDA is not in use yet."""
    hosts, devices = [], []
    for meaning in np.unique(device.meaning).tolist():
        of_host = np.flatnonzero(host.meaning == meaning)
        of_device = np.flatnonzero(device.meaning == meaning)
        n = min(len(of_host), len(of_device))
        of_device = of_device[len(of_device) - n :]
        latest_launch_ns = device.start_ns[of_device] + _SLACK_NS
        first = len(of_host) - n
        # work of the device cannot begin before the host span that launched it: if it would, match
        # the device spans with earlier host spans
        while first and (latest_launch_ns < host.start_ns[of_host[first : first + n]]).any():
            first -= 1
        hosts.append(of_host[first : first + n])
        devices.append(of_device)
    if not hosts:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(hosts), np.concatenate(devices)


def _starved(host: Timeline, device: Timeline, of_host: Array, of_device: Array) -> Array:
    """True for device work that ended as soon as the host had launched the last of it: the device
    waited for the host."""
    launched_ns = (host.start_ns + host.duration_ns)[of_host]
    late_ns = (device.start_ns + device.duration_ns)[of_device] - launched_ns
    limit_ns = np.maximum(_LATE_NS, _LATE * host.duration_ns[of_host])
    return np.isin(device.meaning[of_device], _WORK) & (late_ns < limit_ns)


def _segments(host: Timeline, device: Timeline) -> list[tuple[int, int, int]]:
    """Return (start, end, phase) of consecutive segments of time: the device's work, and the host's
    phases while the device was idle."""
    busy = _flat(device)
    segments = list(busy)
    first = 0  # index of the first device segment that may overlap the host's segment
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
    """Return the innermost spans as consecutive segments (start, end, phase)."""
    segments: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int]] = []  # (end, phase) of the spans in progress
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
    """Return the time of each step in each phase, in nanoseconds, shape (n, 14). ``begin_ns`` and
    ``over_ns``: starts and ends of the steps."""
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
        base_ns = points_ns[0]  # subtracted, since a float has only 53 bits
        spent_at_end = np.interp(over_ns - base_ns, points_ns - base_ns, spent_ns)
        spent_at_begin = np.interp(begin_ns - base_ns, points_ns - base_ns, spent_ns)
        own_ns[:, meaning] = np.round(spent_at_end - spent_at_begin).astype(np.int64)
    return own_ns
