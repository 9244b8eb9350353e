"""Counters that every process has of itself, by phase: no tool, no privilege. What it reads and writes, and getrusage.

At each edge of a phase in a process's first thread that thread's ``io`` and ``getrusage`` are read, some 4 microseconds; what has come
since the last edge belongs to the innermost phase. The reading itself is taken off again. It is the thread's and not the process's, to
which the kernel adds what a child has read as soon as that was waited for.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable

from voirkit_instruments.syscalls import record_counted as counted
from voirkit_instruments.syscalls import record_phase_edges as syscalls_edges
from voirkit_instruments.syscalls.record_markers import OTHER, OWN

_IO = "/proc/self/task/{}/io"
_LOOKS = 50
_WIDE = 512
_LOOKED = 12  # the columns that are looked at; the last two are counted
TRUSTED = {
    "calls, bytes": "exact, of read and write of all kinds in the first thread of each process; not of mmap, nor of io_uring",
    "all other calls, errors, seconds": "not seen (they need strace, or root)",
}


def why_not() -> str | None:
    """Why there are none here, and what to do."""
    if os.path.exists(_IO.format(threading.get_native_id())):
        return None
    return "no process is told here what it has read and written (/proc/self/io).\nMount it: mount -t proc none /proc"


class Counters:
    """The counters of this process and of those that it forks.

    Args:
        stem: The path of the files, without their ending.
    """

    trusted = TRUSTED

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._pid = os.getpid()
        self._forked = self._over = False
        self._rows: memoryview | None = None
        self._io = -1
        self._stack: list[int] = []
        self._last: list[int] = []
        self._since = self._edges = 0
        self._own = 0
        os.register_at_fork(after_in_child=self._after_fork)

    def begin(self) -> None:
        """Count from now on."""
        self._open()
        syscalls_edges.listen(self._entering, self._leaving)

    def end(self) -> dict[str, float]:
        """Count no more; how many edges there were, and what one took, in seconds."""
        if self._over:
            return {"edges": self._edges, "edge_s": 0.0}
        began = time.perf_counter()
        for _ in range(_LOOKS):
            self._change()
        took = (time.perf_counter() - began) / _LOOKS
        self._close()
        return {"edges": self._edges - _LOOKS, "edge_s": took}

    def is_worker(self, number: int) -> None:
        """This process is a worker of a loader."""
        if self._rows is None:
            self._open()
        if self._rows is not None:
            self._rows[0] = number

    def _after_fork(self) -> None:
        self._forked, self._rows, self._stack, self._io, self._own = True, None, [], -1, 0

    def _open(self) -> None:
        if self._over:
            return
        try:
            self._io = os.open(_IO.format(threading.get_native_id()), os.O_RDONLY | os.O_CLOEXEC)
            self._rows = counted.rows(f"{self._stem}.{os.getpid()}{counted.ENDING}" if self._forked else f"{self._stem}{counted.ENDING}")
            self._last = [0] * _LOOKED if self._forked else self._look()
            self._since = time.perf_counter_ns()
        except (OSError, ValueError, IndexError):
            self._close()

    def _close(self) -> None:
        self._over, self._rows = True, None
        if self._io >= 0:
            try:
                os.close(self._io)
            except OSError:
                pass  # the program has closed what it did not open
            self._io = -1

    def _look(self) -> list[int]:
        """The counters as they are, without what reading them has added."""
        text = os.pread(self._io, _WIDE, 0)
        words = text.split()
        used = resource.getrusage(resource.RUSAGE_THREAD)
        if words[0] != b"rchar:":
            raise ValueError("the descriptor is another file's by now")
        self._own = len(text)
        return [
            int(words[5]), int(words[7]), int(words[1]), int(words[3]), int(words[9]), int(words[11]),
            int(used.ru_utime * 1e6), int(used.ru_stime * 1e6), used.ru_minflt, used.ru_majflt, used.ru_nvcsw, used.ru_nivcsw,
        ]  # fmt: skip

    def _change(self) -> memoryview | None:
        """The innermost phase ends, or goes on later: what has come since the last edge is its."""
        if threading.get_ident() != threading.main_thread().ident or self._over:
            return None
        try:
            if self._rows is None:
                self._open()
            rows, own = self._rows, self._own
            if rows is None:
                return None
            self._edges += 1
            now = self._look()
        except (OSError, ValueError, IndexError):
            self._close()
            return None
        outside = OTHER if self._forked else OWN  # before the program's work, and after it
        at, last = (self._stack[-1] if self._stack else counted.at(outside)), self._last
        for i, value in enumerate(now):
            rows[at + i] += value - last[i]
        if own:
            rows[at] -= 1  # the last look itself was one call that reads
            rows[at + 2] -= own
        when = time.perf_counter_ns()
        rows[at + 13] += when - self._since
        self._last, self._since = now, when
        return rows

    def _entering(self, phase: str) -> Callable[[], object]:
        number = counted.at(phase)

        def enter() -> None:
            rows = self._change()
            if rows is not None:
                self._stack.append(number)
                rows[number + 12] += 1

        return _nothing if phase == OWN else enter

    def _leaving(self, phase: str) -> Callable[[], object]:
        number = counted.at(phase)

        def leave() -> None:
            if self._change() is not None and number in self._stack:
                del self._stack[len(self._stack) - 1 - self._stack[::-1].index(number) :]

        return _nothing if phase == OWN else leave


def _nothing() -> None:
    """What voirkit does for itself is not told apart here."""
