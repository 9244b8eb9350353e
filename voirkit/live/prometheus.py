"""Figures of a run that goes on, for Prometheus: steps, rates, shares, memory, as its directory shows them when they are asked for.

A program of its own (``--prometheus`` starts it), so that the training process neither serves nor computes anything.
Ends when its standard input does: with the process that has started it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from voirkit.live.run import LiveRun

if TYPE_CHECKING:
    from voirkit.live.picture import Picture

LEAST_S = 1.0  # between two looks at the run: who asks more often gets the same figures


class Collector:
    """What is asked for, as Prometheus wants it.

    Args:
        run: The run.
        now: Seconds of a clock that only goes forward.
    """

    def __init__(self, run: Any, now: Any = time.monotonic) -> None:
        self._run, self._now = run, now
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._looked_s = 0.0

    def collect(self) -> Iterator[Any]:
        """The metrics; none while nothing is known."""
        with self._lock:
            if self._picture is None or self._now() - self._looked_s >= LEAST_S:
                try:
                    self._picture = self._run.update()
                except OSError:
                    return  # the directory is gone
                self._looked_s = self._now()
            yield from metrics(self._picture)


def metrics(picture: Picture) -> Iterator[Any]:
    """A picture of a run as metrics."""
    yield CounterMetricFamily("voirkit_steps", "Training steps so far", value=picture.done)
    if picture.elapsed_s is not None:
        yield GaugeMetricFamily("voirkit_elapsed_seconds", "Since the run began", value=picture.elapsed_s)
    if picture.steps:
        share = GaugeMetricFamily("voirkit_phase_share", "Share of the last steps' time by phase", labels=["phase"])
        for phase, row in picture.steps["phases"].items():
            share.add_metric([phase], row["share"])
        yield share
        if picture.steps.get("time_s"):
            yield GaugeMetricFamily("voirkit_step_seconds", "Median time of the last steps", value=picture.steps["time_s"]["median"])
    rate = GaugeMetricFamily("voirkit_rate_items_per_second", "Items per second over the last steps", labels=["rate"])
    for one in picture.rates:
        rate.add_metric([one.name], one.value)
    yield rate
    yield from _devices(picture)
    if picture.verdict:
        verdict = GaugeMetricFamily("voirkit_verdict", "1 for what the run is bound by", labels=["kind"])
        verdict.add_metric([picture.verdict["kind"]], 1)
        yield verdict


def _devices(picture: Picture) -> Iterator[Any]:
    """What ``--monitor`` samples; its names and units are labels."""
    family = GaugeMetricFamily("voirkit_monitor", "Processor, memory and GPUs, as --monitor samples them", labels=["name", "units"])
    for one in picture.devices:
        family.add_metric([one.name, one.units], one.value)
    yield family


def main(argv: Sequence[str]) -> int:
    """Serve until standard input ends; prints a line when it serves. Returns the exit code."""
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
