"""Requests of a thread that trains on batches which another thread takes from a loader and hands to it through a ``queue.Queue``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.turns import Kind, Request


def handed(gets: Sequence[tuple[int, int]], batches: Sequence[Request], works: Array) -> list[Request]:
    """The gets as requests for batches, in their order.

    Args:
        gets: (start, end) of what the thread got from queues, ascending, in nanoseconds.
        batches: What other threads asked of loaders.
        works: When the thread's own work began, ascending, in nanoseconds.

    A get that no work follows before the next is the word that there is no more. What is got first was fetched first.
    """
    fetched = sorted((r for r in batches if r.kind is Kind.FETCH), key=lambda r: r.end_ns)
    until = [*(start for start, _ in gets[1:]), np.iinfo(np.int64).max]
    works_at = np.searchsorted(works, until) - np.searchsorted(works, [end for _, end in gets])
    found: list[Request] = []
    episode, n = -1, 0  # numbers of iterators are not negative
    for (start, end), worked in zip(gets, works_at.tolist(), strict=True):
        if worked:
            batch = fetched[n] if n < len(fetched) else None
            n += 1
            found.append(Request(Kind.FETCH, start, end, episode, batch.loader if batch else -1, batch.items if batch else None))
        elif found and found[-1].kind is Kind.FETCH:
            found.append(Request(Kind.END, start, end, episode, found[-1].loader))
            episode -= 1
    return found
