"""Handling of batches that the script draws by hand (``next(iter(loader))``) instead of in a loop
over a loader.

Batches that are drawn by hand for each step are joined to one loop. A batch that is drawn once and
trained on repeatedly ends its loop: the training continues without a loader. A batch that is drawn
for an evaluation begins no step. A turn is the time from one request for a batch to the next
request to the same iterator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from voirkit.analysis.segmentation import (
    LET_GO,
    OUTSIDE,
    Kind,
    Request,
    Segmentation,
    Work,
    split_at_requests,
)
from voirkit.analysis.work_times import (
    NEVER,
    any_between,
    batches_by_episode,
    steps_often,
    turns_by_episode,
    updating_episodes,
)

# The first batch of an iterator counts as drawn by hand and trained on repeatedly if its turn has
# at least this many times as many optimizer steps as any other turn.
_REPEATED_STEPS_FACTOR = 4


def set_aside_evaluations(
    requests: Sequence[Request], work: Work, resumed_ns: Sequence[int]
) -> tuple[list[Request], list[Request]]:
    """Split requests into those of loops, and those of iterators that only provide evaluation
    batches while training runs without them.

    Each batch of such an iterator goes to a model call in evaluation. This is a call without
    gradients of a model in training mode, or a call in evaluation mode before the model is switched
    back to training. Between two of its batches an optimizer steps several times, so its requests
    are not those of a loop.

    Args:
        requests: Ascending by start.
        work: Model calls, backward passes and optimizer steps of the thread.
        resumed_ns: Times at which models were switched to training mode, ascending.
    """
    optimizers = work.of(Work.OPTIMIZER)
    updates_ns = optimizers.start_ns.tolist()
    aside = set()
    for episode, batches in batches_by_episode(requests).items():
        begins_ns = [requests[i].end_ns for i in batches.fetches]
        closing_ns = NEVER if batches.closing is None else requests[batches.closing].start_ns
        ends_ns = [*(requests[i].start_ns for i in batches.fetches[1:]), closing_ns]
        turns = list(zip(begins_ns, ends_ns, strict=True))
        if not any(steps_often(optimizers, *turn) for turn in turns):
            continue
        if all(_goes_to_evaluation(work, updates_ns, resumed_ns, *turn) for turn in turns):
            aside.add(episode)
    of_loops = [request for request in requests if request.episode not in aside]
    of_evaluations = [request for request in requests if request.episode in aside]
    return of_loops, of_evaluations


def _goes_to_evaluation(
    work: Work, updates_ns: Sequence[int], resumed_ns: Sequence[int], begin_ns: int, end_ns: int
) -> bool:
    """True if the first work after a batch is a model call in evaluation."""
    first = int(np.searchsorted(work.start_ns, begin_ns))
    if first == len(work.start_ns) or work.start_ns[first] >= end_ns:
        return False
    if work.kind[first] != Work.FORWARD:
        return False
    if work.training[first]:
        return not work.grad[first]
    next_update = bisect_left(updates_ns, begin_ns)
    if next_update == len(updates_ns) or updates_ns[next_update] >= end_ns:
        return True
    return any_between(resumed_ns, int(work.start_ns[first]), updates_ns[next_update])


def join_redrawn(requests: Sequence[Request], work: Work) -> list[Request]:
    """Join batches that are drawn with a new iterator for each step (``next(iter(loader))``) to
    requests of one iterator.

    Two batches are joined if there is training between them, each optimizer steps at most once, and
    no other iterator with optimizer steps is asked twice. The first work after a batch must not be
    a model call without gradients: such a batch was drawn for an evaluation.
    """
    draws = _draws_by_loader(requests)
    if not any(len(of_loader) > 1 for of_loader in draws.values()):
        return list(requests)
    joiner = _DrawJoiner(requests, work, draws)
    for of_loader in draws.values():
        for row in joiner.rows(of_loader):
            joiner.join(row)
    return joiner.result()


@dataclass
class _Draw:
    """An iterator that gave one batch and was not asked for another."""

    making: int | None  # index of the request that made the iterator
    fetch: int  # index of the request for the batch
    letting_go: int | None = None  # index of the request that released the iterator


def _draws_by_loader(requests: Sequence[Request]) -> dict[int, list[_Draw | None]]:
    """Return a dict from loader to its iterators in order: a ``_Draw`` for each iterator that gave
    one batch, and None for any other iterator that was read."""
    makings: dict[int, int] = {}
    by_episode: dict[int, list[int]] = defaultdict(list)
    for i, request in enumerate(requests):
        if request.kind is Kind.ITER:
            makings[request.episode] = i
        else:
            by_episode[request.episode].append(i)
    draws: dict[int, list[_Draw | None]] = defaultdict(list)
    for episode, indices in by_episode.items():
        first, *later = (requests[i] for i in indices)
        draw = None
        if first.kind is Kind.FETCH and all(request.kind in LET_GO for request in later):
            letting_go = indices[1] if later else None
            draw = _Draw(makings.get(episode), indices[0], letting_go)
        if first.loader >= 0:
            draws[first.loader].append(draw)
    return draws


class _DrawJoiner:
    """Joins batches that are drawn by hand for each step to loops."""

    def __init__(
        self, requests: Sequence[Request], work: Work, draws: Mapping[int, Sequence[_Draw | None]]
    ) -> None:
        self._requests: list[Request | None] = list(requests)
        self._original = requests
        segmentation = split_at_requests(requests)
        drawn_episodes = {
            requests[draw.fetch].episode
            for draw in chain.from_iterable(draws.values())
            if draw is not None
        }
        episode_of = np.append(segmentation.episodes, OUTSIDE)[segmentation.turns_at(work.start_ns)]
        # the model calls, backward passes and optimizer steps that lie in no other loop
        by_hand = work.chosen(np.isin(episode_of, [OUTSIDE, *drawn_episodes]))
        updating = updating_episodes(requests, work.of(Work.OPTIMIZER).start_ns)
        self._fetches = [
            (request.start_ns, request.episode)
            for request in requests
            if request.kind is Kind.FETCH and request.episode in updating
        ]
        self._work = work
        self._trains_ns = by_hand.of(Work.TRAINS).start_ns.tolist()
        self._optimizers = by_hand.of(Work.OPTIMIZER)

    def result(self) -> list[Request]:
        requests = [request for request in self._requests if request is not None]
        return sorted(requests, key=lambda request: request.start_ns)

    def rows(self, draws: Sequence[_Draw | None]) -> Iterator[list[_Draw]]:
        """Yield rows of a loader's draws that follow each other step by step; single draws are left
        out."""
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
        if not any_between(self._trains_ns, begin_ns, end_ns):
            return False
        if not self._goes_to_training(begin_ns):
            return False
        first, last = np.searchsorted(self._optimizers.start_ns, (begin_ns, end_ns)).tolist()
        optimizers = self._optimizers.optimizer[first:last].tolist()
        if len(set(optimizers)) < len(optimizers):
            return False
        first_fetch = bisect_left(self._fetches, (begin_ns, -NEVER))
        last_fetch = bisect_left(self._fetches, (end_ns, -NEVER))
        fetches = Counter(episode for _, episode in self._fetches[first_fetch:last_fetch])
        return max(fetches.values(), default=0) <= 1

    def _goes_to_training(self, drawn_ns: int) -> bool:
        """True if the first work after a batch is not a model call without gradients."""
        first = int(np.searchsorted(self._work.start_ns, drawn_ns))
        return bool(self._work.kind[first] != Work.FORWARD or self._work.grad[first])

    def _start_ns(self, draw: _Draw) -> int:
        return self._original[draw.fetch if draw.making is None else draw.making].start_ns

    def join(self, row: Sequence[_Draw]) -> None:
        """Turn a row of draws into requests of the first draw's iterator, which is released after
        the optimizer steps of the last batch."""
        episode = self._original[row[0].fetch].episode
        for draw in row:
            fetch = self._original[draw.fetch]
            self._requests[draw.fetch] = replace(
                fetch, episode=episode, start_ns=self._start_ns(draw)
            )
            for other in (draw.making, draw.letting_go):
                if other is not None:
                    self._requests[other] = None
        last = self._original[row[-1].fetch]
        over_ns = self._one_update_later(self._original[row[0].fetch].end_ns, last.end_ns)
        self._requests.append(
            replace(
                last,
                kind=Kind.RELEASED,
                episode=episode,
                start_ns=over_ns,
                end_ns=over_ns,
                items=None,
            )
        )

    def _one_update_later(self, begin_ns: int, at_ns: int) -> int:
        """Return the end of the optimizer steps that belong to a batch drawn at ``at_ns``.

        They end before the first step of an optimizer that has already stepped since ``at_ns``, or
        that did not step between ``begin_ns`` and ``at_ns``. Returns ``NEVER`` if no such step
        follows.
        """
        steps = self._optimizers
        since, first = np.searchsorted(steps.start_ns, (begin_ns, at_ns)).tolist()
        still_to_come = set(steps.optimizer[since:first].tolist())
        for i in range(first, len(steps.start_ns)):
            optimizer = int(steps.optimizer[i])
            if optimizer not in still_to_come:
                return int(steps.end_ns[i - 1]) if i > first else at_ns
            still_to_come.remove(optimizer)
        return NEVER


def end_outlasted_loops(requests: Sequence[Request], work: Work) -> list[Request]:
    """Return the requests, with an end added to each loop after which training continued without
    its loader.

    This is the case if a loop has no end or was left late, and in its last turn the optimizer steps
    more often than in its other turns; if it has no other turns, more than once (the script
    overfits one batch). The same may happen in the first turn of an iterator that is used again
    later.
    """
    segmentation = split_at_requests(requests)
    steps = _OptimizerSteps(segmentation, work)
    if not steps.any_repeated():
        return list(requests)
    loader_of = {request.episode: request.loader for request in requests}
    ended = {request.episode for request in requests if request.kind is Kind.END}
    turns_of = turns_by_episode(segmentation)
    # by loader, the turns (from a request for a batch to the next one) that ended with another
    # request to the same iterator
    closed_turns: dict[int, list[int]] = defaultdict(list)
    for episode, turns in turns_of.items():
        closed_turns[loader_of[episode]] += turns if episode in ended else turns[:-1]
    limits = {loader: steps.limits(turns) for loader, turns in closed_turns.items() if turns}
    most_steps = {loader: steps.most_two(turns) for loader, turns in closed_turns.items()}
    endings: dict[int, Request] = {}  # episode (number of an iterator) -> the request that ends it
    inserted = []
    for episode, turns in turns_of.items():
        loader = loader_of[episode]
        ending = None
        if episode not in ended:
            ending = steps.ending(turns[-1], limits.get(loader), requests)
        if ending is not None:
            endings[episode] = ending
        if len(turns) > 1 and steps.is_repeated(turns[0], most_steps[loader]):
            inserted.append(_end_after_draw(segmentation, turns[0], requests))
    if not endings and not inserted:
        return list(requests)
    return _with_endings(requests, endings, inserted)


def _with_endings(
    requests: Sequence[Request], endings: Mapping[int, Request], inserted: Sequence[Request]
) -> list[Request]:
    """Return the requests with requests added that end loops.

    Args:
        requests: All requests.
        endings: By episode, the request that replaces the releases of its iterator.
        inserted: Further requests to add.
    """
    unchanged = [
        request
        for request in requests
        if request.kind not in LET_GO or request.episode not in endings
    ]
    in_all = [*unchanged, *endings.values(), *inserted]
    return sorted(in_all, key=lambda request: request.start_ns)


def _end_after_draw(segmentation: Segmentation, turn: int, requests: Sequence[Request]) -> Request:
    """Return a request that ends a turn whose batch was drawn by hand, at the time when the batch
    arrived."""
    batch = requests[segmentation.turns[turn].requests[0]]
    return replace(
        batch, kind=Kind.INCOMPLETE, start_ns=batch.end_ns, end_ns=batch.end_ns, items=None
    )


@dataclass(frozen=True)
class _Limits:
    """The number of steps that each optimizer may make in a turn."""

    by_optimizer: Mapping[int, int]
    otherwise: int  # the number for all other optimizers


class _OptimizerSteps:
    """The steps of optimizers by turn."""

    def __init__(self, segmentation: Segmentation, work: Work) -> None:
        optimizers = work.of(Work.OPTIMIZER)
        turn_of = segmentation.turns_at(optimizers.start_ns)
        self._segmentation = segmentation
        self._start_ns, self._end_ns = optimizers.start_ns, optimizers.end_ns
        self._optimizer = optimizers.optimizer
        self._by_turn: dict[int, list[int]] = defaultdict(list)
        for i in np.flatnonzero(turn_of != OUTSIDE).tolist():
            self._by_turn[int(turn_of[i])].append(i)
        is_trained_call = (work.kind == Work.FORWARD) & work.grad & work.training
        takes_gradients = (work.kind == Work.BACKWARD) | is_trained_call
        turns_with_gradients = segmentation.turns_at(work.start_ns[takes_gradients])
        self._with_gradients = set(turns_with_gradients.tolist())
        self._counts = {
            turn: Counter(self._optimizer[steps].tolist()) for turn, steps in self._by_turn.items()
        }

    def any_repeated(self) -> bool:
        """True if an optimizer steps more than once in a turn, or if turns have steps of different
        optimizers."""
        kinds = {frozenset(counts) for counts in self._counts.values()}
        if len(kinds) > 1:
            return True
        return any(max(counts.values()) > 1 for counts in self._counts.values())

    def most_two(self, turns: Sequence[int]) -> list[int]:
        """Return the two largest numbers of optimizer steps in the given turns, ascending; fewer
        numbers for fewer turns."""
        return sorted(map(self._most, turns))[-2:]

    def is_repeated(self, turn: int, most_steps: Sequence[int]) -> bool:
        """True if optimizers step much more often in a turn than in any other turn of its loader.

        Args:
            turn: The turn.
            most_steps: ``most_two`` of the turns of the loader that ended with a further request to
                their iterator; ``turn`` is one of them.
        """
        if len(most_steps) < 2:
            return False
        second, most = most_steps
        steps = self._most(turn)
        most_of_others = second if steps == most else most
        return steps >= _REPEATED_STEPS_FACTOR * max(1, most_of_others)

    def _most(self, turn: int) -> int:
        """Return the number of steps in a turn, of the optimizer that steps most often in it."""
        return max(self._counts.get(turn, {}).values(), default=0)

    def ending(
        self, turn: int, limits: _Limits | None, requests: Sequence[Request]
    ) -> Request | None:
        """Return a request that ends the last turn of a loop before the first optimizer step in
        excess; None if the turn has no steps in excess.

        Args:
            turn: The last turn of an iterator.
            limits: The numbers of optimizer steps that the turn may have; None if its loader has no
                other turn.
            requests: All requests.
        """
        if limits is None:
            if self._most(turn) > 1:
                return _end_after_draw(self._segmentation, turn, requests)
            return None
        first_in_excess = next(self._in_excess(turn, limits), None)
        if first_in_excess is None:
            return None
        earlier = [i for i in self._by_turn[turn] if i < first_in_excess]
        batch = requests[self._segmentation.turns[turn].requests[0]]
        # Steps after the start of another loop belong to that loop.
        others_ns = (
            request.start_ns
            for request in requests
            if request.episode != batch.episode and batch.start_ns < request.start_ns
        )
        other_ns = next(others_ns, NEVER)
        if earlier:
            end_ns = int(self._end_ns[earlier[-1]])
        elif other_ns > self._start_ns[first_in_excess]:
            return _end_after_draw(self._segmentation, turn, requests)
        else:
            end_ns = other_ns
        return replace(batch, kind=Kind.RELEASED, start_ns=end_ns, end_ns=end_ns, items=None)

    def limits(self, closed_turns: Sequence[int]) -> _Limits:
        """Return how often optimizers may step in a turn of a loader.

        The limit of an optimizer is its number of steps in the loader's other turns in which it
        steps, or twice the largest number if it varies. If no optimizer steps in the other turns,
        the limit is one step if they have backward passes or training calls with gradients,
        otherwise none. An optimizer that does not step in the other turns may not step if another
        optimizer does.

        Args:
            closed_turns: The turns of the loader that ended with a further request to their
                iterator.
        """
        counts = [self._counts[turn] for turn in closed_turns if turn in self._counts]
        if not counts:
            has_gradients = any(turn in self._with_gradients for turn in closed_turns)
            return _Limits({}, int(has_gradients))
        by_optimizer = {}
        for optimizer in set().union(*counts):
            steps = {in_turn[optimizer] for in_turn in counts if optimizer in in_turn}
            by_optimizer[optimizer] = max(steps) if len(steps) == 1 else 2 * max(steps)
        return _Limits(by_optimizer, 0)

    def _in_excess(self, turn: int, limits: _Limits) -> Iterator[int]:
        """Yield the indices of the optimizer steps in a turn that exceed its limits."""
        counts: Counter[int] = Counter()
        for i in self._by_turn.get(turn, ()):
            optimizer = int(self._optimizer[i])
            counts[optimizer] += 1
            if counts[optimizer] > limits.by_optimizer.get(optimizer, limits.otherwise):
                yield i
