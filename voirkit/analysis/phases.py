"""Computes what each rank did from the records of the steps instrument: the threads that train in
each process, their steps, and facts about the script."""

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

KIND = "phase"  # kind of the records of phases
DEVICE = "device"  # kind of the records of the same phases on a GPU
COLLECTIVE = "collective"  # kind of the records of collectives
# Collectives that reduce gradients. In a backward pass they begin as soon as gradients are
# computed, and the pass waits for them at its end.
REDUCTIONS = (
    "all_reduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
)
_CAPTURE = ("checkpoint", "capture")
# Maximum time between two pieces of a checkpoint (model, optimizer): in ns, and as a multiple of
# the time that both pieces took; the larger one applies. The fsync after torch.save takes some ten
# times as long as torch.save.
_BETWEEN_PIECES_NS, _BETWEEN_PIECES = 1_000_000_000, 20
# A loader counts as asked once in each step if at least this share of the steps has a request to
# it, and this share of its requests has a step of its own.
_ONE_EACH = 0.9
# counters of a thread: its time on a processor, and its time ready to run without a processor
_PROCESSOR, _NO_PROCESSOR = ("processor", "ran"), ("processor", "waited")


@dataclass(frozen=True)
class Records:
    """Records of phases; arrays of shape (n,), in any order."""

    start_ns: Array  # on the clock of the record's host
    duration_ns: Array  # nanoseconds
    name: Array  # index into ``names``
    args: Array  # index into ``arguments``
    value: Array  # the record's own integer, such as the number of items in a batch; -1 for none
    process: Array  # index into ``processes``
    tid: Array  # native id of the thread
    names: Sequence[tuple[str, str]]  # (category, name) by index
    arguments: Sequence[Mapping[str, Any]]  # arguments of records, by index
    processes: Sequence[tuple[int, str, int]]  # (rank, host, pid) by index
    # World size of each process's group, by index. 1: the process is in no group, and trains alone
    # if it trains. 0, or empty: not known, as in runs that launchers started.
    world_sizes: Sequence[int] = ()

    def chosen(self, rows: Array) -> Records:
        """Return the records of the given rows only."""
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
# Names of records by which the script declares an evaluation: annotations, and given tasks.
EVALUATIONS = (("annotated", "evaluate"), ("annotated", "test"), ("given", "evaluation"))
_REQUESTS = {
    ("dataloader", "iter"): Kind.ITER,
    ("dataloader", "fetch"): Kind.FETCH,
    ("dataloader", "end"): Kind.END,
    # The next two records span a whole loop over a loader. The loop is over at their end, whatever
    # the reason is.
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
    """Return the ranks of a run, ascending, with their steps and facts. A process that trains or
    evaluates but is in no group of ranks has a ``Rank`` of its own.

    Args:
        records: The phases of all ranks.
        cpus: Processors of the host, for the verdict.
        device: The records of the phases on GPUs, where they were used.
        without: (host, pid) of processes to leave out.
        exchanged: The records of the collectives.
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
    """Return a ``Rank`` for each training of a process, the main one last. For a process in a group
    of ranks, return only the main one."""
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
        # In a group of ranks, each rank has one training. Training in its other threads is reported
        # as uncounted.
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
    """Return the starts and ends of a thread's backward passes, and the starts and ends of its
    calls that wait for other ranks."""
    meaning = meanings(records.names)[records.name[rows]]
    if len(train):
        # A backward pass after the last step was ended by an exception. It lies in no step, and is
        # left out together with its waits.
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
    """Return a process with the steps and facts of one training.

    Args:
        records: The phases of all ranks.
        number: Index of the process.
        rows: Indices of the records of the threads that train.
        cpus: Processors of the host.
        device: The records of the phases on GPUs.
        process: The process; its steps and facts are replaced.
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
    """Return the start of each step of the leading optimizer; if another optimizer takes over
    later, of its steps from then on. Shape (n,)."""
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
    """Return the indices of the records of each training in a process, ascending by start, outer
    before inner. The training with most steps comes first.

    The records of a training are those of its thread, or of the threads that work on it in turn. If
    no thread trains or calls a model, return the records of the busiest thread."""
    rows = np.flatnonzero(records.process == process)
    if not len(rows):
        return []
    rows = rows[outer_first(records.start_ns[rows], records.duration_ns[rows])]
    meaning = meanings(records.names)[records.name[rows]]
    if np.isin(meaning, (COMPILE, IMPORT, GC)).all():
        return []  # the process has only imported torch
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
    """Return the argument ``key`` of each of some records; ``otherwise`` if a record lacks it."""
    values = np.array([arguments.get(key, otherwise) for arguments in records.arguments])
    argument: Array = values[records.args[rows]]
    return argument


def _is_named(records: Records, rows: Array, names: Collection[tuple[str, str]]) -> Array:
    """True for the records that have one of the given names."""
    is_named: Array = np.array([name in names for name in records.names])[records.name[rows]]
    return is_named


def _with_all_of(records: Records, uncounted: Uncounted, threads: Sequence[Array]) -> Uncounted:
    """Return the uncounted training plus all training in some other threads."""
    for rows in threads:
        meaning = meanings(records.names)[records.name[rows]]
        trained = rows[np.isin(meaning, (BACKWARD, OPTIMIZER))]
        steps = int(np.count_nonzero(meaning == OPTIMIZER))
        first_ns = int(records.start_ns[trained][0])
        uncounted = uncounted.plus(Uncounted(steps, len(trained) - steps, first_ns))
    return uncounted


def meanings(names: Sequence[tuple[str, str]]) -> Array:
    """Return the phase for each (category, name) of spans, as an index into ``COLUMNS``; -1 for a
    name that is no phase."""
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
    """Shorten each import that runs training to the start of that training, and drop garbage
    collections inside of imports and compilations, whose time includes them.

    Args:
        start_ns: Starts of the spans of a thread, ascending; shape (n,).
        duration_ns: Durations, shape (n,).
        meaning: Phases as indices into ``COLUMNS``, shape (n,).

    Returns:
        Durations, and True for each span that is kept; both of shape (n,).
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
    """Extend each piece of a checkpoint (model, optimizer) to the start of the next piece.

    The time between them is a cost of the checkpoint (fsync, a rename, the next ``state_dict``) if
    no other span lies in it.

    Args:
        start_ns: Starts of the spans of a thread, ascending, outer before inner; shape (n,).
        duration_ns: Durations, shape (n,).
        meaning: Phases as indices into ``COLUMNS``, shape (n,).
        writes: True for a span that writes a checkpoint; shape (n,).

    Returns:
        Durations, shape (n,).
    """
    trained = np.flatnonzero(np.isin(meaning, (BACKWARD, OPTIMIZER)))
    pieces = np.flatnonzero(writes)
    if not len(trained) or len(pieces) < 2:
        return duration_ns
    pieces = pieces[pieces > trained[0]]  # before training, saved files may be prepared data
    end_ns = start_ns + duration_ns
    outermost_ns = np.maximum.accumulate(end_ns)
    n_others = np.cumsum(~np.isin(meaning, (GC, VOIRKIT, IMPORT)))
    longer = duration_ns.copy()
    for i, j in pairwise(pieces.tolist()):
        gap_ns = start_ns[j] - end_ns[i]
        is_next = gap_ns > 0 and n_others[j] - n_others[i] == 1
        # True if no enclosing span ends between the two pieces
        lies_in_one = outermost_ns[i] in (end_ns[i], outermost_ns[j])
        pieces_ns = duration_ns[i] + duration_ns[j]
        is_near = gap_ns <= max(_BETWEEN_PIECES_NS, _BETWEEN_PIECES * pieces_ns)
        if is_next and lies_in_one and is_near:
            longer[i] += gap_ns
    return longer


def _annotated(records: Records, rows: Array) -> list[tuple[int, int]]:
    """Return (start, end) of the evaluations that the script declares; of nested ones only the
    outermost."""
    rows = rows[_is_named(records, rows, EVALUATIONS)] if len(rows) else rows
    if not len(rows):
        return []
    begins_ns = records.start_ns[rows]
    ends_ns = begins_ns + records.duration_ns[rows]
    earlier_ends_ns = np.maximum.accumulate(ends_ns)[:-1]
    is_outer = np.append(True, begins_ns[1:] >= earlier_ends_ns)
    return list(zip(begins_ns[is_outer].tolist(), ends_ns[is_outer].tolist(), strict=True))


def _lengths(records: Records, rows: Array) -> dict[int, int]:
    """Return a dict from the number of each loader to the number of batches in an epoch."""
    lengths = {}
    for i in distinct(records.args[rows]):
        arguments = records.arguments[i]
        length = arguments.get("length")
        if type(length) is int and arguments.get("loader") is not None:
            lengths[_number(arguments, "loader")] = length
    return lengths


def _modes(records: Records, rows: Array) -> list[tuple[int, bool]]:
    """Return (time, True for training mode) for each switch of a module between training and
    evaluation mode."""
    if ("compute", "mode") not in records.names:
        return []
    number = list(records.names).index(("compute", "mode"))
    switches = rows[records.name[rows] == number]
    is_training = records.value[switches] > 0
    return list(zip(records.start_ns[switches].tolist(), is_training.tolist(), strict=True))


def _requests(records: Records, rows: Array) -> Iterator[Request]:
    """Yield the requests of a thread to loaders, and the releases of iterators in any thread of the
    process: any thread may collect garbage."""
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
    # members of an enum are slow to look up in the loop below
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
    """Return the number of a loader, an episode or a queue from a record's arguments; -1 if it is
    not known."""
    number = arguments.get(key)
    return -1 if number is None else int(number)


def _queue_requests(
    records: Records, rows: Array, other_rows: Array, timeline: Timeline
) -> list[Request]:
    """Return the requests of a thread to loaders together with its requests through queues for
    batches that other threads fetch; empty if no batch came through a queue. Gets from queues
    inside of the thread's own loops over loaders do not count."""
    if ("dataloader", "queue") not in records.names:
        return []
    number = list(records.names).index(("dataloader", "queue"))
    get_rows = rows[records.name[rows] == number]
    if not len(get_rows):
        return []
    get_rows = get_rows[records.value[get_rows] != 0]  # 0: no batch came within the timeout
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
    """Return the requests of a thread to loaders whose batches it may hand to other threads,
    ascending by start. If the thread trains, iterators whose batches it works on itself are left
    out."""
    requests = sorted(_requests(records, rows), key=lambda request: request.start_ns)
    meaning = meanings(records.names)[records.name[rows]]
    if not np.isin(meaning, (BACKWARD, OPTIMIZER)).any():
        return requests
    is_model_work = np.isin(meaning, (FORWARD, BACKWARD, OPTIMIZER))
    works_ns = np.sort(records.start_ns[rows[is_model_work]]).tolist()
    # releases are left out, because iterators may be released in any thread
    reads = [request for request in requests if request.kind is not Kind.RELEASED]
    until_ns = [*(request.start_ns for request in reads[1:]), NEVER]
    own_episodes = {
        request.episode
        for request, next_ns in zip(reads, until_ns, strict=True)
        if any_between(works_ns, request.end_ns, next_ns)
    }
    return [request for request in requests if request.episode not in own_episodes]


def _own_reading_times(requests: Sequence[Request]) -> tuple[Array, Array]:
    """Return the starts and the ends of the time ranges in which a thread reads batches of
    iterators itself, ascending; overlapping ranges are merged."""
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
    """Return the iterators that are asked for one batch in each step of a loop over another loader,
    as in a ``zip`` of both loaders."""
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
    """True if a loader has about one request in each step from its first to its last. ``steps``:
    the step of each request."""
    inside = {step for step in steps if step != NONE}
    if len(inside) < 2:
        return False
    span = max(inside) - min(inside) + 1
    return len(inside) >= _ONE_EACH * max(span, len(steps))


def _loader(records: Records, rows: Array, trained: Collection[int]) -> dict[str, Any]:
    """Return the facts of the loader that training waited for longest. The fact ``loaders`` has the
    numbers of all loaders that it waited for, that one first."""
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
    """Return the numbers of the loaders or episodes of some records; -1 for an unknown one."""
    numbers = [_number(arguments, key) for arguments in records.arguments]
    return np.array(numbers, dtype=np.int64)[records.args[rows]]


def _outermost(records: Records, rows: Array) -> tuple[Array, Array]:
    """Return the starts and ends of the spans that lie in no other span. ``rows`` must be ascending
    by start, outer before inner."""
    start_ns = records.start_ns[rows]
    return outermost(start_ns, start_ns + records.duration_ns[rows])


def _collectives(
    exchanged: Records, process: int, passes: tuple[Array, Array], calls: tuple[Array, Array]
) -> Collectives:
    """Return the collectives that a process took part in.

    Args:
        exchanged: The records of the collectives of all processes.
        process: Index of the process.
        passes: Starts and ends of its backward passes, ascending.
        calls: Starts and ends of its calls that wait for other ranks, ascending.
    """
    rows = np.flatnonzero(exchanged.process == process)
    rows = rows[np.argsort(exchanged.start_ns[rows], kind="stable")]
    is_running = np.array([name == _PROCESSOR for name in exchanged.names], bool)
    is_waiting = np.array([name == _NO_PROCESSOR for name in exchanged.names], bool)
    running_rows = rows[is_running[exchanged.name[rows]]]
    waiting_rows = rows[is_waiting[exchanged.name[rows]]]
    # Collectives are known until the last counter: both counters are written whenever torch's
    # record of collectives is read.
    known_until_ns = int(exchanged.start_ns[waiting_rows[-1]]) if len(waiting_rows) else None
    rows = rows[~(is_running | is_waiting)[exchanged.name[rows]]]
    kinds, kind = _kinds(exchanged, rows)
    begin_ns = exchanged.start_ns[rows]
    backward, call = innermost(*passes, begin_ns), innermost(*calls, begin_ns)
    # Gradients are reduced as soon as they are computed. So when the last reduction of a pass
    # begins, the pass has ended its computation and only waits for the reductions.
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
    """Return the distinct kinds (group, name, bytes) of some collectives, ascending, and for each
    collective the index of its kind."""
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
    """Return for each pair of instants the time between them that lies outside of all spans. The
    spans must not overlap. Shape as ``begin_ns``."""
    inside_ns = time_of_spans_until(spans, end_ns) - time_of_spans_until(spans, begin_ns)
    outside_ns: Array = end_ns - begin_ns - inside_ns
    return outside_ns


def _share_of_time(exchanged: Records, rows: Array) -> float | None:
    """Return the increase of a counter of nanoseconds divided by the time that passed, from the
    first of its records to the last; None if that is not known."""
    rows = rows[exchanged.value[rows] >= 0]
    if not len(rows):
        return None
    first, last = rows[0], rows[-1]
    passed_ns = int(exchanged.start_ns[last] - exchanged.start_ns[first])
    counted_ns = int(exchanged.value[last] - exchanged.value[first])
    return counted_ns / passed_ns if passed_ns > 0 else None
