"""Tests whether times differ by more than chance: those of runs beside each other, by their steps,
and those of pairs of runs. Pure functions.

**Runs beside each other** (``difference``). Steps that follow each other are alike, so a run of
1,000 steps tells less than 1,000 numbers would. How exact its median is comes from a circular block
bootstrap: runs of successive steps are drawn with replacement, around the end of the run, as many
as fill it (D. N. Politis and J. P. Romano, 1992). The length of a block is the one that D. N.
Politis and H. White derive from the autocorrelation (Automatic Block-Length Selection for the
Dependent Bootstrap, Econometric Reviews 23, 2004, with the correction of A. Patton, D. N. Politis
and H. White, 2009).

Runs of one script differ by more than their steps show: where memory lies, which processor they
get, what else the machine does. Of several runs that is measured. Where there are enough of them (4
a side) their ranks tell: the interval is the one of the test of Mann and Whitney, around the median
of all differences (J. L. Hodges and E. L. Lehmann, 1963), which a few runs that fared badly do not
move. Of fewer it is that of Student's t, and never narrower than that of their steps. With one run
a side nothing can be measured: it is taken to be ``BETWEEN_RUNS``, which whoever shows the result
should say. How often equal runs are called different, and how often a planted 5 % is found, is in
docs/compare.md (``benchmarks/compare.py``). What a machine does drifts over minutes, so it matters
in which order runs were recorded (``independent_runs``).

**Pairs** (``judge_pairs``). Each is a plain run and a changed one, right after each other, so that
what drifts over minutes (heat, neighbours, caches) is in both. The interval of the median is the
one of the sign test: from the k-th smallest ratio to the k-th largest, where no form of
distribution is assumed but that pairs are independent (H. A. David and H. N. Nagaraja, Order
Statistics, 3rd edition, section 7.1). Of 5 pairs it is from the smallest to the largest, and holds
the true median in 15 of 16 cases.

A difference of pairs is found where that interval leaves out 1 and the median is further from 1
than two successive plain runs are from each other. Where the change does nothing at all, 5 pairs
find one in 3 to 4 of 100 cases, half of them a win (simulated with normal, Laplace and exponential
noise and with drift: ``tests/analysis/test_significance.py``); the sign alone would in 6.
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
# The standard deviation of a run's median beside that of its steps, as a part of it, where there is
# one run a side: with nothing else on the machine. Where other work held up steps it is a part of
# how far they lie apart: the fastest tenth from the median, which is how much the speed itself
# varies, and of rates the mean from the median; at most what was measured then (docs/compare.md).
BETWEEN_RUNS, BETWEEN_RUNS_BUSY = 0.008, 0.04
BETWEEN_STARTS = 0.1  # the same of what a run does before and after training, such as imports
_HELD_UP = 0.4
# of 1 / (1 - share of the time that the main thread waited): by so much a busy machine may hold up
# steps
_WAITED_POWER = 3.0
_MOST_WAITED = 0.99
# the standard deviation of what contention adds, as a part of the most that it may add
UNEVEN = 0.2
_LONGEST = 3  # runs of one side in a row that count by themselves
_DRAWS = 1000
_MOST_BLOCKS = 1000  # in a draw: with longer blocks nothing is lost where there are so many


class Estimate(NamedTuple):
    """A figure of a run, as its steps show it."""

    value: float  # the figure's logarithm
    error: float = 0.0  # the standard error of that, as the steps show it


class Difference(NamedTuple):
    """Runs beside others."""

    # second over first. low, high: Where the true ratio is. first, second: The interval of each
    # side's figure.
    ratio: float
    low: float
    high: float
    first: tuple[float, float]
    second: tuple[float, float]
    measured: bool  # whether it was measured how much runs differ; otherwise it was assumed

    @property
    def significant(self) -> bool:
        """True if noise does not explain it."""
        return not self.low <= 1 <= self.high


def median_of_steps(values: Array) -> Estimate | None:
    """The median of a run's steps.

    Args:
        values: Of shape (n,), in the order of the steps; or (ranks, n): ranks train in step, so
            that their k-th steps are drawn together.

    Returns:
        None of fewer than 10 steps, or where the median is 0.
    """
    values = np.atleast_2d(values)
    middle = float(np.median(values))
    if values.shape[1] < FEWEST_STEPS or middle <= 0:
        return None
    above = (values > middle).mean(axis=0) + (values == middle).mean(axis=0) / 2
    # The median of a draw is, to the first order, the quantile that the share of the draw's steps
    # above the median points to (R. R. Bahadur, A Note on Quantiles in Large Samples, 1966): a draw
    # then costs its blocks, not a sort of a million steps.
    shares, inflation = bootstrap_means(above)
    quantiles = np.clip(0.5 + shares - above.mean(), 0.0, 1.0)
    medians = np.quantile(values, quantiles)
    logs = np.log(np.maximum(medians, middle * 1e-3))
    return Estimate(log(middle), inflation * float(logs.std()))


def rate_of_steps(amount: Array, time: Array) -> Estimate | None:
    """The sum of an amount over the sum of a time; both of shape (n,). None of fewer than 10 steps,
    or where either sum is 0."""
    if len(time) < FEWEST_STEPS or not amount.sum() or not time.sum():
        return None
    # the logarithm, to the first order
    means, inflation = bootstrap_means(amount / amount.mean() - time / time.mean())
    return Estimate(log(amount.sum() / time.sum()), inflation * float(means.std()))


def bootstrap_means(series: Array) -> tuple[Array, float]:
    """Means of draws of blocks, and by how much their spread is to be taken larger since there are
    so few blocks.

    The draws are the same each time: a comparison that is repeated says the same.
    """
    n = len(series)
    length = max(block_length(series), ceil(n / _MOST_BLOCKS))
    blocks = ceil(n / length)
    circle = np.concatenate([series, series[: length - 1]])
    sums = np.concatenate([[0.0], np.cumsum(circle)])
    means = (sums[length:] - sums[:-length]) / length  # of the block that begins at each step
    draws = np.random.default_rng(0).integers(0, n, (_DRAWS, blocks))
    inflation = student(CHANCE, max(n / length - 1, 1.0)) / student(CHANCE)
    return means[draws].mean(axis=1), inflation


def block_length(series: Array) -> int:
    """The number of successive values of a series that are drawn together: the rule of Politis and
    White for the circular bootstrap."""
    n = len(series)
    centred = np.asarray(series, np.float64) - np.mean(series)
    near = max(5, ceil(sqrt(log10(n))))
    lags = min(ceil(sqrt(n)) + near, n - 1)
    power = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    covariance = np.fft.irfft(power)[: lags + 1] / n
    if covariance[0] <= 1e-12 * max(float(np.square(series).mean()), 1e-300):
        return 1  # all are the same
    small = np.abs(covariance[1:] / covariance[0]) < 2 * sqrt(log10(n) / n)
    quiet = [lag for lag in range(lags - near + 1) if small[lag : lag + near].all()]
    first_quiet = quiet[0] if quiet else lags
    width = min(2 * max(first_quiet, 1), lags)
    k = np.arange(1, width + 1)
    taper = np.clip(2 * (1 - k / width), 0, 1)
    window = taper * covariance[1 : width + 1]
    spread = float(covariance[0] + 2 * window.sum())
    if spread <= 0:
        return 1
    slope = 2 * float((window * k).sum())
    ratio = 2 * slope**2 / (4 / 3 * spread**2)
    length: float = ratio ** (1 / 3) * n ** (1 / 3)
    longest = ceil(min(3 * sqrt(n), n / 3))
    return max(1, min(round(length), longest))


def student(chance: float, freedom: float | None = None) -> float:
    """The number of standard errors from the middle to the end of an interval that misses in so
    many cases; with no freedom given, the normal one's.

    Of Student's t, x = sqrt(f) tan(a) where the density of the angle a is as cos(a) ** (f - 1).
    """
    if freedom is None or freedom > 1000:
        return NormalDist().inv_cdf(1 - chance / 2)
    angle = np.linspace(0.0, np.pi / 2, 5001)
    density = np.cos(angle[:-1] + angle[1] / 2) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density)])
    reach = np.interp((1 - chance) * below[-1], below, angle)
    return float(sqrt(freedom) * np.tan(reach))


def independent_runs(
    first: Sequence[float], second: Sequence[float]
) -> tuple[list[list[int]], list[list[int]]]:
    """The runs of each side that count as one, by their places, given when each began.

    Runs of one side with none of the other's between them are alike, as successive steps are: in an
    hour of drift 10 and then 10 equal runs were called different in 16 of 100 cases, 20 and 20 in
    38. Of more than three in a row each half counts as one. That was not so where a side has a
    single run.
    """
    runs = [(start, 0, i) for i, start in enumerate(first)]
    runs += [(start, 1, i) for i, start in enumerate(second)]
    has_several = min(len(first), len(second)) > 1
    groups: tuple[list[list[int]], list[list[int]]] = ([], [])
    for side, row in groupby(sorted(runs), key=lambda run: run[1]):
        places = [i for _, _, i in row]
        if has_several and len(places) > _LONGEST:
            half = len(places) // 2
            groups[side].extend([places[:half], places[half:]])
        else:
            groups[side].extend([i] for i in places)
    return groups


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """The estimate of runs that count as one: their median."""
    return Estimate(median(estimate.value for estimate in estimates), _mean_error(estimates))


def between_runs(median: float, fastest: float, mean: float | None = None) -> float:
    """The difference of runs that is assumed where other work held up steps.

    Args:
        median: Of the steps.
        fastest: Their tenth percentile.
        mean: Of the steps, where the figure is a rate.
    """
    if mean is not None:
        return max(BETWEEN_RUNS, _HELD_UP * log(mean / median))
    return min(max(BETWEEN_RUNS, _HELD_UP * log(median / fastest)), BETWEEN_RUNS_BUSY)


def contention(waited_share: float, others_share: float) -> float:
    """The logarithm of how many times as long steps may have taken since other programs had the
    processors.

    A program whose main thread waits for a processor in a share w of its time takes 1 / (1 - w)
    times as long, if that is spread evenly. Steps may have had more of it than the run; where
    several threads wait for each other, each adds its own. In recorded runs of one script it was up
    to the third power of that (docs/compare.md). Where others had hardly anything the main thread
    waited for the program's own threads.

    Args:
        waited_share: Of the time, the main thread was ready to run and had no processor.
        others_share: Of the processors, other programs had so much.
    """
    if others_share < limits.OTHER_PROGRAMS:
        return 0.0
    waited = min(max(waited_share, 0.0), _MOST_WAITED)
    return -_WAITED_POWER * log(1 - waited)


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
        between: The standard deviation of a run's figure that its steps do not show, as a part of
            it: it counts with one run a side.
        chance: How often the interval may leave out the true ratio.
        bias: By how much the logarithm of the true ratio may lie below and above what was measured,
            since one side was held up more.
    """
    sides = (first, second)
    centres = [_mean_value(side) for side in sides]
    errors = [_mean_error(side) for side in sides]
    is_measured = len(first) + len(second) > 2
    if is_measured:
        parts, half = _measured_reach(sides, centres, errors, chance)
    else:
        reach = student(chance)
        parts = [reach * hypot(error, between) for error in errors]
        half = hypot(*parts)
    middle = centres[1] - centres[0]
    low, high = middle - half, middle + half
    bounds = [(centre - part, centre + part) for centre, part in zip(centres, parts, strict=True)]
    values = [np.sort([run.value for run in side]) for side in sides]
    rank = rank_of_difference(len(first), len(second), chance)
    if rank:
        differences = np.sort(np.subtract.outer(values[1], values[0]).ravel())
        low, middle, high = differences[rank - 1], float(np.median(differences)), differences[-rank]
    for number, side_values in enumerate(values):
        side_rank = rank_of_bound(len(side_values), chance)
        if side_rank:
            bounds[number] = (side_values[side_rank - 1], side_values[-side_rank])
    low, high = low - bias[0], high + bias[1]
    first_interval, second_interval = [(exp(below), exp(above)) for below, above in bounds]
    return Difference(
        exp(middle), exp(low), exp(high), first_interval, second_interval, is_measured
    )


def _mean_value(runs: Sequence[Estimate]) -> float:
    return sum(run.value for run in runs) / len(runs)


def _mean_error(runs: Sequence[Estimate]) -> float:
    """The standard error of the mean of some runs."""
    return sqrt(sum(run.error**2 for run in runs)) / len(runs)


def _measured_reach(
    sides: Sequence[Sequence[Estimate]],
    centres: Sequence[float],
    errors: Sequence[float],
    chance: float,
) -> tuple[list[float], float]:
    """The reach of each side's interval, and of that of their difference, by Student's t, where
    there are more than two runs; none is narrower than that of the steps."""
    numbers = [len(side) for side in sides]
    freedom = sum(numbers) - 2
    squares = sum(
        (run.value - centre) ** 2
        for side, centre in zip(sides, centres, strict=True)
        for run in side
    )
    further = student(chance, freedom) * sqrt(squares / freedom)
    reach = student(chance)
    parts = [
        max(reach * error, further / sqrt(number))
        for number, error in zip(numbers, errors, strict=True)
    ]
    half = max(reach * hypot(*errors), further * sqrt(1 / numbers[0] + 1 / numbers[1]))
    return parts, half


def rank_of_difference(m: int, n: int, chance: float) -> int:
    """The rank of the one of the m n differences, from below and from above, that bounds the
    interval of Mann and Whitney; 0: there are too few."""
    # the number of orders in which so many differences are below 0, where both are of one kind
    orders = np.zeros(m * n + 1)
    orders[0] = 1.0
    for i in range(1, m + 1):
        orders[n + i :] -= orders[: max(len(orders) - n - i, 0)].copy()
        for remainder in range(i):
            orders[remainder::i] = np.cumsum(orders[remainder::i])
    chances = 2 * np.cumsum(orders) / comb(m + n, m)
    return int(np.searchsorted(chances, chance, side="right"))


# pairs of runs


FEWEST = 5
MISSES = 1 / 16  # how often the interval may leave out the true median
WIN, LOSS, NONE = "win", "loss", "no difference found"


# of a run's time that is left where it waited for all of it: threads that wait at once are added up
_LEAST_LEFT = 0.01


class Judgement(NamedTuple):
    """The result of a comparison by pairs."""

    median: float  # of the ratios, changed over plain. low, high: Where the true median is.
    low: float
    high: float
    # by what part of it two successive plain runs differ: the median of that; 0 with one
    spread: float
    verdict: str | None  # ``win``, ``loss``, ``no difference found``; None of fewer than 5 pairs
    because: str = ""  # why not, where a difference might be expected


def judge_pairs(
    pairs: Sequence[tuple[float, float]],
    ceiling: float | None = None,
    held_up: Sequence[tuple[float, float]] = (),
) -> Judgement:
    """Judge pairs of times.

    Args:
        pairs: (plain, changed) in seconds, all above 0, in the order in which they ran; at least
            one.
        ceiling: The share of the time that the change could win at most; None if that is not known.
        held_up: Of each run of these pairs, which share of its time other programs may have made it
            wait for a processor, 0 to 1. The ratio without them lies between that of the shortened
            changed run and that of the shortened plain one: the interval holds both.
    """
    logs = [log(changed / plain) for plain, changed in pairs]
    lows, highs = sorted(logs), sorted(logs)
    if held_up:
        lows, highs = _ratios_without_waits(logs, held_up)
    logs.sort()
    n = len(logs)
    rank = max(rank_of_bound(n), 1)
    middle = (logs[(n - 1) // 2] + logs[n // 2]) / 2
    spread = typical_difference([plain for plain, _ in pairs])
    low, high = exp(lows[rank - 1]), exp(highs[n - rank])
    verdict, because = None, ""
    if n < FEWEST:
        because = f"{n} pairs are too few to tell; {FEWEST} are the fewest."
    elif low <= 1 <= high:
        verdict = NONE
        if logs[rank - 1] > 0 or logs[n - rank] < 0:
            because = "What other programs made the runs wait may be all of it."
    elif abs(middle) <= spread:
        verdict = NONE
        because = "It is no more than two plain runs differ by."
    elif middle > 0:
        verdict = LOSS
    elif ceiling is not None and 1 - exp(middle) > ceiling + (exp(spread) - 1):
        verdict = NONE
        because = (
            "The changed runs took less by more than the change could touch: something else did"
            " that."
        )
    else:
        verdict = WIN
    return Judgement(exp(middle), low, high, exp(spread) - 1, verdict, because)


def _ratios_without_waits(
    logs: Sequence[float], held_up: Sequence[tuple[float, float]]
) -> tuple[list[float], list[float]]:
    """The logarithms of the ratios of pairs with the changed run shortened by what it waited for
    other programs, and with the plain one shortened; each ascending."""
    lows, highs = [], []
    for ratio, (plain_share, changed_share) in zip(logs, held_up, strict=True):
        lows.append(ratio + log(max(1 - changed_share, _LEAST_LEFT)))
        highs.append(ratio - log(max(1 - plain_share, _LEAST_LEFT)))
    return sorted(lows), sorted(highs)


def rank_of_bound(n: int, chance: float = MISSES) -> int:
    """The rank of the one of n values, from below and from above, that bounds the median's
    interval: 1 is the smallest; 0: there are too few."""
    missed = 2 / 2**n
    if missed > chance:
        return 0
    rank = 1
    while rank < n // 2:
        missed += 2 * comb(n, rank) / 2**n
        if missed > chance:
            break
        rank += 1
    return rank


def typical_difference(times: Sequence[float]) -> float:
    """The median difference of the logarithms of two successive times; 0 of fewer than two."""
    changes = sorted(abs(log(later / earlier)) for earlier, later in pairwise(times))
    if not changes:
        return 0.0
    return (changes[(len(changes) - 1) // 2] + changes[len(changes) // 2]) / 2
