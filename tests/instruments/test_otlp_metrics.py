"""``--otlp``: a collector on the loopback gets the metrics of a run while it goes on, under the names that ``--prometheus`` has."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import Place
from live_training import TRAINING

from voirkit.live import Number, Picture
from voirkit_instruments.metrics import METRICS
from voirkit_instruments.otlp_writer import endpoint

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

SCRIPT = (
    TRAINING
    + """
import os
training = Training(length=10_000)
training.begin()
limit = time.monotonic() + 100
while not os.path.exists("seen") and time.monotonic() < limit:
    training.step()
    time.sleep(0.01)
print("trained")
"""
)


class Collector:
    """An OTLP endpoint that keeps, for each request, the values by metric and labels."""

    refuses = 0  # how many requests, first

    def __init__(self, place: Place) -> None:
        outer = self
        requests: list[dict[str, dict[tuple[tuple[str, str], ...], float]]] = []
        resources: list[dict[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.refuses:
                    outer.refuses -= 1
                    self.send_error(400)
                    return
                request = ExportMetricsServiceRequest()
                request.ParseFromString(
                    gzip.decompress(body)
                    if self.headers.get("Content-Encoding") == "gzip"
                    else body
                )
                (of_resource,) = request.resource_metrics
                resources.append(
                    {one.key: one.value.string_value for one in of_resource.resource.attributes}
                )
                (scope,) = of_resource.scope_metrics
                requests.append({metric.name: dict(points(metric)) for metric in scope.metrics})
                (place.folder / "seen").touch()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

            def log_message(self, *_: Any) -> None:
                pass

        self.requests, self.resources, self._server = (
            requests,
            resources,
            ThreadingHTTPServer(("127.0.0.1", 0), Handler),
        )
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def points(metric: Any) -> Iterator[tuple[tuple[tuple[str, str], ...], float]]:
    kind = metric.WhichOneof("data")
    assert kind == ("sum" if metric.name.endswith("_total") else "gauge")
    assert kind != "sum" or metric.sum.is_monotonic
    for point in getattr(metric, kind).data_points:
        value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
        yield tuple((one.key, one.value.string_value) for one in point.attributes), value


@pytest.fixture
def collector(place: Place) -> Iterator[Collector]:
    """A collector on the loopback."""
    started = Collector(place)
    yield started
    started.close()


def test_a_collector_gets_the_metrics_while_the_run_goes_on_and_at_its_end(
    place: Place, collector: Collector
) -> None:
    place.write(main=SCRIPT)
    ended = place.voirkit("--otlp", collector.address, "main.py")
    assert (ended.code, ended.out) == (0, "trained\n"), ended.err
    assert "otlp" not in ended.err
    first, last = collector.requests[0], collector.requests[-1]
    assert (
        0
        < first["voirkit_steps_total"][()]
        < last["voirkit_steps_total"][()]
        == ended.summary["steps"]["n"]
    )
    assert first["voirkit_phase_share"][(("phase", "wait"),)] == pytest.approx(0.5, abs=0.001)
    assert first["voirkit_step_seconds"][()] == pytest.approx(0.01, rel=0.01)
    assert last["voirkit_rate_items_per_second"][(("rate", "train_rate"),)] == pytest.approx(
        400, rel=0.01
    )
    assert last["voirkit_verdict_info"] == {(("kind", ended.summary["verdict"]["kind"]),): 1.0}
    assert (
        last["voirkit_last_step_timestamp_seconds"][()]
        >= first["voirkit_last_step_timestamp_seconds"][()]
        > 1e9
    )
    assert {name for one in collector.requests for name in one} <= {
        metric.name for metric in METRICS
    }
    assert (collector.resources[0]["service.name"], collector.resources[0]["voirkit.run"]) == (
        "main.py",
        "run",
    )


def test_the_program_has_no_child_of_it_and_imports_nothing_for_it(
    place: Place, collector: Collector
) -> None:
    place.write(
        main="""
        import os, sys
        try:
            print(os.wait())
        except ChildProcessError:
            print("no child")
        print([name for name in sys.modules if name.startswith(("opentelemetry", "requests", "voirkit.live", "numpy"))])
        """
    )
    ended = place.voirkit("--otlp", collector.address, "main.py", env={"PYTHONWARNINGS": "error"})
    assert (ended.code, ended.out) == (0, "no child\n[]\n"), ended.err
    assert "Warning" not in ended.err


def test_a_program_that_closes_what_it_does_not_know_finds_nothing_in_its_files(
    place: Place, collector: Collector
) -> None:
    place.write(
        main=TRAINING
        + """
import signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.closerange(3, 100)
files = [open(f"file{n}", "w+") for n in range(20)]
training = Training(length=400)
training.begin()
for _ in range(250):
    training.step()
    time.sleep(0.01)
print({file.read() for file in files})
"""
    )
    ended = place.voirkit("--otlp", collector.address, "main.py")
    assert (ended.code, ended.out) == (0, "{''}\n"), ended.err


def test_a_collector_that_does_not_answer_costs_the_program_nothing(place: Place) -> None:
    place.write(main=TRAINING + "Training(length=20).epoch()\nprint('trained')\n")
    ended = place.voirkit(
        "--otlp", "http://127.0.0.1:9", "main.py", env={"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    )
    assert (ended.code, ended.out) == (0, "trained\n")
    assert "voirkit: otlp: not all was written (" in ended.err


def test_a_collector_that_refuses_once_gets_what_comes_after(
    place: Place, collector: Collector
) -> None:
    collector.refuses = 1
    place.write(main=SCRIPT)
    ended = place.voirkit("--otlp", collector.address, "main.py")
    n = 1 + len(collector.requests)
    assert n > 2
    assert collector.requests[-1]["voirkit_steps_total"][()] == ended.summary["steps"]["n"]
    assert (
        f"voirkit: otlp: not all was written (the collector did not take the metrics, or did not answer, 1 of {n} times)."
        in ended.err
    )


def test_an_address_is_one_of_http() -> None:
    assert (
        endpoint("http://127.0.0.1:4318")
        == endpoint("http://127.0.0.1:4318/v1/metrics")
        == "http://127.0.0.1:4318/v1/metrics"
    )
    for wrong in (
        "127.0.0.1:4317",
        "grpc://127.0.0.1:4317",
        "http://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
    ):
        with pytest.raises(ValueError, match="no address"):
            endpoint(wrong)


def test_of_several_ranks_each_has_values_of_its_own() -> None:
    rows = [
        {
            "rank": rank,
            "host": "a",
            "time_s": {"median": 0.1 + rank},
            "phases": {"wait": {"share": 0.25}},
        }
        for rank in (0, 1)
    ]
    picture = Picture(
        ranks=rows,
        last_step_s={0: 100.0, 1: 90.0},
        rates=[Number("train_rate", 5.0, "items/s", ())],
    )
    found = {metric.name: dict(metric.values(picture)) for metric in METRICS}
    assert found["voirkit_rank_step_seconds"] == {("0", "a"): 0.1, ("1", "a"): 1.1}
    assert found["voirkit_rank_phase_share"] == {("0", "a", "wait"): 0.25, ("1", "a", "wait"): 0.25}
    assert found["voirkit_rank_last_step_timestamp_seconds"] == {
        ("0", "a"): 100.0,
        ("1", "a"): 90.0,
    }
    assert found["voirkit_last_step_timestamp_seconds"] == {(): 100.0}
