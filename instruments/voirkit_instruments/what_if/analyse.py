"""What pairs of runs tell: the median ratio of their times, how sure it is, and whether it is a difference at all. Pure functions.

Each pair is a plain run and a changed one, right after each other, so that what drifts over minutes (heat, neighbours, caches) is in both.
The interval of the median is the one of the sign test: from the k-th smallest ratio to the k-th largest, where no form of distribution is
assumed but that pairs are independent (H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1). Of 5 pairs it is from
the smallest to the largest, and holds the true median in 15 of 16 cases.

A difference is found where that interval leaves out 1 and the median is further from 1 than two successive plain runs are from each other.
Where the change does nothing at all, 5 pairs find one in 3 to 4 of 100 cases, half of them a win (simulated with normal, Laplace and
exponential noise and with drift: ``tests/instruments/test_what_if_statistics.py``); the sign alone would in 6.
"""

from __future__ import annotations

from itertools import pairwise
from math import comb, exp, log
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FEWEST = 5
MISSES = 1 / 16  # how often the interval may leave out the true median
WIN, LOSS, NONE = "win", "loss", "no difference found"


class Judgement(NamedTuple):
    """What pairs tell.

    Attributes:
        median: Of the ratios, changed over plain.
        low, high: Where the true median is.
        spread: By what part of it two successive plain runs differ: the median of that; 0 with one.
        verdict: ``win``, ``loss``, ``no difference found``; None of fewer than 5 pairs.
        because: Why not, where a difference might be expected.
    """

    median: float
    low: float
    high: float
    spread: float
    verdict: str | None
    because: str = ""


def judge_pairs(pairs: Sequence[tuple[float, float]], ceiling: float | None = None) -> Judgement:
    """Judge pairs of times.

    Args:
        pairs: (plain, changed) in seconds, all above 0, in the order in which they ran; at least one.
        ceiling: The share of the time that the change could win at most; None if that is not known.
    """
    logs = sorted(log(changed / plain) for plain, changed in pairs)
    n = len(logs)
    k = rank_of_bound(n)
    middle = (logs[(n - 1) // 2] + logs[n // 2]) / 2
    spread = typical_difference([plain for plain, _ in pairs])
    result = Judgement(exp(middle), exp(logs[k - 1]), exp(logs[n - k]), exp(spread) - 1, None)
    if n < FEWEST:
        return result._replace(because=f"{n} pairs are too few to tell; {FEWEST} are the fewest.")
    if result.low <= 1 <= result.high:
        return result._replace(verdict=NONE)
    if abs(middle) <= spread:
        return result._replace(verdict=NONE, because="It is no more than two plain runs differ by.")
    if middle > 0:
        return result._replace(verdict=LOSS)
    if ceiling is not None and 1 - result.median > ceiling + result.spread:
        return result._replace(
            verdict=NONE, because="The changed runs took less by more than the change could touch: something else did that."
        )
    return result._replace(verdict=WIN)


def rank_of_bound(n: int) -> int:
    """Which of n ratios from below, and from above, bounds the median's interval: 1 is the smallest."""
    missed, k = 2 / 2**n, 1
    while k < n // 2 and missed + 2 * comb(n, k) / 2**n <= MISSES:
        missed += 2 * comb(n, k) / 2**n
        k += 1
    return k


def typical_difference(times: Sequence[float]) -> float:
    """The median difference of the logarithms of two successive times; 0 of fewer than two."""
    steps = sorted(abs(log(later / earlier)) for earlier, later in pairwise(times))
    return (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2 if steps else 0.0
