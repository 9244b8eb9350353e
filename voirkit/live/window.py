"""The last phases of a run that goes on, and how often each was recorded since it began: what a live view is computed from.

Bounded in memory and in work, whatever the run's length and speed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.phase_records import KIND, Records
from voirkit.trace.following import Followed, Following, Fresh

FEWEST_STEPS = 6  # among the records that are kept: a step may have thousands of phases
AT_MOST = 16  # times as many records as wanted, however few steps those are
_STEPS = {("dataloader", "fetch"), ("compute", "step")}
_COUNTED = {("dataloader", "iter"), *_STEPS}


class Counter(NamedTuple):
    """The last value of a counter; ``at_ns`` is of the clock of its host."""

    value: float
    units: str
    at_ns: int
    rank: int


class Counts:
    """How much of what a process has done since it began.

    Attributes:
        steps: Steps of each optimizer.
        epochs: How often each loader was iterated over.
        batches: How many batches came, by loader and episode (an iterator's number).
        loaders: What is known of each loader: ``length``, ``workers``, ``dataset`` ...
    """

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self._known: dict[int, Mapping[str, Any]] = {}
        self.steps: dict[int, int] = {}
        self.epochs: dict[int | None, int] = {}
        self.batches: dict[tuple[int | None, int], int] = {}
        self.loaders: dict[int | None, Mapping[str, Any]] = {}

    def add(self, name: str, arguments: int, n: int) -> None:
        """So many more records with this name and these arguments."""
        known = self._known.get(arguments)
        if known is None:
            known = self._known[arguments] = arguments_of(self._followed.tables.arguments.get(arguments, b"{}"))
        if name == "step":
            which = known.get("which", 0)
            self.steps[which] = self.steps.get(which, 0) + n
            return
        loader = known.get("loader")
        if name == "iter":
            self.epochs[loader] = self.epochs.get(loader, 0) + n
            self.loaders[loader] = known
        elif name == "fetch":
            episode = loader, known.get("episode", 0)
            self.batches[episode] = self.batches.get(episode, 0) + n


class _Part(NamedTuple):
    followed: Followed
    records: Array
    tid: Array
    steps: int


class _Codes:
    """What the numbers of one process's names are for a window."""

    def __init__(self) -> None:
        self.known = 0
        self.is_phase = self.is_counted = self.is_counter = self.is_step = np.zeros(1, bool)

    def update(self, followed: Followed) -> None:
        names = followed.tables.names
        if len(names) == self.known:
            return
        self.known = len(names)
        shape = max(names, default=0) + 2  # the last is that of all numbers beyond
        self.is_phase, self.is_counted, self.is_counter, self.is_step = (np.zeros(shape, bool) for _ in range(4))
        for number, name in names.items():
            self.is_phase[number] = name.kind == KIND
            self.is_counter[number] = name.kind == "counter"
            self.is_counted[number] = name.kind == KIND and (name.category, name.name) in _COUNTED
            self.is_step[number] = name.kind == KIND and (name.category, name.name) in _STEPS


class Window:
    """The last phases of all processes that are followed.

    Args:
        following: Where the records come from.
        most: How many records of phases are kept; more only where they hold few steps.

    Attributes:
        counts: How many requests and optimizer steps there were, by process.
        counters: The last value of each counter, by rank, category and name.
        last_ns: When the last record ended, by process, on its host's clock.
    """

    def __init__(self, following: Following, most: int) -> None:
        self._following, self._most = following, most
        self._parts: deque[_Part] = deque()
        self._kept = self._steps = 0
        self._codes: dict[str, _Codes] = {}
        self.counts: dict[str, Counts] = {}
        self.counters: dict[tuple[int, str, str], Counter] = {}
        self.last_ns: dict[str, int] = {}

    def look(self) -> int:
        """Take in what has been recorded since the last look; how many records there were.

        Raises:
            OSError: The folder can not be read.
        """
        n = 0
        for fresh in self._following.look():
            n += len(fresh.records)
            self._take(fresh)
        while len(self._parts) > 1 and self._is_spare(self._parts[0]):
            gone = self._parts.popleft()
            self._kept -= len(gone.records)
            self._steps -= gone.steps
        return n

    def _is_spare(self, part: _Part) -> bool:
        left = self._kept - len(part.records)
        return left >= AT_MOST * self._most or (left >= self._most and self._steps - part.steps >= FEWEST_STEPS)

    def _take(self, fresh: Fresh) -> None:
        followed, records = fresh.followed, fresh.records
        codes = self._codes.setdefault(followed.stem, _Codes())
        codes.update(followed)
        name = np.minimum(records["name"], len(codes.is_phase) - 1)
        self._count(followed, records, codes.is_counted[name])
        if fresh.is_past:
            return
        self._look_at_counters(followed, records, codes.is_counter[name])
        self.last_ns[followed.stem] = max(int(records["start_ns"][-1] + records["duration_ns"][-1]), self.last_ns.get(followed.stem, 0))
        phases = codes.is_phase[name]
        if not phases.all():
            records, tid, name = records[phases], fresh.tid[phases], name[phases]
        else:
            tid = fresh.tid
        if not len(records):
            return
        # Copies: the records are parts of larger buffers, which would be kept. In pieces, so that the window can move on by little.
        piece = max(self._most // 4, 1)
        for at in range(max(len(records) - AT_MOST * self._most, 0), len(records), piece):
            to = slice(at, at + piece)
            steps = int(codes.is_step[name[to]].sum())
            self._parts.append(_Part(followed, records[to].copy(), tid[to], steps))
            self._kept += len(self._parts[-1].records)
            self._steps += steps

    def _count(self, followed: Followed, records: Array, counted: Array) -> None:
        chosen = records[counted]
        if not len(chosen):
            return
        counts = self.counts.setdefault(followed.stem, Counts(followed))
        keys, numbers = np.unique(chosen["name"].astype(np.int64) << 32 | chosen["args"], return_counts=True)
        for key, n in zip(keys.tolist(), numbers.tolist(), strict=True):
            counts.add(followed.tables.names[key >> 32].name, key & 0xFFFFFFFF, n)

    def _look_at_counters(self, followed: Followed, records: Array, chosen: Array) -> None:
        rank = followed.process.rank
        for record in records[chosen][-64:].tolist():  # a sampler writes a handful at a time
            start, _, value, _, name = record
            found = followed.tables.names[name]
            number = float(np.int64(value).view(np.float64))
            self.counters[rank, found.category, found.name] = Counter(number, found.value_key or "", start, rank)

    def records(self) -> Records:
        """What is kept, of all processes."""
        names: dict[tuple[str, str], int] = {}
        arguments: dict[bytes, int] = {b"{}": 0}
        processes: dict[str, int] = {}
        known: list[tuple[int, str, int]] = []
        columns: dict[str, list[Array]] = {key: [] for key in ("start_ns", "duration_ns", "name", "args", "value", "process", "tid")}
        for part in self._parts:
            process = part.followed.process
            if part.followed.stem not in processes:
                processes[part.followed.stem] = len(known)
                known.append((process.rank, process.host, process.pid))
            for key in ("start_ns", "duration_ns", "value"):
                columns[key].append(part.records[key])
            columns["tid"].append(part.tid)
            columns["process"].append(np.full(len(part.tid), processes[part.followed.stem]))
            columns["name"].append(_renumbered(part.records["name"], lambda n, p=part: _name(p.followed, n), names))
            columns["args"].append(
                _renumbered(part.records["args"], lambda n, p=part: p.followed.tables.arguments.get(n, b"{}"), arguments)
            )
        joined: dict[str, Any] = {key: np.concatenate(parts) if parts else np.zeros(0, np.int64) for key, parts in columns.items()}
        return Records(**joined, names=list(names), arguments=[arguments_of(text) for text in arguments], processes=known)

    def is_cut(self) -> bool:
        """Whether there was more than what is kept."""
        return self._kept >= self._most


def _name(followed: Followed, number: int) -> tuple[str, str]:
    found = followed.tables.names[number]
    return found.category, found.name


def _renumbered(local: Array, what: Any, codes: dict[Any, int]) -> Array:
    """Numbers of one process as those of all."""
    numbers, at = np.unique(local, return_inverse=True)
    return np.array([codes.setdefault(what(n), len(codes)) for n in numbers.tolist()], np.int64)[at]


def arguments_of(text: bytes) -> Mapping[str, Any]:
    """Arguments from their JSON; none of what is damaged."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
