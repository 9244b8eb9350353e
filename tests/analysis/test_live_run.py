"""A run as it is seen from outside, with a clock of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_training import TRAINING

from voirkit.live import of_summary
from voirkit.live.run import LiveRun
from voirkit.trace import recorder

_known: dict[str, Any] = {}
exec(TRAINING, _known)
Training = _known["Training"]

Begin = Callable[..., str]


@pytest.fixture
def begin(tmp_path: Path) -> Any:
    """Begin a run, of this process; called again, another one in the place of the first."""

    def run(**manifest: Any) -> str:
        path = tmp_path / "run"
        recorder.end()
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        clocks = {"perf_counter_ns": time.perf_counter_ns(), "time_ns": time.time_ns()}
        found = {
            "voirkit": "0",
            "schema": 1,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "command": ["main.py"],
            "clocks": clocks,
        }
        found |= {"ended": "running", **manifest}
        (path / "run.json").write_text(json.dumps(found))
        recorder.begin(str(path), host=found["host"])
        return str(path)

    yield run
    recorder.end()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_another_run_in_its_place_is_shown_from_its_beginning(begin: Begin) -> None:
    run = LiveRun(begin())
    Training(length=9).epoch()
    assert run.update().n_steps == 9
    begin(command=["other.py"])
    Training(length=5).epoch()
    picture = run.update()
    assert (picture.title, picture.n_steps) == ("other.py", 5)
    assert picture.steps is not None
    assert picture.steps["n"] == 5


def test_a_run_that_records_nothing_for_long_is_said_to(begin: Begin) -> None:
    clock = Clock()
    run = LiveRun(begin(host="elsewhere"), clock)
    Training(length=9).epoch()
    assert run.update().warnings == []
    clock.now += 40
    (warning,) = run.update().warnings
    assert warning == "nothing has been recorded for 40 s; whether it still runs is not known here"


def test_time_on_another_host_is_by_its_clock_and_goes_on_with_ours(begin: Begin) -> None:
    clock, now = Clock(), recorder.now()
    run = LiveRun(
        begin(host="elsewhere", clocks={"perf_counter_ns": now - 5_000_000_000, "time_ns": 0}),
        clock,
    )
    Training(length=100).epoch()  # of a second
    first = run.update().elapsed_s
    assert first is not None
    assert 5.9 < first < 6.1 + (recorder.now() - now) / 1e9
    clock.now += 7
    assert run.update().elapsed_s == pytest.approx(first + 7)


def test_until_the_summary_is_complete_the_run_is_said_to_end(begin: Begin) -> None:
    path = Path(begin())
    run = LiveRun(str(path))
    Training(length=9).epoch()
    manifest = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**manifest, "ended": "normal", "exit_code": 0}))
    (path / "summary.json").write_text(json.dumps({"steps": None, "ended": "normal"}))
    picture = run.update()
    assert (picture.state, picture.is_over) == (
        "ended, exit code 0; its summary is being made",
        False,
    )
    (path / "summary.json").write_text(
        json.dumps({"steps": {"n": 0}, "ended": "normal", "exit_code": 0, "command": ["main.py"]})
    )
    picture = run.update()
    assert (picture.state, picture.is_over) == ("ended, exit code 0", True)


def test_a_manifest_that_is_damaged_is_no_trouble(begin: Begin) -> None:
    path = Path(begin())
    (path / "run.json").write_text('{"command"')
    Training(length=9).epoch()
    assert LiveRun(str(path)).update().n_steps == 9


def test_the_last_picture_has_the_alerts_and_the_memory_of_the_summary() -> None:
    alert = {
        "kind": "loss",
        "because": "The loss is nan from step 3 on.",
        "next": "",
        "evidence": {},
    }
    picture = of_summary(
        {
            "ended": "normal",
            "alerts": [alert],
            "warnings": ["careful"],
            "memory": {"peak": 2e9},
            "dropped": {"a.b": 2},
        }
    )
    assert picture.warnings == [
        "2 records were dropped",
        "The loss is nan from step 3 on.",
        "careful",
    ]
    assert [(one.name, one.value) for one in picture.devices] == [("memory peak", 2e9)]


def test_the_last_picture_has_the_whole_wall_time() -> None:
    from voirkit.live import of_summary
    from voirkit.live.frame import TerminalStyle, picture_lines
    from voirkit.runs.summary import account

    picture = of_summary({"wall": account({"startup": 1.0, "training": 9.0}, 10.0), "steps": None})
    assert (
        picture_lines(picture, 80, 10, TerminalStyle(blocks=False))[0]
        == "training 90% (9 s)   startup 10% (1 s)"
    )
