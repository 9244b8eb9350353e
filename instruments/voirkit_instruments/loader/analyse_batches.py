"""The life cycle of each batch: queued, made by a worker, put, arrived, requested, consumed; and how many were ready, over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.loader.analyse_records import NONE, Columns, LoaderRecords, Loaders

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
    """Batches by loader, episode and number, a row each; arrays of shape (n,), ``NONE`` where nothing was recorded.

    Attributes:
        source: Index of the loader.
        episode: Number of the iterator.
        batch: The loader's number of the batch.
        columns: The rest by name, as in ``_COLUMNS``: times in nanoseconds of the host's clock; ``idle_ns``, ``put_ns`` and ``pinned_ns``
            are durations, ``cpu_ns`` the processor's time of making the batch.
    """

    source: Array
    episode: Array
    batch: Array
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
    iterated = _iterated_ns(batches)
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


def _iterated_ns(batches: BatchLifecycle) -> float:
    """From the first request of each iterator to the last batch that came of it."""
    return float(sum(one["received_ns"].max() - one["requested_ns"].min() for one in batches.episodes()))
