"""The calls in ``voirkit report``: in the table and in ``--json``."""

from __future__ import annotations

import json

import pytest
from called import Training, record
from conftest import Place

pytestmark = pytest.mark.long

CALLED = Training(steps=3, fails=1, relus=(1, 2, 1))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_functions_stand_in_the_table_at_any_width(place: Place, width: int) -> None:
    record(place.folder / "run", CALLED)
    shown = place.python("-m", "voirkit", "report", "run", env={"COLUMNS": str(width)})
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= width
    row = next(line for line in lines if line.startswith(" F.relu"))
    assert "40 µs" in row


def test_what_varies_and_what_failed_is_told(place: Place) -> None:
    record(place.folder / "run", CALLED)
    shown = place.python("-m", "voirkit", "report", "run").out
    assert "33 calls of 10 functions · 1 raised an exception · 10 a step (10..12)" in " ".join(
        shown.split()
    )
    assert "not called equally often in all steps F.cross_entropy, F.relu" in " ".join(
        shown.split()
    )


def test_ranks_are_told_apart(place: Place) -> None:
    record(place.folder / "run", CALLED)
    record(place.folder / "run", CALLED, rank=1)
    assert "by rank  0: 33 in " in place.python("-m", "voirkit", "report", "run").out


def test_json_has_all_of_it(place: Place) -> None:
    record(place.folder / "run", CALLED)
    calls = json.loads(place.python("-m", "voirkit", "report", "--json", "run").out)["calls"]
    assert calls["events"] == 33
    assert calls["by_step"]["varying"] == [
        "torch.nn.functional.cross_entropy",
        "torch.nn.functional.relu",
    ]


def test_what_the_run_knows_of_its_calls_is_kept(place: Place) -> None:
    run = record(place.folder / "run", CALLED)
    known = {"skipped": {"it has no code": {"n": 3, "names": ["torch.relu"]}}, "every": 10}
    (run / "summary.json").write_text(json.dumps({"schema": 1, "steps": None, "calls": known}))
    calls = json.loads(place.python("-m", "voirkit", "report", "--json", "run").out)["calls"]
    assert (calls["skipped"], calls["events"]) == (known["skipped"], 33)
    shown = " ".join(place.python("-m", "voirkit", "report", "run").out.split())
    assert "3 functions could not be watched · one step in 10 was recorded" in shown
