"""Normalizes a thread's requests for batches, so that each request is at the time where its step
begins.

The thread's time is cut into steps at these requests. They are moved for iterators that a loader
keeps over epochs, for batches that are read ahead, taken in groups or drawn by hand, and for loops
that are left early. A turn is the time from one request for a batch to the next request to the same
iterator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from voirkit.analysis.drawn_batches import end_outlasted_loops, join_redrawn
from voirkit.analysis.nesting import Array
from voirkit.analysis.read_ahead import shift_read_ahead, spread_groups
from voirkit.analysis.segmentation import (
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
    ends_of_work,
    first_from,
    turns_by_episode,
)

# Epoch k of iterator i gets the episode number i + k * _EPOCH_STRIDE. The stride is larger than all
# numbers of iterators, so that these numbers are unique.
_EPOCH_STRIDE = 1 << 32


def normalize_requests(
    requests: Sequence[Request], work: Work, lengths: Mapping[int, int] | None = None
) -> list[Request]:
    """Return the requests, with each batch requested when its step begins, and an end for each loop
    that was left early.

    Args:
        requests: The requests of one thread, ascending by start.
        work: Model calls, backward passes and optimizer steps of the thread.
        lengths: By loader, the number of batches in an epoch.
    """
    requests = split_kept_iterators(requests, work, lengths or {})
    requests = _drop_unread(requests, work)
    requests = shift_read_ahead(requests, work)
    requests = spread_groups(requests, work)
    requests = _drop_peeked(requests, work)
    requests = join_redrawn(requests, work)
    requests = end_outlasted_loops(requests, work)
    requests = _end_left_loops(requests, work)
    return _include_last_updates(requests, work)


def iterator_of(episode: int) -> int:
    """Return the number of the iterator to which an episode belongs."""
    return episode % _EPOCH_STRIDE if episode >= 0 else episode


def split_kept_iterators(
    requests: Sequence[Request], work: Work, lengths: Mapping[int, int]
) -> list[Request]:
    """Make each epoch of an iterator that a loader keeps over all epochs (as in timm and
    ultralytics) an iterator of its own, and return the requests.

    An epoch ends at the first request to any iterator after the work on its last batch.

    Args:
        requests: Ascending by start.
        work: Model calls, backward passes and optimizer steps of the thread.
        lengths: By loader, the number of batches in an epoch.
    """
    fetches = [request for request in requests if request.kind is Kind.FETCH]
    counts = Counter(request.episode for request in fetches)
    kept_iterators = {
        request.episode
        for request in fetches
        if 0 < lengths.get(request.loader, 0) < counts[request.episode]
    }
    if not kept_iterators:
        return list(requests)
    n_fetched: Counter[int] = Counter()
    last: dict[int, Request] = {}  # iterator -> last batch of its epoch that has not ended yet
    split: list[Request] = []
    for request in requests:
        for iterator, batch in list(last.items()):
            if request.episode == iterator or ends_of_work(work, batch.end_ns, request.start_ns):
                split.append(_leave(batch, request.start_ns))
                del last[iterator]
        if request.episode not in kept_iterators:
            split.append(request)
            continue
        n_fetched[request.episode] += request.kind is Kind.FETCH
        length = lengths[request.loader]
        epoch, number = divmod(max(n_fetched[request.episode] - 1, 0), length)
        renamed = replace(request, episode=request.episode + epoch * _EPOCH_STRIDE)
        if request.kind is Kind.FETCH and number == length - 1:
            last[request.episode] = renamed
        split.append(renamed)
    return split


def _leave(batch: Request, at_ns: int) -> Request:
    """Return a request that releases the iterator of a batch."""
    return replace(batch, kind=Kind.RELEASED, start_ns=at_ns, end_ns=at_ns, items=None)


def _drop_unread(requests: Sequence[Request], work: Work) -> list[Request]:
    """Drop requests that begin or end no step.

    These are iterators that were never read, requests to iterators that have already ended, and the
    creation of iterators that were first read after some training: an iterator that is created at
    the top of a script does not begin a step there.
    """
    first_fetch: dict[int, Request] = {}
    ended: dict[int, Request] = {}
    for request in requests:
        if request.kind is Kind.FETCH:
            first_fetch.setdefault(request.episode, request)
        elif request.kind is Kind.END:
            ended.setdefault(request.episode, request)
    trains_ns = work.of(Work.TRAINS).start_ns.tolist()

    def is_read(request: Request) -> bool:
        batch = first_fetch.get(request.episode)
        if batch is None:
            return False
        if request.kind is Kind.ITER:
            if request.start_ns > batch.start_ns:
                return False
            return not any_between(trains_ns, request.end_ns, batch.start_ns)
        if request.kind in (Kind.END, Kind.RELEASED):
            return ended.get(request.episode, request) is request
        return True

    return [request for request in requests if is_read(request)]


def _drop_peeked(requests: Sequence[Request], work: Work) -> list[Request]:
    """Drop the first batch of an iterator if no work follows it, but work follows all later
    batches, except perhaps the last.

    Such a batch was only printed or kept for plots, so the first step begins after it. If several
    batches are without work, the script may keep them to train on later, and none is dropped.
    """
    segmentation = split_at_requests(requests)
    worked_turns = set(segmentation.turns_at(work.start_ns).tolist())
    peeked_episodes: set[int] = set()
    peeked: set[int] = set()
    for episode, turns in turns_by_episode(segmentation).items():
        is_worked = [i in worked_turns for i in turns]
        if not is_worked[0] and any(is_worked) and all(is_worked[1:-1]):
            peeked_episodes.add(episode)
            peeked.add(segmentation.turns[turns[0]].requests[0])
    for i, request in enumerate(requests):
        if request.kind is Kind.ITER and request.episode in peeked_episodes:
            peeked.add(i)
    return [request for i, request in enumerate(requests) if i not in peeked]


def _end_left_loops(requests: list[Request], work: Work) -> list[Request]:
    """End each loop that was left early where its last step ends; if that step is incomplete, the
    loop ends without it.

    The script may hold an iterator long after its loop. So the time between a step's work and its
    end is at most the longest such time of the loader's other steps, and the step ends before the
    next evaluation. A step is complete if an optimizer stepped in it, or if it has every kind of
    work that is common to the loader's other steps.
    """
    if not any(r.kind is Kind.RELEASED for r in requests):
        return requests
    segmentation = split_at_requests(requests)
    if not segmentation.turns:
        return requests
    kinds, tails_ns, last_ns = _worked(segmentation, work)
    is_evaluation = (work.kind == Work.FORWARD) & ~work.training
    next_evaluated_ns = first_from(work.start_ns[is_evaluation], last_ns)
    last_turn = {turn.episode: i for i, turn in enumerate(segmentation.turns)}
    closed_turns = _closed_by_others(requests, segmentation, last_turn, kinds)
    for place, request in enumerate(requests):
        if request.kind is not Kind.RELEASED or request.episode not in last_turn:
            continue
        turn = last_turn[request.episode]
        other_turns = closed_turns.get(request.loader, [])
        usual_kinds = int(np.bitwise_and.reduce(kinds[other_turns])) if other_turns else 0
        missing_kinds = usual_kinds & ~int(kinds[turn])
        is_done = kinds[turn] & Work.OPTIMIZER or (kinds[turn] and not missing_kinds)
        worked_ns = int(last_ns[turn])
        if not is_done:
            requests[place] = replace(request, kind=Kind.INCOMPLETE)
        elif other_turns:
            longest_ns = int(worked_ns + tails_ns[other_turns].max())
            end_ns = min(request.start_ns, longest_ns, int(next_evaluated_ns[turn]))
            requests[place] = replace(request, start_ns=end_ns, end_ns=end_ns)
        elif request.start_ns == NEVER:
            requests[place] = replace(request, start_ns=worked_ns, end_ns=worked_ns)
    return sorted(requests, key=lambda request: request.start_ns)


def _closed_by_others(
    requests: Sequence[Request],
    segmentation: Segmentation,
    last_turn: Mapping[int, int],
    kinds: Array,
) -> dict[int, list[int]]:
    """Return a dict from loader to the turns with work that ended otherwise than by the release of
    their iterator.

    Args:
        requests: All requests.
        segmentation: The turns.
        last_turn: The last turn of each episode.
        kinds: The kinds of work in each turn, as bits.
    """
    loader_of = {request.episode: request.loader for request in requests}
    let_go = {
        last_turn[request.episode]
        for request in requests
        if request.kind is Kind.RELEASED and request.episode in last_turn
    }
    closed_turns: dict[int, list[int]] = {}
    for i, turn in enumerate(segmentation.turns):
        if i not in let_go and turn.end_ns is not None and kinds[i]:
            closed_turns.setdefault(loader_of[turn.episode], []).append(i)
    return closed_turns


def _worked(segmentation: Segmentation, work: Work) -> tuple[Array, Array, Array]:
    """Return, by turn, the kinds of work in it (as bits), the time from the end of its work to the
    end of the turn, and the time at which the work ended. Loops inside a turn are excluded."""
    n = len(segmentation.turns)
    edges, owners = np.asarray(segmentation.edges), np.asarray(segmentation.owners)
    turn = segmentation.turns_at(work.start_ns)
    is_inside = turn != OUTSIDE
    kinds, last_ns = np.zeros(n, np.int64), np.zeros(n, np.int64)
    np.bitwise_or.at(kinds, turn[is_inside], work.kind[is_inside])
    # In a turn with backward passes or optimizer steps, model calls do not count as work: they may
    # be an evaluation by hand.
    trains = (work.kind & Work.TRAINS) != 0
    is_in_evaluation = ((kinds & Work.TRAINS) == 0)[np.maximum(turn, 0)]
    is_work = is_inside & (trains | is_in_evaluation)
    np.maximum.at(last_ns, turn[is_work], work.end_ns[is_work])
    ends_ns = np.append(edges[1:], edges[-1:])
    is_owned = owners != OUTSIDE
    worked_ns = np.maximum(edges, last_ns[np.maximum(owners, 0)])
    after_ns = np.where(is_owned, np.maximum(ends_ns - worked_ns, 0), 0)
    tails_ns = np.bincount(owners[is_owned], weights=after_ns[is_owned], minlength=n)
    return kinds, tails_ns.astype(np.int64), last_ns


def _include_last_updates(requests: Sequence[Request], work: Work) -> list[Request]:
    """Return the requests, with the last step of each loop that computes gradients extended to
    include the optimizer steps that follow the loop.

    Such optimizer steps follow a loop in three cases: one step over all data (``for batch in
    loader: backward()``, then ``step()``); the remaining batches of an incomplete group; and losses
    that are summed in the loop, with the backward pass after it and no further model call.
    """
    optimizers = work.of(Work.OPTIMIZER)
    calls, passes = work.of(Work.FORWARD), work.of(Work.BACKWARD)
    asks_ns = np.array(
        [r.start_ns for r in requests if r.kind in (Kind.ITER, Kind.FETCH)], dtype=np.int64
    )
    closing = [i for i, r in enumerate(requests) if r.kind in (Kind.END, Kind.RELEASED)]
    if not closing or not len(optimizers.start_ns):
        return list(requests)
    over_ns = np.array([requests[i].start_ns for i in closing])
    pass_ns = first_from(passes.start_ns, over_ns)
    next_ns = np.minimum(first_from(calls.start_ns, over_ns), first_from(asks_ns, over_ns))
    first: Array = np.searchsorted(optimizers.start_ns, over_ns)
    # Only optimizer steps that end before the next model call can belong to the loop. So a step
    # that calls models itself, in a closure, does not belong to the loop.
    behind: Array = np.searchsorted(optimizers.end_ns, np.minimum(next_ns, pass_ns))
    behind_sum: Array = np.searchsorted(optimizers.end_ns, next_ns)
    passes_ns = passes.start_ns.tolist()
    completed = list(requests)
    batches = batches_by_episode(requests)
    for k, i in enumerate(closing):
        request = requests[i]
        begin_ns = request.start_ns
        if request.episode in batches:
            begin_ns = requests[batches[request.episode].fetches[0]].start_ns
        end = int(behind[k])
        if not any_between(passes_ns, begin_ns, request.start_ns):
            is_sum = _is_called_in_training(calls, begin_ns, request.start_ns)
            is_sum = is_sum and pass_ns[k] < next_ns[k]
            end = int(behind_sum[k]) if is_sum else 0
        if first[k] < end:
            stepped_ns = int(optimizers.end_ns[end - 1])
            completed[i] = replace(request, start_ns=stepped_ns, end_ns=stepped_ns)
    return sorted(completed, key=lambda r: r.start_ns)


def _is_called_in_training(calls: Work, begin_ns: int, end_ns: int) -> bool:
    """True if models are called with gradients between two times, all in training mode."""
    first, last = np.searchsorted(calls.start_ns, (begin_ns, end_ns)).tolist()
    # calls without gradients are ignored: they may be those of a teacher model
    is_training = calls.training[first:last][calls.grad[first:last]]
    return bool(len(is_training) and is_training.all())
