"""A run directory, opened: what is in it, and what is said when it is damaged or none."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from recorded import LOOP_EVENTS, files, record, record_with_manifest, rows

import voirkit
from voirkit.analysis.summary import summary_of
from voirkit.errors import RunDirectoryError
from voirkit.runs import compaction
from voirkit.runs.opened import open_run
from voirkit.runs.record import join
from voirkit.runs.summary import empty
from voirkit.trace import layout

HOST = os.uname().nodename
TWO = "for i in range(100): span('a', 'b', NOW + i, NOW + i + 5, step=i)\nspan('c', 'd', NOW, NOW)"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record(tmp_path / "run", TWO)


def stem(run: Path) -> str:
    """The path of what the process recorded, without the suffix."""
    (names,) = [name for name in files(run) if name.endswith(".names")]
    return str(run / names.removesuffix(".names"))


def read(run: Path) -> tuple[int, list[str]]:
    """(how many events, warnings); twice, since what is damaged stays so."""
    found = []
    for _ in range(2):
        with open_run(run) as opened:
            found.append((len(rows(opened)), opened.warnings))
    assert found[0] == found[1]
    return found[0]


# what is in it


def test_rows_are_sorted_and_have_the_arguments_and_the_events_own_number(tmp_path: Path) -> None:
    with voirkit.open_run(record(tmp_path / "run")) as run:
        found = rows(run)
    assert len(found) == LOOP_EVENTS
    assert [row[3] for row in found] == sorted(row[3] for row in found)
    block, fetch, forward, *_ = sorted(found[:5], key=lambda row: -row[4])
    assert (block[0], block[1], block[2], block[4], block[9]) == (
        "span",
        "pipeline",
        "epoch.block",
        4_000_000,
        {"epoch": 0, "count": 1},
    )
    named = {row[2]: row for row in found[:5]}
    assert named["fetch.iter"][9] == {"epoch": 0, "step": 0, "count": 1}
    assert named["read"][9] == {}
    assert {row[0]: row[9] for row in found if row[0] != "span"} == {
        "mark": {"why": "end"},
        "counter": {"value": 12.5},
        "meta": {},
    }
    assert fetch[5:7] == forward[5:7] == (0, HOST)


def test_times_are_those_of_the_wall_clock(tmp_path: Path) -> None:
    body = "span('a', 'b', NOW, NOW); open(sys.argv[1] + '.time', 'w').write(str(time.time_ns() - (recorder.now() - NOW)))"
    with open_run(record(tmp_path / "run", body)) as run:
        (row,) = rows(run)
    assert abs(row[3] - int((tmp_path / "run.time").read_text())) < 5_000_000


@pytest.mark.parametrize(
    ("value", "read"),
    [("2**62", 2**62), ("-2**40", -(2**40)), ("10**30", 10**30), ("0.1", 0.1), ("1e300", 1e300), ("True", True), ("None", None), ("'x'", "x"),
     ("float('nan')", "nan"), ("float('-inf')", "-inf"), (r"'a\"b\\c\n\0\x7f\u2028é🙂'", 'a"b\\c\n\0\x7f\u2028é🙂'), (r"'\ud800'", "\\ud800"), ("[1]", "list")],
)  # fmt: skip
def test_arguments_come_back_as_they_were(tmp_path: Path, value: str, read: Any) -> None:
    with open_run(
        record(tmp_path / "run", f"span('a', 'b', NOW, NOW, ('count', 7), k={value})")
    ) as run:
        assert rows(run)[0][9] == {"k": read, "count": 7}
        assert type(rows(run)[0][9]["k"]) is type(read)


def test_names_may_be_any_text(tmp_path: Path) -> None:
    body = r"""span('c"\'\\', '\ud800\n', NOW, NOW, ("k'", 1)); span('', '', NOW, NOW)"""
    with open_run(record(tmp_path / "run", body)) as run:
        assert [row[1:3] for row in rows(run)] == [("c\"'\\", "\\ud800\n"), ("", "")]


def test_an_events_own_number_has_64_bits_and_a_counters_is_a_double(tmp_path: Path) -> None:
    body = "span('a', 'b', NOW, NOW, ('count', -2**63)); span('a', 'b', NOW, NOW, ('count', 2**63 - 1)); counter('a', 'c', NOW, float('inf'))"
    with open_run(record(tmp_path / "run", body)) as run:
        assert sorted(next(iter(row[9].values())) for row in rows(run)) == [
            -(2**63),
            2**63 - 1,
            math.inf,
        ]


def test_processes_and_threads_are_named(tmp_path: Path) -> None:
    body = """
    span('a', 'b', NOW, NOW)
    thread = threading.Thread(target=span, args=('a', 'b', NOW, NOW), name='reader')
    thread.start()
    thread.join()
    if not os.fork():
        span('a', 'b', NOW, NOW)
        os._exit(0)
    os.wait()
    """
    with open_run(record(tmp_path / "run", body)) as run:
        main, child = run.processes()
        assert child.ppid == main.pid
        assert main.offset_ns == child.offset_ns
        assert sorted(run.threads().values()) == ["MainThread", "MainThread", "reader"]
        assert {(row[7], row[8]) for row in rows(run)} == {
            (pid, tid) for _, _, pid, tid in run.threads()
        }


def test_what_was_dropped_is_known_of_each_process(tmp_path: Path) -> None:
    body = "recorder.begin(sys.argv[1], limit=300_000)\nfor i in range(20_000): span('a', 'b', NOW, NOW)"
    for _ in range(2):
        with open_run(
            record(tmp_path / "run", body) if not (tmp_path / "run").exists() else tmp_path / "run"
        ) as run:
            assert run.processes()[0].dropped["a.b"] + len(rows(run)) == 20_000


def test_a_summary_counts_what_every_process_dropped_beside_what_the_run_itself_says(
    tmp_path: Path,
) -> None:
    run = record_with_manifest(
        tmp_path / "run",
        "recorder.begin(sys.argv[1], limit=300_000)\nfor i in range(20_000): span('a', 'b', NOW, NOW)",
    )
    (run / "summary.json").write_text(
        json.dumps({**empty("0"), "ended": "normal", "dropped": {"log lines": 3}})
    )
    with open_run(run) as opened:
        dropped = summary_of(opened)["dropped"]
        assert dropped == {"log lines": 3, **opened.processes()[0].dropped}


def test_the_trace_is_a_relation_for_queries(tmp_path: Path) -> None:
    with open_run(record(tmp_path / "run")) as run:
        found = (
            run.trace()
            .filter("name = 'forward'")
            .aggregate("count(*), sum(duration_ns)::BIGINT, max(step)")
            .fetchall()
        )
    assert found == [(6, 600_000, 2)]


def test_a_run_without_a_trace_has_no_events(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1, "voirkit": "0"}')
    with open_run(tmp_path) as run:
        assert rows(run) == run.processes() == run.extents() == []
        assert run.trace().fetchall() == []
        assert run.manifest["voirkit"] == "0"


def test_closing_leaves_no_files(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spare))
    monkeypatch.setattr(compaction, "compact", lambda *_: None)
    with open_run(run) as opened:
        assert len(rows(opened)) == 101
        assert list(spare.iterdir())
    assert list(spare.iterdir()) == []


def test_a_closed_run_says_so(run: Path) -> None:
    opened = open_run(run)
    opened.close()
    opened.close()
    with pytest.raises(ValueError, match="has been closed"):
        opened.trace()


# what is none


@pytest.mark.parametrize(
    ("path", "said"),
    [("missing", "there is no such folder"), ("rum", "Did you mean 'run'"), ("file", "this is a file"), ("empty", "it has no run.json"),
     ("runs", "It holds runs: {}/runs/one")],
)  # fmt: skip
def test_what_is_no_run_is_one_clear_error(run: Path, path: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one/run.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=re.escape(said.format(tmp_path))):
        open_run(tmp_path / path)


# what is damaged


def test_without_names_the_events_are_counted_as_lost(run: Path) -> None:
    os.unlink(f"{stem(run)}.names")
    (segment,) = files(run)
    names = re.sub(r"-0\.seg$", ".names", str(run / segment))
    assert read(run) == (0, [f"{names} is missing: 101 events are lost."])


def test_a_damaged_line_of_names_loses_the_events_of_that_name(run: Path) -> None:
    path = Path(f"{stem(run)}.names")
    path.write_bytes(path.read_bytes().replace(b'"category":"c"', b'"category":\xff\x00'))
    assert read(run) == (100, [f"{path} is damaged: 1 event is lost."])


def test_a_damaged_header_loses_no_event(run: Path) -> None:
    path = Path(f"{stem(run)}.names")
    path.write_bytes(b'{"pid": "\xff\n' + path.read_bytes().partition(b"\n")[2])
    assert read(run) == (101, [])
    with open_run(run) as opened:
        assert opened.processes()[0].pid == int(stem(run).rpartition("-")[2])


@pytest.mark.parametrize("clocks", [b"3", b"null", b'{"time_ns":"x"}', b'{"perf_counter_ns":[]}'])
def test_a_header_with_clocks_of_another_type_loses_no_event(run: Path, clocks: bytes) -> None:
    path = Path(f"{stem(run)}.names")
    header, lines = path.read_bytes().split(b"\n", 1)
    path.write_bytes(re.sub(rb'"clocks":{[^}]*}', b'"clocks":' + clocks, header) + b"\n" + lines)
    assert read(run) == (101, [])


@pytest.mark.parametrize(
    "line",
    [
        b'{"n":1}',
        b'{"n":[],"kind":1,"category":2,"name":3}',
        b'{"a":x,"arguments":{}}',
        b"[]",
        b'{"t":1}',
        b"\xff\xfe",
        b"null",
    ],
)
def test_foreign_lines_among_the_names_do_no_harm(run: Path, line: bytes) -> None:
    with open(f"{stem(run)}.names", "ab") as file:
        file.write(line + b"\n")
    assert read(run) == (101, [])


def test_names_that_are_noise_lose_the_events_of_that_process_only(run: Path) -> None:
    path = Path(f"{stem(run)}.names")
    path.write_bytes(os.urandom(5000))
    record(run, TWO)
    assert read(run) == (101, [f"{path} is damaged: 101 events are lost."])


@pytest.mark.parametrize("kept", [0, 1, 63, 64, 70, 64 + 32 * 51, 64 + 32 * 51 + 7])
def test_of_a_truncated_segment_the_rest_is_read_and_it_is_named(run: Path, kept: int) -> None:
    path = f"{stem(run)}-0.seg"
    os.truncate(path, kept)
    told = [f"{path} is shorter than when its process ended; what it lacks is missing."]
    assert read(run) == (max((kept - 64) // 32 - 1, 0), told)


@pytest.mark.parametrize("kept", [0, 1, 63, 64, 70, 64 + 32 * 51, 64 + 32 * 51 + 7])
def test_a_segment_of_a_killed_process_is_not_taken_for_cut_short(run: Path, kept: int) -> None:
    names = Path(f"{stem(run)}.names")
    names.write_bytes(
        b"".join(
            line
            for line in names.read_bytes().splitlines(keepends=True)
            if not line.startswith(b'{"e":')
        )
    )
    os.truncate(f"{stem(run)}-0.seg", kept)
    assert read(run) == (max((kept - 64) // 32 - 1, 0), [])


def test_a_segment_that_may_not_be_read_is_told(run: Path) -> None:
    path = Path(f"{stem(run)}-1.seg")
    path.mkdir()  # which the administrator may not read as a file either
    assert read(run) == (
        101,
        [f"{path} cannot be read (Is a directory); what is in it is missing."],
    )


def test_a_segment_that_is_none_is_told(run: Path) -> None:
    path = Path(f"{stem(run)}-1.seg")
    path.write_bytes(b"something else" * 100)
    assert read(run) == (101, [f"{path} is damaged; what is in it is lost."])


def test_what_cannot_be_compacted_whole_leaves_no_drafts(run: Path) -> None:
    os.truncate(f"{stem(run)}-0.seg", 64 + 32 * 51)
    before = files(run)
    assert compaction.compact(str(run)).events == 0
    assert files(run) == before


def test_noise_in_a_segment_does_no_harm(run: Path) -> None:
    path = Path(f"{stem(run)}-0.seg")
    data = path.read_bytes()
    noise = struct.pack(layout.RECORD, 1, 2, 3, 4, 77)
    path.write_bytes(data[: 64 + 32 * 50] + noise + data[64 + 32 * 51 :])
    assert read(run) == (100, [f"{stem(run)}.names is damaged: 1 event is lost."])


def test_foreign_files_are_left_alone(run: Path) -> None:
    compaction.compact(str(run))
    foreign = [
        "trace/notes.txt",
        "trace/kind=span/rank=0/notes.txt",
        "trace/kind=span/notes.txt",
        "trace/kind=",
        "trace/x.seg",
        "trace/settle-r0.txt",
    ]
    for name in foreign:
        (run / name).write_text("mine")
    assert read(run) == (101, [])
    assert set(foreign) <= files(run)


def test_a_parquet_file_written_in_part_is_told_and_the_others_are_read(run: Path) -> None:
    compaction.compact(str(run))
    record(run, TWO)
    compaction.compact(str(run))
    path = run / f"trace/kind=span/rank=0/{HOST}-0.parquet"
    os.truncate(path, path.stat().st_size // 2)
    assert read(run) == (101, [f"{path} cannot be read; what is in it is lost."])


def test_a_parquet_file_of_another_kind_is_told(run: Path) -> None:
    import duckdb

    compaction.compact(str(run))
    path = run / "trace/kind=span/rank=0/other.parquet"
    duckdb.sql(f"COPY (SELECT 1 AS x) TO '{path}'")
    assert read(run) == (101, [f"{path} cannot be read; what is in it is lost."])


def test_duckdb_never_shows_a_progress_bar(run: Path) -> None:
    query = "SELECT value FROM duckdb_settings() WHERE name = 'enable_progress_bar'"
    with open_run(run) as opened:
        assert opened.connection().execute(query).fetchall() == [("false",)]


def test_a_parquet_file_that_is_damaged_inside_is_an_error_that_names_the_run(run: Path) -> None:
    compaction.compact(str(run))
    path = run / f"trace/kind=span/rank=0/{HOST}-0.parquet"
    data = bytearray(path.read_bytes())
    data[4:600] = os.urandom(596)
    path.write_bytes(data)
    with (
        open_run(run) as opened,
        pytest.raises(RunDirectoryError, match="its trace cannot be read"),
    ):
        rows(opened)


@pytest.mark.parametrize("text", ["", "x", '{"pid": 1}', '{"pid": 1', "[]"])
def test_without_the_description_of_the_processes_the_events_are_there(
    run: Path, text: str
) -> None:
    (run / "run.json").write_text(
        json.dumps(
            {"schema": 1, "voirkit": "0", "clocks": {"perf_counter_ns": 0, "time_ns": 10**18}}
        )
    )
    compaction.compact(str(run))
    path = run / f"trace/processes/{HOST}-r0-0.jsonl"
    path.write_text(text)
    damaged = [f"{path} is damaged: names of processes and threads are missing."] if text else []
    assert read(run) == (101, damaged)
    with open_run(run) as opened:
        assert rows(opened)[0][3] > 10**18
        assert opened.extents()[0].events == 101


@pytest.mark.parametrize("name", ["run.json", "summary.json"])
@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "[" * 100_000])
def test_a_damaged_manifest_or_summary_is_told(run: Path, name: str, text: str) -> None:
    (run / name).write_text(text)
    with open_run(run) as opened:
        assert len(rows(opened)) == 101
        assert opened.warnings == [f"{run / name} cannot be read; it is damaged."]


def test_a_run_may_be_copied_and_its_folders_name_may_be_odd(run: Path, tmp_path: Path) -> None:
    compaction.compact(str(run))
    odd = tmp_path / "it's=a 'kind=x' {}*?[a]"
    shutil.copytree(run, odd)
    assert read(odd) == (101, [])
    record(odd, TWO)
    assert read(odd) == (202, [])


def test_a_manifest_that_cannot_be_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(json, "dump", full)
        with pytest.raises(RunDirectoryError, match="No space left"):
            join(str(tmp_path), "test")
    assert os.listdir(tmp_path) == []
    assert join(str(tmp_path), "test").leads


def test_what_another_process_could_not_record_takes_nothing_from_what_the_run_knows(
    tmp_path: Path,
) -> None:
    run = record_with_manifest(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps({**empty("1"), "dropped": {"a.b": 100}}))
    with open_run(run) as opened, pytest.MonkeyPatch.context() as process:
        (first, *_) = opened.processes()
        process.setattr(
            type(opened), "processes", lambda _: [first._replace(dropped={"a.b": 5, "c.d": 1})]
        )
        assert summary_of(opened)["dropped"] == {"a.b": 100, "c.d": 1}
