"""A loader's worker processes while they work: which there are on this machine, and how busy each is."""

from __future__ import annotations

import os
import time

import psutil

from voirkit.live.picture import Worker

_MOST = 64


class Workers:
    """The worker processes below a process.

    Args:
        pid: The process that trains.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, tuple[float, float]] = {}  # by process: when it was sampled, seconds of a core that it had used

    def sample(self) -> list[Worker]:
        """Those that run now, and how busy each was since the last sample; a new one, since its start."""
        workers, before = [], {}
        for process in _workers_below(self._pid)[:_MOST]:
            try:
                with process.oneshot():
                    times, started_s = process.cpu_times(), process.create_time()
            except psutil.Error:
                continue
            now_s, used_s = time.time(), times.user + times.system
            at_s, used_before_s = self._before.get(process.pid, (started_s, 0.0))
            before[process.pid] = now_s, used_s
            if now_s > at_s:
                workers.append(Worker(process.pid, min(max((used_s - used_before_s) / (now_s - at_s), 0.0), 9.99)))
        self._before = before
        return workers


def _workers_below(pid: int) -> list[psutil.Process]:
    """The children that run the same program: one that was forked has its parent's command, one that was spawned reports it."""
    try:
        parent = psutil.Process(pid)
        program, command = parent.exe(), parent.cmdline()
    except psutil.Error:
        return []
    workers = []
    for child in sorted(children_of(pid)):
        try:
            process = psutil.Process(child)
            words = process.cmdline()
            if process.exe() == program and (words == command or any("spawn_main" in word for word in words)):
                workers.append(process)
        except psutil.Error:
            continue
    return workers


def children_of(pid: int) -> list[int]:
    """The children of a process; empty if it has ended.

    Linux lists them by thread, at the cost of one small file each; psutil would read the files of all processes of the machine.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return [] if os.path.isdir("/proc/self/task") else _children_by_psutil(pid)
    children: list[int] = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):  # a kernel without these files
                return _children_by_psutil(pid)
        except OSError:
            continue
    return children


def _children_by_psutil(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []
