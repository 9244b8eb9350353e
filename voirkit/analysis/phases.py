"""From the records of the steps instrument to ranks: the thread that trains in each process, its
steps, and how its script trains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from voirkit.analysis.document import Collectives, Rank
from voirkit.analysis.nesting import NONE, Array, distinct, innermost, outer_first
from voirkit.analysis.outside_loops import leading_steps
from voirkit.analysis.queued_batches import QueueGet, requests_through_queues
from voirkit.analysis.rank_processes import joined
from voirkit.analysis.script_facts import first_batches, in_training_mode, script_facts
from voirkit.analysis.segmentation import Kind, Request
from voirkit.analysis.steps import (
    BACKWARD,
    COMMUNICATION,
    COMPILE,
    FORWARD,
    GC,
    IMPORT,
    NO_STEPS,
    OPTIMIZER,
    VOIRKIT,
    WAIT,
    DeviceTable,
    Steps,
    Table,
    Timeline,
    Uncounted,
    on_device,
    steps_of,
)
from voirkit.analysis.symptoms import symptoms_of
from voirkit.analysis.training_threads import activities, group_by_training, outermost
from voirkit.analysis.work_times import NEVER, any_between, time_of_spans_until
from voirkit.analysis.worker_starts import START, STOP, restarts
from voirkit.phase_table import COLUMN, phase_of_span

KIND = "phase"  # of the records
DEVICE = "device"  # of those that say how long the same lasted on a GPU
COLLECTIVE = "collective"  # of those of what ranks exchange
# In backward they are begun as soon as gradients are there, and waited for at its end.
REDUCTIONS = (
    "all_reduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
)
_CAPTURE = ("checkpoint", "capture")
# How far two pieces of a checkpoint may be apart: fsync of what torch.save has left in memory takes
# some ten times as long as that.
_BETWEEN_PIECES_NS, _BETWEEN_PIECES = 1_000_000_000, 20
_ONE_EACH = 0.9  # of the steps have a request, and of the requests a step of their own
# how long the thread had one, and was ready and had none
_PROCESSOR, _NO_PROCESSOR = ("processor", "ran"), ("processor", "waited")


@dataclass(frozen=True)
class Records:
    """Records of phases; arrays of shape (n,), in any order."""

    start_ns: Array  # on the clock of the record's host
    duration_ns: Array  # nanoseconds
    name: Array  # index into ``names``
    args: Array  # index into ``arguments``
    value: Array  # the record's own number
    process: Array  # index into ``processes``
    tid: Array  # native id of the thread
    names: Sequence[tuple[str, str]]  # (category, name) by index
    arguments: Sequence[Mapping[str, Any]]  # by index
    processes: Sequence[tuple[int, str, int]]  # (rank, host, pid) by index
    # of the group in which each process has its rank, by index; 1: it is in none and trains, if it
    # does, for itself. 0, and empty: not known, as of runs that launchers started.
    world_sizes: Sequence[int] = ()

    def chosen(self, rows: Array) -> Records:
        """Only some of them."""
        columns = ("start_ns", "duration_ns", "name", "args", "value", "process", "tid")
        return replace(self, **{key: getattr(self, key)[rows] for key in columns})


_OF_LOADER = (
    "workers",
    "dataset",
    "batch_size",
    "pin_memory",
    "persistent",
    "whole_batches",
    "sampler",
    "length",
)
# The script's own word that it evaluates: its annotations, and steps that it gives with a task.
EVALUATIONS = (("annotated", "evaluate"), ("annotated", "test"), ("given", "evaluation"))
_REQUESTS = {
    ("dataloader", "iter"): Kind.ITER,
    ("dataloader", "fetch"): Kind.FETCH,
    ("dataloader", "end"): Kind.END,
    # A loop over a loader, whole: it is over where this ends, however that came.
    ("pipeline", "epoch"): Kind.RELEASED,
    ("pipeline", "evaluate"): Kind.RELEASED,
    ("dataloader", "left"): Kind.RELEASED,
}


def ranks(
    records: Records,
    cpus: int | None = None,
    device: Records | None = None,
    without: Collection[tuple[str, int]] = (),
    exchanged: Records | None = None,
) -> list[Rank]:
    """What each rank did, ascending; and what each process did that trains, or evaluates, and is in
    no group of ranks.

    Args:
        records: Of all ranks.
        cpus: Processors of the host, for the verdict.
        device: What the phases did on GPUs, where they were used.
        without: (host, pid) of processes that are left out.
        exchanged: What they began together.
    """
    parts: list[Rank] = []
    for number, (_, host, pid) in enumerate(records.processes):
        if (host, pid) in without:
            continue
        trainings = training_threads(records, number)
        if trainings:
            parts += _process_parts(records, number, trainings, cpus, device, exchanged)
    return joined(parts)


def _process_parts(
    records: Records,
    number: int,
    trainings: Sequence[Array],
    cpus: int | None,
    device: Records | None,
    exchanged: Records | None,
) -> list[Rank]:
    """The trainings of a process: all of one in no group of ranks, the main one last; else that
    alone."""
    rank, host, pid = records.processes[number]
    is_alone = bool(records.world_sizes) and records.world_sizes[number] == 1
    process = Rank(rank, host, NO_STEPS, {}, ((host, pid),), is_alone)
    main = _training(records, number, trainings[0], cpus, device, process)
    parts = []
    if is_alone:
        for rows in trainings[1:]:
            part = _training(records, number, rows, cpus, None, process)
            parts.append(replace(part, thread=int(records.tid[rows[0]])))
    else:
        # a rank has one training: what other threads of it do beside that is no step of its group
        uncounted = _with_all_of(records, main.steps.uncounted, trainings[1:])
        main = replace(main, steps=replace(main.steps, uncounted=uncounted))
    if exchanged is not None and (rank, host, pid) in exchanged.processes:
        passes, calls = _passes_and_calls(records, trainings[0], main.steps.train)
        number_there = list(exchanged.processes).index((rank, host, pid))
        main = replace(main, collectives=_collectives(exchanged, number_there, passes, calls))
    return [*parts, main]


def _passes_and_calls(
    records: Records, rows: Array, train: Table
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """When the backward passes of a thread, and its calls that wait for other ranks, began and
    ended."""
    meaning = meanings(records.names)[records.name[rows]]
    if len(train):
        # a pass that an exception ends, and what it waited for until then, is in no step
        is_over = records.start_ns[rows] >= int(train.end_ns.max())
        is_left = ~(is_over & (meaning == BACKWARD))
        rows, meaning = rows[is_left], meaning[is_left]
    passes = _outermost(records, rows[meaning == BACKWARD])
    return passes, _outermost(records, rows[meaning == COMMUNICATION])


def _training(
    records: Records,
    number: int,
    rows: Array,
    cpus: int | None,
    device: Records | None,
    process: Rank,
) -> Rank:
    """A process with the steps and facts of one training.

    Args:
        records: Of all ranks.
        number: Index of the process.
        rows: Indices of the records of the threads that train.
        cpus: Processors of the host.
        device: What the phases did on GPUs.
        process: The process, of which nothing else is known.
    """
    timeline = _timeline(records, rows)
    steps = steps_of(timeline)
    waiting_rows = rows
    tids = np.unique(records.tid[rows])
    other_rows = np.flatnonzero((records.process == number) & ~np.isin(records.tid, tids))
    requests = _queue_requests(records, rows, other_rows, timeline)
    if requests:
        waiting_rows = other_rows
        if steps.wait_known:
            waiting_rows = np.concatenate((rows, other_rows))
        steps = steps_of(replace(timeline, requests=requests))
    if device is not None:
        on_gpu = _on_device(timeline, device, records.processes[number], tids, steps.train)
        steps = replace(steps, device=on_gpu)
    episodes = steps.episodes | _companions(timeline.requests, steps)
    trained = () if requests else episodes
    meaning = meanings(records.names)[records.name]
    leads_ns = leading_optimizers_ns(timeline)
    symptoms = symptoms_of(records, rows, meaning, timeline, steps)
    worker_restarts = restarts(records, rows, episodes)
    facts = {
        **_loader(records, waiting_rows, trained),
        **script_facts(records, rows, steps, leads_ns),
        "inference": in_training_mode(timeline, steps.evaluation) or None,
        "cpus": cpus,
        "symptoms": symptoms or None,
        "worker_restarts": worker_restarts or None,
    }
    known_facts = {name: fact for name, fact in facts.items() if fact is not None}
    return replace(process, steps=steps, facts=known_facts)


def leading_optimizers_ns(timeline: Timeline) -> Array:
    """When the optimizer that leads stepped, of a second training the one that leads there; shape
    (n,)."""
    stepped = np.flatnonzero(timeline.meaning == OPTIMIZER)
    stretches = leading_steps(stepped, timeline.optimizer[stepped])
    leading = np.concatenate(stretches) if stretches else stepped
    leading_ns: Array = timeline.start_ns[leading]
    return leading_ns


def _on_device(
    host: Timeline, device: Records, process: tuple[int, str, int], tids: Array, train: Table
) -> DeviceTable | None:
    if process not in device.processes:
        return None
    is_process = device.process == list(device.processes).index(process)
    rows = np.flatnonzero(is_process & np.isin(device.tid, tids))
    rows = rows[outer_first(device.start_ns[rows], device.duration_ns[rows])]
    return on_device(host, _timeline(device, rows), train)


def training_threads(records: Records, process: int) -> list[Array]:
    """By training of a process, the one that steps most first, indices of the records of the
    threads that take turns at it; ascending by start, outer before inner. Where nothing is trained
    and no model called, those of the thread that does most else."""
    rows = np.flatnonzero(records.process == process)
    if not len(rows):
        return []
    rows = rows[outer_first(records.start_ns[rows], records.duration_ns[rows])]
    meaning = meanings(records.names)[records.name[rows]]
    if np.isin(meaning, (COMPILE, IMPORT, GC)).all():
        return []  # it has imported torch, and that is all
    tids = records.tid[rows]

    def is_of_loader(*wanted_names: str) -> Array:
        is_named = [
            category == "dataloader" and name in wanted_names for category, name in records.names
        ]
        return np.array(is_named)[records.name[rows]]

    is_kind = {
        "forward": meaning == FORWARD,
        "backward": meaning == BACKWARD,
        "optimizer": meaning == OPTIMIZER,
        "request": is_of_loader("iter", "fetch", "end"),
        "fetch": is_of_loader("fetch"),
        "queue": is_of_loader("queue"),
    }
    optimizer = _argument(records, rows, "which", 0)
    start_ns = records.start_ns[rows]
    threads = activities(tids, start_ns, start_ns + records.duration_ns[rows], is_kind, optimizer)
    groups = [[thread.tid for thread in group] for group in group_by_training(threads)]
    if not groups:
        busy_tids, counts = np.unique(
            tids[(meaning >= 0) & (meaning < COMPILE)], return_counts=True
        )
        if len(busy_tids):
            groups = [[int(busy_tids[np.argmax(counts)])]]
        else:
            groups = [np.unique(tids).tolist()]
    return [rows[np.isin(tids, group)] for group in groups]


def _argument(records: Records, rows: Array, key: str, otherwise: Any) -> Array:
    """An argument of some records."""
    values = np.array([arguments.get(key, otherwise) for arguments in records.arguments])
    argument: Array = values[records.args[rows]]
    return argument


def _is_named(records: Records, rows: Array, names: Collection[tuple[str, str]]) -> Array:
    """True for those of some records that have one of some names."""
    is_named: Array = np.array([name in names for name in records.names])[records.name[rows]]
    return is_named


def _with_all_of(records: Records, uncounted: Uncounted, threads: Sequence[Array]) -> Uncounted:
    """With all that is trained in some other threads."""
    for rows in threads:
        meaning = meanings(records.names)[records.name[rows]]
        trained = rows[np.isin(meaning, (BACKWARD, OPTIMIZER))]
        steps = int(np.count_nonzero(meaning == OPTIMIZER))
        first_ns = int(records.start_ns[trained][0])
        uncounted = uncounted.plus(Uncounted(steps, len(trained) - steps, first_ns))
    return uncounted


def meanings(names: Sequence[tuple[str, str]]) -> Array:
    """The phase of each span by its category and name, as an index into ``COLUMNS``; -1 for
    none."""
    phases = [phase_of_span(category, name) for category, name in names]
    numbers = [NONE if phase is None else COLUMN[phase] for phase in phases]
    return np.array(numbers, dtype=np.int64)


def _timeline(records: Records, rows: Array) -> Timeline:
    requests = sorted(_requests(records, rows), key=lambda request: request.start_ns)
    annotated = _annotated(records, rows)
    modes = _modes(records, rows)
    lengths = _lengths(records, rows)
    meaning = meanings(records.names)[records.name[rows]]
    rows, meaning = rows[meaning >= 0], meaning[meaning >= 0]
    start_ns = records.start_ns[rows]
    duration_ns, is_left = whole_imports(start_ns, records.duration_ns[rows], meaning)
    writes = _is_named(records, rows, (_CAPTURE,))
    duration_ns = whole_checkpoints(start_ns, duration_ns, meaning, writes)
    rows, meaning = rows[is_left], meaning[is_left]
    of_workers = _is_named(records, rows, (START, STOP))
    workers = of_workers if of_workers.any() else None
    return Timeline(
        start_ns[is_left],
        duration_ns[is_left],
        meaning,
        _argument(records, rows, "which", 0),
        _argument(records, rows, "grad", True),
        _argument(records, rows, "training", True),
        requests,
        modes,
        lengths,
        annotated,
        workers,
    )


def whole_imports(start_ns: Array, duration_ns: Array, meaning: Array) -> tuple[Array, Array]:
    """An import that trains is one until it does; garbage that is collected in an import or a
    compilation is part of it.

    Args:
        start_ns: Of the spans of a thread, ascending; shape (n,).
        duration_ns: Same shape.
        meaning: Same shape.

    Returns:
        Durations, and which spans are left.
    """
    is_left = np.ones(len(start_ns), dtype=bool)
    duration_ns = duration_ns.copy()
    work = np.flatnonzero(~np.isin(meaning, (IMPORT, COMPILE, GC)))
    for i in np.flatnonzero(np.isin(meaning, (IMPORT, COMPILE))).tolist():
        end_ns = start_ns[i] + duration_ns[i]
        if meaning[i] == IMPORT:
            next_work = np.searchsorted(work, i)
            if next_work < len(work) and start_ns[work[next_work]] < end_ns:
                end_ns = start_ns[work[next_work]]
                duration_ns[i] = end_ns - start_ns[i]
        inside = slice(i + 1, int(np.searchsorted(start_ns, end_ns)))
        is_left[inside] &= meaning[inside] != GC
    return duration_ns, is_left


def whole_checkpoints(start_ns: Array, duration_ns: Array, meaning: Array, writes: Array) -> Array:
    """Durations in which a checkpoint that is written in pieces (model, optimizer) lasts from one
    piece to the next.

    What lies between them, where nothing else is seen (fsync, a rename, the next ``state_dict``),
    is its cost.

    Args:
        start_ns: Of the spans of a thread, ascending, outer before inner; shape (n,).
        duration_ns: Same shape.
        meaning: Same shape.
        writes: True for a span that writes a checkpoint; same shape.
    """
    trained = np.flatnonzero(np.isin(meaning, (BACKWARD, OPTIMIZER)))
    pieces = np.flatnonzero(writes)
    if not len(trained) or len(pieces) < 2:
        return duration_ns
    pieces = pieces[pieces > trained[0]]  # a program that prepares data may save each part of them
    end_ns = start_ns + duration_ns
    outermost_ns = np.maximum.accumulate(end_ns)
    n_others = np.cumsum(~np.isin(meaning, (GC, VOIRKIT, IMPORT)))
    longer = duration_ns.copy()
    for i, j in pairwise(pieces.tolist()):
        gap_ns = start_ns[j] - end_ns[i]
        is_next = gap_ns > 0 and n_others[j] - n_others[i] == 1
        # no span ends between the two
        lies_in_one = outermost_ns[i] in (end_ns[i], outermost_ns[j])
        pieces_ns = duration_ns[i] + duration_ns[j]
        is_near = gap_ns <= max(_BETWEEN_PIECES_NS, _BETWEEN_PIECES * pieces_ns)
        if is_next and lies_in_one and is_near:
            longer[i] += gap_ns
    return longer


def _annotated(records: Records, rows: Array) -> list[tuple[int, int]]:
    """From when to when the script says that it evaluates, the outermost of what lies in each
    other."""
    rows = rows[_is_named(records, rows, EVALUATIONS)] if len(rows) else rows
    if not len(rows):
        return []
    begins_ns = records.start_ns[rows]
    ends_ns = begins_ns + records.duration_ns[rows]
    earlier_ends_ns = np.maximum.accumulate(ends_ns)[:-1]
    is_outer = np.append(True, begins_ns[1:] >= earlier_ends_ns)
    return list(zip(begins_ns[is_outer].tolist(), ends_ns[is_outer].tolist(), strict=True))


def _lengths(records: Records, rows: Array) -> dict[int, int]:
    """By loader, how many batches an epoch has."""
    lengths = {}
    for i in distinct(records.args[rows]):
        arguments = records.arguments[i]
        length = arguments.get("length")
        if type(length) is int and arguments.get("loader") is not None:
            lengths[_number(arguments, "loader")] = length
    return lengths


def _modes(records: Records, rows: Array) -> list[tuple[int, bool]]:
    """When modules were switched between training and evaluation."""
    if ("compute", "mode") not in records.names:
        return []
    number = list(records.names).index(("compute", "mode"))
    switches = rows[records.name[rows] == number]
    is_training = records.value[switches] > 0
    return list(zip(records.start_ns[switches].tolist(), is_training.tolist(), strict=True))


def _requests(records: Records, rows: Array) -> Iterator[Request]:
    """The requests to loaders; and when their iterators were released, by whichever thread of the
    process (garbage may be collected in any)."""
    kinds = {i: _REQUESTS[name] for i, name in enumerate(records.names) if name in _REQUESTS}
    asking = rows[np.isin(records.name[rows], list(kinds))]
    askers = [
        (arguments.get("episode", 0), _number(arguments, "loader"))
        for arguments in records.arguments
    ]
    if len(asking):
        closing = [i for i, kind in kinds.items() if kind is Kind.RELEASED]
        is_process = records.process == records.process[asking[0]]
        is_elsewhere = ~np.isin(records.tid, np.unique(records.tid[rows]))
        is_closing = np.isin(records.name, closing)
        asking = np.concatenate((asking, np.flatnonzero(is_process & is_closing & is_elsewhere)))
    columns = (records.name, records.start_ns, records.duration_ns, records.value, records.args)
    # looking a member up takes longer than all the rest of a line
    fetch, released = Kind.FETCH, Kind.RELEASED
    for name, start_ns, duration_ns, value, args in zip(
        *(column[asking].tolist() for column in columns), strict=True
    ):
        kind = kinds[name]
        end_ns = start_ns + duration_ns
        begin_ns = end_ns if kind is released else start_ns
        items = value if kind is fetch and value >= 0 else None
        episode, loader = askers[args]
        yield Request(kind, begin_ns, end_ns, episode, loader, items)


def _number(arguments: Mapping[str, Any], key: str) -> int:
    """The number of a loader or an episode; -1 where it is not known."""
    number = arguments.get(key)
    return -1 if number is None else int(number)


def _queue_requests(
    records: Records, rows: Array, other_rows: Array, timeline: Timeline
) -> list[Request]:
    """The requests of a thread with what it got from queues outside of its own loops over loaders,
    if other threads fetched batches; empty if that is not so."""
    if ("dataloader", "queue") not in records.names:
        return []
    number = list(records.names).index(("dataloader", "queue"))
    get_rows = rows[records.name[rows] == number]
    if not len(get_rows):
        return []
    get_rows = get_rows[records.value[get_rows] != 0]  # the others found nothing in time
    start_ns = records.start_ns[get_rows]
    begin_ns, end_ns = _own_reading_times(timeline.requests)
    reading = np.searchsorted(begin_ns, start_ns, side="right") - 1
    is_own = (reading >= 0) & (start_ns < np.append(end_ns, 0)[reading])
    get_rows, start_ns = get_rows[~is_own], start_ns[~is_own]
    numbers = np.array([_number(arguments, "queue") for arguments in records.arguments])
    columns = (
        numbers[records.args[get_rows]],
        start_ns,
        start_ns + records.duration_ns[get_rows],
    )
    gets = [QueueGet(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    is_model_work = np.isin(timeline.meaning, (FORWARD, BACKWARD, OPTIMIZER))
    works_ns = timeline.start_ns[is_model_work].tolist()
    over_ns = int((timeline.start_ns + timeline.duration_ns).max())
    other_tids = records.tid[other_rows]
    read = [
        _handed_on(records, other_rows[other_tids == tid]) for tid in np.unique(other_tids).tolist()
    ]
    asks_ns = [
        request.start_ns for request in timeline.requests if request.kind in (Kind.ITER, Kind.FETCH)
    ]
    through_queues = requests_through_queues(gets, read, works_ns, over_ns, asks_ns)
    if not through_queues:
        return []
    return sorted([*timeline.requests, *through_queues], key=lambda request: request.start_ns)


def _handed_on(records: Records, rows: Array) -> list[Request]:
    """The requests of a thread to loaders, ascending by start; of one that trains, without
    iterators whose batches it works on itself."""
    requests = sorted(_requests(records, rows), key=lambda request: request.start_ns)
    meaning = meanings(records.names)[records.name[rows]]
    if not np.isin(meaning, (BACKWARD, OPTIMIZER)).any():
        return requests
    is_model_work = np.isin(meaning, (FORWARD, BACKWARD, OPTIMIZER))
    works_ns = np.sort(records.start_ns[rows[is_model_work]]).tolist()
    # iterators may be released in any thread
    reads = [request for request in requests if request.kind is not Kind.RELEASED]
    until_ns = [*(request.start_ns for request in reads[1:]), NEVER]
    own_episodes = {
        request.episode
        for request, next_ns in zip(reads, until_ns, strict=True)
        if any_between(works_ns, request.end_ns, next_ns)
    }
    return [request for request in requests if request.episode not in own_episodes]


def _own_reading_times(requests: Sequence[Request]) -> tuple[Array, Array]:
    """When a thread began and ended to read batches of iterators itself; times that overlap as one,
    ascending."""
    read: dict[int, tuple[int, int]] = {}
    for request in requests:
        if request.kind is Kind.FETCH or request.episode in read:
            begin_ns, end_ns = read.get(request.episode, (request.start_ns, request.end_ns))
            read[request.episode] = begin_ns, max(end_ns, request.end_ns)
    begins_ns: list[int] = []
    ends_ns: list[int] = []
    for begin_ns, end_ns in sorted(read.values()):
        if ends_ns and begin_ns <= ends_ns[-1]:
            ends_ns[-1] = max(ends_ns[-1], end_ns)
        else:
            begins_ns.append(begin_ns)
            ends_ns.append(end_ns)
    return np.array(begins_ns, np.int64), np.array(ends_ns, np.int64)


def _companions(requests: Sequence[Request], steps: Steps) -> set[int]:
    """The iterators of loaders that are asked for a batch in each step of a loop over another
    loader, as in a ``zip`` of both."""
    fetches = [request for request in requests if request.kind is Kind.FETCH]
    leading = {request.loader for request in fetches if request.episode in steps.episodes}
    if not leading:
        return set()
    companions = [request for request in fetches if request.loader not in leading | {-1}]
    fetched_ns = np.array([request.start_ns for request in companions], np.int64)
    by_loader: dict[int, list[int]] = {}
    for request, step in zip(companions, steps.training_steps_at(fetched_ns).tolist(), strict=True):
        by_loader.setdefault(request.loader, []).append(step)
    each_step = {loader for loader, in_steps in by_loader.items() if _is_one_each(in_steps)}
    return {request.episode for request in companions if request.loader in each_step}


def _is_one_each(steps: Sequence[int]) -> bool:
    """True if requests in some steps are about one a step, from their first step to their last."""
    inside = {step for step in steps if step != NONE}
    if len(inside) < 2:
        return False
    span = max(inside) - min(inside) + 1
    return len(inside) >= _ONE_EACH * max(span, len(steps))


def _loader(records: Records, rows: Array, trained: Collection[int]) -> dict[str, Any]:
    """The facts of the loader that training waited for longest; ``loaders``: the numbers of all
    that it waited for, that one first."""
    waits = rows[meanings(records.names)[records.name[rows]] == WAIT]
    if trained:
        episodes = _numbers(records, waits, "episode")
        waits = waits[np.isin(episodes, list(trained))]
    numbers = _numbers(records, waits, "loader")
    if not len(numbers) or numbers.max() < 0:
        return {}
    waited_ns = np.bincount(np.maximum(numbers, 0), weights=records.duration_ns[waits])
    waited_for = set(numbers.tolist())
    longest_first = np.argsort(-waited_ns, kind="stable").tolist()
    loaders = [loader for loader in longest_first if loader in waited_for]
    firsts = first_batches(records, waits, trained)
    for i in distinct(records.args[waits]):
        arguments = records.arguments[i]
        if arguments.get("loader") == loaders[0] and "workers" in arguments:
            facts = {key: arguments.get(key) for key in _OF_LOADER}
            return {**facts, "loaders": loaders, "first_batches": firsts}
    return {}


def _numbers(records: Records, rows: Array, key: str) -> Array:
    """The numbers of the loaders or episodes of some records; -1 where they are not known."""
    numbers = [_number(arguments, key) for arguments in records.arguments]
    return np.array(numbers, dtype=np.int64)[records.args[rows]]


def _outermost(records: Records, rows: Array) -> tuple[Array, Array]:
    """When those of some spans that lie in no other began and ended; they are given ascending by
    start, outer before inner."""
    start_ns = records.start_ns[rows]
    return outermost(start_ns, start_ns + records.duration_ns[rows])


def _collectives(
    exchanged: Records, process: int, passes: tuple[Array, Array], calls: tuple[Array, Array]
) -> Collectives:
    """The collectives of a process, which it began together with others.

    Args:
        exchanged: Of all processes.
        process: Index of the process.
        passes: When its backward passes began and ended, ascending.
        calls: The same of its calls that wait for other ranks.
    """
    rows = np.flatnonzero(exchanged.process == process)
    rows = rows[np.argsort(exchanged.start_ns[rows], kind="stable")]
    is_running = np.array([name == _PROCESSOR for name in exchanged.names], bool)
    is_waiting = np.array([name == _NO_PROCESSOR for name in exchanged.names], bool)
    running_rows = rows[is_running[exchanged.name[rows]]]
    waiting_rows = rows[is_waiting[exchanged.name[rows]]]
    # both are written whenever torch is asked what was begun
    known_until_ns = int(exchanged.start_ns[waiting_rows[-1]]) if len(waiting_rows) else None
    rows = rows[~(is_running | is_waiting)[exchanged.name[rows]]]
    kinds, kind = _kinds(exchanged, rows)
    begin_ns = exchanged.start_ns[rows]
    backward, call = innermost(*passes, begin_ns), innermost(*calls, begin_ns)
    # Gradients are reduced as soon as they are there: with the last reduction of a pass its
    # computing is over, and it waits for them all.
    reduces = np.array([name in REDUCTIONS for _, name, _ in kinds], bool)
    reductions = np.flatnonzero(reduces[kind] & (backward != NONE))
    last_of_pass = np.full(len(passes[0]), NONE)
    last_of_pass[backward[reductions]] = reductions
    has_reduction = last_of_pass != NONE
    last = last_of_pass[has_reduction]
    waits_ns = np.maximum(_time_outside(calls, begin_ns[last], passes[1][has_reduction]), 0)
    backward_ns = int(_time_outside(calls, *passes).sum())
    last_in_call = np.full(len(calls[0]), NONE)
    last_in_call[call[call != NONE]] = np.flatnonzero(call != NONE)
    has_collective = last_in_call != NONE
    calls_ns = (calls[1] - calls[0])[has_collective]
    exposed_ns = np.zeros(len(kinds))
    exposed_ns += np.bincount(kind[last], waits_ns, len(kinds))
    exposed_ns += np.bincount(kind[last_in_call[has_collective]], calls_ns, len(kinds))
    exposed = tuple(int(time_ns) for time_ns in exposed_ns)
    all_waits_ns = int(waits_ns.sum())
    return Collectives(
        kinds,
        kind,
        exchanged.value[rows],
        backward,
        begin_ns,
        (all_waits_ns, backward_ns),
        _share_of_time(exchanged, waiting_rows),
        known_until_ns,
        exposed,
        _share_of_time(exchanged, running_rows),
    )


def _kinds(exchanged: Records, rows: Array) -> tuple[list[tuple[str, str, int]], Array]:
    """The kinds of some collectives, (group, name, bytes), ascending; and by collective the index
    of its kind."""
    n_arguments = len(exchanged.arguments)
    codes, code = np.unique(
        exchanged.name[rows] * n_arguments + exchanged.args[rows], return_inverse=True
    )
    of_codes = []
    for number in codes.tolist():
        name, args = divmod(number, n_arguments)
        arguments = exchanged.arguments[args]
        size = int(arguments.get("bytes", -1))
        of_codes.append((str(arguments.get("group")), exchanged.names[name][1], size))
    kinds = sorted(set(of_codes))
    return kinds, np.array([kinds.index(kind) for kind in of_codes], np.int32)[code]


def _time_outside(spans: tuple[Array, Array], begin_ns: Array, end_ns: Array) -> Array:
    """The time between two instants that lies in none of some spans, which lie behind each
    other; shape as ``begin_ns``."""
    inside_ns = time_of_spans_until(spans, end_ns) - time_of_spans_until(spans, begin_ns)
    outside_ns: Array = end_ns - begin_ns - inside_ns
    return outside_ns


def _share_of_time(exchanged: Records, rows: Array) -> float | None:
    """The share of the time by which a counter of nanoseconds rose, from the first to the last of
    its records; None where it is not known."""
    rows = rows[exchanged.value[rows] >= 0]
    if not len(rows):
        return None
    first, last = rows[0], rows[-1]
    passed_ns = int(exchanged.start_ns[last] - exchanged.start_ns[first])
    counted_ns = int(exchanged.value[last] - exchanged.value[first])
    return counted_ns / passed_ns if passed_ns > 0 else None
