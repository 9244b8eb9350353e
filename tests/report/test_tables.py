"""CSV, Parquet and Arrow hold the same table: an event a row, sorted by start, with the names of processes and threads."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import duckdb
import pytest
from recorded import LOOP_EVENTS, record

from voirkit.export import load
from voirkit.runs.opened import open_run
from voirkit.runs.selection import EVERYTHING, selection

COLUMNS = [
    "start_ns", "duration_ns", "kind", "category", "name", "epoch", "step", "value_key", "value", "number", "args", "rank", "host", "pid", "process",
    "tid", "thread",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    body = r"""
    for i in range(3):
        span("a", "b", NOW + i, NOW + 10 * i, ("count", i), step=i, text='x,"\n\u2028\0')
    counter("system", "cpu", NOW + 50, 0.1)
    """
    return record(tmp_path_factory.mktemp("tables") / "run", body)


def export(run: Path, name: str, target: Path, *chosen: str) -> Path:
    with open_run(run) as opened:
        assert load(name).write(
            opened, selection(*chosen) if chosen else EVERYTHING, str(target)
        ) == [str(target)]
    return target


def test_parquet_has_everything(run: Path, tmp_path: Path) -> None:
    found = duckdb.sql(
        f"SELECT * FROM read_parquet('{export(run, 'parquet', tmp_path / 'x.parquet')}')"
    )
    assert found.columns == COLUMNS
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in found.fetchall()]
    assert [row["step"] for row in rows] == [0, 1, 2, None]
    assert rows[2]["value"] == 2
    assert rows[2]["start_ns"] - rows[0]["start_ns"] == 2
    assert (rows[3]["kind"], rows[3]["number"], rows[3]["value_key"]) == ("counter", 0.1, "value")
    assert {(row["process"], row["thread"]) for row in rows} == {("-c", "MainThread")}


@pytest.mark.parametrize("name", ["csv", "arrow"])
def test_the_others_hold_the_same(run: Path, tmp_path: Path, name: str) -> None:
    parquet = duckdb.sql(
        f"SELECT * FROM read_parquet('{export(run, 'parquet', tmp_path / 'x.parquet')}')"
    ).fetchall()
    path = export(run, name, tmp_path / f"x.{name}")
    if name == "csv":
        types = ", ".join(f"'{column}': 'VARCHAR'" for column in ("args", "value_key", "name"))
        found = duckdb.sql(
            f"SELECT * FROM read_csv('{path}', header = true, types = {{{types}}})"
        ).fetchall()
    else:
        ipc = pytest.importorskip("pyarrow.ipc")
        with ipc.open_file(str(path)) as file:
            found = [tuple(row.values()) for row in file.read_all().to_pylist()]
    assert found == parquet


def test_csv_can_be_compressed(run: Path, tmp_path: Path) -> None:
    text = gzip.decompress(export(run, "csv", tmp_path / "x.csv.gz").read_bytes())
    assert text.decode().startswith(",".join(COLUMNS) + "\n")


@pytest.mark.parametrize("name", ["csv", "parquet", "arrow"])
def test_a_selection_has_only_its_events(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow" if name == "arrow" else "duckdb")
    whole = export(record(tmp_path / "loop"), name, tmp_path / "whole")
    part = export(tmp_path / "loop", name, tmp_path / "part", "0:1")
    read = {
        "csv": "SELECT count(*) FROM read_csv('{}')",
        "parquet": "SELECT count(*) FROM read_parquet('{}')",
    }
    if name in read:
        assert [duckdb.sql(read[name].format(path)).fetchall() for path in (whole, part)] == [
            [(LOOP_EVENTS,)],
            [(8,)],
        ]
    else:
        import pyarrow.ipc as ipc

        assert [ipc.open_file(str(path)).read_all().num_rows for path in (whole, part)] == [
            LOOP_EVENTS,
            8,
        ]


def test_a_run_without_events_is_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text('{"schema": 1, "voirkit": "0"}')
    path = export(tmp_path / "run", "parquet", tmp_path / "x.parquet")
    assert duckdb.sql(f"SELECT * FROM read_parquet('{path}')").fetchall() == []
