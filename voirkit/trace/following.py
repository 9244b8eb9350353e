"""Follows a recording while it is being written, and returns each new record once.

The cost does not depend on the length of the run so far. Files are read, never mapped, and nothing
is written. Files may disappear in the meantime, as they do at the end of a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from io import FileIO
from typing import NamedTuple

from voirkit.trace import layout
from voirkit.trace.reader import (
    Array,
    Files,
    Process,
    Tables,
    by_thread,
    count_written,
    files,
    read_records,
)

_IN_A_GRANULE = layout.GRANULE // layout.RECORD_BYTES
CHUNK = 1 << 18  # maximum number of records to read at a time (8 MiB)


class Fresh(NamedTuple):
    """New records of one segment of a process, in the order in which they were recorded."""

    followed: Followed  # the process, with the meaning of the ids in ``name`` and ``args``
    records: Array  # records of ``reader.RECORD_TYPE``, without those that only name a thread
    tid: Array  # native id of the thread of each record
    # whether the records are older than some returned earlier, so that they can only be counted
    is_past: bool


class Followed:
    """One process whose recording is followed.

    Args:
        own: The files of the process.
        wanted: Called with the JSON of arguments; returns whether to keep them. None keeps all. The
            ids of arguments that are not kept are missing in ``tables``.
    """

    def __init__(self, own: Files, wanted: Callable[[bytes], bool] | None) -> None:
        self.tables = Tables(own.names, wanted)  # names, arguments and threads read so far
        self.stem = own.stem
        # the process, as described by its header; without a header yet, its clocks are 0
        self.process: Process = self.tables.process(own.stem)
        self._segments: dict[str, _Segment] = {}

    def look(self, own: Files) -> None:
        """Read new lines of the process's ``.names`` file. Must be called after its segments have
        been read, so that all names of their records are in the file."""
        self.tables.more()
        self.process = self.tables.process(own.stem)  # its rank may have become known only now

    def segments(self, own: Files) -> list[_Segment]:
        """Return the process's segments, each with its reading position."""
        for path in own.segments:
            if path not in self._segments:
                self._segments[path] = _Segment(path)
        return [self._segments[path] for path in own.segments]


class Following:
    """Reader of new records from all processes that record into a run directory.

    Args:
        folder: The run directory, which need not exist yet.
        at_once: The number of records, per segment, to read from those that exist at the first
            ``look``: the newest ones. Later calls read the older ones in parts of this size, but
            of ``CHUNK`` records at least.
        pid: Follow only this process; None for all.
        wanted: Called with the JSON of arguments; returns whether to keep them. None keeps all.
    """

    def __init__(
        self,
        folder: str,
        at_once: int = CHUNK,
        pid: int | None = None,
        wanted: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._folder, self._at_once, self._wanted = folder, at_once, wanted
        self._pid = None if pid is None else str(pid)
        self.processes: dict[str, Followed] = {}  # by the stem of the process's files
        self.has_dropped = False  # whether a process has dropped records

    @property
    def is_behind(self) -> bool:
        """True if there are older records that have not been read yet."""
        return any(
            segment.gaps
            for followed in self.processes.values()
            for segment in followed._segments.values()
        )

    def look(self) -> list[Fresh]:
        """Return the records written since the last call, and some of the older records that were
        skipped at first. Raises OSError: the folder cannot be read."""
        fresh = []
        for process_files in files(self._folder):
            stem = process_files.stem
            if self._pid is not None and _pid_in(stem) != self._pid:
                continue
            self.has_dropped = self.has_dropped or process_files.dropped is not None
            followed = self.processes.get(stem)
            if followed is None:
                followed = Followed(process_files, self._wanted)
                self.processes[stem] = followed
            # Read the records first and the names second: a name is written before the records that
            # refer to it, so all names of these records are in the file by then.
            parts: list[_Part] = []
            for segment in followed.segments(process_files):
                parts += segment.more(self._at_once)
            followed.look(process_files)
            fresh += [
                Fresh(followed, records, tid, is_past)
                for records, tid, is_past in parts
                if len(records)
            ]
        return fresh


def _pid_in(stem: str) -> str:
    return stem.rpartition("-")[2].partition(".")[0]


# (records, thread id of each, whether they are from a range that was skipped earlier)
_Part = tuple[Array, Array, bool]


class _Segment:
    """A segment with its reading position."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0
        self._tid = -1
        # ranges of skipped records that are still to be read: (first, end, thread of the first)
        self.gaps: list[tuple[int, int, int]] = []

    def more(self, at_once: int) -> list[_Part]:
        """Return the records written since the last call, and some of those skipped earlier."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                if not self._at and not file.read(layout.HEADER_BYTES).startswith(layout.MAGIC):
                    return []  # the process has not written the header yet
                return self._more(file, at_once)
        except FileNotFoundError:  # compaction has removed the segment
            self.gaps = []
            return []

    def _more(self, file: FileIO, at_once: int) -> list[_Part]:
        room = (os.fstat(file.fileno()).st_size - layout.HEADER_BYTES) // layout.RECORD_BYTES
        parts = [self._past(file, at_once)] if self.gaps else []
        if room - self._at > at_once + layout.LARGEST_WINDOW // layout.RECORD_BYTES:
            end = _end(file, self._at, room)
            if end - self._at > at_once:
                self._jump(file, end - at_once)
        # number of records to read at once; small at first, as up to 4 MiB of zeros may follow the
        # last record
        count = _IN_A_GRANULE
        while self._at < room:
            records = read_records(file, self._at, min(count, room - self._at))
            n_written = count_written(records)
            if n_written:
                self._at += n_written
                part, tids, self._tid = by_thread(records[:n_written], self._tid)
                parts.append((part, tids, False))
            if not n_written or n_written < len(records):
                break
            count = min(2 * count, CHUNK)
        return parts

    def _jump(self, file: FileIO, to: int) -> None:
        """Skip to a later record. The records in between are read by later calls."""
        first = read_records(file, self._at, 1)
        if len(first) and first["name"][0] == layout.THREAD:
            self._tid = int(first["value"][0])
        self.gaps.append((self._at, to, self._tid))
        self._at = to

    def _past(self, file: FileIO, at_once: int) -> _Part:
        """Read the next part of the records that were skipped."""
        first, end, tid = self.gaps.pop()
        records = read_records(file, first, min(max(at_once, CHUNK), end - first))
        part, tids, tid = by_thread(records, tid)
        first += len(records)
        if len(records) and first < end:
            self.gaps.append((first, end, tid))
        return part, tids, True


def _end(file: FileIO, first_record: int, room: int) -> int:
    """Return the index after the last written record, searching backwards from the end of the file.

    Args:
        first_record: The index at which the search ends.
        room: The number of records that fit into the file.
    """
    while room > first_record:
        first = max(room - _IN_A_GRANULE, first_record)
        n_written = count_written(read_records(file, first, room - first))
        if n_written:
            return first + n_written
        room = first
    return first_record
