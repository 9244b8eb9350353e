"""Every format says the same of a run: how often and how long each layer was at work in each process is a direct sum over the run's files."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

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
    "chrome": chrome,
    "pfw": pfw,
    "parquet": parquet,
    "arrow": arrow,
    "csv": csv_,
}


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
