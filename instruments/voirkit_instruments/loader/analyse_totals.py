"""What one rank knows of one of its loaders, in a form that adds up over ranks: counts, sums, histograms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.loader.analyse_batches import BatchLifecycle, follow_batches, measure_queue
from voirkit_instruments.loader.analyse_operations import Histogram, Operation, measure_operations
from voirkit_instruments.loader.analyse_records import Columns, LoaderRecords, Loaders, find_loaders

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

SLOWEST = 20  # samples that a rank names
_FEW = 8
_LONG_PAUSE = 5  # a pause between two batches that is so many times the usual is none of the training's steps


@dataclass
class Epoch:
    """One iterator's batches: how many, nanoseconds of their making, of waiting for them, and from the first request to the last."""

    batches: int = 0
    making_ns: float = 0.0
    waited_ns: float = 0.0
    lasted_ns: float = 0.0


_NO_EPOCH = Epoch()


@dataclass
class LoaderTotals:
    """One loader of one rank, or of several ranks, added up.

    Attributes:
        loader: Its number; with ``owner`` the same in every rank.
        owner: Which of a rank's processes asks it: 0 for the one that asks most.
        facts: What the steps instrument knows of it.
        workers: How many it has.
        ranks: Which ranks are in it.
        operations: By (level, name, the operation in which it lies).
        times: Histograms of ``preprocess``, ``usual`` (the same without the first batch of each worker) and its ``cpu`` time, ``wait,
            delay, put, idle, pin``; ``pause``, from a batch to the next request; ``receive``, taking a batch that was there;
            ``turn``, from one request to the next where workers are at work.
        counts: ``batches`` that were consumed; ``items`` as steps count them, in ``counted`` batches; batches whose items are not known
            (``uncounted``); requests that raised (``failed``); batches that were there when they were requested (``ready``), and that
            arrived before one of a lower number (``out_of_order``).
        busy: By (rank, worker): its batches, nanoseconds of making, and of the epochs in which it was there.
        epochs: In their order.
        queue: Batches that were made and not consumed, over time; of one rank.
        costs: What a batch costs beside its making, its sum and number (shape (2,)) by name: ``send_ns, receive_ns, training_ns,
            making_ns`` of a processor's time, ``bytes``, ``tensors``.
        handover: What handing a batch over costs on the machine, as for ``analyse_prediction.handover_costs``; empty if not measured.
        starts: Of each iterator with workers, the nanoseconds by which the wait for its first batch was longer than its making.
        slowest: Samples: (index, n, median, longest, the operation that takes most of it), times in nanoseconds.
    """

    loader: int
    owner: int
    facts: Mapping[str, Any]
    workers: int
    ranks: list[int]
    operations: dict[tuple[int, str, str], Operation]
    times: dict[str, Histogram]
    counts: Counter[str]
    busy: dict[tuple[int, int], tuple[int, float, float]]
    epochs: list[Epoch]
    queue: dict[str, Any] | None
    slowest: list[tuple[int, int, float, float, str]]
    costs: dict[str, Array]
    handover: dict[str, float]
    starts: list[float]

    def __add__(self, other: LoaderTotals) -> LoaderTotals:
        return replace(
            self,
            ranks=[*self.ranks, *other.ranks],
            operations=_added(self.operations, other.operations),
            times=_added(self.times, other.times),
            counts=self.counts + other.counts,
            busy={**self.busy, **other.busy},
            epochs=[
                Epoch(a.batches + b.batches, a.making_ns + b.making_ns, a.waited_ns + b.waited_ns, max(a.lasted_ns, b.lasted_ns))
                for a, b in zip_longest(self.epochs, other.epochs, fillvalue=_NO_EPOCH)
            ],
            costs=_added(self.costs, other.costs),
            starts=[*self.starts, *other.starts],
            slowest=sorted([*self.slowest, *other.slowest], key=lambda row: -row[2])[:SLOWEST],
        )


def _added(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    """Both tables; what is in both is added."""
    return {**one, **{key: one[key] + value if key in one else value for key, value in other.items()}}


def combine(totals: Sequence[LoaderTotals]) -> list[LoaderTotals]:
    """The loaders of a whole run from those of its ranks."""
    combined: dict[tuple[int, int], LoaderTotals] = {}
    for one in totals:
        combined = _added(combined, {(one.owner, one.loader): one})
    return list(combined.values())


def totals_of_rank(run: Run, rank: int) -> list[LoaderTotals]:
    """The loaders of one rank."""
    records = LoaderRecords(run, rank)
    columns = records.batch_columns()
    if not len(columns):
        return []
    loaders = find_loaders(records, columns)
    batches = follow_batches(records, loaders, columns)
    operations = measure_operations(records, loaders, batches)
    costs, handover = records.cost_columns(), records.handover()
    of_cost = loaders.of_each(costs)
    return [
        _totals(
            i, rank, records, loaders, batches.select(batches.source == i),
            {kind[1:]: operation for kind, operation in operations.items() if kind[0] == i}, costs.select(of_cost == i), handover,
        )
        for i in range(len(loaders.all))
    ]  # fmt: skip


def _totals(
    number: int, rank: int, records: LoaderRecords, loaders: Loaders, batches: BatchLifecycle,
    operations: dict[tuple[int, str, str], Operation], costs: Columns, handover: dict[str, float],
) -> LoaderTotals:  # fmt: skip
    loader = loaders.all[number]
    owners = list(dict.fromkeys(one.pid for one in loaders.all))
    args = np.flatnonzero(loaders.number == loader.number)
    collates = [records.arguments[i]["collate"] for i in args.tolist() if "collate" in records.arguments[i]]
    items, counted, fetched = records.fetched.get((loader.pid, loader.number), (0, 0, 0))
    workers = loader.facts.get("workers")  # as it says itself, else the highest number of one that was seen
    counts = {
        "batches": int((batches.has("consumed_ns") & (batches["failed"] != 1)).sum()),
        "items": items,
        "counted": counted,
        "uncounted": fetched - counted,
        "failed": int((batches["failed"] == 1).sum()),
        "ready": int((_is_put_before_request(batches) | (batches["ready"] == 1)).sum()),
        "out_of_order": _out_of_order(batches),
    }
    return LoaderTotals(
        loader=loader.number,
        owner=owners.index(loader.pid),
        facts={**loader.facts, **({"collate": collates[0]} if collates else {})},
        workers=workers if workers is not None else max(int(batches[column].max(initial=-1)) for column in ("worker", "sent_to")) + 1,
        ranks=[rank],
        operations=operations,
        times={name: Histogram.of(values) for name, values in _times(batches).items()},
        counts=Counter(counts),
        busy={(rank, worker): row for worker, row in _busy(batches.with_all("begin_ns")).items() if worker >= 0},
        epochs=_epochs(batches),
        queue=measure_queue(batches) if batches.by_worker.any() else None,
        slowest=records.slowest(args, SLOWEST),
        costs=_costs(records, costs),
        handover=handover,
        starts=_starts(batches),
    )


def _costs(records: LoaderRecords, costs: Columns) -> dict[str, Array]:
    sums = {}
    for code in np.unique(costs.name).tolist():
        values = costs.value[costs.name == code].astype(np.float64)
        if len(values) > _FEW:  # what is done once, at the first ones, is not what a batch costs
            values = np.minimum(values, _LONG_PAUSE * np.median(values))
        sums[records.names[code][1]] = np.array([values.sum(), len(values)])
    return sums


def _starts(batches: BatchLifecycle) -> list[float]:
    """By iterator with workers: how much longer the training waited for its first batch than its making took."""
    starts = []
    for one in batches.select(batches.by_worker & batches.has("requested_ns", "received_ns", "end_ns")).episodes():
        first = np.argmin(one["requested_ns"])
        waited, making = (one[end][first] - one[begin][first] for begin, end in (("requested_ns", "received_ns"), ("begin_ns", "end_ns")))
        starts.append(float(max(waited - making, 0)))
    return starts


def _times(batches: BatchLifecycle) -> dict[str, Array]:
    usual = batches.select(~_is_first_of_worker(batches))
    recorded = (("put", "put_ns"), ("idle", "idle_ns"), ("pin", "pinned_ns"))
    return {
        "preprocess": batches.durations("begin_ns", "end_ns"),
        "usual": usual.durations("begin_ns", "end_ns"),
        "cpu": usual["cpu_ns"][usual.has("cpu_ns")],
        "wait": batches.durations("requested_ns", "received_ns"),
        "delay": batches.durations("end_ns", "consumed_ns"),
        "pause": _pauses(batches),
        "receive": batches.select(_is_put_before_request(batches) & (batches["ready"] != 1)).durations("requested_ns", "received_ns"),
        "turn": _turns(batches),
        **{name: batches[column][batches.has(column)] for name, column in recorded},
    }


def _is_first_of_worker(batches: BatchLifecycle) -> Array:
    """The first batch of each worker process that has made several: it pays for what is imported and opened once."""
    first = np.zeros(len(batches), bool)
    for thread in np.unique(batches["thread"][batches.has("thread")]).tolist():
        made = np.flatnonzero(batches["thread"] == thread)
        if len(made) > 2:
            first[made[np.argmin(batches["begin_ns"][made])]] = True
    return first


def _without_long(times: Array) -> Array:
    return times[times <= _LONG_PAUSE * np.median(times)] if len(times) else times


def _pauses(batches: BatchLifecycle) -> Array:
    """From each batch to the next request of the same iterator: what the training does with a batch."""
    batches = batches.with_all("requested_ns", "received_ns")
    batches = batches.select(np.lexsort((batches["requested_ns"], batches.episode)))
    pauses = np.maximum(batches["requested_ns"][1:] - batches["received_ns"][:-1], 0)
    return _without_long(pauses[batches.episode[1:] == batches.episode[:-1]])


def _turns(batches: BatchLifecycle) -> Array:
    """From each request to the next one of the same iterator, but for the first ones, in which workers start and the queue is filled."""
    batches = batches.select(batches.by_worker & batches.has("requested_ns", "received_ns"))
    first = 3 * (int(batches["worker"].max(initial=-1)) + 1)
    turns = [np.diff(np.sort(one["requested_ns"]))[first:] for one in batches.episodes()]
    return _without_long(np.concatenate([np.zeros(0, np.int64), *turns]))


def _is_put_before_request(batches: BatchLifecycle) -> Array:
    """Which batches a worker had put on the queue before they were requested."""
    put = batches["end_ns"] + np.maximum(batches["put_ns"], 0)
    return batches.by_worker & batches.has("end_ns", "requested_ns") & (put <= batches["requested_ns"])


def _out_of_order(batches: BatchLifecycle) -> int:
    arrived = (one["arrived_ns"] for one in batches.with_all("arrived_ns").episodes())  # ascending by number of the batch
    return sum(int((times[1:] < np.maximum.accumulate(times)[:-1]).sum()) for times in arrived)


def _busy(batches: BatchLifecycle) -> dict[int, tuple[int, float, float]]:
    """By worker: batches, time of making them, and how long the epochs lasted in which it made some."""
    busy: dict[int, tuple[int, float, float]] = {}
    for one in batches.episodes():
        lasted = float(one["end_ns"].max() - one["begin_ns"].min())
        for worker in np.unique(one["worker"]).tolist():
            own = one.select(one["worker"] == worker)
            n, spent, there = busy.get(worker, (0, 0.0, 0.0))
            busy[worker] = n + len(own), spent + float((own["end_ns"] - own["begin_ns"]).sum()), there + lasted
    return busy


def _epochs(batches: BatchLifecycle) -> list[Epoch]:
    epochs = []
    for one in batches.with_all("requested_ns").episodes():
        making, waited = (float(one.durations(*edges).sum()) for edges in (("begin_ns", "end_ns"), ("requested_ns", "received_ns")))
        epochs.append(Epoch(len(one), making, waited, float(one["received_ns"].max() - one["requested_ns"].min())))
    return epochs
