"""A loader's worker processes while they work: which there are on this machine, and how busy each is.

Linux only; elsewhere none are known.
"""

from __future__ import annotations

import os
import time

from voirkit.live.picture import Worker

_MOST = 64


class Workers:
    """The worker processes below a process.

    Args:
        pid: The process that trains.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, tuple[float, float]] = {}  # by id: when it was looked at, seconds of a core that it had used

    def sample(self) -> list[Worker]:
        """Those that run now; of a new one, how busy it was since its start."""
        found, known = [], {}
        for pid in _children(self._pid)[:_MOST]:
            used = _used(pid)
            if used is None:
                continue
            now, (seconds, age) = time.monotonic(), used
            at, before = self._before.get(pid, (now - age, 0.0))
            known[pid] = now, seconds
            if now > at:
                found.append(Worker(pid, min(max((seconds - before) / (now - at), 0.0), 9.99)))
        self._before = known
        return found


def _children(pid: int) -> list[int]:
    """The processes that a process has forked to do work of its own: those that run the same program."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        program = os.readlink(f"/proc/{pid}/exe")
        command = _read(f"/proc/{pid}/cmdline")
    except OSError:
        return []
    found = []
    for task in tasks:
        try:
            children = _read(f"/proc/{pid}/task/{task}/children").split()
        except OSError:
            continue
        for child in map(int, children):
            try:
                words = _read(f"/proc/{child}/cmdline")
                is_same = os.readlink(f"/proc/{child}/exe") == program
            except OSError:
                continue
            # One that was forked has its parent's command; one that was spawned says so.
            if is_same and (words == command or b"spawn_main" in words):
                found.append(child)
    return sorted(found)


def _used(pid: int) -> tuple[float, float] | None:
    """(seconds of a core that it has used, its age in seconds); None if it is gone."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        tick = os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / tick
        return (int(fields[11]) + int(fields[12])) / tick, max(age, 1 / tick)
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(1 << 16)
