"""Batches that are fetched before the work on earlier batches is done: one batch ahead, or in
groups.

The requests for such batches are moved to where the work on each batch begins, as if the loop
fetched each batch when it needs it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from voirkit.analysis.segmentation import Kind, Request, Work
from voirkit.analysis.work_times import (
    NEVER,
    BackwardPasses,
    BatchRequests,
    any_between,
    batches_by_episode,
    ends_of_work,
    steps_often,
    updating_episodes,
)


def shift_read_ahead(requests: Sequence[Request], work: Work) -> list[Request]:
    """Return the requests as if no loop fetched one batch ahead of its work, as accelerate's loader
    and prefetchers do.

    A loop reads ahead if it works after its last request and after its second request, but not
    between the first two. In a loop that trains, only training counts as work. The first request
    then becomes a part of making the iterator. The request that found no batch becomes the start of
    the last step. That step ends with its work, or where the iterator is asked for another batch.
    """
    trains = work.of(Work.TRAINS)
    optimizers = work.of(Work.OPTIMIZER)
    passes = BackwardPasses(requests, work)
    of_episode: dict[int, list[int]] = {}
    for i, request in enumerate(requests):
        if request.kind is not Kind.ITER:
            of_episode.setdefault(request.episode, []).append(i)
    shifted = list(requests)
    for indices in of_episode.values():
        fetches = [i for i in indices if requests[i].kind is Kind.FETCH]
        n = len(fetches)
        if not 2 <= n < len(indices):
            continue
        first, second, third, last = (requests[i] for i in (*indices[:3], indices[n]))
        is_training = bool(ends_of_work(trains, first.end_ns, last.end_ns))
        loop_work = trains if is_training else work
        between = second.end_ns, third.start_ns
        if ends_of_work(loop_work, first.end_ns, second.start_ns):
            continue
        if not ends_of_work(loop_work, *between) or steps_often(optimizers, *between):
            # This loop does not read one batch ahead. It keeps its batches in a list (it requests
            # all of them before it trains or evaluates on the first), or takes them in groups
            # (several optimizer steps follow each other).
            continue
        with_work = fetches[1:]
        if last.kind is Kind.END:
            following = requests[indices[n] + 1 : indices[n] + 2]
            until_ns = following[0].start_ns if following else NEVER
            ends_ns = ends_of_work(loop_work, last.end_ns, until_ns)
            if ends_ns and is_training:
                loop = (first, second, third, last)
                ends_ns = _ends_of_last_work(passes, loop, n, until_ns, ends_ns)
            if not ends_ns:
                continue
            is_next = bool(following) and following[0].episode == last.episode
            over_ns = until_ns if is_next else int(ends_ns[-1])
            shifted.append(replace(last, start_ns=over_ns, end_ns=over_ns))
            with_work.append(indices[n])
        elif is_training and not _is_left_ahead(passes, [requests[i] for i in fetches], last):
            continue
        for i, batch in zip(with_work, fetches, strict=False):
            shifted[i] = replace(requests[i], kind=Kind.FETCH, items=requests[batch].items)
        shifted[indices[0]] = replace(first, kind=Kind.ITER)
    return sorted(shifted, key=lambda request: request.start_ns)


def _ends_of_last_work(
    passes: BackwardPasses, loop: Sequence[Request], n: int, until_ns: int, ends_ns: Sequence[int]
) -> Sequence[int]:
    """Return the ends of the work on a batch that was read ahead, after a loop over a loader found
    no more batches; empty if the loop did not read ahead.

    Args:
        passes: All backward passes.
        loop: The first three requests of the loop, and the request that found no batch.
        n: The number of batches of the loop.
        until_ns: The time of the next request.
        ends_ns: The ends of all work until that time.
    """
    first, second, third, last = loop
    each = len(passes.between(first.episode, second.end_ns, third.start_ns))
    earlier = len(passes.between(first.episode, first.end_ns, last.start_ns))
    later = passes.between(first.episode, last.end_ns, until_ns)
    is_group = n == each == 2  # both batches fetched before training, then a pass for each
    if not each or earlier != each * (n - 1) or len(later) < each or is_group:
        return []
    if len(later) == each:
        return ends_ns
    return [passes.unit_ends_ns[later[each - 1]]]  # further passes train without this loader


def _is_left_ahead(passes: BackwardPasses, fetches: Sequence[Request], last: Request) -> bool:
    """True if a loop that was left early had read one batch ahead: from its second request on, it
    worked before each next request, and in all on every batch except the last one or two.

    Args:
        passes: All backward passes.
        fetches: The requests of the loop for batches.
        last: The request that released the loop's iterator.
    """
    first, *later = fetches
    ends = [*(request.start_ns for request in later[1:]), last.start_ns]
    counts = [
        len(passes.between(first.episode, batch.end_ns, end_ns))
        for batch, end_ns in zip(later, ends, strict=True)
    ]
    each = counts[0]
    earlier = len(passes.between(first.episode, first.end_ns, last.start_ns))
    n = len(later)
    return all(counts[:-1]) and each * (n - 1) <= earlier <= each * n


def spread_groups(requests: Sequence[Request], work: Work) -> list[Request]:
    """Return the requests with those for groups of batches moved to where the work on each batch
    begins. If the batches of a group share one backward pass, merge their requests.

    An example is transformers' Trainer with gradient accumulation, which fetches several batches at
    once. Work belongs to batches in the order of their arrival: each batch has one backward pass,
    or the same number of them.
    """
    spreader = _GroupSpreader(requests, work)
    for batches in batches_by_episode(requests).values():
        spreader.spread(batches)
    return spreader.result()


class _GroupSpreader:
    """Moves the requests for groups of batches to where the work on each batch begins."""

    def __init__(self, requests: Sequence[Request], work: Work) -> None:
        self._requests: list[Request | None] = list(requests)
        self._original = requests
        self._work_ns = work.start_ns.tolist()
        self._backward_passes = BackwardPasses(requests, work)
        self._optimizers_ns = work.of(Work.OPTIMIZER).start_ns
        self._asks = [
            (r.start_ns, r.episode, r.loader) for r in requests if r.kind in (Kind.ITER, Kind.FETCH)
        ]
        self._is_changed = False

    def result(self) -> list[Request]:
        requests = [request for request in self._requests if request is not None]
        if self._is_changed:
            requests.sort(key=lambda request: request.start_ns)
        return requests

    def spread(self, batches: BatchRequests) -> None:
        """Move or merge the requests to one iterator, if they were made in groups."""
        groups = self._groups(batches.fetches)
        if len(groups) == len(batches.fetches):
            return
        fetches = batches.fetches
        first, last = self._original[fetches[0]], self._original[fetches[-1]]
        end = self._end_of(batches)
        horizon_ns = self._next_ask_of_others(end or last)
        passes = self._passes(first, horizon_ns)
        each = self._passes_of_batch(batches, passes)
        if each:
            passes = passes[: each * len(fetches)]
            self._move(fetches, passes)
            self._close_after(batches.closing, self._backward_passes.unit_ends_ns[passes[-1]])
            return
        ends_ns = [self._original[group[0]].start_ns for group in groups[1:]]
        ends_ns.append(horizon_ns)
        if batches.closing is not None:
            ends_ns[-1] = min(self._original[batches.closing].start_ns, horizon_ns)
        passes_of_groups = [
            self._passes(self._original[group[-1]], end_ns)
            for group, end_ns in zip(groups, ends_ns, strict=True)
        ]
        size, *sizes = map(len, groups)
        is_even = set(sizes[:-1]) <= {size} and max(sizes, default=0) <= size
        if is_even and all(len(passes) == 1 for passes in passes_of_groups):
            for group in groups:
                self._merge(group)
            return
        for group, passes in zip(groups, passes_of_groups, strict=True):
            if len(group) > 1 and passes and len(passes) % len(group) == 0:
                self._move(group, passes)

    def _groups(self, fetches: Sequence[int]) -> list[list[int]]:
        """Return the requests in groups, with work between the groups and none inside of them."""
        groups = [[fetches[0]]]
        for i, following in pairwise(fetches):
            end_ns, next_ns = self._original[i].end_ns, self._original[following].start_ns
            if any_between(self._work_ns, end_ns, next_ns):
                groups.append([])
            groups[-1].append(following)
        return groups

    def _passes_of_batch(self, batches: BatchRequests, passes: Sequence[int]) -> int:
        """Return the number of backward passes for each batch; 0 if it differs between batches.

        Args:
            batches: The requests to an iterator.
            passes: The backward passes from the iterator's first batch to the time at which
                training uses another iterator, which may be later than the end of the loop.
        """
        first, last = self._original[batches.fetches[0]], self._original[batches.fetches[-1]]
        n = len(batches.fetches)
        end = self._end_of(batches)
        until_over = len(passes) if end is None else len(self._passes(first, end.start_ns))
        is_asked_again = end is not None and until_over > 0
        if not self._passes(first, last.start_ns) and not is_asked_again:
            # All batches were fetched before the first backward pass, so the script keeps them in a
            # list. The passes belong to the batches if the script iterates over the list only once:
            # then each batch has one pass.
            return int(len(passes) == n)
        each = -(-until_over // n)  # rounded up: backward passes of the last batches may be missing
        return each if each * n <= len(passes) else 0

    def _end_of(self, batches: BatchRequests) -> Request | None:
        """Return the request that found no more batches; None if the loop was left early, since its
        iterator may be released long after that."""
        closing = None if batches.closing is None else self._original[batches.closing]
        return closing if closing is not None and closing.kind is Kind.END else None

    def _next_ask_of_others(self, over: Request) -> int:
        """Return the time of the first request after ``over`` to another iterator of the same
        loader, or to another iterator that is used for training; ``NEVER`` if there is none. Making
        an iterator counts as a request to it."""
        first = bisect_left(self._asks, (over.start_ns, over.episode, over.loader))
        for i in range(first, len(self._asks)):
            start_ns, episode, loader = self._asks[i]
            if episode == over.episode:
                continue
            if loader == over.loader or episode in self._updating:
                return start_ns
        return NEVER

    @cached_property
    def _updating(self) -> set[int]:
        return updating_episodes(self._original, self._optimizers_ns)

    def _passes(self, batch: Request, end_ns: int) -> list[int]:
        """Return the indices of the backward passes between the arrival of a batch and a time,
        without those of other loops."""
        return self._backward_passes.between(batch.episode, batch.end_ns, end_ns)

    def _move(self, fetches: Sequence[int], passes: Sequence[int]) -> None:
        each = len(passes) // len(fetches)
        last_passes = passes[each - 1 :: each]
        for i, last_pass in zip(fetches[1:], last_passes, strict=False):
            over_ns = self._backward_passes.unit_ends_ns[last_pass]
            request = self._original[i]
            if over_ns > request.start_ns:
                self._requests[i] = replace(request, start_ns=over_ns, end_ns=over_ns)
                self._is_changed = True

    def _close_after(self, closing: int | None, over_ns: int) -> None:
        if closing is not None and self._original[closing].start_ns < over_ns:
            self._requests[closing] = replace(
                self._original[closing], start_ns=over_ns, end_ns=over_ns
            )
            self._is_changed = True

    def _merge(self, group: Sequence[int]) -> None:
        counts = [self._original[i].items for i in group]
        items = None if None in counts else sum(filter(None, counts))
        first, last = self._original[group[0]], self._original[group[-1]]
        self._requests[group[0]] = replace(first, end_ns=last.end_ns, items=items)
        for i in group[1:]:
            self._requests[i] = None
        self._is_changed = True
