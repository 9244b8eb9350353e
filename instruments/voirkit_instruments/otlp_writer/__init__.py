"""``--otlp``: sends rates, steps, shares of phases and the verdict to a collector as OpenTelemetry
metrics while the run goes on."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


def endpoint(text: str) -> str:
    """Return the URL to which a collector takes metrics, from the collector's address."""
    from urllib.parse import urlsplit

    try:
        there = urlsplit(text)
        is_address = there.scheme in ("http", "https") and bool(there.hostname) and there.port != 0
    except ValueError:  # the port is invalid
        is_address = False
    if not is_address:
        raise ValueError(
            f"{text!r} is no address; give http://HOST:4318, where a collector takes OTLP over HTTP"
            " (4317 is gRPC)."
        )
    path = "/v1/metrics"
    return text if text.rstrip("/").endswith(path) else text.rstrip("/") + path


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Send metrics to the address that the option gives."""
    from voirkit_instruments.trackers import track

    return track(ov, "otlp", options["otlp"], package="opentelemetry.exporter.otlp.proto.http")


INSTRUMENT = Instrument(
    "otlp",
    group="see a run",
    options=(
        Option(
            "--otlp",
            "send the metrics of --prometheus to an OpenTelemetry collector, by OTLP over HTTP",
            type=endpoint,
            metavar="URL",
        ),
    ),
    record="voirkit_instruments.otlp_writer:record",
)
