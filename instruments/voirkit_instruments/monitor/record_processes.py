"""What processes, storage and network do, read with psutil (checked with 5.9 to 7): for ``--monitor``, and with voir's names for voirfiles.

``monitor(ov, poll_interval=1, cpudata=cpu_monitor(), iodata=io_monitor())`` in a voirfile gives ``cpudata`` and ``iodata`` once a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import psutil

from voirkit.runs.other_processes import children_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

    Reading: TypeAlias = Callable[[], dict[str, Any]]

COUNTED = ("cpu_seconds", "read_bytes", "write_bytes")
_TICK_S = 0.05  # the kernel rounds times of processes to some hundredths of a second


class Usage(NamedTuple):
    """What the tree uses at a moment."""

    rss: int  # bytes in memory, summed over the processes: what they share is counted in each
    shared: int  # of those, the bytes that are files or shared memory
    processes: int
    cpu_seconds: float  # processor time since the first look
    read_bytes: float  # from storage, since the first look
    write_bytes: float  # to storage, since the first look


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


def _without(added: float, ended: float) -> float:
    """What was used between two looks.

    Args:
        added: By how much the counters of the processes have grown. The kernel adds those of a process that has ended to its parent's.
        ended: What those that have ended had been counted with already; one that nobody waited for was added to no parent.
    """
    return max(added - ended if added >= ended - _TICK_S else added, 0.0)


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


_DISK = ("read_count", "write_count", "read_bytes", "write_bytes", "read_time", "write_time", "busy_time")
_NET = ("bytes_sent", "bytes_recv", "packets_sent", "packets_recv", "errin", "errout", "dropin", "dropout")
_PROCESS_IO = ("read_bytes", "write_bytes", "read_chars", "write_chars")


def cpu_monitor() -> Reading:
    """A function that returns ``memory`` ([used, total], bytes) and ``load`` (percent of all processors since the call before)."""

    def read() -> dict[str, Any]:
        memory = psutil.virtual_memory()
        return {"memory": [memory.used, memory.total], "load": psutil.cpu_percent()}

    return read


def process_monitor(pid: int, recursive: bool = True) -> Reading:
    """A function that returns what a process, and with ``recursive`` all below it, uses.

    ``load`` is percent of all processors since the call before (of a process that is new since then, nothing), ``num`` the processor that
    it runs on, ``memory`` [resident, the machine's], bytes; of what a process may not be asked, nothing is counted.
    """
    top = psutil.Process(pid)
    known: dict[int, Any] = {pid: top}  # psutil measures a process's load from one call of an object to the next

    def read() -> dict[str, Any]:
        used: Counter[str] = Counter()
        below = top.children(recursive=True) if recursive else []
        for process in (top, *below):
            process = known.setdefault(process.pid, process)
            try:
                io = process.io_counters()
                used["memory"] += process.memory_info().rss
                used["load"] += process.cpu_percent()
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
            used.update({key: getattr(io, key, 0) for key in _PROCESS_IO})
        return {
            "pid": pid, "load": used["load"] / (psutil.cpu_count() or 1), "num": top.cpu_num(), **{key: used[key] for key in _PROCESS_IO},
            "memory": [used["memory"], psutil.virtual_memory().total],
        }  # fmt: skip

    return read


def io_monitor(perdisk: bool = False) -> Reading:
    """A function that returns what the disks have done since this call: counts, bytes and milliseconds, as psutil names them."""
    first = _by_name(psutil.disk_io_counters, perdisk)

    def read() -> dict[str, Any]:
        now = _by_name(psutil.disk_io_counters, perdisk)
        done = {disk: {key: getattr(io, key, 0) - getattr(first.get(disk), key, 0) for key in _DISK} for disk, io in now.items()}
        return done if perdisk else done.get("", {})

    return read


def network_monitor(pernic: bool = False) -> Reading:
    """A function that returns what has gone through the network since the machine started, as psutil names it."""

    def read() -> dict[str, Any]:
        now = _by_name(psutil.net_io_counters, pernic)
        done = {nic: {key: getattr(io, key) for key in _NET} for nic, io in now.items()}
        return done if pernic else done.get("", {})

    return read


def _by_name(read: Callable[..., Any], several: bool) -> dict[str, Any]:
    counters = read(several)
    if counters is None:  # some containers show none
        return {}
    return {str(name): value for name, value in counters.items()} if several else {"": counters}


class Repeat:
    """A thread that calls a function, first after one interval.

    Args:
        call: What it calls; what that raises ends the calls, and is given to ``failed``.
        failed: Told of it.
    """

    def __init__(self, interval_s: float, call: Callable[[], object], failed: Callable[[Exception], object] | None = None) -> None:
        self._interval_s, self._call, self._failed = interval_s, call, failed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="voirkit-readings", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a call that is under way is waited for."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            try:
                self._call()
            except Exception as exc:
                if self._failed is not None:
                    self._failed(exc)
                    return
                raise


def repeat(
    delay: float,
    getfun: Callable[[], Any],
    pushfun: Callable[[Any], object],
    process: bool = False,
    worker_init: Callable[[], object] | None = None,
) -> Repeat:
    """What calls ``pushfun(getfun())`` every ``delay`` seconds between its ``start()`` and ``stop()``, as voir's ``monitor``. Always in a
    thread: ``process`` is taken for voir's sake. ``worker_init`` is called first, here."""
    if worker_init is not None:
        worker_init()
    return Repeat(delay, lambda: pushfun(getfun()))


def monitor(
    ov: Overseer, poll_interval: float = 10, worker_init: Callable[[], object] | None = None, **monitors: Reading
) -> Iterator[Phase]:
    """Give what functions return, each under its own key, with ``task="main"`` and ``time`` (seconds since the epoch).

    Args:
        poll_interval: Seconds from one reading to the next.
        worker_init: Called before the first.
        monitors: For each key the function.
    """
    yield ov.phases.load_script

    def give() -> None:
        at_s = time.time()
        for key, read in monitors.items():
            ov.give(task="main", time=at_s, **{key: read()})

    def failed(exc: Exception) -> None:
        ov.warn(f"monitor: nothing more is read ({type(exc).__name__}: {exc}).")

    if worker_init is not None:
        worker_init()
    readings = Repeat(poll_interval, give, failed)
    readings.start()
    try:
        yield ov.phases.run_script
    finally:
        readings.stop()
