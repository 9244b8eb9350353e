"""A recording that is being written, read as it grows: each record once, whatever the length of the
run.

Files are read, never mapped, and nothing is written. A file that is removed meanwhile, as at the
end of a run, is not missed.
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
CHUNK = 1 << 18  # records that are read at a time, 8 MiB


class Fresh(NamedTuple):
    """Records of one process that have come since the last look."""

    followed: Followed  # whose they are, with what the numbers in ``name`` and ``args`` stand for
    # of one segment, in the order in which they were recorded; those that name a thread are left
    # out
    records: Array
    tid: Array  # the native id of the thread of each
    is_past: bool  # they are older than others that were shown before, and good for counting only


class Followed:
    """One process that records.

    Args:
        wanted: Keeps a set of arguments (its JSON) or not; numbers of sets that are not kept are
            not known.
    """

    def __init__(self, own: Files, wanted: Callable[[bytes], bool] | None) -> None:
        self.tables = Tables(own.names, wanted)  # what its names, arguments and threads are so far
        self.stem = own.stem
        # the process, as its header says; its clocks are 0 while there is none
        self.process: Process = self.tables.process(own.stem)
        self._segments: dict[str, _Segment] = {}

    def look(self, own: Files) -> None:
        """Take in what has been added to its names; after the ends of its segments were seen."""
        self.tables.more()
        self.process = self.tables.process(own.stem)  # it may learn its rank late

    def segments(self, own: Files) -> list[_Segment]:
        """Its segments, with what has been read of each."""
        for path in own.segments:
            if path not in self._segments:
                self._segments[path] = _Segment(path)
        return [self._segments[path] for path in own.segments]


class Following:
    """All processes that record into a run directory.

    Args:
        folder: The run directory; it need not be there yet.
        at_once: How many records are read of what was there before the first look, newest first;
            the rest is read bit by bit afterwards.
        pid: Only this process, if given.
        wanted: Of arguments, as JSON: which are kept.
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
        self.processes: dict[str, Followed] = {}  # by the stem of their files
        self.has_dropped = False  # whether one of them could not write all

    @property
    def is_behind(self) -> bool:
        """Whether there are older records that have not been read yet."""
        return any(
            segment.gaps
            for followed in self.processes.values()
            for segment in followed._segments.values()
        )

    def look(self) -> list[Fresh]:
        """What has been recorded since the last look, and some of what was there before the first.
        Raises OSError: the folder cannot be read."""
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
            # Records first: the lines that they need are there by then.
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


_Part = tuple[Array, Array, bool]  # records, the thread of each, whether they are from before


class _Segment:
    """How far one segment has been read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 0
        self._tid = -1
        # records that were jumped over and are still to be counted: from, to, thread
        self.gaps: list[tuple[int, int, int]] = []

    def more(self, at_once: int) -> list[_Part]:
        """What has been written since the last time."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                if not self._at and not file.read(layout.HEADER_BYTES).startswith(layout.MAGIC):
                    return []  # not begun
                return self._more(file, at_once)
        except FileNotFoundError:  # it has been compacted
            self.gaps = []
            return []

    def _more(self, file: FileIO, at_once: int) -> list[_Part]:
        room = (os.fstat(file.fileno()).st_size - layout.HEADER_BYTES) // layout.RECORD_BYTES
        parts = [self._past(file, at_once)] if self.gaps else []
        if room - self._at > at_once + layout.LARGEST_WINDOW // layout.RECORD_BYTES:
            end = _end(file, self._at, room)
            if end - self._at > at_once:
                self._jump(file, end - at_once)
        count = _IN_A_GRANULE  # what is behind the last record is zeros, up to 4 MiB of them
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
        """Go on near the end; what lies between is counted later."""
        first = read_records(file, self._at, 1)
        if len(first) and first["name"][0] == layout.THREAD:
            self._tid = int(first["value"][0])
        self.gaps.append((self._at, to, self._tid))
        self._at = to

    def _past(self, file: FileIO, at_once: int) -> _Part:
        """The next of what was jumped over."""
        first, end, tid = self.gaps.pop()
        records = read_records(file, first, min(max(at_once, CHUNK), end - first))
        part, tids, tid = by_thread(records, tid)
        first += len(records)
        if len(records) and first < end:
            self.gaps.append((first, end, tid))
        return part, tids, True


def _end(file: FileIO, first_record: int, room: int) -> int:
    """Behind the last record that is written."""
    while room > first_record:
        first = max(room - _IN_A_GRANULE, first_record)
        n_written = count_written(read_records(file, first, room - first))
        if n_written:
            return first + n_written
        room = first
    return first_record
