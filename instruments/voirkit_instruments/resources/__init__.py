"""The peak memory of the program, and the time that it waited for a processor in use by others
(always on).

A few small files are read when the script begins and when it has ended, and nothing in between.
Linux reports all values, other systems fewer.
"""

from __future__ import annotations

import os
import sys
import time

from voirkit.instrument import Instrument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer

INSTRUMENT = Instrument(
    "resources",
    record="voirkit_instruments.resources:record",
    parts={"processors": dict},
    schema=__name__,
    findings="voirkit_instruments.resources.rules:findings",
)


def memory() -> dict[str, Any]:
    """Return peak memory in bytes: ``peak`` (of the process of the run with the largest peak),
    ``process_peak`` (of this process), and ``devices`` if CUDA was used.

    Only children that have ended count. For a process that another one started, getrusage reports
    at least what its parent held at that time. So a child's peak means something only if it is more
    than its parent's.
    """
    facts: dict[str, Any] = {
        "peak": 0,
        "process_peak": high_water() or max_rss("RUSAGE_SELF"),
        "units": "bytes",
    }
    # Importing ``resource`` takes half a millisecond, so it is imported only if children have used
    # CPU time, which ``os.times`` counts in hundredths of a second.
    children = max_rss("RUSAGE_CHILDREN") if sum(os.times()[2:4]) else 0
    facts["peak"] = max(facts["process_peak"], children)
    devices = _devices()
    if devices:
        facts["devices"] = devices
    return facts


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes. No file descriptor is kept open: a
    script may close all that it did not open. Raises OSError, ValueError, IndexError: the system
    does not report it."""
    file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(file, 64).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(file)


def max_rss(processes: str) -> int:
    """Return the peak resident memory of this process, or of its child with the largest peak, in
    bytes; 0 if the system does not report it. The value may instead be what the process's launcher
    had held.

    Args:
        processes: ``RUSAGE_SELF`` or ``RUSAGE_CHILDREN``.
    """
    try:
        import resource
    except ImportError:  # Windows lacks the module; a script may have emptied sys.path
        return 0
    return int(resource.getrusage(getattr(resource, processes)).ru_maxrss) * (
        1 if sys.platform == "darwin" else 1024
    )


def high_water() -> int | None:
    """Return the peak resident memory of this process in bytes, or None if the system does not
    report it. (getrusage may report that of the process's launcher.)"""
    try:
        with open("/proc/self/status", "rb") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"VmHWM"))
    except (OSError, StopIteration, ValueError):
        return None


def _devices() -> dict[str, dict[str, int]]:
    """Return a dict from device to ``peak`` (memory of tensors) and ``reserved_peak``, in bytes.
    Asks CUDA only if the program has begun to use it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return {}
        peaks = {
            f"cuda:{i}": (cuda.max_memory_allocated(i), cuda.max_memory_reserved(i))
            for i in range(cuda.device_count())
        }
    except Exception:  # the device has failed, or this is a forked child
        return {}
    return {
        name: {"peak": peak, "reserved_peak": reserved}
        for name, (peak, reserved) in peaks.items()
        if reserved
    }


class _Reading:
    """CPU times at one moment, in seconds. ``usable`` are the processors that count."""

    def __init__(self, usable: set[int]) -> None:
        self.clock_s = time.perf_counter()
        # CPU time of this process and its descendants
        self.own_s = sum(os.times()[:4]) + _running_children_s()
        # CPU time of all processes on the machine; 0 if the system does not report it
        self.busy_s = _busy_s(usable)
        # time that the main thread was ready to run but had no processor
        self.waited_s = _waited_s()


class Processors:
    """Use of the processors that this process may run on, by itself and by others, from
    construction to ``stop``."""

    def __init__(self) -> None:
        self._usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self._began = _Reading(self._usable)
        self._ended: _Reading | None = None

    def stop(self) -> None:
        """Stop the measurement: later CPU time is not counted."""
        self._ended = _Reading(self._usable)

    def figures(self, helpers_s: float = 0.0) -> dict[str, float] | None:
        """Return ``usable``, ``own_s``, ``others_share`` and ``helpers_share`` (of the processors),
        ``waited_s`` and ``waited_share`` (of the time). None if the system does not report them.

        Args:
            helpers_s: CPU time of voirkit's helper processes, which are not children of the
                program.
        """
        start, ended = self._began, self._ended or _Reading(self._usable)
        elapsed_s = ended.clock_s - start.clock_s
        if (
            not self._usable
            or ended.waited_s is None
            or start.waited_s is None
            or elapsed_s <= 0
            or not ended.busy_s
        ):
            return None
        whole_s = elapsed_s * len(self._usable)
        own_s = ended.own_s - start.own_s
        others_s = max(ended.busy_s - start.busy_s - own_s - helpers_s, 0.0)
        waited_s = ended.waited_s - start.waited_s
        return {
            "usable": len(self._usable),
            "own_s": own_s,
            "others_share": min(others_s / whole_s, 1.0),
            "helpers_share": min(helpers_s / whole_s, 1.0),
            "waited_s": waited_s,
            "waited_share": min(waited_s / elapsed_s, 1.0),
        }


def _running_children_s() -> float:
    """Return the CPU time of descendants of this process that have not been waited for yet, such as
    workers that are kept between epochs."""
    if not sys.platform.startswith("linux"):
        return 0.0
    from voirkit.runs.other_processes import children_of

    ticks = 0
    remaining = children_of(os.getpid())
    while remaining:
        pid = remaining.pop()
        remaining += children_of(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            # CPU times of the process itself, and of children that it has waited for
            ticks += sum(map(int, fields[11:15]))
        except (OSError, ValueError, IndexError):
            pass  # the process has ended in the meantime
    return ticks / os.sysconf("SC_CLK_TCK")


def _busy_s(usable: set[int]) -> float:
    """Return the seconds that the usable processors have worked for any process, including other
    guests of the same host; 0 if the system does not report it."""
    ticks = 0
    try:
        with open("/proc/stat", "rb") as file:
            for line in file:
                if not line.startswith(b"cpu"):
                    break
                name, *fields = line.split()
                if name != b"cpu" and int(name[3:]) in usable:
                    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
                    ticks += user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def _waited_s() -> float | None:
    """Return how many seconds the main thread was ready to run but had no processor; None where the
    system does not report it."""
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def threads_waited_s() -> float | None:
    """Return how many seconds all running threads of this process together were ready to run but
    had no processor; None where the system does not report it."""
    waited_ns = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
                    waited_ns += int(file.read().split()[1])
            except FileNotFoundError:
                pass  # the thread has ended in the meantime
    except (OSError, ValueError, IndexError):
        return None
    return waited_ns / 1e9


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase | PhaseWithPriority]:
    """Put ``memory`` and ``processors`` into the summary."""
    # Measured from before the first helper process is started until before it is stopped.
    yield ov.phases.load_script(priority=100)
    processors = Processors()
    yield ov.phases.run_script(priority=1000, throw=False)
    processors.stop()
    yield ov.phases.finalize(priority=-1000)
    ov.summary["memory"] = (
        {**(ov.summary.get("memory") or {}), **memory()} if sys.platform != "win32" else None
    )
    overhead: Mapping[str, Any] = ov.summary.get("overhead") or {}
    helpers: Mapping[str, Any] = overhead.get("parts", {}).get("processes") or {}
    ov.summary["processors"] = processors.figures(helpers.get("seconds", 0.0))
