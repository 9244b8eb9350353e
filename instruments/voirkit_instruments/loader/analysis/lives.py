"""The life of each batch: queued, made by a worker, put, arrived, asked for, consumed. One row a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.loader.analysis.records import Columns, Recorded
from voirkit_instruments.loader.analysis.sources import Sources

NONE = -1  # of a time: it was not recorded

# column: (category, name, what of the record)
_TIMES = {
    "queued_ns": ("batch", "queued", "start_ns"),
    "sent_to": ("batch", "queued", "worker"),
    "begun_ns": ("data", "preprocess", "start_ns"),
    "ended_ns": ("data", "preprocess", "end_ns"),
    "worker": ("data", "preprocess", "worker"),
    "thread": ("data", "preprocess", "thread"),
    "idle_ns": ("worker", "idle", "duration_ns"),
    "put_ns": ("worker", "put", "duration_ns"),
    "arrived_ns": ("batch", "arrived", "start_ns"),
    "asked_ns": ("batch", "wait", "start_ns"),
    "came_ns": ("batch", "wait", "end_ns"),
    "ready": ("batch", "wait", "ready"),
    "pinned_ns": ("batch", "pin", "duration_ns"),
    "consumed_ns": ("batch", "consumed", "start_ns"),
    "failed": ("batch", "consumed", "failed"),
}


@dataclass(frozen=True)
class Lives:
    """Batches by loader, episode and number; arrays of shape (n,), ``NONE`` where nothing was recorded.

    Attributes:
        source: Index of the loader.
        episode: Number of the iterator.
        batch: The loader's number of the batch.
        columns: The rest by name, as in ``_TIMES``: times in nanoseconds of the host's clock, ``..._ns`` of idle, put and pin durations.
            ``cpu_ns`` is the processor's time of making the batch.
    """

    source: Array
    episode: Array
    batch: Array
    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, column: str) -> Array:
        return self.columns[column]

    def take(self, chosen: Array) -> Lives:
        """Those of these indices, or where a mask is true."""
        return Lives(self.source[chosen], self.episode[chosen], self.batch[chosen], {k: v[chosen] for k, v in self.columns.items()})

    def durations(self, begun: str, ended: str) -> Array:
        """From one time to another, of the batches that have both."""
        both = (self[begun] != NONE) & (self[ended] != NONE)
        return (self[ended] - self[begun])[both]


def lives(recorded: Recorded, sources: Sources, found: Columns) -> Lives:
    """The batches of a rank."""
    codes = {pair: code for code, pair in enumerate(recorded.names)}
    cpu = codes.get(("data", "cpu"), -2)
    marks, found = found.take(found.name == cpu), found.take(found.name != cpu)
    source, episode = sources.of(found), sources.episode[found.args]
    known = (source >= 0) & (found.value >= 0)
    keys = np.stack([source[known], episode[known], found.value[known]])
    unique, rows = np.unique(keys, axis=1, return_inverse=True)
    row = np.full(len(found), NONE)
    row[known] = rows.reshape(-1)
    whats = {
        "start_ns": found.start_ns,
        "duration_ns": found.duration_ns,
        "end_ns": found.end_ns,
        "thread": found.thread,
        "worker": sources.worker[found.args],
        "ready": np.array([int(a.get("ready") is True) for a in recorded.arguments], np.int64)[found.args],
        "failed": np.array([int("error" in a) for a in recorded.arguments], np.int64)[found.args],
    }
    columns = {}
    for column, (category, name, what) in _TIMES.items():
        values = np.full(unique.shape[1], NONE)
        chosen = (found.name == codes.get((category, name), -2)) & (row != NONE)
        values[row[chosen]] = whats[what][chosen]
        columns[column] = values
    columns["cpu_ns"] = _at_the_ends(marks, columns["thread"], columns["ended_ns"])
    return Lives(unique[0], unique[1], unique[2], columns)


def _at_the_ends(marks: Columns, thread: Array, ended_ns: Array) -> Array:
    """The value of the mark that was made at each of these moments in each of these threads."""
    found = np.full(len(thread), NONE)
    if not len(marks) or not len(thread):
        return found
    order = np.lexsort((marks.start_ns, marks.thread))
    threads, times = marks.thread[order], marks.start_ns[order]
    for number in np.unique(thread[thread != NONE]).tolist():
        own, of = np.flatnonzero(threads == number), np.flatnonzero(thread == number)
        at = np.searchsorted(times[own], ended_ns[of])
        there = at < len(own)
        of, at = of[there], at[there]
        same = times[own[at]] == ended_ns[of]
        found[of[same]] = marks.value[order[own[at[same]]]]
    return found
