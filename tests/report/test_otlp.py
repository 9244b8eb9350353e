"""``--format otlp``: read back with OpenTelemetry's own classes, from a file and by a receiver on this host."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Place
from google.protobuf import json_format
from made_run import HOST, PID, START, MadeRun, Process, row
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.trace.v1 import trace_pb2
from recorded import record_with_manifest

from voirkit.errors import VoirkitError
from voirkit.export import otlp

LONG_INT = 2**70


def plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


def plain_all(attributes: Any) -> dict[str, Any]:
    return {one.key: plain(one.value) for one in attributes}


class Received:
    """Spans by their names, with the attributes of their resources."""

    def __init__(self, documents: list[Any]) -> None:
        self.spans = [
            (plain_all(r.resource.attributes), s)
            for d in documents
            for r in d.resource_spans
            for scope in r.scope_spans
            for s in scope.spans
        ]
        self.by_name = {span.name: span for _, span in self.spans}
        self.resources = {span.name: resource for resource, span in self.spans}

    def parent(self, name: str) -> str:
        wanted = self.by_name[name].parent_span_id
        return next((span.name for _, span in self.spans if span.span_id == wanted), "")


def from_file(run: MadeRun, folder: Path) -> Received:
    path = folder / "run.otlp.jsonl"
    assert otlp.write(run, None, str(path)) == [str(path)]  # type: ignore[arg-type]
    return Received(
        [traces_data(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    )


def traces_data(document: dict[str, Any]) -> Any:
    """OTLP's JSON is protobuf's, but for ids in hexadecimal digits."""
    for r in document["resourceSpans"]:
        for scope in r["scopeSpans"]:
            for span in scope["spans"]:
                for ids in (span, *span.get("links", ())):
                    for key in {"traceId", "spanId", "parentSpanId"} & set(ids):
                        ids[key] = base64.urlsafe_b64encode(bytes.fromhex(ids[key])).decode()
    return json_format.ParseDict(document, trace_pb2.TracesData())


class Receiver(HTTPServer):
    """A collector, as far as OTLP over HTTP goes."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.paths: list[str] = []
        self.headers: list[Any] = []
        self.answers: list[
            tuple[int, dict[str, str], bytes]
        ] = []  # (status, headers, body) of the next ones; then 200
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, headers, answer = (
            self.server.answers.pop(0)
            if self.server.answers
            else (200, {"Content-Type": "application/x-protobuf"}, b"")
        )
        if status == 200:
            self.server.requests.append(
                service.ExportTraceServiceRequest.FromString(gzip.decompress(body))
            )
        self.server.paths.append(self.path)
        self.server.headers.append(self.headers)
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(answer))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(params=["file", "endpoint"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Export a run to a file or to an endpoint and read what came: the same, either way."""

    def to_endpoint(run: MadeRun) -> Received:
        receiver = request.getfixturevalue("receiver")
        assert otlp.write(run, None, receiver.address) == [receiver.address]  # type: ignore[arg-type]
        return Received(receiver.requests)

    return to_endpoint if request.param == "endpoint" else lambda run: from_file(run, tmp_path)


def test_a_span_keeps_its_name_times_and_arguments(export: Any) -> None:
    arguments = {
        "epoch": 1,
        "lr": 0.1,
        "train": True,
        "what": 'a"b\n',
        "none": None,
        "huge": LONG_INT,
        "small": -(2**63),
        "inf": float("-inf"),
        "half": "\ud800",
    }
    span = export(MadeRun([row("forward", 10, 33, **arguments)])).by_name["forward"]
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (START + 10, START + 43)
    assert span.kind == trace_pb2.Span.SPAN_KIND_INTERNAL
    assert plain_all(span.attributes) == {
        "thread.id": PID,
        "thread.name": "MainThread",
        "voirkit.category": "compute",
        **arguments,
        "huge": str(LONG_INT),
        "half": "\\ud800",
    }


def test_parents_follow_from_times_within_a_thread(export: Any) -> None:
    other = (HOST, PID, 101)
    rows = [
        row("train", 0, 100),
        row("step", 0, 50),
        row("forward", 10, 40),
        row("next", 50, 50),
        row("alone", 20, 10, thread=other),
        row("after", 100, 5),
    ]
    found = export(MadeRun(rows))
    assert {
        name: found.parent(name) for name in ("train", "step", "forward", "next", "alone", "after")
    } == {
        "train": "main.py",
        "step": "train",
        "forward": "step",
        "next": "train",
        "alone": "main.py",
        "after": "main.py",
    }


def test_spans_that_overlap_are_no_parents_of_each_other(export: Any) -> None:
    found = export(
        MadeRun(
            [row("all", 0, 500), row("one", 0, 100), row("two", 50, 100), row("in two", 110, 10)]
        )
    )
    assert {name: found.parent(name) for name in ("one", "two", "in two")} == {
        "one": "all",
        "two": "all",
        "in two": "two",
    }


def test_the_run_is_the_root_and_processes_lie_in_those_that_started_them(export: Any) -> None:
    run = MadeRun(
        [row("a", 0, 10), row("b", 5, 15, thread=(HOST, 200, 200))],
        made_of=(Process(), Process(pid=200, ppid=PID, name="worker")),
    )
    found = export(run)
    assert {name: found.parent(name) for name in ("voirkit main.py", "main.py", "worker", "b")} == {
        "voirkit main.py": "",
        "main.py": "voirkit main.py",
        "worker": "main.py",
        "b": "worker",
    }
    root = found.by_name["voirkit main.py"]
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (START, START + 20)
    assert plain_all(root.attributes) == {
        "voirkit.kind": "run",
        "voirkit.command": "train/main.py --epochs 1",
    }


def test_a_resource_tells_host_process_rank_and_service(export: Any) -> None:
    run = MadeRun(
        [row("a", 0, 1, thread=("node2", 7, 7), rank=3)],
        made_of=(Process(pid=7, rank=3, host="node2"),),
    )
    resource = export(run).resources["a"]
    assert {
        key: resource[key]
        for key in (
            "host.name",
            "process.pid",
            "voirkit.rank",
            "service.name",
            "service.instance.id",
            "process.parent_pid",
        )
    } == {
        "host.name": "node2",
        "process.pid": 7,
        "voirkit.rank": 3,
        "service.name": "main.py",
        "service.instance.id": "node2-r3-7",
        "process.parent_pid": 1,
    }


def test_a_mark_is_an_event_of_its_span_and_a_span_where_there_is_none(export: Any) -> None:
    found = export(
        MadeRun(
            [
                row("save", 0, 10),
                row("written", 5, kind="mark", category="checkpoint", n=2),
                row("lonely", 30, kind="mark"),
            ]
        )
    )
    (event,) = found.by_name["save"].events
    assert (event.name, event.time_unix_nano, plain_all(event.attributes)) == (
        "written",
        START + 5,
        {"voirkit.category": "checkpoint", "n": 2},
    )
    lonely = found.by_name["lonely"]
    assert lonely.start_time_unix_nano == lonely.end_time_unix_nano == START + 30


def test_spans_of_one_flow_are_linked_to_the_one_before(export: Any) -> None:
    rows = [
        row("load", 0, 5, flow=7, thread=(HOST, 200, 200)),
        row("other", 1, 5, flow=8),
        row("train", 10, 5, flow=7),
        row("save", 20, 5, flow=7),
    ]
    found = export(MadeRun(rows))
    links = {
        name: [link.span_id for link in found.by_name[name].links]
        for name in ("load", "other", "train", "save")
    }
    assert links == {
        "load": [],
        "other": [],
        "train": [found.by_name["load"].span_id],
        "save": [found.by_name["train"].span_id],
    }


def test_ids_are_valid_unique_and_the_same_in_every_export(export: Any, tmp_path: Path) -> None:
    rows = [row("same", 0, 0), row("same", 0, 0), row("other", 0, 5)]
    first, again = export(MadeRun(rows)), from_file(MadeRun(rows[:2]), tmp_path)
    ids = {span.span_id for _, span in first.spans}
    assert len(ids) == len(first.spans) == 5
    assert {len(id) for id in ids} == {8}
    assert {len(span.trace_id) for _, span in first.spans} == {16}
    assert {span.span_id for _, span in again.spans} < ids
    assert {span.trace_id for _, span in again.spans} == {span.trace_id for _, span in first.spans}


def test_another_run_has_another_trace_id(tmp_path: Path) -> None:
    one, other = MadeRun([row("a", 0, 1)]), MadeRun([row("a", 0, 1)])
    other.manifest["clocks"] = {"time_ns": START + 1}
    assert (
        from_file(one, tmp_path).by_name["a"].trace_id
        != from_file(other, tmp_path).by_name["a"].trace_id
    )


def test_long_runs_are_written_in_parts(export: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_SPANS_AT_ONCE", 7)
    found = export(MadeRun([row(f"span {i}", i * 10, 9) for i in range(50)]))
    assert len(found.spans) == 52


def test_values_of_counters_are_told_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = from_file(
        MadeRun([row("a", 0, 1), row("memory", 0, kind="counter", value=1.0)]), tmp_path
    )
    assert "memory" not in found.by_name
    assert "1 values of counters are no spans and not in it" in capsys.readouterr().err


def test_a_run_without_events_gives_an_empty_file(tmp_path: Path) -> None:
    assert from_file(MadeRun([], made_of=()), tmp_path).spans == []


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("", "/v1/traces"),
        ("/", "/v1/traces"),
        ("/v1/traces", "/v1/traces"),
        ("/api", "/api/v1/traces"),
    ],
)
def test_the_path_of_the_protocol_is_added(receiver: Receiver, suffix: str, path: str) -> None:
    otlp.write(MadeRun([row("a", 0, 1)]), None, receiver.address + suffix)  # type: ignore[arg-type]
    assert receiver.paths == [path]


def test_headers_of_the_environment_are_sent(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc, x-scope = team")
    otlp.write(MadeRun([row("a", 0, 1)]), None, receiver.address)  # type: ignore[arg-type]
    (headers,) = receiver.headers
    assert (headers["Authorization"], headers["X-Scope"], headers["Content-Type"]) == (
        "Basic abc",
        "team",
        "application/x-protobuf",
    )


def test_a_collector_that_listens_nowhere_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(VoirkitError) as told:
        otlp.write(MadeRun([row("a", 0, 1)]), None, address)  # type: ignore[arg-type]
    assert str(told.value).startswith(
        f"-o {address}: no collector can be reached there: Connection refused."
    )


@pytest.mark.parametrize(
    "address", ["http://", "http://127.0.0.1:99999", "http://[", "http://no such host"]
)
def test_an_address_that_is_none_is_one_clear_error(address: str) -> None:
    with pytest.raises(VoirkitError):
        otlp.write(MadeRun([row("a", 0, 1)]), None, address)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (404, {}),
        (401, {}),
        (500, {}),
        (301, {"Location": "/elsewhere"}),
        (307, {"Location": "/elsewhere"}),
    ],
)
def test_an_answer_that_is_no_success_is_an_error(
    receiver: Receiver, status: int, headers: dict[str, str]
) -> None:
    receiver.answers = [(status, headers, b"")]
    with pytest.raises(VoirkitError, match=f"the collector answers: {status} "):
        otlp.write(MadeRun([row("a", 0, 1)]), None, receiver.address)  # type: ignore[arg-type]
    assert receiver.paths == ["/v1/traces"]


def test_a_busy_collector_is_asked_again_when_it_says(receiver: Receiver) -> None:
    receiver.answers = [(429, {"Retry-After": "3"}, b""), (503, {}, b"")]
    waits: list[float] = []
    run = MadeRun([row("a", 0, 1)])
    spans = otlp.Spans(run)  # type: ignore[arg-type]
    otlp.send(spans, otlp._batches(spans.of(run.rows(None))), receiver.address, sleep=waits.append)
    assert waits == [3.0, 1.0]
    assert "a" in Received(receiver.requests).by_name


def test_a_collector_that_stays_busy_is_an_error(receiver: Receiver) -> None:
    receiver.answers = [(503, {}, b"")] * 20
    run = MadeRun([row("a", 0, 1)])
    spans = otlp.Spans(run)  # type: ignore[arg-type]
    with pytest.raises(VoirkitError, match="503"):
        otlp.send(
            spans,
            otlp._batches(spans.of(run.rows(None))),
            receiver.address,
            sleep=lambda seconds: None,
        )


def rejecting(n: int, why: str) -> tuple[int, dict[str, str], bytes]:
    answer = service.ExportTraceServiceResponse()
    answer.partial_success.rejected_spans, answer.partial_success.error_message = n, why
    return 200, {"Content-Type": "application/x-protobuf"}, answer.SerializeToString()


def test_spans_that_a_collector_rejects_are_counted_and_an_error_at_the_end(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "_SPANS_AT_ONCE", 2)
    json_answer = json.dumps(
        {"partialSuccess": {"rejectedSpans": "1", "errorMessage": "odd\n\x1b[31m"}}
    ).encode()
    receiver.answers = [
        rejecting(2, "too old"),
        (200, {"Content-Type": "application/json"}, json_answer),
        rejecting(1, "too old"),
    ]
    with pytest.raises(
        VoirkitError, match=re.escape("the collector rejected 4 spans: too old; odd  [31m")
    ):
        otlp.write(MadeRun([row("a", n, 1) for n in range(6)]), None, receiver.address)  # type: ignore[arg-type]
    assert len(receiver.requests) == 4, "what comes after those is sent"


def test_what_a_collector_that_takes_all_has_to_say_is_told(
    receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.answers = [rejecting(0, "use gzip")]
    otlp.write(MadeRun([row("a", 0, 1)]), None, receiver.address)  # type: ignore[arg-type]
    assert (
        capsys.readouterr().err
        == f"voirkit: -o {receiver.address}: the collector reports: use gzip\n"
    )


def test_a_web_page_is_no_collector(receiver: Receiver) -> None:
    receiver.answers = [
        (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>It works!</html>")
    ]
    with pytest.raises(VoirkitError, match="no collector: it sends a web page"):
        otlp.write(MadeRun([row("a", 0, 1)]), None, receiver.address)  # type: ignore[arg-type]


@pytest.mark.parametrize("told", ["nan", "", "Wed, 21 Oct 2026 07:28:00 GMT", "-1", "1e99"])
def test_whatever_a_busy_collector_says_it_is_asked_again(receiver: Receiver, told: str) -> None:
    receiver.answers = [(429, {"Retry-After": told}, b"")]
    waits: list[float] = []
    run = MadeRun([row("a", 0, 1)])
    spans = otlp.Spans(run)  # type: ignore[arg-type]
    otlp.send(spans, otlp._batches(spans.of(run.rows(None))), receiver.address, sleep=waits.append)
    assert len(waits) == 1
    assert 0 <= waits[0] <= 30


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "timed out"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "timed out"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3_000_000, "its answer does not end"),
        (b"\x1b\xff nonsense\r\n\r\n", "nonsense"),
    ],
    ids=["none", "no end", "flood", "nonsense"],
)
def test_a_collector_that_hangs_or_talks_nonsense_is_an_error(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, why: str
) -> None:
    monkeypatch.setattr(otlp, "_TIMEOUT_S", 0.3 if why == "timed out" else 60)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 20)
                connection.sendall(answer)
                if b"nonsense" not in answer:
                    over.wait(120)

        over = threading.Event()
        thread = threading.Thread(target=hang)
        thread.start()
        try:
            with pytest.raises(
                VoirkitError, match=f"no collector can be reached there: .*{why}"
            ) as told:
                otlp.write(
                    MadeRun([row("a", 0, 1)]), None, f"http://127.0.0.1:{server.getsockname()[1]}"
                )  # type: ignore[arg-type]
        finally:
            over.set()
            thread.join()
    assert str(told.value).partition("\n")[0].isprintable()


@pytest.mark.parametrize(
    ("format", "target", "told"),
    [
        ("chrome", "http://127.0.0.1:4318", "chrome is written to files; only otlp can be sent."),
        ("pfw", "ftp://host/x", "pfw is written to files; only otlp can be sent."),
        (
            "otlp",
            "grpc://127.0.0.1:4317",
            "spans are sent over HTTP only.\n  --format otlp -o http://HOST:4318",
        ),
    ],
)
def test_what_can_not_be_sent_is_one_clear_error_and_makes_no_file(
    place: Place, format: str, target: str, told: str
) -> None:
    record_with_manifest(place.folder / "run")
    ended = place.python("-m", "voirkit", "export", "run", "--format", format, "-o", target)
    assert (ended.code, ended.out, ended.err) == (2, "", f"voirkit: -o {target}: {told}\n")
    assert [path.name for path in place.folder.iterdir()] == ["run"]


def test_the_command_sends_a_run_to_a_collector(place: Place, receiver: Receiver) -> None:
    record_with_manifest(place.folder / "run")
    ended = place.python(
        "-m",
        "voirkit",
        "export",
        "run",
        "--format",
        "otlp",
        "-o",
        f"{receiver.address}/",
        "--steps",
        "1:2",
    )
    assert (ended.code, ended.err, ended.out) == (0, "", f"{receiver.address}/\n")
    steps = {
        plain_all(span.attributes)["step"]
        for _, span in Received(receiver.requests).spans
        if span.name == "forward"
    }
    assert steps == {1}
