"""Whether times differ by more than chance: those of runs beside each other, by their steps, and those of pairs of runs. Pure functions.

**Runs beside each other** (``difference``). Steps that follow each other are alike, so a run of 1,000 steps tells less than 1,000 numbers
would. How exact its median is comes from a circular block bootstrap: runs of successive steps are drawn with replacement, around the end
of the run, as many as fill it (D. N. Politis and J. P. Romano, 1992). The length of a block is the one that D. N. Politis and H. White
derive from the autocorrelation (Automatic Block-Length Selection for the Dependent Bootstrap, Econometric Reviews 23, 2004, with the
correction of A. Patton, D. N. Politis and H. White, 2009).

Runs of one script differ by more than their steps show: where memory lies, which processor they get, what else the machine does. Of
several runs that is measured. Where there are enough of them (4 a side) their ranks tell: the interval is the one of the test of Mann and
Whitney, around the median of all differences (J. L. Hodges and E. L. Lehmann, 1963), which a few runs that fared badly do not move. Of
fewer it is that of Student's t, and never narrower than that of their steps. With one run a side nothing can be measured: it is taken to
be ``BETWEEN_RUNS``, which whoever shows the result should say. How often equal runs are called different, and how often a planted 5 % is
found, is in docs/compare.md (``benchmarks/compare.py``). What a machine does drifts over minutes, so it matters in which order runs were
recorded (``independent_runs``).

**Pairs** (``judge_pairs``). Each is a plain run and a changed one, right after each other, so that what drifts over minutes (heat,
neighbours, caches) is in both. The interval of the median is the one of the sign test: from the k-th smallest ratio to the k-th largest,
where no form of distribution is assumed but that pairs are independent (H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition,
section 7.1). Of 5 pairs it is from the smallest to the largest, and holds the true median in 15 of 16 cases.

A difference of pairs is found where that interval leaves out 1 and the median is further from 1 than two successive plain runs are from
each other. Where the change does nothing at all, 5 pairs find one in 3 to 4 of 100 cases, half of them a win (simulated with normal,
Laplace and exponential noise and with drift: ``tests/analysis/test_significance.py``); the sign alone would in 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import ceil, comb, exp, hypot, log, log10, sqrt
from statistics import NormalDist, median
from typing import NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.runs import thresholds as limits

CHANCE = 0.05  # how often equal runs may be called different
FEWEST_STEPS = 10  # of a run, under which nothing is said
# The standard deviation of a run's median beside that of its steps, as a part of it, where there is one run a side: with nothing else on
# the machine. Where other work held up steps it is a part of how far they lie apart: the fastest tenth from the median, which is how much
# the speed itself varies, and of rates the mean from the median; at most what was measured then (docs/compare.md).
BETWEEN_RUNS, BETWEEN_RUNS_BUSY = 0.008, 0.04
BETWEEN_STARTS = 0.1  # the same of what a run does before and after training, such as imports
_HELD_UP = 0.4
_WAITED_POWER = 3.0  # of 1 / (1 - share of the time that the main thread waited): by so much a busy machine may hold up steps
_MOST_WAITED = 0.99
UNEVEN = 0.2  # the standard deviation of what contention adds, as a part of the most that it may add
_LONGEST = 3  # runs of one side in a row that count by themselves
_DRAWS = 1000
_MOST_BLOCKS = 1000  # in a draw: with longer blocks nothing is lost where there are so many


class Estimate(NamedTuple):
    """What the steps of a run tell of a figure."""

    value: float  # the figure's logarithm
    error: float = 0.0  # the standard error of that, as the steps show it


class Difference(NamedTuple):
    """Runs beside others."""

    ratio: float  # second over first. low, high: Where the true ratio is. first, second: The interval of each side's figure.
    low: float
    high: float
    first: tuple[float, float]
    second: tuple[float, float]
    measured: bool  # whether it was measured how much runs differ; else it was assumed

    @property
    def significant(self) -> bool:
        """Whether noise does not explain it."""
        return not self.low <= 1 <= self.high


def median_of_steps(values: Array) -> Estimate | None:
    """The median of a run's steps.

    Args:
        values: Of shape (n,), in the order of the steps; or (ranks, n): ranks train in step, so that their k-th steps are drawn together.

    Returns:
        None of fewer than 10 steps, or where the median is 0.
    """
    values = np.atleast_2d(values)
    middle = float(np.median(values))
    if values.shape[1] < FEWEST_STEPS or middle <= 0:
        return None
    above = (values > middle).mean(axis=0) + (values == middle).mean(axis=0) / 2
    # The median of a draw is, to the first order, the quantile that the share of the draw's steps above the median points to (R. R.
    # Bahadur, A Note on Quantiles in Large Samples, 1966): a draw then costs its blocks, not a sort of a million steps.
    shares, inflation = bootstrap_means(above)
    medians = np.quantile(values, np.clip(0.5 + shares - above.mean(), 0.0, 1.0))
    return Estimate(log(middle), inflation * float(np.log(np.maximum(medians, middle * 1e-3)).std()))


def rate_of_steps(amount: Array, time: Array) -> Estimate | None:
    """The sum of an amount over the sum of a time; both of shape (n,). None of fewer than 10 steps, or where either sum is 0."""
    if len(time) < FEWEST_STEPS or not amount.sum() or not time.sum():
        return None
    means, inflation = bootstrap_means(amount / amount.mean() - time / time.mean())  # the logarithm, to the first order
    return Estimate(log(amount.sum() / time.sum()), inflation * float(means.std()))


def bootstrap_means(series: Array) -> tuple[Array, float]:
    """Means of draws of blocks, and by how much their spread is to be taken larger since there are so few blocks.

    The draws are the same each time: a comparison that is repeated says the same.
    """
    n = len(series)
    length = max(block_length(series), ceil(n / _MOST_BLOCKS))
    blocks = ceil(n / length)
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([series, series[: length - 1]]))])
    means = (sums[length:] - sums[:-length]) / length  # of the block that begins at each step
    drawn = np.random.default_rng(0).integers(0, n, (_DRAWS, blocks))
    return means[drawn].mean(axis=1), student(CHANCE, max(n / length - 1, 1.0)) / student(CHANCE)


def block_length(series: Array) -> int:
    """How many successive values of a series are drawn together: the rule of Politis and White for the circular bootstrap."""
    n = len(series)
    centred = np.asarray(series, np.float64) - np.mean(series)
    near = max(5, ceil(sqrt(log10(n))))
    lags = min(ceil(sqrt(n)) + near, n - 1)
    power = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    covariance = np.fft.irfft(power)[: lags + 1] / n
    if covariance[0] <= 1e-12 * max(float(np.square(series).mean()), 1e-300):
        return 1  # all are the same
    small = np.abs(covariance[1:] / covariance[0]) < 2 * sqrt(log10(n) / n)
    quiet = [m for m in range(lags - near + 1) if small[m : m + near].all()]
    width = min(2 * max(quiet[0] if quiet else lags, 1), lags)
    k = np.arange(1, width + 1)
    window = np.clip(2 * (1 - k / width), 0, 1) * covariance[1 : width + 1]
    spread = float(covariance[0] + 2 * window.sum())
    if spread <= 0:
        return 1
    length: float = (2 * (2 * float((window * k).sum())) ** 2 / (4 / 3 * spread**2)) ** (1 / 3) * n ** (1 / 3)
    return max(1, min(round(length), ceil(min(3 * sqrt(n), n / 3))))


def student(chance: float, freedom: float | None = None) -> float:
    """How many standard errors from the middle an interval reaches that misses in so many cases; with no freedom given, the normal one's.

    Of Student's t, x = sqrt(f) tan(a) where the density of the angle a is as cos(a) ** (f - 1).
    """
    if freedom is None or freedom > 1000:
        return NormalDist().inv_cdf(1 - chance / 2)
    angle = np.linspace(0.0, np.pi / 2, 5001)
    below = np.concatenate([[0.0], np.cumsum(np.cos(angle[:-1] + angle[1] / 2) ** (freedom - 1))])
    return float(sqrt(freedom) * np.tan(np.interp((1 - chance) * below[-1], below, angle)))


def independent_runs(first: Sequence[float], second: Sequence[float]) -> tuple[list[list[int]], list[list[int]]]:
    """Which runs of each side count as one, by their places, given when each began.

    Runs of one side with none of the other's between them are alike, as successive steps are: in an hour of drift 10 and then 10 equal
    runs were called different in 16 of 100 cases, 20 and 20 in 38. Of more than three in a row each half counts as one. That was not so
    where a side has a single run.
    """
    order = sorted([(at, 0, i) for i, at in enumerate(first)] + [(at, 1, i) for i, at in enumerate(second)])
    groups: tuple[list[list[int]], list[list[int]]] = ([], [])
    for side, runs in groupby(order, key=lambda run: run[1]):
        row = [i for _, _, i in runs]
        half = len(row) // 2
        halved = len(row) > _LONGEST and min(len(first), len(second)) > 1
        groups[side].extend([row[:half], row[half:]] if halved else [[i] for i in row])
    return groups


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """Of runs that count as one: the median."""
    return Estimate(median(one.value for one in estimates), sqrt(sum(one.error**2 for one in estimates)) / len(estimates))


def between_runs(median: float, fastest: float, mean: float | None = None) -> float:
    """What is taken for the difference of runs, where other work held up steps.

    Args:
        median: Of the steps.
        fastest: Their tenth percentile.
        mean: Of the steps, where the figure is a rate.
    """
    if mean is not None:
        return max(BETWEEN_RUNS, _HELD_UP * log(mean / median))
    return min(max(BETWEEN_RUNS, _HELD_UP * log(median / fastest)), BETWEEN_RUNS_BUSY)


def contention(waited_share: float, others_share: float) -> float:
    """The logarithm of how many times as long steps may have taken since other programs had the processors.

    A program whose main thread waits for a processor in a share w of its time takes 1 / (1 - w) times as long, if that is spread evenly.
    Steps may have had more of it than the run; where several threads wait for each other, each adds its own. In recorded runs of one script
    it was up to the third power of that (docs/compare.md). Where others had hardly anything the main thread waited for the program's own
    threads.

    Args:
        waited_share: Of the time, the main thread was ready to run and had no processor.
        others_share: Of the processors, other programs had so much.
    """
    waited = min(max(waited_share, 0.0), _MOST_WAITED)
    return -_WAITED_POWER * log(1 - waited) if others_share >= limits.OTHERS else 0.0


def difference(
    first: Sequence[Estimate],
    second: Sequence[Estimate],
    between: float = BETWEEN_RUNS,
    chance: float = CHANCE,
    bias: tuple[float, float] = (0.0, 0.0),
) -> Difference:
    """Runs beside others, at least one a side.

    Args:
        first, second: Of each run.
        between: The standard deviation of a run's figure that its steps do not show, as a part of it: it counts with one run a side.
        chance: How often the interval may leave out the true ratio.
        bias: By how much the logarithm of the true ratio may lie below and above what was measured, since one side was held up more.
    """
    sides = (first, second)
    centres = [sum(one.value for one in side) / len(side) for side in sides]
    errors = [sqrt(sum(one.error**2 for one in side)) / len(side) for side in sides]
    reach, freedom = student(chance), len(first) + len(second) - 2
    if freedom:
        spread = sqrt(sum((one.value - centre) ** 2 for side, centre in zip(sides, centres, strict=True) for one in side) / freedom)
        further = student(chance, freedom) * spread
        parts = [max(reach * error, further / sqrt(len(side))) for side, error in zip(sides, errors, strict=True)]
        half = max(reach * hypot(*errors), further * sqrt(1 / len(first) + 1 / len(second)))
    else:
        parts = [reach * hypot(error, between) for error in errors]
        half = hypot(*parts)
    middle = centres[1] - centres[0]
    ratio = (middle - half, middle, middle + half)
    bounds = [(centre - part, centre + part) for centre, part in zip(centres, parts, strict=True)]
    values = [np.sort([one.value for one in side]) for side in sides]
    below = rank_of_difference(len(first), len(second), chance)
    if below:
        differences = np.sort(np.subtract.outer(values[1], values[0]).ravel())
        ratio = (differences[below - 1], float(np.median(differences)), differences[-below])
    for at, side in enumerate(values):
        k = rank_of_bound(len(side), chance)
        if k:
            bounds[at] = (side[k - 1], side[-k])
    ratio = (ratio[0] - bias[0], ratio[1], ratio[2] + bias[1])
    low, middle, high = (exp(one) for one in ratio)
    intervals = [(exp(one), exp(other)) for one, other in bounds]
    return Difference(middle, low, high, intervals[0], intervals[1], bool(freedom))


def rank_of_difference(m: int, n: int, chance: float) -> int:
    """Which of the m n differences from below, and from above, bounds the interval of Mann and Whitney; 0: there are too few."""
    ways = np.zeros(m * n + 1)  # in which so many differences are below 0, where both are of one kind
    ways[0] = 1.0
    for i in range(1, m + 1):
        ways[n + i :] -= ways[: max(len(ways) - n - i, 0)].copy()
        for rest in range(i):
            ways[rest::i] = np.cumsum(ways[rest::i])
    return int(np.searchsorted(2 * np.cumsum(ways) / comb(m + n, m), chance, side="right"))


# pairs of runs


FEWEST = 5
MISSES = 1 / 16  # how often the interval may leave out the true median
WIN, LOSS, NONE = "win", "loss", "no difference found"


_LEAST_LEFT = 0.01  # of a run's time that is left where it waited for all of it: threads that wait at once are added up


class Judgement(NamedTuple):
    """What pairs tell."""

    median: float  # of the ratios, changed over plain. low, high: Where the true median is.
    low: float
    high: float
    spread: float  # by what part of it two successive plain runs differ: the median of that; 0 with one
    verdict: str | None  # ``win``, ``loss``, ``no difference found``; None of fewer than 5 pairs
    because: str = ""  # why not, where a difference might be expected


def judge_pairs(
    pairs: Sequence[tuple[float, float]], ceiling: float | None = None, held_up: Sequence[tuple[float, float]] = ()
) -> Judgement:
    """Judge pairs of times.

    Args:
        pairs: (plain, changed) in seconds, all above 0, in the order in which they ran; at least one.
        ceiling: The share of the time that the change could win at most; None if that is not known.
        held_up: Of each run of these pairs, which share of its time other programs may have made it wait for a processor, 0 to 1. The ratio
            without them lies between that of the shortened changed run and that of the shortened plain one: the interval holds both.
    """
    logs = [log(changed / plain) for plain, changed in pairs]
    shorter = [tuple(log(max(1 - share, _LEAST_LEFT)) for share in pair) for pair in held_up] or [(0.0, 0.0)] * len(pairs)
    lows = sorted(ratio + changed for ratio, (_, changed) in zip(logs, shorter, strict=True))
    highs = sorted(ratio - plain for ratio, (plain, _) in zip(logs, shorter, strict=True))
    logs.sort()
    n = len(logs)
    k = max(rank_of_bound(n), 1)
    middle = (logs[(n - 1) // 2] + logs[n // 2]) / 2
    spread = typical_difference([plain for plain, _ in pairs])
    result = Judgement(exp(middle), exp(lows[k - 1]), exp(highs[n - k]), exp(spread) - 1, None)
    if n < FEWEST:
        return result._replace(because=f"{n} pairs are too few to tell; {FEWEST} are the fewest.")
    if result.low <= 1 <= result.high:
        is_held_up = logs[k - 1] > 0 or logs[n - k] < 0
        return result._replace(verdict=NONE, because="What other programs made the runs wait may be all of it." if is_held_up else "")
    if abs(middle) <= spread:
        return result._replace(verdict=NONE, because="It is no more than two plain runs differ by.")
    if middle > 0:
        return result._replace(verdict=LOSS)
    if ceiling is not None and 1 - result.median > ceiling + result.spread:
        return result._replace(
            verdict=NONE, because="The changed runs took less by more than the change could touch: something else did that."
        )
    return result._replace(verdict=WIN)


def rank_of_bound(n: int, chance: float = MISSES) -> int:
    """Which of n values from below, and from above, bounds the median's interval: 1 is the smallest; 0: there are too few."""
    missed, k = 2 / 2**n, 1
    if missed > chance:
        return 0
    while k < n // 2 and missed + 2 * comb(n, k) / 2**n <= chance:
        missed += 2 * comb(n, k) / 2**n
        k += 1
    return k


def typical_difference(times: Sequence[float]) -> float:
    """The median difference of the logarithms of two successive times; 0 of fewer than two."""
    steps = sorted(abs(log(later / earlier)) for earlier, later in pairwise(times))
    return (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2 if steps else 0.0
