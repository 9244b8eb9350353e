"""train_rate and compute_rate: what they count and what time they take; the instruments of all three rates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_overseer import Clock, SmallOverseer
from torch.utils.data import DataLoader, TensorDataset

from voirkit_instruments.rates import compute_rate, instrument_rates, loading_rate, train_rate
from voirkit_instruments.rates.record import Rate
from voirkit_instruments.steps.record_values import FinishedStep


@pytest.fixture
def ov() -> Iterator[SmallOverseer]:
    overseer = SmallOverseer()
    yield overseer
    overseer._end_streams()


def rounded(ov: SmallOverseer, key: str = "train_rate") -> list[tuple[Any, float]]:
    return [(event.get("task"), round(event[key], 3)) for event in ov.events if key in event]


def batch(items: int) -> torch.Tensor:
    return torch.zeros(items, 2)


# train_rate


def test_the_batch_that_a_step_event_brings_is_counted_over_the_time_since_the_one_before(
    ov: SmallOverseer,
) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    rate.on_step({"step": True, "batch": batch(1000)})  # the first has no time: it is not counted
    clock.on(0.5)
    rate.on_step({"step": True, "batch": batch(10)})
    rate.finish()
    assert rounded(ov) == [(None, 20.0)]


def test_the_first_step_has_the_time_since_the_recorder_saw_its_batch_requested(
    ov: SmallOverseer,
) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    began_ns = clock()
    rate.step_began_ns = lambda: began_ns
    clock.on(1.5)  # the first step is slow
    rate.on_step({"step": True, "batch": batch(10)})
    clock.on(0.5)
    rate.on_step({"step": True, "batch": batch(10)})
    rate.finish()
    assert ov.summary["rates"]["train_rate"]["value"] == pytest.approx(10.0)


def test_a_step_that_the_recorder_gave_before_the_program_did_is_not_counted_twice(
    ov: SmallOverseer,
) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    clock.on(0.5)
    rate.on_steps(
        [FinishedStep(clock() - 500_000_000, clock(), clock(), 10, None, threading.get_ident())]
    )
    clock.on(0.01)
    for n in range(5):
        rate.on_step({"step": n, "batch": batch(10)})
        clock.on(0.5)
    rate.finish()
    assert ov.summary["rates"]["train_rate"]["value"] == pytest.approx(20.0)


def test_the_recorder_tells_of_several_steps_at_once_and_each_counts_with_its_own_time(
    ov: SmallOverseer,
) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    steps = []
    for items in (8, 8, 4):
        began_ns = clock()
        clock.on(0.2)
        steps.append(FinishedStep(began_ns, began_ns, clock(), items, None, 1))
    clock.on(5)  # what comes before they are told is not time of theirs
    rate.on_steps(steps)
    rate.finish()
    assert ov.summary["rates"]["train_rate"]["value"] == pytest.approx(20 / 0.6)


def test_steps_without_a_loader_are_counted_as_steps(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    ends = [clock() + n * 500_000_000 for n in range(4)]
    rate.on_steps([FinishedStep(None, None, end, None, None, 1) for end in ends])
    rate.finish()
    assert [(record["train_rate"], record["units"]) for record in ov.records] == [
        (pytest.approx(2.0), "steps/s")
    ]


def test_steps_of_the_recorder_are_left_out_once_the_program_gives_its_own(
    ov: SmallOverseer,
) -> None:
    rate = Rate(ov, "train_rate", Clock())
    ov.give(step=0, batch=batch(10))
    rate.on_steps([FinishedStep(0, 0, 1_000_000_000, 10, None, 1)])
    rate.finish()
    assert ov.summary["rates"] == {}


def test_interleaved_tasks_do_not_disturb_each_other(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for n in range(400):
        clock.on(0.005)
        rate.on_step({"step": n, "batch": [1], "task": ("train", "eval")[n % 2]})
    rate.finish()
    assert {task for task, _ in rounded(ov)} == {"train", "eval"}
    assert {round(value) for _, value in rounded(ov)} == {100}
    assert {key: round(value["median"]) for key, value in ov.summary["rates"].items()} == {
        "train_rate": 100,
        "eval_rate": 100,
    }


def test_one_rate_is_given_and_logged_a_second(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for _ in range(31):
        rate.on_step({"step": True, "batch": batch(4)})
        clock.on(0.1)
    rate.finish()
    assert rounded(ov) == [(None, 40.0)] * 3
    assert ov.records == [{"train_rate": pytest.approx(40.0), "units": "items/s"}] * 3
    assert all(type(record["train_rate"]) is float for record in ov.records)


def test_a_short_last_batch_counts_what_it_holds(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for items in (8, 8, 8, 4):
        rate.on_step({"step": True, "batch": (batch(items), batch(items))})
        clock.on(0.1)
    rate.finish()
    assert rounded(ov) == [(None, 66.667)]


def test_batches_whose_gradients_are_summed_all_count(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for n in range(9):
        rate.on_step({"step": True, "batch": batch(4)})
        clock.on(0.4 if n % 4 == 0 else 0.2)  # every fourth batch is followed by an optimizer step
    rate.finish()
    assert ov.summary["rates"]["train_rate"]["median"] == pytest.approx(16.0, rel=0.15)


def test_batch_size_goes_before_batch(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for _ in range(2):
        rate.on_step({"step": True, "batch": object(), "batch_size": 5})
        clock.on(0.5)
    rate.finish()
    assert rounded(ov) == [(None, 10.0)]
    assert ov.warned == []


def test_a_batch_that_can_not_be_counted_is_said_once_and_has_no_rate(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for _ in range(50):
        rate.on_step({"step": True, "batch": object()})
        clock.on(0.1)
    rate.finish()
    assert rounded(ov) == []
    assert len(ov.warned) == 1


def test_other_events_are_no_steps(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for _ in range(5):
        rate.on_step({"step": 3})
        clock.on(1)
    rate.finish()
    assert ov.summary["rates"] == {}


def test_a_wrapper_whose_begin_and_end_have_step_and_batch_is_one_step(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for n in range(5):
        for part in ("begin", "end"):
            rate.on_step(
                {"$wrap": {"id": n, "name": "s", "step": part}, "step": n, "batch": batch(10)}
            )
            clock.on(0.1)
    rate.finish()
    assert ov.summary["rates"]["train_rate"]["median"] == pytest.approx(50.0)


def test_a_wrapper_whose_end_alone_has_step_and_batch_is_one_step(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    for _ in range(5):
        rate.on_step(
            {
                "$wrap": {"id": 1, "name": "start", "step": "begin"},
                "start": True,
                "batch": batch(10),
            }
        )
        clock.on(0.1)
        rate.on_step(
            {"$wrap": {"id": 1, "name": "start", "step": "end"}, "step": True, "batch": batch(10)}
        )
        clock.on(0.1)
    rate.finish()
    assert ov.summary["rates"]["train_rate"]["median"] == pytest.approx(50.0)


def test_the_device_is_waited_for_once_an_interval_and_the_wait_is_time_of_the_step(
    ov: SmallOverseer,
) -> None:
    clock, waits = Clock(), []

    def wait() -> None:
        waits.append(clock())
        clock.on(1.0)

    rate = Rate(ov, "train_rate", clock, wait)
    rate.on_device({"use_cuda": True})
    for _ in range(11):
        rate.on_step({"step": True, "batch": batch(10)})
        clock.on(0.1)
    assert len(waits) == 1
    assert rounded(ov) == [(None, 50.0)]  # 100 items in 1 s of steps and 1 s of waiting


def test_the_device_is_waited_for_at_the_end_of_a_short_run(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock, lambda: clock.on(0.3))
    rate.on_device({"use_cuda": True})
    for _ in range(2):
        rate.on_step({"step": True, "batch": batch(10)})
        clock.on(0.2)
    rate.finish()
    assert rounded(ov) == [(None, 20.0)]


def test_without_use_cuda_no_device_is_waited_for(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock, lambda: pytest.fail("waited"))
    rate.on_device({"use_cuda": False})
    for _ in range(30):
        rate.on_step({"step": True, "batch": batch(10)})
        clock.on(0.1)
    rate.finish()
    assert len(rounded(ov)) == 3


def test_threads_of_a_task_are_paired_apart_and_add_up(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "train_rate", clock)
    turn = threading.Barrier(2, timeout=120)

    def work(first: bool) -> None:
        for _ in range(5):
            turn.wait()
            if first:
                clock.on(0.1)
            turn.wait()
            with lock:
                rate.on_step({"step": True, "batch": batch(10)})

    lock = threading.Lock()
    threads = [threading.Thread(target=work, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate.finish()
    assert rounded(ov) == [(None, 200.0)]


# compute_rate


def wrap(part: str, identity: int = 1, **keys: Any) -> dict[str, Any]:
    return {"$wrap": {"id": identity, "name": "compute_start", "step": part}, **keys}


def test_compute_rate_takes_the_time_inside_and_the_batch_of_the_end(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "compute_rate", clock)
    stale: dict[str, Any] = {}
    for items in (8, 8, 8, 4):
        rate.on_wrap(wrap("begin", compute_start=True, **stale))
        clock.on(0.1)
        stale = {"batch": batch(items)}
        rate.on_wrap(wrap("end", compute_end=True, **stale))
        clock.on(5)  # loading: not counted
    rate.finish()
    assert ov.summary["rates"]["compute_rate"]["median"] == pytest.approx(80.0)


def test_wrappers_that_overlap_are_paired_by_their_id(ov: SmallOverseer) -> None:
    clock = Clock()
    rate = Rate(ov, "compute_rate", clock)
    rate.on_wrap(wrap("begin", 1))
    clock.on(0.1)
    rate.on_wrap(wrap("begin", 2))
    clock.on(0.1)
    rate.on_wrap(wrap("end", 1, batch=batch(10)))
    clock.on(0.1)
    rate.on_wrap(wrap("end", 2, batch=batch(20)))
    rate.finish()
    assert rounded(ov, "compute_rate") == [
        (None, 100.0)
    ]  # 30 items in 0.3 s, what overlaps counted once


def test_an_end_without_a_begin_counts_nothing(ov: SmallOverseer) -> None:
    rate = Rate(ov, "compute_rate", Clock())
    rate.on_wrap(wrap("end", batch=batch(4)))
    rate.on_wrap({"$wrap": {"id": 1, "name": "other", "step": "begin"}})
    rate.finish()
    assert ov.summary["rates"] == {}


# the instruments


def train(ov: SmallOverseer) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(40, 2)), batch_size=8)
    ov.give(loader=loader)
    for n, (x,) in enumerate(loader):
        ov.give(**wrap("begin"))
        ov.give(**wrap("end", batch=x))
        ov.give(step=n, batch=x)


def test_the_three_rates_of_a_run_shorter_than_a_second_are_given_logged_and_summarised() -> None:
    ov = SmallOverseer(train_rate, loading_rate, compute_rate)
    ov(train)
    for name in ("train_rate", "loading_rate", "compute_rate"):
        assert len(ov.values(name)) == 1
        assert [record for record in ov.records if name in record]
        assert ov.summary["rates"][name]["n"] == 1
    assert ov.warned == []
    assert ov.errors == []


def test_rates_are_there_when_the_script_fails() -> None:
    def failing(ov: SmallOverseer) -> None:
        train(ov)
        raise ValueError("the script's own")

    ov = SmallOverseer(train_rate, loading_rate, compute_rate)
    with pytest.raises(ValueError, match="the script's own"):
        ov(failing)
    assert set(ov.summary["rates"]) == {"train_rate", "loading_rate", "compute_rate"}


def test_a_script_that_never_began_is_not_said_to_have_given_nothing() -> None:
    ov = SmallOverseer(
        train_rate, loading_rate, options={"--train-rate": True, "--loading-rate": True}
    )
    for phase in (ov.phases.init, ov.phases.parse_args):
        with ov.run_phase(phase):
            pass
    with pytest.raises(SyntaxError), ov.run_phase(ov.phases.load_script):
        raise SyntaxError
    ov._finish()
    assert ov.warned == []


def test_without_a_flag_nothing_is_measured_and_given_is_not_touched() -> None:
    ov = SmallOverseer()
    ov.argparser = FakeParser()  # type: ignore[attr-defined]
    ov.options = type("Options", (), {"__getattr__": lambda self, name: False})()
    ov.require(instrument_rates)
    ov(lambda ov: None)
    assert ov.argparser.flags == ["--train-rate", "--loading-rate", "--compute-rate"]  # type: ignore[attr-defined]
    assert ov._given is None


class FakeParser:
    def group(self, title: str) -> FakeParser:
        return self

    def __init__(self) -> None:
        self.flags: list[str] = []

    def add_argument(self, flag: str, **options: Any) -> None:
        self.flags.append(flag)
