"""What a verdict reports of a loader that was looked into: which operation, how many workers, and what that would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voirkit.analysis.verdict.evidence import Evidence
from voirkit.runs.thresholds import START_OF_WORKERS, TINY_SAMPLE_S

Loader = Mapping[str, Any]

_GAIN = 1.1  # less is not worth a change, and not predicted so exactly


def advice(loader: Loader, phases: Sequence[str] = ()) -> list[Evidence]:
    """Which operation is most of the work, and what to change; nothing where none is known, or a tracer has stretched their times."""
    first = None if loader.get("stretched_by") else loader.get("first")
    if not first:
        return []
    words = f"{first['operation']} is {first['share']:.0%} of the work on it"
    if first["wait_share"] is not None:
        words += f" and {first['wait_share']:.0%} of the wait"
    details = {
        "operation": first["operation"], "operation_share": first["share"], "operation_wait_share": first["wait_share"],
        "enough_workers": loader.get("enough_workers"), "best_workers": loader.get("best_workers"),
    }  # fmt: skip
    do = " ".join(filter(None, (advise_workers(loader), _begin_with(loader, first))))
    return [Evidence(words, first["share"], do, share_saved(loader), details)]


def advise_workers(loader: Loader) -> str:
    """What to change about the workers, or why no number of them would help; a number only where it is predicted to win."""
    now, enough, best = loader["workers"], loader.get("enough_workers"), loader.get("best_workers")
    predicted = {row["workers"]: row["rate"] for row in loader.get("predicted") or ()}
    if best is None or now not in predicted or loader.get("stretched_by"):
        return ""
    starts = loader.get("starts") or {}
    once, again = starts.get("share", 0.0), starts.get("again_share", 0.0)
    if now and again >= START_OF_WORKERS:
        return f"Keep the workers between epochs: persistent_workers=True. {again:.0%} of the wait is for workers that start again."
    if now and once >= START_OF_WORKERS:
        return f"{once:.0%} of the wait is for workers that start, which a longer run has no more of."
    expected, units, cores = predicted[now], loader.get("units", "items/s"), loader["cost"]["cores"]
    if now and best == 0 and _handing_s(loader) > _making_s(loader) / 4 and predicted.get(0, 0.0) > expected * _GAIN:
        return (
            f"num_workers=0 would be faster (predicted {_number(predicted[0])} {units} instead of {_number(expected)}): {_handing(loader)}."
        )
    if enough is not None and enough > now and predicted[enough] > expected * _GAIN:
        return (
            f"num_workers={enough} would remove the wait (predicted {_number(predicted[enough])} {units} instead of {_number(expected)})."
        )
    if (enough is None or now == 0) and best > now and predicted.get(best, 0.0) > expected * _GAIN:
        return (
            f"num_workers={best} would give at best {_number(predicted[best])} {units} instead of {_number(expected)}; "
            "then the processors are the limit, and more workers would not help."
        )
    if now == 0:
        return _without_workers(loader)
    if enough is None:
        return f"More workers would not help: what they do and the training keep the {cores} processors busy."
    return "The workers could keep up on average: the wait is in their start, and in batches that take longer than others."


def _without_workers(loader: Loader) -> str:
    """What to do where workers would cost more than they save."""
    cost, rows = loader["cost"], loader.get("operations") or {}
    one_by_one = any(row.get("unit") == "samples" for row in rows.values())
    if one_by_one and cost["batch_s"] / max(cost["items"], 1.0) < TINY_SAMPLE_S:
        return (
            "Index whole batches at once, not sample by sample: give the dataset a __getitems__, or pass sampler=BatchSampler(...) with "
            f"batch_size=None. Worker processes would not help: {_handing(loader)}."
        )
    if _handing_s(loader) > _making_s(loader) / 4:
        return f"Worker processes would not help: {_handing(loader)}."
    return "Worker processes would not help: making batches and training keep the processors busy as it is."


def _handing(loader: Loader) -> str:
    return f"a batch is made in {_making_s(loader) * 1e3:.3g} ms, and handing one over takes {_handing_s(loader) * 1e3:.2g} ms"


def _handing_s(loader: Loader) -> float:
    cost = loader["cost"]
    return float(cost.get("send_s", 0.0) + cost.get("receive_s", 0.0))


def _making_s(loader: Loader) -> float:
    cost = loader["cost"]
    return float(cost.get("batch_s", 0.0) - cost.get("beside_s", 0.0))


def _begin_with(loader: Loader, first: Mapping[str, Any]) -> str:
    """What to do with that operation."""
    now = {row["workers"]: row["rate"] for row in loader.get("predicted") or ()}.get(loader["workers"])
    words = f"Begin with {first['operation']}: {first['because']}"
    if now and first["rate_without"] > now * _GAIN:
        words += f" (without it {_number(first['rate_without'])} {loader.get('units', 'items/s')} at best)"
    return words + "."


def share_saved(loader: Loader) -> float | None:
    """Which share of a step this advice could save at best; None if nothing is predicted."""
    predicted = {row["workers"]: row["rate"] for row in loader.get("predicted") or ()}
    now = predicted.get(loader["workers"])
    if not now:
        return None
    best = max(*predicted.values(), (loader.get("first") or {}).get("rate_without", 0.0))
    return float(max(1 - now / best, 0.0))


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
