"""A loader in timelines: workers are rows with names, and arrows lead from where a batch was made to where it was used."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pipelined import Loader, record

from voirkit.export.trace_events import CHROME
from voirkit.runs.opened import open_run
from voirkit.runs.selection import EVERYTHING


def drawn(folder: Path, *loaders: Loader) -> list[Any]:
    with open_run(record(folder / "run", *loaders)) as run:
        (path,) = CHROME.write(run, EVERYTHING, str(folder / "trace.json"))
    found: list[Any] = json.loads(Path(path).read_text())["traceEvents"]
    return found


def test_workers_are_rows_with_names_and_nothing_is_drawn_beside_them(tmp_path: Path) -> None:
    events = drawn(tmp_path, Loader(inner=(("Jitter", 1.0),)))
    processes = [
        one["args"]["name"].partition(" (")[0] for one in events if one["name"] == "process_name"
    ]
    assert sorted(processes)[1:] == ["worker 0 of the loader", "worker 1 of the loader"]
    assert {one["args"]["name"] for one in events if one["name"] == "thread_name"} == {"MainThread"}
    moments = Counter(one["name"] for one in events if one["ph"] == "i")
    assert moments == {"queued": 6, "arrived": 6, "consumed": 6}


def test_an_arrow_leads_from_the_end_of_making_to_where_the_batch_was_consumed(
    tmp_path: Path,
) -> None:
    events = drawn(tmp_path, Loader(batches=4))
    spans = [one for one in events if one["ph"] == "X"]

    def around(arrow: Any) -> list[Any]:
        """The spans in which the point of an arrow lies."""
        found = [
            s
            for s in spans
            if (s["pid"], s["tid"]) == (arrow["pid"], arrow["tid"])
            and s["ts"] <= arrow["ts"] < s["ts"] + s["dur"]
        ]
        return sorted(found, key=lambda s: float(s["dur"]))

    starts = {one["id"]: one for one in events if one["ph"] == "s"}
    ends = {one["id"]: one for one in events if one["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 4
    for id, start in starts.items():
        made = next(s for s in around(start) if s["name"] == "preprocess")
        used = next(
            m
            for m in events
            if m["name"] == "consumed" and (m["pid"], m["ts"]) == (ends[id]["pid"], ends[id]["ts"])
        )
        assert made["args"]["batch"] == used["args"]["batch"]
        assert start["ts"] == pytest.approx(made["ts"] + made["dur"], abs=0.0011)
        assert start["pid"] != ends[id]["pid"]


def test_two_epochs_and_two_loaders_are_not_mixed_up_and_one_process_needs_no_arrows(
    tmp_path: Path,
) -> None:
    events = drawn(
        tmp_path,
        Loader(epochs=2, batches=3),
        Loader(number=1, batches=3, workers=1),
        Loader(number=2, workers=0),
    )
    assert len([one for one in events if one["ph"] == "s"]) == 2 * 3 + 3
    names = {
        one["args"]["name"].partition(" (")[0] for one in events if one["name"] == "process_name"
    }
    assert names >= {"worker 0 of loader 0", "worker 1 of loader 0", "worker 0 of loader 1"}
