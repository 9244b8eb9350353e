"""Has the run's metrics sent by another process; nothing of OpenTelemetry is loaded here."""

from __future__ import annotations

from voirkit_instruments.trackers import track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Send to the address of the option."""
    return track(ov, "otlp", options["otlp"], package="opentelemetry.exporter.otlp.proto.http")
