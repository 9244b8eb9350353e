"""Batches that are drawn by hand, and not by a loop over a loader.

A batch that is drawn for each step (``next(iter(loader))``) is one of a loop. One that is drawn once, and trained on again and again, is
none: its training goes on without a loader. One that is drawn for an evaluation begins no step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from voirkit.analysis.segmentation import LET_GO, OUTSIDE, Kind, Request, Segmentation, Work, split_at_requests
from voirkit.analysis.work_times import NEVER, any_between, batches_by_episode, steps_often, updating_episodes

# A first turn of an iterator with this many times the optimizer steps of any other is a batch drawn by hand and trained on repeatedly.
_REPEATED_STEPS_FACTOR = 4


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
    for episode, batches in batches_by_episode(requests).items():
        begins_ns = [requests[i].end_ns for i in batches.fetches]
        closing_ns = NEVER if batches.closing is None else requests[batches.closing].start_ns
        ends_ns = [*(requests[i].start_ns for i in batches.fetches[1:]), closing_ns]
        turns = list(zip(begins_ns, ends_ns, strict=True))
        if any(steps_often(optimizers, *turn) for turn in turns) and all(
            _goes_to_evaluation(work, updates_ns, resumed_ns, *turn) for turn in turns
        ):
            aside.add(episode)
    return [r for r in requests if r.episode not in aside], [r for r in requests if r.episode in aside]


def _goes_to_evaluation(work: Work, updates_ns: Sequence[int], resumed_ns: Sequence[int], begin_ns: int, end_ns: int) -> bool:
    """Whether the first that is done with a batch is a call in evaluation."""
    at = int(np.searchsorted(work.start_ns, begin_ns))
    if at == len(work.start_ns) or work.start_ns[at] >= end_ns or work.kind[at] != Work.FORWARD:
        return False
    if work.training[at]:
        return not work.grad[at]
    updated_ns = min([end_ns, *updates_ns[bisect_left(updates_ns, begin_ns) :][:1]])
    return updated_ns == end_ns or any_between(resumed_ns, int(work.start_ns[at]), updated_ns)


def join_redrawn(requests: Sequence[Request], work: Work) -> list[Request]:
    """Batches that are drawn anew for each step (``next(iter(loader))``), as those of one iterator.

    Between two of them something is trained, each optimizer steps once at most, and no other iterator that trains is asked twice; the model
    is called with gradients first of all, or the batch was drawn for an evaluation.
    """
    draws = _draws_by_loader(requests)
    if not any(len(own) > 1 for own in draws.values()):
        return list(requests)
    joiner = _DrawJoiner(requests, work, draws)
    for own in draws.values():
        for row in joiner.rows(own):
            joiner.join(row)
    return joiner.result()


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


class _DrawJoiner:
    """Batches drawn one by one that are being joined to a loop."""

    def __init__(self, requests: Sequence[Request], work: Work, draws: Mapping[int, Sequence[_Draw | None]]) -> None:
        self._requests: list[Request | None] = list(requests)
        self._original = requests
        made = split_at_requests(requests)
        drawn = {requests[draw.fetch].episode for own in draws.values() for draw in own if draw is not None}
        is_by_hand = np.isin(np.append(made.episodes, OUTSIDE)[made.turns_at(work.start_ns)], [OUTSIDE, *drawn])
        by_hand = work.chosen(is_by_hand)  # without what is done in other loops
        updating = updating_episodes(requests, work.of(Work.OPTIMIZER).start_ns)
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
        if not any_between(self._trains_ns, begin_ns, end_ns) or not self._goes_to_training(begin_ns):
            return False
        first, last = np.searchsorted(self._optimizers.start_ns, (begin_ns, end_ns)).tolist()
        optimizers = self._optimizers.optimizer[first:last].tolist()
        asked = self._fetches[bisect_left(self._fetches, (begin_ns, -NEVER)) : bisect_left(self._fetches, (end_ns, -NEVER))]
        asks = Counter(episode for _, episode in asked)
        return len(set(optimizers)) == len(optimizers) and max(asks.values(), default=0) <= 1

    def _goes_to_training(self, drawn_ns: int) -> bool:
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
        over_ns = self._one_update_later(self._original[row[0].fetch].end_ns, last.end_ns)
        self._requests.append(replace(last, kind=Kind.LEFT, episode=episode, start_ns=over_ns, end_ns=over_ns, items=None))

    def _one_update_later(self, begun_ns: int, at_ns: int) -> int:
        """When the steps of optimizers were over that follow a time, before any of them steps again, or one that has not stepped between
        the begin of the loop and that time; never, if none does."""
        steps = self._optimizers
        begun, first = np.searchsorted(steps.start_ns, (begun_ns, at_ns)).tolist()
        left = set(steps.optimizer[begun:first].tolist())
        for i in range(first, len(steps.start_ns)):
            which = int(steps.optimizer[i])
            if which not in left:
                return int(steps.end_ns[i - 1]) if i > first else at_ns
            left.remove(which)
        return NEVER


def end_outlasted_loops(requests: Sequence[Request], work: Work) -> list[Request]:
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
        if steps.most(first) >= _REPEATED_STEPS_FACTOR * max(1, of_others):
            inserted.append(_end_after_draw(made, first, requests))
    if not endings and not inserted:
        return list(requests)
    kept = [r for r in requests if r.kind not in LET_GO or r.episode not in endings]
    return sorted([*kept, *endings.values(), *inserted], key=lambda r: r.start_ns)


def _end_after_draw(made: Segmentation, turn: int, requests: Sequence[Request]) -> Request:
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
            return _end_after_draw(self._made, turn, requests) if max(counts.values(), default=0) > 1 else None
        for index in self._in_excess(turn, limits):
            earlier = [i for i in self._by_turn[turn] if i < index]
            batch = requests[self._made.turns[turn].requests[0]]
            # What steps after another loop has been begun is of that.
            others_ns = (r.start_ns for r in requests if r.episode != batch.episode and batch.start_ns < r.start_ns)
            other_ns = next(others_ns, NEVER)
            if not earlier and other_ns > self._start_ns[index]:
                return _end_after_draw(self._made, turn, requests)
            end_ns = int(self._end_ns[earlier[-1]]) if earlier else other_ns
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
