"""The use of processes, storage and network, read with psutil (checked with 5.9 to 7): for
``--monitor``, and with voir's names for voirfiles.

``monitor(ov, poll_interval=1, cpudata=cpu_monitor(), iodata=io_monitor())`` in a voirfile gives
``cpudata`` and ``iodata`` once a second.
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

Counters: TypeAlias = tuple[float, ...]  # CPU time in seconds, bytes read, bytes written
_NO_COUNTERS: Counters = (0.0, 0.0, 0.0)
_TICK_S = 0.05  # tolerance for CPU times, which the kernel rounds to some hundredths of a second


class Usage(NamedTuple):
    """The use of CPU, memory and storage by a tree of processes, at one moment."""

    rss: int  # resident bytes, summed over the processes; shared pages count in each process
    shared: int  # the part of ``rss`` that is files or shared memory, in bytes
    processes: int
    cpu_seconds: float  # CPU time since the first sample
    read_bytes: float  # from storage, since the first sample
    write_bytes: float  # to storage, since the first sample


class Tree:
    """A process and all its descendants.

    Args:
        pid: The process; by default this one.
        children: Returns the pids of the children of a process; tests replace it.
        process: Opens a process by its pid; tests replace ``psutil.Process``.
    """

    def __init__(
        self,
        pid: int | None = None,
        children: Callable[[int], Iterable[int]] | None = None,
        process: Any = psutil.Process,
    ) -> None:
        self._root = os.getpid() if pid is None else pid
        self._children = children or children_of
        self._open = process
        # by pid: the process, and its counters at the last sample
        self._processes: dict[int, tuple[Any, Counters]] = {}
        self._totals = _NO_COUNTERS
        self._has_sample = False

    def sample(self) -> Usage:
        """Return the use of the tree now."""
        rss = 0
        shared = 0
        added = _NO_COUNTERS
        ended = _NO_COUNTERS
        processes: dict[int, tuple[Any, Counters]] = {}
        for pid in self._pids():
            process, before = self._processes.get(pid) or (None, None)
            try:
                process = process or self._open(pid)
                memory, counters = _read(process)
            except (psutil.Error, OSError):
                continue  # the process has ended, or access is denied
            # If the CPU time went down, the pid now belongs to another process.
            if before is not None and counters[0] < before[0] - _TICK_S:
                process = self._open(pid)
                ended = _add(ended, before)
                before = None
            processes[pid] = process, counters
            rss += memory[0]
            shared += memory[1]
            if before is not None:
                added = _add_growth(added, counters, before)
            elif self._has_sample:
                added = _add(added, counters)
        for pid, (_, last) in self._processes.items():
            if pid not in processes:
                ended = _add(ended, last)
        growth = map(_without, added, ended)
        self._totals = _add(self._totals, tuple(growth))
        self._processes = processes
        self._has_sample = True
        return Usage(rss, shared, len(processes), *self._totals)

    def _pids(self) -> list[int]:
        pids = [self._root]
        for pid in pids:  # the list grows during the loop
            pids += [child for child in self._children(pid) if child not in pids]
        return pids


def _add(first: Counters, second: Counters) -> Counters:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def _add_growth(total: Counters, counters: Counters, before: Counters) -> Counters:
    return tuple(a + now - was for a, now, was in zip(total, counters, before, strict=True))


def _without(added: float, ended: float) -> float:
    """Return the growth of a counter between two samples, without double counting of processes that
    have ended.

    Args:
        added: The growth of the counter over all living processes. When a process ends and its
            parent waits for it, the kernel adds its counter to the parent's.
        ended: The last value of the counter of the processes that have ended, which was counted
            before. It is subtracted only if ``added`` is large enough to contain it: the kernel
            does not add a process that nobody waited for to its parent.
    """
    return max(added - ended if added >= ended - _TICK_S else added, 0.0)


def _read(process: Any) -> tuple[tuple[int, int], Counters]:
    """Return ((rss, shared), counters) of a process. The counters include those of its children
    that have ended."""
    with process.oneshot():
        memory = process.memory_info()
        times = process.cpu_times()
        cpu_s = times.user + times.system
        cpu_s += getattr(times, "children_user", 0.0)
        cpu_s += getattr(times, "children_system", 0.0)
        read_bytes = 0
        write_bytes = 0
        try:
            io = process.io_counters()
            read_bytes, write_bytes = io.read_bytes, io.write_bytes
        except (psutil.AccessDenied, AttributeError, NotImplementedError, OSError):
            pass  # the process is another user's, or this system does not report it
    counters = (cpu_s, float(read_bytes), float(write_bytes))
    return (memory.rss, getattr(memory, "shared", 0)), counters


_DISK = (
    "read_count",
    "write_count",
    "read_bytes",
    "write_bytes",
    "read_time",
    "write_time",
    "busy_time",
)
_NET = (
    "bytes_sent",
    "bytes_recv",
    "packets_sent",
    "packets_recv",
    "errin",
    "errout",
    "dropin",
    "dropout",
)
_PROCESS_IO = ("read_bytes", "write_bytes", "read_chars", "write_chars")


def cpu_monitor() -> Reading:
    """Return a function that returns ``memory`` ([used, total], bytes) and ``load`` (percent of all
    processors since the last call)."""

    def read() -> dict[str, Any]:
        memory = psutil.virtual_memory()
        return {"memory": [memory.used, memory.total], "load": psutil.cpu_percent()}

    return read


def process_monitor(pid: int, recursive: bool = True) -> Reading:
    """Return a function that returns the use of a process; with ``recursive``, summed with all its
    descendants.

    ``load`` is percent of all processors since the last call; a new process counts 0 at first.
    ``num`` is the processor that the process runs on. ``memory`` is [resident memory of the
    processes, total memory of the machine], in bytes. Processes to which access is denied are not
    counted.
    """
    top = psutil.Process(pid)
    # Process objects are kept: psutil measures a load from one call of the same object to the next.
    by_pid: dict[int, Any] = {pid: top}

    def read() -> dict[str, Any]:
        sums: Counter[str] = Counter()
        below = top.children(recursive=True) if recursive else []
        for process in (top, *below):
            process = by_pid.setdefault(process.pid, process)
            try:
                io = process.io_counters()
                sums["memory"] += process.memory_info().rss
                sums["load"] += process.cpu_percent()
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
            sums.update({key: getattr(io, key, 0) for key in _PROCESS_IO})
        transfers = {key: sums[key] for key in _PROCESS_IO}
        load = sums["load"] / (psutil.cpu_count() or 1)
        memory = [sums["memory"], psutil.virtual_memory().total]
        return {"pid": pid, "load": load, "num": top.cpu_num(), **transfers, "memory": memory}

    return read


def io_monitor(perdisk: bool = False) -> Reading:
    """Return a function that returns the use of the disks since ``io_monitor`` was called: counts,
    bytes and milliseconds, under psutil's names. ``perdisk``: for each disk."""
    first = _by_name(psutil.disk_io_counters, perdisk)

    def read() -> dict[str, Any]:
        now = _by_name(psutil.disk_io_counters, perdisk)
        by_disk = {}
        for disk, io in now.items():
            before = first.get(disk)
            by_disk[disk] = {key: getattr(io, key, 0) - getattr(before, key, 0) for key in _DISK}
        return by_disk if perdisk else by_disk.get("", {})

    return read


def network_monitor(pernic: bool = False) -> Reading:
    """Return a function that returns the traffic of the network since the machine started, under
    psutil's names. ``pernic``: for each network interface."""

    def read() -> dict[str, Any]:
        now = _by_name(psutil.net_io_counters, pernic)
        by_nic = {nic: {key: getattr(io, key) for key in _NET} for nic, io in now.items()}
        return by_nic if pernic else by_nic.get("", {})

    return read


def _by_name(read: Callable[..., Any], several: bool) -> dict[str, Any]:
    counters = read(several)
    if counters is None:  # psutil reports none in some containers
        return {}
    return {str(name): value for name, value in counters.items()} if several else {"": counters}


class Repeat:
    """A thread that calls a function, first after one interval.

    Args:
        call: The function. If it raises, it is not called again.
        failed: Called with the exception that ``call`` raised.
    """

    def __init__(
        self,
        interval_s: float,
        call: Callable[[], object],
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        self._interval_s = interval_s
        self._call = call
        self._failed = failed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="voirkit-readings", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for a call that is in progress."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            try:
                self._call()
            except Exception as exc:  # the function may be a voirfile's, and raise anything
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
    """Return an object that calls ``pushfun(getfun())`` every ``delay`` seconds between its
    ``start()`` and ``stop()``, like voir's ``monitor``.

    The calls are always made in a thread: ``process`` is ignored, and accepted for compatibility
    with voir. ``worker_init`` is called at once, in the calling thread."""
    if worker_init is not None:
        worker_init()
    return Repeat(delay, lambda: pushfun(getfun()))


def monitor(
    ov: Overseer,
    poll_interval: float = 10,
    worker_init: Callable[[], object] | None = None,
    **monitors: Reading,
) -> Iterator[Phase]:
    """Call functions at intervals and give the result of each under its key, with ``task="main"``
    and ``time`` (seconds since the epoch).

    Args:
        poll_interval: Seconds from one reading to the next.
        worker_init: Called before the first reading.
        monitors: The functions, by key.
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
