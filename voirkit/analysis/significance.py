"""Tests whether the times of runs differ by more than chance: between two sides with one or more
runs each, or in pairs of runs. Pure functions.

**Two sides** (``difference``). Successive steps are correlated, so a run of 1,000 steps contains
less information than 1,000 independent numbers. The error of its median comes from a circular block
bootstrap: blocks of successive steps are drawn with replacement until they fill the run, and a
block may wrap around the end of the run (D. N. Politis and J. P. Romano, 1992). The length of a
block is derived from the autocorrelation as by D. N. Politis and H. White (Automatic Block-Length
Selection for the Dependent Bootstrap, Econometric Reviews 23, 2004, with the correction of A.
Patton, D. N. Politis and H. White, 2009).

Runs of one script differ by more than their steps show, because of memory layout, processors, and
other work on the machine. With several runs this variation is measured. From 4 runs a side the
interval is that of the Mann-Whitney test, around the median of all differences (J. L. Hodges and E.
L. Lehmann, 1963), which a few bad runs do not move. With fewer runs it is the interval of Student's
t, but never narrower than the interval from the steps. With one run a side the variation cannot be
measured and is assumed to be ``BETWEEN_RUNS``; a report of the result should say so.
docs/compare.md says how often equal runs are called different, and how often a planted difference
of 5 % is found (``benchmarks/compare.py``). Machines drift over minutes, so the order in which runs
were recorded matters (``independent_runs``).

**Pairs** (``judge_pairs``). A pair is a plain run and a changed run, one right after the other, so
that slow drift (heat, other programs, caches) affects both. The interval of the median is that of
the sign test: from the k-th smallest to the k-th largest ratio. It assumes only that pairs are
independent, and no form of distribution (H. A. David and H. N. Nagaraja, Order Statistics, 3rd
edition, section 7.1). With 5 pairs it reaches from the smallest to the largest ratio, and contains
the true median in 15 of 16 cases.

Pairs differ if the interval leaves out 1, and the median is further from 1 than two successive
plain runs are from each other. If the change has no effect, 5 pairs report a difference in 3 to 4
of 100 cases, half of them a win (simulated with normal, Laplace and exponential noise and with
drift: ``tests/analysis/test_significance.py``). The sign alone would do so in 6 of 100.
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
FEWEST_STEPS = 10  # a run with fewer steps gives no estimate
# Relative standard deviation between the medians of equal runs, in addition to the error that the
# steps of a run show. It is assumed if each side has a single run. The first value is for an idle
# machine. The second was measured on a busy machine (docs/compare.md), and is the upper limit of
# ``between_runs`` for times.
BETWEEN_RUNS, BETWEEN_RUNS_BUSY = 0.008, 0.04
BETWEEN_STARTS = 0.1  # the same for times before and after training, such as imports
_HELD_UP = 0.4  # assumed spread between runs, as a share of the spread of steps
# On a busy machine steps may take (1 / (1 - w)) ** _WAITED_POWER times as long, where w is the
# share of its time in which the main thread waited for a processor (``contention``).
_WAITED_POWER = 3.0
_MOST_WAITED = 0.99
# Standard deviation of the logarithm of the slowdown by other programs, as a share of the largest
# value of that logarithm (``contention``).
UNEVEN = 0.2
# if more than this number of runs of one side follow each other, each half counts as one run
_LONGEST = 3
_DRAWS = 1000
# maximum number of blocks in a draw; longer runs get longer blocks, without loss
_MOST_BLOCKS = 1000


class Estimate(NamedTuple):
    """A value of a run, such as the median step time, with its standard error, estimated from the
    run's steps."""

    value: float  # logarithm of the run's value
    error: float = 0.0  # standard error of that logarithm


class Difference(NamedTuple):
    """The difference of a value, such as the median step time, between two sides of runs."""

    ratio: float  # second side over first side
    low: float  # lower end of the ratio's interval
    high: float  # upper end of the ratio's interval
    first: tuple[float, float]  # interval of the first side's value
    second: tuple[float, float]  # interval of the second side's value
    measured: bool  # True if the variation between runs was measured; False if it was assumed

    @property
    def significant(self) -> bool:
        """True if noise does not explain the difference."""
        return not self.low <= 1 <= self.high


def median_of_steps(values: Array) -> Estimate | None:
    """Return the median over a run's steps; None for fewer than 10 steps, or if the median is 0.

    Args:
        values: Of shape (n,), in the order of the steps; or (ranks, n): ranks train in step, so
            their k-th steps are drawn together.
    """
    values = np.atleast_2d(values)
    middle = float(np.median(values))
    if values.shape[1] < FEWEST_STEPS or middle <= 0:
        return None
    above = (values > middle).mean(axis=0) + (values == middle).mean(axis=0) / 2
    # To the first order, the median of a draw is the quantile of all steps that corresponds to the
    # share of the draw's steps above the overall median (R. R. Bahadur, A Note on Quantiles in
    # Large Samples, 1966). So a draw costs a sum over its blocks, not a sort of a million steps.
    shares, inflation = bootstrap_means(above)
    quantiles = np.clip(0.5 + shares - above.mean(), 0.0, 1.0)
    medians = np.quantile(values, quantiles)
    logs = np.log(np.maximum(medians, middle * 1e-3))
    return Estimate(log(middle), inflation * float(logs.std()))


def rate_of_steps(amount: Array, time: Array) -> Estimate | None:
    """Return the sum of an amount over the sum of a time, both of shape (n,). None for fewer than
    10 steps, or if either sum is 0."""
    if len(time) < FEWEST_STEPS or not amount.sum() or not time.sum():
        return None
    # To the first order, the mean of these differences over a draw is the logarithm of the draw's
    # rate divided by the run's rate.
    means, inflation = bootstrap_means(amount / amount.mean() - time / time.mean())
    return Estimate(log(amount.sum() / time.sum()), inflation * float(means.std()))


def bootstrap_means(series: Array) -> tuple[Array, float]:
    """Return the means of bootstrap draws of blocks, and the factor by which their spread must be
    inflated because there are few blocks.

    The draws are the same in each call, so a repeated comparison has the same result.
    """
    n = len(series)
    length = max(block_length(series), ceil(n / _MOST_BLOCKS))
    blocks = ceil(n / length)
    circle = np.concatenate([series, series[: length - 1]])
    sums = np.concatenate([[0.0], np.cumsum(circle)])
    means = (sums[length:] - sums[:-length]) / length  # mean of the block that begins at each step
    draws = np.random.default_rng(0).integers(0, n, (_DRAWS, blocks))
    inflation = student(CHANCE, max(n / length - 1, 1.0)) / student(CHANCE)
    return means[draws].mean(axis=1), inflation


def block_length(series: Array) -> int:
    """Return the number of successive values of a series that are drawn together, by the rule of
    Politis and White for the circular bootstrap."""
    n = len(series)
    centred = np.asarray(series, np.float64) - np.mean(series)
    near = max(5, ceil(sqrt(log10(n))))
    lags = min(ceil(sqrt(n)) + near, n - 1)
    power = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    covariance = np.fft.irfft(power)[: lags + 1] / n
    if covariance[0] <= 1e-12 * max(float(np.square(series).mean()), 1e-300):
        return 1  # all values are equal
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
    """Return the half width, in standard errors, of an interval of Student's t that misses with the
    probability ``chance``. Without degrees of freedom it is that of the normal distribution.

    Student's t with f degrees of freedom is x = sqrt(f) tan(a), where the angle a has a density
    proportional to cos(a) ** (f - 1).
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
    """Return, for each side, groups of indices of runs; the runs of a group count as one run.

    Runs of one side in a row, with no run of the other side between them, are correlated as
    successive steps are. When 10 equal runs followed 10 in an hour of drift, they were called
    different in 16 of 100 cases; with 20 and 20 in 38. So of more than three runs in a row each
    half counts as one run. This does not apply if a side has a single run.

    Args:
        first, second: The start times of the runs of each side.
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
    """Return one estimate for runs that count as one run: their median."""
    return Estimate(median(estimate.value for estimate in estimates), _mean_error(estimates))


def between_runs(median: float, fastest: float, mean: float | None = None) -> float:
    """Return the relative standard deviation between runs that is assumed if other work slowed down
    steps.

    It is a share of the spread of steps, and at least ``BETWEEN_RUNS``. For times the spread is
    that between the tenth percentile and the median, which shows how much the speed itself varies,
    and the result at most ``BETWEEN_RUNS_BUSY``. For rates it is that between the median and the
    mean.

    Args:
        median: The median step time.
        fastest: The tenth percentile of the step time.
        mean: The mean step time if a rate is compared; otherwise None.
    """
    if mean is not None:
        return max(BETWEEN_RUNS, _HELD_UP * log(mean / median))
    return min(max(BETWEEN_RUNS, _HELD_UP * log(median / fastest)), BETWEEN_RUNS_BUSY)


def contention(waited_share: float, others_share: float) -> float:
    """Return the logarithm of the largest slowdown of steps that other programs may have caused by
    using the processors.

    A program whose main thread waits for a processor in a share w of its time takes 1 / (1 - w)
    times as long, if the waits are spread evenly. The slowdown of steps may be larger: waits may
    fall into steps more than into the rest of the run, and threads that wait for each other add up
    their waits. In recorded runs of one script it was up to the third power of this factor
    (docs/compare.md). If other programs used hardly any CPU time, the main thread waited for the
    program's own threads, and the result is 0.

    Args:
        waited_share: Share of the time in which the main thread was ready to run but had no
            processor.
        others_share: Share of the processors' time that other programs used.
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
    """Compare a value, such as the median step time, between two sides with at least one run each.

    Args:
        first, second: The estimates of each side's runs.
        between: Relative standard deviation of the value between runs, which the steps do not
            show. It is only used if each side has a single run.
        chance: How often the interval may leave out the true ratio.
        bias: By how much the logarithm of the true ratio may lie below and above the measured one,
            because one side was slowed down more.
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
    """Return the standard error of the mean over runs."""
    return sqrt(sum(run.error**2 for run in runs)) / len(runs)


def _measured_reach(
    sides: Sequence[Sequence[Estimate]],
    centres: Sequence[float],
    errors: Sequence[float],
    chance: float,
) -> tuple[list[float], float]:
    """Return the half widths of each side's interval and of the interval of the difference, by
    Student's t, for more than two runs. No interval is narrower than the interval from the
    steps."""
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
    """Return the rank k of the differences, k-th smallest and k-th largest of all m * n, that bound
    the Mann-Whitney interval; 0 if there are too few."""
    # distribution of the Mann-Whitney statistic: at index u, the number of orderings of the m + n
    # values of two samples in which u of the m * n differences between the samples are below 0
    orders = np.zeros(m * n + 1)
    orders[0] = 1.0
    for i in range(1, m + 1):
        orders[n + i :] -= orders[: max(len(orders) - n - i, 0)].copy()
        for remainder in range(i):
            orders[remainder::i] = np.cumsum(orders[remainder::i])
    chances = 2 * np.cumsum(orders) / comb(m + n, m)
    return int(np.searchsorted(chances, chance, side="right"))


# comparison of runs in pairs


FEWEST = 5
MISSES = 1 / 16  # how often the interval may leave out the true median
WIN, LOSS, NONE = "win", "loss", "no difference found"


# Lower limit for the share of a run's time that is left without its waits. The waits of several
# threads are added up, so they may exceed the run's time.
_LEAST_LEFT = 0.01


class Judgement(NamedTuple):
    """The result of a comparison by pairs."""

    median: float  # median of the pairs' ratios: time of the changed run over the plain run's
    low: float  # lower end of the median's interval
    high: float  # upper end of the median's interval
    # median relative difference of two successive plain runs; 0 with one pair
    spread: float
    verdict: str | None  # ``win``, ``loss``, ``no difference found``; None for fewer than 5 pairs
    because: str = ""  # reason for no verdict, or for no difference though the times differ


def judge_pairs(
    pairs: Sequence[tuple[float, float]],
    ceiling: float | None = None,
    held_up: Sequence[tuple[float, float]] = (),
) -> Judgement:
    """Judge pairs of times.

    Args:
        pairs: (plain, changed) in seconds, all above 0, in the order in which they ran; at least
            one pair.
        ceiling: The largest share of the time that the change could win; None if unknown.
        held_up: For each pair, the share of each run's time, 0 to 1, in which other programs may
            have made it wait for a processor. The ratio without these waits lies between two
            ratios: one with only the changed run shortened by its waits, one with only the plain
            run shortened. The interval contains both.
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
    """Return two lists of the logarithms of ratios, each ascending: with the changed run of each
    pair shortened by its waits for other programs, and with the plain run shortened."""
    lows, highs = [], []
    for ratio, (plain_share, changed_share) in zip(logs, held_up, strict=True):
        lows.append(ratio + log(max(1 - changed_share, _LEAST_LEFT)))
        highs.append(ratio - log(max(1 - plain_share, _LEAST_LEFT)))
    return sorted(lows), sorted(highs)


def rank_of_bound(n: int, chance: float = MISSES) -> int:
    """Return the rank k of n values such that the k-th smallest and the k-th largest bound the
    median's interval; 0 if there are too few values."""
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
    """Return the median absolute difference of the logarithms of successive times; 0 for fewer than
    two times."""
    changes = sorted(abs(log(later / earlier)) for earlier, later in pairwise(times))
    if not changes:
        return 0.0
    return (changes[(len(changes) - 1) // 2] + changes[len(changes) // 2]) / 2
