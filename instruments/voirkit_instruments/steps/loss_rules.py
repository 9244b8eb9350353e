"""From the loss to findings: it is no number, or it does not fall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot
from typing import Any

from voirkit.findings import Finding
from voirkit.runs import thresholds as limits
from voirkit.runs.summary import has_losses_of_evaluation, median
from voirkit.units import figure

Loss = Mapping[str, Any]

_DEVIATIONS_OF_DISTANCE = 1.48  # of normal values: standard deviation over the median distance from the median
_ERROR_OF_MEDIAN = 1.25  # standard error of a median over that of a mean


def findings(summary: Mapping[str, Any]) -> Iterator[Finding]:
    """All findings of the rules below."""
    series = _series(summary.get("loss"))
    yield from _loss_not_finite(series, summary.get("parameters"))
    if has_losses_of_evaluation(summary):
        return
    has_checks = summary.get("checks") is not None
    yield from _loss_not_falling(series, "" if has_checks else "; voirkit --checks looks for what keeps a loss from falling")


def _series(loss: Loss | None) -> list[tuple[Loss, str]]:
    """The losses of each optimizer, and the words that say which it is; of one optimizer there is nothing to say."""
    rows = (loss or {}).get("series") or []
    return [(row, f" of optimizer {row['optimizer'] + 1}") for row in rows] or ([(loss, "")] if loss else [])


def _loss_not_finite(series: Sequence[tuple[Loss, str]], parameters: Mapping[str, Any] | None) -> Iterator[Finding]:
    """What was not finite before the loss was, is told by what watches the parameters."""
    first = (parameters or {}).get("not_finite")
    words = {
        "first_words": f"; {first['what']} of {first['name']} came first, in step {first['step']:,}" if first else "",
        "look_words": "" if parameters else "; voirkit --parameters names the gradient that is not finite first",
    }
    for loss, whose in series:
        counts = loss.get("not_finite")
        if counts:
            since = f"from loss {counts['first']:,} on" if counts["n"] > 1 else f"at loss {counts['first']:,}"
            evidence = {**counts, **({"parameter": first} if first else {})}
            yield Finding.of("loss-not-finite", {**evidence, "whose_words": whose, "since_words": since, **words})
            return


def _loss_not_falling(series: Sequence[tuple[Loss, str]], look: str) -> Iterator[Finding]:
    """Of several trainings, that of any. Optimizers that step by turns are those of adversarial training or of actor and critic, whose
    losses need not fall.

    Args:
        look: Which flag tells more, in words.
    """
    for loss, whose in series:
        others = [other for other, _ in series if other is not loss]
        if any(_overlap(loss, other) for other in others):
            continue
        ends = _ends_of_flat(loss)
        if ends is not None:
            first, last = ends
            words = {
                "whose_words": whose,
                "training_words": "its training" if others else "the run",
                "first_words": figure(first, 4),
                "last_words": figure(last, 4),
                "look_words": look,
            }
            yield Finding.of("loss-not-falling", {"first": first, "last": last, "n": loss["n"], **words})
            return


def _overlap(loss: Loss, other: Loss) -> bool:
    """Whether two series of losses are of one time."""
    (first, last), (start, end) = loss["passes_from_to"], other["passes_from_to"]
    return bool(start < last and first < end)


def _ends_of_flat(loss: Loss) -> tuple[float, float] | None:
    """Medians of the first and the last quarter of losses that do not fall; None of others. What two standard errors of their difference
    would hide is no reason for a finding."""
    values = [value for _, value in loss.get("curve") or [] if value is not None]
    quarter = len(values) // 4
    if loss["n"] < limits.FEW_LOSSES or quarter < limits.FEW_IN_QUARTER:
        return None
    (first, spread), (last, spread_of_last) = map(_middle, (values[:quarter], values[-quarter:]))
    error = _ERROR_OF_MEDIAN * _DEVIATIONS_OF_DISTANCE * hypot(spread, spread_of_last) / quarter**0.5
    fall, size = first - last, abs(first)
    if fall >= limits.FALLS * size or fall + 2 * error > limits.COULD_FALL * size:
        return None
    return first, last


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the median distance from it."""
    middle = median(values)
    return middle, median([abs(value - middle) for value in values])
