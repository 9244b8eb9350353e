"""Which loader each record belongs to: a loader's records come from the process that trains and from its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.loader.analysis.records import Columns, Recorded


@dataclass(frozen=True)
class Source:
    """A loader of one process.

    Attributes:
        pid: Of the process that asks it for batches.
        loader: Its number there.
        known: What the steps instrument knows of it: ``dataset, batch_size, length, workers``; may be empty.
    """

    pid: int
    loader: int
    known: Mapping[str, Any]


@dataclass(frozen=True)
class Sources:
    """The loaders of a rank.

    Attributes:
        all: Each.
        owner: By thread, the process whose loaders its records are of, as an index.
        loader: By set of arguments, the loader's number there; -1 for none.
        episode: By set of arguments, the iterator's number.
        worker: By set of arguments; -1 in the main process.
        number: (owner, loader) to an index into ``all``.
    """

    all: Sequence[Source]
    owner: Array
    loader: Array
    episode: Array
    worker: Array
    number: Mapping[tuple[int, int], int]

    def of(self, columns: Columns) -> Array:
        """The loader of each record, an index into ``all``."""
        width = int(self.loader.max(initial=0)) + 2
        pairs = self.owner[columns.thread] * width + self.loader[columns.args] + 1
        numbers = np.full((int(self.owner.max(initial=0)) + 1) * width, -1)
        for (owner, loader), number in self.number.items():
            numbers[owner * width + loader + 1] = number
        return numbers[pairs]

    def of_args(self, source: int) -> Array:
        """By set of arguments: this loader if the arguments are of one of its number, else -1."""
        return np.where(self.loader == self.all[source].loader, source, -1)


def sources(recorded: Recorded, batches: Columns) -> Sources:
    """The loaders of a rank, those of the process that asks for most batches first."""
    arguments = recorded.arguments
    loader, episode, worker = (np.array([int(a.get(key, -1)) for a in arguments], np.int64) for key in ("loader", "episode", "worker"))
    is_main = np.array([category == "batch" for category, _ in recorded.names], bool)
    asked, counts = np.unique(batches.thread[is_main[batches.name]], return_counts=True)
    weight: dict[int, int] = {}
    for thread, n in zip(asked.tolist(), counts.tolist(), strict=True):
        pid = recorded.threads[thread][1]
        weight[pid] = weight.get(pid, 0) + n
    mains = sorted(weight, key=lambda pid: -weight[pid]) or sorted({pid for _, pid, _ in recorded.threads})[:1]
    owner = np.array([mains.index(_owner(pid, mains, recorded.parents)) for _, pid, _ in recorded.threads], np.int64)
    pairs = np.unique(np.stack([owner[batches.thread], loader[batches.args]]), axis=1).T.tolist() if len(batches) else []
    found = [(o, n) for o, n in pairs if n >= 0]
    all_ = [Source(mains[o], n, recorded.made.get((mains[o], n), {})) for o, n in found]
    return Sources(all_, owner, loader, episode, worker, {pair: i for i, pair in enumerate(found)})


def _owner(pid: int, mains: Sequence[int], parents: Mapping[int, int]) -> int:
    """The process that started a worker, itself or through others; the first one if that is not known (a forkserver's child)."""
    at: int | None = pid
    for _ in range(16):
        if at is None or at in mains:
            break
        at = parents.get(at)
    return at if at is not None and at in mains else mains[0]
