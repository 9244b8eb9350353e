"""Events that all readers of tracer logs yield, groups of calls by effect, and totals by file and
over time in bounded memory.

All times are seconds on the tracer's clock, ``nan`` if the log has none.
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
    start: float  # entry time
    name: str
    # the arguments as strace prints them, without the parentheses; from kernel events, only the
    # arguments that voirkit uses
    args: str
    result: int | None  # return value; None if it did not return (``?``)
    error: str  # name of the error, or ""
    seconds: float  # duration, ``nan`` if the log does not have it
    is_joined: bool  # True if the log has other threads' calls between its entry and its return
    # part of ``seconds`` in which the thread slept until an event; 0 if the log does not show it
    waited: float = 0.0


class CallEntry(NamedTuple):
    """The entry into a call that has not returned yet; its ``Call`` follows later, if at all."""

    tid: int
    start: float
    name: str
    args: str


class ThreadExit(NamedTuple):
    """The end of a thread. ``how`` is ``exited with 0``, ``killed by SIGKILL``, ``superseded by
    execve in pid 7``."""

    tid: int
    time: float
    how: str


class Signal(NamedTuple):
    """A signal that was delivered to a thread, or stopped it."""

    tid: int
    time: float
    text: str


class ThreadName(NamedTuple):
    """The name or the creation of a thread. Only kernel events report these apart from calls."""

    tid: int
    name: str  # the thread's name, or ""
    parent: int | None  # id of the creating thread, or None
    is_thread: bool  # True if it is a thread of its parent's process


Event = Call | CallEntry | ThreadExit | Signal | ThreadName

# calls whose positive results are numbers of bytes
READS = frozenset(["read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg"])
WRITES = frozenset(["write", "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg"])
COPIES = frozenset(["sendfile", "sendfile64", "copy_file_range", "splice", "tee", "vmsplice"])
TRANSFERS = READS | WRITES | COPIES
# the transfers that only sockets have, which belong to no file
MESSAGES = frozenset(["recvfrom", "recvmsg", "sendto", "sendmsg"])
# Calls that wait for another thread or process, a point in time or a network peer. Their totals are
# kept apart from those of all other calls.
WAITS = frozenset(
    [
        "futex",
        "futex_wait",
        "futex_waitv",
        "futex_time64",
        "poll",
        "ppoll",
        "ppoll_time64",
        "select",
        "_newselect",
        "pselect6",
        "pselect6_time64",
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "accept",
        "accept4",
        "wait4",
        "waitid",
        "waitpid",
        "nanosleep",
        "clock_nanosleep",
        "clock_nanosleep_time64",
        "recvmsg",
        "pause",
        "rt_sigsuspend",
        "rt_sigtimedwait",
        "restart_syscall",
        "sigsuspend",
    ]
)
OPENS = frozenset(["open", "openat", "openat2", "creat"])
FORKS = frozenset(["clone", "clone2", "clone3", "fork", "vfork"])
ACCESSES = frozenset(["access", "faccessat", "faccessat2"])
URING = "io_uring_enter"  # a tracer sees this call, but not the reads and writes that it starts


_MOST = 20_000  # limit of files and of folders; beyond it those with the fewest bytes are dropped
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"(\d+)(?:<([^>]*)>)?")
_MAPPED_DESCRIPTOR = re.compile(r", (\d+)(?:<[^>]*>)?, [^,]*$")
DESCRIPTOR_CALLS = (
    OPENS
    | TRANSFERS
    | frozenset(
        [
            "close",
            "close_range",
            "dup",
            "dup2",
            "dup3",
            "fcntl",
            "mmap",
            "fstat",
            "newfstatat",
            "lseek",
            "ftruncate",
            "fsync",
            "fdatasync",
            "fallocate",
            "ioctl",
            "fadvise64",
        ]
    )
)


def first_path(args: str) -> str:
    """Return the first string among a call's arguments, without strace's escapes; "" if there is
    none."""
    match = _STRING.search(args)
    if match is None:
        return ""
    text = match[1]
    if "\\" in text:
        unescaped = text.encode("latin-1", "replace").decode("unicode_escape", "replace")
        text = unescaped.encode("latin-1", "replace").decode("utf-8", "replace")
    return text + (match[2] or "")


def follow_descriptors(
    files: dict[int, str], name: str, args: str, result: int | None
) -> str | None:
    """Apply a call's effect to its process's file descriptors. Return the path that the call is
    about; None if unknown.

    Args:
        files: Path of each file descriptor of the process; updated.
    """
    if name in OPENS:
        path = first_path(args)
        if result is not None and result >= 0:
            files[result] = path
        return path
    match = _DESCRIPTOR.match(args, 6 if args.startswith("AT_FDC") else 0)
    if match is None:
        return None
    descriptor, shown_path = int(match[1]), match[2] or ""
    open_path = shown_path if shown_path.startswith("/") else files.get(descriptor)
    if name == "close":
        if result == 0:
            files.pop(descriptor, None)
    elif name == "mmap":
        mapped = _MAPPED_DESCRIPTOR.search(args)
        return files.get(int(mapped[1])) if mapped else None
    elif result is not None and result >= 0 and _duplicates(name, args):
        if open_path is None:
            files.pop(result, None)
        else:
            files[result] = open_path
    return open_path


def _duplicates(name: str, args: str) -> bool:
    """True if a call duplicates a file descriptor."""
    return name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in args)


class PathTotals(dict[str, list[int]]):
    """Totals by path: opens, bytes read, bytes written, and for a folder its files."""

    def __missing__(self, path: str) -> list[int]:
        if len(self) >= _MOST:
            fewest_first = sorted(self, key=self._importance)
            for unused in fewest_first[: _MOST // 2]:
                del self[unused]
        row = self[path] = [0, 0, 0, 0]
        return row

    def _importance(self, path: str) -> tuple[int, int]:
        n_opens, n_read, n_written, _ = self[path]
        return n_read + n_written, n_opens

    def top(self, n: int) -> list[dict[str, Any]]:
        """Return the rows with the most bytes and those with the most opens, at most ``n`` of
        each."""
        by_bytes = sorted(self, key=lambda path: -sum(self[path][1:3]))
        by_opens = sorted(self, key=lambda path: -self[path][0])
        keys = ("path", "opens", "read", "written", "files")
        paths = dict.fromkeys(by_bytes[:n] + by_opens[:n])
        return [dict(zip(keys, (path, *self[path]), strict=True)) for path in paths]


class FileTotals:
    """Totals of the files that were opened, read and written, and of their folders."""

    def __init__(self) -> None:
        self.files = PathTotals()
        self.folders = PathTotals()

    def add(self, path: str, name: str, result: int) -> None:
        """Add a successful call on a path. ``name``: one of ``OPENS`` or ``TRANSFERS``; ``result``:
        bytes, for a transfer."""
        if not path:
            return
        if name in OPENS:
            column, amount = 0, 1
        elif name in READS:
            column, amount = 1, result
        elif name in WRITES or name in COPIES:
            column, amount = 2, result
        else:
            return
        row = self.files[path]
        folder = self.folders[os.path.dirname(path) or "."]
        if not row[3]:
            row[3] = 1
            folder[3] += 1
        row[column] += amount
        folder[column] += amount


MOST_BINS, MOST_NAMES = 240, 16
REMAINDER = "others"
_FIRST_S = 2.0**-10

Bins = dict[int, float]  # number of a time bin, counted from the origin -> value; no empty bins


class OverTime:
    """Time bins: number and seconds of calls by name, and seconds of phases.

    Args:
        origin: The log's time from which ``begin_s`` is counted; None: the time of the first event.
    """

    def __init__(self, origin: float | None = None) -> None:
        self._origin = origin
        self._bin_s = _FIRST_S
        # lowest and highest number of a bin in use
        self._first = float("inf")
        self._last = float("-inf")
        self._calls: dict[str, Bins] = {}
        self._seconds: dict[str, Bins] = {}
        self._phases: dict[str, Bins] = {}
        self.end = float("-inf")  # latest time that was added

    def add(self, name: str, start: float, seconds: float) -> None:
        """Add a call. It counts in the bin where it began. Its seconds are spread over the bins
        that it lasted in; ``nan`` if the log does not have them."""
        # ``seconds`` is nan if it is unknown, and negative if the log's clock was set back
        end = start + seconds if seconds > 0 else start
        first, last = self._bins_between(start, end)
        row = self._calls.get(name)
        if row is None:
            row = self._calls[name] = {}
            self._seconds[name] = {}
        row[first] = row.get(first, 0) + 1
        self._spread(self._seconds[name], start, end - start, first, last)

    def add_phase(self, phase: str, start: float, end: float) -> None:
        """Add a stay of the main process's first thread in a phase, without phases inside it."""
        if end > start:  # also false if a time is unknown (nan)
            first, last = self._bins_between(start, end)
            self._spread(self._phases.setdefault(phase, {}), start, end - start, first, last)

    def add_document(self, document: Mapping[str, Any], phase_weight: float) -> None:
        """Add the bins of another log with the same origin.

        Args:
            document: The bins, as ``document`` returns them.
            phase_weight: Factor for the time in phases.
        """
        bin_s = document["bin_s"]
        weights = (
            (self._calls, "calls", 1),
            (self._seconds, "seconds", 1),
            (self._phases, "phases", bin_s * phase_weight),
        )
        rows = [*document["calls"].values(), *document["phases"].values()]
        for i in range(max(map(len, rows), default=0)):
            middle = document["begin_s"] + (i + 0.5) * bin_s
            number, _ = self._bins_between(middle, middle)
            for table, key, weight in weights:
                for name, values in (document[key] or {}).items():
                    row = table.setdefault(name, {})
                    row[number] = row.get(number, 0) + values[i] * weight

    def lengthen_bins(self, bin_s: float) -> None:
        """Make the bins at least this long."""
        while self._bin_s < bin_s:
            self._double()

    def _bins_between(self, start: float, end: float) -> tuple[int, int]:
        """Return the bins of two times, after making the bins long enough to hold both."""
        if self._origin is None:
            self._origin = start
        if end > self.end:
            self.end = end
        while True:
            first = floor((start - self._origin) / self._bin_s)
            last = floor((end - self._origin) / self._bin_s)
            if first >= self._first and last <= self._last:
                return first, last
            if max(last, self._last) - min(first, self._first) < MOST_BINS:
                self._first = min(first, self._first)
                self._last = max(last, self._last)
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
            self._first = int(self._first) >> 1
            self._last = int(self._last) >> 1

    def _spread(self, row: Bins, start: float, seconds: float, first: int, last: int) -> None:
        remaining = seconds
        for number in range(first, last):
            bin_start = (self._origin or 0.0) + number * self._bin_s
            part = min(bin_start + self._bin_s - max(start, bin_start), remaining)
            row[number] = row.get(number, 0.0) + part
            remaining -= part
        row[last] = row.get(last, 0.0) + remaining

    def document(self, timed: bool) -> dict[str, Any] | None:
        """Return ``over_time`` of ``syscalls`` in a summary (docs/syscalls.md). None if the log has
        no times.

        Args:
            timed: True if the log has durations; otherwise ``seconds`` is None.

        Returns:
            ``begin_s``: start of the first bin, after the origin; ``bin_s``: length of each bin.
            ``calls``: {call: [calls in each bin]}; ``seconds``: {call: [seconds of all threads in
                each bin]}. They hold the calls with the highest counts and times, and ``others``.
            ``phases``: {phase: [share of the bin's time]}.
        """
        bins: set[int] = set()
        for table in (self._calls, self._seconds, self._phases):
            for row in table.values():
                bins.update(number for number, value in row.items() if value)
        if not bins:
            return None
        numbers = range(min(bins), max(bins) + 1)
        names = _most_frequent(self._calls, self._seconds)
        shares = {
            phase: [row.get(number, 0.0) / self._bin_s for number in numbers]
            for phase, row in self._phases.items()
        }
        return {
            "begin_s": numbers[0] * self._bin_s,
            "bin_s": self._bin_s,
            "calls": _rows(self._calls, names, numbers),
            "seconds": _rounded(_rows(self._seconds, names, numbers)) if timed else None,
            "phases": _rounded(shares),
        }


def merge_over_time(documents: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Merge the bins of several logs with the same origin, such as those of a run's ranks. The
    shares of phases are averaged."""
    with_times = [document for document in documents if document is not None]
    n_with_phases = sum(1 for document in with_times if document["phases"])
    merged = OverTime(0.0)
    merged.lengthen_bins(max((document["bin_s"] for document in with_times), default=0.0))
    for document in with_times:
        merged.add_document(document, 1 / max(n_with_phases, 1))
    return merged.document(timed=any(document["seconds"] for document in with_times))


def _most_frequent(calls: Mapping[str, Bins], seconds: Mapping[str, Bins]) -> list[str]:
    """Return the names with the highest counts and those with the most seconds, alternately."""
    orders = []
    for table in (calls, seconds):
        if table:
            amounts = {name: sum(row.values()) for name, row in table.items() if name != REMAINDER}
            orders.append(sorted(amounts, key=lambda name: (-amounts[name], name)))
    in_turn = [name for names in zip(*orders, strict=False) for name in names]
    return list(dict.fromkeys(in_turn))[:MOST_NAMES]


def _rows(
    table: Mapping[str, Bins], names: Sequence[str], numbers: range
) -> dict[str, list[float]]:
    rows = {
        name: [table[name].get(number, 0) for number in numbers] for name in names if name in table
    }
    unnamed = [row for name, row in table.items() if name not in rows]
    if unnamed:
        rows[REMAINDER] = [sum(row.get(number, 0) for row in unnamed) for number in numbers]
    return rows


def _rounded(table: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: [round(value, 9) for value in values] for name, values in table.items()}
