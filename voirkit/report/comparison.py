"""The comparison of two sides, each of one or more runs: their figures (measured values, such as
times and rates), and everything else that differs. It measures nothing.

Each figure has the ratio of the sides, and whether noise explains it
(``voirkit.analysis.significance``). If a side has several runs, its figure is their median.
Differences are second minus first: ``+`` means that the second side has more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import hypot, inf, log, sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from voirkit.analysis.significance import (
    BETWEEN_RUNS,
    BETWEEN_STARTS,
    CHANCE,
    UNEVEN,
    Difference,
    Estimate,
    between_runs,
    combined,
    contention,
    difference,
    independent_runs,
)
from voirkit.phase_table import PHASES
from voirkit.report.overview import instrument_parts
from voirkit.report.sections import figures_of
from voirkit.runs.summary import PARTS, is_contended

if TYPE_CHECKING:
    from voirkit.runs.conditions import Condition
    from voirkit.runs.opened import Run


# Facts of a run's manifest that may explain a difference: for each name shown to users, the keys in
# the manifest, with dots between them.
ENVIRONMENT = {
    "command": "command",
    "voirkit options": "voirkit_options",
    "voirkit": "voirkit",
    "python": "python.version",
    "interpreter": "python.executable",
    "git revision": "git_revision",
    "host": "host",
    "platform": "platform",
    "processors": "cpus",
    "ranks": "world_size",
}


Summary = Mapping[str, Any]
Place = tuple[str, ...]  # the keys that lead to a figure in a summary
Pairs = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Side:
    """The runs of one side, at least one; each attribute has an entry for each run."""

    summaries: Sequence[Summary]  # as ``voirkit.analysis.summary.summary_of`` gives them
    names: Sequence[str] = ()  # names of the runs, as the user typed them
    # the opened runs; for a run in several directories, the first directory
    runs: Sequence[Run] = ()
    # for each figure, by its place in the summary, the value and its error; a figure that is
    # missing here has no confidence interval
    estimates: Sequence[Mapping[Place, Estimate | None]] = ()
    directories: Sequence[Sequence[Run]] = ()  # all directories of each run

    def median(self, *place: str) -> float | None:
        """Return the median of a figure over the runs that have it; None if no run has it."""
        values = [number_at(summary, *place) for summary in self.summaries]
        numbers = [value for value in values if value is not None]
        return median(numbers) if numbers else None

    def estimates_of(self, place: Place, values: bool) -> list[Estimate]:
        """Return the estimate of a figure for each run; empty if it is missing for a run.

        Args:
            place: The place of the figure in the summary.
            values: If no run has an estimate from its steps, use the plain values. Their error then
                comes from the differences between runs.
        """
        estimates = [run_estimates.get(place) for run_estimates in self.estimates]
        if values and not any(estimates):
            numbers = [number_at(summary, *place) for summary in self.summaries]
            estimates = [Estimate(log(value)) if value and value > 0 else None for value in numbers]
        complete = [estimate for estimate in estimates if estimate is not None]
        return complete if len(complete) == len(self.summaries) else []

    @property
    def start_ns(self) -> list[float]:
        """The start of each run in ns since 1970; empty if unknown for any of the runs."""
        times_ns = [number_at(run.manifest, "clocks", "time_ns") for run in self.runs]
        return [] if None in times_ns else [float(time_ns or 0) for time_ns in times_ns]

    @property
    def contention(self) -> float:
        """The logarithm of the slowdown that other programs may have caused: the mean over this
        side's runs (see ``contention_of``)."""
        return fmean(map(contention_of, self.summaries))

    def between_runs(self, place: Place) -> float:
        """Return the assumed difference of a figure between equal runs, in logarithms: the largest
        over this side's runs."""
        return max(_between_runs(summary, place) for summary in self.summaries)


def wall_estimate(summary: Summary, estimates: Mapping[Place, Estimate | None]) -> Estimate | None:
    """Return the wall time of a run as an estimate; None if unknown. Its error is that of the
    training throughput, scaled by the share of the wall time that is training."""
    wall = number_at(summary, *WALL)
    if not wall or wall <= 0:
        return None
    rate = estimates.get(THROUGHPUT)
    error = rate.error * _training_share(summary) if rate is not None else 0.0
    return Estimate(log(wall), error)


def _training_share(summary: Summary) -> float:
    return number_at(summary, "wall", "parts", "training", "share") or 0.0


def _between_walls(summary: Summary) -> float:
    """Return the assumed difference of the wall time between equal runs, in logarithms. Start and
    end of a run are assumed to vary more than its training."""
    training = _training_share(summary)
    between_trainings = training * _between_runs(summary, THROUGHPUT)
    return hypot(between_trainings, (1 - training) * BETWEEN_STARTS)


def contention_of(summary: Summary) -> float:
    """Return the logarithm of the slowdown that other programs may have caused
    (``voirkit.analysis.significance.contention``); 0 if nothing is known of other programs."""
    waited = number_at(summary, "processors", "waited_share")
    other_work = number_at(summary, "processors", "others_share")
    if waited is None or other_work is None:
        return 0.0
    return contention(waited, other_work)


def contention_bias(first: Side, second: Side, place: Place) -> tuple[float, float]:
    """Return by how much the true ratio of a figure may lie below and above the measured one, in
    logarithms, because other programs slowed down one side more. Their effect is longer times and
    lower rates."""
    excess = first.contention - second.contention
    if place[:1] == ("rates",):
        excess = -excess
    return max(-excess, 0.0), max(excess, 0.0)


def _between_runs(summary: Summary, place: Place) -> float:
    """Return the assumed difference of a figure between equal runs, in logarithms, for one run a
    side.

    For a phase it is that of the step, divided by the square root of the phase's share: three times
    as much for a tenth of a step. With fewer calls, less of the variation averages out.
    """
    if place == WALL:
        return _between_walls(summary)
    assumed = _between_steps(summary, place[:1] == ("rates",))
    assumed = max(assumed, UNEVEN * contention_of(summary))
    if place[:2] != ("steps", "phases"):
        return assumed
    share = number_at(summary, *place[:-1], "share")
    return assumed / sqrt(max(share, _LEAST_SHARE)) if share else assumed


def _between_steps(summary: Summary, of_rate: bool) -> float:
    """Return the assumed difference of the step time, or of a rate, between equal runs, in
    logarithms. It is larger if other programs slowed down steps."""
    if not is_contended(summary.get("processors")):
        return BETWEEN_RUNS
    typical = number_at(summary, "steps", "time_s", "median")
    fastest = number_at(summary, "steps", "time_s", "p10")
    mean = number_at(summary, "steps", "mean_s")
    if not typical or not fastest or not mean or mean < _HELD_UP * typical:
        return BETWEEN_RUNS
    return between_runs(typical, fastest, mean if of_rate else None)


_UNAFFECTED = ("", "share", "bytes")  # units of figures that other programs do not slow down
_COUNTS = ("", "share")  # units of figures that are not measured, or may be 0
# Smallest ratio of the mean to the median step time from which it is concluded that other programs
# have slowed down steps.
_HELD_UP = 1.05
_LEAST_SHARE = 0.01
WALL: Place = ("duration_s",)
THROUGHPUT: Place = ("rates", "train_rate")
STEP: Place = ("steps", "time_s")


@dataclass(frozen=True)
class Figure:
    """A figure (a time, rate, share, count ...) with its values for two sides."""

    name: str  # as shown to users
    units: str  # ``s``, ``share``, ``bytes``, ``items/s``, or empty for plain numbers
    first: float | None  # value of the first side; None if unknown
    second: float | None  # value of the second side; None if unknown
    place: Place = ()  # the keys that lead to the figure in a summary
    # p10 and p90 of each side; None if unknown or if a side has several runs
    spreads: tuple[tuple[float, float], tuple[float, float]] | None = None
    better: str = ""  # ``higher``, ``lower``, or empty if neither is better
    # the ratio with its confidence interval; None if the error is unknown
    difference: Difference | None = None

    @property
    def ratio(self) -> float | None:
        """The ratio second / first; None if unknown."""
        if self.difference is not None:
            return self.difference.ratio
        return self.second / self.first if self.first and self.second is not None else None

    @property
    def is_better(self) -> bool | None:
        """True if the second side is better, False if the first is. None if neither is, noise
        explains the difference, or a value is unknown."""
        if not self.better or self.first == self.second:
            return None
        if self.first is None or self.second is None:
            return None
        if self.difference is not None and not self.difference.significant:
            return None
        return (self.second > self.first) is (self.better == "higher")

    def as_json(self) -> dict[str, Any]:
        """Return the figure as a dictionary for JSON output."""
        spreads = None
        if self.spreads is not None:
            spreads = [{"p10": low, "p90": high} for low, high in self.spreads]
        return {
            "name": self.name,
            "units": self.units,
            "first": self.first,
            "second": self.second,
            "ratio": self.ratio,
            "spreads": spreads,
            "difference": None if self.difference is None else _difference_json(self.difference),
        }


def _difference_json(difference: Difference) -> dict[str, Any]:
    return {
        "low": difference.low,
        "high": difference.high,
        "first": difference.first,
        "second": difference.second,
        "significant": difference.significant,
        "between_runs": "measured" if difference.measured else "assumed",
    }


def figures(first: Side, second: Side) -> list[Figure]:
    """Return the figures that at least one side has, with the certainty of their ratios."""
    checkpoints = ("steps", "checkpoints_between")
    single, typical = partial(_single, first, second), partial(_typical, first, second)
    rows = [single("run", "s", "duration_s")]
    for part in PARTS:
        rows.append(single(f"wall time: {part}", "s", "wall", "parts", part, "total_s"))
    rows.append(single("steps", "", "steps", "n"))
    rows.append(typical("step", "s", *STEP))
    rows.append(single("step, mean", "s", "steps", "mean_s"))
    rows += _phases(first, second)
    rows.append(single("checkpoints between steps", "s", *checkpoints, "total_s"))
    rows.append(single("checkpoints between steps, share", "share", *checkpoints, "share"))
    rows += _rates(first, second)
    rows.append(typical("evaluation batch", "s", "evaluation", "time_s"))
    rows.append(single("peak memory", "bytes", "memory", "peak"))
    rows.append(single("last loss", "", "loss", "last"))
    rows.append(single("loader workers", "", "steps", "loader", "workers"))
    rows.append(single("calls", "", "calls", "events"))
    rows.append(single("overhead", "share", "overhead", "share"))
    rows = [row for row in rows if row.first is not None or row.second is not None]
    return with_differences(rows, first, second)


def grouped_runs(first: Side, second: Side) -> tuple[list[list[int]], list[list[int]]]:
    """Return the runs of each side in groups that count as one independent run each.

    Groups are lists of run indices. If start times are unknown, all runs of the first side are
    assumed to have been recorded before those of the second.
    """
    if first.start_ns and second.start_ns:
        return independent_runs(first.start_ns, second.start_ns)
    n, m = len(first.summaries), len(second.summaries)
    return independent_runs(range(n), range(n, n + m))


def with_differences(figures: Sequence[Figure], first: Side, second: Side) -> list[Figure]:
    """Return the figures, with the confidence interval of the ratio where the error is known.

    Of 100 comparisons of equal runs, at most 5 report a difference of the step time, and at most 5
    a difference of any other figure.
    """
    several = len(first.summaries) + len(second.summaries) > 2
    estimates = []
    for figure in figures:
        values = several and figure.units not in _COUNTS
        of_first = first.estimates_of(figure.place, values)
        of_second = second.estimates_of(figure.place, values)
        estimates.append((of_first, of_second))
    n_other_figures = max(sum(all(sides) for sides in estimates) - 1, 1)
    first_groups, second_groups = grouped_runs(first, second)
    result = []
    for figure, (of_first, of_second) in zip(figures, estimates, strict=True):
        if of_first and of_second:
            place = figure.place
            spread = max(first.between_runs(place), second.between_runs(place))
            chance = CHANCE if place == STEP else CHANCE / n_other_figures
            bias = (0.0, 0.0)
            if figure.units not in _UNAFFECTED:
                bias = contention_bias(first, second, place)
            first_estimates = _combined_groups(of_first, first_groups)
            second_estimates = _combined_groups(of_second, second_groups)
            figure_difference = difference(first_estimates, second_estimates, spread, chance, bias)
            figure = replace(figure, difference=figure_difference)
        result.append(figure)
    return result


def _combined_groups(
    estimates: Sequence[Estimate], groups: Sequence[Sequence[int]]
) -> list[Estimate]:
    """Return one combined estimate for each group of runs (see ``grouped_runs``)."""
    return [combined([estimates[number] for number in group]) for group in groups]


def _phases(first: Side, second: Side) -> Iterator[Figure]:
    for phase in PHASES:
        place = ("steps", "phases", phase)
        if any(side.median(*place, "total_s") for side in (first, second)):
            yield _single(first, second, f"{phase}, share", "share", *place, "share")
            yield _typical(first, second, f"{phase}, a step", "s", *place, "step_s")


def _rates(first: Side, second: Side) -> Iterator[Figure]:
    summaries = [*first.summaries, *second.summaries]
    names = dict.fromkeys(name for summary in summaries for name in summary.get("rates") or ())
    for name in names:
        units = (_value_at(summary, "rates", name, "units") for summary in summaries)
        figure = _typical(first, second, name, next(filter(None, units), ""), "rates", name)
        values = [side.median("rates", name, "value") for side in (first, second)]
        if None not in values or None in (figure.first, figure.second):
            figure = replace(figure, first=values[0], second=values[1])
        # Otherwise one side was recorded by an older version, whose summaries have only medians: so
        # the medians of both sides are compared.
        yield figure


def _single(first: Side, second: Side, name: str, units: str, *place: str) -> Figure:
    return Figure(name, units, first.median(*place), second.median(*place), place)


def _typical(first: Side, second: Side, name: str, units: str, *place: str) -> Figure:
    """Return a figure whose value is a median; its p10 and p90 in the summary are its spread."""
    medians = [side.median(*place, "median") for side in (first, second)]
    first_spread, second_spread = _spread(first, place), _spread(second, place)
    spreads = None
    if first_spread is not None and second_spread is not None:
        spreads = first_spread, second_spread
    return Figure(name, units, medians[0], medians[1], place, spreads)


def _spread(side: Side, place: Place) -> tuple[float, float] | None:
    """Return p10 and p90 of a figure; None if unknown or if the side has several runs."""
    low, high = side.median(*place, "p10"), side.median(*place, "p90")
    if len(side.summaries) != 1 or low is None or high is None:
        return None
    return low, high


def _value_at(summary: Any, *path: str) -> Any:
    for key in path:
        summary = summary.get(key) if isinstance(summary, Mapping) else None
    return summary


def number_at(summary: Any, *path: str) -> float | None:
    """Return the number at a place of a summary; None if there is no number."""
    value = _value_at(summary, *path)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def environments(first: Side, second: Side) -> dict[str, tuple[Any, Any]]:
    """Return a dict from name to (first, second), for the facts of ``ENVIRONMENT`` and the package
    versions that differ between the manifests of two sides."""
    manifests, other_manifests = _manifests(first), _manifests(second)
    pairs: dict[str, tuple[Any, Any]] = {}
    for name, path in ENVIRONMENT.items():
        pairs[name] = _pair(manifests, other_manifests, *path.split("."))
    packages, other_packages = _packages(manifests), _packages(other_manifests)
    if packages and other_packages:
        names = {name for installed in (*packages, *other_packages) for name in installed}
        for name in sorted(names):
            pairs[name] = _pair(packages, other_packages, name)
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def _manifests(side: Side) -> list[Mapping[str, Any]]:
    return [
        {**run.manifest, "voirkit_options": _comparable_options(run.manifest)} for run in side.runs
    ]


def _packages(manifests: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the installed packages of each run; a run that was killed has no list of packages and
    is left out."""
    return [manifest["packages"] for manifest in manifests if manifest.get("packages")]


def _pair(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], *path: str
) -> tuple[Any, Any]:
    """Return the value at a place in the documents of the first and of the second side."""
    return (
        _together(_value_at(document, *path) for document in first),
        _together(_value_at(document, *path) for document in second),
    )


def _comparable_options(manifest: Mapping[str, Any]) -> list[str] | None:
    """Return the options of a run without ``--run-dir``, which no two runs have in common."""
    words = manifest.get("voirkit_options")
    if not isinstance(words, list):
        return None
    options = []
    before = None
    for word in words:
        if before != "--run-dir" and not str(word).startswith("--run-dir"):
            options.append(str(word))
        before = word
    return options


def different_facts(first: Side, second: Side) -> dict[str, tuple[Any, Any]]:
    """Return a dict from name to (first, second), for the facts of the summaries (script, end, exit
    code, verdict, alerts) that differ between two sides."""
    facts: dict[str, Callable[[Summary], Any]] = {
        "script": script_name,
        "ended": lambda summary: summary.get("ended"),
        "exit code": lambda summary: summary.get("exit_code"),
        "verdict": lambda summary: _value_at(summary, "verdict", "kind"),
        "alerts": _alert_kinds,
    }
    different = {}
    for name, fact in facts.items():
        pair = _together(map(fact, first.summaries)), _together(map(fact, second.summaries))
        if pair[0] != pair[1]:
            different[name] = pair
    return different


def _alert_kinds(summary: Summary) -> list[str]:
    return sorted(alert["kind"] for alert in summary.get("alerts") or ())


def script_name(summary: Summary) -> str | None:
    """Return the name of the script, without its folder, or module that ran; None if unknown."""
    words = [*map(str, summary.get("command") or ()), "", ""]
    name = words[1] if words[0] == "-m" else os.path.basename(words[0])
    return name or None


def _together(values: Iterable[Any]) -> Any:
    """Return the value that all runs of a side share; if they differ, a text with all values."""
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    if len(distinct) == 1:
        return distinct[0]
    return " or ".join(sorted(map(in_words, distinct)))


def in_words(value: Any) -> str:
    """Return a value of a manifest or summary as one line of text."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return "unknown" if value is None else str(value)


def figures_of_instruments(first: Side, second: Side) -> Iterator[Figure]:
    """Yield the figures of instruments' report sections that all runs have."""
    parts = {**instrument_parts(True), **instrument_parts(False)}
    for part in parts.values():
        of_first = [dict(figures_of(part(summary))) for summary in first.summaries]
        of_second = [dict(figures_of(part(summary))) for summary in second.summaries]
        for name, figure in of_first[0].items():
            if all(name in run for run in (*of_first, *of_second)):
                value = median([run[name].value for run in of_first])
                other_value = median([run[name].value for run in of_second])
                yield Figure(name, figure.unit, value, other_value, better=figure.better)


def change(ratio: float) -> str:
    """Return a ratio as a signed percentage: ``+10.0%`` for 1.1."""
    return f"{ratio - 1:+.1%}"


def missed_by(
    condition: Condition, figures: Sequence[Figure], first: Side, second: Side
) -> Iterator[str]:
    """Yield the reasons why a condition does not hold; nothing if it does.

    A relative condition (with a sign and %) compares the second side with the first; a difference
    that noise explains counts as none. Any other condition applies to each run of the second side.
    """
    if condition.relative:
        figure = _figure_at(condition.path, figures, first, second)
        yield from _missed_change(condition, figure)
        return
    for name, summary in zip(second.names, second.summaries, strict=True):
        failure = condition.failure(dict(summary))
        if failure:
            yield f"{name}: {failure}"


def _figure_at(path: Sequence[str], figures: Sequence[Figure], first: Side, second: Side) -> Figure:
    """Return the figure at a place of a summary, even if reports do not show it."""
    place = path[:-1] if path[-1] in ("median", "value") else path
    for figure in figures:
        if figure.place == place:
            return figure
    return _single(first, second, ".".join(path), "", *path)


def _missed_change(condition: Condition, figure: Figure) -> Iterator[str]:
    """Yield the reason why a relative condition does not hold for a figure; nothing if it does."""
    for side, value in (("first", figure.first), ("second", figure.second)):
        if value is None:
            yield f"{condition.text}: the {side} has no {'.'.join(condition.path)}"
            return
    ratio = figure.ratio
    if ratio is None:
        ratio = inf if figure.second else 1.0
    interval, is_noise = "", False
    if figure.difference is not None:
        low, high = change(figure.difference.low), change(figure.difference.high)
        interval = f" (95%: {low} .. {high})"
        is_noise = not figure.difference.significant
    if not condition.holds(0.0 if is_noise else ratio - 1):
        verb = "no significant difference" if is_noise else "it is"
        yield f"{condition.text}: {verb} {change(ratio)}{interval}"
