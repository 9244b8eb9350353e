"""Calls as every reader of a tracer's log yields them, which of them do what, and their sums by file and over time, in bounded memory.

All times are seconds on the tracer's clock, ``nan`` where the log has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from math import floor
from typing import Any, NamedTuple

NAN = float("nan")


class Call(NamedTuple):
    """A system call that has returned, or never will."""

    tid: int
    began: float  # when it was entered
    name: str
    args: str  # its arguments as strace prints them, without the brackets; of the kernel's own events only those that are needed
    result: int | None  # what it returned; None if it did not (``?``)
    error: str  # name of the error, or ""
    seconds: float  # how long it took, ``nan`` if the log does not have it
    is_joined: bool  # whether other threads' calls stand between its beginning and its end
    waited: float = 0.0  # seconds of it for which the thread slept until something came; 0 where that is not seen


class CallEntry(NamedTuple):
    """A call that has been entered and has not returned yet; its ``Call`` follows, if it does."""

    tid: int
    began: float
    name: str
    args: str


class ThreadExit(NamedTuple):
    """A thread has ended. ``how`` is ``exited with 0``, ``killed by SIGKILL``, ``superseded by execve in pid 7``."""

    tid: int
    time: float
    how: str


class Signal(NamedTuple):
    """A signal has come, or a thread was stopped by one."""

    tid: int
    time: float
    text: str


class ThreadName(NamedTuple):
    """A thread has a name, or has been created; only the kernel's own events have this apart from calls."""

    tid: int
    name: str  # its name, or ""
    parent: int | None  # the thread that has created it, or None
    is_thread: bool  # whether it is a thread of its parent's process


Event = Call | CallEntry | ThreadExit | Signal | ThreadName

# Their positive results are bytes.
READS = frozenset(["read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg"])
WRITES = frozenset(["write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"])
COPIES = frozenset(["sendfile", "sendfile64", "copy_file_range", "splice", "tee", "vmsplice"])
TRANSFERS = READS | WRITES | COPIES
# They wait, for another thread or process, a time or a peer, and are summed separately from calls that work.
WAITS = frozenset([
    "futex", "futex_wait", "futex_waitv", "futex_time64", "poll", "ppoll", "ppoll_time64", "select", "_newselect", "pselect6",
    "pselect6_time64", "epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4", "wait4", "waitid", "waitpid", "nanosleep",
    "clock_nanosleep", "clock_nanosleep_time64", "recvmsg", "pause", "rt_sigsuspend", "rt_sigtimedwait", "restart_syscall", "sigsuspend",
])  # fmt: skip
OPENS = frozenset(["open", "openat", "openat2", "creat"])
FORKS = frozenset(["clone", "clone2", "clone3", "fork", "vfork"])
ACCESSES = frozenset(["access", "faccessat", "faccessat2"])
URING = "io_uring_enter"  # what it does is hidden from every tracer of calls


_MOST = 20_000  # files, or folders; beyond that those with the fewest bytes are dropped
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"(\d+)(?:<([^>]*)>)?")
_MAPPED_DESCRIPTOR = re.compile(r", (\d+)(?:<[^>]*>)?, [^,]*$")
DESCRIPTOR_CALLS = OPENS | TRANSFERS | frozenset([
    "close", "close_range", "dup", "dup2", "dup3", "fcntl", "mmap", "fstat", "newfstatat", "lseek", "ftruncate", "fsync", "fdatasync",
    "fallocate", "ioctl", "fadvise64",
])  # fmt: skip


def first_path(args: str) -> str:
    """The first string among arguments, without strace's escapes; "" without any."""
    match = _STRING.search(args)
    if match is None:
        return ""
    text = match[1]
    if "\\" in text:
        unescaped = text.encode("latin-1", "replace").decode("unicode_escape", "replace")
        text = unescaped.encode("latin-1", "replace").decode("utf-8", "replace")
    return text + (match[2] or "")


def follow_descriptors(files: dict[int, str], name: str, args: str, result: int | None) -> str | None:
    """What a call does to a process's descriptors, and the path that it is about; None if that is unknown.

    Args:
        files: The paths of the process's descriptors; changed.
    """
    if name in OPENS:
        path = first_path(args)
        if result is not None and result >= 0:
            files[result] = path
        return path
    match = _DESCRIPTOR.match(args, 6 if args.startswith("AT_FDC") else 0)
    if match is None:
        return None
    descriptor = int(match[1])
    open_path = match[2] if match[2] and match[2].startswith("/") else files.get(descriptor)
    if name == "close":
        if result == 0:
            files.pop(descriptor, None)
    elif result is not None and result >= 0 and (name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in args)):
        if open_path is None:
            files.pop(result, None)
        else:
            files[result] = open_path
    elif name == "mmap":
        mapped = _MAPPED_DESCRIPTOR.search(args)
        return files.get(int(mapped[1])) if mapped else None
    return open_path


class PathTotals(dict[str, list[int]]):
    """By path: opens, bytes read, bytes written, files (of a folder)."""

    def __missing__(self, path: str) -> list[int]:
        if len(self) >= _MOST:
            for unused in sorted(self, key=lambda path: (self[path][1] + self[path][2], self[path][0]))[: _MOST // 2]:
                del self[unused]
        row = self[path] = [0, 0, 0, 0]
        return row

    def top(self, n: int) -> list[dict[str, Any]]:
        """The rows with the most bytes and those with the most opens, at most ``n`` of each."""
        by_bytes = sorted(self.items(), key=lambda item: -(item[1][1] + item[1][2]))[:n]
        by_opens = sorted(self.items(), key=lambda item: -item[1][0])[:n]
        return [
            dict(zip(("path", "opens", "read", "written", "files"), (path, *row), strict=True))
            for path, row in dict(by_bytes + by_opens).items()
        ]


class FileTotals:
    """Which files were opened, read and written."""

    def __init__(self) -> None:
        self.files, self.folders = PathTotals(), PathTotals()

    def add(self, path: str, name: str, result: int) -> None:
        """Add a call that succeeded, about a path. ``name``: of the call: one of ``OPENS`` or ``TRANSFERS``; ``result``: bytes, of a
        transfer."""
        column = 0 if name in OPENS else 1 if name in READS else 2 if name in WRITES or name in COPIES else None
        if column is None or not path:
            return
        amount = 1 if column == 0 else result
        row, folder = self.files[path], self.folders[os.path.dirname(path) or "."]
        if not row[3]:
            row[3] = 1
            folder[3] += 1
        row[column] += amount
        folder[column] += amount


MOST_BINS, MOST_NAMES = 240, 16
OTHERS = "others"
_FIRST_S = 2.0**-10

Bins = dict[int, float]  # by number of the bin after the origin; a bin without anything is missing


class OverTime:
    """Bins of calls and seconds by name, and of phases.

    Args:
        origin: The time of the log from which ``begin_s`` is counted; None: that of the first event.
    """

    def __init__(self, origin: float | None = None) -> None:
        self._origin = origin
        self._bin_s = _FIRST_S
        self._first, self._last = float("inf"), float("-inf")  # bins in use
        self._calls: dict[str, Bins] = {}
        self._seconds: dict[str, Bins] = {}
        self._phases: dict[str, Bins] = {}
        self.end = float("-inf")  # the last time that was added

    def add(self, name: str, began: float, seconds: float) -> None:
        """Add a call. It counts where it began; its seconds (``nan``: the log does not have them) belong to the bins that it lasted in."""
        ended = began + seconds if seconds > 0 else began  # not if unknown, nor where the log's clock was set back
        first, last = self._bins_between(began, ended)
        row = self._calls.get(name)
        if row is None:
            row, self._seconds[name] = self._calls.setdefault(name, {}), {}
        row[first] = row.get(first, 0) + 1
        self._spread(self._seconds[name], began, ended - began, first, last)

    def add_phase(self, phase: str, began: float, ended: float) -> None:
        """Add a time in which the first thread of the training process was in a phase, and in none inside of it."""
        if ended > began:  # not of unknown times, either
            first, last = self._bins_between(began, ended)
            self._spread(self._phases.setdefault(phase, {}), began, ended - began, first, last)

    def add_document(self, document: Mapping[str, Any], phase_weight: float) -> None:
        """Add the bins of another log with the same origin. ``document``: as ``document`` returns it; ``phase_weight``: by what the time in
        its phases is multiplied."""
        bin_s = document["bin_s"]
        weights = ((self._calls, "calls", 1), (self._seconds, "seconds", 1), (self._phases, "phases", bin_s * phase_weight))
        n = max((len(values) for key in ("calls", "phases") for values in document[key].values()), default=0)
        for i in range(n):
            middle = document["begin_s"] + (i + 0.5) * bin_s
            number, _ = self._bins_between(middle, middle)
            for table, key, weight in weights:
                for name, values in (document[key] or {}).items():
                    row = table.setdefault(name, {})
                    row[number] = row.get(number, 0) + values[i] * weight

    def lengthen_bins(self, bin_s: float) -> None:
        """Have bins at least so long."""
        while self._bin_s < bin_s:
            self._double()

    def _bins_between(self, began: float, ended: float) -> tuple[int, int]:
        """The bins of two times, after bins have become long enough for both."""
        if self._origin is None:
            self._origin = began
        if ended > self.end:
            self.end = ended
        while True:
            first, last = floor((began - self._origin) / self._bin_s), floor((ended - self._origin) / self._bin_s)
            if first >= self._first and last <= self._last:
                return first, last
            if max(last, self._last) - min(first, self._first) < MOST_BINS:
                self._first, self._last = min(first, self._first), max(last, self._last)
                return first, last
            self._double()

    def _double(self) -> None:
        for table in (self._calls, self._seconds, self._phases):
            for name, row in table.items():
                doubled: Bins = {}
                for number, value in row.items():
                    doubled[number >> 1] = doubled.get(number >> 1, 0) + value
                table[name] = doubled
        self._bin_s *= 2
        if self._first <= self._last:
            self._first, self._last = int(self._first) >> 1, int(self._last) >> 1

    def _spread(self, row: Bins, began: float, seconds: float, first: int, last: int) -> None:
        rest = seconds
        for number in range(first, last):
            begin = (self._origin or 0.0) + number * self._bin_s
            part = min(begin + self._bin_s - max(began, begin), rest)
            row[number] = row.get(number, 0.0) + part
            rest -= part
        row[last] = row.get(last, 0.0) + rest

    def document(self, timed: bool) -> dict[str, Any] | None:
        """``over_time`` in ``syscalls`` of a summary (docs/syscalls.md); None if the log has no times, ``seconds`` None if no durations.

        Returns:
            ``begin_s``: when the first bin begins, after the origin; ``bin_s``: how long each is; ``calls``: {call: [calls in each bin]};
            ``seconds``: {call: [seconds of all threads in each bin]}; ``phases``: {phase: [share of the bin's time]}. The calls with the
            most calls and seconds, and ``others``.
        """
        tables = (self._calls, self._seconds, self._phases)
        used = {number for table in tables for row in table.values() for number, value in row.items() if value}
        if not used:
            return None
        numbers = range(min(used), max(used) + 1)
        names = _most_frequent(self._calls, self._seconds)
        shares = {phase: [row.get(number, 0.0) / self._bin_s for number in numbers] for phase, row in self._phases.items()}
        return {
            "begin_s": numbers[0] * self._bin_s, "bin_s": self._bin_s,
            "calls": _rows(self._calls, names, numbers),
            "seconds": _rounded(_rows(self._seconds, names, numbers)) if timed else None,
            "phases": _rounded(shares),
        }  # fmt: skip


def merge_over_time(documents: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The bins of several logs that have one origin, as of a run's ranks, as those of one; phases have the mean of their shares."""
    existing = [one for one in documents if one is not None]
    merged = OverTime(0.0)
    merged.lengthen_bins(max((one["bin_s"] for one in existing), default=0.0))
    phase_weight = 1 / max(sum(1 for one in existing if one["phases"]), 1)
    for one in existing:
        merged.add_document(one, phase_weight)
    return merged.document(timed=any(one["seconds"] for one in existing))


def _most_frequent(calls: Mapping[str, Bins], seconds: Mapping[str, Bins]) -> list[str]:
    """The names with the most calls and those with the most seconds, in turn."""
    orders = [sorted(set(table) - {OTHERS}, key=lambda name: (-sum(table[name].values()), name)) for table in (calls, seconds) if table]
    return list(dict.fromkeys(name for names in zip(*orders, strict=False) for name in names))[:MOST_NAMES]


def _rows(table: Mapping[str, Bins], names: Sequence[str], numbers: range) -> dict[str, list[float]]:
    rows = {name: [table[name].get(number, 0) for number in numbers] for name in names if name in table}
    rest = [row for name, row in table.items() if name not in rows]
    if rest:
        rows[OTHERS] = [sum(row.get(number, 0) for row in rest) for number in numbers]
    return rows


def _rounded(table: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: [round(value, 9) for value in values] for name, values in table.items()}
