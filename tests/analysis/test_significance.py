"""What runs beside each other and pairs of runs tell, and how often chance alone would say so."""

from __future__ import annotations

import random
from itertools import pairwise
from math import exp, log
from typing import Any

import numpy as np
import pytest

from voirkit.analysis.document import Rank, estimates
from voirkit.analysis.significance import (
    LOSS,
    NONE,
    WIN,
    Estimate,
    block_length,
    contention,
    difference,
    independent_runs,
    judge_pairs,
    median_of_steps,
    rank_of_bound,
    rank_of_difference,
    rate_of_steps,
    student,
)
from voirkit.analysis.steps import FORWARD, NO_STEPS, REST, Steps, Table
from voirkit.report.comparison import STEP, THROUGHPUT, Side
from voirkit.report.comparison import figures as compared

NOISES = {
    "normal": lambda rng: rng.gauss(0, 0.1),
    "laplace": lambda rng: rng.choice((-1, 1)) * rng.expovariate(10),
    "exponential": lambda rng: rng.expovariate(10),
}


def pairs(*ratios: float, plain: float = 10.0) -> list[tuple[float, float]]:
    return [
        (plain * (1 + 0.001 * (at % 2)), plain * (1 + 0.001 * (at % 2)) * ratio)
        for at, ratio in enumerate(ratios)
    ]


def test_five_pairs_on_one_side_are_a_win_or_a_loss() -> None:
    won = judge_pairs(pairs(0.8, 0.85, 0.82, 0.9, 0.7))
    assert (won.verdict, round(won.median, 6), round(won.low, 6), round(won.high, 6)) == (
        WIN,
        0.82,
        0.7,
        0.9,
    )
    assert judge_pairs(pairs(1.1, 1.2, 1.05, 1.3, 1.15)).verdict == LOSS


def test_one_pair_on_the_other_side_leaves_no_difference_of_five() -> None:
    assert judge_pairs(pairs(0.8, 0.85, 1.01, 0.9, 0.7)).verdict == NONE


def test_a_difference_no_larger_than_that_of_two_plain_runs_is_none() -> None:
    told = judge_pairs([(10, 9.9), (12, 11.8), (10, 9.8), (12, 11.9), (10, 9.9)])
    assert told.high < 1
    assert (told.verdict, told.because) == (NONE, "It is no more than two plain runs differ by.")


def test_a_win_of_more_than_could_be_touched_is_none() -> None:
    assert judge_pairs(pairs(0.9, 0.91, 0.9, 0.92, 0.9), ceiling=0.2).verdict == WIN
    told = judge_pairs(pairs(0.9, 0.91, 0.9, 0.92, 0.9), ceiling=0.01)
    assert told.verdict == NONE
    assert "something else" in told.because


def test_what_other_programs_made_a_run_wait_widens_the_interval() -> None:
    told = judge_pairs(pairs(1.5, 1.6, 1.4, 1.5, 1.7), held_up=[(0.1, 0.2)] * 5)
    assert (told.low, told.high) == (pytest.approx(1.4 * 0.8), pytest.approx(1.7 / 0.9))
    assert told.median == pytest.approx(1.5)
    assert told.verdict == LOSS


def test_a_difference_that_others_may_have_made_is_none() -> None:
    told = judge_pairs(pairs(4.9, 5.0, 4.8, 5.1, 4.7), held_up=[(0.3, 0.85)] * 5)
    assert told.verdict == NONE
    assert told.because == "What other programs made the runs wait may be all of it."
    won = judge_pairs(pairs(0.8, 0.85, 0.82, 0.9, 0.7), held_up=[(0.0, 0.0)] * 5)
    assert won == judge_pairs(pairs(0.8, 0.85, 0.82, 0.9, 0.7))


def test_fewer_than_five_pairs_have_no_verdict() -> None:
    told = judge_pairs(pairs(0.5, 0.5, 0.5, 0.5))
    assert told.verdict is None
    assert told.because == "4 pairs are too few to tell; 5 are the fewest."


def test_one_pair_has_a_ratio() -> None:
    told = judge_pairs([(2.0, 1.0)])
    assert (told.median, told.low, told.high, told.spread) == (0.5, 0.5, 0.5, 0.0)


@pytest.mark.parametrize(("n", "k"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 3), (20, 6)])
def test_the_bounds_of_the_median_are_those_of_the_sign_test(n: int, k: int) -> None:
    assert rank_of_bound(n) == k


@pytest.mark.parametrize("noise", sorted(NOISES))
def test_chance_alone_is_told_as_a_difference_in_at_most_4_of_100_cases(noise: str) -> None:
    rng, draw = random.Random(8), NOISES[noise]
    found = []
    for _ in range(4000):
        times = [exp(draw(rng)) for _ in range(10)]
        told = judge_pairs(
            [(a, b) if at % 2 else (b, a) for at, (a, b) in enumerate(list(pairwise(times))[::2])]
        )
        found.append(told.verdict)
    assert 0.015 < found.count(WIN) / len(found) + found.count(LOSS) / len(found) < 0.045


# runs beside each other


def autoregressive(rng: np.random.Generator, n: int, of_last: float, spread: float = 0.06) -> Any:
    """Step times each of which is like the one before, as a part."""
    shocks = rng.normal(0, spread * (1 - of_last**2) ** 0.5, n)
    values = [rng.normal(0, spread)]
    for shock in shocks[1:]:
        values.append(of_last * values[-1] + shock)
    return np.exp(values)


def bursts(rng: np.random.Generator, n: int) -> Any:
    """Step times that are half as long again while other work is at it."""
    edges = np.cumsum(rng.exponential([80, 20], (n // 20, 2)).ravel())
    return np.exp(rng.normal(0, 0.05, n)) * np.where(
        np.searchsorted(edges, np.arange(n)) % 2, 1.5, 1.0
    )


SERIES = {
    "independent": lambda rng: autoregressive(rng, 400, 0),
    "autocorrelated": lambda rng: autoregressive(rng, 1000, 0.7),
    "bursts": lambda rng: bursts(rng, 1500),
    "drift": lambda rng: autoregressive(rng, 400, 0) * np.linspace(1, 1.1, 400),
    "stalls": lambda rng: autoregressive(rng, 400, 0) + 4 * (rng.random(400) < 0.1),
}


@pytest.mark.parametrize("kind", sorted(SERIES))
def test_of_equal_runs_few_are_called_different_and_a_planted_5_percent_is_found(kind: str) -> None:
    rng = np.random.default_rng(17)
    equal, found = [], []
    for _ in range(60):
        first, second = (median_of_steps(SERIES[kind](rng)) for _ in range(2))
        assert first is not None
        assert second is not None
        equal.append(difference([first], [second]).significant)
        found.append(
            difference([first], [second._replace(value=second.value + log(1.05))]).significant
        )
    assert np.mean(equal) <= 0.07
    assert np.mean(found) >= 0.9


def test_the_interval_of_autocorrelated_steps_alone_is_true() -> None:
    rng = np.random.default_rng(3)
    pairs = [[median_of_steps(autoregressive(rng, 500, 0.8)) for _ in range(2)] for _ in range(150)]
    called = [
        difference([a], [b], between=0).significant
        for a, b in pairs
        if a is not None and b is not None
    ]
    assert 0.02 < np.mean(called) < 0.09


def test_blocks_are_longer_where_steps_are_alike() -> None:
    rng = np.random.default_rng(5)
    lengths = [block_length(autoregressive(rng, 2000, of_last)) for of_last in (0.0, 0.5, 0.9)]
    assert lengths[0] <= 3
    assert lengths[0] < lengths[1] < lengths[2] <= 3 * 2000**0.5 + 1
    assert block_length(np.ones(100)) == 1


def test_several_runs_are_held_against_how_much_they_differ() -> None:
    sure = [[Estimate(log(ms), 0.001) for ms in side] for side in ((10, 11, 12), (11, 12, 13))]
    told = difference(*sure)
    assert (told.measured, told.significant) == (True, False)
    assert difference(sure[0][:1], sure[1][:1]).significant
    assert difference(
        [Estimate(log(10 + i / 100)) for i in range(3)],
        [Estimate(log(10.5 + i / 100)) for i in range(3)],
    ).significant


def test_few_runs_are_never_surer_than_their_steps() -> None:
    assert not difference([Estimate(0.0, 0.1)] * 3, [Estimate(0.05, 0.1)] * 3).significant


def test_a_run_that_fared_badly_hides_no_difference_of_many() -> None:
    first = [Estimate(log(10 + i / 100)) for i in range(8)]
    second = [Estimate(log(10.5 + i / 100)) for i in range(7)] + [Estimate(log(30))]
    told = difference(first, second)
    assert told.significant
    assert told.low < 1.05 < told.high < 1.06


def test_more_than_three_runs_in_a_row_count_as_their_halves() -> None:
    assert independent_runs([0, 2, 4, 6], [1, 3, 5, 7]) == (
        [[0], [1], [2], [3]],
        [[0], [1], [2], [3]],
    )
    assert independent_runs([0, 1, 2, 3, 4], [5, 6, 7]) == ([[0, 1], [2, 3, 4]], [[0], [1], [2]])
    assert independent_runs([0, 1, 2, 3], [4]) == ([[0], [1], [2], [3]], [[0]])


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(3, 3, 0), (4, 4, 1), (5, 5, 3), (8, 8, 14), (10, 10, 24), (20, 20, 128), (4, 6, 3)],
)
def test_the_bounds_of_differences_are_those_of_the_tables_of_mann_and_whitney(
    m: int, n: int, k: int
) -> None:
    assert rank_of_difference(m, n, 0.05) == rank_of_difference(n, m, 0.05) == k


@pytest.mark.parametrize(
    ("freedom", "reach"), [(1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042), (None, 1.96)]
)
def test_intervals_reach_as_far_as_student_says(freedom: float | None, reach: float) -> None:
    assert student(0.05, freedom) == pytest.approx(reach, rel=1e-3)


def test_ranks_of_a_step_are_drawn_together() -> None:
    one = autoregressive(np.random.default_rng(1), 300, 0)
    alone, twice = median_of_steps(one), median_of_steps(np.stack([one, one]))
    assert alone is not None
    assert twice is not None
    assert twice.error == pytest.approx(alone.error, rel=0.01)


def test_what_has_too_few_steps_or_takes_no_time_has_no_estimate() -> None:
    assert median_of_steps(np.ones(9)) is None
    assert median_of_steps(np.zeros(50)) is None
    assert rate_of_steps(np.ones(50), np.zeros(50)) is None


def rank(number: int, times_ms: Any, alone: bool = False) -> Rank:
    time = (np.asarray(times_ms) * 1e6).astype(np.int64)
    own = np.zeros((len(time), REST + 1), np.int64)
    own[:, FORWARD] = time
    train = Table(np.cumsum(time), time, np.full(len(time), 4), own)
    return Rank(number, "node", Steps(train, NO_STEPS.evaluation, True), alone=alone)


def test_of_several_ranks_a_step_is_as_long_as_that_of_the_slowest() -> None:
    fast, slow = np.linspace(9, 10, 40), np.linspace(19, 20, 30)
    found = estimates([rank(0, fast), rank(1, slow)])
    step, forward, rate = (
        found["steps", "time_s"],
        found["steps", "phases", "forward", "step_s"],
        found["rates", "train_rate"],
    )
    assert step is not None
    assert forward is not None
    assert rate is not None
    assert exp(step.value) == pytest.approx(0.0195, rel=1e-3)
    assert exp(forward.value) == pytest.approx(
        0.0144, rel=0.01
    )  # the median over the steps of both
    assert exp(rate.value) == pytest.approx(8 / 0.0195, rel=1e-3)


def test_processes_that_train_for_themselves_add_up_their_steps() -> None:
    step = estimates(
        [rank(0, np.full(20, 10.0), alone=True), rank(1, np.full(40, 30.0), alone=True)]
    )["steps", "time_s"]
    assert step is not None
    assert exp(step.value) == pytest.approx(0.03, rel=1e-3)


def test_without_steps_there_are_no_estimates() -> None:
    assert estimates([]) == {}
    assert estimates([Rank(0, "node", NO_STEPS)]) == {}


# a busy side


def test_contention_is_that_of_the_main_thread_where_others_work() -> None:
    assert contention(0.0, 0.9) == 0.0
    assert contention(0.5, 0.0) == 0.0
    assert exp(contention(0.5, 0.5)) == pytest.approx(8.0)
    assert contention(1.0, 1.0) == contention(0.99, 1.0)


def test_a_side_that_was_held_up_widens_the_interval_on_one_side() -> None:
    steps = [Estimate(0.0, 0.01)]
    plain, held_up = difference(steps, steps), difference(steps, steps, bias=(0.0, log(2)))
    assert (held_up.low, held_up.ratio) == (plain.low, plain.ratio)
    assert held_up.high == pytest.approx(2 * plain.high)


def held_up(rng: np.random.Generator, steps: Any) -> tuple[Any, float]:
    """Steps of a run that others held up, and in which share of the time it waited for them.

    The share changes during the run: a tenth of the steps, in stretches, has most of it.
    """
    waited = rng.uniform(0.05, 0.7)
    stretches = np.repeat(rng.gamma(0.7, 1 / 0.7, len(steps) // 20 + 1), 20)[: len(steps)]
    added = steps * waited / (1 - waited) * stretches
    return steps + added, float(added.sum() / (steps + added).sum())


@pytest.mark.long
@pytest.mark.parametrize("busy", ["first", "second", "both"])
def test_of_200_equal_pairs_with_a_busy_side_in_half_of_them_at_most_7_percent_differ(
    busy: str,
) -> None:
    rng = np.random.default_rng(1)
    different = 0
    for pair in range(200):
        sides = []
        for head in ("first", "second"):
            steps, waited = np.exp(rng.normal(0, 0.05, 300)), 0.0
            if pair % 2 and busy in (head, "both"):
                steps, waited = held_up(rng, steps)
            processors = {"waited_share": waited, "others_share": waited}
            median = float(np.median(steps))
            times = {
                "time_s": {"median": median, "p10": float(np.quantile(steps, 0.1))},
                "mean_s": float(steps.mean()),
            }
            rate = rate_of_steps(np.ones(len(steps)), steps)
            rates = {
                "train_rate": {
                    "value": 1 / times["mean_s"],
                    "median": 1 / median,
                    "units": "items/s",
                }
            }
            summary = {"processors": processors, "steps": times, "rates": rates}
            sides.append(
                Side(
                    [summary], [head], estimates=[{STEP: median_of_steps(steps), THROUGHPUT: rate}]
                )
            )
        judged = [one.difference for one in compared(*sides) if one.place in (STEP, THROUGHPUT)]
        assert None not in judged
        different += any(one is not None and one.significant for one in judged)
    assert different <= 14
