"""``--format otlp``: OpenTelemetry spans, for Jaeger, Tempo and all that speaks OTLP.

To a file: JSON lines, a TracesData each, as OpenTelemetry specifies it for files; a collector's otlpjsonfile receiver reads
it. To an endpoint, ``-o http://127.0.0.1:4318``: protobuf over HTTP, sent while the run is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping

from voirkit.errors import tell
from voirkit.export.otel_spans import Span, Spans
from voirkit.export.values import INT64, unicode_text
from voirkit.report.output import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.report.labels import Key
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "otlp", ".otlp.jsonl", True

_SPANS_AT_ONCE = 1000  # some 300 KB; collectors take 4 MB
_INTERNAL = 1  # SpanKind: neither a client nor a server
SCOPE = "voirkit"


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a file of JSON lines, or send to an endpoint if the target is an ``http://`` or ``https://`` address.

    Raises:
        VoirkitError: The endpoint can not be reached or refuses; or the package ``opentelemetry-proto``, which it needs, is not installed.
    """
    spans = Spans(run)
    batches = _batches(spans.of(run.rows(selection)))
    if target.startswith(("http://", "https://")):
        from voirkit.export import otlp_http

        otlp_http.send(spans, batches, target)
    else:
        with text(target) as put:
            for batch in batches:
                put(json.dumps(_document(spans, batch), separators=(",", ":"), allow_nan=False) + "\n")
    if spans.left_out:
        tell(f"export: {spans.left_out} values of counters are no spans and not in it; --format parquet has them.")
    return [target]


def _batches(spans: Iterable[Span]) -> Iterator[dict[Key, list[Span]]]:
    """The spans, some at once, by their process."""
    batch: dict[Key, list[Span]] = {}
    n = 0
    for span in spans:
        batch.setdefault(span.process, []).append(span)
        n += 1
        if n == _SPANS_AT_ONCE:
            yield batch
            batch, n = {}, 0
    if batch:
        yield batch


def _document(spans: Spans, batch: Mapping[Key, list[Span]]) -> dict[str, Any]:
    """A TracesData in OTLP's JSON: ids in hexadecimal digits, 64-bit integers as text."""
    trace = spans.trace_id.hex()
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(spans.resource(process))},
                "scopeSpans": [{"scope": {"name": SCOPE}, "spans": [_span(trace, span) for span in members]}],
            }
            for process, members in batch.items()
        ]
    }


def _span(trace: str, span: Span) -> dict[str, Any]:
    document = {
        "traceId": trace,
        "spanId": span.id.hex(),
        "parentSpanId": span.parent.hex(),
        "name": unicode_text(span.name),
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.events:
        document["events"] = [
            {"timeUnixNano": str(at_ns), "name": unicode_text(name), "attributes": _attributes(attributes)}
            for at_ns, name, attributes in span.events
        ]
    if span.link is not None:
        document["links"] = [{"traceId": trace, "spanId": span.link.hex()}]
    return document


def _attributes(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": unicode_text(key), "value": _value(value)} for key, value in mapping.items()]


def _value(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and value in INT64:
        return {"intValue": str(value)}
    if isinstance(value, float):
        if math.isfinite(value):
            return {"doubleValue": value}
        return {"doubleValue": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}  # as protobuf's JSON has it
    return {"stringValue": unicode_text(str(value))}
