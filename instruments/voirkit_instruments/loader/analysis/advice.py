"""Which part of the work on a batch to change first, and how: rules over the table of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from voirkit_instruments.loader.analysis.predict import Cost, rate

# Operations that draw random numbers give something else each time (names of torchvision 0.16 to 0.29 and albumentations 1 to 2).
_RANDOM = (
    "Random", "RandAugment", "ColorJitter", "TrivialAugment", "AutoAugment", "AugMix", "CutMix", "MixUp", "Mixup", "ElasticTransform",
    "ScaleJitter", "GaussNoise", "GaussianNoise", "GaussianBlur", "HorizontalFlip", "VerticalFlip", "ShiftScaleRotate", "CoarseDropout",
)  # fmt: skip
# From these on a sample is a tensor.
_TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage", "ToTensorV2", "ToTensorImage")
_READS = "Loader"

CACHE, MOVE, VECTORISE, REDUCE = "cache", "move", "vectorise", "reduce"
_SAID = {
    "read": "keep smaller or already decoded copies (resized files, an array on disk, memory), or use a faster decoder",
    "own": "look at what it reads and computes: read ahead, keep the result, or do it once before the training",
    CACHE: "it comes before anything random and gives the same for a sample each time: do it once and keep the result",
    MOVE: "it works on tensors: do it on whole batches, on the device where there is one",
    VECTORISE: "do it for the whole batch at once: let the dataset give whole batches (__getitems__), or stack once, into memory that is "
    "reused",
    "collate": "what it does for each sample (tokenizing, padding, converting) is the same in each epoch: do it once, before the training",
    REDUCE: "use a cheaper form of it (smaller images first, fewer parts, a compiled library), or do it on whole batches on the device",
}


def first(
    rows: Mapping[str, Mapping[str, Any]], order: Sequence[str], cost: Cost, batches: int, workers: int, collate: str = ""
) -> dict[str, Any] | None:
    """What to change first.

    Args:
        rows: Operations by name, with ``total_s, share, wait_share`` (None where nobody waited), ``level``.
        order: Names of the operations as they follow each other on a sample.
        cost: What a batch costs now.
        batches: How many batches were made.
        workers: How many workers there are.
        collate: The name of the program's own collate function; "" for torch's.

    Returns:
        ``{"operation", "share", "wait_share", "action", "because", "rate_without"}``; None without operations. ``rate_without`` is
        what the loader would give at best, in items per second, if the operation cost nothing.
    """
    candidates = {name: row for name, row in rows.items() if "inside" not in row and row["total_s"] > 0}
    if not candidates:
        return None
    name = max(candidates, key=lambda key: (candidates[key]["wait_share"] or 0.0, candidates[key]["share"]))
    row = candidates[name]
    action, why = (CACHE, "collate") if row["level"] == "collate" and collate else _how(name, row["level"], order)
    spared = row["total_s"] / max(batches, 1)
    left = max(cost.batch_s - spared, 0.0)
    cpu = None if cost.cpu_s is None else max(cost.cpu_s * left / max(cost.batch_s, 1e-12), 0.0)
    return {
        "operation": name,
        "share": row["share"],
        "wait_share": row["wait_share"],
        "action": action,
        "because": _SAID[why],
        "rate_without": rate(replace(cost, batch_s=left, cpu_s=cpu), workers),
    }


def _how(name: str, level: str, order: Sequence[str]) -> tuple[str, str]:
    if level == "collate":
        return VECTORISE, VECTORISE
    if level == "sample":
        return CACHE, "own"
    if name == _READS:
        return CACHE, "read"
    before = order[: order.index(name)] if name in order else ()
    if any(one in _TO_TENSOR for one in before):
        return MOVE, MOVE
    is_random = [one.startswith(_RANDOM) for one in (*before, name)]
    known = any(one.startswith(_RANDOM) for one in order)  # else nobody knows which of them are
    if known and not any(is_random):
        return CACHE, CACHE
    return REDUCE, REDUCE
