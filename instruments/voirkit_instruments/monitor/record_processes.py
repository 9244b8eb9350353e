"""What the processes of a run use: this one and all below it, as they come and go. Read with psutil (checked with 5.9 and 7.2).

What is counted (processor time, bytes) never runs backwards, whatever ends in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COUNTED = ("cpu_seconds", "read_bytes", "write_bytes")
_TICK_S = 0.05  # the kernel rounds times of processes to some hundredths of a second


class Usage(NamedTuple):
    """What the tree uses at a moment.

    Attributes:
        rss: Bytes in memory, summed over the processes: what they share is counted in each.
        shared: Of those, the bytes that are files or shared memory.
        processes: How many there are.
        cpu_seconds: Processor time since the first look.
        read_bytes: From storage, since the first look.
        write_bytes: To storage, since the first look.
    """

    rss: int
    shared: int
    processes: int
    cpu_seconds: float
    read_bytes: float
    write_bytes: float


class Tree:
    """A process and all below it.

    Args:
        pid: The process; this one if left out.
        children: Gives the children of a process; of this system unless a test brings its own.
        process: Opens a process; psutil's unless a test brings its own.
    """

    def __init__(
        self, pid: int | None = None, children: Callable[[int], Iterable[int]] | None = None, process: Any = psutil.Process
    ) -> None:
        self._root = os.getpid() if pid is None else pid
        self._children = children or children_of
        self._open = process
        self._known: dict[int, tuple[Any, tuple[float, ...]]] = {}
        self._totals = [0.0] * len(COUNTED)
        self._begun = False

    def sample(self) -> Usage:
        """What the tree uses now."""
        rss = shared = 0
        added, gone = [0.0] * len(COUNTED), [0.0] * len(COUNTED)
        known: dict[int, tuple[Any, tuple[float, ...]]] = {}
        for pid in self._pids():
            process, before = self._known.get(pid) or (None, None)
            try:
                process = process or self._open(pid)
                memory, counted = _read(process)
            except (psutil.Error, OSError):
                continue  # it has ended, or may not be looked at
            if before is not None and counted[0] < before[0] - _TICK_S:  # another process that got its number
                process, gone, before = self._open(pid), [a + b for a, b in zip(gone, before, strict=True)], None
            known[pid] = process, counted
            rss, shared = rss + memory[0], shared + memory[1]
            if before is not None or self._begun:
                added = [a + now - was for a, now, was in zip(added, counted, before or (0.0,) * len(COUNTED), strict=True)]
        for pid, (_, last) in self._known.items():
            if pid not in known:
                gone = [a + b for a, b in zip(gone, last, strict=True)]
        self._totals = [total + _without(a, b) for total, a, b in zip(self._totals, added, gone, strict=True)]
        self._known, self._begun = known, True
        return Usage(rss, shared, len(known), *self._totals)

    def _pids(self) -> list[int]:
        found = [self._root]
        for pid in found:  # grows while it is gone through
            found += [child for child in self._children(pid) if child not in found]
        return found


def _without(added: float, gone: float) -> float:
    """What was used between two looks.

    Args:
        added: By how much the counters of the processes have grown. The kernel adds those of a process that has ended to its parent's.
        gone: What those that have ended had been counted with already; one that nobody waited for was added to no parent.
    """
    return max(added - gone if added >= gone - _TICK_S else added, 0.0)


def _read(process: Any) -> tuple[tuple[int, int], tuple[float, ...]]:
    """((rss, shared), what is counted) of a process, with that of its children that have ended."""
    with process.oneshot():
        memory, times = process.memory_info(), process.cpu_times()
        cpu = times.user + times.system + getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        read = written = 0
        try:
            io = process.io_counters()
            read, written = io.read_bytes, io.write_bytes
        except (psutil.AccessDenied, AttributeError, NotImplementedError, OSError):
            pass  # it is another user's, or this system does not tell
    return (memory.rss, getattr(memory, "shared", 0)), (cpu, float(read), float(written))


def children_of(pid: int) -> list[int]:
    """The children of a process; empty if it has ended.

    Linux lists them by thread, at the cost of one small file each; psutil would read the files of all processes of the machine.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return [] if os.path.isdir("/proc/self/task") else _by_psutil(pid)
    found: list[int] = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):  # a kernel without these files
                return _by_psutil(pid)
        except OSError:
            continue
    return found


def _by_psutil(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []
