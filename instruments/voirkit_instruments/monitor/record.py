"""``--monitor[=SECONDS]``: samples processor, memory, storage, network and GPUs during the run, by
default once a second; and ``--prometheus``, a server of the run's metrics.

Each sample is recorded in the trace, as counters, and given as ``cpudata``, ``iodata``, ``netdata``
and ``gpudata``. Code that needs psutil is loaded only if the flag is on.

A thread of its own takes the samples until the script ends. It never raises into the program, and
the program does not fork while a sample is taken. Prometheus is served by another process, which
reads the run directory, so the training process neither serves nor computes anything. With several
ranks, rank 0 starts that process. It ends with the run.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit_instruments.background import LAST_S, PeriodicThread, RunReader
from voirkit_instruments.monitor import COUNTS, import_extra

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.live import Picture
    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.monitor.record_gpus import Gpus

LEVELS = {
    "cpu": "cores",
    "rss": "bytes",
    "shared": "bytes",
    "processes": "processes",
    "host_cpu": "share",
    "host_memory": "bytes",
}
GPU_LEVELS = {
    "load": "share",
    "memory": "bytes",
    "power": "W",
    "temperature": "°C",
    "throttled": "share",
}
_MIB = 1 << 20


def gpu_figures(gpudata: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the values of ``Gpus.sample`` under the names ``gpu<index>_<name>``."""
    figures: dict[str, float] = {}
    for index, gpu in gpudata.items():
        figures[f"gpu{index}_memory"] = gpu["memory"][0] * _MIB
        figures.update(
            {
                f"gpu{index}_{key}": gpu[key]
                for key in ("load", "power", "temperature")
                if key in gpu
            }
        )
        if "throttle" in gpu:
            figures[f"gpu{index}_throttled"] = float(bool(gpu["throttle"]))
    return figures


def units_of(name: str) -> str:
    """Return the unit of a value, by its name."""
    if name in COUNTS:
        return "bytes"
    return LEVELS.get(name) or GPU_LEVELS[name.rpartition("_")[2]]


class Machine:
    """Reads the use of this run's processes, of the machine and of its GPUs."""

    def __init__(self, gpus: Gpus | None) -> None:
        from voirkit_instruments.monitor.record_processes import (
            Tree,
            cpu_monitor,
            io_monitor,
            network_monitor,
        )

        self._gpus, self._tree = gpus, Tree()
        self._cpu: tuple[int, float] | None = None
        self._processors, self._disks, self._network = (
            cpu_monitor(),
            io_monitor(),
            network_monitor(),
        )

    def sample(self) -> tuple[int, dict[str, dict[str, Any]], dict[str, float]]:
        """Read all values once. Returns the time (``time.perf_counter_ns``), the values to give,
        and the values to record."""
        usage, at_ns = self._tree.sample(), time.perf_counter_ns()
        host, disks, network = self._processors(), self._disks(), self._network()
        given: dict[str, dict[str, Any]] = {
            "cpudata": {
                **host,
                "rss": usage.rss,
                "shared": usage.shared,
                "processes": usage.processes,
                "cpu_seconds": usage.cpu_seconds,
            },
            "iodata": {
                "process_read_bytes": int(usage.read_bytes),
                "process_write_bytes": int(usage.write_bytes),
                **disks,
            },
        }
        figures: dict[str, float] = {
            "rss": usage.rss,
            "shared": usage.shared,
            "processes": usage.processes,
            "host_memory": host["memory"][0],
            "read": usage.read_bytes,
            "write": usage.write_bytes,
        }
        if self._cpu is not None:
            cores = (usage.cpu_seconds - self._cpu[1]) / max(at_ns - self._cpu[0], 1) * 1e9
            # ``cpu`` and ``host_cpu`` are means over the time since the last sample
            figures.update(cpu=cores, host_cpu=host["load"] / 100)
            given["cpudata"]["cores"] = cores
        self._cpu = at_ns, usage.cpu_seconds
        if disks:  # psutil reports no disks in some containers
            figures.update(disk_read=disks["read_bytes"], disk_write=disks["write_bytes"])
        if network:
            given["netdata"] = network
            figures.update(net_sent=network["bytes_sent"], net_received=network["bytes_recv"])
        if self._gpus is not None and (gpus := self._gpus.sample()):
            given["gpudata"] = gpus
            figures.update(gpu_figures(gpus))
        return at_ns, given, figures

    def close(self) -> None:
        """Close NVML, NVIDIA's library that reads the GPUs."""
        if self._gpus is not None:
            self._gpus.close()


class Sampler(PeriodicThread):
    """A thread that takes a sample when it starts, at every interval, and when it is stopped.

    Args:
        machine: A ``Machine``, or an object with its ``sample`` and ``close``.
        give: Called with the values to give, as keyword arguments; None to give nothing.
    """

    def __init__(
        self,
        machine: Any,
        interval_s: float,
        recorder: Any,
        give: Callable[..., None] | None,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__("monitor", interval_s, warn, "no more samples are taken")
        self._machine, self._recorder, self._give = machine, recorder, give
        self._names: dict[str, int] = {}
        self.samples = 0

    def stop(self) -> bool:
        """Stop the thread after a last sample; returns True if it ended in time."""
        in_time = super().stop()
        if in_time:
            self._machine.close()
        return in_time

    def summary(self) -> dict[str, Any]:
        """Return ``interval_s``, ``samples`` (their number) and ``cost_s`` (CPU time per sample).
        The sampled values themselves are computed from the trace."""
        return {
            "interval_s": self._interval_s,
            "samples": self.samples,
            "cost_s": self.cost_s / self.samples if self.samples else 0.0,
        }

    def act(self) -> None:
        """Take a sample, record it and give its values."""
        at_ns, given, figures = self._machine.sample()
        for name, value in figures.items():
            number = self._names.get(name)
            if number is None:
                number = self._names[name] = self._recorder.name(
                    "monitor", name, kind="counter", value=units_of(name)
                )
            self._recorder.counter(number, at_ns, value)
        self.samples += 1
        if self._give is not None:
            now = time.time()
            for key, data in given.items():
                self._give(task="main", time=now, **{key: data})


def _not_served(host: str, port: int, why: object) -> CommandLineError:
    return CommandLineError(
        f"metrics cannot be served at this address ({why}).",
        where=f"--prometheus {host}:{port}",
        next="Choose another port.",
    )


def _refuse_taken(host: str, port: int) -> None:
    """Check, before the script is loaded, that the server will be able to listen at an address.

    Raises:
        CommandLineError: The port is taken, or the address is not an address of this machine.
    """
    import socket

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen()
    except UnicodeError:
        raise _not_served(host, port, "that is no name of a host") from None
    except OSError as exc:
        raise _not_served(host, port, exc.strerror or exc) from None


@instrument_definition
def prometheus(ov: Overseer, host: str, port: int) -> Iterator[Phase]:
    """Serve the run's metrics to Prometheus while the script runs."""
    if os.environ.get("RANK", "0") != "0":
        return
    import_extra("prometheus_client", "--prometheus")
    _refuse_taken(host, port)
    yield ov.phases.load_script
    if ov.run_dir is None:
        return
    server = RunReader("voirkit_instruments.monitor.record", ov.run_dir, host, str(port))
    if server.first_line() != "serving":
        raise _not_served(host, port, server.failure())
    try:
        yield ov.phases.run_script
    finally:
        from voirkit.trace import recorder

        recorder.timed(0, int(server.cpu_s() * 1e9), "processes")
        server.end(LAST_S)


# functions that run in the server's process

LEAST_S = 1.0  # minimum time between two updates; a scrape before that gets the same metrics again


class Collector:
    """The collector of metrics that ``prometheus_client`` calls at each scrape."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._updated_s = 0.0

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of the run; nothing if its directory cannot be read."""
        with self._lock:
            if self._picture is None or time.monotonic() - self._updated_s >= LEAST_S:
                try:
                    self._picture = self._run.update()
                except OSError:
                    return  # the run directory has been deleted
                self._updated_s = time.monotonic()
            yield from metrics(self._picture)


def metrics(picture: Picture) -> Iterator[Any]:
    """Yield the state of a run as families of metrics of ``prometheus_client``."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from voirkit_instruments.metrics import METRICS

    for metric in METRICS:
        family = (CounterMetricFamily if metric.is_total else GaugeMetricFamily)(
            metric.name, metric.text, labels=metric.labels
        )
        for labels, value in metric.values(picture):
            family.add_metric(labels, value)
        yield family


def main(argv: Sequence[str]) -> int:
    """Serve until standard input ends; prints ``serving`` once the server listens. Returns the exit
    code. ``argv``: the run directory, the host and the port."""
    from prometheus_client import CollectorRegistry, start_http_server

    from voirkit.live.run import LiveRun

    path, host, port = argv
    registry = CollectorRegistry()
    registry.register(Collector(LiveRun(path)))
    try:
        start_http_server(int(port), host, registry)
    except OSError as exc:
        print(exc.strerror or exc, file=sys.stderr)
        return 1
    print("serving", flush=True)
    sys.stdin.read()
    return 0


def _nvml(ov: Overseer) -> Any:
    """Return the module that reads NVIDIA's GPUs; None if it is not installed. Warns that it is
    missing only if an NVIDIA driver is present."""
    try:
        return import_extra("pynvml", "--monitor")
    except CommandLineError as exc:
        if os.path.exists("/proc/driver/nvidia"):
            ov.warn(f"{exc}\n  GPUs are left out.")
        return None


def _monitor(ov: Overseer, interval_s: float, gpus_only: bool = False) -> Iterator[Phase]:
    yield ov.phases.parse_args
    nvml = _nvml(ov)
    if ov.may_be_listened_to:
        _ = ov.given  # imports the package ``giving`` already, before the script
    yield ov.phases.load_script
    from voirkit.trace import recorder
    from voirkit_instruments.monitor.record_gpus import Gpus

    def give(**data: Any) -> None:
        if not gpus_only or "gpudata" in data:
            ov.offer(data)

    sampler = Sampler(
        Machine(Gpus(nvml, ov.warn) if nvml is not None else None),
        interval_s,
        recorder,
        give,
        ov.warn,
    )
    sampler.start()
    try:
        yield ov.phases.run_script
    finally:
        sampler.stop()
        recorder.timed(0, int(sampler.cost_s * 1e9), "instruments")
        ov.summary["monitor"] = sampler.summary()


@instrument_definition
def monitor_all(
    ov: Overseer, poll_interval: float = 10, arch: str | None = None
) -> Iterator[Phase]:
    """Monitor processor, memory, storage, network and GPUs, for ``ov.require(monitor_all())`` in a
    voirfile.

    Args:
        poll_interval: Seconds from one sample to the next.
        arch: Ignored; accepted for voirfiles written for voir. Only NVIDIA's GPUs are read.
    """
    yield from _monitor(ov, poll_interval)


@instrument_definition
def gpu_monitor(
    ov: Overseer, poll_interval: float = 10, arch: str | None = None
) -> Iterator[Phase]:
    """Monitor and record like ``monitor_all``, but give only ``gpudata``."""
    yield from _monitor(ov, poll_interval, gpus_only=True)


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    if options["prometheus"] is not None:
        ov.require(prometheus(*options["prometheus"]))
    if options["monitor"] is not None:
        ov.require(monitor_all(options["monitor"]))
