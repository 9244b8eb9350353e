"""What pairs of runs tell: win, loss, no difference found; and how often chance alone would say so."""

from __future__ import annotations

import random
from itertools import pairwise
from math import exp

import pytest

from voirkit_instruments.what_if.analyse import LOSS, NONE, WIN, judge_pairs, rank_of_bound

NOISES = {
    "normal": lambda rng: rng.gauss(0, 0.1),
    "laplace": lambda rng: rng.choice((-1, 1)) * rng.expovariate(10),
    "exponential": lambda rng: rng.expovariate(10),
}


def pairs(*ratios: float, plain: float = 10.0) -> list[tuple[float, float]]:
    return [(plain * (1 + 0.001 * (at % 2)), plain * (1 + 0.001 * (at % 2)) * ratio) for at, ratio in enumerate(ratios)]


def test_five_pairs_on_one_side_are_a_win_or_a_loss() -> None:
    won = judge_pairs(pairs(0.8, 0.85, 0.82, 0.9, 0.7))
    assert (won.verdict, round(won.median, 6), round(won.low, 6), round(won.high, 6)) == (WIN, 0.82, 0.7, 0.9)
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


def test_fewer_than_five_pairs_have_no_verdict() -> None:
    told = judge_pairs(pairs(0.5, 0.5, 0.5, 0.5))
    assert told.verdict is None
    assert told.because == "4 pairs are too few to tell; 5 are the fewest."


def test_one_pair_has_a_ratio() -> None:
    told = judge_pairs([(2.0, 1.0)])
    assert (told.median, told.low, told.high, told.spread) == (0.5, 0.5, 0.5, 0.0)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (5, 1), (8, 1), (9, 2), (12, 3), (20, 6)])
def test_the_bounds_of_the_median_are_those_of_the_sign_test(n: int, k: int) -> None:
    assert rank_of_bound(n) == k


@pytest.mark.parametrize("noise", sorted(NOISES))
def test_chance_alone_is_told_as_a_difference_in_at_most_4_of_100_cases(noise: str) -> None:
    rng, draw = random.Random(8), NOISES[noise]
    found = []
    for _ in range(4000):
        times = [exp(draw(rng)) for _ in range(10)]
        told = judge_pairs([(a, b) if at % 2 else (b, a) for at, (a, b) in enumerate(list(pairwise(times))[::2])])
        found.append(told.verdict)
    assert 0.015 < found.count(WIN) / len(found) + found.count(LOSS) / len(found) < 0.045
