"""Other processes that write or read the same run: whether one is still there, and a lock for those
that would put it in order at once.

One that wrote a file may be on another host, and its number may be another's by now. In doubt it is
alive: what a living process has not written yet would be lost.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from voirkit.runs.manifest import machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENDS_S = 20.0  # for a tool whose program has ended
# the kernel counts a process's start in ticks since boot, and the boot in whole seconds
_SLACK_S = 10.0


def is_here(host: object) -> bool:
    """Whether a host is this one."""
    return machine()[0] == host


def is_alive(pid: int, perf_counter_ns: int, time_ns: int) -> bool:
    """Whether the process of this host that wrote something at a time still runs.

    Args:
        perf_counter_ns: When it wrote; on Linux this clock begins with the system.
        time_ns: The same on the wall clock.
    """
    if pid <= 0:
        return False
    if sys.platform != "linux":
        import psutil

        return psutil.pid_exists(pid)
    if time.perf_counter_ns() < perf_counter_ns:  # the system has been started since
        return False
    try:
        state, started, started_at = began_s(pid)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, IndexError, StopIteration):
        return True
    # One that began later is another. Both clocks must say so: one stands still while a laptop
    # sleeps, the other can be set.
    is_another = (
        started > perf_counter_ns / 1e9 + _SLACK_S and started_at > time_ns / 1e9 + _SLACK_S
    )
    return state not in "ZX" and not is_another


def began_s(pid: int) -> tuple[str, float, float]:
    """(state, seconds from the system's start, seconds since the epoch) of a process of this host:
    how it is, and when it began. Raises OSError, ValueError, IndexError, StopIteration: it is not
    there, or the system is not Linux."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    with open("/proc/stat", encoding="ascii") as file:
        booted = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0], started, booted + started


def has_settled(record: Mapping[str, Any], tool_key: str) -> bool:
    """Whether what a tool beside a program wrote is whole: the program has ended, and so has the
    tool, which of a killed run it soon does.

    Args:
        record: What is known of it: ``host``, ``pid``, ``ended``, and when it began: ``began_ns``,
            ``began_time_ns``.
        tool_key: The key of the tool's process.
    """
    clocks = record["began_ns"], record.get("began_time_ns", 0)
    if not is_here(record.get("host")):
        return True
    if not record.get("ended") and is_alive(record.get("pid", 0), *clocks):
        return False  # the program goes on: another rank, or a run that is looked at while it lasts
    until = time.monotonic() + _ENDS_S
    while is_alive(record.get(tool_key) or 0, *clocks):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def goes_on(manifest: dict[str, Any] | None) -> bool:
    """Whether a run still goes on. Of one on another host only its manifest tells."""
    if manifest is None or manifest.get("ended") != "running":
        return False
    pid, clocks = manifest.get("pid"), manifest.get("clocks")
    if not isinstance(pid, int) or not isinstance(clocks, dict):
        return False
    if not is_here(manifest.get("host")):
        return True
    return is_alive(pid, int(clocks.get("perf_counter_ns", 0)), int(clocks.get("time_ns", 0)))


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock on a file, which is gone when its holder is, however that ended; wait as long
    as another process has it. Raises OSError: the file cannot be made."""
    try:
        import fcntl
    except ImportError:  # Windows: no two processes share a run there but by a user's own doing
        yield
        return
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, path):  # else it was removed by its last holder while this one waited
                try:
                    yield
                finally:
                    os.unlink(path)
                return
        finally:
            os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def children_of(pid: int) -> list[int]:
    """The children of a process; empty if it has ended. Linux lists them by thread, at the cost of
    one small file each; psutil would read the files of all processes of the machine."""
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
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []
