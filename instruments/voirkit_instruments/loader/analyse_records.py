"""The records of ``--loader`` of one rank as arrays, the loaders of the rank, and the life cycle of
each batch.

Records of batches are read at once, records of samples in chunks. A batch is queued, made by a
worker, put on a queue, arrives, is requested and is consumed. The number of batches that are ready
is computed over time.
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
NONE = -1  # value of a time or an index that was not recorded
CHUNK = 500_000  # records in a chunk; 50 MB with the arrays computed from them
_OF_BATCHES = (
    "(category IN ('batch', 'worker') OR (category = 'data' AND name IN ('preprocess', 'collate',"
    " 'cpu')))"
)
_OF_COSTS = "category = 'cost'"
_OF_SAMPLES = "(category = 'operation' OR (category = 'data' AND name <> 'cpu'))"


@dataclass(frozen=True)
class Columns:
    """Records as arrays of shape (n,). Times are in nanoseconds on the host's clock. ``value`` is
    the record's own number (-1: none). The other columns are indices into the tables of
    ``LoaderRecords``."""

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

    def select(self, selection: Array | slice) -> Columns:
        """Return the records at the given indices, or where the given mask is true."""
        return Columns(*(getattr(self, key)[selection] for key in FIELDS))

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Concatenate the parts, in their order."""
        none = np.zeros(0, np.int64)
        columns = ([none, *(getattr(part, key) for part in parts)] for key in FIELDS)
        return cls(*(np.concatenate(arrays) for arrays in columns))


FIELDS = ("start_ns", "duration_ns", "name", "args", "thread", "value")


class LoaderRecords:
    """The records of the loaders of one rank.

    Attributes:
        names: (category, name) by index.
        arguments: The arguments of records, by index: ``loader, episode, worker`` ...
        threads: (host, pid, tid) by index.
        parents: The parent's pid by pid of a process, as far as known.
        iterated: Facts about the loaders whose iterators the steps instrument has recorded: (pid,
            loader) to ``dataset, batch_size`` ...
        readers: The methods that read samples, such as ``Pictures.__getitem__``, by index; an empty
            string if not recorded.
        reads_batches: By index of arguments: True if the method reads all samples of a batch at
            once.
        fetched: Counts by the steps instrument: (pid, loader) to (items, batches whose items are
            counted, all batches).
    """

    def __init__(self, run: Run, rank: int) -> None:
        self._spans = CodedSpans(
            run.connection(),
            "of_loader",
            f"SELECT * FROM spans WHERE kind = {quoted(KIND)} AND rank = {rank}",
        )
        self.names = self._spans.names
        self.threads = self._spans.owners
        self.arguments: Sequence[Mapping[str, Any]] = [
            json.loads(text) for text in self._spans.arguments
        ]
        self.parents = {
            process.pid: process.ppid for process in run.processes() if process.rank == rank
        }
        self.iterated = self._iterated(rank)
        sources = [str(arguments.get("source", "")) for arguments in self.arguments]
        self.readers = sorted(set(sources))
        # for each entry of ``arguments``: an index into ``readers``
        self.reader = np.array([self.readers.index(name) for name in sources], np.int64)
        whole = [arguments.get("whole") is True for arguments in self.arguments]
        self.reads_batches = np.array(whole, bool)
        self.fetched = self._fetched(rank)

    def _iterated(self, rank: int) -> dict[tuple[int, int], dict[str, Any]]:
        rows = self._spans.rows(
            "SELECT DISTINCT pid, args FROM spans WHERE kind = 'phase' AND category = 'dataloader'"
            f" AND name = 'iter' AND rank = {rank} AND args IS NOT NULL"
        )
        described = ((pid, json.loads(text)) for pid, text in rows)
        return {(pid, facts["loader"]): facts for pid, facts in described if "loader" in facts}

    def _fetched(self, rank: int) -> dict[tuple[int, int], tuple[int, int, int]]:
        rows = self._spans.rows(
            "SELECT pid, CAST(json_extract(args, '$.loader') AS BIGINT) AS loader,"
            " coalesce(sum(value) FILTER (value >= 0), 0)::BIGINT, count(*) FILTER (value >= 0),"
            " count(*) FROM spans WHERE kind = 'phase' AND category = 'dataloader' AND name ="
            f" 'fetch' AND rank = {rank} GROUP BY ALL"
        )
        return {
            (pid, loader): (items, n_counted, n)
            for pid, loader, items, n_counted, n in rows
            if loader is not None
        }

    def batch_columns(self) -> Columns:
        """Return all records that are made once per batch."""
        return self._fetch(_OF_BATCHES)

    def cost_columns(self) -> Columns:
        """Return the costs of a batch other than its making; ``value`` is in nanoseconds of CPU
        time, bytes, or tensors."""
        return self._fetch(_OF_COSTS)

    def handover(self) -> dict[str, float]:
        """Return a dict from name to each cost of handing a batch over on the machine of the run;
        empty if they were not measured."""
        rows = self._spans.rows(
            f"SELECT name, median(value) FROM of_loader WHERE {_OF_COSTS} AND args IS NULL"
            " GROUP BY name"
        )
        return dict(rows)

    def sample_chunks(self, chunk: int = CHUNK) -> Iterator[Columns]:
        """Yield records of batches, samples and operations, in chunks by start, so that memory does
        not grow with the run."""
        for part in self._spans.ranges(chunk, _OF_SAMPLES):
            yield self._fetch(f"{_OF_SAMPLES} AND {within(*part)}")

    def _fetch(self, where: str) -> Columns:
        columns = (
            "start_ns, duration_ns, n.code AS name, a.code AS args, o.code AS thread,"
            " coalesce(value, -1) AS value"
        )
        return Columns(**self._spans.fetch(columns, where))

    def slowest(self, args: Array, most: int) -> list[tuple[int, int, float, float, str]]:
        """Return the samples that take longest, by the median of their times, as (index, n, median,
        longest, operation that takes most of the time).

        Times are in nanoseconds. The first sample of each worker is left out, because it includes
        imports and the opening of files.

        Args:
            args: Indices of the arguments in the loader's records.
        """
        if not len(args):
            return []
        codes = ", ".join(map(str, args.tolist()))
        of_source = (
            "coalesce(args, '{}') IN (SELECT text FROM of_loader_arguments WHERE code IN"
            f" ({codes}))"
        )
        return self._spans.rows(
            "WITH timed AS (SELECT value, duration_ns, row_number() OVER (PARTITION BY host, pid,"
            " tid ORDER BY start_ns) AS place FROM of_loader WHERE category = 'data' AND name ="
            f" 'item' AND value >= 0 AND {of_source}), samples AS (SELECT value, count(*) AS n,"
            " median(duration_ns) AS middle, max(duration_ns) AS longest FROM timed WHERE place >"
            f" 1 GROUP BY value ORDER BY middle DESC, value LIMIT {most}), spent AS (SELECT value,"
            " name, sum(duration_ns) AS ns FROM of_loader WHERE category = 'operation' AND value"
            f" IN (SELECT value FROM samples) AND {of_source} GROUP BY value, name), heaviest AS"
            " (SELECT value, arg_max(name, ns) AS operation FROM spent GROUP BY value) SELECT"
            " value, n, middle, longest, coalesce(operation, '') FROM samples LEFT JOIN heaviest"
            " USING (value) ORDER BY middle DESC, value"
        )


@dataclass(frozen=True)
class Loader:
    """A loader of one process."""

    pid: int  # the process that requests batches from the loader
    number: int  # number of the loader in this process
    # facts recorded by the steps instrument: ``dataset, batch_size, length, workers``; may be empty
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Loaders:
    """The loaders of a rank, and the loader to which each record belongs. Records come from the
    process that trains and from its workers."""

    all: Sequence[Loader]
    # by thread: index of the process to whose loaders the thread's records belong ("owner")
    owner: Array
    # by index of arguments: the loader's number in the owner; -1: no loader
    number: Array
    episode: Array  # by index of arguments: the iterator's number
    worker: Array  # by index of arguments: the worker's number; -1: the main process
    index: Mapping[tuple[int, int], int]  # by (owner, number): the loader's index in ``all``

    def of_each(self, columns: Columns) -> Array:
        """Return the loader of each record, as an index into ``all``; -1: none."""
        width = int(self.number.max(initial=0)) + 2
        n_owners = int(self.owner.max(initial=0)) + 1
        table = np.full((n_owners, width), NONE)
        for (owner, number), i in self.index.items():
            table[owner, number + 1] = i
        return table[self.owner[columns.thread], self.number[columns.args] + 1]


def read_rank(run: Run, rank: int) -> tuple[LoaderRecords, Columns, Loaders, BatchLifecycle] | None:
    """Return the records of a rank, the records of its batches, its loaders, and the life cycle of
    its batches; None if there are no records of batches."""
    records = LoaderRecords(run, rank)
    columns = records.batch_columns()
    if not len(columns):
        return None
    loaders = find_loaders(records, columns)
    return records, columns, loaders, follow_batches(records, loaders, columns)


def find_loaders(records: LoaderRecords, batches: Columns) -> Loaders:
    """Return the loaders of a rank, beginning with the process that requests most batches."""
    number, episode, worker = (
        np.array([int(arguments.get(key, NONE)) for arguments in records.arguments], np.int64)
        for key in ("loader", "episode", "worker")
    )
    mains = _main_processes(records, batches)
    owners = [mains.index(_owner(pid, mains, records.parents)) for _, pid, _ in records.threads]
    owner = np.array(owners, np.int64)
    pairs = np.unique(np.stack([owner[batches.thread], number[batches.args]]), axis=1)
    loaders: list[Loader] = []
    index: dict[tuple[int, int], int] = {}
    for main, loader in pairs.T.tolist():
        if loader >= 0:
            index[main, loader] = len(loaders)
            facts = records.iterated.get((mains[main], loader), {})
            loaders.append(Loader(mains[main], loader, facts))
    return Loaders(loaders, owner, number, episode, worker, index)


def _main_processes(records: LoaderRecords, batches: Columns) -> list[int]:
    """Return the pids of the processes that request batches; the one with most requests comes
    first."""
    is_request = np.array([category == "batch" for category, _ in records.names], bool)
    threads = batches.thread[is_request[batches.name]].tolist()
    requests = Counter(records.threads[thread][1] for thread in threads)
    if requests:
        return [pid for pid, _ in requests.most_common()]
    return sorted({pid for _, pid, _ in records.threads})[:1]


def _owner(pid: int, mains: Sequence[int], parents: Mapping[int, int]) -> int:
    """Return the requesting process that started a worker, directly or through other processes. If
    this is unknown (for a forkserver's child), return the first one."""
    ancestor: int | None = pid
    for _ in range(16):
        if ancestor in mains or ancestor is None:
            break
        ancestor = parents.get(ancestor)
    return ancestor if ancestor is not None and ancestor in mains else mains[0]


_POINTS = 60

# column: (category of the record, name of the record, field of the record)
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
    """Batches, one row for each loader, episode and number, as arrays of shape (n,). ``NONE``
    stands for values that were not recorded."""

    source: Array  # index of the loader
    episode: Array  # number of the iterator
    batch: Array  # the loader's number of the batch
    # the other columns by name, as in ``_COLUMNS``: times in nanoseconds of the host's clock;
    # ``idle_ns``, ``put_ns`` and ``pinned_ns`` are durations, ``cpu_ns`` is the CPU time of making
    # the batch
    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, column: str) -> Array:
        return self.columns[column]

    def select(self, selection: Array | slice) -> BatchLifecycle:
        """Return the batches at the given indices, or where the given mask is true."""
        columns = {name: values[selection] for name, values in self.columns.items()}
        return BatchLifecycle(
            self.source[selection], self.episode[selection], self.batch[selection], columns
        )

    def has(self, *columns: str) -> Array:
        """True for each batch that has all of the given columns."""
        return np.all([self[column] != NONE for column in columns], axis=0)

    def recorded(self, column: str) -> Array:
        """Return the values of a column, of the batches that have one."""
        values = self[column]
        return values[values != NONE]

    def with_all(self, *columns: str) -> BatchLifecycle:
        """Return the batches that have all of the given columns."""
        return self.select(self.has(*columns))

    def durations(self, from_column: str, to_column: str) -> Array:
        """Return the times in ns from one column to another, of the batches that have both."""
        return (self[to_column] - self[from_column])[self.has(from_column, to_column)]

    def episodes(self) -> Iterator[BatchLifecycle]:
        """Yield the batches of each iterator of one loader; the rows must be ordered by episode."""
        starts = np.flatnonzero(np.diff(self.episode, prepend=-2)).tolist()
        return (self.select(slice(low, high)) for low, high in pairwise([*starts, len(self)]))

    @property
    def by_worker(self) -> Array:
        """True for each batch that a worker made."""
        return self["worker"] >= 0


def follow_batches(records: LoaderRecords, loaders: Loaders, columns: Columns) -> BatchLifecycle:
    """Return the batches of a rank, given the records from ``LoaderRecords.batch_columns``."""
    codes = {pair: code for code, pair in enumerate(records.names)}
    is_cpu = columns.name == codes.get(("data", "cpu"), -2)
    cpu, columns = columns.select(is_cpu), columns.select(~is_cpu)
    source = loaders.of_each(columns)
    is_known = (source >= 0) & (columns.value >= 0)
    columns, source = columns.select(is_known), source[is_known]
    keys = np.stack([source, loaders.episode[columns.args], columns.value])
    (batch_source, episode, batch), row = np.unique(keys, axis=1, return_inverse=True)
    row = row.reshape(-1)
    ready = [int(arguments.get("ready") is True) for arguments in records.arguments]
    failed = [int("error" in arguments) for arguments in records.arguments]
    values = {
        "start_ns": columns.start_ns,
        "duration_ns": columns.duration_ns,
        "end_ns": columns.end_ns,
        "thread": columns.thread,
        "worker": loaders.worker[columns.args],
        "ready": np.array(ready, np.int64)[columns.args],
        "failed": np.array(failed, np.int64)[columns.args],
    }
    batch_columns = {}
    for name, (category, record, key) in _COLUMNS.items():
        is_named = columns.name == codes.get((category, record), -2)
        column = np.full(len(batch), NONE)
        column[row[is_named]] = values[key][is_named]
        batch_columns[name] = column
    batch_columns["cpu_ns"] = _values_at(cpu, batch_columns["thread"], batch_columns["end_ns"])
    return BatchLifecycle(batch_source, episode, batch, batch_columns)


def _values_at(marks: Columns, thread: Array, time_ns: Array) -> Array:
    """Return the value of the mark that each thread made at the given time; ``NONE`` if none."""
    values = np.full(len(thread), NONE)
    for number in np.unique(thread[thread != NONE]).tolist():
        in_thread = marks.select(marks.thread == number)
        rows = np.flatnonzero(thread == number)
        times, first = np.unique(in_thread.start_ns, return_index=True)
        if len(times):
            place = np.minimum(np.searchsorted(times, time_ns[rows]), len(times) - 1)
            is_match = times[place] == time_ns[rows]
            mark = first[place[is_match]]
            values[rows[is_match]] = in_thread.value[mark]
    return values


def measure_queue(batches: BatchLifecycle) -> dict[str, Any] | None:
    """Measure the queue of a loader: the batches that are made but not yet consumed. If it is
    empty, the training waits; if it is full, the workers wait.

    Returns:
        The ``queue`` part of a summary. ``mean`` and ``max`` are numbers of batches in the queue,
        during the time in which the loader was iterated over; ``empty_share`` is the share of this
        time with an empty queue. ``under_way`` is the largest number of batches that were requested
        from workers and not consumed. ``depth`` is the mean number of batches in the queue in each
        interval of ``every_s`` seconds, from the first batch to the last. None if no batch was both
        made and consumed.
    """
    batches = batches.with_all("end_ns", "received_ns", "requested_ns")
    if not len(batches):
        return None
    made_ns, received_ns = np.sort(batches["end_ns"]), np.sort(batches["received_ns"])
    time, depth = _depth(made_ns, received_ns)
    lasting = np.diff(time, append=time[-1])
    # total time of the iterators, each from its first request to its last batch, in ns
    iterated = 0.0
    for episode in batches.episodes():
        iterated += float(episode["received_ns"].max() - episode["requested_ns"].min())
    mean, empty_share = 0.0, 0.0
    if iterated:
        mean = float((depth * lasting).sum()) / iterated
        not_empty = float(lasting[depth > 0].sum())
        empty_share = min(max(1 - not_empty / iterated, 0.0), 1.0)
    first, last = int(batches["begin_ns"].min()), int(received_ns[-1])
    interval = (last - first) / _POINTS
    points = np.linspace(first, last, _POINTS + 1)
    in_queue_ns = _passed_ns(made_ns, points) - _passed_ns(received_ns, points)
    means = np.diff(in_queue_ns) / max(interval, 1.0)
    # A batch is under way until it has arrived and is requested, not until the request returns: the
    # request puts the next index on a queue before it returns its batch.
    got_ns = np.maximum(batches["arrived_ns"], batches["requested_ns"])
    under_way = most_at_once(batches.recorded("queued_ns"), got_ns)
    return {
        "mean": mean,
        "max": int(depth.max(initial=0)),
        "empty_share": empty_share,
        "under_way": under_way,
        "every_s": interval * 1e-9,
        "depth": [max(round(value, 3), 0.0) for value in means.tolist()],
    }


def most_at_once(come_ns: Array, leave_ns: Array) -> int:
    """Return the largest number of items present at once, given when each came and left. At equal
    times, leaving counts first."""
    if not len(come_ns):
        return 0
    _, depth = _depth(leave_ns, come_ns, -1)
    return int(depth.max(initial=0))


def _depth(first_ns: Array, second_ns: Array, sign: int = 1) -> tuple[Array, Array]:
    """Return the times at which something came or left, and the number present from then on. At
    equal times, the times in ``first_ns`` count first."""
    time = np.concatenate([first_ns, second_ns])
    change = np.repeat([sign, -sign], [len(first_ns), len(second_ns)])
    order = np.argsort(time, kind="stable")
    return time[order], np.cumsum(change[order])


def _passed_ns(come_ns: Array, points: Array) -> Array:
    """Return, for each point in time, the sum of the times since each arrival before it, in ns."""
    n = np.searchsorted(come_ns, points, side="right")
    since_first = (come_ns - come_ns[0]).astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(since_first)])
    return n * (points - come_ns[0]) - sums[n]
