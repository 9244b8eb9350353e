"""Sends metrics to a collector's endpoint with OpenTelemetry's SDK and exporter. Checked with
opentelemetry-sdk 1.45.

``$OTEL_EXPORTER_OTLP_HEADERS``, ``$OTEL_RESOURCE_ATTRIBUTES`` and the other variables that the SDK
reads apply.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from voirkit.errors import VoirkitError
from voirkit_instruments.metrics import METRICS, Metric
from voirkit_instruments.trackers import Tracker

# Timeout of one export if the environment sets none. It is shorter than the SDK's default, 10 s,
# because the end of a run waits for the last export.
_TIMEOUT_S = 2.0


class Writer(Tracker):
    """Sender of the metrics. It sends every ``every_s`` seconds even if no step has ended, so that
    a collector sees a standstill too."""

    every_s = 5.0
    is_state = True
    _reader: Any = None
    _sends = _failed = 0

    def write(self, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Send the current metrics. A failure is reported only at the end, because the collector
        may take the next metrics."""
        self._reader = self._reader or self._start()
        self._reader.collect()

    def _start(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricExportResult, MetricReader
        from opentelemetry.sdk.resources import Resource

        stated = any(
            os.environ.get(f"OTEL_EXPORTER_OTLP_{name}TIMEOUT") for name in ("", "METRICS_")
        )
        exporter = OTLPMetricExporter(
            endpoint=self.words[0], timeout=None if stated else _TIMEOUT_S
        )
        writer = self

        # A reader of our own, since the SDK's sends from a thread and hides errors.
        class Sender(MetricReader):  # type: ignore[misc]  # mypy sees no types of MetricReader
            def _receive_metrics(
                self, metrics_data: Any, timeout_millis: float = 10_000, **_: Any
            ) -> None:
                writer._sends += 1
                try:
                    is_sent = (
                        exporter.export(metrics_data, timeout_millis=timeout_millis)
                        is MetricExportResult.SUCCESS
                    )
                except Exception:  # some versions of the exporter raise errors of ``requests``
                    is_sent = False
                writer._failed += not is_sent

            def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
                exporter.shutdown(timeout_millis=timeout_millis)

        def observing(metric: Metric) -> Any:
            def observe(_: Any) -> Iterable[Observation]:
                for labels, value in metric.values(self.picture):
                    yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

            return observe

        reader = Sender()
        resource = Resource.create(
            {"service.name": self.picture.title, "voirkit.run": os.path.basename(self.run_dir)}
        )
        meter = MeterProvider([reader], resource, shutdown_on_exit=False).get_meter("voirkit")
        for metric in METRICS:
            create = (
                meter.create_observable_counter
                if metric.is_total
                else meter.create_observable_gauge
            )
            create(metric.name, [observing(metric)], description=metric.text)
        return reader

    def end(self, step: int, report: str) -> None:
        """Shut the exporter down; the last metrics have been sent.

        Raises:
            VoirkitError: The collector did not take all metrics.
        """
        self._reader.shutdown()
        if self._failed:
            raise VoirkitError(
                f"the collector did not take the metrics, or did not answer, {self._failed} of"
                f" {self._sends} times."
            )
