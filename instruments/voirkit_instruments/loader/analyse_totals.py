"""What one rank knows of one of its loaders, in a form that adds up over ranks: counts, sums, histograms.

What each operation took, and how much of the training's wait it caused, comes of the records of samples; in one pass, by chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array, parents, without_children
from voirkit.runs.opened import Run
from voirkit_instruments.loader.analyse_records import (
    CHUNK,
    NONE,
    BatchLifecycle,
    Columns,
    LoaderRecords,
    Loaders,
    measure_queue,
    read_rank,
)

# What a record is, by its level: a batch holds samples and their collation; a sample holds operations, and what its dataset asks of others
# (inner). What reads all samples of a batch by one call (items) may hold samples.
PREPROCESS, ITEMS, ITEM, INNER, COLLATE, OPERATION = range(6)
READING = (ITEMS, ITEM, INNER)
_LEVELS = {
    ("data", "preprocess"): PREPROCESS, ("data", "items"): ITEMS, ("data", "item"): ITEM, ("data", "inner"): INNER,
    ("data", "collate"): COLLATE,
}  # fmt: skip
_PER_OCTAVE = 64  # buckets: neighbours differ by 1.1 %, and a quantile is the mean of its bucket
_BUCKETS = 46 * _PER_OCTAVE  # up to 19 hours
NS = 1e-9


@dataclass
class Histogram:
    """Durations in nanoseconds: what is kept of millions of them, and adds up over chunks, processes and ranks."""

    n: int = 0  # how many
    total: float = 0.0  # their sum
    squares: float = 0.0  # the sum of their squares
    least: float = float("inf")  # the shortest; meaningless without any
    most: float = 0.0  # the longest
    counts: Array = field(default_factory=lambda: np.zeros(_BUCKETS))  # how many in each bucket
    sums: Array = field(default_factory=lambda: np.zeros(_BUCKETS))  # and their sum

    @classmethod
    def of(cls, durations: Array) -> Histogram:
        """One of durations, of shape (n,)."""
        if not len(durations):
            return cls()
        values = np.maximum(durations.astype(np.float64), 0.0)  # clocks that run apart: the check of the records reports it
        buckets = np.minimum((np.log2(values + 1) * _PER_OCTAVE).astype(np.int64), _BUCKETS - 1)
        return cls(
            len(values), float(values.sum()), float(np.square(values).sum()), float(values.min()), float(values.max()),
            np.bincount(buckets, minlength=_BUCKETS).astype(float), np.bincount(buckets, weights=values, minlength=_BUCKETS),
        )  # fmt: skip

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(
            self.n + other.n, self.total + other.total, self.squares + other.squares, min(self.least, other.least),
            max(self.most, other.most), self.counts + other.counts, self.sums + other.sums,
        )  # fmt: skip

    @property
    def mean(self) -> float:
        """Nanoseconds; 0 without any."""
        return self.total / self.n if self.n else 0.0

    def quantile(self, q: float) -> float:
        """The q-quantile in nanoseconds, within 1 %; 0 without any."""
        if not self.n:
            return 0.0
        reached = np.cumsum(self.counts)
        place = q * (self.n - 1)
        below, above = (self._shortest(reached, int(i)) for i in (np.floor(place), np.ceil(place)))
        return float(below + (above - below) * (place - np.floor(place)))

    def _shortest(self, reached: Array, i: int) -> float:
        """The i-th shortest: the mean of its bucket."""
        if i in (0, self.n - 1):
            return self.least if i == 0 else self.most
        bucket = int(np.searchsorted(reached, i, side="right"))
        return float(self.sums[bucket] / self.counts[bucket])

    def share_below(self, limit_ns: float) -> float:
        """The share that is shorter; of the bucket in which the limit lies the part that reaches up to it."""
        if not self.n:
            return 0.0
        place = np.log2(limit_ns + 1) * _PER_OCTAVE
        whole = min(int(place), _BUCKETS - 1)
        return float((self.counts[:whole].sum() + self.counts[whole] * (place - whole)) / self.n)

    def seconds(self) -> dict[str, Any]:
        """As a summary has it."""
        std = float(np.sqrt(max(self.squares / self.n - self.mean**2, 0.0))) if self.n else 0.0
        values = {
            "total": self.total, "mean": self.mean, "median": self.quantile(0.5), "p90": self.quantile(0.9), "std": std,
            "min": self.least if self.n else 0.0, "max": self.most,
        }  # fmt: skip
        return {"n": self.n, **{f"{name}_s": value * NS for name, value in values.items()}}


@dataclass
class Operation:
    """One kind of work of one loader."""

    # its runs, each with what lies in it; of samples the time that is in no operation and in no other dataset
    spans: Histogram = field(default_factory=Histogram)
    waited_ns: float = 0.0  # how much of the time in which training waited the worker that made the awaited batch spent on it
    offset_ns: float = 0.0  # sum of the times from the beginning of the sample to that of the run
    by_episode: dict[int, tuple[int, float]] = field(default_factory=dict)  # runs and nanoseconds by the iterator's number
    of_batches: int = 0  # how many of its runs gave all samples of a batch at once

    def __add__(self, other: Operation) -> Operation:
        by_episode = dict(self.by_episode)
        for episode, (n, spent) in other.by_episode.items():
            before = by_episode.get(episode, (0, 0.0))
            by_episode[episode] = before[0] + n, before[1] + spent
        return Operation(
            self.spans + other.spans, self.waited_ns + other.waited_ns, self.offset_ns + other.offset_ns, by_episode,
            self.of_batches + other.of_batches,
        )  # fmt: skip


# (loader, level, name, the operation in which it lies or ""): the name is that of an operation, or of what reads samples
Kind = tuple[int, int, str, str]


def measure_operations(records: LoaderRecords, loaders: Loaders, batches: BatchLifecycle, chunk: int = CHUNK) -> dict[Kind, Operation]:
    """What each operation of each loader of a rank took; ``chunk`` records are held at a time."""
    level = levels(records)
    waits = _waits(batches)
    operations: dict[Kind, Operation] = {}
    for part in whole_batches(records.sample_chunks(chunk), level):
        pieces = [_measure(own, level[own.name], waits.get(thread)) for thread, own in by_thread(part, level)]
        if pieces:
            own = Columns.joined([columns for columns, _ in pieces])
            measured = {key: np.concatenate([values[key] for _, values in pieces]) for key in pieces[0][1]}
            _add(operations, records, loaders, own, level[own.name], measured)
    return operations


def levels(records: LoaderRecords) -> Array:
    """The level of each name."""
    return np.array([_LEVELS.get(name, OPERATION) for name in records.names], np.int64)


def _waits(batches: BatchLifecycle) -> dict[int, tuple[Array, Array]]:
    """By thread: when training waited for the batches that it made, as edges of time and the time waited up to each."""
    waits = {}
    batches = batches.with_all("thread", "requested_ns")
    for thread in np.unique(batches["thread"]).tolist():
        own = batches["thread"] == thread
        begin, end = batches["requested_ns"][own], batches["received_ns"][own]
        order = np.argsort(begin)
        begin, end = begin[order], np.maximum.accumulate(end[order])
        begin[1:] = np.maximum(begin[1:], end[:-1])  # waits for several loaders in turn never overlap; be sure
        edges = np.stack([begin, end], axis=1).reshape(-1)
        spent = np.stack([np.zeros(len(begin), np.int64), end - begin], axis=1).reshape(-1)
        waits[thread] = edges, np.cumsum(spent)
    return waits


def whole_batches(chunks: Iterable[Columns], level: Array) -> Iterator[Columns]:
    """The same records, split anew so that of each thread what lies in a batch comes with the batch."""
    rest = Columns.joined([])
    for chunk in chunks:
        part = Columns.joined([rest, chunk])
        batches = level[part.name] == PREPROCESS
        last = np.full(int(part.thread.max(initial=-1)) + 1, NONE)
        np.maximum.at(last, part.thread[batches], part.start_ns[batches])
        is_open = (part.start_ns >= last[part.thread]) & (last[part.thread] != NONE)
        rest = part.select(is_open)
        yield part.select(~is_open)
    yield rest


def by_thread(part: Columns, level: Array) -> Iterator[tuple[int, Columns]]:
    """The records of each thread by their start; of those that start together the longer first, of equal ones what holds others."""
    order = np.lexsort((level[part.name], -part.duration_ns, part.start_ns, part.thread))
    part = part.select(order)
    edges = np.flatnonzero(np.diff(part.thread, prepend=NONE))
    for low, high in zip(edges.tolist(), [*edges.tolist()[1:], len(part)], strict=False):  # no edge of nothing
        yield int(part.thread[low]), part.select(slice(low, high))


def _measure(own: Columns, level: Array, waits: tuple[Array, Array] | None) -> tuple[Columns, dict[str, Array]]:
    """Records of one thread with what is known of each: ``spent`` and ``waited`` nanoseconds, the operation that it lies ``inside`` of,
    whether it is ``nested`` in its own kind, its ``offset`` in the sample."""
    parent = parents(own.start_ns, own.duration_ns)
    is_operation = level == OPERATION
    waited = _during(own, waits)
    outer = np.maximum(parent, 0)
    sample = _ancestor(parent, level == ITEM)
    measured = {
        # Of all but operations, what lies in no other record.
        "spent": np.where(is_operation, own.duration_ns, without_children(own.duration_ns, parent)),
        "waited": np.where(is_operation, waited, without_children(waited, parent)),
        "inside": np.where((parent >= 0) & is_operation & is_operation[outer], own.name[outer], NONE),
        "nested": _is_nested(own.name, parent, is_operation),
        "offset": np.where(sample != NONE, own.start_ns - own.start_ns[np.maximum(sample, 0)], 0),
    }
    return own, measured


def _during(own: Columns, waits: tuple[Array, Array] | None) -> Array:
    """How much of each span lies in the waits of its thread."""
    if waits is None:
        return np.zeros(len(own), np.int64)
    edges, spent = waits
    base = int(edges[0])
    begin, end = (np.interp(time - base, edges - base, spent) for time in (own.start_ns, own.end_ns))
    return np.rint(end - begin).astype(np.int64)


def _is_nested(name: Array, parent: Array, is_operation: Array) -> Array:
    """Which operations lie in one of the same name, at any depth: they are counted with it."""
    nested = np.zeros(len(name), bool)
    above = np.where(is_operation, parent, NONE)
    while len(rows := np.flatnonzero(above >= 0)):
        nested[rows] |= is_operation[above[rows]] & (name[above[rows]] == name[rows])
        above[rows] = parent[above[rows]]
    return nested


def _ancestor(parent: Array, chosen: Array) -> Array:
    """The nearest chosen span that each lies in; ``NONE`` for none."""
    nearest, above = np.full(len(parent), NONE), parent.copy()
    while len(rows := np.flatnonzero(above >= 0)):
        is_it = chosen[above[rows]]
        nearest[rows[is_it]] = above[rows[is_it]]
        above[rows] = np.where(is_it, NONE, parent[above[rows]])
    return nearest


def _add(
    operations: dict[Kind, Operation], records: LoaderRecords, loaders: Loaders, own: Columns, level: Array, measured: dict[str, Array]
) -> None:
    source = loaders.of_each(own)
    readers = len(records.names) + records.reader[own.args]
    name = np.where(level == OPERATION, own.name, np.where(np.isin(level, READING), readers, NONE))
    chosen = np.flatnonzero((source >= 0) & ~measured["nested"])
    order, kinds, edges = _grouped(chosen, source, level, name, measured["inside"])
    names = [*(name for _, name in records.names), *records.readers]
    reads_batches = records.reads_batches[own.args]
    for i, (loader, of_level, code, inside) in enumerate(kinds):
        rows = order[edges[i] : edges[i + 1]]
        kind = (loader, of_level, "" if code == NONE else names[code], "" if inside == NONE else names[inside])
        spent = measured["spent"][rows]
        by_episode: dict[int, tuple[int, float]] = {}
        counts, sums = np.bincount(own.args[rows]), np.bincount(own.args[rows], weights=spent)
        for args in np.flatnonzero(counts).tolist():
            episode = int(loaders.episode[args])
            n, before = by_episode.get(episode, (0, 0.0))
            by_episode[episode] = n + int(counts[args]), before + float(sums[args])
        waited, offset = (float(measured[key][rows].sum()) for key in ("waited", "offset"))
        operation = Operation(Histogram.of(spent), waited, offset, by_episode, int(reads_batches[rows].sum()))
        operations[kind] = operations[kind] + operation if kind in operations else operation


def _grouped(rows: Array, *columns: Array) -> tuple[Array, list[tuple[int, ...]], Array]:
    """Rows in order of their values in some columns of small numbers from -1 on: the rows, the values of each group, the groups' edges."""
    shape = [int(column.max(initial=-1)) + 2 for column in columns]
    key = np.ravel_multi_index([column[rows] + 1 for column in columns], shape) if len(rows) else np.zeros(0, np.int64)
    present = np.flatnonzero(np.bincount(key, minlength=1))
    dense = np.zeros(int(key.max(initial=0)) + 1, np.uint16)  # numpy sorts short numbers in one pass, ten times as fast
    dense[present] = np.arange(len(present))
    group = dense[key]
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(present) + 1))
    values = [tuple(int(part) - 1 for part in parts) for parts in zip(*np.unravel_index(present, shape), strict=True)]
    return rows[order], values, edges


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
        times: Histograms of ``preprocess``, ``usual`` (the same without the first batch of each worker) and its ``cpu`` time, ``wait,
            delay, put, idle, pin``; ``pause``, from a batch to the next request; ``receive``, taking a batch that was there;
            ``turn``, from one request to the next where workers are at work.
        counts: ``batches`` that were consumed; ``items`` as steps count them, in ``counted`` batches; batches whose items are not known
            (``uncounted``); requests that raised (``failed``); batches that were there when they were requested (``ready``), and that
            arrived before one of a lower number (``out_of_order``).
        busy: By (rank, worker): its batches, nanoseconds of making, and of the epochs in which it was there.
        costs: What a batch costs beside its making, its sum and number (shape (2,)) by name: ``send_ns, receive_ns, training_ns,
            making_ns`` of a processor's time, ``bytes``, ``tensors``.
        handover: What handing a batch over costs on the machine, as for ``analyse_prediction.handover_costs``; empty if not measured.
        slowest: Samples: (index, n, median, longest, the operation that takes most of it), times in nanoseconds.
    """

    loader: int  # its number; with ``owner`` the same in every rank
    owner: int  # which of a rank's processes asks it: 0 for the one that asks most
    facts: Mapping[str, Any]  # what the steps instrument knows of it
    workers: int  # how many it has
    ranks: list[int]  # which ranks are in it
    operations: dict[tuple[int, str, str], Operation]  # by (level, name, the operation in which it lies)
    times: dict[str, Histogram]
    counts: Counter[str]
    busy: dict[tuple[int, int], tuple[int, float, float]]
    epochs: list[Epoch]  # in their order
    queue: dict[str, Any] | None  # batches that were made and not consumed, over time; of one rank
    slowest: list[tuple[int, int, float, float, str]]
    costs: dict[str, Array]
    handover: dict[str, float]
    starts: list[float]  # of each iterator with workers, the nanoseconds by which the wait for its first batch was longer than its making

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
    found = read_rank(run, rank)
    if found is None:
        return []
    records, _, loaders, batches = found
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
