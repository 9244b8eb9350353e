"""Batches that are there before the work on those before them is done: read one ahead, or taken in
groups.

Each is asked for where its own work begins, as a reader of the script would say.
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
    """The requests as they would be if none were made a batch ahead of the work, as accelerate's
    loader and prefetchers make them.

    Seen by work after the last request of the loop's iterator, and after the second, and none
    between the first two; where something is trained only that is work. The first request is then
    part of making the iterator, and the one that found nothing begins the last step, which ends
    with its work, or where it is asked for another.
    """
    trains = work.of(Work.TRAINS)
    passes = BackwardPasses(requests, work)
    of_episode: dict[int, list[int]] = {}
    for i, request in enumerate(requests):
        if request.kind is not Kind.ITER:
            of_episode.setdefault(request.episode, []).append(i)
    n, requests = len(requests), list(requests)
    for indices in of_episode.values():
        fetches = [i for i in indices if requests[i].kind is Kind.FETCH]
        if len(fetches) < 2 or len(fetches) == len(indices):
            continue
        (first, second, third), last = indices[:3], indices[len(fetches)]
        is_training = bool(ends_of_work(trains, requests[first].end_ns, requests[last].end_ns))
        done = trains if is_training else work
        if ends_of_work(done, requests[first].end_ns, requests[second].start_ns):
            continue
        between = requests[second].end_ns, requests[third].start_ns
        if not ends_of_work(done, *between) or steps_often(work.of(Work.OPTIMIZER), *between):
            # all were asked for before any work: kept in a list; or worked on one after the other:
            # taken in groups
            continue
        if requests[last].kind is Kind.END:
            after = requests[last + 1] if last + 1 < n else None  # those behind were put there
            worked = ends_of_work(done, requests[last].end_ns, after.start_ns if after else None)
            if not worked:
                continue
            if is_training:
                until_ns = after.start_ns if after else NEVER
                worked = _ends_of_last_work(
                    passes,
                    [requests[i] for i in (first, second, third, last)],
                    len(fetches),
                    until_ns,
                    worked,
                )
                if not worked:
                    continue
            begun = [*fetches[1:], last]
            closed = (
                after.start_ns
                if after and after.episode == requests[last].episode
                else int(worked[-1])
            )
            requests.append(replace(requests[last], start_ns=closed, end_ns=closed))
        else:
            if is_training and not _is_left_ahead(
                passes, [requests[i] for i in fetches], requests[last]
            ):
                continue
            begun = fetches[1:]
        for i, number in zip(begun, [requests[i].items for i in fetches], strict=False):
            requests[i] = replace(requests[i], kind=Kind.FETCH, items=number)
        requests[first] = replace(requests[first], kind=Kind.ITER)
    return sorted(requests, key=lambda r: r.start_ns)


def _ends_of_last_work(
    passes: BackwardPasses, asked: Sequence[Request], n: int, until_ns: int, worked: Sequence[int]
) -> Sequence[int]:
    """When the work on a batch that was read ahead ended, after a loop over a loader found no more;
    empty if there was none.

    Args:
        passes: All backward passes.
        asked: The first three requests of the loop, and the one that found nothing.
        n: How many batches the loop had.
        until_ns: When something else is asked for.
        worked: When all work ended that was done until then.
    """
    first, second, third, last = asked
    each = len(passes.between(first.episode, second.end_ns, third.start_ns))
    earlier = len(passes.between(first.episode, first.end_ns, last.start_ns))
    later = passes.between(first.episode, last.end_ns, until_ns)
    is_group = n == each == 2  # both were there before any work, and each has had its pass
    if not each or earlier != each * (n - 1) or len(later) < each or is_group:
        return []
    if len(later) == each:
        return worked
    return [passes.unit_ends_ns[later[each - 1]]]  # training goes on without the loader


def _is_left_ahead(passes: BackwardPasses, fetches: Sequence[Request], last: Request) -> bool:
    """Whether a loop that was left had read one batch ahead: it had worked on each before it asked
    for the next, and on all but its last, or its last two.

    Args:
        passes: All backward passes.
        fetches: The requests of the loop for its batches.
        last: That which let it go.
    """
    first, *later = fetches
    between = [
        len(passes.between(first.episode, one.end_ns, other.start_ns))
        for one, other in pairwise(later)
    ]
    each = (
        between[0]
        if between
        else len(passes.between(first.episode, later[0].end_ns, last.start_ns))
    )
    earlier = len(passes.between(first.episode, first.end_ns, last.start_ns))
    return all(between) and each * (len(fetches) - 2) <= earlier <= each * (len(fetches) - 1)


def spread_groups(requests: Sequence[Request], work: Work) -> list[Request]:
    """Batches that are taken in groups and worked on one after the other (transformers' Trainer
    with gradients accumulated over several batches), each asked for where its own work begins;
    batches that one walk through a graph is made for, as one.

    Work belongs to the batches in the order in which they came: as many backward passes as there
    are batches, or a multiple.
    """
    spreader = _GroupSpreader(requests, work)
    for batches in batches_by_episode(requests).values():
        spreader.spread(batches)
    return spreader.result()


class _GroupSpreader:
    """Requests that are being moved to where the work on their batches begins."""

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
        left = [request for request in self._requests if request is not None]
        return sorted(left, key=lambda r: r.start_ns) if self._is_changed else left

    def spread(self, batches: BatchRequests) -> None:
        """Move the requests of one iterator, if they were made in groups."""
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
        closing_ns = (
            self._original[batches.closing].start_ns if batches.closing is not None else horizon_ns
        )
        of_groups = [
            self._passes(self._original[group[-1]], end_ns)
            for group, end_ns in zip(groups, [*ends_ns, min(closing_ns, horizon_ns)], strict=True)
        ]
        sizes = {len(group) for group in groups[:-1]} | {len(groups[0])}
        if (
            len(sizes) == 1
            and len(groups[-1]) <= len(groups[0])
            and all(len(own) == 1 for own in of_groups)
        ):
            for group in groups:
                self._merge(group)
            return
        for group, own in zip(groups, of_groups, strict=True):
            if len(group) > 1 and own and len(own) % len(group) == 0:
                self._move(group, own)

    def _groups(self, fetches: Sequence[int]) -> list[list[int]]:
        """The requests that follow each other without work between."""
        groups = [[fetches[0]]]
        for before, at in pairwise(fetches):
            if any_between(
                self._work_ns, self._original[before].end_ns, self._original[at].start_ns
            ):
                groups.append([])
            groups[-1].append(at)
        return groups

    def _passes_of_batch(self, batches: BatchRequests, passes: Sequence[int]) -> int:
        """How many backward passes belong to a batch, if all batches have as many; 0 if not.

        Args:
            batches: What was asked of an iterator.
            passes: Those from its first batch to where something else is trained on, which may be
                later than where this was over.
        """
        first, last = self._original[batches.fetches[0]], self._original[batches.fetches[-1]]
        n = len(batches.fetches)
        end = self._end_of(batches)
        until_over = len(passes) if end is None else len(self._passes(first, end.start_ns))
        is_asked_again = end is not None and until_over > 0
        if not self._passes(first, last.start_ns) and not is_asked_again:
            # All were taken before any was worked on: they are kept in a list, and belong to the
            # work if that is gone over once.
            return int(len(passes) == n)
        each = -(-until_over // n)  # of the last batches they may still be to come
        return each if each * n <= len(passes) else 0

    def _end_of(self, batches: BatchRequests) -> Request | None:
        """The request that found no more; None of a loop that was left, whose iterator may be held
        until long after it."""
        closing = None if batches.closing is None else self._original[batches.closing]
        return closing if closing is not None and closing.kind is Kind.END else None

    def _next_ask_of_others(self, over: Request) -> int:
        """When an iterator that trains is first asked, or made, after the last request to this
        one."""
        at = bisect_left(self._asks, (over.start_ns, over.episode, over.loader))
        later = (
            start_ns
            for start_ns, episode, loader in (self._asks[i] for i in range(at, len(self._asks)))
            if episode != over.episode and (loader == over.loader or episode in self._updating)
        )
        return next(later, NEVER)

    @cached_property
    def _updating(self) -> set[int]:
        return updating_episodes(self._original, self._optimizers_ns)

    def _passes(self, batch: Request, end_ns: int) -> list[int]:
        """The backward passes between the coming of a batch and a time, without those of other
        loops in it."""
        return self._backward_passes.between(batch.episode, batch.end_ns, end_ns)

    def _move(self, fetches: Sequence[int], passes: Sequence[int]) -> None:
        each = len(passes) // len(fetches)
        for number, at in enumerate(fetches[1:], start=1):
            over_ns = self._backward_passes.unit_ends_ns[passes[number * each - 1]]
            request = self._original[at]
            if over_ns > request.start_ns:
                self._requests[at] = replace(request, start_ns=over_ns, end_ns=over_ns)
                self._is_changed = True

    def _close_after(self, closing: int | None, over_ns: int) -> None:
        if closing is not None and self._original[closing].start_ns < over_ns:
            self._requests[closing] = replace(
                self._original[closing], start_ns=over_ns, end_ns=over_ns
            )
            self._is_changed = True

    def _merge(self, group: Sequence[int]) -> None:
        counts = [self._original[at].items for at in group]
        known = [count for count in counts if count is not None]
        items = sum(known) if len(known) == len(counts) else None
        first, last = self._original[group[0]], self._original[group[-1]]
        self._requests[group[0]] = replace(first, end_ns=last.end_ns, items=items)
        for at in group[1:]:
            self._requests[at] = None
        self._is_changed = True
