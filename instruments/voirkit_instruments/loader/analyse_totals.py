"""Totals of one loader in one rank, in a form that adds up over ranks: counts, sums, histograms.

The time of each operation, and the part of the training's wait that it caused, are computed from
the records of samples. These are read in one pass, in chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

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

# Levels of records, which say what a record measures. A batch (preprocess) contains samples (item)
# and their collation. A sample contains operations, and samples that its dataset reads from other
# datasets (inner). A call that reads all samples of a batch (items) may contain samples.
PREPROCESS, ITEMS, ITEM, INNER, COLLATE, OPERATION = range(6)
READING = (ITEMS, ITEM, INNER)
_LEVELS = {
    ("data", "preprocess"): PREPROCESS,
    ("data", "items"): ITEMS,
    ("data", "item"): ITEM,
    ("data", "inner"): INNER,
    ("data", "collate"): COLLATE,
}
# number of buckets per doubling of the duration: neighbouring buckets differ by 1.1 %, and a
# quantile is the mean of its bucket
_PER_OCTAVE = 64
_BUCKETS = 46 * _PER_OCTAVE  # for durations up to 19 hours
NS = 1e-9


@dataclass
class Histogram:
    """A histogram of durations in nanoseconds, with a fixed number of buckets. Histograms add up
    over chunks, processes and ranks."""

    n: int = 0  # number of durations
    total: float = 0.0  # sum of the durations
    squares: float = 0.0  # sum of the squares of the durations
    least: float = float("inf")  # the shortest duration; infinite if there are no durations
    most: float = 0.0  # the longest duration
    # number of durations in each bucket
    counts: Array = field(default_factory=lambda: np.zeros(_BUCKETS))
    # sum of the durations in each bucket
    sums: Array = field(default_factory=lambda: np.zeros(_BUCKETS))

    @classmethod
    def of(cls, durations: Array) -> Histogram:
        """Make a histogram of durations in nanoseconds, of shape (n,)."""
        if not len(durations):
            return cls()
        # Negative durations count as 0. They come from clocks that run apart, which the check of
        # the records reports.
        values = np.maximum(durations.astype(np.float64), 0.0)
        places = np.log2(values + 1) * _PER_OCTAVE
        buckets = np.minimum(places.astype(np.int64), _BUCKETS - 1)
        total, squares = float(values.sum()), float(np.square(values).sum())
        least, most = float(values.min()), float(values.max())
        counts = np.bincount(buckets, minlength=_BUCKETS).astype(float)
        sums = np.bincount(buckets, weights=values, minlength=_BUCKETS)
        return cls(len(values), total, squares, least, most, counts, sums)

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(
            self.n + other.n,
            self.total + other.total,
            self.squares + other.squares,
            min(self.least, other.least),
            max(self.most, other.most),
            self.counts + other.counts,
            self.sums + other.sums,
        )

    @property
    def mean(self) -> float:
        """The mean in nanoseconds; 0 if there are no durations."""
        return self.total / self.n if self.n else 0.0

    def quantile(self, q: float) -> float:
        """Return the q-quantile in nanoseconds, within 1 %; 0 if there are no durations."""
        if not self.n:
            return 0.0
        cumulative = np.cumsum(self.counts)
        place = q * (self.n - 1)
        below = self._shortest(cumulative, int(np.floor(place)))
        above = self._shortest(cumulative, int(np.ceil(place)))
        return float(below + (above - below) * (place - np.floor(place)))

    def _shortest(self, cumulative: Array, i: int) -> float:
        """Return the i-th shortest duration: the mean of its bucket."""
        if i == 0:
            return self.least
        if i == self.n - 1:
            return self.most
        bucket = int(np.searchsorted(cumulative, i, side="right"))
        return float(self.sums[bucket] / self.counts[bucket])

    def share_below(self, limit_ns: float) -> float:
        """Return the share of durations below the limit. Of the bucket that contains the limit, the
        part below it counts."""
        if not self.n:
            return 0.0
        place = np.log2(limit_ns + 1) * _PER_OCTAVE
        bucket = min(int(place), _BUCKETS - 1)
        n_below = self.counts[:bucket].sum() + self.counts[bucket] * (place - bucket)
        return float(n_below / self.n)

    def seconds(self) -> dict[str, Any]:
        """Return the statistics for a summary: the number ``n``, the others in seconds."""
        variance = self.squares / self.n - self.mean**2 if self.n else 0.0
        values = {
            "total": self.total,
            "mean": self.mean,
            "median": self.quantile(0.5),
            "p90": self.quantile(0.9),
            "std": float(np.sqrt(max(variance, 0.0))),
            "min": self.least if self.n else 0.0,
            "max": self.most,
        }
        return {"n": self.n, **{f"{name}_s": value * NS for name, value in values.items()}}


@dataclass
class Operation:
    """Totals of one kind of operation of one loader; reading a sample and collating count as
    operations too."""

    # durations of the runs of the operation, including other records inside; of reading a sample,
    # only the time outside of operations and other datasets
    spans: Histogram = field(default_factory=Histogram)
    # time in ns that the training waited while the worker of the awaited batch ran this operation
    waited_ns: float = 0.0
    # sum of the times from the start of the sample to the start of each run
    offset_ns: float = 0.0
    # by number of the iterator: number of runs, and their total time in ns
    by_episode: dict[int, tuple[int, float]] = field(default_factory=dict)
    of_batches: int = 0  # number of runs that read all samples of a batch at once

    def __add__(self, other: Operation) -> Operation:
        by_episode = dict(self.by_episode)
        for episode, (n, total_ns) in other.by_episode.items():
            n_before, total_ns_before = by_episode.get(episode, (0, 0.0))
            by_episode[episode] = n_before + n, total_ns_before + total_ns
        return Operation(
            self.spans + other.spans,
            self.waited_ns + other.waited_ns,
            self.offset_ns + other.offset_ns,
            by_episode,
            self.of_batches + other.of_batches,
        )


# (loader, level, name, name of the operation around this one or ""): ``name`` is the name of an
# operation, or of the method that reads samples
Kind = tuple[int, int, str, str]


class _Work(NamedTuple):
    """Records with the time and position of each, as arrays of shape (n,)."""

    columns: Columns
    # duration of an operation; of other records, the time outside of the records inside them
    time_ns: Array
    waited_ns: Array  # part of ``time_ns`` in which the training waited
    inside: Array  # name of the operation around the record; ``NONE``: no operation
    is_nested: Array  # True if the record is inside an operation of the same name
    offset_ns: Array  # time from the start of the sample to the start of the record

    @classmethod
    def joined(cls, parts: Sequence[_Work]) -> _Work:
        columns, *arrays = zip(*parts, strict=True)
        return cls(Columns.joined(columns), *map(np.concatenate, arrays))


def measure_operations(
    records: LoaderRecords, loaders: Loaders, batches: BatchLifecycle, chunk: int = CHUNK
) -> dict[Kind, Operation]:
    """Return the totals of each operation of each loader of a rank; ``chunk`` records are in memory
    at a time."""
    level = levels(records)
    waits = _waits(batches)
    operations: dict[Kind, Operation] = {}
    for part in whole_batches(records.sample_chunks(chunk), level):
        by_threads = [
            _measure(columns, level[columns.name], waits.get(thread))
            for thread, columns in by_thread(part, level)
        ]
        if by_threads:
            _add_operations(operations, records, loaders, _Work.joined(by_threads), level)
    return operations


def levels(records: LoaderRecords) -> Array:
    """Return the level of each name of records."""
    return np.array([_LEVELS.get(name, OPERATION) for name in records.names], np.int64)


def _waits(batches: BatchLifecycle) -> dict[int, tuple[Array, Array]]:
    """Return a dict from thread to when training waited for the batches that the thread made: the
    starts and ends of the waits, in order, and the total time waited up to each of them, in ns."""
    waits = {}
    batches = batches.with_all("thread", "requested_ns")
    for thread in np.unique(batches["thread"]).tolist():
        in_thread = batches["thread"] == thread
        begin_ns, end_ns = batches["requested_ns"][in_thread], batches["received_ns"][in_thread]
        order = np.argsort(begin_ns)
        begin_ns, end_ns = begin_ns[order], np.maximum.accumulate(end_ns[order])
        # shorten waits that overlap; waits for several loaders should not, but might
        begin_ns[1:] = np.maximum(begin_ns[1:], end_ns[:-1])
        edges = np.stack([begin_ns, end_ns], axis=1).reshape(-1)
        none = np.zeros(len(begin_ns), np.int64)
        waited = np.stack([none, end_ns - begin_ns], axis=1).reshape(-1)
        waits[thread] = edges, np.cumsum(waited)
    return waits


def whole_batches(chunks: Iterable[Columns], level: Array) -> Iterator[Columns]:
    """Split the records again, so that all records of a thread within one batch are in the same
    chunk."""
    unfinished = Columns.joined([])
    for chunk in chunks:
        part = Columns.joined([unfinished, chunk])
        is_batch = level[part.name] == PREPROCESS
        last_batch = np.full(int(part.thread.max(initial=-1)) + 1, NONE)
        np.maximum.at(last_batch, part.thread[is_batch], part.start_ns[is_batch])
        batch_ns = last_batch[part.thread]
        is_open = (part.start_ns >= batch_ns) & (batch_ns != NONE)
        unfinished = part.select(is_open)
        yield part.select(~is_open)
    yield unfinished


def by_thread(part: Columns, level: Array) -> Iterator[tuple[int, Columns]]:
    """Yield the records of each thread in order of start. Of records with the same start, the
    longer comes first; of equal records, the outer one."""
    order = np.lexsort((level[part.name], -part.duration_ns, part.start_ns, part.thread))
    part = part.select(order)
    starts = np.flatnonzero(np.diff(part.thread, prepend=NONE)).tolist()
    for low, high in pairwise([*starts, len(part)]):
        yield int(part.thread[low]), part.select(slice(low, high))


def _measure(columns: Columns, level: Array, waits: tuple[Array, Array] | None) -> _Work:
    """Measure the records of one thread."""
    parent = parents(columns.start_ns, columns.duration_ns)
    duration_ns, waited_ns = columns.duration_ns, _during(columns, waits)
    is_operation = level == OPERATION
    outer = np.maximum(parent, 0)
    in_operation = (parent >= 0) & is_operation & is_operation[outer]
    sample = _ancestor(parent, level == ITEM)
    sample_start_ns = columns.start_ns[np.maximum(sample, 0)]
    time_ns = np.where(is_operation, duration_ns, without_children(duration_ns, parent))
    waited_ns = np.where(is_operation, waited_ns, without_children(waited_ns, parent))
    inside = np.where(in_operation, columns.name[outer], NONE)
    is_nested = _is_nested(columns.name, parent, is_operation)
    offset_ns = np.where(sample != NONE, columns.start_ns - sample_start_ns, 0)
    return _Work(columns, time_ns, waited_ns, inside, is_nested, offset_ns)


def _during(columns: Columns, waits: tuple[Array, Array] | None) -> Array:
    """Return the part of each span, in ns, that lies in the waits of its thread."""
    if waits is None:
        return np.zeros(len(columns), np.int64)
    edges, waited = waits
    base = int(edges[0])
    until_start = np.interp(columns.start_ns - base, edges - base, waited)
    until_end = np.interp(columns.end_ns - base, edges - base, waited)
    return np.rint(until_end - until_start).astype(np.int64)


def _is_nested(name: Array, parent: Array, is_operation: Array) -> Array:
    """True for each operation that is inside an operation of the same name, at any depth; such
    operations count as part of the outer one."""
    nested = np.zeros(len(name), bool)
    ancestor = np.where(is_operation, parent, NONE)
    rows = np.flatnonzero(ancestor >= 0)
    while len(rows):
        outer = ancestor[rows]
        nested[rows] |= is_operation[outer] & (name[outer] == name[rows])
        ancestor[rows] = parent[outer]
        rows = rows[ancestor[rows] >= 0]
    return nested


def _ancestor(parent: Array, selected: Array) -> Array:
    """Return the nearest selected span around each span; ``NONE`` if there is none."""
    nearest, ancestor = np.full(len(parent), NONE), parent.copy()
    rows = np.flatnonzero(ancestor >= 0)
    while len(rows):
        outer = ancestor[rows]
        is_nearest = selected[outer]
        nearest[rows[is_nearest]] = outer[is_nearest]
        ancestor[rows] = np.where(is_nearest, NONE, parent[outer])
        rows = rows[ancestor[rows] >= 0]
    return nearest


def _add_operations(
    operations: dict[Kind, Operation],
    records: LoaderRecords,
    loaders: Loaders,
    work: _Work,
    level_of_name: Array,
) -> None:
    columns = work.columns
    level = level_of_name[columns.name]
    source = loaders.of_each(columns)
    reader = len(records.names) + records.reader[columns.args]
    name = np.where(np.isin(level, READING), reader, NONE)
    name = np.where(level == OPERATION, columns.name, name)
    rows = np.flatnonzero((source >= 0) & ~work.is_nested)
    order, kinds, edges = _group(rows, source, level, name, work.inside)
    names = [*(record_name for _, record_name in records.names), *records.readers]
    reads_batches = records.reads_batches[columns.args]
    for i, (loader, group_level, code, inside) in enumerate(kinds):
        rows = order[edges[i] : edges[i + 1]]
        label = "" if code == NONE else names[code]
        kind = (loader, group_level, label, "" if inside == NONE else names[inside])
        time_ns = work.time_ns[rows]
        waited_ns = float(work.waited_ns[rows].sum())
        offset_ns = float(work.offset_ns[rows].sum())
        by_episode = _by_episode(loaders, columns.args[rows], time_ns)
        n_of_batches = int(reads_batches[rows].sum())
        operation = Operation(Histogram.of(time_ns), waited_ns, offset_ns, by_episode, n_of_batches)
        operations[kind] = operations[kind] + operation if kind in operations else operation


def _by_episode(loaders: Loaders, args: Array, time_ns: Array) -> dict[int, tuple[int, float]]:
    """Return a dict from the number of an iterator to the number and the sum of its times."""
    by_episode: dict[int, tuple[int, float]] = {}
    counts, sums = np.bincount(args), np.bincount(args, weights=time_ns)
    for code in np.flatnonzero(counts).tolist():
        episode = int(loaders.episode[code])
        n, total = by_episode.get(episode, (0, 0.0))
        by_episode[episode] = n + int(counts[code]), total + float(sums[code])
    return by_episode


def _group(rows: Array, *columns: Array) -> tuple[Array, list[tuple[int, ...]], Array]:
    """Group rows by their values in columns of small integers, from -1 on. Return the rows in order
    of their groups, the values of each group, and the position at which each group starts, followed
    by the end of the last group."""
    shape = [int(column.max(initial=-1)) + 2 for column in columns]
    key = np.zeros(0, np.int64)
    if len(rows):
        key = np.ravel_multi_index([column[rows] + 1 for column in columns], shape)
    present = np.flatnonzero(np.bincount(key, minlength=1))
    # Groups are numbered with 16 bits: numpy sorts short numbers in one pass, ten times as fast.
    dense = np.zeros(int(key.max(initial=0)) + 1, np.uint16)
    dense[present] = np.arange(len(present))
    group = dense[key]
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(present) + 1))
    groups = np.stack(np.unravel_index(present, shape), axis=1) - 1
    return rows[order], [tuple(values) for values in groups.tolist()], edges


SLOWEST = 20  # slowest samples that are kept for a rank
_FEW = 8
# pauses between two batches longer than this many times the median do not count as training steps
_LONG_PAUSE = 5


@dataclass
class Epoch:
    """Totals of one iterator: number of batches; nanoseconds of making them, of waiting for them,
    and from the first request to the last batch."""

    batches: int = 0
    making_ns: float = 0.0
    waited_ns: float = 0.0
    lasted_ns: float = 0.0

    def __add__(self, other: Epoch) -> Epoch:
        return Epoch(
            self.batches + other.batches,
            self.making_ns + other.making_ns,
            self.waited_ns + other.waited_ns,
            max(self.lasted_ns, other.lasted_ns),
        )


_NO_EPOCH = Epoch()


@dataclass
class LoaderTotals:
    """Totals of one loader, in one rank or added up over several ranks.

    Attributes:
        times: Histograms. ``preprocess`` is the making of a batch; ``usual`` is the same without
            the first batch of each worker, and ``cpu`` is its CPU time. Others are ``wait, delay,
            put, idle, pin``; ``pause``, from a batch to the next request; ``receive``, taking a
            batch that was ready; ``turn``, from one request to the next while workers are at work.
        counts: Consumed ``batches``; their ``items`` as the steps instrument counts them, in
            ``counted`` batches; batches with unknown items (``uncounted``); requests that raised
            (``failed``); batches that were ready when they were requested (``ready``), or arrived
            before one with a lower number (``out_of_order``).
        busy: By (rank, worker): number of batches, nanoseconds of making them, and nanoseconds of
            the epochs in which the worker took part.
        costs: Costs of a batch other than its making, by name, as sum and number (shape (2,)):
            ``send_ns, receive_ns, training_ns, making_ns`` of CPU time, ``bytes``, ``tensors``.
        handover: The cost of handing a batch over on the machine, as for
            ``analyse_prediction.handover_costs``; empty if not measured.
        slowest: Samples as (index, n, median, longest, operation that takes most of the time);
            times are in nanoseconds.
    """

    loader: int  # number of the loader; it and ``owner`` are the same in every rank
    # index of the process that requests the loader's batches; process 0 makes most requests
    owner: int
    facts: Mapping[str, Any]  # facts recorded by the steps instrument
    workers: int  # number of workers
    ranks: list[int]  # the ranks whose totals are added up
    # by (level, name, name of the operation around this one), as in ``Kind``
    operations: dict[tuple[int, str, str], Operation]
    times: dict[str, Histogram]
    counts: Counter[str]
    busy: dict[tuple[int, int], tuple[int, float, float]]
    epochs: list[Epoch]  # in the order of the iterators
    # the queue of batches that were made and not yet consumed, over time; of one rank only
    queue: dict[str, Any] | None
    slowest: list[tuple[int, int, float, float, str]]
    costs: dict[str, Array]
    handover: dict[str, float]
    # for each iterator with workers: the wait for its first batch minus the time to make it, in ns
    starts: list[float]

    def __add__(self, other: LoaderTotals) -> LoaderTotals:
        epochs = zip_longest(self.epochs, other.epochs, fillvalue=_NO_EPOCH)
        slowest = sorted([*self.slowest, *other.slowest], key=lambda row: -row[2])
        return replace(
            self,
            ranks=[*self.ranks, *other.ranks],
            operations=_add_tables(self.operations, other.operations),
            times=_add_tables(self.times, other.times),
            counts=self.counts + other.counts,
            busy={**self.busy, **other.busy},
            epochs=[epoch + other_epoch for epoch, other_epoch in epochs],
            costs=_add_tables(self.costs, other.costs),
            starts=[*self.starts, *other.starts],
            slowest=slowest[:SLOWEST],
        )


def _add_tables(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return both tables as one; values with the same key are added."""
    table = dict(first)
    for key, value in second.items():
        table[key] = table[key] + value if key in table else value
    return table


def combine(totals: Sequence[LoaderTotals]) -> list[LoaderTotals]:
    """Add up the loaders of all ranks."""
    combined: dict[tuple[int, int], LoaderTotals] = {}
    for loader in totals:
        combined = _add_tables(combined, {(loader.owner, loader.loader): loader})
    return list(combined.values())


def totals_of_rank(run: Run, rank: int) -> list[LoaderTotals]:
    """Return the totals of the loaders of one rank."""
    rank_records = read_rank(run, rank)
    if rank_records is None:
        return []
    records, _, loaders, batches = rank_records
    operations = measure_operations(records, loaders, batches)
    costs, handover = records.cost_columns(), records.handover()
    cost_source = loaders.of_each(costs)
    totals = []
    for i in range(len(loaders.all)):
        of_loader = {kind[1:]: operation for kind, operation in operations.items() if kind[0] == i}
        loader_batches = batches.select(batches.source == i)
        sums = _costs(records, costs.select(cost_source == i))
        totals.append(_totals(i, rank, records, loaders, loader_batches, of_loader, sums, handover))
    return totals


def _totals(
    number: int,
    rank: int,
    records: LoaderRecords,
    loaders: Loaders,
    batches: BatchLifecycle,
    operations: dict[tuple[int, str, str], Operation],
    costs: dict[str, Array],
    handover: dict[str, float],
) -> LoaderTotals:
    loader = loaders.all[number]
    owners = list(dict.fromkeys(other.pid for other in loaders.all))
    args = np.flatnonzero(loaders.number == loader.number)
    facts = dict(loader.facts)
    with_collate = [i for i in args.tolist() if "collate" in records.arguments[i]]
    if with_collate:
        facts["collate"] = records.arguments[with_collate[0]]["collate"]
    times = {name: Histogram.of(values) for name, values in _times(batches).items()}
    fetched = records.fetched.get((loader.pid, loader.number), (0, 0, 0))
    busy = _busy(rank, batches.with_all("begin_ns"))
    queue = measure_queue(batches) if batches.by_worker.any() else None
    slowest = records.slowest(args, SLOWEST)
    return LoaderTotals(
        loader=loader.number,
        owner=owners.index(loader.pid),
        facts=facts,
        workers=_count_workers(loader.facts, batches),
        ranks=[rank],
        operations=operations,
        times=times,
        counts=_counts(batches, fetched),
        busy=busy,
        epochs=_epochs(batches),
        queue=queue,
        slowest=slowest,
        costs=costs,
        handover=handover,
        starts=_starts(batches),
    )


def _count_workers(facts: Mapping[str, Any], batches: BatchLifecycle) -> int:
    """Return the number of workers that the loader itself states; otherwise one more than the
    highest worker number that was seen."""
    workers: int | None = facts.get("workers")
    if workers is not None:
        return workers
    highest = max(batches[column].max(initial=-1) for column in ("worker", "sent_to"))
    return int(highest) + 1


def _counts(batches: BatchLifecycle, fetched: tuple[int, int, int]) -> Counter[str]:
    items, n_counted, n_fetched = fetched
    failed = batches["failed"] == 1
    ready = _is_put_before_request(batches) | (batches["ready"] == 1)
    consumed = batches.has("consumed_ns") & ~failed
    counts = Counter(items=items, counted=n_counted, uncounted=n_fetched - n_counted)
    for name, is_such in (("batches", consumed), ("failed", failed), ("ready", ready)):
        counts[name] = int(is_such.sum())
    counts["out_of_order"] = _out_of_order(batches)
    return counts


def _costs(records: LoaderRecords, costs: Columns) -> dict[str, Array]:
    sums = {}
    for code in np.unique(costs.name).tolist():
        values = costs.value[costs.name == code].astype(np.float64)
        # limit outliers: what happens once, at the first batches, is not part of a batch's cost
        if len(values) > _FEW:
            values = np.minimum(values, _LONG_PAUSE * np.median(values))
        sums[records.names[code][1]] = np.array([values.sum(), len(values)])
    return sums


def _starts(batches: BatchLifecycle) -> list[float]:
    """Return, for each iterator with workers, how much longer the training waited for the first
    batch than making it took, in ns; at least 0."""
    starts = []
    of_workers = batches.by_worker & batches.has("requested_ns", "received_ns", "end_ns")
    for episode in batches.select(of_workers).episodes():
        first = np.argmin(episode["requested_ns"])
        waited = episode["received_ns"][first] - episode["requested_ns"][first]
        making = episode["end_ns"][first] - episode["begin_ns"][first]
        starts.append(float(max(waited - making, 0)))
    return starts


def _times(batches: BatchLifecycle) -> dict[str, Array]:
    usual = batches.select(~_is_first_of_worker(batches))
    was_there = _is_put_before_request(batches) & (batches["ready"] != 1)
    times = {"pause": _pauses(batches), "turn": _turns(batches), "cpu": usual.recorded("cpu_ns")}
    for name, some_batches, start, end in (
        ("preprocess", batches, "begin_ns", "end_ns"),
        ("usual", usual, "begin_ns", "end_ns"),
        ("wait", batches, "requested_ns", "received_ns"),
        ("delay", batches, "end_ns", "consumed_ns"),
        ("receive", batches.select(was_there), "requested_ns", "received_ns"),
    ):
        times[name] = some_batches.durations(start, end)
    for name, field_name in (("put", "put_ns"), ("idle", "idle_ns"), ("pin", "pinned_ns")):
        times[name] = batches.recorded(field_name)
    return times


def _is_first_of_worker(batches: BatchLifecycle) -> Array:
    """True for the first batch of each worker process that has made several: it includes imports
    and the opening of files."""
    is_first = np.zeros(len(batches), bool)
    for thread in np.unique(batches.recorded("thread")).tolist():
        rows = np.flatnonzero(batches["thread"] == thread)
        if len(rows) > 2:
            first = rows[np.argmin(batches["begin_ns"][rows])]
            is_first[first] = True
    return is_first


def _without_long(times: Array) -> Array:
    return times[times <= _LONG_PAUSE * np.median(times)] if len(times) else times


def _pauses(batches: BatchLifecycle) -> Array:
    """Return the times from each batch to the next request of the same iterator, in ns: the
    training works on the batch. Unusually long pauses are left out."""
    batches = batches.with_all("requested_ns", "received_ns")
    batches = batches.select(np.lexsort((batches["requested_ns"], batches.episode)))
    pauses = np.maximum(batches["requested_ns"][1:] - batches["received_ns"][:-1], 0)
    in_one_episode = batches.episode[1:] == batches.episode[:-1]
    return _without_long(pauses[in_one_episode])


def _turns(batches: BatchLifecycle) -> Array:
    """Return the times from each request to the next one of the same iterator, in ns. The first
    ones are left out: workers start, and the queue is filled."""
    batches = batches.select(batches.by_worker & batches.has("requested_ns", "received_ns"))
    n_first = 3 * (int(batches["worker"].max(initial=-1)) + 1)
    turns = [np.zeros(0, np.int64)]
    for episode in batches.episodes():
        requested_ns = np.sort(episode["requested_ns"])
        turns.append(np.diff(requested_ns)[n_first:])
    return _without_long(np.concatenate(turns))


def _is_put_before_request(batches: BatchLifecycle) -> Array:
    """True for each batch that a worker had put on the queue before it was requested."""
    put_ns = batches["end_ns"] + np.maximum(batches["put_ns"], 0)
    is_early = put_ns <= batches["requested_ns"]
    return batches.by_worker & batches.has("end_ns", "requested_ns") & is_early


def _out_of_order(batches: BatchLifecycle) -> int:
    n = 0
    for episode in batches.with_all("arrived_ns").episodes():
        arrived_ns = episode["arrived_ns"]  # ascending by number of the batch
        latest_before = np.maximum.accumulate(arrived_ns)[:-1]
        n += int((arrived_ns[1:] < latest_before).sum())
    return n


def _busy(rank: int, batches: BatchLifecycle) -> dict[tuple[int, int], tuple[int, float, float]]:
    """Return a dict from (rank, worker) to the number of batches, the time of making them, and the
    duration of the epochs in which the worker made some. Times are in ns."""
    busy: dict[tuple[int, int], tuple[int, float, float]] = {}
    for episode in batches.episodes():
        lasted_ns = float(episode["end_ns"].max() - episode["begin_ns"].min())
        for worker in np.unique(episode["worker"]).tolist():
            if worker < 0:
                continue
            by_worker = episode.select(episode["worker"] == worker)
            making_ns = float((by_worker["end_ns"] - by_worker["begin_ns"]).sum())
            n, making_ns_before, present_ns = busy.get((rank, worker), (0, 0.0, 0.0))
            busy[rank, worker] = (
                n + len(by_worker),
                making_ns_before + making_ns,
                present_ns + lasted_ns,
            )
    return busy


def _epochs(batches: BatchLifecycle) -> list[Epoch]:
    epochs = []
    for episode in batches.with_all("requested_ns").episodes():
        making_ns = float(episode.durations("begin_ns", "end_ns").sum())
        waited_ns = float(episode.durations("requested_ns", "received_ns").sum())
        lasted_ns = float(episode["received_ns"].max() - episode["requested_ns"].min())
        epochs.append(Epoch(len(episode), making_ns, waited_ns, lasted_ns))
    return epochs
