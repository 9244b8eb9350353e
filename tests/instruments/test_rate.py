"""``rate``, voir's instrument: both methods, intervals, warm-up, synchronisation, and tasks that do not disturb each other."""

from __future__ import annotations

from typing import Any

import pytest
from small_overseer import Clock, SmallOverseer

from voirkit_instruments.rate import StepRate, rate
from voirkit_instruments.steps.batch_sizes import count_items


class Steps:
    """A StepRate under a clock, and what it gave."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.given: list[dict[str, Any]] = []
        count = options.pop("count", count_items)
        self.rate = StepRate(
            lambda **event: self.given.append(event), count, clock=self.clock, **options
        )

    def delta(self, seconds: float, task: str = "train", **keys: Any) -> Steps:
        self.clock.on(seconds)
        self.rate.on_event({"task": task, **(keys or {"batch": [1] * 10})})
        return self

    def wrap(self, seconds: float, task: str = "train", identity: int = 1, **keys: Any) -> Steps:
        self.rate.on_event(
            {
                "$wrap": {"name": "step", "step": "begin", "id": identity},
                "task": task,
                "batch": None,
            }
        )
        self.clock.on(seconds)
        self.rate.on_event(
            {
                "$wrap": {"name": "step", "step": "end", "id": identity},
                "task": task,
                **(keys or {"batch": [1] * 10}),
            }
        )
        return self

    @property
    def rates(self) -> list[tuple[str, float]]:
        return [(event["task"], round(event["rate"], 6)) for event in self.given]


def test_delta_is_the_second_batch_over_the_time_between_two() -> None:
    steps = Steps().delta(1, batch=[1] * 99).delta(0.5, batch=[1] * 10)
    assert steps.given == [{"rate": pytest.approx(20.0), "units": "items/s", "task": "train"}]


def test_interleaved_tasks_do_not_disturb_each_other() -> None:
    steps = Steps()
    for n in range(40):
        steps.delta(0.005, task=("train", "eval")[n % 2], batch=[1])
    assert {(task, round(value)) for task, value in steps.rates} == {("train", 100), ("eval", 100)}


def test_batch_size_goes_before_batch() -> None:
    assert Steps().delta(1).delta(1, batch=[1], batch_size=64).rates == [("train", 64.0)]


def test_a_list_of_ints_counts_its_length() -> None:
    assert Steps().delta(1).delta(1, batch=[4, 5, 6]).rates == [("train", 3.0)]


def test_events_without_a_task_are_no_steps() -> None:
    steps = Steps()
    for _ in range(3):
        steps.rate.on_event({"batch": [1]})
        steps.clock.on(1)
    assert steps.rates == []


def test_wrap_is_the_batch_of_the_end_over_the_time_inside() -> None:
    steps = Steps().wrap(0.5)
    steps.clock.on(100)
    assert steps.wrap(0.25).rates == [("train", 20.0), ("train", 40.0)]


def test_a_wrap_without_a_batch_is_no_step() -> None:
    assert Steps().wrap(0.5, batch=None).wrap(0.5, batch_size=None).rates == []


@pytest.mark.parametrize(
    ("method", "expected"), [("delta", [5.0]), ("wrap", [20.0]), (None, [5.0, 20.0])]
)
def test_a_method_can_be_chosen(method: Any, expected: list[float]) -> None:
    steps = Steps(method=method).delta(1).delta(2).wrap(0.5)
    assert [value for _, value in steps.rates] == expected


def test_an_interval_is_a_number_of_steps() -> None:
    steps = Steps(interval=4)
    for _ in range(9):
        steps.delta(0.5)
    assert steps.rates == [("train", 20.0)] * 2


@pytest.mark.parametrize("interval", ["1s", "1000ms"])
def test_an_interval_is_a_duration(interval: str) -> None:
    steps = Steps(interval=interval)
    for _ in range(9):
        steps.delta(0.25)
    assert steps.rates == [("train", 40.0)] * 2


def test_what_is_left_at_the_end_gives_a_rate() -> None:
    steps = Steps(interval="1s").delta(0).delta(0.25)
    steps.rate.finish()
    assert steps.rates == [("train", 40.0)]


def test_skip_counts_rates_of_each_task() -> None:
    steps = Steps(interval=2, skip=1)
    for _ in range(5):
        steps.delta(0.1, "train").delta(0.1, "eval")
    assert [task for task, _ in steps.rates] == ["train", "eval"]


def test_sync_is_called_once_a_rate_and_timed_once() -> None:
    calls: list[int] = []
    steps = Steps(interval=2, sync=lambda: (calls.append(1), steps.clock.on(1.0)))
    for _ in range(5):
        steps.delta(0.5)
    assert len(calls) == 2
    assert steps.rates == [("train", 10.0)] * 2  # 20 items in 1 s of steps and 1 s of waiting


def test_the_size_of_a_batch_can_be_computed_by_hand() -> None:
    assert Steps(count=lambda batch: 7).delta(1).delta(1).rates == [("train", 7.0)]


@pytest.mark.parametrize("options", [{"method": "both"}, {"interval": "3 parsecs"}])
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(options.values())))):
        Steps(**options)


def test_the_instrument_gives_rates() -> None:
    ov = SmallOverseer(rate(interval=1))

    def program(ov: SmallOverseer) -> None:
        for _ in range(3):
            ov.give(task="train", batch=[1, 2])

    ov(program)
    assert [(event["units"], event["task"]) for event in ov.events if "rate" in event] == [
        ("items/s", "train")
    ] * 2
    assert ov.errors == []


def test_a_batch_that_can_not_be_counted_does_not_reach_the_program() -> None:
    ov = SmallOverseer(rate(batch_size_calc=len))

    def program(ov: SmallOverseer) -> None:
        for _ in range(3):
            ov.give(task="train", batch=3)

    ov(program)
    assert len(ov.warned) == 1
    assert "rate: a batch of type int cannot be counted" in ov.warned[0]
