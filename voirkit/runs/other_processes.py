"""Other processes that use the same run: checks whether they are alive, and locks files for them.

The process that wrote a file may run on another host, and its process id may since have been
reused. In doubt the process counts as alive: records that a living process has not written yet
would be lost otherwise.
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

_ENDS_S = 20.0  # time that a tool gets to exit after the program that it observed has ended
# tolerance for comparing start times: Linux gives the boot time only in whole seconds
_SLACK_S = 10.0


def is_here(host: object) -> bool:
    """True if a host name is that of this machine."""
    return machine()[0] == host


def is_alive(pid: int, perf_counter_ns: int, time_ns: int) -> bool:
    """True if a process of this host is still running. On Linux, start times distinguish it from a
    later process with the same id.

    Args:
        pid: The id of the process.
        perf_counter_ns: A time at which the process existed, from ``time.perf_counter_ns``, which
            on Linux counts from boot.
        time_ns: The same moment on the wall clock, in nanoseconds since the epoch.
    """
    if pid <= 0:
        return False
    if sys.platform != "linux":
        import psutil

        return psutil.pid_exists(pid)
    if time.perf_counter_ns() < perf_counter_ns:  # the system has been rebooted since
        return False
    try:
        state, started, started_at = began_s(pid)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, IndexError, StopIteration):
        return True
    # A process that started later is a different one. Both clocks must agree on that: the
    # monotonic clock stops while a laptop sleeps, and the wall clock can be set.
    is_another = (
        started > perf_counter_ns / 1e9 + _SLACK_S and started_at > time_ns / 1e9 + _SLACK_S
    )
    return state not in "ZX" and not is_another


def began_s(pid: int) -> tuple[str, float, float]:
    """Return the state and start time of a process of this host, from ``/proc``.

    Returns:
        (state letter, start time in seconds since boot, start time in seconds since the epoch).

    Raises:
        OSError, ValueError, IndexError, StopIteration: There is no such process, or the system is
            not Linux.
    """
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    with open("/proc/stat", encoding="ascii") as file:
        booted = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0], started, booted + started


def has_settled(record: Mapping[str, Any], tool_key: str) -> bool:
    """True if the output of an external tool (such as a tracer) is complete: both the observed
    program and the tool have ended.

    If the program was killed, the tool ends soon after it, so this waits up to 20 s for the tool. A
    record from another host counts as complete.

    Args:
        record: The record of the program: ``host``, ``pid``, ``ended``, and its start time in
            ``began_ns`` (``time.perf_counter_ns``) and ``began_time_ns`` (wall clock).
        tool_key: The key in the record that holds the tool's process id.
    """
    clocks = record["began_ns"], record.get("began_time_ns", 0)
    if not is_here(record.get("host")):
        return True
    if not record.get("ended") and is_alive(record.get("pid", 0), *clocks):
        return False  # the program still runs: it is another rank, or the run is in progress
    until = time.monotonic() + _ENDS_S
    while is_alive(record.get(tool_key) or 0, *clocks):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def goes_on(manifest: dict[str, Any] | None) -> bool:
    """True if a run is still in progress. For a run on another host, only its manifest is used,
    since its process cannot be checked.

    Args:
        manifest: The contents of ``run.json``, or None if there is no such file.
    """
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
    """Hold an exclusive lock on a file; a context manager. Waits while another process holds the
    lock. A lock is released when its holder ends, even if it is killed. Raises OSError: the lock
    file cannot be created."""
    try:
        import fcntl
    except ImportError:  # Windows: no lock; processes share a run there only by the user's doing
        yield
        return
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, path):  # if not, the previous holder removed the file during the wait
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
    """Return the ids of a process's children; empty if it has ended.

    On Linux, one small file per thread lists the children. psutil would read files of all
    processes of the machine, so it is used only where these files are missing.
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
            # if the thread still exists without this file, the kernel provides no such files
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):
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
