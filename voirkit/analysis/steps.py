"""From the spans of a training process to its steps: how long each took, and where its time went.

What a step and a phase are is defined in docs/steps.md. Each instant of a step counts for one phase, the innermost, so that the phases
of a step sum to its time exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from voirkit.analysis.drawn_batches import set_aside_evaluations
from voirkit.analysis.loader_requests import iterator_of, normalize_requests
from voirkit.analysis.nesting import Array, exclusive_ns
from voirkit.analysis.outside_loops import Marks, declared_evaluation, evaluating, requests_of_evaluation, requests_of_steps, steps_outside
from voirkit.analysis.segmentation import LET_GO, OUTSIDE, Kind, Request, Segmentation, StepInterval, Work, split_at_requests
from voirkit.analysis.work_times import NEVER, first_from
from voirkit.runs.summary import PHASES

PARTS = ("loss", "zero_grad", "checkpoint", "compile", "import", "gc", "voirkit", "rest")  # of other
_COLUMNS = (*PHASES[:-1], *PARTS)
WAIT, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, LOSS, ZERO_GRAD, CHECKPOINT, COMPILE, IMPORT, GC, VOIRKIT, REST = range(
    len(_COLUMNS)
)

# What is a part of the run's wall time by itself, wherever it happens, and none of training's or evaluation's.
ASIDE = {"checkpoint": CHECKPOINT, "compile": COMPILE, "import": IMPORT, "gc": GC}
# The same of starting and stopping workers of loaders; in a step of training it is a part of the wait.
WORKERS = "workers"

_FREEING_NS = 100_000

# What each span of the steps instrument counts for; all of comm is communication.
MEANING = {
    ("dataloader", "iter"): WAIT,
    ("dataloader", "fetch"): WAIT,
    ("dataloader", "end"): WAIT,
    ("dataloader", "queue"): WAIT,
    ("dataloader", "start_workers"): WAIT,
    ("dataloader", "stop_workers"): WAIT,
    ("device", "transfer"): TRANSFER,
    ("compute", "forward"): FORWARD,
    ("compute", "backward"): BACKWARD,
    ("compute", "step"): OPTIMIZER,
    ("compute", "loss"): LOSS,
    ("compute", "zero_grad"): ZERO_GRAD,
    ("checkpoint", "capture"): CHECKPOINT,
    ("checkpoint", "restart"): CHECKPOINT,
    ("compute", "compile"): COMPILE,
    ("python", "import"): IMPORT,
    ("gc", "collect"): GC,
    ("voirkit", "look"): VOIRKIT,
}


@dataclass(frozen=True)
class Timeline:
    """The spans of one thread, ascending by start; arrays of shape (n,)."""

    start_ns: Array  # on the process's clock
    duration_ns: Array  # nanoseconds
    meaning: Array  # index into wait, transfer … (``MEANING``)
    optimizer: Array  # of a step of an optimizer, which one
    grad: Array  # of a module call, whether it was made with gradients
    training: Array  # of a module call, whether the module was in training mode
    requests: Sequence[Request]  # what was asked of loaders, ascending by start
    modes: Sequence[tuple[int, bool]] = ()  # when modules were switched by ``train()`` and ``eval()``, ascending, and whether to training
    lengths: Mapping[int, int] = field(default_factory=dict)  # by loader, how many batches an epoch has, where that is known
    annotated: Sequence[tuple[int, int]] = ()  # from when to when the script itself says that it evaluates, ascending
    workers: Array | None = None  # whether a span starts or stops workers of a loader; None for no such span


@dataclass(frozen=True)
class Table:
    """Steps of one kind; arrays of shape (n,), or (n, phases)."""

    start_ns: Array  # when each began
    time_ns: Array  # how long it took, without loops that lie in it (an evaluation every 100 steps)
    items: Array  # how many items its batch held; -1 if that is not known
    # shape (n, 14): time by wait, transfer, forward, backward, optimizer, communication, loss, zero_grad, checkpoint, compilation, imports,
    # garbage collections, voirkit's own looks, rest; each row sums to its ``time_ns``
    own_ns: Array

    def __len__(self) -> int:
        return len(self.time_ns)

    def chosen(self, which: Array | slice) -> Table:
        """Only some steps, or all in another order."""
        return Table(self.start_ns[which], self.time_ns[which], self.items[which], self.own_ns[which])

    def phase_ns(self, phase: str) -> Array:
        """Time in a phase by step; ``other`` is all that is none of the rest."""
        if phase == "other":
            return self.own_ns[:, LOSS:].sum(axis=1)
        return self.own_ns[:, PHASES.index(phase)]


def concatenated(tables: Sequence[Table]) -> Table:
    """The steps of several tables, one table after the other."""
    return Table(*(np.concatenate([getattr(table, column.name) for table in tables]) for column in fields(Table)))


@dataclass(frozen=True)
class DeviceTable:
    """Steps of training as a GPU saw them."""

    # each to the end of the work that was started in it. Forward, backward and optimizer are the device's time, wait and the parts of other
    # that of the host while the device had nothing to do, rest that in which nothing is known of either.
    table: Table
    # by step, how much of forward, backward and optimizer was work that ended as soon as the host had started it: in that time the device
    # could have done more. Shape (n,).
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
        steps, passes = self.optimizer_steps + other.optimizer_steps, self.backward_passes + other.backward_passes
        return Uncounted(steps, passes, min(self.first_ns, other.first_ns))


ALL_COUNTED = Uncounted(0, 0, 0)


@dataclass(frozen=True)
class Steps:
    """The steps of one thread, or of several that take turns."""

    train: Table  # those of training
    evaluation: Table  # those of loops in which a model is called and nothing is trained
    wait_known: bool  # whether the time that training waits for batches could be seen
    device: DeviceTable | None = None  # those of training on the clock of a GPU, if one was used
    episodes: frozenset[int] = frozenset()  # numbers of the iterators whose batches were trained on; not kept in a rollup
    saving_between_ns: int = 0  # time in checkpoints since the first step of training that is in no step: those after a loop's last batch
    # by part of the wall time (``ASIDE``, ``WORKERS``), what is in no step: before the first of all steps, and since then
    aside_ns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uncounted: Uncounted = ALL_COUNTED
    workers_in_evaluation_ns: int = 0  # time in which workers of loaders are started or stopped in steps of evaluation


_NOTHING: Array = np.zeros(0, np.int64)
_NO_TABLE = Table(_NOTHING, _NOTHING, _NOTHING, np.zeros((0, len(_COLUMNS)), np.int64))
NO_STEPS = Steps(_NO_TABLE, _NO_TABLE, wait_known=True)


def steps_of(timeline: Timeline) -> Steps:
    """The steps of a thread."""
    timeline = _copies_in_a_row(timeline)
    steps = _steps_of(timeline)
    steps = replace(steps, aside_ns={**_aside(timeline, steps), **steps.aside_ns})
    return replace(steps, saving_between_ns=_saving_between(timeline, steps)) if len(steps.train) else steps


def _aside(timeline: Timeline, steps: Steps) -> dict[str, tuple[int, int]]:
    own = exclusive_ns(timeline.start_ns, timeline.duration_ns)
    tables = (steps.train, steps.evaluation)
    first = min((int(table.start_ns.min()) for table in tables if len(table)), default=np.iinfo(np.int64).max)
    early = timeline.start_ns < first
    found = {}
    for name, column in ASIDE.items():
        chosen = timeline.meaning == column
        inside = sum(int(table.own_ns[:, column].sum()) for table in tables)
        found[name] = (int(own[chosen & early].sum()), max(int(own[chosen & ~early].sum()) - inside, 0))
    return found


def _saving_between(timeline: Timeline, steps: Steps) -> int:
    since = (timeline.meaning == CHECKPOINT) & (timeline.start_ns >= steps.train.start_ns.min())
    spent = int(exclusive_ns(timeline.start_ns, timeline.duration_ns)[since].sum())
    return max(spent - sum(int(table.own_ns[:, CHECKPOINT].sum()) for table in (steps.train, steps.evaluation)), 0)


def _steps_of(timeline: Timeline) -> Steps:
    work = _work(timeline)
    marks = _marks(timeline)
    resumed_ns = [at_ns for at_ns, training in timeline.modes if training]
    apart = work.chosen((work.kind != Work.BACKWARD) | ~declared_evaluation(work, marks))
    asked, held_out = set_aside_evaluations(timeline.requests, apart, resumed_ns)
    requests = normalize_requests(asked, apart, timeline.lengths)
    segmentation = split_at_requests(requests)
    trains = _training_episodes(segmentation, apart, requests, marks.zeroed_ns)
    stepped, evaluated_by_hand, drawn = _outside_of_loops(timeline, work, marks, segmentation, trains, [*asked, *held_out])
    loops = [requests, stepped, evaluated_by_hand]
    if stepped or evaluated_by_hand:
        trains |= {request.episode for request in stepped}
        requests = _merged([[request for request in requests if request.episode not in drawn - trains], stepped, evaluated_by_hand])
        segmentation = split_at_requests(requests)
    turn_of = segmentation.turns_at(timeline.start_ns)
    n = len(segmentation.turns)
    evaluates = _episodes_with(segmentation, turn_of, np.isin(timeline.meaning, (FORWARD, BACKWARD))) - trains
    own = _by_turn(timeline, turn_of, n)
    time = _time(segmentation, n)
    training = [i for i, t in enumerate(segmentation.turns) if t.end_ns is not None and t.episode in trains]
    evaluated = [i for i, t in enumerate(segmentation.turns) if t.end_ns is not None and t.episode in evaluates]
    episodes = trains & {request.episode for request in loops[0]}
    iterators = frozenset(map(iterator_of, episodes))
    train, evaluation = (_table(segmentation.turns, chosen, requests, own, time) for chosen in (training, evaluated))
    wait_known = any(segmentation.turns[i].episode in episodes for i in training)
    since_ns = _known_since(timeline.requests, segmentation, trains)
    going_on = _turns_that_go_on(segmentation, requests)
    uncounted = _uncounted(segmentation, work, [*training, *evaluated, *going_on], since_ns)
    steps = Steps(train, evaluation, wait_known, episodes=iterators, uncounted=uncounted)
    if timeline.workers is None:
        return steps
    spent_ns = np.where(np.asarray(timeline.workers), exclusive_ns(timeline.start_ns, timeline.duration_ns), 0)
    return _with_workers(steps, timeline, spent_ns, turn_of, training, evaluated)


def _with_workers(
    steps: Steps, timeline: Timeline, spent_ns: Array, turn_of: Array, training: Sequence[int], evaluated: Sequence[int]
) -> Steps:
    """The steps with the time in which workers are started and stopped, but for that in steps of training.

    Args:
        spent_ns: Of each span how much of that time it is.
        turn_of: Of each span the turn in which it begins.
        training: The turns that are steps of training.
        evaluated: Those that are steps of evaluation.
    """
    in_evaluation = np.isin(turn_of, evaluated)
    in_no_step = ~in_evaluation & ~np.isin(turn_of, training)
    first_ns = min((int(table.start_ns.min()) for table in (steps.train, steps.evaluation) if len(table)), default=NEVER)
    is_early = timeline.start_ns < first_ns
    aside_ns = int(spent_ns[in_no_step & is_early].sum()), int(spent_ns[in_no_step & ~is_early].sum())
    return replace(steps, aside_ns={WORKERS: aside_ns}, workers_in_evaluation_ns=int(spent_ns[in_evaluation].sum()))


def _turns_that_go_on(segmentation: Segmentation, requests: Sequence[Request]) -> list[int]:
    """The turns that are not over where the records end, as of a run that was killed: their steps are not left out."""
    over = {request.episode for request in requests if request.kind >= Kind.END}
    last = {turn.episode: i for i, turn in enumerate(segmentation.turns)}
    return [i for episode, i in last.items() if episode not in over and segmentation.turns[i].end_ns is None]


def _uncounted(segmentation: Segmentation, work: Work, counted: Sequence[int], since_ns: int) -> Uncounted:
    """What was trained in no counted turn, of what began since a time."""
    turn_of = segmentation.turns_at(work.start_ns)
    left_out = ~np.isin(turn_of, counted) & ((work.kind & Work.TRAINS) != 0) & (work.start_ns >= since_ns)
    if not left_out.any():
        return ALL_COUNTED
    kinds = work.kind[left_out]
    steps = int(np.count_nonzero(kinds == Work.OPTIMIZER))
    return Uncounted(steps, len(kinds) - steps, int(work.start_ns[left_out][0]))


def _marks(timeline: Timeline) -> Marks:
    saved_ns, zeroed_ns = (timeline.start_ns[timeline.meaning == meaning] for meaning in (CHECKPOINT, ZERO_GRAD))
    fetched_ns = [request.start_ns for request in timeline.requests if request.kind is Kind.FETCH]
    asked_ns = [request.start_ns for request in timeline.requests if request.kind not in LET_GO]
    return Marks(timeline.modes, zeroed_ns, saved_ns, timeline.annotated, fetched_ns, asked_ns)


def _outside_of_loops(
    timeline: Timeline, work: Work, marks: Marks, segmentation: Segmentation, trains: frozenset[int], asked: Sequence[Request]
) -> tuple[list[Request], list[Request], set[int]]:
    """Requests that nobody made, where steps begin that no loop over a loader tells of; and where evaluation does, with the iterators whose
    batches went there."""
    turn = segmentation.turns_at(work.start_ns)
    led = steps_outside(work, turn, segmentation.turns, trains, _known_since(timeline.requests, segmentation, trains))
    ends = np.concatenate([steps.end_ns for steps in led]) if led else work.start_ns[:0]
    evaluates = evaluating(work, marks, turn, segmentation.turns, trains, ends)
    number = min([r.episode - 1 for r in timeline.requests] + [-2])  # -1 is a loader that is not known
    steps = requests_of_steps(led, work.chosen((turn == OUTSIDE) & ~evaluates & (work.kind != Work.OPTIMIZER)), number)
    if not evaluates.any():
        return steps, [], set()
    number -= len(led)
    return steps, *requests_of_evaluation(evaluates, work, marks, turn, segmentation.turns, trains, number, asked)


def _known_since(requests: Sequence[Request], segmentation: Segmentation, trains: frozenset[int]) -> int:
    """Where only the end of a run is known, its first loop may have begun before: what lies before its requests is then a part of it."""
    first = next((turn for turn in segmentation.turns if turn.episode in trains), None)
    # What came through a queue has no iterator here.
    begun = first is None or first.episode < 0 or any(r.episode == first.episode and r.kind is Kind.ITER for r in requests)
    return 0 if begun or first is None else first.start_ns


def _merged(loops: Sequence[Sequence[Request]]) -> list[Request]:
    """Requests by their start; of those at one time, ends come first, the innermost loop's first of all: it stands behind the others."""
    order = [(r.start_ns, -depth if r.kind is Kind.END else depth, r) for depth, requests in enumerate(loops) for r in requests]
    return [request for _, _, request in sorted(order, key=lambda row: row[:2])]


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
    about = (timeline.optimizer[chosen], timeline.grad[chosen], timeline.training[chosen])
    return Work(start, start + timeline.duration_ns[chosen], kind[chosen], *about)


def _training_episodes(segmentation: Segmentation, work: Work, requests: Sequence[Request], zeroed_ns: Array) -> frozenset[int]:
    """The iterators on whose batches something is trained: an optimizer steps there, or, where none does in the whole run, gradients are
    taken by a model that is not in evaluation mode.

    Where gradients alone are taken, they are trained with if an optimizer steps with them afterwards, before they are set to zero: at once,
    or in a later loop over the same loader; or if they are accumulated over that loader when the run ends. Others are of an evaluation
    (forces, attacks, Fisher information). So are those of an iterator whose models are all in evaluation mode, and whose optimizers step in
    no loop that trains.
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
    inside = np.flatnonzero(trains & (turn_of != OUTSIDE))[::-1]
    episodes, lasts = np.unique(segmentation.episodes[turn_of[inside]], return_index=True)
    over_ns = work.end_ns[inside[lasts]]  # by iterator, when the last was trained on its batches
    next_update_ns, next_pass_ns = (first_from(work.of(kind).start_ns, over_ns) for kind in (Work.OPTIMIZER, Work.BACKWARD))
    is_cleared = first_from(zeroed_ns, over_ns) < next_update_ns
    is_next = next_pass_ns >= next_update_ns
    _, firsts = np.unique(segmentation.episodes[turn_of[inside[::-1]]], return_index=True)
    began_ns = work.start_ns[inside[::-1][firsts]]
    is_zeroed_within = np.searchsorted(zeroed_ns, over_ns) > np.searchsorted(zeroed_ns, began_ns)
    for i, episode in enumerate(episodes.tolist()):
        if episode in steps or episode in in_evaluation or is_cleared[i]:
            continue
        if next_update_ns[i] == NEVER:  # gradients that are accumulated when the run ends
            if episode in in_training and loader_of.get(episode) in of_training and not is_zeroed_within[i]:
                steps.add(episode)
            continue
        if is_next[i] or loader_of.get(episode) in of_training:
            steps.add(episode)
    return frozenset(steps)


def _with_optimizers_of_their_own(
    segmentation: Segmentation, work: Work, turn_of: Array, steps: set[int], in_evaluation: set[int]
) -> set[int]:
    """Of the iterators in whose turns optimizers step, those of an evaluation that has optimizers of its own (an attack on its inputs)."""
    outer = steps - in_evaluation
    if not outer or not steps & in_evaluation:
        return set()
    stepped = work.kind == Work.OPTIMIZER
    inside = stepped & (turn_of != OUTSIDE)
    episode = segmentation.episodes[turn_of[inside]]
    trained = set(work.optimizer[inside][np.isin(episode, list(outer))].tolist())
    trained |= set(work.optimizer[stepped & (turn_of == OUTSIDE)].tolist())
    return {one for one in steps & in_evaluation if trained.isdisjoint(work.optimizer[inside][episode == one].tolist())}


def _episodes_with(segmentation: Segmentation, turn_of: Array, chosen: Array) -> set[int]:
    return set(segmentation.episodes[turn_of[chosen & (turn_of != OUTSIDE)]].tolist())


def _by_turn(timeline: Timeline, turn_of: Array, n: int) -> Array:
    """Time by turn and meaning, shape (n, 14), in nanoseconds; the rest is 0."""
    own = exclusive_ns(timeline.start_ns, timeline.duration_ns)
    inside = turn_of != OUTSIDE
    cells = turn_of[inside] * len(_COLUMNS) + timeline.meaning[inside]
    return np.bincount(cells, weights=own[inside], minlength=n * len(_COLUMNS))[: n * len(_COLUMNS)].reshape(n, len(_COLUMNS))


def _time(segmentation: Segmentation, n: int) -> Array:
    """How long each turn lasted, without the loops that lie in it; turns that were never closed have no right figure here."""
    if not n:
        return np.zeros(0, dtype=np.int64)
    edges, owners = np.asarray(segmentation.edges), np.asarray(segmentation.owners)
    lasting = np.diff(edges, append=edges[-1])
    inside = owners != OUTSIDE
    return np.bincount(owners[inside], weights=lasting[inside], minlength=n).astype(np.int64)


def _table(turns: Sequence[StepInterval], chosen: Sequence[int], requests: Sequence[Request], own: Array, time: Array) -> Table:
    items = [_items(turns[i], requests) for i in chosen]
    start = [turns[i].start_ns for i in chosen]
    return _completed(np.array(start, dtype=np.int64), time[list(chosen)], np.array(items, dtype=np.int64), own[list(chosen)])


def _completed(start: Array, time: Array, items: Array, own: Array) -> Table:
    """A table whose rows sum to the time: what is in no span is the rest."""
    own = own.astype(np.int64)
    own[:, REST] = np.maximum(time - own.sum(axis=1), 0)
    return Table(start, own.sum(axis=1), items, own)


def _items(turn: StepInterval, requests: Sequence[Request]) -> int:
    """Of the loop's own loader: one that is asked beside it (``zip``) brings other halves of the same items."""
    items = next((requests[i].items for i in turn.requests if requests[i].episode == turn.episode), None)
    return -1 if items is None else items


# Steps on the clock of a GPU: what it worked on, what it waited for, from the spans of the host and those of the device. The host only
# starts the work of forward and backward: how long it took, and when a step was really over, the device's spans tell. They are on the
# host's clock already.

_WORK = (FORWARD, BACKWARD, OPTIMIZER)
# What of the host is said of the time in which the device has nothing to do; the rest is the script's own Python, and starting of work.
_OF_HOST = (WAIT, TRANSFER, CHECKPOINT, COMMUNICATION)
_SLACK_NS = 20_000  # how far the clock of events may be off
_LATE_NS, _LATE = 50_000, 0.1  # a device that ends no later than this after the host, or this part of the host's time, was starved


def on_device(host: Timeline, device: Timeline, table: Table) -> DeviceTable | None:
    """Steps as the device saw them.

    Args:
        host: The spans of the training thread.
        device: Those of the work that it started, ascending by start.
        table: Its training steps by the host's clock.

    Returns:
        The same steps, each to the end of what was started in it, with the time of the device by phase; None if too little of the device
        is known.
    """
    of_host, of_device = _match(host, device)
    if not len(table) or len(of_device) < 2:
        return None
    starts, ends = table.start_ns, table.start_ns + table.time_ns
    turn = np.searchsorted(starts, host.start_ns[of_host], side="right") - 1
    inside = (turn >= 0) & (host.start_ns[of_host] < ends[np.maximum(turn, 0)])
    if np.unique(turn[inside]).size < len(table) / 2:
        return None
    over = ends.copy()
    np.maximum.at(over, turn[inside], (device.start_ns + device.duration_ns)[of_device[inside]])
    over = np.maximum.accumulate(over)
    begun = starts.copy()
    begun[1:] = np.maximum(begun[1:], over[:-1])  # the work of the step before goes on
    over = np.maximum(over, begun)
    own = _between(begun, over, _segments(host, device))
    time = over - begun
    own[:, REST] += np.maximum(time - own.sum(axis=1), 0)
    starved = _starved(host, device, of_host, of_device)
    launching = np.zeros(len(table))
    np.add.at(launching, turn[inside & starved], device.duration_ns[of_device[inside & starved]])
    launching = np.minimum(launching, own[:, list(_WORK)].sum(axis=1)).astype(np.int64)
    return DeviceTable(Table(begun, own.sum(axis=1), table.items, own), launching)


def _match(host: Timeline, device: Timeline) -> tuple[Array, Array]:
    """Indices of host spans and of the device spans of the work that they started. The n-th device span of a kind is of the n-th host span
    of that kind, but for the first, which have none before CUDA is in use."""
    hosts, devices = [], []
    for meaning in np.unique(device.meaning).tolist():
        of_host, of_device = np.flatnonzero(host.meaning == meaning), np.flatnonzero(device.meaning == meaning)
        n = min(len(of_host), len(of_device))
        of_device = of_device[len(of_device) - n :]
        spare = len(of_host) - n
        while spare and (device.start_ns[of_device] + _SLACK_NS < host.start_ns[of_host[spare : spare + n]]).any():
            spare -= 1  # no work begins before it is started
        hosts.append(of_host[spare : spare + n])
        devices.append(of_device)
    if not hosts:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(hosts), np.concatenate(devices)


def _starved(host: Timeline, device: Timeline, of_host: Array, of_device: Array) -> Array:
    """Which work ended as soon as the host had started the last of it: the device had time left."""
    ends = (host.start_ns + host.duration_ns)[of_host]
    late = (device.start_ns + device.duration_ns)[of_device] - ends
    bound = np.maximum(_LATE_NS, _LATE * host.duration_ns[of_host])
    return np.isin(device.meaning[of_device], _WORK) & (late < bound)


def _segments(host: Timeline, device: Timeline) -> list[tuple[int, int, int]]:
    """(start, end, meaning), one after the other: the device's work, and what the host was at while there was none."""
    busy = _flat(device)
    found = list(busy)
    at = 0
    for start, end, meaning in _flat(host):
        if meaning not in _OF_HOST:
            continue
        while at < len(busy) and busy[at][1] <= start:
            at += 1
        i = at
        while i < len(busy) and busy[i][0] < end:
            if busy[i][0] > start:
                found.append((start, busy[i][0], meaning))
            start = max(start, busy[i][1])
            i += 1
        if start < end:
            found.append((start, end, meaning))
    return sorted(found)


def _flat(timeline: Timeline) -> list[tuple[int, int, int]]:
    """(start, end, meaning) of the innermost span at each instant."""
    found: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int]] = []  # (end, meaning)
    now = 0

    def until(at: int) -> None:
        nonlocal now
        while open_ and now < at:
            end, meaning = open_[-1]
            if end > now:
                found.append((now, min(end, at), meaning))
                now = min(end, at)
            if end <= at:
                open_.pop()
        now = at

    rows = zip(timeline.start_ns.tolist(), timeline.duration_ns.tolist(), timeline.meaning.tolist(), strict=True)
    for start, duration, meaning in rows:
        until(start)
        open_.append((start + duration, meaning))
    while open_:
        until(open_[-1][0])
    return found


def _between(begun: Array, over: Array, segments: Sequence[tuple[int, int, int]]) -> Array:
    """Time by step and meaning, shape (n, 14)."""
    own = np.zeros((len(begun), len(_COLUMNS)), dtype=np.int64)
    if not segments:
        return own
    start, end, meaning = (np.array(column, dtype=np.int64) for column in zip(*segments, strict=True))
    for one in np.unique(meaning).tolist():
        chosen = meaning == one
        points = np.stack([start[chosen], end[chosen]], axis=1).ravel()
        spent = np.zeros(len(points))
        spent[1::2] = np.cumsum(end[chosen] - start[chosen])
        spent[2::2] = spent[1:-1:2]
        base = points[0]  # of 64 bits a float has 53
        own[:, one] = np.round(np.interp(over - base, points - base, spent) - np.interp(begun - base, points - base, spent)).astype(
            np.int64
        )
    return own
