"""Lookup of batch requests and training work (model calls, backward passes, optimizer steps) by
time and by the loop in which they lie."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.segmentation import (
    OUTSIDE,
    Kind,
    Request,
    Segmentation,
    Work,
    split_at_requests,
)

NEVER = int(np.iinfo(np.int64).max)


@dataclass
class BatchRequests:
    """The requests to one iterator, as indices into a list of requests."""

    fetches: list[int]  # the requests that returned a batch
    closing: int | None = None  # the last request: it found no batch, or released the iterator


def batches_by_episode(requests: Sequence[Request]) -> dict[int, BatchRequests]:
    episodes: dict[int, BatchRequests] = {}
    for i, request in enumerate(requests):
        if request.kind is Kind.FETCH:
            episodes.setdefault(request.episode, BatchRequests([])).fetches.append(i)
        elif request.kind >= Kind.END and request.episode in episodes:
            episodes[request.episode].closing = i
    return episodes


def turns_by_episode(segmentation: Segmentation) -> dict[int, list[int]]:
    """Return the turns of each iterator (see ``segmentation``) in which batches were requested, as
    ascending indices."""
    turns: dict[int, list[int]] = {}
    for i, turn in enumerate(segmentation.turns):
        if turn.requests:
            turns.setdefault(turn.episode, []).append(i)
    return turns


def any_between(times_ns: Sequence[int], begin_ns: int, end_ns: int) -> bool:
    """True if any of the ascending ``times_ns`` is at or after ``begin_ns`` and before
    ``end_ns``."""
    first = bisect_left(times_ns, begin_ns)
    return first < len(times_ns) and times_ns[first] < end_ns


def first_from(times_ns: Array, at_ns: Array) -> Array:
    """Return, for each instant in ``at_ns``, the first of the ascending ``times_ns`` that is not
    before it; ``NEVER`` if all are before it."""
    first: Array = np.append(times_ns, NEVER)[np.searchsorted(times_ns, at_ns)]
    return first


def time_of_spans_until(spans: tuple[Array, Array], at_ns: Array) -> Array:
    """Return the total time of the spans before each instant in ``at_ns``; same shape. The spans
    are ascending and do not overlap."""
    start_ns, end_ns = spans
    if not len(start_ns):
        return np.zeros(len(at_ns), np.int64)
    lasting_ns = end_ns - start_ns
    after_ns = np.cumsum(lasting_ns)
    edges_ns = np.stack(spans, 1).ravel()
    spent_ns = np.stack((after_ns - lasting_ns, after_ns), 1).ravel()
    return np.rint(np.interp(at_ns, edges_ns, spent_ns)).astype(np.int64)


def steps_often(optimizers: Work, begin_ns: int, end_ns: int) -> bool:
    """True if the same optimizer steps more than once between two times."""
    first, last = np.searchsorted(optimizers.start_ns, (begin_ns, end_ns)).tolist()
    steps: list[int] = optimizers.optimizer[first:last].tolist()
    return len(set(steps)) < len(steps)


def updating_episodes(requests: Sequence[Request], optimizers_ns: Array) -> set[int]:
    """Return the iterators whose loops contain optimizer steps."""
    segmentation = split_at_requests(requests)
    turn_of = segmentation.turns_at(optimizers_ns)
    episodes: set[int] = set(segmentation.episodes[turn_of[turn_of != OUTSIDE]].tolist())
    return episodes


def ends_of_work(work: Work, begin_ns: int, end_ns: int | None) -> Sequence[int]:
    """Return the end times of the work that began between two times; without ``end_ns``, of all
    work that began after ``begin_ns``."""
    first = int(np.searchsorted(work.start_ns, begin_ns))
    stop = len(work.start_ns) if end_ns is None else int(np.searchsorted(work.start_ns, end_ns))
    ends: list[int] = work.end_ns[first:stop].tolist()
    return ends


class BackwardPasses:
    """The backward passes of a thread, and the loop in which each one lies."""

    def __init__(self, requests: Sequence[Request], work: Work) -> None:
        backward = work.of(Work.BACKWARD)
        self._requests, self._work = list(requests), work
        self._start_ns = backward.start_ns.tolist()
        self._backward = backward

    @cached_property
    def unit_ends_ns(self) -> list[int]:
        """End of each backward pass and of the optimizer steps that follow it before the next model
        call or backward pass."""
        begins_ns = self._work.of(Work.FORWARD | Work.BACKWARD).start_ns
        optimizers = self._work.of(Work.OPTIMIZER)
        following_ns = first_from(begins_ns, self._backward.end_ns)
        # the first optimizer step after the next model call or backward pass; the optimizer step
        # before that one is the last that belongs to the backward pass
        next_step = np.searchsorted(optimizers.start_ns, following_ns)
        stepped_ns = np.concatenate(([0], optimizers.end_ns))[next_step]
        ends: list[int] = np.maximum(self._backward.end_ns, stepped_ns).tolist()
        return ends

    @cached_property
    def _loops(self) -> list[int]:
        """Iterator of the innermost loop in which each backward pass lies.

        A pass outside of all loops belongs to the loop of the last model call before it: a script
        may sum losses in a loop and run one backward pass after the loop.
        """
        segmentation = split_at_requests(self._requests)
        episodes = np.append(segmentation.episodes, OUTSIDE)
        loops = episodes[segmentation.turns_at(self._backward.start_ns)]
        is_call = (self._work.kind == Work.FORWARD) & self._work.grad
        calls_ns = self._work.start_ns[is_call]
        loops_of_calls = np.append(episodes[segmentation.turns_at(calls_ns)], OUTSIDE)
        last_call = np.searchsorted(calls_ns, self._backward.start_ns) - 1
        called = loops_of_calls[last_call]
        owners: list[int] = np.where(loops == OUTSIDE, called, loops).tolist()
        return owners

    def between(self, episode: int, begin_ns: int, end_ns: int) -> list[int]:
        """Return the indices of the passes that begin between two times, and lie in the loop of an
        iterator or in no loop."""
        between = range(bisect_left(self._start_ns, begin_ns), bisect_left(self._start_ns, end_ns))
        return [i for i in between if self._loops[i] in (episode, OUTSIDE)]
