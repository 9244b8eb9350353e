"""Restarts of data loader workers, and the time that would be saved if the workers were kept.

Starting workers takes time in two places: making an iterator takes longer, until its workers get
their first indices; and the wait for the first batch is longer, until the workers can load (their
imports, ``worker_init_fn``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.work_times import NEVER

if TYPE_CHECKING:
    from voirkit.analysis.phases import Records

START, STOP = ("dataloader", "start_workers"), ("dataloader", "stop_workers")
_FETCH = ("dataloader", "fetch")
_NS = 1e-9


@dataclass
class _Episode:
    """One iterator with workers: the times to start and to stop its workers, and its requests for
    batches; nanoseconds."""

    workers: int
    start_ns: int = 0
    stop_ns: int = 0
    # (start, end) of each request for a batch, ascending
    fetches_ns: list[tuple[int, int]] = field(default_factory=list)

    def first_waits_ns(self) -> int:
        """Return the total wait for the first batch of each worker."""
        return sum(end - start for start, end in self.fetches_ns[: self.workers])

    def later_intervals_ns(self) -> list[int]:
        """Return the intervals between the arrivals of all later batches."""
        ends = [end for _, end in self.fetches_ns[self.workers :]]
        return [end - before for before, end in pairwise(ends)]


def restarts(records: Records, rows: Array, trained: Collection[int]) -> list[dict[str, Any]]:
    """Return the loaders whose workers were started more than once.

    Args:
        records: The phases of all ranks.
        rows: Indices of the records of one training, ascending by start.
        trained: The iterators that training used.

    Returns:
        One dictionary per loader, the largest ``again_s`` first. ``loader``: its number;
        ``workers``: the number of workers; ``starts``: how often they were started; ``trains``:
        True if its batches were trained on; ``again_s``: the time of all starts but the first and
        all stops but the last; ``again_waited_s``: the same without the stops.
    """
    by_loader = _episodes(records, rows)
    episodes_of = _arguments(records, "episode")
    loaders = _arguments(records, "loader")
    training = {
        loader for loader, episode in zip(loaders, episodes_of, strict=True) if episode in trained
    }
    restarted = []
    for loader, episodes in by_loader.items():
        if len(episodes) > 1:
            starts_ns = _starts_again_ns(episodes)
            stops_ns = sum(episode.stop_ns for episode in episodes[:-1])
            row = {
                "loader": loader,
                "workers": episodes[-1].workers,
                "starts": len(episodes),
                "trains": loader in training,
                "again_s": (starts_ns + stops_ns) * _NS,
                "again_waited_s": starts_ns * _NS,
            }
            restarted.append(row)
    return sorted(restarted, key=lambda row: -row["again_s"])


def _starts_again_ns(episodes: list[_Episode]) -> int:
    """Return the time of all starts but the first.

    A start includes the waits for the first batches of its n workers, less the time that kept
    workers would need to load these batches. Each worker loads every n-th batch, so loading one
    batch takes at most n usual intervals between later batches. Without later batches this time is
    unknown, and the waits count as 0.
    """
    intervals = [interval for episode in episodes for interval in episode.later_intervals_ns()]
    usual_ns = median(intervals) if intervals else NEVER
    waits = [
        max(episode.first_waits_ns() - int(usual_ns) * episode.workers, 0)
        for episode in episodes[1:]
    ]
    return sum(waits) + sum(episode.start_ns for episode in episodes[1:])


def _episodes(records: Records, rows: Array) -> dict[int, list[_Episode]]:
    """Return the iterators with workers by the number of their loader, in the order in which they
    were made."""
    numbers = [i for i, name in enumerate(records.names) if name in (START, STOP, _FETCH)]
    by_loader: dict[int, list[_Episode]] = {}
    for i in rows[np.isin(records.name[rows], numbers)].tolist():
        name, arguments = records.names[records.name[i]], records.arguments[records.args[i]]
        start_ns, duration_ns = int(records.start_ns[i]), int(records.duration_ns[i])
        loader = arguments.get("loader")
        if loader is None:
            continue
        if name == START:
            episode = _Episode(arguments["processes"], duration_ns)
            by_loader.setdefault(loader, []).append(episode)
        elif loader in by_loader:
            episode = by_loader[loader][-1]
            if name == STOP:
                episode.stop_ns += duration_ns
            else:
                episode.fetches_ns.append((start_ns, start_ns + duration_ns))
    return by_loader


def _arguments(records: Records, key: str) -> list[Any]:
    return [arguments.get(key) for arguments in records.arguments]
