"""From the records of the steps instrument to ranks: the thread that trains in each process, its steps, and how its script trains.

Several processes of one rank, which was started again, are joined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from voirkit.analysis.document import Collectives, Rank
from voirkit.analysis.nesting import NONE, Array, distinct, innermost, outer_first
from voirkit.analysis.outside_loops import leading_steps
from voirkit.analysis.queued_batches import QueueGet, requests_through_queues
from voirkit.analysis.segmentation import Kind, Request
from voirkit.analysis.steps import (
    BACKWARD,
    COMMUNICATION,
    COMPILE,
    FORWARD,
    GC,
    IMPORT,
    MEANING,
    NO_STEPS,
    OPTIMIZER,
    VOIRKIT,
    WAIT,
    DeviceTable,
    Steps,
    Table,
    Timeline,
    Uncounted,
    concatenated,
    on_device,
    steps_of,
)
from voirkit.analysis.symptoms import symptoms_of
from voirkit.analysis.training_threads import activities, group_by_training, outermost
from voirkit.analysis.worker_starts import START, STOP, restarts

KIND = "phase"  # of the records
DEVICE = "device"  # of those that say how long the same lasted on a GPU
COLLECTIVE = "collective"  # of those of what ranks exchange
# In backward they are begun as soon as gradients are there, and waited for at its end.
REDUCTIONS = ("all_reduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced")
_WRITTEN = ("checkpoint", "capture")
# How far two pieces of a checkpoint may be apart: fsync of what torch.save has left in memory takes some ten times as long as that.
_BETWEEN_PIECES_NS, _BETWEEN_PIECES = 1_000_000_000, 20
_NO_PROCESSOR = ("processor", "waited")


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
    # of the group in which each process has its rank, by index; 1: it is in none and trains, if it does, for itself. 0, and empty: not
    # known, as of runs that launchers started.
    world_sizes: Sequence[int] = ()

    def chosen(self, which: Array) -> Records:
        """Only some of them."""
        columns = ("start_ns", "duration_ns", "name", "args", "value", "process", "tid")
        return replace(self, **{key: getattr(self, key)[which] for key in columns})


_OF_LOADER = ("workers", "dataset", "batch_size", "pin_memory", "persistent", "whole_batches", "sampler", "length")
# The script's own word that it evaluates: its annotations, and steps that it gives with a task.
EVALUATIONS = (("annotated", "evaluate"), ("annotated", "test"), ("given", "evaluation"))
_REQUESTS = {
    ("dataloader", "iter"): Kind.ITER, ("dataloader", "fetch"): Kind.FETCH, ("dataloader", "end"): Kind.END,
    # A loop over a loader, whole: it is over where this ends, however that came.
    ("pipeline", "epoch"): Kind.LEFT, ("pipeline", "evaluate"): Kind.LEFT, ("dataloader", "left"): Kind.LEFT,
}  # fmt: skip


def ranks(
    records: Records,
    cpus: int | None = None,
    device: Records | None = None,
    without: Collection[tuple[str, int]] = (),
    exchanged: Records | None = None,
) -> list[Rank]:
    """What each rank did, ascending; and what each process did that trains, or evaluates, and is in no group of ranks.

    Args:
        records: Of all ranks.
        cpus: Processors of the host, for the verdict.
        device: What the phases did on GPUs, where they were used.
        without: (host, pid) of processes that are left out.
        exchanged: What they began together.
    """
    parts: list[Rank] = []
    for number, (rank, host, pid) in enumerate(records.processes):
        trainings = training_threads(records, number) if (host, pid) not in without else []
        if trainings:
            chosen = trainings[0]
            alone = bool(records.world_sizes) and records.world_sizes[number] == 1
            of = Rank(rank, host, NO_STEPS, {}, ((host, pid),), alone)
            if alone:
                for own in trainings[1:]:
                    beside = _process(records, number, own, cpus, None, of)
                    parts.append(replace(beside, thread=int(records.tid[own[0]])))
            of = _process(records, number, chosen, cpus, device, of)
            if not alone:  # a rank has one training: what other threads of it do beside that is no step of its group
                of = replace(of, steps=replace(of.steps, uncounted=_all_of(records, of.steps.uncounted, trainings[1:])))
            if exchanged is not None and (rank, host, pid) in exchanged.processes:
                what = meanings(records.names)[records.name[chosen]]
                if len(train := of.steps.train):  # a pass that an exception ends, and what it waited for until then, is in no step
                    over = records.start_ns[chosen] >= int((train.start_ns + train.time_ns).max())
                    chosen, what = (values[~(over & (what == BACKWARD))] for values in (chosen, what))
                passes, calls = (_outermost(records, chosen[what == one]) for one in (BACKWARD, COMMUNICATION))
                of = replace(of, collectives=_collectives(exchanged, list(exchanged.processes).index((rank, host, pid)), passes, calls))
            parts.append(of)
    return joined(parts)


def _process(records: Records, number: int, chosen: Array, cpus: int | None, device: Records | None, of: Rank) -> Rank:
    """What a process did, in the thread that trains."""
    timeline = _timeline(records, chosen)
    steps = steps_of(timeline)
    waited = chosen
    others = np.flatnonzero((records.process == number) & ~np.isin(records.tid, np.unique(records.tid[chosen])))
    requests = _queue_requests(records, chosen, others, timeline)
    if requests:
        waited = others if not steps.wait_known else np.concatenate((chosen, others))
        steps = steps_of(replace(timeline, requests=requests))
    if device is not None:
        steps = replace(steps, device=_on_device(timeline, device, records.processes[number], np.unique(records.tid[chosen]), steps.train))
    trained = steps.episodes if waited is chosen else ()
    script = script_facts(records, chosen, steps.train, leading_optimizers_ns(timeline))
    inference = in_training_mode(timeline, steps.evaluation) or None
    symptoms = symptoms_of(records, chosen, meanings(records.names)[records.name], timeline, steps) or None
    started = restarts(records, chosen, steps.episodes) or None
    facts = {**_loader(records, waited, trained), **script, "inference": inference, "cpus": cpus, "symptoms": symptoms}
    facts["worker_restarts"] = started
    return replace(of, steps=steps, facts={k: v for k, v in facts.items() if v is not None})


def leading_optimizers_ns(timeline: Timeline) -> Array:
    """When the optimizer that leads stepped, of a second training the one that leads there; shape (n,)."""
    stepped = np.flatnonzero(timeline.meaning == OPTIMIZER)
    led = leading_steps(stepped, timeline.optimizer[stepped])
    ns: Array = timeline.start_ns[np.concatenate(led) if led else stepped]
    return ns


def _on_device(host: Timeline, device: Records, process: tuple[int, str, int], tids: Array, train: Table) -> DeviceTable | None:
    if process not in device.processes:
        return None
    own = np.flatnonzero((device.process == list(device.processes).index(process)) & np.isin(device.tid, tids))
    own = own[outer_first(device.start_ns[own], device.duration_ns[own])]
    return on_device(host, _timeline(device, own), train)


def training_threads(records: Records, process: int) -> list[Array]:
    """By training of a process, the one that steps most first, indices of the records of the threads that take turns at it; ascending by
    start, outer before inner. Where nothing is trained and no model called, those of the thread that does most else."""
    own = np.flatnonzero(records.process == process)
    if not len(own):
        return []
    own = own[outer_first(records.start_ns[own], records.duration_ns[own])]
    meaning = meanings(records.names)[records.name[own]]
    if np.isin(meaning, (COMPILE, IMPORT, GC)).all():
        return []  # it has imported torch, and that is all
    tids = records.tid[own]
    codes = records.name[own]

    def is_named(*wanted: str) -> Array:
        return np.array([category == "dataloader" and name in wanted for category, name in records.names])[codes]

    is_kind = {
        "forward": meaning == FORWARD,
        "backward": meaning == BACKWARD,
        "optimizer": meaning == OPTIMIZER,
        "request": is_named("iter", "fetch", "end"),
        "fetch": is_named("fetch"),
        "queue": is_named("queue"),
    }
    which = np.array([arguments.get("which", 0) for arguments in records.arguments])[records.args[own]]
    start_ns = records.start_ns[own]
    threads = activities(tids, start_ns, start_ns + records.duration_ns[own], is_kind, which)
    groups = [[one.tid for one in group] for group in group_by_training(threads)]
    if not groups:
        known, counts = np.unique(tids[(meaning >= 0) & (meaning < COMPILE)], return_counts=True)
        groups = [[int(known[np.argmax(counts)])]] if len(known) else [np.unique(tids).tolist()]
    return [own[np.isin(tids, group)] for group in groups]


def _all_of(records: Records, uncounted: Uncounted, beside: Sequence[Array]) -> Uncounted:
    """With all that is trained in some other threads."""
    for own in beside:
        meaning = meanings(records.names)[records.name[own]]
        trains = np.isin(meaning, (BACKWARD, OPTIMIZER))
        steps = int(np.count_nonzero(meaning == OPTIMIZER))
        uncounted = uncounted.plus(Uncounted(steps, int(np.count_nonzero(trains)) - steps, int(records.start_ns[own[trains]][0])))
    return uncounted


def meanings(names: Sequence[tuple[str, str]]) -> Array:
    """What each name counts for."""
    found = [COMMUNICATION if category == "comm" else MEANING.get((category, name), -1) for category, name in names]
    return np.array(found, dtype=np.int64)


def _timeline(records: Records, chosen: Array) -> Timeline:
    requests = sorted(_requests(records, chosen), key=lambda request: request.start_ns)
    annotated = _annotated(records, chosen)
    meaning, modes, lengths = meanings(records.names)[records.name[chosen]], _modes(records, chosen), _lengths(records, chosen)
    chosen, meaning = chosen[meaning >= 0], meaning[meaning >= 0]
    which, grad, training = (
        np.array([arguments.get(key, otherwise) for arguments in records.arguments])[records.args[chosen]]
        for key, otherwise in (("which", 0), ("grad", True), ("training", True))
    )
    start = records.start_ns[chosen]
    duration, kept = whole_imports(start, records.duration_ns[chosen], meaning)
    writes = np.array([name == _WRITTEN for name in records.names])[records.name[chosen]]
    duration = whole_checkpoints(start, duration, meaning, writes)
    of_workers = np.array([name in (START, STOP) for name in records.names])[records.name[chosen]][kept]
    workers = of_workers if of_workers.any() else None
    return Timeline(
        start[kept], duration[kept], meaning[kept], which[kept], grad[kept], training[kept], requests, modes, lengths, annotated, workers
    )


def whole_imports(start_ns: Array, duration_ns: Array, meaning: Array) -> tuple[Array, Array]:
    """An import that trains is one until it does; garbage that is collected in an import or a compilation is part of it.

    Args:
        start_ns: Of the spans of a thread, ascending; shape (n,).
        duration_ns: Same shape.
        meaning: Same shape.

    Returns:
        Durations, and which spans are left.
    """
    kept = np.ones(len(start_ns), dtype=bool)
    duration_ns = duration_ns.copy()
    work = np.flatnonzero(~np.isin(meaning, (IMPORT, COMPILE, GC)))
    for i in np.flatnonzero(np.isin(meaning, (IMPORT, COMPILE))).tolist():
        end = start_ns[i] + duration_ns[i]
        if meaning[i] == IMPORT:
            at = np.searchsorted(work, i)
            if at < len(work) and start_ns[work[at]] < end:
                end = start_ns[work[at]]
                duration_ns[i] = end - start_ns[i]
        inside = slice(i + 1, int(np.searchsorted(start_ns, end)))
        kept[inside] &= meaning[inside] != GC
    return duration_ns, kept


def whole_checkpoints(start_ns: Array, duration_ns: Array, meaning: Array, writes: Array) -> Array:
    """Durations in which a checkpoint that is written in pieces (model, optimizer) lasts from one piece to the next.

    What lies between them, where nothing else is seen (fsync, a rename, the next ``state_dict``), is its cost.

    Args:
        start_ns: Of the spans of a thread, ascending, outer before inner; shape (n,).
        duration_ns: Same shape.
        meaning: Same shape.
        writes: Whether a span writes a checkpoint; same shape.
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
        lies_in_one = outermost_ns[i] in (end_ns[i], outermost_ns[j])  # no span ends between the two
        if is_next and lies_in_one and gap_ns <= max(_BETWEEN_PIECES_NS, _BETWEEN_PIECES * (duration_ns[i] + duration_ns[j])):
            longer[i] += gap_ns
    return longer


def _annotated(records: Records, chosen: Array) -> list[tuple[int, int]]:
    """From when to when the script says that it evaluates, the outermost of what lies in each other."""
    names = [i for i, name in enumerate(records.names) if name in EVALUATIONS]
    own = chosen[np.isin(records.name[chosen], names)]
    begins, ends = records.start_ns[own], (records.start_ns + records.duration_ns)[own]
    outer = begins >= np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1])) if len(own) else slice(0)
    return list(zip(begins[outer].tolist(), ends[outer].tolist(), strict=True))


def _lengths(records: Records, chosen: Array) -> dict[int, int]:
    """By loader, how many batches an epoch has."""
    described = [arguments for arguments in (records.arguments[i] for i in distinct(records.args[chosen])) if "length" in arguments]
    return {
        _number(about, "loader"): about["length"] for about in described if type(about["length"]) is int and about.get("loader") is not None
    }


def _modes(records: Records, chosen: Array) -> list[tuple[int, bool]]:
    """When modules were switched between training and evaluation."""
    name = next((i for i, name in enumerate(records.names) if name == ("compute", "mode")), None)
    switched = chosen[records.name[chosen] == name] if name is not None else chosen[:0]
    return list(zip(records.start_ns[switched].tolist(), (records.value[switched] > 0).tolist(), strict=True))


def _requests(records: Records, chosen: Array) -> Iterator[Request]:
    """What was asked of loaders; and when their iterators were let go, by whichever thread of the process (garbage may be collected in
    any)."""
    kinds = {i: _REQUESTS[name] for i, name in enumerate(records.names) if name in _REQUESTS}
    asked = chosen[np.isin(records.name[chosen], list(kinds))]
    askers = [(arguments.get("episode", 0), _number(arguments, "loader")) for arguments in records.arguments]
    if len(asked):
        closing = [i for i, kind in kinds.items() if kind is Kind.LEFT]
        of_process = records.process == records.process[asked[0]]
        elsewhere = np.flatnonzero(of_process & np.isin(records.name, closing) & ~np.isin(records.tid, np.unique(records.tid[chosen])))
        asked = np.concatenate((asked, elsewhere))
    columns = (records.name, records.start_ns, records.duration_ns, records.value, records.args)
    fetch, left = Kind.FETCH, Kind.LEFT  # looking a member up takes longer than all the rest of a line
    for name, start, duration, value, args in zip(*(c[asked].tolist() for c in columns), strict=True):
        kind, end = kinds[name], start + duration
        episode, loader = askers[args]
        yield Request(kind, end if kind is left else start, end, episode, loader, value if kind is fetch and value >= 0 else None)


def _number(arguments: Mapping[str, Any], key: str) -> int:
    """Of a loader or an episode; -1 where it is not known."""
    number = arguments.get(key)
    return -1 if number is None else int(number)


def _queue_requests(records: Records, chosen: Array, others: Array, timeline: Timeline) -> list[Request]:
    """The requests of a thread with what it got from queues outside of its own loops over loaders, if other threads fetched batches; empty
    if that is not so."""
    queue = next((i for i, name in enumerate(records.names) if name == ("dataloader", "queue")), None)
    got = chosen[records.name[chosen] == queue]
    if not len(got):
        return []
    got = got[records.value[got] != 0]  # the others found nothing in time
    start_ns = records.start_ns[got]
    begin_ns, end_ns = _own_reading_times(timeline.requests)
    at = np.searchsorted(begin_ns, start_ns, side="right") - 1
    is_own = (at >= 0) & (start_ns < np.append(end_ns, 0)[at])
    got, start_ns = got[~is_own], start_ns[~is_own]
    queues = np.array([_number(arguments, "queue") for arguments in records.arguments])[records.args[got]]
    columns = (queues, start_ns, start_ns + records.duration_ns[got])
    gets = [QueueGet(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    works_ns = timeline.start_ns[np.isin(timeline.meaning, (FORWARD, BACKWARD, OPTIMIZER))].tolist()
    over_ns = int((timeline.start_ns + timeline.duration_ns).max())
    read = [
        sorted(_requests(records, others[records.tid[others] == tid]), key=lambda request: request.start_ns)
        for tid in np.unique(records.tid[others]).tolist()
    ]
    asks_ns = [request.start_ns for request in timeline.requests if request.kind in (Kind.ITER, Kind.FETCH)]
    made = requests_through_queues(gets, read, works_ns, over_ns, asks_ns)
    return sorted([*timeline.requests, *made], key=lambda request: request.start_ns) if made else []


def _own_reading_times(requests: Sequence[Request]) -> tuple[Array, Array]:
    """When a thread began and ended to read batches of iterators itself; times that overlap as one, ascending."""
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


def _loader(records: Records, chosen: Array, trained: Collection[int]) -> dict[str, Any]:
    """What is known of the loader that training waited for longest; ``loaders``: the numbers of all that it waited for, that one first."""
    waits = chosen[meanings(records.names)[records.name[chosen]] == WAIT]
    numbers = np.array([_number(arguments, "loader") for arguments in records.arguments], dtype=np.int64)[records.args[waits]]
    if trained:
        episodes = np.array([_number(arguments, "episode") for arguments in records.arguments], dtype=np.int64)[records.args[waits]]
        of_training = np.isin(episodes, list(trained))
        waits, numbers = waits[of_training], numbers[of_training]
    if not len(numbers) or numbers.max() < 0:
        return {}
    waited = np.bincount(np.maximum(numbers, 0), weights=records.duration_ns[waits])
    loaders = [int(n) for n in np.argsort(-waited, kind="stable") if n in set(numbers.tolist())]
    firsts = first_batches(records, waits, trained)
    for i in distinct(records.args[waits]):
        arguments = records.arguments[i]
        if arguments.get("loader") == loaders[0] and "workers" in arguments:
            return {**{key: arguments.get(key) for key in _OF_LOADER}, "loaders": loaders, "first_batches": firsts}
    return {}


def _outermost(records: Records, which: Array) -> tuple[Array, Array]:
    """When those of some spans that lie in no other began and ended; they are given ascending by start, outer before inner."""
    start_ns = records.start_ns[which]
    return outermost(start_ns, start_ns + records.duration_ns[which])


def _collectives(exchanged: Records, process: int, passes: tuple[Array, Array], calls: tuple[Array, Array]) -> Collectives:
    """What a process began together with others.

    Args:
        exchanged: Of all processes.
        process: Index of the process.
        passes: When its backward passes began and ended, ascending.
        calls: The same of its calls that wait for other ranks.
    """
    own = np.flatnonzero(exchanged.process == process)
    own = own[np.argsort(exchanged.start_ns[own], kind="stable")]
    is_waiting = np.array([name == _NO_PROCESSOR for name in exchanged.names], bool)[exchanged.name[own]]
    looked = own[is_waiting]  # a record of it is made whenever torch is asked what was begun
    waited = looked[exchanged.value[looked] >= 0]
    until = int(exchanged.start_ns[looked[-1]]) if len(looked) else None
    own = own[~is_waiting]
    codes, kind = np.unique(exchanged.name[own] * len(exchanged.arguments) + exchanged.args[own], return_inverse=True)
    of_codes = []
    for name, args in (divmod(code, len(exchanged.arguments)) for code in codes.tolist()):
        about = exchanged.arguments[args]
        of_codes.append((str(about.get("group")), exchanged.names[name][1], int(about.get("bytes", -1))))
    kinds = sorted(set(of_codes))
    of_kind = np.array([kinds.index(one) for one in of_codes], np.int32)[kind]
    begun = exchanged.start_ns[own]
    backward, called = innermost(*passes, begun), innermost(*calls, begun)
    # Gradients are reduced as soon as they are there: with the last reduction of a pass its computing is over, and it waits for them all.
    reduces = np.flatnonzero(np.array([name in REDUCTIONS for _, name, _ in kinds], bool)[of_kind] & (backward != NONE))
    last = np.full(len(passes[0]), NONE)
    last[backward[reduces]] = reduces
    reduced, last = last != NONE, last[last != NONE]
    ends, waits_from = passes[1][reduced], begun[last]
    waits = np.maximum(ends - waits_from - (_spent_until(calls, ends) - _spent_until(calls, waits_from)), 0)
    own_ns = int((passes[1] - passes[0] - (_spent_until(calls, passes[1]) - _spent_until(calls, passes[0]))).sum())
    waiting = np.full(len(calls[0]), NONE)
    waiting[called[called != NONE]] = np.flatnonzero(called != NONE)
    exposed = np.zeros(len(kinds))
    exposed += np.bincount(of_kind[last], waits, len(kinds))
    exposed += np.bincount(of_kind[waiting[waiting != NONE]], (calls[1] - calls[0])[waiting != NONE], len(kinds))
    starved = None
    if len(waited) and (passed := int(exchanged.start_ns[waited[-1]] - exchanged.start_ns[waited[0]])) > 0:
        starved = float(exchanged.value[waited[-1]] - exchanged.value[waited[0]]) / passed
    in_backward = int(waits.sum()), own_ns
    exposed_ns = tuple(int(ns) for ns in exposed)
    return Collectives(kinds, of_kind, exchanged.value[own], backward, begun, in_backward, starved, until, exposed_ns)


def _spent_until(spans: tuple[Array, Array], at_ns: Array) -> Array:
    """The time of spans that lie behind each other, until some instants."""
    start, end = spans
    after = np.cumsum(end - start)
    if not len(start):
        return np.zeros(len(at_ns), np.int64)
    return np.rint(np.interp(at_ns, np.stack(spans, 1).ravel(), np.stack((after - (end - start), after), 1).ravel())).astype(np.int64)


# several processes of a rank


def joined(parts: Sequence[Rank]) -> list[Rank]:
    """Ranks, ascending, each once; then the processes that train for themselves, in the order in which they began.

    Of a rank's processes those that train count, or, if none does, the one that evaluates most. A process that is the only one is no
    process beside others.
    """
    by_rank: dict[int, list[Rank]] = {}
    alone = []
    for part in parts:
        if part.alone:
            alone.append(part)
        else:
            by_rank.setdefault(part.rank, []).append(part)
    found = [_one(same) for _, same in sorted(by_rank.items())]
    counted = [part for part in alone if len(part.steps.train) or len(part.steps.evaluation)] or alone[:1]
    if counted:
        others = (part.steps.uncounted for part in alone if not any(part is one for one in counted))
        first = counted[0]
        counted[0] = replace(first, steps=replace(first.steps, uncounted=reduce(Uncounted.plus, others, first.steps.uncounted)))
    alone = counted
    if len(alone) == 1 and not found:
        return [replace(alone[0], alone=False)]
    return [*found, *sorted(alone, key=lambda part: _begun(part.steps))]


def _one(parts: Sequence[Rank]) -> Rank:
    trained = [part for part in parts if len(part.steps.train)]
    most = max(trained or parts, key=lambda part: (len(part.steps.train), len(part.steps.evaluation)))
    if len(trained) < 2:
        uncounted = reduce(Uncounted.plus, (part.steps.uncounted for part in parts))
        return replace(most, steps=replace(most.steps, uncounted=uncounted))
    trained.sort(key=lambda part: int(part.steps.train.start_ns.min()))
    processes = tuple(process for part in trained for process in part.processes)
    last = next((part.collectives for part in reversed(trained) if part.collectives is not None), None)  # its numbers begin anew
    return replace(most, steps=_after_each_other([part.steps for part in trained]), processes=processes, collectives=last)


def _after_each_other(parts: Sequence[Steps]) -> Steps:
    train, order = _table([part.train for part in parts])
    devices = [part.device for part in parts if part.device is not None]
    device = None
    if len(devices) == len(parts):
        launching = np.concatenate([one.launching_ns for one in devices])
        device = DeviceTable(_table([one.table for one in devices], order)[0], launching[order])
    return Steps(
        train, _table([part.evaluation for part in parts])[0], all(part.wait_known for part in parts), device,
        saving_between_ns=sum(part.saving_between_ns for part in parts), aside_ns=_aside(parts),
        workers_in_evaluation_ns=sum(part.workers_in_evaluation_ns for part in parts),
        uncounted=reduce(Uncounted.plus, (part.uncounted for part in parts)),
    )  # fmt: skip


def _aside(parts: Sequence[Steps]) -> dict[str, tuple[int, int]]:
    """What is in no step, before the first step of all, and since then: also before the first of each later part."""
    found = {}
    for name in dict.fromkeys(name for part in parts for name in part.aside_ns):
        first, *later = (part.aside_ns.get(name, (0, 0)) for part in parts)
        found[name] = first[0], first[1] + sum(before + since for before, since in later)
    return found


def _table(parts: Sequence[Table], order: Array | None = None) -> tuple[Table, Array]:
    """The steps of several tables in one, ascending by start or in a given order, and that order."""
    whole = concatenated(parts)
    if order is None:
        order = np.argsort(whole.start_ns, kind="stable")
    return whole.chosen(order), order


def on_the_clock(parts: Sequence[Rank]) -> Rank:
    """Processes that train or evaluate each for itself, as one: of steps that overlap what lies behind the end of all before.

    What each did outside of its steps is left out, but for what the first did before them, and for imports of the others before their
    first steps, as far as none was in a step meanwhile.
    """
    parts = sorted(parts, key=lambda part: _begun(part.steps))
    if len(parts) < 2:
        return parts[0]
    tables = [table for part in parts for table in (part.steps.train, part.steps.evaluation)]
    trains = np.concatenate([np.full(len(table), i % 2 == 0) for i, table in enumerate(tables)])
    whole, order = _table(tables)
    trains, end = trains[order], whole.start_ns + whole.time_ns
    begun = np.maximum(whole.start_ns, np.concatenate((whole.start_ns[:1], np.maximum.accumulate(end)[:-1])))
    left = np.maximum(end - begun, 0)
    own = np.rint(whole.own_ns * (left / np.maximum(whole.time_ns, 1))[:, None]).astype(np.int64)
    both = [Table(begun[which], left[which], whole.items[which], own[which]) for which in (trains, ~trains)]
    aside = {name: (before, 0) for name, (before, _) in parts[0].steps.aside_ns.items()}
    if "import" in aside:
        waited = {int(at): int(at - before) for at, before in zip(whole.start_ns[1:], np.maximum.accumulate(end), strict=False)}
        imported = (min(part.steps.aside_ns["import"][0], max(waited.get(_begun(part.steps), 0), 0)) for part in parts[1:])
        aside["import"] = aside["import"][0], sum(imported)
    processes = tuple(process for part in parts for process in part.processes)
    return replace(parts[0], steps=Steps(both[0], both[1], True, aside_ns=aside), processes=processes)


def _begun(steps: Steps) -> int:
    return int(min((*steps.train.start_ns, *steps.evaluation.start_ns), default=0))


# how the script trains: advice is held against these facts, so that nothing is advised that it does already


_NS = 1e-9
_NONE = np.iinfo(np.int64).min


def script_facts(records: Records, chosen: Array, train: Table, leads_ns: Array) -> dict[str, Any]:
    """What is known of the script.

    Args:
        records: Of all ranks.
        chosen: Indices of those of the thread that trains.
        leads_ns: When the optimizer that leads stepped.

    Returns:
        ``optimizers``: ``{"optimizer", "fused", "foreach", "device", "bf16"}`` of each, as far as known (``bf16``: the processors have
        instructions for it); ``autocast``: precisions that were switched on; ``compiled``: whether a module was compiled; ``updates``: in
        how many of the steps the optimizer that leads stepped, if not in all; ``calls_a_step``: how often a step calls a model (median).
        What is not known is left out.
    """
    numbers = {name: number for number, name in enumerate(records.names)}
    found: dict[str, Any] = {}

    def arguments(category: str, name: str) -> list[Mapping[str, Any]]:
        at = chosen[records.name[chosen] == numbers.get((category, name), -1)]
        return [records.arguments[i] for i in distinct(records.args[at])]

    optimizers = {one.get("which", 0): one for one in arguments("compute", "step") if "optimizer" in one}
    if optimizers:
        keys = ("optimizer", "fused", "foreach", "device", "bf16")
        found["optimizers"] = [{key: one[key] for key in keys if key in one} for _, one in sorted(optimizers.items())]
    if precisions := sorted({str(one["dtype"]) for one in arguments("script", "autocast") if "dtype" in one}):
        found["autocast"] = precisions
    if any(one.get("compiled") for one in arguments("compute", "forward")):
        found["compiled"] = True
    forward = chosen[records.name[chosen] == numbers.get(("compute", "forward"), -1)]
    if len(train) and len(forward):
        first, last = (np.searchsorted(records.start_ns[forward], at) for at in (train.start_ns, train.start_ns + train.time_ns))
        found["calls_a_step"] = float(np.median(last - first))
    if len(train) and len(leads_ns):
        step = np.searchsorted(train.start_ns, leads_ns, side="right") - 1
        inside = leads_ns < (train.start_ns + train.time_ns)[np.maximum(step, 0)]
        # What a loop that reads ahead trains on when it has no more batches lies in no step.
        updates = len(np.unique(step[(step >= 0) & inside])) + int(((step >= 0) & ~inside).sum())
        if 0 < updates < len(train):
            found["updates"] = updates
    return found


def in_training_mode(timeline: Timeline, evaluation: Table) -> float:
    """Share of the evaluation's time that is model calls by hand, without gradients, of modules in training mode.

    Rollouts of reinforcement learning and samples of a generator are such, and an evaluation for which nobody calls ``eval()``.
    """
    total = int(evaluation.time_ns.sum())
    if not total:
        return 0.0
    inside = evaluation.items < 0  # a loop over a loader knows how much a batch holds
    for begin, end in timeline.annotated:
        inside &= (evaluation.start_ns < begin) | (evaluation.start_ns >= end)
    calls = (timeline.meaning == FORWARD) & timeline.training & ~timeline.grad
    first, last = (np.searchsorted(timeline.start_ns[calls], at) for at in (evaluation.start_ns, evaluation.start_ns + evaluation.time_ns))
    return int(evaluation.time_ns[inside & (last > first)].sum()) / total


def first_batches(records: Records, waits: Array, trained: Collection[int]) -> dict[str, float]:
    """How long each loop over the loader waited for its first batch, in which its workers start.

    Args:
        records: Of all ranks.
        waits: Indices of the records of what was waited for, ascending by start.
        trained: The iterators that training used.

    Returns:
        ``loops``; ``first_s``: what they waited for their iterators and first batches; ``late_s``: the same without what a later batch
        takes at the median; ``wait_s``: of all batches. Empty for none.
    """
    of_arguments = [arguments.get("episode") for arguments in records.arguments]
    episode = np.array([one if one in trained else _NONE for one in of_arguments], np.int64)[records.args[waits]]
    kind = np.array([name for _, name in records.names])[records.name[waits]]
    duration = records.duration_ns[waits]
    makes, asks = (np.flatnonzero((kind == name) & (episode != _NONE)) for name in ("iter", "fetch"))
    loops, first = np.unique(episode[asks], return_index=True)
    if not len(loops):
        return {}
    firsts, later = duration[asks[first]], np.delete(duration[asks], first)
    of_loop = makes[np.isin(episode[makes], loops)]
    np.add.at(firsts, np.searchsorted(loops, episode[of_loop]), duration[of_loop])
    usual = float(np.median(later)) if len(later) else 0.0
    late, waited = float(np.maximum(firsts - usual, 0.0).sum()), int(firsts.sum() + later.sum())
    return {"loops": len(firsts), "first_s": int(firsts.sum()) * _NS, "late_s": late * _NS, "wait_s": waited * _NS}
