"""Takes samples in a thread of its own until the script ends: into the trace as counters, and into the stream.

Never raises into the program. A fork of the program does not happen while a sample is taken.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from voirkit.fork import at_fork
from voirkit_instruments.monitor import COUNTS
from voirkit_instruments.monitor.record_processes import Tree, cpu_monitor, io_monitor, network_monitor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from voirkit_instruments.monitor.record_gpus import Gpus

LEVELS = {"cpu": "cores", "rss": "bytes", "shared": "bytes", "processes": "processes", "host_cpu": "share", "host_memory": "bytes"}
GPU_LEVELS = {"load": "share", "memory": "bytes", "power": "W", "temperature": "°C", "throttled": "share"}
_MIB = 1 << 20
LAST_S = 5.0  # how long the end of a run waits for the last sample: a driver may hang

_samplers: weakref.WeakSet[Sampler] = weakref.WeakSet()


def _before_fork() -> None:
    for sampler in list(_samplers):
        sampler.at_work.acquire(timeout=LAST_S)


def _after_fork() -> None:
    for sampler in list(_samplers):
        try:
            sampler.at_work.release()
        except RuntimeError:
            pass  # it could not be had


def _in_child() -> None:
    for sampler in list(_samplers):
        sampler.at_work = threading.RLock()
    _samplers.clear()


at_fork("instruments", before=_before_fork, in_parent=_after_fork, in_child=_in_child)


def gpu_figures(gpudata: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Figures ``gpu<index>_<name>`` of what ``Gpus.sample`` returns."""
    figures: dict[str, float] = {}
    for index, gpu in gpudata.items():
        figures[f"gpu{index}_memory"] = gpu["memory"][0] * _MIB
        figures.update({f"gpu{index}_{key}": gpu[key] for key in ("load", "power", "temperature") if key in gpu})
        if "throttle" in gpu:
            figures[f"gpu{index}_throttled"] = float(bool(gpu["throttle"]))
    return figures


def units_of(name: str) -> str:
    """The units of a figure."""
    return "bytes" if name in COUNTS else LEVELS.get(name) or GPU_LEVELS[name.rpartition("_")[2]]


class Machine:
    """What the processes of this run, the machine and its GPUs do.

    Args:
        gpus: The GPUs to sample.
    """

    def __init__(self, gpus: Gpus | None) -> None:
        self._gpus, self._tree = gpus, Tree()
        self._cpu: tuple[int, float] | None = None
        self._processors, self._disks, self._network = cpu_monitor(), io_monitor(), network_monitor()

    def sample(self) -> tuple[int, dict[str, dict[str, Any]], dict[str, float]]:
        """(when, what is given, figures), the first with ``time.perf_counter_ns``."""
        usage, at_ns = self._tree.sample(), time.perf_counter_ns()
        host, disks, network = self._processors(), self._disks(), self._network()
        given: dict[str, dict[str, Any]] = {
            "cpudata": {
                **host, "rss": usage.rss, "shared": usage.shared, "processes": usage.processes, "cpu_seconds": usage.cpu_seconds,
            },
            "iodata": {"process_read_bytes": int(usage.read_bytes), "process_write_bytes": int(usage.write_bytes), **disks},
        }  # fmt: skip
        figures: dict[str, float] = {
            "rss": usage.rss, "shared": usage.shared, "processes": usage.processes, "host_memory": host["memory"][0],
            "read": usage.read_bytes, "write": usage.write_bytes,
        }  # fmt: skip
        if self._cpu is not None:
            cores = (usage.cpu_seconds - self._cpu[1]) / max(at_ns - self._cpu[0], 1) * 1e9
            figures.update(cpu=cores, host_cpu=host["load"] / 100)  # both are of the time since the sample before
            given["cpudata"]["cores"] = cores
        self._cpu = at_ns, usage.cpu_seconds
        if disks:  # some containers show none
            figures.update(disk_read=disks["read_bytes"], disk_write=disks["write_bytes"])
        if network:
            given["netdata"] = network
            figures.update(net_sent=network["bytes_sent"], net_received=network["bytes_recv"])
        if self._gpus is not None and (gpus := self._gpus.sample()):
            given["gpudata"] = gpus
            figures.update(gpu_figures(gpus))
        return at_ns, given, figures

    def close(self) -> None:
        """Let go of what it holds."""
        if self._gpus is not None:
            self._gpus.close()


class Sampler:
    """A thread that samples a machine at once, every interval, and a last time when it is stopped.

    Args:
        machine: Has ``sample`` and ``close`` of ``Machine``.
        interval_s: Seconds from one sample to the next.
        recorder: ``voirkit.trace.recorder``.
        give: Takes what is to be given, as keywords; None if nobody is to hear it.
        warn: Told, once, of a sample that failed.

    Attributes:
        at_work: Held while a sample is taken.
    """

    def __init__(
        self, machine: Any, interval_s: float, recorder: Any, give: Callable[..., None] | None, warn: Callable[[str], None]
    ) -> None:
        self._machine, self._interval_s, self._recorder = machine, interval_s, recorder
        self._give, self._warn = give, warn
        self._names: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="voirkit-monitor", daemon=True)
        self.at_work = threading.RLock()
        self.samples, self.cost_s, self.failed = 0, 0.0, False

    def start(self) -> None:
        """Begin."""
        _samplers.add(self)
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample, and end."""
        self._over.set()
        self._thread.join(LAST_S)
        _samplers.discard(self)
        if self._thread.is_alive():
            self._warn(f"monitor: the last sample did not come within {LAST_S:.0f} s; the run ends without it.")
        else:
            self._machine.close()

    def summary(self) -> dict[str, Any]:
        """``interval_s``, ``samples`` and ``cost_s`` (processor time of a sample); the figures are computed from the trace."""
        return {"interval_s": self._interval_s, "samples": self.samples, "cost_s": self.cost_s / self.samples if self.samples else 0.0}

    def _run(self) -> None:
        self._sample()
        while not self._over.wait(self._interval_s):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        if self.failed:
            return
        began = time.thread_time()
        try:
            with self.at_work:
                self._record_sample()
        except Exception as exc:  # whatever the system shows: the program goes on
            self.failed = True
            self._warn(f"monitor: no more samples are taken ({type(exc).__name__}: {exc}).")
        self.cost_s += time.thread_time() - began

    def _record_sample(self) -> None:
        at_ns, given, figures = self._machine.sample()
        for name, value in figures.items():
            number = self._names.get(name)
            if number is None:
                number = self._names[name] = self._recorder.name("monitor", name, kind="counter", value=units_of(name))
            self._recorder.counter(number, at_ns, value)
        self.samples += 1
        if self._give is not None:
            now = time.time()
            for key, data in given.items():
                self._give(task="main", time=now, **{key: data})
