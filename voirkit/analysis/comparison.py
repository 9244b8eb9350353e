"""The summaries of two runs beside each other: figures with their ratio, and whether they differ by more than steps of one run do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from voirkit.runs.summary import PARTS, PHASES

# Of a manifest: what may explain a difference, by the name that it is shown under.
ENVIRONMENT = {
    "command": "command", "voirkit options": "voirkit_options", "voirkit": "voirkit", "python": "python.version",
    "interpreter": "python.executable", "git revision": "git_revision", "host": "host", "platform": "platform",
    "processors": "cpus", "ranks": "world_size",
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A figure of two runs.

    Attributes:
        name: As it is shown.
        units: ``s``, ``share``, ``bytes``, ``items/s``, or empty for numbers.
        first, second: Its value; None where it is not known.
        spreads: p10 and p90 of each, where it has them.
        medians: What is held against the spreads, where that is not the value itself: of a rate, that of typical steps.
    """

    name: str
    units: str
    first: float | None
    second: float | None
    spreads: tuple[tuple[float, float], tuple[float, float]] | None = None
    medians: tuple[float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        return self.second / self.first if self.first and self.second is not None else None

    @property
    def beyond(self) -> bool | None:
        """Whether each median lies outside of the other run's p10 .. p90; None where there is no spread."""
        if self.spreads is None or self.first is None or self.second is None:
            return None
        (low, high), (other_low, other_high) = self.spreads
        first, second = self.medians or (self.first, self.second)
        return not low <= second <= high and not other_low <= first <= other_high

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        spreads = None if self.spreads is None else [{"p10": low, "p90": high} for low, high in self.spreads]
        return {
            "name": self.name, "units": self.units, "first": self.first, "second": self.second, "ratio": self.ratio, "spreads": spreads,
            "beyond_spread": self.beyond,
        }  # fmt: skip


Summary = Mapping[str, Any]


def figures(first: Summary, second: Summary) -> list[Figure]:
    """What both summaries, or one of them, have."""
    found = [
        _one("run", "s", first, second, "duration_s"),
        *(_one(f"wall time: {part}", "s", first, second, "wall", "parts", part, "total_s") for part in PARTS),
        _one("steps", "", first, second, "steps", "n"),
        _spread("step", "s", first, second, "steps", "time_s"),
        _one("step, mean", "s", first, second, "steps", "mean_s"),
        *_phases(first, second),
        _one("checkpoints between steps", "s", first, second, "steps", "checkpoints_between", "total_s"),
        _one("checkpoints between steps, share", "share", first, second, "steps", "checkpoints_between", "share"),
        *_rates(first, second),
        _spread("evaluation batch", "s", first, second, "evaluation", "time_s"),
        _one("peak memory", "bytes", first, second, "memory", "peak"),
        _one("last loss", "", first, second, "loss", "last"),
        _one("loader workers", "", first, second, "steps", "loader", "workers"),
        _one("calls", "", first, second, "calls", "events"),
        _one("overhead", "share", first, second, "overhead", "share"),
    ]
    return [one for one in found if one.first is not None or one.second is not None]


def _phases(first: Summary, second: Summary) -> Iterator[Figure]:
    for phase in PHASES:
        if any(_at(one, "steps", "phases", phase, "total_s") for one in (first, second)):
            yield _one(f"{phase}, share", "share", first, second, "steps", "phases", phase, "share")
            yield _spread(f"{phase}, a step", "s", first, second, "steps", "phases", phase, "step_s")


def _rates(first: Summary, second: Summary) -> Iterator[Figure]:
    for name in dict.fromkeys([*(first.get("rates") or {}), *(second.get("rates") or {})]):
        units = _at(first, "rates", name, "units") or _at(second, "rates", name, "units") or ""
        typical = _spread(name, units, first, second, "rates", name)
        values = [_number(_at(one, "rates", name, "value")) for one in (first, second)]
        if None in values and typical.first is not None and typical.second is not None:
            yield typical  # one of the runs is of a version that knew the median alone: like is held against like
            continue
        medians = None if typical.first is None or typical.second is None else (typical.first, typical.second)
        yield replace(typical, first=values[0], second=values[1], medians=medians)


def _one(name: str, units: str, first: Summary, second: Summary, *path: str) -> Figure:
    return Figure(name, units, _number(_at(first, *path)), _number(_at(second, *path)))


def _spread(name: str, units: str, first: Summary, second: Summary, *path: str) -> Figure:
    ones = [one if isinstance(one := _at(summary, *path), Mapping) else {} for summary in (first, second)]
    medians = [_number(one.get("median")) for one in ones]
    spreads = [(one["p10"], one["p90"]) for one in ones if _number(one.get("p10")) is not None and _number(one.get("p90")) is not None]
    return Figure(name, units, medians[0], medians[1], (spreads[0], spreads[1]) if len(spreads) == 2 else None)


def _at(summary: Any, *path: str) -> Any:
    for key in path:
        summary = summary.get(key) if isinstance(summary, Mapping) else None
    return summary


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def environments(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What of two manifests is not the same."""
    pairs = {name: tuple(_at(one, *path.split(".")) for one in (first, second)) for name, path in ENVIRONMENT.items()}
    ones, others = first.get("packages"), second.get("packages")
    if ones and others:  # a run that was killed has none
        pairs.update({name: (ones.get(name), others.get(name)) for name in sorted({*ones, *others})})
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def said(first: Summary, second: Summary) -> dict[str, tuple[Any, Any]]:
    """Verdicts, alerts, checks that found something, how each ended: those that are not the same."""
    pairs = {
        "ended": tuple(one.get("ended") for one in (first, second)),
        "exit code": tuple(one.get("exit_code") for one in (first, second)),
        "verdict": tuple(_at(one, "verdict", "kind") for one in (first, second)),
        "alerts": tuple(sorted(alert["kind"] for alert in one.get("alerts") or ()) for one in (first, second)),
        "checks": tuple(sorted(check["name"] for check in one.get("checks") or () if check.get("found")) for one in (first, second)),
    }
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}
