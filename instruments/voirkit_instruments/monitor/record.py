"""``--monitor[=SECONDS]``: processor, memory, storage, network and GPUs while the run goes on, once a second; and ``--prometheus``.

Every sample is in the trace, as counters, and is given as ``cpudata``, ``iodata``, ``netdata`` and ``gpudata``. What needs psutil is
loaded only when the flag is on.

Samples are taken in a thread of their own until the script ends, which never raises into the program; no fork of the program happens
while one is taken. What Prometheus asks for is served by another process, from the run directory (of several ranks by the first's), so
that the training process neither serves nor computes anything; it ends with the run.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from voirkit.errors import CommandLineError
from voirkit.fork import at_fork
from voirkit.instrument import instrument_definition
from voirkit_instruments.monitor import COUNTS, import_extra

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen
    from typing import Any

    from voirkit.live import Picture
    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.monitor.record_gpus import Gpus

LEVELS = {"cpu": "cores", "rss": "bytes", "shared": "bytes", "processes": "processes", "host_cpu": "share", "host_memory": "bytes"}
GPU_LEVELS = {"load": "share", "memory": "bytes", "power": "W", "temperature": "°C", "throttled": "share"}
_MIB = 1 << 20
LAST_S = 5.0  # how long the end of a run waits for the last sample: a driver may hang


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
    """What the processes of this run, the machine and its GPUs do."""

    def __init__(self, gpus: Gpus | None) -> None:
        from voirkit_instruments.monitor.record_processes import Tree, cpu_monitor, io_monitor, network_monitor

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
        give: Takes what is to be given, as keywords; None if nobody is to hear it.
    """

    def __init__(
        self, machine: Any, interval_s: float, recorder: Any, give: Callable[..., None] | None, warn: Callable[[str], None]
    ) -> None:
        self._machine, self._interval_s, self._recorder = machine, interval_s, recorder
        self._give, self._warn = give, warn
        self._names: dict[str, int] = {}
        self._over, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="voirkit-monitor", daemon=True)
        self.at_work = threading.RLock()  # held while a sample is taken
        self.samples, self.cost_s, self.failed = 0, 0.0, False

    def start(self) -> None:
        """Begin."""
        at_fork("instruments", before=self._before_fork, in_parent=self._after_fork, in_child=self._in_child)
        self._thread.start()

    def _before_fork(self) -> None:
        if not self._is_over:
            self.at_work.acquire(timeout=LAST_S)

    def _after_fork(self) -> None:
        try:
            self.at_work.release()
        except RuntimeError:
            pass  # it could not be had

    def _in_child(self) -> None:
        self.at_work, self._is_over = threading.RLock(), True

    def stop(self) -> None:
        """Take the last sample, and end."""
        self._over.set()
        self._thread.join(LAST_S)
        self._is_over = True
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


# No child of the program: that may wait for all its children, and --monitor counts them. The first place where python looks would be the
# current folder, which may hold a numpy.py of its own.
_PYTHON = """
import os, sys
if os.fork():
    os._exit(0)
sys.path[0] = sys.argv.pop(1)
from voirkit_instruments.monitor.record import main
sys.exit(main(sys.argv[1:]))
"""


@instrument_definition
def prometheus(ov: Overseer, host: str, port: int) -> Iterator[Phase]:
    """Serve the run's figures while the script runs."""
    if os.environ.get("RANK", "0") != "0":
        return
    import_extra("prometheus_client", "--prometheus")
    yield ov.phases.load_script
    if ov.run_dir is None:
        return
    server = _serve(ov.run_dir, host, port)
    try:
        yield ov.phases.run_script
    finally:
        server.communicate()  # its standard input ends, and so does it


def _serve(run_dir: str, host: str, port: int) -> Popen[str]:
    """Start the process that serves, and wait until it does. Raises CommandLineError: it cannot."""
    from subprocess import PIPE, Popen

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {key: value for key, value in os.environ.items() if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")}
    command = [sys.executable, "-c", _PYTHON, package, run_dir, host, str(port)]
    server = Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=environment, start_new_session=True)
    server.wait()
    assert server.stdout is not None
    if server.stdout.readline() == "serving\n":
        return server
    why = server.communicate()[1].strip().splitlines() or ["no reason is known"]
    raise CommandLineError(f"nothing can be served there ({why[-1]}).", where=f"--prometheus {host}:{port}", next="Choose another port.")


# the process that serves

LEAST_S = 1.0  # between two updates: who asks more often gets the same figures


class Collector:
    """What a scrape is answered with."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._updated_s = 0.0

    def collect(self) -> Iterator[Any]:
        """The metrics; none while nothing is known."""
        with self._lock:
            if self._picture is None or time.monotonic() - self._updated_s >= LEAST_S:
                try:
                    self._picture = self._run.update()
                except OSError:
                    return  # the directory is gone
                self._updated_s = time.monotonic()
            yield from metrics(self._picture)


def metrics(picture: Picture) -> Iterator[Any]:
    """A picture of a run as metrics."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def gauge(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Any:
        family = GaugeMetricFamily(f"voirkit_{name}", text, labels=labels)
        for of_labels, value in values:
            family.add_metric(of_labels, value)
        return family

    yield CounterMetricFamily("voirkit_steps", "Training steps so far", value=picture.done)
    if picture.elapsed_s is not None:
        yield gauge("elapsed_seconds", "Since the run began", (), [((), picture.elapsed_s)])
    if picture.steps:
        shares = [([phase], row["share"]) for phase, row in picture.steps["phases"].items()]
        yield gauge("phase_share", "Share of the last steps' time by phase", ["phase"], shares)
        if picture.steps.get("time_s"):
            yield gauge("step_seconds", "Median time of the last steps", (), [((), picture.steps["time_s"]["median"])])
    rates = [([rate.name], rate.value) for rate in picture.rates]
    yield gauge("rate_items_per_second", "Items per second over the last steps", ["rate"], rates)
    devices = [([one.name, one.units], one.value) for one in picture.devices]
    yield gauge("monitor", "Processor, memory and GPUs, as --monitor samples them", ["name", "units"], devices)
    if picture.verdict:
        yield gauge("verdict", "1 for what the run is bound by", ["kind"], [([picture.verdict["kind"]], 1)])


def main(argv: Sequence[str]) -> int:
    """Serve until standard input ends; prints a line when it serves. Returns the exit code."""
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
    """The module that reads NVIDIA's GPUs, or None; that it is missing is told only where there is a driver."""
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
        _ = ov.given  # giving is loaded now, and not beside the script
    yield ov.phases.load_script
    from voirkit.trace import recorder
    from voirkit_instruments.monitor.record_gpus import Gpus

    def give(**data: Any) -> None:
        if not gpus_only or "gpudata" in data:
            ov.offer(data)

    sampler = Sampler(Machine(Gpus(nvml, ov.warn) if nvml is not None else None), interval_s, recorder, give, ov.warn)
    sampler.start()
    try:
        yield ov.phases.run_script
    finally:
        sampler.stop()
        recorder.timed(0, int(sampler.cost_s * 1e9), "instruments")
        ov.summary["monitor"] = sampler.summary()


@instrument_definition
def monitor_all(ov: Overseer, poll_interval: float = 10, arch: str | None = None) -> Iterator[Phase]:
    """Monitor processor, memory, storage, network and GPUs, for ``ov.require(monitor_all())`` in a voirfile.

    Args:
        poll_interval: Seconds from one sample to the next.
        arch: For voirfiles written for voir; NVIDIA's are the only GPUs that are looked at.
    """
    yield from _monitor(ov, poll_interval)


@instrument_definition
def gpu_monitor(ov: Overseer, poll_interval: float = 10, arch: str | None = None) -> Iterator[Phase]:
    """The same, of which only ``gpudata`` is given."""
    yield from _monitor(ov, poll_interval, gpus_only=True)


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    if options["prometheus"] is not None:
        ov.require(prometheus(*options["prometheus"]))
    if options["monitor"] is not None:
        ov.require(monitor_all(options["monitor"]))
