"""Items over time: intervals, tasks, threads, and figures that a short last interval does not spoil."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit_instruments.rates.record import Throughput, figures

SECOND = 1_000_000_000


def rates(records: list[dict[str, Any]]) -> list[tuple[str | None, float]]:
    return [(record.get("task"), round(record["train_rate"], 6)) for record in records]


def test_a_rate_is_items_over_time() -> None:
    throughput = Throughput("train_rate")
    throughput.add(None, 0, SECOND, 100)
    assert throughput.close(SECOND) == [{"train_rate": 100.0, "units": "items/s"}]


def test_each_task_has_its_own_record() -> None:
    throughput = Throughput("train_rate")
    throughput.add("train", 0, SECOND, 100)
    throughput.add("eval", 0, SECOND // 2, 100)
    assert rates(throughput.close(SECOND)) == [("train", 100.0), ("eval", 200.0)]


def test_threads_that_work_at_once_on_a_task_add_up() -> None:
    throughput = Throughput("train_rate")
    throughput.add(None, 0, SECOND, 100)
    throughput.add(None, 0, SECOND, 100)
    assert rates(throughput.close(SECOND)) == [(None, 200.0)]


def test_an_interval_ends_a_second_after_the_first_time_that_was_added() -> None:
    throughput = Throughput("train_rate")
    throughput.add(None, 5 * SECOND, 5 * SECOND + 1, 1)
    assert throughput.due_ns == 6 * SECOND


def test_what_has_just_begun_when_the_interval_ends_is_left_for_the_next() -> None:
    throughput = Throughput("train_rate")
    throughput.add("train", 0, SECOND, 100)
    throughput.add("eval", SECOND - 1000, SECOND, 1)
    assert rates(throughput.close(SECOND)) == [("train", 100.0)]
    throughput.add("eval", SECOND, 2 * SECOND - 1000, 99)
    assert rates(throughput.close(2 * SECOND)) == [("eval", 100.0)]


def test_a_run_shorter_than_a_tenth_of_a_second_has_a_rate() -> None:
    throughput = Throughput("train_rate")
    throughput.add(None, 0, SECOND // 100, 3)
    assert rates(throughput.finish()) == [(None, 300.0)]
    assert throughput.figures()["train_rate"]["n"] == 1


def test_a_very_short_rest_is_joined_to_the_last_interval() -> None:
    throughput = Throughput("train_rate")
    throughput.add(None, 0, SECOND, 100)
    throughput.close(SECOND)
    throughput.add(None, SECOND, SECOND + 1000, 50)
    assert throughput.finish() == []
    assert throughput.figures()["train_rate"]["n"] == 1
    assert throughput.figures()["train_rate"]["median"] == pytest.approx(150, rel=1e-3)


def test_a_rest_of_a_tenth_of_a_second_has_a_record_of_its_own() -> None:
    throughput = Throughput("train_rate")
    throughput.add(None, 0, SECOND, 100)
    throughput.close(SECOND)
    throughput.add(None, SECOND, SECOND + SECOND // 10, 20)
    assert rates(throughput.finish()) == [(None, 200.0)]


def test_what_held_no_items_gives_no_record() -> None:
    throughput = Throughput("train_rate")
    throughput.add(None, 0, SECOND, 0)
    assert throughput.close(SECOND) == []
    assert throughput.figures() == {}


def test_the_summary_names_other_tasks() -> None:
    for name, keys in (
        ("train_rate", {"train_rate", "eval_rate"}),
        ("compute_rate", {"compute_rate", "eval_compute_rate"}),
    ):
        throughput = Throughput(name)
        throughput.add("train", 0, SECOND, 100)
        throughput.add("eval", 0, SECOND, 100)
        throughput.close(SECOND)
        assert set(throughput.figures()) == keys


def test_figures_are_median_and_deciles() -> None:
    assert figures([(rate, SECOND) for rate in (50, 10, 20, 30, 40)]) == {
        "value": 30.0,
        "median": 30.0,
        "p10": 14.0,
        "p90": 46.0,
        "n": 5,
        "units": "items/s",
    }


def test_the_value_of_intervals_that_differ_is_items_over_time() -> None:
    assert figures([(10, SECOND), (10, SECOND), (10, 8 * SECOND)])["value"] == pytest.approx(3.0)


def test_figures_of_one_rate_are_that_rate() -> None:
    assert figures([(15, 2 * SECOND)]) == {
        "value": 7.5,
        "median": 7.5,
        "p10": 7.5,
        "p90": 7.5,
        "n": 1,
        "units": "items/s",
    }
