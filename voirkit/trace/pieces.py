"""Segments as columns, a piece at a time: for what must not hold a whole recording in memory.

Files are only read, never mapped, like in ``reader``; what their lines and records are is known there and in ``layout``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from voirkit.trace import layout
from voirkit.trace.reader import _RECORD, Array, Files, Name, Process, _dropped, _Tables

MOST = 1 << 22  # records of a piece: 128 MiB raw, twice that as columns


class Source(NamedTuple):
    """What the files of one process say beside its records.

    Attributes:
        threads: Names of threads by native id.
        dropped: Records that were not written, by ``category.name``.
        is_whole: Whether its names have a header; if not, of the process only what its files are called is known, and no clock.
        unknown: How many records were left out, as what they stand for is not known.
    """

    process: Process
    threads: dict[int, str]
    dropped: dict[str, int]
    is_whole: bool
    unknown: int = 0


class Piece(NamedTuple):
    """Some records.

    Attributes:
        columns: Arrays of equal length: ``start_ns, duration_ns, value, name, args, process, tid``.
        names: What ``name`` counts.
        arguments: JSON of the arguments behind the numbers in ``args``; a number that is not there stands for none.
    """

    columns: dict[str, Array]
    names: list[Name]
    arguments: dict[int, bytes]


class Pieces:
    """The records of some processes; to be iterated over once.

    Args:
        files: Those of the processes.
        most: How many records a piece may have.

    Attributes:
        sources: What is known of each process by now; ``process`` in the pieces counts them.
        read: Where in each segment the last record ends that was read, in records, by path.
        damaged: Segments that are none: something else stands where they should begin.
    """

    def __init__(self, files: Sequence[Files], most: int = MOST) -> None:
        self._files, self._most = files, most
        self.sources: list[Source] = []
        self.read: dict[str, int] = {}
        self.damaged: list[str] = []

    def __iter__(self) -> Iterator[Piece]:
        codes: dict[Name, int] = {}
        arguments: dict[int, bytes] = {}
        waiting: list[dict[str, Array]] = []
        count = base = 0
        for number, own in enumerate(self._files):
            # How far the records go is seen first: the lines that they need are there by then.
            extents = [(path, _extent(path)) for path in own.segments]
            self.damaged += [path for path, extent in extents if extent is None]
            tables = _Tables(own.names)
            self.sources.append(_source(own, tables))
            name_of = _codes(tables.names, codes)
            for path, extent in extents:
                self.read[path], at, tid = 0, 0, -1
                while extent is not None and at < extent:
                    raw = _records(path, at, min(self._most - count, extent - at))
                    if not len(raw):
                        break  # it has been cut to size
                    written = np.flatnonzero(raw["name"])
                    if len(written):
                        self.read[path] = at + int(written[-1]) + 1
                    at += len(raw)
                    part, tid = self._decoded(raw, tid, name_of)
                    part["process"] = np.full(len(part["tid"]), number, np.uint32)
                    for local in _numbers(part["args"], max(tables.arguments, default=0)):
                        if local in tables.arguments:
                            arguments[base + local] = tables.arguments[local]
                    part["args"] += base
                    waiting.append(part)
                    count += len(part["tid"])
                    if count >= self._most:
                        yield Piece(_joined(waiting), list(codes), arguments)
                        waiting, arguments, count = [], {}, 0
            base += max(tables.arguments, default=0) + 1
        if count:
            yield Piece(_joined(waiting), list(codes), arguments)

    def _decoded(self, raw: Array, tid: int, name_of: Array) -> tuple[dict[str, Array], int]:
        """The columns of records of one segment, which begin with those of a thread, and the thread of those behind them."""
        name = raw["name"]
        markers = np.flatnonzero(name == layout.THREAD)
        owners = np.concatenate(([tid], raw["value"][markers]))
        tids = np.repeat(owners, np.diff(np.concatenate(([0], markers, [len(raw)]))))
        code = name_of[np.minimum(name, len(name_of) - 1)]
        written = (name != 0) & (name != layout.THREAD)
        kept = written & (tids >= 0) & (code >= 0)
        unknown = int(written.sum() - kept.sum())
        if unknown:
            self.sources[-1] = self.sources[-1]._replace(unknown=self.sources[-1].unknown + unknown)
        if not kept.all():
            raw, tids, code = raw[kept], tids[kept], code[kept]
        columns = {key: raw[key] for key in ("start_ns", "duration_ns", "value")}
        return columns | {"name": code.astype(np.uint32), "args": raw["args"].astype(np.int64), "tid": tids}, int(owners[-1])


def has_grown(path: str, read: int) -> bool:
    """Whether a segment has records behind those that have been read."""
    following = _records(path, read, layout.GRANULE // layout.RECORD_BYTES)
    return bool(following["name"].any())


def records_in(path: str) -> int:
    """How many records a segment has; 0 if it is none."""
    name = _records(path, 0, _extent(path) or 0)["name"]
    return int(np.count_nonzero((name != 0) & (name != layout.THREAD)))


def _extent(path: str) -> int | None:
    """How many records a segment has room for; None if it is no segment."""
    try:
        with open(path, "rb", buffering=0) as file:
            header = file.read(layout.HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return 0  # it has been put to rest meanwhile, or cannot be read
    if len(header) < layout.HEADER_BYTES or not any(header):
        return 0  # whoever made it was killed before it was begun
    return (size - layout.HEADER_BYTES) // layout.RECORD_BYTES if header.startswith(layout.MAGIC) else None


def _records(path: str, first: int, count: int) -> Array:
    try:
        return np.fromfile(path, _RECORD, count, offset=layout.HEADER_BYTES + first * layout.RECORD_BYTES)
    except FileNotFoundError:
        return np.empty(0, _RECORD)


def _source(own: Files, tables: _Tables) -> Source:
    process = tables.process(own.stem)
    is_whole = all(
        isinstance(value, kind)
        for value, kind in zip(process[:8], (int, int, int, str, str, int, int, list), strict=True)  # types of its fields
    )
    if not (tables.header and is_whole):
        host, rank, pid = of_stem(own.stem)
        process = Process(pid, 0, rank, host, "", 0, 0, [], own.stem)
    dropped: dict[str, int] = {}
    for local, count in _dropped(own.dropped) if own.dropped is not None else ():
        found = tables.names.get(local)
        label = f"{found.category}.{found.name}" if found is not None else "(names beyond what is kept)"
        dropped[label] = dropped.get(label, 0) + count
    return Source(process, tables.threads, dropped, is_whole)


def of_stem(stem: str) -> tuple[str, int, int]:
    """(host, rank, pid) from the name of files; 0 where it has other parts."""
    host, _, pid = stem.rpartition("-")
    host, _, rank = host.rpartition("-r")
    pid = pid.partition(".")[0]
    return host or stem, int(rank) if rank.isdigit() else 0, int(pid) if pid.isdigit() else 0


def _codes(names: dict[int, Name], codes: dict[Name, int]) -> Array:
    """The code of each number of a process's names; -1 where there is none."""
    found = np.full(max(names, default=0) + 2, -1, np.int64)  # the last is that of all numbers beyond
    for local, name in names.items():
        found[local] = codes.setdefault(name, len(codes))
    return found


def _numbers(args: Array, last: int) -> list[int]:
    """The numbers from 1 to the last that occur."""
    seen = np.zeros(last + 2, bool)
    seen[np.minimum(args, last + 1)] = True
    found: list[int] = np.flatnonzero(seen[1 : last + 1]).tolist()
    return [number + 1 for number in found]


def _joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    return parts[0] if len(parts) == 1 else {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
