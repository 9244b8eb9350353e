"""How fast a loader would be with other numbers of workers, from what a batch costs: a bound, whichever is the tightest.

Workers that make batches of ``batch_s`` seconds each give n / batch_s of them. All of them and the training together can not use more than
the processors' time: cores / (cpu_s + pause_s), where the training is taken to keep one processor busy. And nobody asks for more
than 1 / pause_s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

_NEAR = 0.97  # as good as the best


@dataclass(frozen=True)
class Cost:
    """What a batch costs, in seconds.

    Attributes:
        batch_s: A worker's time for a batch: making and putting it.
        cpu_s: The processor's part of it; None if that is not known, and then all of it is taken for that.
        pause_s: The training's time between two batches.
        items: Samples in a batch.
        cores: Processors; None if that is not known.
    """

    batch_s: float
    cpu_s: float | None
    pause_s: float
    items: float
    cores: int | None


def limits(cost: Cost, workers: int) -> dict[str, float]:
    """Batches per second that each part would allow; ``workers=0`` loads in the training's own process."""
    if workers == 0:
        return {"workers": 1 / max(cost.batch_s + cost.pause_s, 1e-12)}
    found = {"workers": workers / max(cost.batch_s, 1e-12), "training": 1 / max(cost.pause_s, 1e-12)}
    if cost.cores is not None:
        cpu_s = cost.batch_s if cost.cpu_s is None else cost.cpu_s
        found["processors"] = cost.cores / max(cpu_s + cost.pause_s, 1e-12)
    return found


def rate(cost: Cost, workers: int) -> float:
    """Items per second, at best."""
    return min(limits(cost, workers).values()) * cost.items


def table(cost: Cost, workers: Iterable[int]) -> list[dict[str, Any]]:
    """For each number of workers ``{"workers", "rate", "loading_rate", "limited_by"}``: items per second with the training, what the loader
    alone could give, and whether the workers, the processors or the training itself are the limit."""
    found = []
    for n in workers:
        allowed = limits(cost, n)
        by = min(allowed, key=lambda what: allowed[what])
        alone = min((allowed[what] for what in allowed if what != "training"), default=0.0)
        found.append({"workers": n, "rate": allowed[by] * cost.items, "loading_rate": alone * cost.items, "limited_by": by})
    return found


def enough(cost: Cost) -> int | None:
    """The fewest workers with which the training would not wait; None if the processors do not allow it."""
    wanted = 1 / max(cost.pause_s, 1e-12)
    allowed = limits(cost, 1).get("processors", wanted)
    if allowed < wanted * _NEAR:
        return None
    return max(1, ceil(cost.batch_s * wanted * _NEAR))


def best(cost: Cost) -> int:
    """The fewest workers that give as much as any number of them would."""
    most = cost.items / max(cost.pause_s, 1e-12)
    if cost.cores is not None:
        most = min(most, limits(cost, 1)["processors"] * cost.items)
    return max(1, ceil(most * _NEAR * cost.batch_s / max(cost.items, 1e-12)))


def numbers(cores: int | None, now: int, *others: int | None) -> list[int]:
    """Numbers of workers that are worth a look: none, 1 to twice the processors, the present one, and others."""
    most = 2 * (cores or max(now, 1))
    few = range(most + 1) if most <= 16 else (*range(9), *range(12, 33, 4), *range(40, most + 1, 8))
    return sorted({*(n for n in few if n <= most), most, now, *(n for n in others if n is not None)})
