"""Metrics of the current state of a run, under the same names for ``--prometheus`` and
``--otlp``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from voirkit.live import Picture

Values = Iterable[tuple[tuple[str, ...], float]]  # (labels, value) for each combination of labels


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: The name with the unit, in Prometheus's style.
        text: The description.
        labels: The names of the labels.
        values: Returns the values from a ``Picture`` of the run; none if nothing is known.
        is_total: True if the value only grows.
    """

    name: str
    text: str
    labels: tuple[str, ...]
    values: Callable[[Picture], Values]
    is_total: bool = False


def _phases(picture: Picture) -> Values:
    return (
        [((phase,), row["share"]) for phase, row in picture.steps["phases"].items()]
        if picture.steps
        else []
    )


def _step_time(picture: Picture) -> Values:
    return (
        [((), picture.steps["time_s"]["median"])]
        if picture.steps and picture.steps.get("time_s")
        else []
    )


def _of_ranks(picture: Picture) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    yield from (((str(row["rank"]), row["host"]), row) for row in picture.ranks)


def _last_steps(picture: Picture) -> Values:
    last_step_s = picture.last_step_s
    return [
        (labels, last_step_s[row["rank"]])
        for labels, row in _of_ranks(picture)
        if row["rank"] in last_step_s
    ]


METRICS: Sequence[Metric] = (
    Metric(
        "voirkit_steps_total",
        "Training steps so far",
        (),
        lambda picture: [((), picture.n_steps)],
        is_total=True,
    ),
    Metric(
        "voirkit_elapsed_seconds",
        "Since the run began",
        (),
        lambda picture: [] if picture.elapsed_s is None else [((), picture.elapsed_s)],
    ),
    Metric(
        "voirkit_last_step_timestamp_seconds",
        "When the last step of any rank ended, since the epoch",
        (),
        lambda picture: [((), max(picture.last_step_s.values()))] if picture.last_step_s else [],
    ),
    Metric("voirkit_phase_share", "Share of the last steps' time by phase", ("phase",), _phases),
    Metric("voirkit_step_seconds", "Median time of the last steps", (), _step_time),
    Metric(
        "voirkit_rate_items_per_second",
        "Items per second over the last steps",
        ("rate",),
        lambda picture: [((rate.name,), rate.value) for rate in picture.rates],
    ),
    Metric(
        "voirkit_verdict_info",
        "1 for what the run is bound by",
        ("kind",),
        lambda picture: [((picture.verdict["kind"],), 1.0)] if picture.verdict else [],
    ),
    Metric(
        "voirkit_monitor",
        "Processor, memory and GPUs, as --monitor samples them",
        ("name", "units"),
        lambda picture: [((part.name, part.units), part.value) for part in picture.devices],
    ),
    # One value for each rank, if there are several. The metrics above cover all ranks.
    Metric(
        "voirkit_rank_step_seconds",
        "Median time of the last steps of a rank",
        ("rank", "host"),
        lambda picture: [(labels, row["time_s"]["median"]) for labels, row in _of_ranks(picture)],
    ),
    Metric(
        "voirkit_rank_phase_share",
        "Share of the last steps' time of a rank by phase",
        ("rank", "host", "phase"),
        lambda picture: [
            ((*labels, phase), part["share"])
            for labels, row in _of_ranks(picture)
            for phase, part in row["phases"].items()
        ],
    ),
    Metric(
        "voirkit_rank_last_step_timestamp_seconds",
        "When the last step of a rank ended, since the epoch",
        ("rank", "host"),
        _last_steps,
    ),
)
