"""The trace-event export: strict JSON after the format's public description, with everything that was recorded."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from recorded import LOOP_EVENTS, record

from voirkit.export.trace_events import CHROME
from voirkit.runs.opened import open_run
from voirkit.runs.selection import EVERYTHING, selection

SCHEMA = json.loads((Path(__file__).parent / "trace_event_schema.json").read_text())


def refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def export(run: Path, steps: str | None = None, name: str = "trace.json") -> dict[str, Any]:
    """The document, which is strict JSON and as the format wants it."""
    with open_run(run) as opened:
        (path,) = CHROME.write(
            opened, EVERYTHING if steps is None else selection(steps), str(run.parent / name)
        )
    data = Path(path).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    jsonschema.validate(document, SCHEMA)
    return document


def events(document: dict[str, Any], ph: str = "XiC") -> list[Any]:
    return [one for one in document["traceEvents"] if one["ph"] in ph]


def test_every_event_is_there_as_what_it_is(tmp_path: Path) -> None:
    document = export(record(tmp_path / "run"))
    assert Counter(one["ph"] for one in events(document)) == {"X": LOOP_EVENTS - 3, "i": 2, "C": 1}
    assert next(one for one in events(document) if one["name"] == "forward")["args"] == {
        "epoch": 0,
        "step": 0,
    }
    assert next(one for one in events(document) if one["name"] == "fetch.iter")["args"] == {
        "epoch": 0,
        "step": 0,
        "count": 1,
    }
    assert events(document, "C")[0]["args"] == {"value": 12.5}


def test_times_begin_with_the_first_event_and_keep_nanoseconds(tmp_path: Path) -> None:
    document = export(
        record(
            tmp_path / "run",
            "span('a', 'b', NOW, NOW + 1); span('a', 'b', NOW + 123_456_789, NOW + 123_456_789 + 7_000)",
        )
    )
    assert [(one["ts"], one["dur"]) for one in events(document)] == [(0, 0.001), (123456.789, 7)]
    assert int(document["otherData"]["first_event_ns"]) > 1.7e18
    assert document["displayTimeUnit"] == "ns"


def test_events_are_sorted_and_the_longer_comes_first(tmp_path: Path) -> None:
    found = [(one["ts"], -one.get("dur", 0)) for one in events(export(record(tmp_path / "run")))]
    assert found == sorted(found)


def test_processes_and_threads_are_named_and_ordered_by_rank(tmp_path: Path) -> None:
    for rank in (1, 0):
        record(tmp_path / "run", "span('a', 'b', NOW, NOW)", RANK=str(rank))
    document = export(tmp_path / "run")
    named = [
        (one["name"], one["args"].get("name") or one["args"]["sort_index"])
        for one in events(document, "M")
    ]
    processes = [value for name, value in named if name == "process_name"]
    assert [name.partition(",")[0] for name in processes] == ["-c (rank 0", "-c (rank 1"]
    assert [value for name, value in named if name == "process_sort_index"] == [0, 1]
    assert [value for name, value in named if name == "thread_name"] == ["MainThread"] * 2
    assert {one["pid"] for one in events(document, "M")} == {one["pid"] for one in events(document)}


def test_processes_of_two_hosts_with_one_number_are_told_apart(tmp_path: Path) -> None:
    for host in ("a", "b"):
        body = f"recorder.begin(sys.argv[1], host={host!r}); os.getpid = lambda: 77; span('a', 'b', NOW, NOW)"
        record(tmp_path / "run", body, RANK=str(int(host == "b")))
    document = export(tmp_path / "run")
    assert len({one["pid"] for one in events(document)}) == 2
    assert len([one for one in events(document, "M") if one["name"] == "process_name"]) == 2


def test_spans_with_the_same_flow_are_joined_by_arrows(tmp_path: Path) -> None:
    body = """
    for batch in range(2):
        for place, name in enumerate(("load", "transfer", "train")):
            start = NOW + 1000 * (10 * batch + place)
            span("a", name, start, start + 500, flow=batch)
    span("a", "alone", NOW, NOW, flow=9)
    mark("a", "mark", NOW, flow=0)
    """
    document = export(record(tmp_path / "run", body))
    assert [(one["ph"], one["id"], one["ts"]) for one in events(document, "stf")] == [
        ("s", 1, 0), ("t", 1, 1), ("f", 1, 2), ("s", 2, 10), ("t", 2, 11), ("f", 2, 12),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        "float('nan')",
        "float('inf')",
        r"'\"\\\n\0\x1f\x7f\u2028'",
        r"'\ud800'",
        "10**400",
        "'</script>'",
        "{}",
    ],
)
def test_odd_arguments_and_names_are_strict_json(tmp_path: Path, value: str) -> None:
    body = f"span(str({value}), str({value}), NOW, NOW, (str({value}), 1), **{{str({value}): {value}}}); counter('a', 'b', NOW, float('nan'))"
    document = export(record(tmp_path / "run", body))
    assert len(events(document)) == 2
    assert events(document, "C")[0]["args"] == {"value": None}


def test_an_argument_called_like_the_events_own_number_stands_once(tmp_path: Path) -> None:
    run = record(
        tmp_path / "run",
        "span('a', 'b', NOW, NOW, ('count', 7), count=1, other='\"count\":', nothing=None)",
    )
    assert events(export(run))[0]["args"] == {"count": 7, "other": '"count":', "nothing": None}
    assert (tmp_path / "trace.json").read_text().count('"count":7') == 1
    assert '"count":1' not in (tmp_path / "trace.json").read_text()


def test_a_selection_begins_with_its_first_event(tmp_path: Path) -> None:
    document = export(record(tmp_path / "run"), steps="2")
    assert Counter(one["name"] for one in events(document)) == {
        "fetch.iter": 2,
        "forward": 2,
        "compute": 2,
        "read": 2,
    }
    assert events(document)[0]["ts"] == 0


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    assert len(events(export(record(tmp_path / "run"), name="trace.json.gz"))) == LOOP_EVENTS


def test_a_run_without_events_is_a_trace_without_events(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text('{"schema": 1, "voirkit": "0", "command": ["main.py"]}')
    document = export(tmp_path / "run")
    assert document["traceEvents"] == []
    assert document["otherData"]["command"] == ["main.py"]
