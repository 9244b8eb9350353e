"""Findings on the loss: it is not finite, or it does not fall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot
from typing import Any

from voirkit.findings import Finding
from voirkit.runs import thresholds as limits
from voirkit.runs.summary import has_losses_of_evaluation, median
from voirkit.units import figure

Loss = Mapping[str, Any]

# for normally distributed values: standard deviation divided by the median distance from the median
_DEVIATIONS_OF_DISTANCE = 1.48
_ERROR_OF_MEDIAN = 1.25  # standard error of a median divided by that of a mean
GROWN = 100.0  # a loss of this many times the first loss counts as divergence


def findings(summary: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield all findings of the rules below."""
    series = _series(summary.get("loss"))
    yield from _loss_not_finite(series, summary.get("parameters"))
    if has_losses_of_evaluation(summary):
        return
    has_checks = summary.get("checks") is not None
    yield from _loss_not_falling(
        series, "" if has_checks else "; voirkit --checks looks for what keeps a loss from falling"
    )


def _series(loss: Loss | None) -> list[tuple[Loss, str]]:
    """Return the losses of each optimizer, with words that name the optimizer; the words are empty
    if there is only one."""
    if not loss:
        return []
    rows = loss.get("series") or []
    return [(row, f" of optimizer {row['optimizer'] + 1}") for row in rows] or [(loss, "")]


def _loss_not_finite(
    series: Sequence[tuple[Loss, str]], parameters: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """Yield a finding on the first loss that was not finite. If parameters are watched, the finding
    names what was not finite before the loss."""
    parameter = (parameters or {}).get("not_finite")
    first_words = look_words = ""
    if parameter:
        first_words = (
            f"; {parameter['what']} of {parameter['name']} came first, in step"
            f" {parameter['step']:,}"
        )
    if not parameters:
        look_words = "; voirkit --parameters names the gradient that is not finite first"
    for loss, optimizer_words in series:
        counts = loss.get("not_finite")
        if not counts:
            continue
        first = counts["first"]
        evidence = dict(counts)
        if parameter:
            evidence["parameter"] = parameter
        words = {
            "whose_words": optimizer_words,
            "since_words": (f"from loss {first:,} on" if counts["n"] > 1 else f"at loss {first:,}"),
            "first_words": first_words,
            "look_words": look_words,
            "do_words": _GROWS if _has_grown(loss, first) else _COMES_AT_ONCE,
        }
        yield Finding.of("loss-not-finite", {**evidence, **words})
        return


_GROWS = (
    "It had grown before, so that training diverges: a smaller learning rate, a warm-up, or clipped"
    " gradients"
)
_COMES_AT_ONCE = (
    "Look at the step before: its data, a division or logarithm of 0, float16 without a scaler, the"
    " learning rate"
)


def _has_grown(loss: Loss, first: int) -> bool:
    """True if, before it stopped being finite, a loss was at least ``GROWN`` times its first
    value."""
    before = [(index, value) for index, value in loss.get("curve") or () if index < first]
    sizes = [abs(value) for _, value in before if value is not None]
    return len(sizes) > 1 and sizes[-1] >= GROWN * sizes[0]


def _loss_not_falling(series: Sequence[tuple[Loss, str]], look_words: str) -> Iterator[Finding]:
    """Yield a finding on a loss that does not fall; if there are several trainings, on the first
    such loss. Optimizers that alternate are left out: they belong to adversarial or actor-critic
    training, whose losses need not fall.

    Args:
        look_words: Words that name the flag that tells more.
    """
    for loss, optimizer_words in series:
        other_losses = [other for other, _ in series if other is not loss]
        if any(_overlap(loss, other) for other in other_losses):
            continue
        ends = _ends_of_flat(loss)
        if ends is None:
            continue
        first, last = ends
        words = {
            "whose_words": optimizer_words,
            "training_words": "its training" if other_losses else "the run",
            "first_words": figure(first, 4),
            "last_words": figure(last, 4),
            "look_words": look_words,
        }
        yield Finding.of(
            "loss-not-falling", {"first": first, "last": last, "n": loss["n"], **words}
        )
        return


def _overlap(loss: Loss, other: Loss) -> bool:
    """True if two series of losses overlap in time."""
    (first, last), (start, end) = loss["passes_from_to"], other["passes_from_to"]
    return bool(start < last and first < end)


def _ends_of_flat(loss: Loss) -> tuple[float, float] | None:
    """Return the medians of the first and the last quarter of losses that do not fall; otherwise
    None. Also None if noise, taken as two standard errors of the difference, could hide a fall."""
    values = [value for _, value in loss.get("curve") or [] if value is not None]
    quarter = len(values) // 4
    if loss["n"] < limits.FEW_LOSSES or quarter < limits.FEW_IN_QUARTER:
        return None
    first, first_spread = _middle(values[:quarter])
    last, last_spread = _middle(values[-quarter:])
    spread = hypot(first_spread, last_spread)
    error = _ERROR_OF_MEDIAN * _DEVIATIONS_OF_DISTANCE * spread / quarter**0.5
    fall, size = first - last, abs(first)
    if fall >= limits.FALLS * size or fall + 2 * error > limits.COULD_FALL * size:
        return None
    return first, last


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the median distance from it."""
    middle = median(values)
    return middle, median([abs(value - middle) for value in values])
