"""Corrects a thread's requests for batches before its time is cut at them, so that each comes where its step begins, as a reader of the
script would say: those of kept iterators, of batches that are read ahead, taken in groups or drawn by hand, and of loops that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from voirkit.analysis.drawn_batches import end_outlasted_loops, join_redrawn
from voirkit.analysis.nesting import Array
from voirkit.analysis.read_ahead import shift_read_ahead, spread_groups
from voirkit.analysis.segmentation import OUTSIDE, Kind, Request, Segmentation, Work, split_at_requests
from voirkit.analysis.work_times import NEVER, any_between, batches_by_episode, ends_of_work, first_from

_EPOCH_STRIDE = 1 << 32  # epoch k of iterator i has the number i + k times this: more than there are iterators


def normalize_requests(requests: Sequence[Request], work: Work, lengths: Mapping[int, int] | None = None) -> list[Request]:
    """The requests, each batch asked for when its step begins, each loop that was left with its end.

    Args:
        requests: Of one thread, ascending by start.
        work: What was done between them.
        lengths: By loader, how many batches an epoch has.
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
    """The number of the iterator whose epoch this is."""
    return episode % _EPOCH_STRIDE if episode >= 0 else episode


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
            if request.episode == iterator or len(ends_of_work(work, batch.end_ns, request.start_ns)):
                split.append(replace(batch, kind=Kind.LEFT, start_ns=request.start_ns, end_ns=request.start_ns, items=None))
                del last[iterator]
        if request.episode in kept:
            length = lengths[request.loader]
            given[request.episode] += request.kind is Kind.FETCH
            epoch, number = divmod(max(given[request.episode] - 1, 0), length)
            renamed = replace(request, episode=request.episode + epoch * _EPOCH_STRIDE)
            if request.kind is Kind.FETCH and number == length - 1:
                last[request.episode] = renamed
            split.append(renamed)
        else:
            split.append(request)
    return split


def _drop_unread(requests: Sequence[Request], work: Work) -> list[Request]:
    """Without iterators that were never read, without what is asked of those that have come to their end, and without the making of those
    that were read only after something was trained: what was made at the top of a script is no step that begins there."""
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
            return request.start_ns <= batch.start_ns and not any_between(trains_ns, request.end_ns, batch.start_ns)
        return request.kind not in (Kind.END, Kind.LEFT) or ended.get(request.episode, request) is request

    return [request for request in requests if is_read(request)]


def _drop_peeked(requests: Sequence[Request], work: Work) -> list[Request]:
    """Without the first batch of an iterator if nothing is done with it (it is printed, or kept for pictures), where something is done with
    all later ones: the first step begins after it. Several may be kept, and trained on later."""
    made = split_at_requests(requests)
    worked = set(made.turns_at(work.start_ns).tolist())
    turns: dict[int, list[int]] = {}
    for i, turn in enumerate(made.turns):
        if turn.requests:
            turns.setdefault(turn.episode, []).append(i)
    peeked: set[int] = set()
    for episode, own in turns.items():
        is_worked = [i in worked for i in own]
        if not is_worked[0] and any(is_worked) and all(is_worked[1:-1]):
            peeked.add(made.turns[own[0]].requests[0])
            peeked |= {i for i, r in enumerate(requests) if r.kind is Kind.ITER and r.episode == episode}
    return [request for i, request in enumerate(requests) if i not in peeked]


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
    evaluated_ns = np.append(work.start_ns[(work.kind == Work.FORWARD) & ~work.training], NEVER)
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
        elif request.start_ns == NEVER and not others:
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

    So a step over all data ends (``for batch in loader: backward()``, then ``step()``), and so do batches that are left over of groups; and
    losses that are summed in the loop, and walked through after it with no model call of their own.
    """
    optimizers = work.of(Work.OPTIMIZER)
    calls, passes = work.of(Work.FORWARD), work.of(Work.BACKWARD)
    asks_ns = np.array([r.start_ns for r in requests if r.kind in (Kind.ITER, Kind.FETCH)], dtype=np.int64)
    closing = [i for i, r in enumerate(requests) if r.kind in (Kind.END, Kind.LEFT)]
    if not closing or not len(optimizers.start_ns):
        return list(requests)
    over_ns = np.array([requests[i].start_ns for i in closing])
    call_ns, pass_ns, ask_ns = (first_from(times, over_ns) for times in (calls.start_ns, passes.start_ns, asks_ns))
    next_ns = np.minimum(call_ns, ask_ns)
    first, behind, behind_sum = (np.searchsorted(optimizers.start_ns, at) for at in (over_ns, np.minimum(next_ns, pass_ns), next_ns))
    passes_ns = passes.start_ns.tolist()
    completed = list(requests)
    batches = batches_by_episode(requests)
    for k, i in enumerate(closing):
        request = requests[i]
        begun_ns = requests[batches[request.episode].fetches[0]].start_ns if request.episode in batches else request.start_ns
        end = int(behind[k])
        if not any_between(passes_ns, begun_ns, request.start_ns):
            own = slice(*np.searchsorted(calls.start_ns, (begun_ns, request.start_ns)).tolist())
            in_training = calls.training[own][calls.grad[own]]  # without gradients a teacher may be called, too
            end = int(behind_sum[k]) if len(in_training) and in_training.all() and pass_ns[k] < next_ns[k] else 0
        if first[k] < end:
            stepped_ns = int(optimizers.end_ns[end - 1])
            completed[i] = replace(request, start_ns=stepped_ns, end_ns=stepped_ns)
    return sorted(completed, key=lambda r: r.start_ns)
