"""Segments become Parquet when a run is over; each record is read exactly once, whoever is killed and whoever reads meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from conftest import CLEAN
from recorded import LOOP_EVENTS, files, record, rows, start

from voirkit.runs import compaction, parquet
from voirkit.runs.opened import open_run
from voirkit.runs.parquet import connect

pytestmark = pytest.mark.long

HOST = os.uname().nodename
NUMBERED = "for i in range({n}): span('a', f'name {{i % 7}}', NOW + i, NOW + i + 5, step=i)"


def steps(run: Path) -> Counter[int]:
    """How often each step is read."""
    with open_run(run) as opened:
        assert opened.warnings == []
        return Counter(row[9]["step"] for row in rows(opened))


def unsettled(run: Path, tmp_path: Path) -> Counter[int]:
    """The same, read by somebody who may not write to the folder."""
    with connect(str(tmp_path / "spill")) as connection:
        parquet.open_trace(str(run), connection, str(tmp_path / "spare"))
        found = connection.execute("SELECT step, count(*) FROM spans GROUP BY step").fetchall()
    shutil.rmtree(tmp_path / "spare", ignore_errors=True)
    return Counter(dict(found))


def settle(run: Path, *, crash_at: int = -1) -> int:
    """Settle in a process of its own, which ends without a word before it changes the folder for the n-th time; its exit code."""
    code = f"""
import os, sys
from voirkit.runs.compaction import compact
left = {crash_at}
def count(original):
    def counted(*args, **kwargs):
        global left
        left -= 1
        if left == -1:
            os._exit(9)
        return original(*args, **kwargs)
    return counted
if left >= 0:
    for name in ("replace", "unlink", "fsync", "makedirs", "rmdir", "chmod"):
        setattr(os, name, count(getattr(os, name)))
compact(sys.argv[1])
"""
    return subprocess.run(
        [sys.executable, "-c", code, str(run)], env=CLEAN, timeout=240, check=False
    ).returncode


def test_the_same_is_read_from_segments_and_at_rest(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    with connect(str(tmp_path / "spill")) as connection:
        parquet.open_trace(str(run), connection, str(tmp_path / "spare"))
        before = connection.execute("SELECT * FROM spans ORDER BY ALL").fetchall()
    assert compaction.compact(str(run)).events == LOOP_EVENTS
    with open_run(run) as opened:
        assert sorted(opened.trace().fetchall(), key=str) == sorted(before, key=str)


def test_a_run_at_rest_has_a_file_for_each_kind_and_rank_and_no_segments(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    compaction.compact(str(run))
    kinds = {
        f"trace/kind={kind}/rank=0/{HOST}-0.parquet" for kind in ("span", "mark", "counter", "meta")
    }
    assert files(run) == {*kinds, f"trace/processes/{HOST}-r0-0.jsonl"}


def test_files_at_rest_are_sorted_by_start_and_compressed_with_zstd(tmp_path: Path) -> None:
    run = record(
        tmp_path / "run",
        "for i in range(5000): span('a', f'name {i % 7}', NOW - i, NOW, step=i // 100)",
    )
    compaction.compact(str(run))
    path = f"{run}/trace/kind=span/rank=0/{HOST}-0.parquet"
    starts = [
        start for (start,) in duckdb.sql(f"SELECT start_ns FROM read_parquet('{path}')").fetchall()
    ]
    assert starts == sorted(starts)
    assert duckdb.sql(
        f"SELECT DISTINCT compression FROM parquet_metadata('{path}')"
    ).fetchall() == [("ZSTD",)]
    encodings = dict(
        duckdb.sql(f"SELECT path_in_schema, encodings FROM parquet_metadata('{path}')").fetchall()
    )
    assert all("DICTIONARY" in encodings[name] for name in ("category", "name", "args", "host"))


def test_settling_again_changes_nothing(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    compaction.compact(str(run))
    before = files(run)
    assert compaction.compact(str(run)) == compaction.Compacted(0, [])
    assert files(run) == before


def test_what_is_recorded_later_goes_into_further_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for i in range(3):
        record(run, f"span('a', 'b', NOW, NOW + 1, step={i})")
        compaction.compact(str(run))
    assert steps(run) == Counter({0: 1, 1: 1, 2: 1})
    assert len([name for name in files(run) if name.endswith(".parquet")]) == 3


def test_a_large_recording_is_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voirkit.trace.reader.MOST", 100)
    monkeypatch.setattr("voirkit.trace.reader.Pieces.__init__.__defaults__", (100,))
    run = record(tmp_path / "run", NUMBERED.format(n=450))
    compaction.compact(str(run))
    assert len([name for name in files(run) if name.endswith(".parquet")]) == 5
    assert steps(run) == Counter(range(450))


@pytest.mark.parametrize("crash_at", range(13))
def test_whoever_settles_may_die_at_any_point(tmp_path: Path, crash_at: int) -> None:
    run = record(tmp_path / "run", NUMBERED.format(n=100))
    before = len(files(run))
    code = settle(run, crash_at=crash_at)
    assert unsettled(run, tmp_path) == Counter(range(100))
    assert steps(run) == Counter(range(100))
    assert len(files(run)) == 2, "the Parquet file and the process"
    if crash_at < 10:
        assert code == 9
        assert before


@pytest.mark.slow
def test_whoever_settles_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    kept = record(tmp_path / "kept", NUMBERED.format(n=100_000))
    command = [sys.executable, "-m", "voirkit.runs.compaction"]
    shutil.copytree(kept, tmp_path / "timed")
    began = time.perf_counter()
    subprocess.run([*command, str(tmp_path / "timed")], env=CLEAN, check=True)
    takes = time.perf_counter() - began
    choose = random.Random(4)
    for attempt in range(8):
        run = tmp_path / f"run{attempt}"
        shutil.copytree(kept, run)
        for _ in range(3):
            process = subprocess.Popen([*command, str(run)], env=CLEAN)
            try:
                process.wait(choose.uniform(0.3 * takes, takes))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert unsettled(run, tmp_path) == Counter(range(100_000))
        assert steps(run) == Counter(range(100_000))


def test_several_may_settle_at_once(tmp_path: Path) -> None:
    run = record(tmp_path / "run", NUMBERED.format(n=20_000))
    command = [sys.executable, "-m", "voirkit.runs.compaction", str(run)]
    several = [subprocess.Popen(command, env=CLEAN) for _ in range(4)]
    assert [process.wait(60) for process in several] == [0, 0, 0, 0]
    assert steps(run) == Counter(range(20_000))
    assert len(files(run)) == 2


def test_each_rank_settles_its_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for rank in range(2):
        record(run, f"span('a', 'b', NOW, NOW + 1, step={rank})", RANK=str(rank))
    assert compaction.main([str(run), "--rank", "1"]) == 0
    assert f"trace/kind=span/rank=1/{HOST}-0.parquet" in files(run)
    assert len([name for name in files(run) if name.endswith(".seg")]) == 1
    with open_run(run) as opened:
        assert sorted((row[5], row[9]["step"]) for row in rows(opened)) == [(0, 0), (1, 1)]


@pytest.fixture
def living(tmp_path: Path) -> Any:
    """A run that goes on: it has recorded 10 steps, and records as many more for each line that it is told."""
    body = """
    step = 0
    while True:
        for step in range(step, step + 10):
            span('a', 'b', recorder.now(), recorder.now(), step=step)
        step += 1
        print("recorded", flush=True)
        sys.stdin.readline() or sys.exit()
    """
    process = start(tmp_path / "run", body)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_living_process_is_read_and_left_alone(living: Any, tmp_path: Path) -> None:
    run, before = tmp_path / "run", files(tmp_path / "run")
    assert steps(run) == Counter(range(10))
    living.stdin.write("\n")
    living.stdin.flush()
    living.stdout.readline()
    assert steps(run) == Counter(range(20))
    assert files(run) == before


def test_a_killed_run_is_put_to_rest_when_it_is_opened(living: Any, tmp_path: Path) -> None:
    living.send_signal(signal.SIGKILL)
    living.wait()
    assert steps(tmp_path / "run") == Counter(range(10))
    assert not any(name.endswith((".seg", ".names")) for name in files(tmp_path / "run"))


def test_a_living_process_that_records_no_more_can_be_named(living: Any, tmp_path: Path) -> None:
    assert compaction.main([str(tmp_path / "run"), "--ended", str(living.pid)]) == 0
    assert not any(name.endswith((".seg", ".names")) for name in files(tmp_path / "run"))


def test_names_of_a_dead_parent_stay_while_a_child_lives(tmp_path: Path) -> None:
    body = """
    span('a', 'b', NOW, NOW + 1, step=0)
    if os.fork():
        os._exit(0)
    span('a', 'b', NOW, NOW + 1, step=1)
    print("recorded", flush=True)
    sys.stdin.readline()
    """
    process = start(tmp_path / "run", body)
    assert process.stdout is not None
    process.stdout.readline()
    process.wait()
    assert steps(tmp_path / "run") == Counter([0, 1])
    kept = files(tmp_path / "run")
    assert len([name for name in kept if name.endswith(".names")]) == 2
    assert len([name for name in kept if name.endswith(".seg")]) == 1
    process.communicate("\n")


def test_a_folder_that_can_not_be_written_to_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    run = record(tmp_path / "run", NUMBERED.format(n=100))
    monkeypatch.setattr(compaction, "locked", refuse)
    before = files(run)
    assert steps(run) == Counter(range(100))
    assert files(run) == before


def test_what_is_put_to_rest_while_it_is_read_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(tmp_path / "run", NUMBERED.format(n=100))
    look, looks = parquet.layout, []

    def settled_meanwhile(path: str, ranks: Any) -> Any:
        found = look(path, ranks)
        if not looks:
            compaction.compact(path)
        looks.append(path)
        return found

    monkeypatch.setattr(parquet, "layout", settled_meanwhile)
    assert unsettled(run, tmp_path) == Counter(range(100))
    assert len(looks) == 4, "twice, and again"


def test_a_full_disk_leaves_the_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise duckdb.IOException("No space left on device")

    run = record(tmp_path / "run", NUMBERED.format(n=100))
    before = files(run)
    monkeypatch.setattr(compaction.parquet, "write", fail)
    assert compaction.main([str(run)]) == 1
    assert "the trace stays in segments" in capsys.readouterr().err
    assert files(run) == before


def test_a_run_without_a_trace_is_at_rest(tmp_path: Path) -> None:
    assert compaction.compact(str(tmp_path)) == compaction.Compacted(0, [])
    assert list(tmp_path.iterdir()) == []
