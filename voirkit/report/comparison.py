"""Runs beside others: the figures of two sides, and what else is not the same. It measures nothing.

Figures have their ratio, and whether noise explains it (``voirkit.analysis.significance``). Of several runs a side a figure is the median
of theirs. ``+`` is what the second has more.
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
from voirkit.report.overview import instrument_parts
from voirkit.report.sections import figures_of
from voirkit.runs.summary import PARTS, PHASES, is_contended

if TYPE_CHECKING:
    from voirkit.runs.conditions import Condition
    from voirkit.runs.opened import Run


# Of a manifest: what may explain a difference, by the name that it is shown under.
ENVIRONMENT = {
    "command": "command", "voirkit options": "voirkit_options", "voirkit": "voirkit", "python": "python.version",
    "interpreter": "python.executable", "git revision": "git_revision", "host": "host", "platform": "platform",
    "processors": "cpus", "ranks": "world_size",
}  # fmt: skip


Summary = Mapping[str, Any]
Place = tuple[str, ...]  # of a figure in a summary
Pairs = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Side:
    """The runs of one side, at least one; each attribute has an entry for each run."""

    summaries: Sequence[Summary]  # as ``voirkit.analysis.summary.summary_of`` gives them
    names: Sequence[str] = ()  # of the runs, as the user typed them
    runs: Sequence[Run] = ()  # the opened runs; of one in several directories the first
    # how sure figures are, by their place in the summary; what is not there has no interval
    estimates: Sequence[Mapping[Place, Estimate | None]] = ()
    directories: Sequence[Sequence[Run]] = ()  # all directories of each run

    def median(self, *place: str) -> float | None:
        """Of a figure, over the runs that have it; None where none has."""
        known = [value for summary in self.summaries if (value := number_at(summary, *place)) is not None]
        return median(known) if known else None

    def estimates_of(self, place: Place, values: bool) -> list[Estimate]:
        """What is known of a figure of each run; empty where of some run nothing is. ``place``: of the figure; ``values``: whether its
        value alone will do where its steps say nothing: it is held against those of other runs."""
        known = [one.get(place) for one in self.estimates]
        if values and not any(known):
            numbers = [number_at(summary, *place) for summary in self.summaries]
            known = [Estimate(log(value)) if value and value > 0 else None for value in numbers]
        found = [one for one in known if one is not None]
        return found if len(found) == len(self.summaries) else []

    @property
    def began(self) -> list[float]:
        """When each run began, in ns since 1970; empty where that is not known of all."""
        known = [number_at(run.manifest, "clocks", "time_ns") for run in self.runs]
        return [] if None in known else [float(at or 0) for at in known]

    @property
    def contention(self) -> float:
        """How much other programs may have held up its runs: the mean of their logarithms."""
        return fmean(map(contention_of, self.summaries))

    def between_runs(self, place: Place) -> float:
        """What is taken for the difference of runs, of those on this side that differ most."""
        return max(_between_runs(summary, place) for summary in self.summaries)


def wall_estimate(summary: Summary, estimates: Mapping[Place, Estimate | None]) -> Estimate | None:
    """The wall time of a run: what its steps say of the error of their mean counts for the part of it that is training."""
    wall = number_at(summary, *WALL)
    if not wall or wall <= 0:
        return None
    rate = estimates.get(THROUGHPUT)
    return Estimate(log(wall), rate.error * _training_share(summary) if rate is not None else 0.0)


def _training_share(summary: Summary) -> float:
    return number_at(summary, "wall", "parts", "training", "share") or 0.0


def _between_walls(summary: Summary) -> float:
    """How much the wall time of equal runs is taken to differ: that of starting and ending more than that of training."""
    training = _training_share(summary)
    return hypot(training * _between_runs(summary, THROUGHPUT), (1 - training) * BETWEEN_STARTS)


def contention_of(summary: Summary) -> float:
    """See ``voirkit.analysis.significance.contention``; 0 where nothing is known of other programs."""
    waited, others = (number_at(summary, "processors", key) for key in ("waited_share", "others_share"))
    return 0.0 if waited is None or others is None else contention(waited, others)


def contention_bias(first: Side, second: Side, place: Place) -> tuple[float, float]:
    """By how much the true ratio of a figure may lie below and above, in logarithms, since one side was held up more than the other: what
    was held up took longer, and its rates are lower."""
    excess = first.contention - second.contention
    if place[:1] == ("rates",):
        excess = -excess
    return max(-excess, 0.0), max(excess, 0.0)


def _between_runs(summary: Summary, place: Place) -> float:
    """Of a run, where there is one a side. Of a phase that is a tenth of a step it is three times as much as of the step: the fewer calls,
    the less of what differs evens out."""
    typical, fastest, mean = (number_at(summary, "steps", *at) for at in (("time_s", "median"), ("time_s", "p10"), ("mean_s",)))
    if place == WALL:
        return _between_walls(summary)
    taken = BETWEEN_RUNS
    if is_contended(summary.get("processors")) and typical and fastest and mean and mean >= _HELD_UP * typical:
        taken = between_runs(typical, fastest, mean if place[:1] == ("rates",) else None)
    taken = max(taken, UNEVEN * contention_of(summary))
    share = number_at(summary, *place[:-1], "share") if place[:2] == ("steps", "phases") else None
    return taken / sqrt(max(share, _LEAST_SHARE)) if share else taken


_UNAFFECTED = ("", "share", "bytes")  # units of what no other program holds up
_COUNTS = ("", "share")  # units of what is no measurement, or may be 0
_HELD_UP = 1.05  # the mean step is so many times the median one: work of others held up steps
_LEAST_SHARE = 0.01
WALL: Place = ("duration_s",)
THROUGHPUT: Place = ("rates", "train_rate")
STEP: Place = ("steps", "time_s")


@dataclass(frozen=True)
class Figure:
    """A figure of two sides. ``spreads``: p10 and p90 of each, where it has them and there is one run a side."""

    name: str  # as it is shown
    units: str  # ``s``, ``share``, ``bytes``, ``items/s``, or empty for numbers. first, second: Its value; None where it is not known.
    first: float | None
    second: float | None
    place: Place = ()  # where it stands in a summary
    spreads: tuple[tuple[float, float], tuple[float, float]] | None = None
    better: str = ""  # ``higher``, ``lower``, or nothing where neither is
    difference: Difference | None = None  # the ratio with its interval, where it is known how sure it is

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        if self.difference is not None:
            return self.difference.ratio
        return self.second / self.first if self.first and self.second is not None else None

    @property
    def is_better(self) -> bool | None:
        """Whether the second is better; None where neither is, noise explains the difference, or one is not known."""
        if not self.better or self.first is None or self.second is None or self.first == self.second:
            return None
        if self.difference is not None and not self.difference.significant:
            return None
        return (self.second > self.first) is (self.better == "higher")

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        spreads = None if self.spreads is None else [{"p10": low, "p90": high} for low, high in self.spreads]
        found = self.difference
        return {
            "name": self.name, "units": self.units, "first": self.first, "second": self.second, "ratio": self.ratio, "spreads": spreads,
            "difference": None if found is None else {
                "low": found.low, "high": found.high, "first": found.first, "second": found.second, "significant": found.significant,
                "between_runs": "measured" if found.measured else "assumed",
            },
        }  # fmt: skip


def figures(first: Side, second: Side) -> list[Figure]:
    """What both sides, or one of them, have."""
    one, typical = partial(_one, first, second), partial(_typical, first, second)
    found = [
        one("run", "s", "duration_s"),
        *(one(f"wall time: {part}", "s", "wall", "parts", part, "total_s") for part in PARTS),
        one("steps", "", "steps", "n"),
        typical("step", "s", *STEP),
        one("step, mean", "s", "steps", "mean_s"),
        *_phases(first, second),
        one("checkpoints between steps", "s", "steps", "checkpoints_between", "total_s"),
        one("checkpoints between steps, share", "share", "steps", "checkpoints_between", "share"),
        *_rates(first, second),
        typical("evaluation batch", "s", "evaluation", "time_s"),
        one("peak memory", "bytes", "memory", "peak"),
        one("last loss", "", "loss", "last"),
        one("loader workers", "", "steps", "loader", "workers"),
        one("calls", "", "calls", "events"),
        one("overhead", "share", "overhead", "share"),
    ]
    return with_differences([figure for figure in found if figure.first is not None or figure.second is not None], first, second)


def grouped_runs(first: Side, second: Side) -> tuple[list[list[int]], list[list[int]]]:
    """Which runs of each side count as one; without clocks, as if all of the first had been recorded before the second's."""
    began = (first.began, second.began)
    n, m = len(first.summaries), len(second.summaries)
    return independent_runs(*began) if all(began) else independent_runs(range(n), range(n, n + m))


def with_differences(figures: Sequence[Figure], first: Side, second: Side) -> list[Figure]:
    """Figures with how sure their ratio is. Step time is judged by itself: equal runs are called different in 5 of 100 cases at most. The
    other figures share another 5."""
    several = len(first.summaries) + len(second.summaries) > 2
    known = [[side.estimates_of(one.place, several and one.units not in _COUNTS) for side in (first, second)] for one in figures]
    others = max(sum(all(sides) for sides in known) - 1, 1)
    groups = grouped_runs(first, second)
    found = []
    for one, (ones, those) in zip(figures, known, strict=True):
        between = max(first.between_runs(one.place), second.between_runs(one.place))
        chance = CHANCE if one.place == STEP else CHANCE / others
        if ones and those:
            sides = [[combined([of[i] for i in runs]) for runs in side] for of, side in zip((ones, those), groups, strict=True)]
            bias = contention_bias(first, second, one.place) if one.units not in _UNAFFECTED else (0.0, 0.0)
            one = replace(one, difference=difference(sides[0], sides[1], between, chance, bias))
        found.append(one)
    return found


def _phases(first: Side, second: Side) -> Iterator[Figure]:
    for phase in PHASES:
        place = ("steps", "phases", phase)
        if any(side.median(*place, "total_s") for side in (first, second)):
            yield _one(first, second, f"{phase}, share", "share", *place, "share")
            yield _typical(first, second, f"{phase}, a step", "s", *place, "step_s")


def _rates(first: Side, second: Side) -> Iterator[Figure]:
    for name in dict.fromkeys(name for side in (first, second) for one in side.summaries for name in one.get("rates") or ()):
        units = [_at(one, "rates", name, "units") for side in (first, second) for one in side.summaries]
        figure = _typical(first, second, name, next(filter(None, units), ""), "rates", name)
        values = [side.median("rates", name, "value") for side in (first, second)]
        if None not in values or None in (figure.first, figure.second):
            figure = replace(figure, first=values[0], second=values[1])
        yield figure  # else one of the runs is of a version that knew the median alone: like is held against like


def _one(first: Side, second: Side, name: str, units: str, *place: str) -> Figure:
    return Figure(name, units, first.median(*place), second.median(*place), place)


def _typical(first: Side, second: Side, name: str, units: str, *place: str) -> Figure:
    """A figure of steps, of which a summary has median, p10 and p90."""
    values = [side.median(*place, "median") for side in (first, second)]
    spreads = [
        (low, high)
        for side in (first, second)
        if len(side.summaries) == 1 and (low := side.median(*place, "p10")) is not None and (high := side.median(*place, "p90")) is not None
    ]
    return Figure(name, units, values[0], values[1], place, (spreads[0], spreads[1]) if len(spreads) == 2 else None)


def _at(summary: Any, *path: str) -> Any:
    for key in path:
        summary = summary.get(key) if isinstance(summary, Mapping) else None
    return summary


def number_at(summary: Any, *path: str) -> float | None:
    """A number of a summary; None where it has none there."""
    value = _at(summary, *path)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def environments(first: Side, second: Side) -> dict[str, tuple[Any, Any]]:
    """What of two sides' manifests is not the same."""
    sides = [[{**run.manifest, "voirkit_options": _own_options(run.manifest)} for run in side.runs] for side in (first, second)]
    pairs = {name: tuple(_together(_at(one, *path.split(".")) for one in side) for side in sides) for name, path in ENVIRONMENT.items()}
    packages = [[one["packages"] for one in side if one.get("packages")] for side in sides]  # a run that was killed has none
    if all(packages):
        names = sorted({name for side in packages for one in side for name in one})
        pairs.update({name: tuple(_together(one.get(name) for one in side) for side in packages) for name in names})
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def _own_options(manifest: Mapping[str, Any]) -> list[str] | None:
    """Options without where the run was recorded, which no two runs have in common."""
    words = manifest.get("voirkit_options")
    if not isinstance(words, list):
        return None
    named = {at + 1 for at, word in enumerate(words) if word == "--run-dir"}
    return [str(word) for at, word in enumerate(words) if at not in named and not str(word).startswith("--run-dir")]


def said(first: Side, second: Side) -> dict[str, tuple[Any, Any]]:
    """Scripts, verdicts, alerts, how each ended: those that are not the same."""
    facts: dict[str, Callable[[Summary], Any]] = {
        "script": script_name,
        "ended": lambda one: one.get("ended"),
        "exit code": lambda one: one.get("exit_code"),
        "verdict": lambda one: _at(one, "verdict", "kind"),
        "alerts": lambda one: sorted(alert["kind"] for alert in one.get("alerts") or ()),
    }
    pairs = {name: tuple(_together(map(fact, side.summaries)) for side in (first, second)) for name, fact in facts.items()}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def script_name(summary: Summary) -> str | None:
    """The script or module that ran, without its folder; None where that is not known."""
    words = [*map(str, summary.get("command") or ()), "", ""]
    name = words[1] if words[0] == "-m" else os.path.basename(words[0])
    return name or None


def _together(values: Iterable[Any]) -> Any:
    """What runs of one side have: the value itself where it is the same in all."""
    distinct: list[Any] = []
    distinct += [value for value in values if value not in distinct]
    return distinct[0] if len(distinct) == 1 else " or ".join(sorted(map(in_words, distinct)))


def in_words(value: Any) -> str:
    """What a manifest or a summary holds, in a line."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return "unknown" if value is None else str(value)


def figures_of_instruments(first: Side, second: Side) -> Iterator[Figure]:
    """The figures of instruments' sections that all runs have."""
    for part in {**instrument_parts(True), **instrument_parts(False)}.values():
        ones, others = ([dict(figures_of(part(summary))) for summary in side.summaries] for side in (first, second))
        for name, one in ones[0].items():
            if all(name in run for run in (*ones, *others)):
                values = [median([run[name].value for run in side]) for side in (ones, others)]
                yield Figure(name, one.unit, values[0], values[1], better=one.better)


def change(ratio: float) -> str:
    """A ratio as what is more or less."""
    return f"{ratio - 1:+.1%}"


def missed_by(condition: Condition, figures: Sequence[Figure], first: Side, second: Side) -> Iterator[str]:
    """Why a condition does not hold; nothing if it does. One with a sign and % is of the second side beside the first; where noise explains
    the difference, it counts as none. Others are of each run of the second side."""
    if not condition.relative:
        for name, summary in zip(second.names, second.summaries, strict=True):
            failure = condition.failure(dict(summary))
            if failure:
                yield f"{name}: {failure}"
        return
    place = condition.path[:-1] if condition.path[-1] in ("median", "value") else condition.path
    whole = ".".join(condition.path)
    figure = next((one for one in figures if one.place == place), None) or _one(first, second, whole, "", *condition.path)
    for head, value in (("first", figure.first), ("second", figure.second)):
        if value is None:
            yield f"{condition.text}: the {head} has no {whole}"
            return
    ratio = (1.0 if not figure.second else inf) if figure.ratio is None else figure.ratio
    found = figure.difference
    noise = found is not None and not found.significant
    if not condition.holds(0.0 if noise else ratio - 1):
        interval = "" if found is None else f" (95%: {change(found.low)} .. {change(found.high)})"
        yield f"{condition.text}: {'no significant difference' if noise else 'it is'} {change(ratio)}{interval}"
