"""The records of ``--loader`` of one rank as columns of numbers, those of batches at once, those of samples in chunks; its loaders; and the
life cycle of each batch: queued, made by a worker, put, arrived, requested, consumed, and how many were ready, over time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.runs.opened import Run
from voirkit.runs.parquet import CodedSpans, quoted, within

KIND = "loader"
NONE = -1  # of a time or an index: it was not recorded
CHUNK = 500_000  # records at a time: 50 MB with what is made of them
_OF_BATCHES = "(category IN ('batch', 'worker') OR (category = 'data' AND name IN ('preprocess', 'collate', 'cpu')))"
_OF_COSTS = "category = 'cost'"
_OF_SAMPLES = "(category = 'operation' OR (category = 'data' AND name <> 'cpu'))"


@dataclass(frozen=True)
class Columns:
    """Some records; arrays of shape (n,): times in nanoseconds of the host's clock, the rest indices of ``LoaderRecords``' tables, but for
    ``value``, which is the record's own number (-1: it has none)."""

    start_ns: Array
    duration_ns: Array
    name: Array
    args: Array
    thread: Array
    value: Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Array:
        return self.start_ns + self.duration_ns

    def select(self, chosen: Array) -> Columns:
        """Those of these indices, or where a mask is true."""
        return Columns(*(getattr(self, key)[chosen] for key in FIELDS))

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """All of these, in their order."""
        return cls(*(np.concatenate([np.zeros(0, np.int64), *(getattr(part, key) for part in parts)]) for key in FIELDS))


FIELDS = ("start_ns", "duration_ns", "name", "args", "thread", "value")


class LoaderRecords:
    """What one rank has recorded of its loaders.

    Attributes:
        names: (category, name) by index.
        arguments: Of a record, by index: ``loader, episode, worker`` ...
        threads: (host, pid, tid) by index.
        parents: The process that started one, by its id, as far as it is known.
        iterated: What is known of loaders whose iterators the steps instrument has seen: (pid, loader) to ``dataset, batch_size`` ...
        readers: What reads samples, such as ``Pictures.__getitem__``, by index; empty where that is not recorded.
        reads_batches: By set of arguments, whether what reads gives all samples of a batch at once.
        fetched: What the steps instrument has counted: (pid, loader) to (items, batches that they are of, batches).
    """

    def __init__(self, run: Run, rank: int) -> None:
        self._spans = CodedSpans(run.connection(), "of_loader", f"SELECT * FROM spans WHERE kind = {quoted(KIND)} AND rank = {rank}")
        self.names, self.threads = self._spans.names, self._spans.owners
        self.arguments: Sequence[Mapping[str, Any]] = [json.loads(text) for text in self._spans.arguments]
        self.parents = {process.pid: process.ppid for process in run.processes() if process.rank == rank}
        self.iterated = self._iterated(rank)
        sources = [str(arguments.get("source", "")) for arguments in self.arguments]
        self.readers = sorted(set(sources))
        self.reader = np.array([self.readers.index(name) for name in sources], np.int64)  # by set of arguments, an index into ``readers``
        self.reads_batches = np.array([arguments.get("whole") is True for arguments in self.arguments], bool)
        self.fetched = self._fetched(rank)

    def _iterated(self, rank: int) -> dict[tuple[int, int], dict[str, Any]]:
        rows = self._spans.rows(
            "SELECT DISTINCT pid, args FROM spans WHERE kind = 'phase' AND category = 'dataloader' AND name = 'iter' "
            f"AND rank = {rank} AND args IS NOT NULL"
        )
        described = ((pid, json.loads(text)) for pid, text in rows)
        return {(pid, facts["loader"]): facts for pid, facts in described if "loader" in facts}

    def _fetched(self, rank: int) -> dict[tuple[int, int], tuple[int, int, int]]:
        rows = self._spans.rows(
            "SELECT pid, CAST(json_extract(args, '$.loader') AS BIGINT) AS loader, coalesce(sum(value) FILTER (value >= 0), 0)::BIGINT, "
            "count(*) FILTER (value >= 0), count(*) FROM spans WHERE kind = 'phase' AND category = 'dataloader' AND name = 'fetch' "
            f"AND rank = {rank} GROUP BY ALL"
        )
        return {(pid, loader): (items, counted, n) for pid, loader, items, counted, n in rows if loader is not None}

    def batch_columns(self) -> Columns:
        """All that is recorded once a batch."""
        return self._fetch(_OF_BATCHES)

    def cost_columns(self) -> Columns:
        """What a batch costs beside its making; ``value`` is in nanoseconds of a processor's time, bytes, or tensors."""
        return self._fetch(_OF_COSTS)

    def handover(self) -> dict[str, float]:
        """What handing a batch over costs on the machine of the run, by name; empty where it was not measured."""
        return dict(self._spans.rows(f"SELECT name, median(value) FROM of_loader WHERE {_OF_COSTS} AND args IS NULL GROUP BY name"))

    def sample_chunks(self, chunk: int = CHUNK) -> Iterator[Columns]:
        """Batches, samples and operations, in chunks by the time at which they began; memory does not grow with the run."""
        for part in self._spans.ranges(chunk, _OF_SAMPLES):
            yield self._fetch(f"{_OF_SAMPLES} AND {within(*part)}")

    def _fetch(self, where: str) -> Columns:
        columns = "start_ns, duration_ns, n.code AS name, a.code AS args, o.code AS thread, coalesce(value, -1) AS value"
        return Columns(**self._spans.fetch(columns, where))

    def slowest(self, args: Array, most: int) -> list[tuple[int, int, float, float, str]]:
        """The samples that take longest, by the median of their times: (index, n, median, longest, the operation that takes most of it).

        Times are in nanoseconds. The first sample of each worker is left out: it pays for what is imported and opened once.

        Args:
            args: The sets of arguments of the loader's records.
        """
        if not len(args):
            return []
        of_source = f"coalesce(args, '{{}}') IN (SELECT text FROM of_loader_arguments WHERE code IN ({', '.join(map(str, args.tolist()))}))"
        return self._spans.rows(
            "WITH timed AS (SELECT value, duration_ns, row_number() OVER (PARTITION BY host, pid, tid ORDER BY start_ns) AS place "
            f"FROM of_loader WHERE category = 'data' AND name = 'item' AND value >= 0 AND {of_source}), "
            "samples AS (SELECT value, count(*) AS n, median(duration_ns) AS middle, max(duration_ns) AS longest FROM timed "
            f"WHERE place > 1 GROUP BY value ORDER BY middle DESC, value LIMIT {most}), "
            "spent AS (SELECT value, name, sum(duration_ns) AS ns FROM of_loader "
            f"WHERE category = 'operation' AND value IN (SELECT value FROM samples) AND {of_source} GROUP BY value, name), "
            "heaviest AS (SELECT value, arg_max(name, ns) AS operation FROM spent GROUP BY value) "
            "SELECT value, n, middle, longest, coalesce(operation, '') FROM samples LEFT JOIN heaviest USING (value) "
            "ORDER BY middle DESC, value"
        )


@dataclass(frozen=True)
class Loader:
    """A loader of one process."""

    pid: int  # of the process that asks it for batches
    number: int  # its number there
    facts: Mapping[str, Any]  # what the steps instrument knows of it: ``dataset, batch_size, length, workers``; may be empty


@dataclass(frozen=True)
class Loaders:
    """The loaders of a rank, and which of them each record belongs to: they come from the process that trains and from its workers."""

    all: Sequence[Loader]
    owner: Array  # by thread, the process whose loaders its records are of, as an index
    number: Array  # by set of arguments, the loader's number there; -1 for none
    episode: Array  # by set of arguments, the iterator's number
    worker: Array  # by set of arguments; -1 in the main process
    index: Mapping[tuple[int, int], int]  # (owner, number) to an index into ``all``

    def of_each(self, columns: Columns) -> Array:
        """The loader of each record, an index into ``all``; -1 for none."""
        width = int(self.number.max(initial=0)) + 2
        table = np.full((int(self.owner.max(initial=0)) + 1) * width, NONE)
        for (owner, number), i in self.index.items():
            table[owner * width + number + 1] = i
        return table[self.owner[columns.thread] * width + self.number[columns.args] + 1]


def read_rank(run: Run, rank: int) -> tuple[LoaderRecords, Columns, Loaders, BatchLifecycle] | None:
    """The records of a rank, those of its batches, its loaders, and the life cycle of its batches; None if it had none."""
    records = LoaderRecords(run, rank)
    columns = records.batch_columns()
    if not len(columns):
        return None
    loaders = find_loaders(records, columns)
    return records, columns, loaders, follow_batches(records, loaders, columns)


def find_loaders(records: LoaderRecords, batches: Columns) -> Loaders:
    """The loaders of a rank, those of the process that asks for most batches first."""
    number, episode, worker = (
        np.array([int(arguments.get(key, NONE)) for arguments in records.arguments], np.int64) for key in ("loader", "episode", "worker")
    )
    is_requested = np.array([category == "batch" for category, _ in records.names], bool)[batches.name]
    requests = Counter(records.threads[thread][1] for thread in batches.thread[is_requested].tolist())
    mains = [pid for pid, _ in requests.most_common()] or sorted({pid for _, pid, _ in records.threads})[:1]
    owner = np.array([mains.index(_owner(pid, mains, records.parents)) for _, pid, _ in records.threads], np.int64)
    pairs = np.unique(np.stack([owner[batches.thread], number[batches.args]]), axis=1).T.tolist() if len(batches) else []
    pairs = [(o, n) for o, n in pairs if n >= 0]
    loaders = [Loader(mains[o], n, records.iterated.get((mains[o], n), {})) for o, n in pairs]
    return Loaders(loaders, owner, number, episode, worker, {pair: i for i, pair in enumerate(pairs)})


def _owner(pid: int, mains: Sequence[int], parents: Mapping[int, int]) -> int:
    """The process that started a worker, itself or through others; the first one if that is not known (a forkserver's child)."""
    ancestor: int | None = pid
    for _ in range(16):
        if ancestor is None or ancestor in mains:
            break
        ancestor = parents.get(ancestor)
    return ancestor if ancestor is not None and ancestor in mains else mains[0]


_POINTS = 60

# column: (category, name, what of the record)
_COLUMNS = {
    "queued_ns": ("batch", "queued", "start_ns"),
    "sent_to": ("batch", "queued", "worker"),
    "begin_ns": ("data", "preprocess", "start_ns"),
    "end_ns": ("data", "preprocess", "end_ns"),
    "worker": ("data", "preprocess", "worker"),
    "thread": ("data", "preprocess", "thread"),
    "idle_ns": ("worker", "idle", "duration_ns"),
    "put_ns": ("worker", "put", "duration_ns"),
    "arrived_ns": ("batch", "arrived", "start_ns"),
    "requested_ns": ("batch", "wait", "start_ns"),
    "received_ns": ("batch", "wait", "end_ns"),
    "ready": ("batch", "wait", "ready"),
    "pinned_ns": ("batch", "pin", "duration_ns"),
    "consumed_ns": ("batch", "consumed", "start_ns"),
    "failed": ("batch", "consumed", "failed"),
}


@dataclass(frozen=True)
class BatchLifecycle:
    """Batches by loader, episode and number, a row each; arrays of shape (n,), ``NONE`` where nothing was recorded."""

    source: Array  # index of the loader
    episode: Array  # number of the iterator
    batch: Array  # the loader's number of the batch
    # the rest by name, as in ``_COLUMNS``: times in nanoseconds of the host's clock; ``idle_ns``, ``put_ns`` and ``pinned_ns`` are
    # durations, ``cpu_ns`` the processor's time of making the batch
    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, column: str) -> Array:
        return self.columns[column]

    def select(self, chosen: Array) -> BatchLifecycle:
        """Those of these indices, or where a mask is true."""
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return BatchLifecycle(self.source[chosen], self.episode[chosen], self.batch[chosen], columns)

    def has(self, *columns: str) -> Array:
        """Which batches have all of these."""
        return np.all([self[column] != NONE for column in columns], axis=0)

    def with_all(self, *columns: str) -> BatchLifecycle:
        """Those that have all of these."""
        return self.select(self.has(*columns))

    def durations(self, from_column: str, to_column: str) -> Array:
        """From one time to another, of the batches that have both."""
        return (self[to_column] - self[from_column])[self.has(from_column, to_column)]

    def episodes(self) -> Iterator[BatchLifecycle]:
        """Those of each iterator, of one loader: rows are in order of their episodes."""
        edges = [*np.flatnonzero(np.diff(self.episode, prepend=-2)).tolist(), len(self)]
        return (self.select(slice(low, high)) for low, high in pairwise(edges))

    @property
    def by_worker(self) -> Array:
        """Which batches a worker made."""
        return self["worker"] >= 0


def follow_batches(records: LoaderRecords, loaders: Loaders, columns: Columns) -> BatchLifecycle:
    """The batches of a rank, from ``LoaderRecords.batch_columns``."""
    codes = {pair: code for code, pair in enumerate(records.names)}
    is_cpu = columns.name == codes.get(("data", "cpu"), -2)
    cpu, columns = columns.select(is_cpu), columns.select(~is_cpu)
    source = loaders.of_each(columns)
    columns, source = columns.select(is_own := (source >= 0) & (columns.value >= 0)), source[is_own]
    (of, episode, batch), row = np.unique(np.stack([source, loaders.episode[columns.args], columns.value]), axis=1, return_inverse=True)
    row = row.reshape(-1)
    values = {
        "start_ns": columns.start_ns,
        "duration_ns": columns.duration_ns,
        "end_ns": columns.end_ns,
        "thread": columns.thread,
        "worker": loaders.worker[columns.args],
        "ready": np.array([int(arguments.get("ready") is True) for arguments in records.arguments], np.int64)[columns.args],
        "failed": np.array([int("error" in arguments) for arguments in records.arguments], np.int64)[columns.args],
    }
    made = {}
    for name, (category, record, what) in _COLUMNS.items():
        is_it = columns.name == codes.get((category, record), -2)
        made[name] = np.full(len(batch), NONE)
        made[name][row[is_it]] = values[what][is_it]
    made["cpu_ns"] = _values_at(cpu, made["thread"], made["end_ns"])
    return BatchLifecycle(of, episode, batch, made)


def _values_at(marks: Columns, thread: Array, time_ns: Array) -> Array:
    """The value of the mark that was made at each of these moments in each of these threads."""
    values = np.full(len(thread), NONE)
    for number in np.unique(thread[thread != NONE]).tolist():
        own, rows = marks.select(marks.thread == number), np.flatnonzero(thread == number)
        times, first = np.unique(own.start_ns, return_index=True)
        if len(times):
            place = np.minimum(np.searchsorted(times, time_ns[rows]), len(times) - 1)
            same = times[place] == time_ns[rows]
            values[rows[same]] = own.value[first[place[same]]]
    return values


def measure_queue(batches: BatchLifecycle) -> dict[str, Any] | None:
    """How many batches of a loader were made and not yet consumed: an empty queue starves the training, a full one idles the workers.

    Returns:
        As a summary has it: their ``mean`` and the ``max`` at once, over the time in which the loader was iterated over; the
        ``empty_share`` of that time; the most that were asked of workers and not consumed (``under_way``); and the mean ``depth`` between
        points that lie ``every_s`` apart, from the first batch to the last. None if no batch was both made and consumed.
    """
    batches = batches.with_all("end_ns", "received_ns", "requested_ns")
    if not len(batches):
        return None
    put, taken = np.sort(batches["end_ns"]), np.sort(batches["received_ns"])
    time, depth = _depth(put, taken)
    lasting = np.diff(time, append=time[-1])
    # from the first request of each iterator to the last batch that came of it
    iterated = float(sum(one["received_ns"].max() - one["requested_ns"].min() for one in batches.episodes()))
    first, last = int(batches["begin_ns"].min()), int(taken[-1])
    points = np.linspace(first, last, _POINTS + 1)
    means = np.diff(_passed_ns(put, points) - _passed_ns(taken, points)) / max((last - first) / _POINTS, 1.0)
    # The next index is put on a queue before the request that got a batch returns.
    got = np.maximum(batches["arrived_ns"], batches["requested_ns"])
    return {
        "mean": float((depth * lasting).sum()) / iterated if iterated else 0.0,
        "max": int(depth.max(initial=0)),
        "empty_share": min(max(1 - float(lasting[depth > 0].sum()) / iterated, 0.0), 1.0) if iterated else 0.0,
        "under_way": most_at_once(batches["queued_ns"][batches.has("queued_ns")], got),
        "every_s": (last - first) / _POINTS * 1e-9,
        "depth": [max(round(float(value), 3), 0.0) for value in means],
    }


def most_at_once(come: Array, leave: Array) -> int:
    """The most that were there at once, of what came and left at these moments; of those at once the leaving first."""
    return int(_depth(leave, come, -1)[1].max(initial=0)) if len(come) else 0


def _depth(first: Array, then: Array, sign: int = 1) -> tuple[Array, Array]:
    """The moments at which something came or left, and how many there were from then on; of what is at once ``first`` counts before."""
    time = np.concatenate([first, then])
    change = np.repeat([sign, -sign], [len(first), len(then)])
    order = np.argsort(time, kind="stable")
    return time[order], np.cumsum(change[order])


def _passed_ns(come: Array, points: Array) -> Array:
    """Sum of the times that had passed at each point since each that had come."""
    n = np.searchsorted(come, points, side="right")
    sums = np.concatenate([[0.0], np.cumsum((come - come[0]).astype(np.float64))])
    return n * (points - come[0]) - sums[n]
