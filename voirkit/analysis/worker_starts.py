"""Worker processes of loaders that are started and stopped again and again, and how much of that
would be saved if they stayed.

The start is what making an iterator takes until its workers get their first indices, and what the
first batch is waited for until they can load (their imports, ``worker_init_fn``).
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
    """One iterator with workers: what it took to start them, to stop them, and its requests for
    batches; nanoseconds."""

    workers: int
    start_ns: int = 0
    stop_ns: int = 0
    # (start, end) of each, ascending
    fetches_ns: list[tuple[int, int]] = field(default_factory=list)

    def first_waits_ns(self) -> int:
        """The waits for the first batch of each worker."""
        return sum(end - start for start, end in self.fetches_ns[: self.workers])

    def later_intervals_ns(self) -> list[int]:
        """From each later batch to the next."""
        ends = [end for _, end in self.fetches_ns[self.workers :]]
        return [end - before for before, end in pairwise(ends)]


def restarts(records: Records, rows: Array, trained: Collection[int]) -> list[dict[str, Any]]:
    """Loaders whose workers were started more than once.

    Args:
        records: Of all ranks.
        rows: Indices of those of one training, ascending by start.
        trained: The iterators that training used.

    Returns:
        By loader, the one with most to save first: ``loader``, its number; ``workers``; ``starts``;
        ``trains``, whether its batches were trained on; ``again_s``, what all starts but the first
        and all stops but the last took; ``again_waited_s``, that without the stops.
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
    """What all starts but the first took.

    Of the waits for the first batches what workers that stay would need for them too is none of it.
    Each of n workers loads every n-th batch: it takes no longer for one than n batches are apart
    later on. Where there are no later ones nothing is known of these waits.
    """
    intervals = [interval for episode in episodes for interval in episode.later_intervals_ns()]
    usual_ns = median(intervals) if intervals else NEVER
    waits = [
        max(episode.first_waits_ns() - int(usual_ns) * episode.workers, 0)
        for episode in episodes[1:]
    ]
    return sum(waits) + sum(episode.start_ns for episode in episodes[1:])


def _episodes(records: Records, rows: Array) -> dict[int, list[_Episode]]:
    """Iterators with workers, in the order in which they were made, by number of their loader."""
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
