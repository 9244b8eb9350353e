"""What is said of a run's last steps while it goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from live_training import PHASES, TRAINING

from voirkit.analysis.phases import Records
from voirkit.live import Picture
from voirkit.live.steps import LiveSteps, Window, _of_same_time
from voirkit.trace import recorder
from voirkit.trace.following import Fresh
from voirkit.trace.reader import RECORD_TYPE, Name

_known: dict[str, Any] = {}
exec(TRAINING, _known)
Training = _known["Training"]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run directory that this process records into."""
    recorder.begin(str(tmp_path / "run"))
    yield str(tmp_path / "run")
    recorder.end()


def picture_of(steps: LiveSteps) -> Picture:
    steps.update()
    picture = Picture()
    steps.fill(picture)
    return picture


def test_the_shares_are_those_of_the_steps(run: str) -> None:
    steps, training = LiveSteps(run), Training()
    training.epoch()
    picture = picture_of(steps)
    assert picture.steps is not None
    assert picture.steps["n"] == picture.n_steps == 10
    assert {name: picture.steps["phases"][name]["share"] for name in PHASES} == pytest.approx(
        PHASES, abs=0.001
    )
    assert [(rate.name, round(rate.value)) for rate in picture.rates] == [
        ("train_rate", 400),
        ("loading_rate", 800),
        ("compute_rate", 800),
    ]
    assert picture.verdict is not None
    assert picture.verdict["kind"] == "input-bound"


def test_looking_often_or_once_comes_to_the_same(run: str) -> None:
    often, training = LiveSteps(run), Training(length=50)
    training.begin()
    for _ in range(50):
        training.step()
        often.update()
    training.end()
    assert picture_of(often) == picture_of(LiveSteps(run))


def test_progress_is_that_of_the_epoch_with_the_time_that_is_left(run: str) -> None:
    training = Training(length=40)
    training.epoch()
    training.begin()
    for _ in range(10):
        training.step()
    (epoch,) = picture_of(LiveSteps(run)).progress
    assert (epoch.label, epoch.n, epoch.total) == ("epoch 2", 10, 40)
    assert epoch.left_s == pytest.approx(0.3, rel=0.01)


def test_two_loaders_of_one_dataset_are_told_apart_by_what_trains(run: str) -> None:
    training, evaluation = (
        Training(length=20, dataset="MNIST"),
        Training(length=8, loader=1, dataset="MNIST"),
    )
    training.epoch()
    evaluation.now = training.now
    evaluation.begin()
    for _ in range(8):
        evaluation.evaluate()
    evaluation.end()
    training.now = evaluation.now
    training.begin()
    training.step()
    training.span("dataloader", "fetch", 0.5, "items", 4, **training.place)
    assert [(one.label, one.n) for one in picture_of(LiveSteps(run)).progress] == [
        ("MNIST epoch 2", 2),
        ("MNIST evaluation 1", 8),
    ]


def test_a_loader_without_a_length_has_no_progress(run: str) -> None:
    training = Training(length=None)
    training.begin()
    training.step()
    assert picture_of(LiveSteps(run)).progress == []


def test_of_a_fast_run_the_newest_steps_are_looked_at_and_all_are_counted(run: str) -> None:
    steps, training = LiveSteps(run, most=64), Training(length=2000)
    training.epoch()
    picture = picture_of(steps)
    assert picture.n_steps == 2000
    assert picture.steps is not None
    assert 5 <= picture.steps["n"] < 100
    assert picture.steps["phases"]["wait"]["share"] == pytest.approx(0.5)


def test_the_steps_shown_are_the_last_ones(run: str) -> None:
    steps, training = LiveSteps(run), Training(length=3000)
    training.begin()
    for k in range(3000):
        training.step(wait=0.5 if k < 1500 else 1.5)
    picture = picture_of(steps)
    assert picture.steps is not None
    assert picture.shown_s == pytest.approx(10, rel=0.05)
    assert picture.steps["phases"]["wait"]["share"] == pytest.approx(0.75)


def test_without_a_loader_the_wait_is_not_known(run: str) -> None:
    training = Training()
    for _ in range(20):
        training.work()
    picture = picture_of(LiveSteps(run))
    assert picture.steps is not None
    assert picture.steps["wait_known"] is False
    assert picture.n_steps == 20
    assert picture.steps["phases"]["backward"]["share"] == pytest.approx(
        0.4, rel=0.02
    )  # the first begins with its forward


def test_evaluation_is_no_training_step(run: str) -> None:
    training = Training(length=5)
    training.epoch()
    test = Training(length=7, loader=1, dataset="Others")
    test.episodes, test.now = 100, training.now
    test.begin()
    for _ in range(7):
        test.evaluate()
    test.end()
    picture = picture_of(LiveSteps(run))
    assert picture.steps is not None
    assert picture.steps["n"] == picture.n_steps == 5
    assert [one.label for one in picture.progress] == ["Pictures epoch 1", "Others evaluation 1"]


def test_without_any_step_nothing_is_said(run: str) -> None:
    assert picture_of(LiveSteps(run)) == Picture()
    recorder.span(recorder.name("mine", "thing"), 1, 2)
    assert picture_of(LiveSteps(run)) == Picture()


def test_counters_have_their_last_value(run: str) -> None:
    number = recorder.name("monitor", "cpu", kind="counter", value="cores")
    for at, value in ((1, 0.5), (2, 1.75)):
        recorder.counter(number, at, value)
    steps = LiveSteps(run)
    steps.update()
    (counter,) = steps.window.counters.values()
    assert (counter.value, counter.units) == (1.75, "cores")


def test_records_of_two_kinds_are_of_the_time_of_which_all_processes_have_both() -> None:
    def records(**of_process: range) -> Records:
        starts = np.concatenate([np.array(one) for one in of_process.values()])
        process = np.repeat(range(len(of_process)), [len(one) for one in of_process.values()])
        zeros = np.zeros(len(starts), np.int64)
        hosts = [(int(name[1:]), f"host{name[1:]}", 1) for name in of_process]
        return Records(
            starts, zeros, zeros, zeros, zeros, process, zeros, [("a", "b")], [{}], hosts
        )

    phases, others = (
        records(p0=range(10), p1=range(104, 120), p2=range(10)),
        records(p0=range(5, 9), p1=range(107, 130)),
    )
    both = _of_same_time(
        phases, others, {"host0": 100, "host1": 0}
    )  # the first is a hundred behind
    assert [one.start_ns.tolist() for one in both] == [[7, 8, 107, 108], [7, 8, 107, 108]]


def test_of_much_that_is_read_at_once_all_processes_keep_their_newest() -> None:
    def fresh(rank: int) -> Fresh:
        tables = SimpleNamespace(names={0: Name("phase", "compute", "step", None)}, arguments={})
        process = SimpleNamespace(rank=rank, host="here", pid=rank)
        records = np.zeros(400, RECORD_TYPE)
        records["start_ns"] = range(400)
        return Fresh(
            SimpleNamespace(stem=f"r{rank}", tables=tables, process=process),
            records,
            np.zeros(400, np.int64),
            False,
        )

    window = Window(SimpleNamespace(look=lambda: [fresh(rank) for rank in range(4)]), 64)
    window.update()
    kept = window.records()
    for number in range(4):
        assert 16 <= (kept.process == number).sum() < 64
        assert kept.start_ns[kept.process == number].max() == 399
    assert window.is_cut()
