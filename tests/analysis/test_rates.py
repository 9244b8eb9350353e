"""Rates are throughput: items over time; what is usual of a single step stands beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.steps import REST, WAIT, Steps, Table, steps_of
from voirkit.commands.run import words
from voirkit.live import of_summary
from voirkit.report.comparison import Side
from voirkit.report.comparison import figures as compared
from voirkit.runs.conditions import read
from voirkit.runs.summary import throughput

from .simulated import Script

EMPTY = np.zeros(0, dtype=np.int64)
NO_STEPS = Table(EMPTY, EMPTY, EMPTY, np.zeros((0, REST + 1), dtype=np.int64))
MS = 1_000_000


def rank(
    number: int, times_ms: list[int], waits_ms: list[int] | None = None, items: int | list[int] = 8
) -> Rank:
    time = np.array(times_ms, dtype=np.int64) * MS
    own = np.zeros((len(time), REST + 1), dtype=np.int64)
    own[:, WAIT] = np.array(waits_ms or [0] * len(time)) * MS
    own[:, REST] = time - own[:, WAIT]
    held = np.full(len(time), items) if isinstance(items, int) else np.array(items)
    return Rank(
        number,
        "node",
        Steps(Table(np.cumsum(time) - time, time, held, own), NO_STEPS, wait_known=True),
    )


def rates(*ranks: Rank) -> dict[str, Any]:
    return dict(figures(ranks)["rates"])


def test_a_rate_is_items_over_time_though_most_steps_are_far_shorter() -> None:
    found = rates(rank(0, [1, 1, 1, 41] * 10))
    assert found["train_rate"]["value"] == pytest.approx(320 / 0.440)
    assert found["train_rate"]["median"] == pytest.approx(8000)
    assert found["train_rate"]["unlike"] is True


def test_a_rate_of_steps_that_are_alike_says_nothing_of_unlike_steps() -> None:
    made = figures([rank(0, [10, 11, 9, 10] * 5)])
    assert "unlike" not in made["rates"]["train_rate"]
    assert "unlike" not in made["steps"]


def test_loading_and_computing_rates_are_items_over_the_whole_wait_and_over_the_rest() -> None:
    found = rates(rank(0, [2, 2, 2, 44], [1, 1, 1, 41]))
    assert found["loading_rate"]["value"] == pytest.approx(32 / 0.044)
    assert found["compute_rate"]["value"] == pytest.approx(32 / 0.006)


def test_of_several_ranks_a_rate_is_the_items_of_all_over_the_time_of_training() -> None:
    # Each rank is slow at another step; together they need 60 ms, not 100.
    found = rates(rank(0, [50, 10]), rank(1, [10, 50]))
    assert found["train_rate"]["value"] == pytest.approx(32 / 0.060)


def test_a_step_whose_items_are_not_known_counts_neither_items_nor_time() -> None:
    assert rates(rank(0, [10, 10, 80], items=[8, 8, -1]))["train_rate"]["value"] == pytest.approx(
        16 / 0.020
    )


def test_without_known_items_there_is_no_rate() -> None:
    assert rates(rank(0, [10, 10], items=-1)) == {}


def test_steps_have_their_sum_and_mean() -> None:
    steps = figures([rank(0, [1, 1, 1, 41])])["steps"]
    assert steps["total_s"] == pytest.approx(0.044)
    assert steps["mean_s"] == pytest.approx(0.011)
    assert steps["unlike"] is True


def test_an_evaluation_inside_of_a_step_is_in_no_rate() -> None:
    script = Script()
    for k in script.iterate(4):
        script.train_on()
        if k == 1:
            for _ in script.iterate(3, loader=1):
                script.forward(100_000)
    found = figures([Rank(0, "node", steps_of(script.timeline()))])
    assert found["rates"]["train_rate"]["value"] == pytest.approx(16 / (found["steps"]["total_s"]))
    assert found["steps"]["total_s"] < 3e-6
    assert found["evaluation"]["total_s"] > 3e-4


BIMODAL = {
    "value": 740.0,
    "median": 16_000.0,
    "p10": 500.0,
    "p90": 17_000.0,
    "n": 40,
    "units": "items/s",
    "unlike": True,
}


def test_conditions_lines_and_live_view_use_the_throughput() -> None:
    summary: dict[str, Any] = {"rates": {"train_rate": BIMODAL}, "steps": None}
    assert read("train_rate>=800", {"rates"}).failure(summary) == "train_rate>=800: it is 740"
    assert read("train_rate>=700", {"rates"}).failure(summary) is None
    assert words(summary) == ["train_rate: 740 items/s (typically 16,000, p10 500, p90 17,000)"]
    assert [number.value for number in of_summary(summary).rates] == [740.0]


def test_a_comparison_shows_throughput() -> None:
    first, second = (
        Side([{"rates": {"train_rate": {**BIMODAL, "value": value}}}]) for value in (740.0, 1480.0)
    )
    (row,) = compared(first, second)
    assert (row.first, row.second, row.ratio) == (740.0, 1480.0, 2.0)


def test_a_run_of_an_older_version_has_the_median_alone() -> None:
    old = {key: value for key, value in BIMODAL.items() if key not in ("value", "unlike")}
    assert throughput(old) == 16_000.0
    (row,) = compared(
        Side([{"rates": {"train_rate": old}}]), Side([{"rates": {"train_rate": BIMODAL}}])
    )
    assert (row.first, row.second) == (16_000.0, 16_000.0)
