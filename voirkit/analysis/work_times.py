"""Requests for batches and work between two times, by the loops in which they lie."""

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
    """The requests to one iterator: indices of those for batches, and of the one that ends it."""

    fetches: list[int]
    closing: int | None = None  # that found nothing, or let it go


def batches_by_episode(requests: Sequence[Request]) -> dict[int, BatchRequests]:
    episodes: dict[int, BatchRequests] = {}
    for i, request in enumerate(requests):
        if request.kind is Kind.FETCH:
            episodes.setdefault(request.episode, BatchRequests([])).fetches.append(i)
        elif request.kind >= Kind.END and request.episode in episodes:
            episodes[request.episode].closing = i
    return episodes


def turns_by_episode(segmentation: Segmentation) -> dict[int, list[int]]:
    """By iterator, its turns in which batches were requested, ascending."""
    turns: dict[int, list[int]] = {}
    for i, turn in enumerate(segmentation.turns):
        if turn.requests:
            turns.setdefault(turn.episode, []).append(i)
    return turns


def any_between(times_ns: Sequence[int], begin_ns: int, end_ns: int) -> bool:
    """True if one of some ascending times lies between two, the first included."""
    first = bisect_left(times_ns, begin_ns)
    return first < len(times_ns) and times_ns[first] < end_ns


def first_from(times_ns: Array, at_ns: Array) -> Array:
    """The first of some ascending times that is not before each instant; ``NEVER`` where there is
    none."""
    first: Array = np.append(times_ns, NEVER)[np.searchsorted(times_ns, at_ns)]
    return first


def time_of_spans_until(spans: tuple[Array, Array], at_ns: Array) -> Array:
    """The time of spans that lie behind each other, until some instants; shape as ``at_ns``."""
    start_ns, end_ns = spans
    if not len(start_ns):
        return np.zeros(len(at_ns), np.int64)
    lasting_ns = end_ns - start_ns
    after_ns = np.cumsum(lasting_ns)
    edges_ns = np.stack(spans, 1).ravel()
    spent_ns = np.stack((after_ns - lasting_ns, after_ns), 1).ravel()
    return np.rint(np.interp(at_ns, edges_ns, spent_ns)).astype(np.int64)


def steps_often(optimizers: Work, begin_ns: int, end_ns: int) -> bool:
    """True if an optimizer steps more than once between two times."""
    first, last = np.searchsorted(optimizers.start_ns, (begin_ns, end_ns)).tolist()
    steps: list[int] = optimizers.optimizer[first:last].tolist()
    return len(set(steps)) < len(steps)


def updating_episodes(requests: Sequence[Request], optimizers_ns: Array) -> set[int]:
    """The iterators in whose loops optimizers step."""
    segmentation = split_at_requests(requests)
    turn_of = segmentation.turns_at(optimizers_ns)
    episodes: set[int] = set(segmentation.episodes[turn_of[turn_of != OUTSIDE]].tolist())
    return episodes


def ends_of_work(work: Work, begin_ns: int, end_ns: int | None) -> Sequence[int]:
    """When the work ended that began between two times."""
    first = int(np.searchsorted(work.start_ns, begin_ns))
    stop = len(work.start_ns) if end_ns is None else int(np.searchsorted(work.start_ns, end_ns))
    ends: list[int] = work.end_ns[first:stop].tolist()
    return ends


class BackwardPasses:
    """The backward passes of a thread, by the loops in which they lie."""

    def __init__(self, requests: Sequence[Request], work: Work) -> None:
        backward = work.of(Work.BACKWARD)
        self._requests, self._work = list(requests), work
        self._start_ns = backward.start_ns.tolist()
        self._backward = backward

    @cached_property
    def unit_ends_ns(self) -> list[int]:
        """When what belongs to each pass was over: the steps of optimizers before the next model
        call or backward pass."""
        begins_ns = self._work.of(Work.FORWARD | Work.BACKWARD).start_ns
        optimizers = self._work.of(Work.OPTIMIZER)
        following_ns = first_from(begins_ns, self._backward.end_ns)
        # the step before this one is the last of the unit
        next_step = np.searchsorted(optimizers.start_ns, following_ns)
        stepped_ns = np.concatenate(([0], optimizers.end_ns))[next_step]
        ends: list[int] = np.maximum(self._backward.end_ns, stepped_ns).tolist()
        return ends

    @cached_property
    def _loops(self) -> list[int]:
        """The iterator in whose loop each lies, of loops within each other the innermost. One in no
        loop belongs to that of the last model call before it: losses are summed in a loop and
        walked through after it."""
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
        """Those that begin between two times, in the loop of an iterator or in none."""
        between = range(bisect_left(self._start_ns, begin_ns), bisect_left(self._start_ns, end_ns))
        return [i for i in between if self._loops[i] in (episode, OUTSIDE)]
