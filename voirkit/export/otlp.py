"""``--format otlp``: OpenTelemetry spans, for Jaeger, Tempo and all that speaks OTLP.

To a file: JSON lines, a TracesData each, as OpenTelemetry specifies it for files; a collector's
otlpjsonfile receiver reads it. To an endpoint, ``-o http://127.0.0.1:4318``: protobuf over HTTP,
sent while the run is read.

Messages are made with the classes of ``opentelemetry-proto`` (checked with 1.45.2), in the extra
``voirkit[export]``. What a collector does not take is an error: nothing is lost silently. That is
why it is not sent by ``opentelemetry-exporter-otlp-proto-http``: its 1.45.2 takes spans of the SDK
only (22 us a span to make and encode, 8 here), drops integers beyond 64 bits and text that is no
UTF-8, and calls it a success when a collector has rejected spans, redirects, or is a web page.

A run is one trace: with ids, with parents, and marks as events of the span they happened in. Ids
follow from what is recorded, so that exporting a run twice, or parts of it, gives the same ones and
a collector can tell what it has.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from hashlib import blake2b
from http.client import HTTPException
from itertools import chain, islice
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from voirkit.errors import VoirkitError, tell
from voirkit.export.spans import FLOW, Key, Labels, Nesting, typed, unicode_text
from voirkit.report.output import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "otlp", ".otlp.jsonl", True

_FLOWS = 100_000  # that may go on at a time; memory must not grow with the run
_SPANS_AT_ONCE = 1000  # some 300 KB; collectors take 4 MB
_INTERNAL = 1  # SpanKind: neither a client nor a server
SCOPE = "voirkit"
PATH = "/v1/traces"
_BUSY = (429, 502, 503, 504)  # the protocol: try again after these, and after no other
_TRIES = 6
_LONGEST_WAIT_S = 30.0
_TIMEOUT_S = 10.0
_LONGEST_ANSWER = 1 << 20  # bytes
_HINT = (
    "A collector listens on http://HOST:4318 for OTLP over HTTP (4317 is gRPC). To a file: -o"
    " run.otlp.jsonl"
)


class Span:
    """One span. ``attributes`` may hold what a recorded argument may be: numbers, text, booleans,
    None; times are in ns since the epoch."""

    __slots__ = (
        "attributes",
        "end_ns",
        "events",
        "id",
        "link",
        "name",
        "parent",
        "process",
        "start_ns",
    )

    def __init__(
        self,
        process: Key,
        id: bytes,
        parent: bytes,
        name: str,
        times: tuple[int, int],
        attributes: dict[str, Any],
    ) -> None:
        self.process = process
        self.id = id
        self.parent = parent
        self.name = name
        self.attributes = attributes
        self.start_ns, self.end_ns = times
        self.events: list[tuple[int, str, Mapping[str, Any]]] = []
        self.link: bytes | None = None  # id of the span that leads to this one


class Thread:
    """The open spans of one thread, or of what is beside it (a device)."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.nesting: Nesting[Span] = Nesting()
        self.last_identity = ""
        self.repeated = 0


class Spans:
    """The trace of a run. Beside the recorded spans it has one for the run, which is the root, and
    one for each process, within that of its parent process. ``left_out`` is the number of counters'
    values: those are no spans."""

    def __init__(self, run: Run) -> None:
        manifest = run.manifest
        self._labels = Labels(run)
        self.left_out = 0
        self.script = script_name(manifest) or "python"
        identity = [
            manifest.get("host"),
            manifest.get("pid"),
            manifest.get("clocks"),
            manifest.get("job"),
        ]
        trace_key = repr(identity if manifest else run.path)
        self.trace_id = blake2b(trace_key.encode(), digest_size=16).digest()
        self._manifest = manifest

    def of(self, batches: Iterable[Iterable[tuple[Any, ...]]]) -> Iterator[Span]:
        """Make spans of the rows, which come as ``Nesting`` asks; each is given when it is over."""
        threads: dict[tuple[Key, int, str], Thread] = {}
        processes: dict[Key, Span] = {}
        flows: dict[Any, bytes] = {}
        for row in chain.from_iterable(batches):
            kind, category, name, start_ns, duration_ns, rank, host, pid, tid, arguments = row
            if kind == "counter":
                self.left_out += len(arguments)
                continue
            key = host, rank, pid
            end_ns = start_ns + duration_ns
            process = processes.get(key)
            if process is None:
                process = processes[key] = self._process(key, start_ns)
            process.end_ns = max(process.end_ns, end_ns)
            is_moment = kind in ("mark", "meta")
            device = "" if is_moment or kind in ("span", "phase", "loader") else kind
            thread = threads.get((key, tid, device))
            if thread is None:
                attributes = {"thread.id": tid, "thread.name": self._labels.thread(key, tid)}
                thread = threads[key, tid, device] = Thread(attributes)
            for _, _, span in thread.nesting.ended(start_ns):
                yield span
            holder = thread.nesting.holder(end_ns)
            if is_moment and holder is not None:
                holder.events.append((start_ns, name, {"voirkit.category": category, **arguments}))
                continue
            attributes = {**thread.attributes, "voirkit.category": category}
            if kind != "span":
                attributes["voirkit.kind"] = kind
            attributes.update(arguments)
            identity = (
                f"{host} {rank} {pid} {tid} {kind} {category} {name} {start_ns} {duration_ns}"
            )
            parent = holder or process
            id = self._id(thread, identity)
            span = Span(key, id, parent.id, name, (start_ns, end_ns), attributes)
            if FLOW in arguments:
                span.link = _follow_flow(flows, arguments[FLOW], id)
            if is_moment:
                yield span
            else:
                thread.nesting.add(start_ns, end_ns, span)
        for thread in threads.values():
            for _, _, span in thread.nesting.ended():
                yield span
        yield from self._tree(processes)

    def resource(self, process: Key) -> dict[str, Any]:
        """The attributes that the spans of a process share, in OpenTelemetry's words."""
        host, rank, pid = process
        attributes: dict[str, Any] = {
            "service.name": self.script,
            "service.instance.id": f"{host}-r{rank}-{pid}",
            "host.name": host,
            "process.pid": pid,
        }
        labelled = self._labels.processes.get(process)
        if labelled is not None:
            attributes["process.parent_pid"] = labelled.ppid
        attributes.update(
            {
                "process.title": self._labels.process(process),
                "voirkit.rank": rank,
                "telemetry.sdk.name": "voirkit",
                "telemetry.sdk.language": "python",
            }
        )
        return attributes

    def _id(self, thread: Thread, identity: str) -> bytes:
        if identity != thread.last_identity:
            thread.last_identity = identity
            thread.repeated = 0
        else:  # a clock may stand still
            thread.repeated += 1
            identity = f"{identity} {thread.repeated}"
        return self._hash(identity)

    def _hash(self, identity: str) -> bytes:
        data = identity.encode("utf-8", "backslashreplace")
        return blake2b(data, digest_size=8, key=self.trace_id).digest()

    def _process(self, key: Key, start_ns: int) -> Span:
        id = self._hash("process {} {} {}".format(*key))
        attributes = {"voirkit.kind": "process"}
        return Span(key, id, b"", self._labels.process(key), (start_ns, start_ns), attributes)

    def _tree(self, processes: dict[Key, Span]) -> Iterator[Span]:
        """The spans of the processes and of the run, now that all is known of them."""
        if not processes:
            return
        first = min(processes.values(), key=lambda span: span.start_ns)
        times = first.start_ns, max(span.end_ns for span in processes.values())
        main = (self._manifest.get("host"), self._manifest.get("rank"), self._manifest.get("pid"))
        root_process = next((key for key in processes if key == main), first.process)
        attributes = {"voirkit.kind": "run"}
        command = self._manifest.get("command")
        if command:
            attributes["voirkit.command"] = " ".join(map(str, command))
        id = self._hash("run")
        root = Span(root_process, id, b"", f"voirkit {self.script}", times, attributes)
        for key, span in processes.items():
            host, rank, _ = key
            labelled = self._labels.processes.get(key)
            parent = None
            if labelled is not None and labelled.ppid != labelled.pid:
                parent = processes.get((host, rank, labelled.ppid))
            span.parent = (parent or root).id
            yield span
        yield root


def _follow_flow(flows: dict[Any, bytes], flow: Any, id: bytes) -> bytes | None:
    """Note the last span of a flow; returns the id of the one before it. Of too many flows the
    oldest is forgotten."""
    previous = flows.pop(flow, None)
    flows[flow] = id
    if len(flows) > _FLOWS:
        oldest = next(iter(flows))
        del flows[oldest]
    return previous


def script_name(manifest: Mapping[str, Any]) -> str:
    """The script's file name, or the module of ``-m``."""
    command = [str(word) for word in manifest.get("command") or []]
    return command[0].replace("\\", "/").rsplit("/", 1)[-1] if command else ""


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a file of JSON lines, or send to an endpoint if the target is an ``http://`` or
    ``https://`` address. Raises VoirkitError: the endpoint cannot be reached or refuses; or the
    package ``opentelemetry-proto``, which it needs, is not installed."""
    spans = Spans(run)
    batches = _batches(spans.of(run.rows(selection)))
    if target.startswith(("http://", "https://")):
        send(spans, batches, target)
    else:
        with text(target) as write_text:
            for batch in batches:
                data = _as_json(_traces_data(spans, batch))
                line = json.dumps(data, separators=(",", ":"), allow_nan=False)
                write_text(f"{line}\n")
    if spans.left_out:
        tell(
            f"export: {spans.left_out} values of counters are no spans and not in it; --format"
            " parquet has them."
        )
    return [target]


def _batches(spans: Iterable[Span]) -> Iterator[dict[Key, list[Span]]]:
    """The spans, some at once, by their process."""
    remaining = iter(spans)
    while part := list(islice(remaining, _SPANS_AT_ONCE)):
        batch: dict[Key, list[Span]] = {}
        for span in part:
            batch.setdefault(span.process, []).append(span)
        yield batch


def _traces_data(spans: Spans, batch: Mapping[Key, list[Span]]) -> dict[str, Any]:
    """The fields of a TracesData, which are also those of the request that sends one, by their
    names in the protocol."""
    resource_spans = []
    for process, members in batch.items():
        fields = [_span(spans.trace_id, span) for span in members]
        resource_spans.append(
            {
                "resource": {"attributes": _attributes(spans.resource(process))},
                "scope_spans": [{"scope": {"name": SCOPE}, "spans": fields}],
            }
        )
    return {"resource_spans": resource_spans}


def _span(trace_id: bytes, span: Span) -> dict[str, Any]:
    fields = {
        "trace_id": trace_id,
        "span_id": span.id,
        "parent_span_id": span.parent,
        "name": unicode_text(span.name),
        "kind": _INTERNAL,
        "start_time_unix_nano": span.start_ns,
        "end_time_unix_nano": span.end_ns,
        "attributes": _attributes(span.attributes),
    }
    if span.events:
        fields["events"] = [
            {
                "time_unix_nano": time_ns,
                "name": unicode_text(name),
                "attributes": _attributes(attributes),
            }
            for time_ns, name, attributes in span.events
        ]
    if span.link is not None:
        fields["links"] = [{"trace_id": trace_id, "span_id": span.link}]
    return fields


def _attributes(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": unicode_text(key), "value": {} if value is None else dict([typed(value)])}
        for key, value in mapping.items()
    ]


def _as_json(value: Any) -> Any:
    """Fields in OTLP's JSON: ids in hexadecimal digits, 64-bit integers as text."""
    kind = type(value)
    if kind is dict:
        return {
            _json_name(name): field if name == "kind" else _as_json(field)
            for name, field in value.items()
        }
    if kind is list:
        return [_as_json(item) for item in value]
    if kind is bytes:
        return value.hex()
    if kind is int:
        return str(value)
    if kind is float and not math.isfinite(value):
        # as protobuf's JSON has it
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value


@cache
def _json_name(name: str) -> str:
    first, *following = name.split("_")
    return first + "".join(map(str.capitalize, following))


def send(
    spans: Spans,
    batches: Iterable[Mapping[Key, list[Span]]],
    target: str,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Send all the batches, one after the other.

    Args:
        batches: Spans by their process.
        target: The address; ``/v1/traces`` is added if it is not there.
            ``$OTEL_EXPORTER_OTLP_HEADERS`` may hold further headers.
        sleep: How to wait for a collector that is busy, in seconds.

    Raises:
        VoirkitError: Part of it did not arrive, or ``opentelemetry-proto`` is not installed.
    """
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
    except ImportError:
        raise VoirkitError(
            "sending needs the package 'opentelemetry-proto', which is not installed.",
            where="--format otlp",
            next="pip install 'voirkit[export]'",
        ) from None
    url = address(target)
    headers = _headers()
    rejected = 0
    reasons: dict[str, None] = {}
    for batch in batches:
        request = service.ExportTraceServiceRequest(**_traces_data(spans, batch))
        body = gzip.compress(request.SerializeToString(), 1)
        kind, answer = _post(url, target, body, headers, sleep)
        n_rejected, reason = _parse_answer(service, kind, answer, target)
        rejected += n_rejected
        if reason:
            reasons[reason] = None
    reply = "; ".join(list(reasons)[:3])
    if rejected:
        raise VoirkitError(
            f"the collector rejected {rejected} spans: {reply or 'no reason given'}",
            where=f"-o {target}",
        )
    if reply:
        tell(f"-o {target}: the collector reports: {reply}")


def _parse_answer(service: Any, kind: str, answer: bytes, target: str) -> tuple[int, str]:
    """The number of spans that a collector has rejected, and its message. Raises VoirkitError: it
    is none: a web page is no answer to spans."""
    if kind == "text/html":
        raise VoirkitError(
            "what answers there is no collector: it sends a web page.",
            where=f"-o {target}",
            next=_HINT,
        )
    try:
        if kind == "application/json":
            partial = json.loads(answer or b"{}").get("partialSuccess") or {}
            n_rejected = int(partial.get("rejectedSpans") or 0)
            return n_rejected, _one_line(str(partial.get("errorMessage") or ""))
        response = service.ExportTraceServiceResponse()
        response.ParseFromString(answer)
    except Exception:
        # google.protobuf.message.DecodeError, or what an implementation raises: it answered in
        # another way
        return 0, ""
    partial = response.partial_success
    return partial.rejected_spans, _one_line(partial.error_message)


def _one_line(text: str) -> str:
    """A text that a stranger has sent, for a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:500]).strip()


def address(target: str) -> str:
    """The address that spans are sent to. Raises VoirkitError: the target is no address."""
    try:
        path = urlsplit(target).path
    except ValueError as error:
        raise VoirkitError(
            f"this is no address: {error}.", where=f"-o {target}", next=_HINT
        ) from None
    return target if path.endswith(PATH) else target.rstrip("/") + PATH


def _headers() -> dict[str, str]:
    """``key=value,key2=value2`` of the environment, as every OpenTelemetry exporter reads it; the
    collector's key stands there."""
    given = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS")
        or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS")
        or ""
    )
    pairs = [pair.partition("=") for pair in given.split(",") if "=" in pair]
    return {
        **{unquote(key.strip()): unquote(value.strip()) for key, _, value in pairs},
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "gzip",
        "User-Agent": "voirkit",
    }


class _NoRedirects(HTTPRedirectHandler):
    """urllib would repeat a POST as a GET, without the spans, and take the answer to that for
    success."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = build_opener(_NoRedirects)


def _post(
    url: str, target: str, body: bytes, headers: Mapping[str, str], sleep: Callable[[float], None]
) -> tuple[str, bytes]:
    """Send one request; returns the kind of the answer and the answer."""
    for attempt in range(_TRIES):
        try:
            with _OPENER.open(Request(url, body, dict(headers)), timeout=_TIMEOUT_S) as answer:
                return answer.headers.get_content_type(), _read(answer)
        except HTTPError as error:
            with error:
                if error.code not in _BUSY or attempt == _TRIES - 1:
                    raise VoirkitError(
                        f"the collector answers: {error.code} {_one_line(str(error.reason))}.",
                        where=f"-o {target}",
                        next=_HINT,
                    ) from None
                sleep(_wait_s(error.headers.get("Retry-After"), attempt))
        except (OSError, ValueError, HTTPException) as error:
            why = getattr(error, "reason", error)  # URLError has one
            why = getattr(why, "strerror", None) or why
            raise VoirkitError(
                f"no collector can be reached there: {_one_line(str(why))}.",
                where=f"-o {target}",
                next=_HINT,
            ) from None
    raise AssertionError("the last attempt returns or raises")


def _read(answer: Any) -> bytes:
    """An answer, which is short and comes at once, or is none. Raises TimeoutError: it goes on and
    on."""
    parts = []
    size = 0
    deadline_s = time.monotonic() + _TIMEOUT_S
    while part := answer.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _LONGEST_ANSWER or time.monotonic() > deadline_s:
            raise TimeoutError("its answer does not end")
    return b"".join(parts)


def _wait_s(retry_after: str | None, attempt: int) -> float:
    try:
        seconds = float(retry_after or "")
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        seconds = 0.5 * 2.0**attempt
    return min(max(seconds, 0.0), _LONGEST_WAIT_S)
