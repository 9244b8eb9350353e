"""DFTracer's trace: bracket lines, one strict JSON object a line without commas, whole microseconds, a gzip file for each process."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recorded import LOOP_EVENTS, files, record

from voirkit.export.trace_events import PFW
from voirkit.runs.opened import open_run
from voirkit.runs.selection import EVERYTHING, selection

HOST = os.uname().nodename


def refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def export(run: Path, steps: str | None = None) -> dict[str, list[Any]]:
    """The records of each file, which has the form of the dialect."""
    out = run.parent / "out"
    out.mkdir(exist_ok=True)
    with open_run(run) as opened:
        written = PFW.write(opened, EVERYTHING if steps is None else selection(steps), str(out))
    assert {str(out / name) for name in files(out)} == set(written), (
        "nothing else is written beside"
    )
    return {os.path.basename(path): read(path) for path in written}


def read(path: str) -> list[Any]:
    lines = gzip.decompress(Path(path).read_bytes()).decode().split("\n")
    assert lines[0] == "["
    assert lines[-2:] == ["]", ""]
    found = [json.loads(line, parse_constant=refuse) for line in lines[1:-2]]
    assert {one["ph"] for one in found} <= {"X", "M"}
    for one in found:
        if one["ph"] == "X":
            assert type(one["ts"]) is type(one["dur"]) is int
    return found


def own(records: list[Any]) -> list[Any]:
    """The program's events: not the format's bookkeeping."""
    return [one for one in records if one["ph"] == "X" and one["cat"] != "dftracer"]


def one_file(run: Path) -> list[Any]:
    (records,) = export(run).values()
    return records


def test_every_span_and_mark_is_there_once(tmp_path: Path) -> None:
    found = own(one_file(record(tmp_path / "run")))
    assert len(found) == LOOP_EVENTS - 2, "all but the counter and the metadata"
    assert Counter(one["name"] for one in found)["forward"] == 6
    forward = next(one for one in found if one["name"] == "forward")
    assert {**forward["args"], "hhash": ""} == {"hhash": "", "epoch": 0, "step": 0}
    assert next(one for one in found if one["name"] == "fetch.iter")["args"]["count"] == 1
    assert next(one for one in found if one["name"] == "done")["dur"] == 0


def test_metadata_records_have_the_dialects_form(tmp_path: Path) -> None:
    (meta,) = [
        one
        for one in one_file(record(tmp_path / "run"))
        if one["args"].get("name") == "epoch.start"
    ]
    assert (meta["name"], meta["cat"], meta["ph"]) == ("CM", "dftracer", "M")
    assert meta["args"]["value"].isdigit()
    assert "ts" not in meta


def test_bookkeeping_names_the_host_the_process_and_its_threads(tmp_path: Path) -> None:
    records = one_file(record(tmp_path / "run"))
    named = {one["name"]: one["args"] for one in records if one["cat"] == "dftracer"}
    assert named["HH"]["name"] == HOST
    assert {one["args"]["hhash"] for one in records} == {named["HH"]["value"]}
    assert named["thread_name"]["name"] == "MainThread"
    assert named["end"]["num_events"] == LOOP_EVENTS
    assert named["SH"]["value"] in (
        named["start"]["cmd_hash"],
        named["start"]["cwd"],
        named["start"]["exec_hash"],
    )


def test_each_process_has_a_file(tmp_path: Path) -> None:
    body = """
    span('a', 'b', NOW, NOW)
    if not os.fork():
        span('a', 'b', NOW, NOW)
        os._exit(0)
    os.wait()
    """
    for rank in range(2):
        record(tmp_path / "run", body, RANK=str(rank))
    exported = export(tmp_path / "run")
    assert len(exported) == 4
    for name, records in exported.items():
        assert name == f"{HOST}-r{name.split('-r')[1][0]}-{records[0]['pid']}.pfw.gz"
        assert {one["pid"] for one in records} == {records[0]["pid"]}
        assert len(own(records)) == 1


def test_many_events_of_many_processes_stay_in_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("voirkit.runs.opened.BATCH", 7)
    for rank in range(5):
        record(
            tmp_path / "run",
            f"for i in range({rank * 10 + 3}): span('a', 'b', NOW + i, NOW + i, rank={rank})",
            RANK=str(rank),
        )
    exported = export(tmp_path / "run")
    found = {
        name: Counter(one["args"]["rank"] for one in own(records))
        for name, records in exported.items()
    }
    assert sorted((rank, n) for counts in found.values() for rank, n in counts.items()) == [
        (rank, rank * 10 + 3) for rank in range(5)
    ]
    assert all(
        [one["id"] for one in own(records)] == list(range(1, len(own(records)) + 1))
        for records in exported.values()
    )


def test_spans_in_one_another_stay_so_in_whole_microseconds(tmp_path: Path) -> None:
    body = """
    for i in range(0, 3000, 37):
        span('a', 'outer', NOW + i, NOW + i + 2700, number=i)
        span('a', 'inner', NOW + i + 130, NOW + i + 2690, number=i)
    """
    found: dict[Any, Any] = {}
    for one in own(one_file(record(tmp_path / "run", body))):
        found.setdefault(one["args"]["number"], {})[one["name"]] = one
    for pair in found.values():
        inner, outer = pair["inner"], pair["outer"]
        assert outer["ts"] <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    total = sum(pair["outer"]["dur"] for pair in found.values())
    assert abs(total - 2.7 * len(found)) < 0.05 * total


@pytest.mark.parametrize(
    "value",
    ["float('nan')", "-float('inf')", r"'\"\\\n\0\x1f\u2028'", r"'\ud800'", "10**400", "'[\\n]'"],
)
def test_odd_arguments_and_names_are_strict_json_on_one_line(tmp_path: Path, value: str) -> None:
    run = record(
        tmp_path / "run", f"span(str({value}), str({value}), NOW, NOW, **{{str({value}): {value}}})"
    )
    assert len(own(one_file(run))) == 1


def test_a_selection_has_only_its_events(tmp_path: Path) -> None:
    (records,) = export(record(tmp_path / "run"), steps="0").values()
    assert Counter(one["name"] for one in own(records)) == {
        "fetch.iter": 2,
        "forward": 2,
        "compute": 2,
        "read": 2,
    }
    named = {one["name"]: one for one in records if one["cat"] == "dftracer"}
    assert named["end"]["args"]["num_events"] == 8
    assert named["start"]["ts"] == min(one["ts"] for one in own(records))


def test_a_run_without_events_is_an_empty_trace(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text('{"schema": 1, "voirkit": "0"}')
    assert export(tmp_path / "run") == {"run.pfw.gz": []}


def test_gzip_has_a_single_member(tmp_path: Path) -> None:
    import zlib

    export(record(tmp_path / "run"))
    (path,) = (tmp_path / "out").iterdir()
    unpack = zlib.decompressobj(wbits=31)
    unpack.decompress(path.read_bytes())
    assert unpack.eof
    assert unpack.unused_data == b""


def test_a_target_that_is_a_file_takes_all_processes(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path / "run", "span('a', 'b', NOW, NOW)", RANK=str(rank))
    with open_run(tmp_path / "run") as opened:
        assert PFW.write(opened, EVERYTHING, str(tmp_path / "all.pfw.gz")) == [
            str(tmp_path / "all.pfw.gz")
        ]
    assert len(own(read(str(tmp_path / "all.pfw.gz")))) == 2


def test_arguments_that_are_called_like_the_formats_own_get_another_name(tmp_path: Path) -> None:
    body = """
    arguments = recorder.arguments({"hhash": "mine", "name": "n", "value": 3, "text": '"hhash":'})
    recorder.span(recorder.name("a", "b"), NOW, NOW + 9, arguments)
    recorder.mark(recorder.name("a", "m", "meta"), NOW, arguments)
    """
    records = one_file(record(tmp_path / "run", body))
    (span,) = own(records)
    assert span["args"] == {
        "hhash": records[0]["args"]["value"],
        "_hhash": "mine",
        "name": "n",
        "value": 3,
        "text": '"hhash":',
    }
    (meta,) = (one for one in records if one["name"] == "CM" and one["args"]["name"] == "m")
    assert {key: value for key, value in meta["args"].items() if key.startswith("_")} == {
        "_hhash": "mine",
        "_name": "n",
        "_value": 3,
    }
