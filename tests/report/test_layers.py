"""Every format says the same of a run: how often and how long each layer was at work in each process is a direct sum over the run's files."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from annotated import COUNTS, PROCESSES, PROGRAM, record
from conftest import Place
from recorded import OF_OTHER_RUNS

from voirkit.export import formats

Layer = tuple[str, str, int]  # category, name, process
Events = Iterator[tuple[str, str, int, int]]  # category, name, process, time in ns


def chrome(path: Path) -> Events:
    for one in json.loads(path.read_text())["traceEvents"]:
        if one["ph"] == "X":
            yield one["cat"], one["name"], one["pid"], round(one["dur"] * 1000)


def pfw(path: Path) -> Events:
    for file in path.iterdir():
        for line in gzip.decompress(file.read_bytes()).decode().splitlines():
            one = json.loads(line) if line.startswith("{") else {"ph": ""}
            if one["ph"] == "X" and one["cat"] != "dftracer":
                yield one["cat"], one["name"], one["pid"], one["dur"] * 1000


def perfetto(path: Path) -> Events:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    names: dict[str, dict[int, str]] = defaultdict(dict)
    pids, parents, begun, ended = {}, {}, defaultdict(list), defaultdict(list)
    for packet in protos.Trace.FromString(path.read_bytes()).packet:
        for table in ("event_names", "event_categories"):
            names[table].update(
                {entry.iid: entry.name for entry in getattr(packet.interned_data, table)}
            )
        track = packet.track_descriptor
        parents[track.uuid] = track.parent_uuid
        if track.HasField("process"):
            pids[track.uuid] = track.process.pid
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            label = (
                names["event_categories"][event.category_iids[0]],
                names["event_names"][event.name_iid],
            )
            begun[event.track_uuid].append((packet.timestamp, label))
        elif event.type == event.TYPE_SLICE_END:
            ended[event.track_uuid].append(packet.timestamp)
    for track_uuid, begins in begun.items():
        open_: list[Any] = []
        process = track_uuid
        while process not in pids:
            process = parents[process]
        ends = [(at, -1, None) for at in ended[track_uuid]]
        for at, kind, label in sorted(
            [*((at, 1, label) for at, label in begins), *ends], key=lambda one: one[:2]
        ):
            if kind > 0:
                open_.append((at, label))
            else:
                start, label = open_.pop()
                yield *label, pids[process], at - start


def otlp(path: Path) -> Events:
    for line in path.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            (pid,) = (
                int(one["value"]["intValue"])
                for one in resource["resource"]["attributes"]
                if one["key"] == "process.pid"
            )
            for span in resource["scopeSpans"][0]["spans"]:
                (category,) = [
                    one["value"]["stringValue"]
                    for one in span["attributes"]
                    if one["key"] == "voirkit.category"
                ] or [""]
                if category:  # else it is that of the run or of a process
                    yield (
                        category,
                        span["name"],
                        pid,
                        int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]),
                    )


def parquet(path: Path) -> Events:
    yield from duckdb.sql(
        f"SELECT category, name, pid, duration_ns FROM read_parquet('{path}')"
    ).fetchall()


def arrow(path: Path) -> Events:
    ipc = pytest.importorskip("pyarrow.ipc")
    with ipc.open_file(str(path)) as file:
        for row in file.read_all().to_pylist():
            yield row["category"], row["name"], row["pid"], row["duration_ns"]


def csv_(path: Path) -> Events:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            yield row["category"], row["name"], int(row["pid"]), int(row["duration_ns"])


READ: dict[str, Callable[[Path], Events]] = {
    "chrome": chrome, "pfw": pfw, "perfetto": perfetto, "otlp": otlp, "parquet": parquet, "arrow": arrow, "csv": csv_,
}  # fmt: skip


def summed(events: Events) -> dict[Layer, tuple[int, int]]:
    """How many, and the sum of their times, of each layer."""
    found: dict[Layer, tuple[int, int]] = {}
    for category, name, pid, time_ns in events:
        n, sum_ns = found.get((category, name, pid), (0, 0))
        found[category, name, pid] = n + 1, sum_ns + time_ns
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return record(tmp_path_factory.mktemp("layers"), PROGRAM)


@pytest.mark.parametrize("format", [name for name in formats() if name not in OF_OTHER_RUNS])
def test_counts_and_times_of_each_layer_are_a_direct_sum(place: Place, format: str) -> None:
    (offset_ns,) = {
        one["time_ns"] - one["perf_counter_ns"]
        for path in sorted((place.folder / "run/trace/processes").iterdir())
        for one in sorted(
            map(json.loads, path.read_text().splitlines()), key=lambda one: one["time_ns"]
        )[:1]
    }
    wall = f"(start_ns + {offset_ns})"
    # DFTracer's times are whole microseconds: a span lasts from that in which it began to that in which it ended
    time = (
        f"1000 * (({wall} + duration_ns) // 1000 - {wall} // 1000)"
        if format == "pfw"
        else "duration_ns"
    )
    query = f"SELECT category, name, pid, count(*), sum({time})::BIGINT FROM '{place.folder}/run/trace/kind=*/**/*.parquet' GROUP BY ALL"
    direct = {tuple(layer): (n, sum_ns) for *layer, n, sum_ns in duckdb.sql(query).fetchall()}
    counts: Counter[tuple[str, str]] = Counter()
    for (category, name, _), (n, _) in direct.items():
        if category != "python":  # imports, and how many of them take long enough to be recorded
            counts[category, name] += n
    assert counts == COUNTS
    assert len({pid for _, _, pid in direct}) == PROCESSES
    target = place.folder / f"x.{format}" if format != "pfw" else place.folder / "pfw"
    ended = place.python("-m", "voirkit", "export", "run", "--format", format, "-o", str(target))
    assert (ended.code, ended.err) == (0, "")
    found = summed(READ[format](target))
    if (
        format == "pfw"
    ):  # which leaves out what voirkit records by itself where the script annotates
        direct = {layer: sums for layer, sums in direct.items() if layer[0] != "python"}
    assert found == direct
