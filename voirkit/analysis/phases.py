"""From the records of the steps instrument to the timelines of the threads that train, one for each rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from voirkit.analysis.device import on_device
from voirkit.analysis.document import Rank
from voirkit.analysis.handed import handed
from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    MEANING,
    OPTIMIZER,
    WAIT,
    DeviceTable,
    Table,
    Timeline,
    steps_of,
)
from voirkit.analysis.turns import Kind, Request

KIND = "phase"  # of the records that this reads
DEVICE = "device"  # of those that say how long the same lasted on a GPU
_REQUESTS = {
    ("dataloader", "iter"): Kind.ITER, ("dataloader", "fetch"): Kind.FETCH, ("dataloader", "end"): Kind.END,
    # A loop over a loader, whole: it is over where this ends, however that came.
    ("pipeline", "epoch"): Kind.LEFT, ("pipeline", "evaluate"): Kind.LEFT,
}  # fmt: skip


@dataclass(frozen=True)
class Records:
    """Records of phases; arrays of shape (n,), in any order.

    Attributes:
        start_ns: On the clock of the record's host.
        duration_ns: Nanoseconds.
        name: Index into ``names``.
        args: Index into ``arguments``.
        value: The record's own number.
        process: Index into ``processes``.
        tid: Native id of the thread.
        names: (category, name) by index.
        arguments: By index.
        processes: (rank, host, pid) by index.
    """

    start_ns: Array
    duration_ns: Array
    name: Array
    args: Array
    value: Array
    process: Array
    tid: Array
    names: Sequence[tuple[str, str]]
    arguments: Sequence[Mapping[str, Any]]
    processes: Sequence[tuple[int, str, int]]


def ranks(records: Records, cpus: int | None = None, device: Records | None = None) -> list[Rank]:
    """What each rank did, ascending; of a rank with several processes the one that trains most.

    Args:
        records: Of all ranks.
        cpus: Processors of the host, for the verdict.
        device: What the phases did on GPUs, where they were used.
    """
    best: dict[int, tuple[tuple[int, int], Rank]] = {}
    for number, (rank, host, _) in enumerate(records.processes):
        chosen = training_thread(records, number)
        if chosen is None:
            continue
        timeline = _timeline(records, chosen)
        steps = steps_of(timeline)
        waited = chosen
        if not steps.wait_known:
            others = np.flatnonzero((records.process == number) & (records.tid != records.tid[chosen[0]]))
            requests = _handed(records, chosen, others, timeline)
            if requests:
                steps, waited = steps_of(replace(timeline, requests=requests)), others
        if device is not None:
            steps = replace(steps, device=_on_device(timeline, device, records.processes[number], int(records.tid[chosen[0]]), steps.train))
        weight = (len(steps.train), len(steps.evaluation))
        if rank not in best or weight > best[rank][0]:
            trained = steps.episodes if waited is chosen else ()
            facts = {**_loader(records, waited, trained), "cpus": cpus}
            best[rank] = weight, Rank(rank, host, steps, {k: v for k, v in facts.items() if v is not None})
    return [rank for _, (_, rank) in sorted(best.items())]


def _on_device(host: Timeline, device: Records, process: tuple[int, str, int], tid: int, train: Table) -> DeviceTable | None:
    if process not in device.processes:
        return None
    own = np.flatnonzero((device.process == list(device.processes).index(process)) & (device.tid == tid))
    own = own[np.lexsort((-device.duration_ns[own], device.start_ns[own]))]
    return on_device(host, _timeline(device, own), train)


def training_thread(records: Records, process: int) -> Array | None:
    """Indices of the records of the thread that steps optimizers, or else works most; ascending by start, outer before inner."""
    own = np.flatnonzero(records.process == process)
    if not len(own):
        return None
    meaning = meanings(records.names)[records.name[own]]
    for wanted in ((OPTIMIZER,), (BACKWARD,), (FORWARD,), tuple(range(COMMUNICATION + 1))):
        threads, counts = np.unique(records.tid[own][np.isin(meaning, wanted)], return_counts=True)
        if len(threads):
            own = own[records.tid[own] == threads[np.argmax(counts)]]
            break
    return own[np.lexsort((-records.duration_ns[own], records.start_ns[own]))]


def meanings(names: Sequence[tuple[str, str]]) -> Array:
    """What each name counts for."""
    found = [COMMUNICATION if category == "comm" else MEANING.get((category, name), -1) for category, name in names]
    return np.array(found, dtype=np.int64)


def _timeline(records: Records, chosen: Array) -> Timeline:
    requests = sorted(_requests(records, chosen), key=lambda request: request.start_ns)
    meaning = meanings(records.names)[records.name[chosen]]
    chosen, meaning = chosen[meaning >= 0], meaning[meaning >= 0]
    return Timeline(records.start_ns[chosen], records.duration_ns[chosen], meaning, _leads(records, chosen, meaning), requests)


def _leads(records: Records, chosen: Array, meaning: Array) -> Array:
    """Which are steps of the optimizer that stepped first."""
    steps = meaning == OPTIMIZER
    if not steps.any():
        return steps
    which = np.array([arguments.get("which", 0) for arguments in records.arguments], dtype=np.int64)[records.args[chosen]]
    return steps & (which == which[np.argmax(steps)])


def _requests(records: Records, chosen: Array) -> Iterator[Request]:
    kinds = {i: _REQUESTS[name] for i, name in enumerate(records.names) if name in _REQUESTS}
    asked = chosen[np.isin(records.name[chosen], list(kinds))]
    columns = (records.name, records.start_ns, records.duration_ns, records.value, records.args)
    for name, start, duration, value, args in zip(*(c[asked].tolist() for c in columns), strict=True):
        arguments, kind = records.arguments[args], kinds[name]
        items = value if kind is Kind.FETCH and value >= 0 else None
        begin = start + duration if kind is Kind.LEFT else start
        yield Request(kind, begin, start + duration, arguments.get("episode", 0), arguments.get("loader", 0), items)


def _handed(records: Records, chosen: Array, others: Array, timeline: Timeline) -> list[Request]:
    """The requests of a thread with what it got from queues, if other threads fetched batches; empty if that is not so."""
    queue = next((i for i, name in enumerate(records.names) if name == ("dataloader", "queue")), None)
    got = chosen[records.name[chosen] == queue]
    if not len(got):
        return []
    start = records.start_ns[got]
    gets = list(zip(start.tolist(), (start + records.duration_ns[got]).tolist(), strict=True))
    works = timeline.start_ns[np.isin(timeline.meaning, (FORWARD, BACKWARD, OPTIMIZER))]
    made = handed(gets, list(_requests(records, others)), works)
    if not made:
        return []
    if made[-1].kind is not Kind.END:  # it asked for no more
        over = int((timeline.start_ns + timeline.duration_ns).max())
        made.append(replace(made[-1], kind=Kind.LEFT, start_ns=over, end_ns=over, items=None))
    return sorted([*timeline.requests, *made], key=lambda request: request.start_ns)


def _loader(records: Records, chosen: Array, trained: Collection[int]) -> dict[str, Any]:
    """What is known of the loader that training waited for longest; ``loaders``: the numbers of all that it waited for, that one first."""
    waits = chosen[meanings(records.names)[records.name[chosen]] == WAIT]
    numbers = np.array([arguments.get("loader", -1) for arguments in records.arguments], dtype=np.int64)[records.args[waits]]
    if trained:
        episodes = np.array([arguments.get("episode", -1) for arguments in records.arguments], dtype=np.int64)[records.args[waits]]
        of_training = np.isin(episodes, list(trained))
        waits, numbers = waits[of_training], numbers[of_training]
    if not len(numbers) or numbers.max() < 0:
        return {}
    waited = np.bincount(np.maximum(numbers, 0), weights=records.duration_ns[waits])
    loaders = [int(n) for n in np.argsort(-waited, kind="stable") if n in set(numbers.tolist())]
    for i in np.unique(records.args[waits]).tolist():
        arguments = records.arguments[i]
        if arguments.get("loader") == loaders[0] and "workers" in arguments:
            return {**{key: arguments.get(key) for key in ("workers", "dataset", "batch_size", "pin_memory")}, "loaders": loaders}
    return {}
