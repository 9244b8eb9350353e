"""``--format otlp``: OpenTelemetry spans, for Jaeger, Tempo and all that speaks OTLP.

To a file: JSON lines, a TracesData each, as OpenTelemetry specifies it for files; a collector's otlpjsonfile receiver reads
it. To an endpoint, ``-o http://127.0.0.1:4318``: protobuf over HTTP, sent while the run is read.

Messages are made with the classes of ``opentelemetry-proto`` (checked with 1.45.2), in the extra ``voirkit[export]``. What a collector does
not take is an error: nothing is lost silently. That is why it is not sent by ``opentelemetry-exporter-otlp-proto-http``: its 1.45.2 takes
spans of the SDK only (22 us a span to make and encode, 8 here), drops integers beyond 64 bits and text that is no UTF-8, and calls it a
success when a collector has rejected spans, redirects, or is a web page.

A run is one trace: with ids, with parents, and marks as events of the span they happened in. Ids follow from what is recorded, so that
exporting a run twice, or parts of it, gives the same ones and a collector can tell what it has.
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
from itertools import islice
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
_HINT = "A collector listens on http://HOST:4318 for OTLP over HTTP (4317 is gRPC). To a file: -o run.otlp.jsonl"


class Span:
    """One span. ``attributes`` may hold what a recorded argument may be: numbers, text, booleans, None; times are in ns since the epoch."""

    __slots__ = ("attributes", "end_ns", "events", "id", "link", "name", "parent", "process", "start_ns")

    def __init__(self, process: Key, id: bytes, parent: bytes, name: str, times: tuple[int, int], attributes: dict[str, Any]) -> None:
        self.process, self.id, self.parent, self.name, self.attributes = process, id, parent, name, attributes
        self.start_ns, self.end_ns = times
        self.events: list[tuple[int, str, Mapping[str, Any]]] = []
        self.link: bytes | None = None  # id of the span that leads to this one


class Thread:
    """What is open in one thread, or beside it (a device)."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.nesting: Nesting[Span] = Nesting()
        self.last, self.repeated = "", 0


class Spans:
    """The trace of a run. Beside the recorded spans it has one for the run, which is the root, and one for each process, within that of its
    parent process. ``left_out`` is the number of counters' values: those are no spans."""

    def __init__(self, run: Run) -> None:
        manifest = run.manifest
        self._labels = Labels(run)
        self.left_out = 0
        self.script = script_name(manifest) or "python"
        identity = [manifest.get("host"), manifest.get("pid"), manifest.get("clocks"), manifest.get("job")]
        self.trace_id = blake2b(repr(identity if manifest else run.path).encode(), digest_size=16).digest()
        self._manifest = manifest

    def of(self, batches: Iterable[Iterable[tuple[Any, ...]]]) -> Iterator[Span]:
        """Make spans of the rows, which come as ``Nesting`` asks; each is given when it is over."""
        threads: dict[tuple[Key, int, str], Thread] = {}
        processes: dict[Key, Span] = {}
        flows: dict[Any, bytes] = {}
        for batch in batches:
            for kind, category, name, start_ns, duration_ns, rank, host, pid, tid, arguments in batch:
                key = host, rank, pid
                if kind == "counter":
                    self.left_out += len(arguments)
                    continue
                process = processes.get(key)
                if process is None:
                    process = processes[key] = self._process(key, start_ns)
                process.end_ns = max(process.end_ns, start_ns + duration_ns)
                moment = kind in ("mark", "meta")
                beside = "" if moment or kind in ("span", "phase", "loader") else kind
                thread = threads.get((key, tid, beside))
                if thread is None:
                    thread = threads[key, tid, beside] = Thread({"thread.id": tid, "thread.name": self._labels.thread(key, tid)})
                for _, _, span in thread.nesting.ended(start_ns):
                    yield span
                holder = thread.nesting.holder(start_ns + duration_ns)
                if moment and holder is not None:
                    holder.events.append((start_ns, name, {"voirkit.category": category, **arguments}))
                    continue
                attributes = {
                    **thread.attributes,
                    "voirkit.category": category,
                    **({"voirkit.kind": kind} if kind != "span" else {}),
                    **arguments,
                }
                id = self._id(thread, f"{host} {rank} {pid} {tid} {kind} {category} {name} {start_ns} {duration_ns}")
                span = Span(key, id, (holder or process).id, name, (start_ns, start_ns + duration_ns), attributes)
                if FLOW in arguments:
                    span.link = flows.pop(arguments[FLOW], None)
                    flows[arguments[FLOW]] = id
                    if len(flows) > _FLOWS:
                        del flows[next(iter(flows))]
                if moment:
                    yield span
                else:
                    thread.nesting.add(start_ns, span.end_ns, span)
        for thread in threads.values():
            for _, _, span in thread.nesting.ended():
                yield span
        yield from self._tree(processes)

    def resource(self, process: Key) -> dict[str, Any]:
        """What the spans of a process have in common, in OpenTelemetry's words."""
        host, rank, pid = process
        found = self._labels.processes.get(process)
        return {
            "service.name": self.script,
            "service.instance.id": f"{host}-r{rank}-{pid}",
            "host.name": host,
            "process.pid": pid,
            **({} if found is None else {"process.parent_pid": found.ppid}),
            "process.title": self._labels.process(process),
            "voirkit.rank": rank,
            "telemetry.sdk.name": "voirkit",
            "telemetry.sdk.language": "python",
        }

    def _id(self, thread: Thread, what: str) -> bytes:
        if what != thread.last:
            thread.last, thread.repeated = what, 0
        else:  # a clock may stand still
            thread.repeated += 1
            what = f"{what} {thread.repeated}"
        return self._hash(what)

    def _hash(self, what: str) -> bytes:
        return blake2b(what.encode("utf-8", "backslashreplace"), digest_size=8, key=self.trace_id).digest()

    def _process(self, key: Key, start_ns: int) -> Span:
        id = self._hash("process {} {} {}".format(*key))
        return Span(key, id, b"", self._labels.process(key), (start_ns, start_ns), {"voirkit.kind": "process"})

    def _tree(self, processes: dict[Key, Span]) -> Iterator[Span]:
        """The spans of the processes and of the run, now that all is known of them."""
        if not processes:
            return
        first = min(processes.values(), key=lambda span: span.start_ns)
        times = first.start_ns, max(span.end_ns for span in processes.values())
        main = (self._manifest.get("host"), self._manifest.get("rank"), self._manifest.get("pid"))
        where = next((key for key in processes if key == main), first.process)
        root = Span(where, self._hash("run"), b"", f"voirkit {self.script}", times, {"voirkit.kind": "run"})
        command = self._manifest.get("command")
        if command:
            root.attributes["voirkit.command"] = " ".join(map(str, command))
        for key, span in processes.items():
            found = self._labels.processes.get(key)
            starter = processes.get((key[0], key[1], found.ppid)) if found is not None and found.ppid != found.pid else None
            span.parent = (starter or root).id
            yield span
        yield root


def script_name(manifest: Mapping[str, Any]) -> str:
    """The script's file name, or the module of ``-m``."""
    command = [str(word) for word in manifest.get("command") or []]
    return command[0].replace("\\", "/").rsplit("/", 1)[-1] if command else ""


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a file of JSON lines, or send to an endpoint if the target is an ``http://`` or ``https://`` address. Raises VoirkitError: the
    endpoint cannot be reached or refuses; or the package ``opentelemetry-proto``, which it needs, is not installed."""
    spans = Spans(run)
    batches = _batches(spans.of(run.rows(selection)))
    if target.startswith(("http://", "https://")):
        send(spans, batches, target)
    else:
        with text(target) as put:
            for batch in batches:
                put(json.dumps(_as_json(_traces_data(spans, batch)), separators=(",", ":"), allow_nan=False) + "\n")
    if spans.left_out:
        tell(f"export: {spans.left_out} values of counters are no spans and not in it; --format parquet has them.")
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
    """The fields of a TracesData, which are also those of the request that sends one, by their names in the protocol."""
    return {
        "resource_spans": [
            {
                "resource": {"attributes": _attributes(spans.resource(process))},
                "scope_spans": [{"scope": {"name": SCOPE}, "spans": [_span(spans.trace_id, span) for span in members]}],
            }
            for process, members in batch.items()
        ]
    }


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
            {"time_unix_nano": at_ns, "name": unicode_text(name), "attributes": _attributes(attributes)}
            for at_ns, name, attributes in span.events
        ]
    if span.link is not None:
        fields["links"] = [{"trace_id": trace_id, "span_id": span.link}]
    return fields


def _attributes(mapping: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": unicode_text(key), "value": {} if value is None else dict([typed(value)])} for key, value in mapping.items()]


def _as_json(value: Any) -> Any:
    """Fields in OTLP's JSON: ids in hexadecimal digits, 64-bit integers as text."""
    kind = type(value)
    if kind is dict:
        return {_json_name(name): below if name == "kind" else _as_json(below) for name, below in value.items()}
    if kind is list:
        return [_as_json(below) for below in value]
    if kind is bytes:
        return value.hex()
    if kind is int:
        return str(value)
    if kind is float and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"  # as protobuf's JSON has it
    return value


@cache
def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def send(spans: Spans, batches: Iterable[Mapping[Key, list[Span]]], target: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send all the batches, one after the other.

    Args:
        batches: Spans by their process.
        target: The address; ``/v1/traces`` is added if it is not there. ``$OTEL_EXPORTER_OTLP_HEADERS`` may hold further headers.
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
    rejected, reasons = 0, dict[str, None]()
    for batch in batches:
        request = service.ExportTraceServiceRequest(**_traces_data(spans, batch))
        kind, answer = _post(url, target, gzip.compress(request.SerializeToString(), 1), headers, sleep)
        n, reason = _parse_answer(service, kind, answer, target)
        rejected += n
        if reason:
            reasons[reason] = None
    reply = "; ".join(list(reasons)[:3])
    if rejected:
        raise VoirkitError(f"the collector rejected {rejected} spans: {reply or 'no reason given'}", where=f"-o {target}")
    if reply:
        tell(f"-o {target}: the collector reports: {reply}")


def _parse_answer(service: Any, kind: str, answer: bytes, target: str) -> tuple[int, str]:
    """How many spans a collector has rejected, and what it says. Raises VoirkitError: it is none: a web page is no answer to spans."""
    if kind == "text/html":
        raise VoirkitError("what answers there is no collector: it sends a web page.", where=f"-o {target}", next=_HINT)
    try:
        if kind == "application/json":
            partial = json.loads(answer or b"{}").get("partialSuccess") or {}
            return int(partial.get("rejectedSpans") or 0), _one_line(str(partial.get("errorMessage") or ""))
        found = service.ExportTraceServiceResponse()
        found.ParseFromString(answer)
    except Exception:  # google.protobuf.message.DecodeError, or what an implementation raises: it answered in another way
        return 0, ""
    return found.partial_success.rejected_spans, _one_line(found.partial_success.error_message)


def _one_line(text: str) -> str:
    """What a stranger has sent, for a terminal."""
    return "".join(c if c.isprintable() else " " for c in text[:500]).strip()


def address(target: str) -> str:
    """Where spans are sent to. Raises VoirkitError: the target is no address."""
    try:
        path = urlsplit(target).path
    except ValueError as error:
        raise VoirkitError(f"this is no address: {error}.", where=f"-o {target}", next=_HINT) from None
    return target if path.endswith(PATH) else target.rstrip("/") + PATH


def _headers() -> dict[str, str]:
    """``key=value,key2=value2`` of the environment, as every OpenTelemetry exporter reads it; the collector's key stands there."""
    given = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
    pairs = [pair.partition("=") for pair in given.split(",") if "=" in pair]
    return {
        **{unquote(key.strip()): unquote(value.strip()) for key, _, value in pairs},
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "gzip",
        "User-Agent": "voirkit",
    }


class _NoRedirects(HTTPRedirectHandler):
    """urllib would repeat a POST as a GET, without the spans, and take the answer to that for success."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = build_opener(_NoRedirects)


def _post(url: str, target: str, body: bytes, headers: Mapping[str, str], sleep: Callable[[float], None]) -> tuple[str, bytes]:
    """Send one request; returns the kind of the answer and the answer."""
    for attempt in range(_TRIES):
        try:
            with _OPENER.open(Request(url, body, dict(headers)), timeout=_TIMEOUT_S) as answer:
                return answer.headers.get_content_type(), _read(answer)
        except HTTPError as error:
            with error:
                if error.code not in _BUSY or attempt == _TRIES - 1:
                    raise VoirkitError(
                        f"the collector answers: {error.code} {_one_line(str(error.reason))}.", where=f"-o {target}", next=_HINT
                    ) from None
                sleep(_wait_s(error.headers.get("Retry-After"), attempt))
        except (OSError, ValueError, HTTPException) as error:
            why = getattr(error, "reason", error)  # URLError has one
            why = getattr(why, "strerror", None) or why
            raise VoirkitError(f"no collector can be reached there: {_one_line(str(why))}.", where=f"-o {target}", next=_HINT) from None
    raise AssertionError("the last attempt returns or raises")


def _read(answer: Any) -> bytes:
    """An answer, which is short and comes at once, or is none. Raises TimeoutError: it goes on and on."""
    parts, size, end = [], 0, time.monotonic() + _TIMEOUT_S
    while part := answer.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _LONGEST_ANSWER or time.monotonic() > end:
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
