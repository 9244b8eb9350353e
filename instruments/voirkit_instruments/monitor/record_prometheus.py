"""``--prometheus [HOST:]PORT``: the run's figures for Prometheus, at ``http://HOST:PORT/metrics``; HOST is this machine alone unless given.

Another process serves them, from the run directory, so that the training process neither serves nor computes anything; it ends with the
run. Of several ranks the first serves.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit_instruments.monitor import import_extra

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from subprocess import Popen
    from typing import Any

    from voirkit.live.picture import Picture
    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

# No child of the program: that may wait for all its children, and --monitor counts them. The first place where python looks would be the
# current folder, which may hold a numpy.py of its own.
_PYTHON = """
import os, sys
if os.fork():
    os._exit(0)
sys.path[0] = sys.argv.pop(1)
from voirkit_instruments.monitor.record_prometheus import main
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
    """Start the process that serves, and wait until it does.

    Raises:
        CommandLineError: It cannot.
    """
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
    """What a scrape is answered with.

    Args:
        run: The run.
    """

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
