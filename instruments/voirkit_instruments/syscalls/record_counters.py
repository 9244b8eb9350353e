"""Counters that a process keeps of itself, by phase: its reads and writes, and ``getrusage``. They
need no tool and no privilege.

At each start or end of a phase in a process's first thread, the thread's ``io`` file and
``getrusage`` are read, which takes some 4 microseconds. The increase since the last start or end
belongs to the innermost phase. The read itself is subtracted. The counters are those of the thread,
because the kernel adds a child's reads to the process once the child has been waited for.

Each process keeps its counts in a small memory-mapped file, which is complete at any moment,
however the process ends.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import threading
import time
from collections.abc import Callable
from operator import itemgetter

from voirkit.fork import at_fork
from voirkit_instruments.syscalls import record_phases
from voirkit_instruments.syscalls.record_phases import OTHER, PHASES, VOIRKIT

# From /proc/self/io: calls that read and write (of any kind), their bytes, and bytes moved by
# storage. From getrusage: microseconds and counts. The last two columns are counted by this module.
COLUMNS = (
    "read_calls",
    "write_calls",
    "read_bytes",
    "write_bytes",
    "storage_read",
    "storage_written",
    "user_us",
    "system_us",
    "minor_faults",
    "major_faults",
    "waited",
    "preempted",
    "entered",
    "lasted_ns",
)
_READ_CALLS = COLUMNS.index("read_calls")
_READ_BYTES = COLUMNS.index("read_bytes")
_ENTERED = COLUMNS.index("entered")
_LASTED_NS = COLUMNS.index("lasted_ns")
ENDING = ".mapped"
_HEAD = 1  # integers before those of the phases: the number of the loader worker, or -1
_NUMBERS = _HEAD + len(PHASES) * len(COLUMNS)
_IO = "/proc/self/task/{}/io"
_TRIALS = 50
_LONGEST_IO = 512
# indices of the words of the io file that are values, in the order of ``COLUMNS``
_VALUES_OF_IO = itemgetter(5, 7, 1, 3, 9, 11)
TRUSTED = {
    "calls, bytes": (
        "exact, of read and write of all kinds in the first thread of each process; not of mmap,"
        " nor of io_uring"
    ),
    "all other calls, errors, seconds": "not seen (they need strace, or root)",
}


def why_not() -> str | None:
    """Return the reason why counters are not available, with advice; None if they are."""
    if os.path.exists(_IO.format(threading.get_native_id())):
        return None
    return (
        "no process is told here what it has read and written (/proc/self/io).\nMount it: mount -t"
        " proc none /proc"
    )


def _phase_offset(phase: str) -> int:
    return _HEAD + PHASES.index(phase) * len(COLUMNS)


def read_counts(path: str) -> tuple[int, dict[str, dict[str, int]]]:
    """Return the number of the worker that a process was (-1: none), and its counts by phase.
    Raises OSError or ValueError: the file cannot be read."""
    with open(path, "rb") as file:
        numbers = memoryview(file.read()).cast("q")
    if len(numbers) != _NUMBERS:
        raise ValueError(f"{path} has another size than it should")
    rows = {}
    for phase in PHASES:
        offset = _phase_offset(phase)
        row = dict(zip(COLUMNS, numbers[offset : offset + len(COLUMNS)], strict=True))
        if any(row.values()):
            rows[phase] = row
    return numbers[0], rows


def count_files(folder: str, stem: str) -> list[str]:
    """Return the files of a process and of those that it forked."""
    form = re.compile(re.escape(stem) + r"(\.\d+)?" + re.escape(ENDING) + "$")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if form.match(name))


class Counters:
    """The counters of this process and of those that it forks. ``stem``: path of the files, without
    their ending."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._is_forked = False
        self._is_over = False
        self._counts: memoryview | None = None
        self._io = -1
        self._stack: list[int] = []  # offsets of the open phases in the counts, outermost first
        self._last: list[int] = []
        self._last_ns = 0
        self._edges = 0
        # bytes of the last read of the io file; the kernel counts this read too
        self._last_length = 0
        at_fork("instruments", in_child=self._after_fork)

    def start(self) -> None:
        """Start counting."""
        self._open()
        record_phases.listen(self._entry, self._exit)

    def stop(self) -> dict[str, float]:
        """Stop counting. Return how often a phase started or ended (``edges``), and the seconds
        that voirkit took each time (``edge_s``)."""
        if self._is_over:
            return {"edges": self._edges, "edge_s": 0.0}
        start_s = time.perf_counter()
        for _ in range(_TRIALS):
            self._count()
        edge_s = (time.perf_counter() - start_s) / _TRIALS
        self._close()
        return {"edges": self._edges - _TRIALS, "edge_s": edge_s}

    def set_worker(self, number: int) -> None:
        """Record that this process is the loader worker with this number."""
        if self._counts is None:
            self._open()
        if self._counts is not None:
            self._counts[0] = number

    def _after_fork(self) -> None:
        self._is_forked = True
        self._counts = None
        self._stack = []
        self._io = -1
        self._last_length = 0

    def _open(self) -> None:
        if self._is_over:
            return
        try:
            self._io = os.open(_IO.format(threading.get_native_id()), os.O_RDONLY | os.O_CLOEXEC)
            path = f"{self._stem}{ENDING}"
            if self._is_forked:
                path = f"{self._stem}.{os.getpid()}{ENDING}"
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(file, 8 * _NUMBERS)
                self._counts = memoryview(mmap.mmap(file, 8 * _NUMBERS)).cast("q")
            finally:
                os.close(file)
            self._counts[0] = -1
            self._last = [0] * _ENTERED if self._is_forked else self._read()
            self._last_ns = time.perf_counter_ns()
        except (OSError, ValueError, IndexError):
            self._close()

    def _close(self) -> None:
        self._is_over = True
        self._counts = None
        if self._io >= 0:
            try:
                os.close(self._io)
            except OSError:
                pass  # the program has closed a descriptor that it did not open
            self._io = -1

    def _read(self) -> list[int]:
        text = os.pread(self._io, _LONGEST_IO, 0)
        words = text.split()
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        if words[0] != b"rchar:":
            raise ValueError("the descriptor is another file's by now")
        self._last_length = len(text)
        # in the order of ``COLUMNS``
        return [
            *map(int, _VALUES_OF_IO(words)),
            int(usage.ru_utime * 1e6),
            int(usage.ru_stime * 1e6),
            usage.ru_minflt,
            usage.ru_majflt,
            usage.ru_nvcsw,
            usage.ru_nivcsw,
        ]

    def _count(self) -> memoryview | None:
        """Add the increase since the last start or end of a phase to the innermost phase. Return
        the counts, or None if nothing was counted."""
        if threading.get_ident() != threading.main_thread().ident or self._is_over:
            return None
        try:
            if self._counts is None:
                self._open()
            counts, own_length = self._counts, self._last_length
            if counts is None:
                return None
            self._edges += 1
            now = self._read()
        except (OSError, ValueError, IndexError):
            self._close()
            return None
        if self._stack:
            offset = self._stack[-1]
        else:  # outside of phases: before the program starts, and after it
            offset = _phase_offset(OTHER if self._is_forked else VOIRKIT)
        for i, (value, last) in enumerate(zip(now, self._last, strict=True)):
            counts[offset + i] += value - last
        if own_length:
            # the kernel has also counted the previous read of the io file: subtract it
            counts[offset + _READ_CALLS] -= 1
            counts[offset + _READ_BYTES] -= own_length
        now_ns = time.perf_counter_ns()
        counts[offset + _LASTED_NS] += now_ns - self._last_ns
        self._last, self._last_ns = now, now_ns
        return counts

    def _entry(self, phase: str) -> Callable[[], object]:
        offset = _phase_offset(phase)

        def enter() -> None:
            counts = self._count()
            if counts is not None:
                self._stack.append(offset)
                counts[offset + _ENTERED] += 1

        # calls of voirkit's own code are not separated: they count in the phase around them
        return record_phases.do_nothing if phase == VOIRKIT else enter

    def _exit(self, phase: str) -> Callable[[], object]:
        offset = _phase_offset(phase)

        def leave() -> None:
            if self._count() is not None and offset in self._stack:
                # close the phase and all phases inside it
                inside = self._stack[::-1].index(offset)
                del self._stack[len(self._stack) - 1 - inside :]

        return record_phases.do_nothing if phase == VOIRKIT else leave
