"""What a verdict says of a loader that was looked into: which operation, how many workers, and what that would give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Loader = Mapping[str, Any]

_GAIN = 1.05  # less is not worth a change


def because(loader: Loader) -> str:
    """Which operation is most of the work; "" if nothing is known of any."""
    first = loader.get("first")
    if not first:
        return ""
    said = f"{first['operation']} is {first['share']:.0%} of the work on it"
    if first["wait_share"] is not None:
        said += f" and {first['wait_share']:.0%} of the wait"
    return said


def workers(loader: Loader) -> str:
    """How many workers would remove the wait, or why no number of them would."""
    now, enough, best = loader["workers"], loader.get("enough_workers"), loader.get("best_workers")
    predicted = {row["workers"]: row for row in loader.get("predicted") or ()}
    if best is None or now not in predicted:
        return ""
    expected = predicted[now]["rate"]
    if enough is not None and enough > now:
        then = _number(predicted[enough]["rate"])
        return f"num_workers={enough} would remove the wait (predicted {then} items/s instead of {_number(expected)})."
    if enough is None and best > now and predicted[best]["rate"] > expected * _GAIN:
        return (
            f"num_workers={best} would give at best {_number(predicted[best]['rate'])} items/s instead of {_number(expected)}; "
            "then the processors are the limit, and more workers would not help."
        )
    if enough is None:
        cores = loader["cost"]["cores"]
        return f"More workers would not help: what they do and the training keep the {cores} processors busy."
    return "The workers could keep up on average: the wait is in their start, and in batches that take longer than others."


def begin_with(loader: Loader) -> str:
    """What to do with that operation."""
    first = loader.get("first")
    if not first:
        return ""
    now = {row["workers"]: row["rate"] for row in loader.get("predicted") or ()}.get(loader["workers"])
    said = f"Begin with {first['operation']}: {first['because']}"
    if now and first["rate_without"] > now * _GAIN:
        said += f" (without it {_number(first['rate_without'])} items/s at best)"
    return said + "."


def evidence(loader: Loader) -> dict[str, Any]:
    """The keys that a verdict's evidence has of it."""
    first = loader.get("first")
    if not first:
        return {}
    found = {"operation": first["operation"], "operation_share": first["share"], "operation_wait_share": first["wait_share"]}
    return {**found, "enough_workers": loader.get("enough_workers"), "best_workers": loader.get("best_workers")}


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
