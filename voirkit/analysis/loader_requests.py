"""Requests for batches, put right before a thread's time is cut at them: as a reader of the script would count them.

A batch that is read ahead is asked for where its step begins. Batches that are taken in groups are worked on one after the other. A batch
that is drawn for each step (``next(iter(loader))``) is one of a loop. One that is drawn once, and trained on again and again, is none: its
training goes on without a loader.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.segmentation import LET_GO, OUTSIDE, Kind, Request, Segmentation, Work, split_at_requests

# More than there are iterators: an epoch of a kept iterator has the number of that and so many times its own.
_EPOCH = 1 << 32
_NEVER = int(np.iinfo(np.int64).max)
# In the first turn of an iterator the optimizer steps so many times as often as in any other: the batch was drawn by hand, and trained on
# again and again before the loop went on.
_MUCH_MORE = 4


def normalize_requests(requests: Sequence[Request], work: Work, lengths: Mapping[int, int] | None = None) -> list[Request]:
    """The requests, each batch asked for when its step begins, each loop that was left with its end.

    Args:
        requests: Of one thread, ascending by start.
        work: What was done between them.
        lengths: By loader, how many batches an epoch has.
    """
    requests = split_kept_iterators(requests, work, lengths or {})
    requests = _drop_unread(requests, work)
    requests = _shift_read_ahead(requests, work)
    requests = _spread_groups(requests, work)
    requests = _join_redrawn(requests, work)
    requests = _end_outlasted(requests, work)
    requests = _end_left_loops(requests, work)
    return _include_last_updates(requests, work)


def iterator_of(episode: int) -> int:
    """The number of the iterator whose epoch this is."""
    return episode % _EPOCH if episode >= 0 else episode


def split_kept_iterators(requests: Sequence[Request], work: Work, lengths: Mapping[int, int]) -> list[Request]:
    """The requests to an iterator that a loader keeps for ever (timm's, ultralytics'), each epoch as one of its own iterators.

    Args:
        requests: Ascending by start.
        work: What was done between them.
        lengths: By loader, how many batches an epoch has.

    An epoch is over where something is asked for after the work on its last batch, of whichever iterator.
    """
    counts = Counter(r.episode for r in requests if r.kind is Kind.FETCH)
    kept = {r.episode for r in requests if r.kind is Kind.FETCH and 0 < lengths.get(r.loader, 0) < counts[r.episode]}
    if not kept:
        return list(requests)
    given: Counter[int] = Counter()
    last: dict[int, Request] = {}  # of an epoch that is not over yet, by iterator
    split: list[Request] = []
    for request in requests:
        for iterator, batch in list(last.items()):
            if request.episode == iterator or len(_ends_of_work(work, batch.end_ns, request.start_ns)):
                split.append(replace(batch, kind=Kind.LEFT, start_ns=request.start_ns, end_ns=request.start_ns, items=None))
                del last[iterator]
        if request.episode in kept:
            length = lengths[request.loader]
            given[request.episode] += request.kind is Kind.FETCH
            epoch, number = divmod(max(given[request.episode] - 1, 0), length)
            renamed = replace(request, episode=request.episode + epoch * _EPOCH)
            if request.kind is Kind.FETCH and number == length - 1:
                last[request.episode] = renamed
            split.append(renamed)
        else:
            split.append(request)
    return split


def _drop_unread(requests: Sequence[Request], work: Work) -> list[Request]:
    """Without iterators that were never read, without the letting go of those that came to their end, and without the making of those
    that were read only after something was trained: what was made at the top of a script is no step that begins there."""
    first_fetch: dict[int, Request] = {}
    ended = set()
    for request in requests:
        if request.kind is Kind.FETCH:
            first_fetch.setdefault(request.episode, request)
        elif request.kind is Kind.END:
            ended.add(request.episode)
    trains_ns = work.of(Work.TRAINS).start_ns.tolist()

    def is_read(request: Request) -> bool:
        batch = first_fetch.get(request.episode)
        if batch is None:
            return False
        if request.kind is Kind.ITER:
            return request.start_ns <= batch.start_ns and not _any_between(trains_ns, request.end_ns, batch.start_ns)
        return request.kind is not Kind.LEFT or request.episode not in ended

    return [request for request in requests if is_read(request)]


def _shift_read_ahead(requests: Sequence[Request], work: Work) -> list[Request]:
    """The requests as they would be if none were made a batch ahead of the work, as accelerate's loader and prefetchers make them.

    Seen by work after the last request of the loop's iterator, and after the second, and none between the first two; where something is
    trained only that is work. The first request is then part of making the iterator, and the one that found nothing begins the last
    step, which ends with its work, or where it is asked for another.
    """
    trains = work.of(Work.TRAINS)
    passes = _BackwardPasses(requests, work)
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
        is_training = bool(_ends_of_work(trains, requests[first].end_ns, requests[last].end_ns))
        done = trains if is_training else work
        if _ends_of_work(done, requests[first].end_ns, requests[second].start_ns):
            continue
        between = requests[second].end_ns, requests[third].start_ns
        if not _ends_of_work(done, *between) or _steps_often(work.of(Work.OPTIMIZER), *between):
            continue  # all were asked for before any work: kept in a list; or worked on one after the other: taken in groups
        if requests[last].kind is Kind.END:
            after = requests[last + 1] if last + 1 < n else None  # those behind were put there
            worked = _ends_of_work(done, requests[last].end_ns, after.start_ns if after else None)
            if not worked:
                continue
            if is_training:
                until_ns = after.start_ns if after else _NEVER
                worked = _passes_left_over(passes, [requests[i] for i in (first, second, third, last)], len(fetches), until_ns, worked)
                if not worked:
                    continue
            begun = [*fetches[1:], last]
            closed = after.start_ns if after and after.episode == requests[last].episode else int(worked[-1])
            requests.append(replace(requests[last], start_ns=closed, end_ns=closed))
        else:
            if is_training and not _is_left_ahead(passes, [requests[i] for i in (first, second, third, last)], len(fetches)):
                continue
            begun = fetches[1:]
        for i, number in zip(begun, [requests[i].items for i in fetches], strict=False):
            requests[i] = replace(requests[i], kind=Kind.FETCH, items=number)
        requests[first] = replace(requests[first], kind=Kind.ITER)
    return sorted(requests, key=lambda r: r.start_ns)


def _passes_left_over(passes: _BackwardPasses, asked: Sequence[Request], n: int, until_ns: int, worked: Sequence[int]) -> Sequence[int]:
    """When the work on a batch that was read ahead ended, after a loop over a loader found no more; empty if there was none.

    Args:
        passes: All backward passes.
        asked: The first three requests of the loop, and the one that found nothing.
        n: How many batches the loop had.
        until_ns: When something else is asked for.
        worked: When all work ended that was done until then.
    """
    first, second, third, last = asked
    each = len(passes.of(first.episode, second.end_ns, third.start_ns))
    earlier = len(passes.of(first.episode, first.end_ns, last.start_ns))
    later = passes.of(first.episode, last.end_ns, until_ns)
    is_group = n == each == 2  # both were there before any work, and each has had its pass
    if not each or earlier != each * (n - 1) or len(later) < each or is_group:
        return []
    if len(later) == each:
        return worked
    return [passes.unit_ends_ns[later[each - 1]]]  # training goes on without the loader


def _is_left_ahead(passes: _BackwardPasses, asked: Sequence[Request], n: int) -> bool:
    """Whether a loop that was left had read one batch ahead: it had worked on all but its last, or its last two; arguments as before."""
    first, second, third, last = asked
    each = len(passes.of(first.episode, second.end_ns, third.start_ns))
    earlier = len(passes.of(first.episode, first.end_ns, last.start_ns))
    return each * (n - 2) <= earlier <= each * (n - 1)


class _BackwardPasses:
    """The backward passes of a thread, by the loops in which they lie."""

    def __init__(self, requests: Sequence[Request], work: Work) -> None:
        backward = work.of(Work.BACKWARD)
        self._requests, self._work = list(requests), work
        self._start_ns = backward.start_ns.tolist()
        self._backward = backward

    @cached_property
    def unit_ends_ns(self) -> list[int]:
        """When what belongs to each pass was over: the steps of optimizers before the next model call or backward pass."""
        begins_ns = self._work.of(Work.FORWARD | Work.BACKWARD).start_ns
        optimizers = self._work.of(Work.OPTIMIZER)
        following_ns = np.append(begins_ns, _NEVER)[np.searchsorted(begins_ns, self._backward.end_ns)]
        at = np.searchsorted(optimizers.start_ns, following_ns)  # the step before this one is the last of the unit
        stepped_ns = np.concatenate(([0], optimizers.end_ns))[at]
        ends: list[int] = np.maximum(self._backward.end_ns, stepped_ns).tolist()
        return ends

    @cached_property
    def _loops(self) -> list[int]:
        """The iterator in whose loop each lies, of loops within each other the innermost."""
        made = split_at_requests(self._requests)
        loops: list[int] = np.append(made.episodes, OUTSIDE)[made.turns_at(self._backward.start_ns)].tolist()
        return loops

    def of(self, episode: int, begin_ns: int, end_ns: int) -> list[int]:
        """Those that begin between two times, in the loop of an iterator or in none."""
        between = range(bisect_left(self._start_ns, begin_ns), bisect_left(self._start_ns, end_ns))
        return [i for i in between if self._loops[i] in (episode, OUTSIDE)]


def _ends_of_work(work: Work, begin_ns: int, end_ns: int | None) -> Sequence[int]:
    """When the work ended that began between two times."""
    stop = len(work.start_ns) if end_ns is None else int(np.searchsorted(work.start_ns, end_ns))
    ends: list[int] = work.end_ns[int(np.searchsorted(work.start_ns, begin_ns)) : stop].tolist()
    return ends


def _any_between(times_ns: Sequence[int], begin_ns: int, end_ns: int) -> bool:
    """Whether one of some ascending times lies between two, the first included."""
    at = bisect_left(times_ns, begin_ns)
    return at < len(times_ns) and times_ns[at] < end_ns


def set_aside_evaluations(requests: Sequence[Request], work: Work, resumed_ns: Sequence[int]) -> tuple[list[Request], list[Request]]:
    """Requests of loops, and those of iterators that are asked for batches of evaluations while training goes on without them.

    Each of their batches goes to a call in evaluation (without gradients, of a model that trains otherwise, or before it is switched back
    to training), and between two of them an optimizer steps several times: a loop over them would be none.

    Args:
        requests: Ascending by start.
        work: What was done between them.
        resumed_ns: When models were switched to training; ascending.
    """
    optimizers = work.of(Work.OPTIMIZER)
    updates_ns = optimizers.start_ns.tolist()
    aside = set()
    for episode, batches in _batches_by_episode(requests).items():
        begins_ns = [requests[i].end_ns for i in batches.fetches]
        closing_ns = _NEVER if batches.closing is None else requests[batches.closing].start_ns
        ends_ns = [*(requests[i].start_ns for i in batches.fetches[1:]), closing_ns]
        turns = list(zip(begins_ns, ends_ns, strict=True))
        if any(_steps_often(optimizers, *turn) for turn in turns) and all(
            _goes_to_evaluation(work, updates_ns, resumed_ns, *turn) for turn in turns
        ):
            aside.add(episode)
    return [r for r in requests if r.episode not in aside], [r for r in requests if r.episode in aside]


def _steps_often(optimizers: Work, begin_ns: int, end_ns: int) -> bool:
    """Whether an optimizer steps more than once between two times."""
    first, last = np.searchsorted(optimizers.start_ns, (begin_ns, end_ns)).tolist()
    steps: list[int] = optimizers.optimizer[first:last].tolist()
    return len(set(steps)) < len(steps)


def _goes_to_evaluation(work: Work, updates_ns: Sequence[int], resumed_ns: Sequence[int], begin_ns: int, end_ns: int) -> bool:
    """Whether the first that is done with a batch is a call in evaluation."""
    at = int(np.searchsorted(work.start_ns, begin_ns))
    if at == len(work.start_ns) or work.start_ns[at] >= end_ns or work.kind[at] != Work.FORWARD:
        return False
    if work.training[at]:
        return not work.grad[at]
    updated_ns = min([end_ns, *updates_ns[bisect_left(updates_ns, begin_ns) :][:1]])
    return updated_ns == end_ns or _any_between(resumed_ns, int(work.start_ns[at]), updated_ns)


# batches that are taken in groups


@dataclass
class _Batches:
    """What was asked of one iterator: indices of its requests for batches, and of the one that ends it."""

    fetches: list[int]
    closing: int | None = None  # that found nothing, or let it go


def _batches_by_episode(requests: Sequence[Request]) -> dict[int, _Batches]:
    episodes: dict[int, _Batches] = {}
    for i, request in enumerate(requests):
        if request.kind is Kind.FETCH:
            episodes.setdefault(request.episode, _Batches([])).fetches.append(i)
        elif request.kind >= Kind.END and request.episode in episodes:
            episodes[request.episode].closing = i
    return episodes


def _spread_groups(requests: Sequence[Request], work: Work) -> list[Request]:
    """Batches that are taken in groups and worked on one after the other (transformers' Trainer with gradients accumulated over several
    batches), each asked for where its own work begins; batches that one walk through a graph is made for, as one.

    Work belongs to the batches in the order in which they came: as many backward passes as there are batches, or a multiple.
    """
    spread = _Spreading(requests, work)
    for batches in _batches_by_episode(requests).values():
        spread.consider(batches)
    return spread.result()


class _Spreading:
    """Requests that are being moved to where the work on their batches begins."""

    def __init__(self, requests: Sequence[Request], work: Work) -> None:
        self._requests: list[Request | None] = list(requests)
        self._original = requests
        self._work_ns = work.start_ns.tolist()
        self._passes_of = _BackwardPasses(requests, work)
        self._optimizers_ns = work.of(Work.OPTIMIZER).start_ns
        self._asks = [(r.start_ns, r.episode, r.loader) for r in requests if r.kind in (Kind.ITER, Kind.FETCH)]
        self._is_changed = False

    def result(self) -> list[Request]:
        left = [request for request in self._requests if request is not None]
        return sorted(left, key=lambda r: r.start_ns) if self._is_changed else left

    def consider(self, batches: _Batches) -> None:
        """Move the requests of one iterator, if they were made in groups."""
        groups = self._groups(batches.fetches)
        if len(groups) == len(batches.fetches):
            return
        fetches = batches.fetches
        first, last = self._original[fetches[0]], self._original[fetches[-1]]
        over = last if batches.closing is None else self._original[batches.closing]
        horizon_ns = self._next_ask_of_others(over)
        passes = self._passes(first, horizon_ns)
        each = self._passes_of_batch(batches, passes)
        if each:
            passes = passes[: each * len(fetches)]
            self._move(fetches, passes)
            self._close_after(batches.closing, self._passes_of.unit_ends_ns[passes[-1]])
            return
        ends_ns = [self._original[group[0]].start_ns for group in groups[1:]]
        closing_ns = self._original[batches.closing].start_ns if batches.closing is not None else horizon_ns
        of_groups = [
            self._passes(self._original[group[-1]], end_ns)
            for group, end_ns in zip(groups, [*ends_ns, min(closing_ns, horizon_ns)], strict=True)
        ]
        sizes = {len(group) for group in groups[:-1]} | {len(groups[0])}
        if len(sizes) == 1 and len(groups[-1]) <= len(groups[0]) and all(len(own) == 1 for own in of_groups):
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
            if _any_between(self._work_ns, self._original[before].end_ns, self._original[at].start_ns):
                groups.append([])
            groups[-1].append(at)
        return groups

    def _passes_of_batch(self, batches: _Batches, passes: Sequence[int]) -> int:
        """How many backward passes belong to a batch, if all batches have as many; 0 if not.

        Args:
            batches: What was asked of an iterator.
            passes: Those from its first batch to where something else is trained on, which may be later than where this was over.
        """
        first, last = self._original[batches.fetches[0]], self._original[batches.fetches[-1]]
        n = len(batches.fetches)
        over = None if batches.closing is None else self._original[batches.closing]
        until_over = len(self._passes(first, _NEVER if over is None else over.start_ns))
        is_asked_again = over is not None and over.kind is Kind.END and until_over > 0
        if not self._passes(first, last.start_ns) and not is_asked_again:
            # All were taken before any was worked on: they are kept in a list, and belong to the work if that is gone over once.
            return int(len(passes) == n)
        each = -(-until_over // n)  # of the last batches they may still be to come
        return each if each * n <= len(passes) else 0

    def _next_ask_of_others(self, over: Request) -> int:
        """When an iterator that trains is first asked, or made, after the last request to this one."""
        at = bisect_left(self._asks, (over.start_ns, over.episode, over.loader))
        later = (
            start_ns
            for start_ns, episode, loader in self._asks[at:]
            if episode != over.episode and (loader == over.loader or episode in self._updating)
        )
        return next(later, _NEVER)

    @cached_property
    def _updating(self) -> set[int]:
        return _updating_episodes(self._original, self._optimizers_ns)

    def _passes(self, batch: Request, end_ns: int) -> list[int]:
        """The backward passes between the coming of a batch and a time, without those of other loops in it."""
        return self._passes_of.of(batch.episode, batch.end_ns, end_ns)

    def _move(self, fetches: Sequence[int], passes: Sequence[int]) -> None:
        each = len(passes) // len(fetches)
        for number, at in enumerate(fetches[1:], start=1):
            over_ns = self._passes_of.unit_ends_ns[passes[number * each - 1]]
            request = self._original[at]
            if over_ns > request.start_ns:
                self._requests[at] = replace(request, start_ns=over_ns, end_ns=over_ns)
                self._is_changed = True

    def _close_after(self, closing: int | None, over_ns: int) -> None:
        if closing is not None and self._original[closing].start_ns < over_ns:
            self._requests[closing] = replace(self._original[closing], start_ns=over_ns, end_ns=over_ns)
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


def _updating_episodes(requests: Sequence[Request], optimizers_ns: Array) -> set[int]:
    """The iterators in whose loops optimizers step."""
    made = split_at_requests(requests)
    turn_of = made.turns_at(optimizers_ns)
    episodes: set[int] = set(made.episodes[turn_of[turn_of != OUTSIDE]].tolist())
    return episodes


# batches that are drawn by hand


def _join_redrawn(requests: Sequence[Request], work: Work) -> list[Request]:
    """Batches that are drawn anew for each step (``next(iter(loader))``), as those of one iterator.

    Between two of them something is trained, each optimizer steps once at most, and no other iterator that trains is asked twice; the model
    is called with gradients first of all, or the batch was drawn for an evaluation.
    """
    draws = _draws_by_loader(requests)
    if not any(len(own) > 1 for own in draws.values()):
        return list(requests)
    chain = _Chaining(requests, work, draws)
    for own in draws.values():
        for row in chain.rows(own):
            chain.join(row)
    return chain.result()


@dataclass
class _Draw:
    """An iterator that gave one batch and was not asked for another."""

    making: int | None  # index of its making
    fetch: int  # index of the request for the batch
    letting_go: int | None = None


def _draws_by_loader(requests: Sequence[Request]) -> dict[int, list[_Draw | None]]:
    """By loader, the iterators that gave one batch; None stands for each other one that was read between them."""
    makings: dict[int, int] = {}
    by_episode: dict[int, list[int]] = defaultdict(list)
    for i, request in enumerate(requests):
        if request.kind is Kind.ITER:
            makings[request.episode] = i
        else:
            by_episode[request.episode].append(i)
    draws: dict[int, list[_Draw | None]] = defaultdict(list)
    for episode, own in by_episode.items():
        kinds = [requests[i].kind for i in own]
        draw = None
        if kinds[0] is Kind.FETCH and all(kind in LET_GO for kind in kinds[1:]):
            draw = _Draw(makings.get(episode), own[0], own[1] if len(own) > 1 else None)
        if requests[own[0]].loader >= 0:
            draws[requests[own[0]].loader].append(draw)
    return draws


class _Chaining:
    """Batches drawn one by one that are being joined to a loop."""

    def __init__(self, requests: Sequence[Request], work: Work, draws: Mapping[int, Sequence[_Draw | None]]) -> None:
        self._requests: list[Request | None] = list(requests)
        self._original = requests
        made = split_at_requests(requests)
        drawn = {requests[draw.fetch].episode for own in draws.values() for draw in own if draw is not None}
        is_by_hand = np.isin(np.append(made.episodes, OUTSIDE)[made.turns_at(work.start_ns)], [OUTSIDE, *drawn])
        by_hand = work.chosen(is_by_hand)  # without what is done in other loops
        updating = _updating_episodes(requests, work.of(Work.OPTIMIZER).start_ns)
        self._fetches = [(r.start_ns, r.episode) for r in requests if r.kind is Kind.FETCH and r.episode in updating]
        self._work = work
        self._trains_ns = by_hand.of(Work.TRAINS).start_ns.tolist()
        self._optimizers = by_hand.of(Work.OPTIMIZER)

    def result(self) -> list[Request]:
        return sorted((request for request in self._requests if request is not None), key=lambda r: r.start_ns)

    def rows(self, draws: Sequence[_Draw | None]) -> Iterator[list[_Draw]]:
        """The draws of a loader that follow each other step by step; those that stand alone are left out."""
        row: list[_Draw] = []
        for draw in draws:
            if draw is None or not (row and self._is_next_step(row[-1], draw)):
                if len(row) > 1:
                    yield row
                row = []
            if draw is not None:
                row.append(draw)
        if len(row) > 1:
            yield row

    def _is_next_step(self, before: _Draw, draw: _Draw) -> bool:
        begin_ns, end_ns = self._original[before.fetch].end_ns, self._start_ns(draw)
        if not _any_between(self._trains_ns, begin_ns, end_ns) or not self._is_trained_on(begin_ns):
            return False
        first, last = np.searchsorted(self._optimizers.start_ns, (begin_ns, end_ns)).tolist()
        optimizers = self._optimizers.optimizer[first:last].tolist()
        asked = self._fetches[bisect_left(self._fetches, (begin_ns, -_NEVER)) : bisect_left(self._fetches, (end_ns, -_NEVER))]
        asks = Counter(episode for _, episode in asked)
        return len(set(optimizers)) == len(optimizers) and max(asks.values(), default=0) <= 1

    def _is_trained_on(self, drawn_ns: int) -> bool:
        """Whether the first that is done with a batch is done with gradients."""
        at = int(np.searchsorted(self._work.start_ns, drawn_ns))
        return bool(self._work.kind[at] != Work.FORWARD or self._work.grad[at])

    def _start_ns(self, draw: _Draw) -> int:
        return self._original[draw.fetch if draw.making is None else draw.making].start_ns

    def join(self, row: Sequence[_Draw]) -> None:
        """Make the draws requests of the first one's iterator, which is held until something else is trained on."""
        episode = self._original[row[0].fetch].episode
        for draw in row:
            fetch = self._original[draw.fetch]
            self._requests[draw.fetch] = replace(fetch, episode=episode, start_ns=self._start_ns(draw))
            for at in (draw.making, draw.letting_go):
                if at is not None:
                    self._requests[at] = None
        last = self._original[row[-1].fetch]
        over_ns = self._one_update_later(last.end_ns)
        self._requests.append(replace(last, kind=Kind.LEFT, episode=episode, start_ns=over_ns, end_ns=over_ns, items=None))

    def _one_update_later(self, at_ns: int) -> int:
        """When the steps of optimizers were over that follow a time, before any of them steps again; never, if none does."""
        steps = self._optimizers
        stepped: set[int] = set()
        for i in range(int(np.searchsorted(steps.start_ns, at_ns)), len(steps.start_ns)):
            which = int(steps.optimizer[i])
            if which in stepped:
                return int(steps.end_ns[i - 1])
            stepped.add(which)
        return _NEVER


def _end_outlasted(requests: Sequence[Request], work: Work) -> list[Request]:
    """The requests, with the end of each loop after which training went on without its loader.

    In the last turn of a loop that has no end, or was left late, the optimizer steps more often than in its others, or more than once if
    there are none (one batch is overfitted); so it may in the first turn of an iterator that goes on later.
    """
    made = split_at_requests(requests)
    steps = _OptimizerSteps(made, work)
    if not steps.any_repeated():
        return list(requests)
    loaders = {r.episode: r.loader for r in requests}
    ended = {r.episode for r in requests if r.kind is Kind.END}
    of_episode: dict[int, list[int]] = defaultdict(list)
    for i, turn in enumerate(made.turns):
        if turn.requests:
            of_episode[turn.episode].append(i)
    whole: dict[int, list[int]] = defaultdict(list)  # by loader, the turns that a request of their own iterator closed
    for episode, turns in of_episode.items():
        whole[loaders[episode]] += turns if episode in ended else turns[:-1]
    limits = {loader: steps.limits(turns) for loader, turns in whole.items()}
    largest = {loader: sorted(map(steps.most, turns))[-2:] for loader, turns in whole.items()}
    endings: dict[int, Request] = {}  # by episode
    inserted: list[Request] = []
    for episode, turns in of_episode.items():
        loader = loaders[episode]
        if episode not in ended:
            ending = steps.ending(turns[-1], limits[loader] if whole[loader] else None, requests)
            if ending is not None:
                endings[episode] = ending
        first = turns[0]
        if first == turns[-1] or len(largest[loader]) < 2:
            continue
        second, most = largest[loader]
        of_others = second if steps.most(first) == most else most
        if steps.most(first) >= _MUCH_MORE * max(1, of_others):
            inserted.append(_drawn(made, first, requests))
    if not endings and not inserted:
        return list(requests)
    kept = [r for r in requests if r.kind not in LET_GO or r.episode not in endings]
    return sorted([*kept, *endings.values(), *inserted], key=lambda r: r.start_ns)


def _drawn(made: Segmentation, turn: int, requests: Sequence[Request]) -> Request:
    """The end of a turn whose batch was drawn by hand: where it came."""
    batch = requests[made.turns[turn].requests[0]]
    return replace(batch, kind=Kind.INCOMPLETE, start_ns=batch.end_ns, end_ns=batch.end_ns, items=None)


@dataclass(frozen=True)
class _Limits:
    """How often optimizers may step in a turn."""

    by_optimizer: Mapping[int, int]
    otherwise: int  # any other optimizer


class _OptimizerSteps:
    """The steps of optimizers by turn."""

    def __init__(self, made: Segmentation, work: Work) -> None:
        optimizers = work.of(Work.OPTIMIZER)
        turn_of = made.turns_at(optimizers.start_ns)
        self._made = made
        self._start_ns, self._end_ns, self._which = optimizers.start_ns, optimizers.end_ns, optimizers.optimizer
        self._by_turn: dict[int, list[int]] = defaultdict(list)
        for i in np.flatnonzero(turn_of != OUTSIDE).tolist():
            self._by_turn[int(turn_of[i])].append(i)
        self._with_gradients = set(made.turns_at(work.of(Work.BACKWARD).start_ns).tolist())
        self._counts = {turn: Counter(self._which[own].tolist()) for turn, own in self._by_turn.items()}

    def any_repeated(self) -> bool:
        """Whether an optimizer steps in any turn more than once, or one that other turns do not know."""
        kinds = {frozenset(counts) for counts in self._counts.values()}
        return len(kinds) > 1 or any(max(counts.values()) > 1 for counts in self._counts.values())

    def most(self, turn: int) -> int:
        """How often the optimizer that steps most in a turn steps there."""
        return max(self._counts.get(turn, {}).values(), default=0)

    def ending(self, turn: int, limits: _Limits | None, requests: Sequence[Request]) -> Request | None:
        """Where a loop's last turn ends before it lasts longer than the others; None if it does not.

        Args:
            turn: The last of its iterator.
            limits: How often optimizers may step in it; None if its loader has no other.
            requests: All of them.
        """
        counts = self._counts.get(turn, Counter())
        if limits is None:
            return _drawn(self._made, turn, requests) if max(counts.values(), default=0) > 1 else None
        for index in self._in_excess(turn, limits):
            earlier = [i for i in self._by_turn[turn] if i < index]
            if not earlier:
                return _drawn(self._made, turn, requests)
            end_ns = int(self._end_ns[earlier[-1]])
            batch = requests[self._made.turns[turn].requests[0]]
            return replace(batch, kind=Kind.LEFT, start_ns=end_ns, end_ns=end_ns, items=None)
        return None

    def limits(self, whole: Sequence[int]) -> _Limits:
        """How often optimizers may step in a turn of a loader: as often as in its others, or twice as often where that varies; once where
        in the others gradients are only taken.

        Args:
            whole: The turns of the loader that the next request closed.
        """
        counts = [self._counts[turn] for turn in whole if turn in self._counts]
        if not counts:
            return _Limits({}, int(any(turn in self._with_gradients for turn in whole)))
        by_optimizer = {}
        for which in set().union(*counts):
            steps = {own[which] for own in counts if which in own}
            by_optimizer[which] = max(steps) if len(steps) == 1 else 2 * max(steps)
        return _Limits(by_optimizer, 0)

    def _in_excess(self, turn: int, limits: _Limits) -> Iterator[int]:
        seen: Counter[int] = Counter()
        for i in self._by_turn.get(turn, ()):
            which = int(self._which[i])
            seen[which] += 1
            if seen[which] > limits.by_optimizer.get(which, limits.otherwise):
                yield i


# loops that are left, and what is done after them


def _end_left_loops(requests: list[Request], work: Work) -> list[Request]:
    """Each loop that was left ends where its last step does, or, if that was not done, without it.

    An iterator may be held long after its loop: a step then ends no later after its work than the longest of the others, and before an
    evaluation. A step is done if an optimizer stepped in it, or if what was worked in all others of the loader was worked in it.
    """
    if not any(r.kind is Kind.LEFT for r in requests):
        return requests
    made = split_at_requests(requests)
    if not made.turns:
        return requests
    kinds, tails, last_ns = _worked(made, work)
    loader_of = {r.episode: r.loader for r in requests}
    evaluated_ns = np.append(work.start_ns[(work.kind == Work.FORWARD) & ~work.training], _NEVER)
    last = {turn.episode: i for i, turn in enumerate(made.turns)}
    let_go = {last[r.episode] for r in requests if r.kind is Kind.LEFT and r.episode in last}
    whole: dict[int, list[int]] = {}  # by loader, the turns that another request closed
    for i, turn in enumerate(made.turns):
        if i not in let_go and turn.end_ns is not None and kinds[i]:
            whole.setdefault(loader_of[turn.episode], []).append(i)
    for at, request in enumerate(requests):
        if request.kind is not Kind.LEFT or request.episode not in last:
            continue
        i, others = last[request.episode], whole.get(request.loader, [])
        wanted = int(np.bitwise_and.reduce(kinds[others])) if others else 0
        is_done = kinds[i] & Work.OPTIMIZER or (kinds[i] and not wanted & ~int(kinds[i]))
        if not is_done:
            requests[at] = replace(request, kind=Kind.INCOMPLETE)
        elif request.start_ns == _NEVER and not others:
            requests[at] = replace(request, start_ns=int(last_ns[i]), end_ns=int(last_ns[i]))
        elif others:
            end = min(request.start_ns, int(last_ns[i] + tails[others].max()))
            end = min(end, int(evaluated_ns[np.searchsorted(evaluated_ns[:-1], last_ns[i])]))
            requests[at] = replace(request, start_ns=end, end_ns=end)
    return sorted(requests, key=lambda r: r.start_ns)


def _worked(made: Segmentation, work: Work) -> tuple[Array, Array, Array]:
    """By turn: which kinds of work were done, how long it went on after the last of them, and when that ended; without loops in it."""
    n = len(made.turns)
    edges, owners = np.asarray(made.edges), np.asarray(made.owners)
    turn = made.turns_at(work.start_ns)
    inside = turn != OUTSIDE
    kinds, last_ns = np.zeros(n, np.int64), np.zeros(n, np.int64)
    np.bitwise_or.at(kinds, turn[inside], work.kind[inside])
    # Where something is trained, evaluation of the model by hand is no part of that work.
    counted = inside & (((work.kind & Work.TRAINS) != 0) | ((kinds & Work.TRAINS) == 0)[np.maximum(turn, 0)])
    np.maximum.at(last_ns, turn[counted], work.end_ns[counted])
    ends = np.append(edges[1:], edges[-1:])
    after = np.where(owners == OUTSIDE, 0, np.maximum(ends - np.maximum(edges, last_ns[np.maximum(owners, 0)]), 0))
    tails = np.bincount(owners[owners != OUTSIDE], weights=after[owners != OUTSIDE], minlength=n).astype(np.int64)
    return kinds, tails, last_ns


def _include_last_updates(requests: Sequence[Request], work: Work) -> list[Request]:
    """The requests, each loop that gradients are taken in with what the optimizer does about them after it: its last step ends there.

    So a step over all data ends (``for batch in loader: backward()``, then ``step()``), and so do batches that are left over of groups.
    """
    optimizers = work.of(Work.OPTIMIZER)
    others_ns = np.append(work.of(Work.FORWARD | Work.BACKWARD).start_ns, _NEVER)
    asks_ns = np.array([*(r.start_ns for r in requests if r.kind in (Kind.ITER, Kind.FETCH)), _NEVER], dtype=np.int64)
    backward_ns = work.of(Work.BACKWARD).start_ns.tolist()
    closing = [i for i, r in enumerate(requests) if r.kind in (Kind.END, Kind.LEFT)]
    if not closing or not len(optimizers.start_ns):
        return list(requests)
    over_ns = np.array([requests[i].start_ns for i in closing])
    until_ns = np.minimum(others_ns[np.searchsorted(others_ns[:-1], over_ns)], asks_ns[np.searchsorted(asks_ns[:-1], over_ns)])
    first, behind = (np.searchsorted(optimizers.start_ns, at) for at in (over_ns, until_ns))
    completed = list(requests)
    batches = _batches_by_episode(requests)
    for i, begin, end in zip(closing, first.tolist(), behind.tolist(), strict=True):
        request = requests[i]
        begun_ns = requests[batches[request.episode].fetches[0]].start_ns if request.episode in batches else request.start_ns
        if begin < end and _any_between(backward_ns, begun_ns, request.start_ns):
            stepped_ns = int(optimizers.end_ns[end - 1])
            completed[i] = replace(request, start_ns=stepped_ns, end_ns=stepped_ns)
    return sorted(completed, key=lambda r: r.start_ns)
