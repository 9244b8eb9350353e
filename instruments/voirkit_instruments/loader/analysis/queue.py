"""How many batches were made and not yet consumed, over time: a queue that is empty starves the training, a full one idles the workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.loader.analysis.lives import NONE, Lives

_POINTS = 60


@dataclass(frozen=True)
class Queue:
    """The queue of one loader.

    Attributes:
        mean: Batches, over the time in which the loader was iterated over.
        most: The most at once.
        empty: Share of that time in which there was none.
        under_way: The most batches that were asked of workers and not consumed.
        every_ns: How far the points of ``depth`` lie apart.
        depth: Mean depth between two points, from the first batch to the last.
    """

    mean: float
    most: int
    empty: float
    under_way: int
    every_ns: float
    depth: list[float]


def queue_of(own: Lives) -> Queue | None:
    """The queue of one loader's batches; None if none was both made and consumed."""
    own = own.take((own["ended_ns"] != NONE) & (own["came_ns"] != NONE) & (own["asked_ns"] != NONE))
    if not len(own):
        return None
    made, gone = np.sort(own["ended_ns"]), np.sort(own["came_ns"])
    at, depth = _depth(made, gone)
    lasting = np.diff(at, append=at[-1])
    iterated = _iterated(own)
    first, last = int(own["begun_ns"].min()), int(gone[-1])
    points = np.linspace(first, last, _POINTS + 1)
    held = np.diff(_held(made, points) - _held(gone, points)) / max((last - first) / _POINTS, 1.0)
    queued = own["queued_ns"][own["queued_ns"] != NONE]
    # The next index is put on a queue before the request that got a batch returns.
    got = np.sort(np.maximum(own["arrived_ns"], own["asked_ns"]))
    under_way = most_at_once(np.sort(queued), got)
    total = float((depth * lasting).sum())
    full = float(lasting[depth > 0].sum())
    return Queue(
        mean=total / iterated if iterated else 0.0,
        most=int(depth.max(initial=0)),
        empty=min(max(1 - full / iterated, 0.0), 1.0) if iterated else 0.0,
        under_way=under_way,
        every_ns=(last - first) / _POINTS,
        depth=[max(round(float(value), 3), 0.0) for value in held],
    )


def most_at_once(come: Array, gone: Array) -> int:
    """The most that were there at once, of what came and went at these moments; of those at once the going first."""
    if not len(come):
        return 0
    at = np.concatenate([come, gone])
    change = np.concatenate([np.ones(len(come), np.int64), -np.ones(len(gone), np.int64)])
    return int(np.cumsum(change[np.lexsort((change, at))]).max(initial=0))


def _depth(come: Array, gone: Array) -> tuple[Array, Array]:
    """The moments at which something came or went, and how many there were from then on; of those at once the coming first."""
    at = np.concatenate([come, gone])
    change = np.concatenate([np.ones(len(come), np.int64), -np.ones(len(gone), np.int64)])
    order = np.lexsort((-change, at))
    return at[order], np.cumsum(change[order])


def _held(come: Array, points: Array) -> Array:
    """Sum of the times that had passed at each point since each that had come."""
    n = np.searchsorted(come, points, side="right")
    base = come[0]
    sums = np.concatenate([[0.0], np.cumsum((come - base).astype(np.float64))])
    return n * (points - base) - sums[n]


def _iterated(own: Lives) -> float:
    """From the first request of each iterator to the last batch that came of it; nanoseconds."""
    episodes, of = np.unique(own.episode, return_inverse=True)
    begun, ended = np.full(len(episodes), np.iinfo(np.int64).max), np.zeros(len(episodes), np.int64)
    np.minimum.at(begun, of.reshape(-1), own["asked_ns"])
    np.maximum.at(ended, of.reshape(-1), own["came_ns"])
    return float((ended - begun).sum())
