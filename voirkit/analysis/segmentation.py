"""Cuts a thread's time into turns: from one request for a batch to the next, of one iterator over a loader.

Requests count as a reader of the script would count them: a batch read ahead is none, and a loop that is left ends. What was recorded is
put right (``as_read``) before the time is cut at it.

Knows only requests. Whether a turn trains or evaluates, and what happens in it, is the business of ``steps``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

import numpy as np

from voirkit.analysis.nesting import Array

OUTSIDE = -1  # the turn of the time that belongs to none


class Kind(IntEnum):
    """What is asked of a loader, ``END`` and those after it for the last time."""

    ITER = 0  # to make an iterator
    FETCH = 1  # a batch, which came
    END = 2  # a batch, and there was none
    LEFT = 3  # nothing more: the iterator was let go, and its step ends
    INCOMPLETE = 4  # the same, in the middle of a step


_LET_GO = (Kind.LEFT, Kind.INCOMPLETE)
_ITER, _FETCH, _END, _INCOMPLETE = Kind.ITER, Kind.FETCH, Kind.END, Kind.INCOMPLETE  # asking the enum takes longer than the rest of a line


@dataclass(slots=True)  # frozen, making one would take three times as long: two for each step
class Request:
    """One request; times in nanoseconds of one clock."""

    kind: Kind  # what is asked for
    start_ns: int  # when it is asked for
    end_ns: int  # when it is there
    episode: int  # which iterator is asked: numbers that are unique in the thread
    loader: int  # which loader made the iterator
    items: int | None = None  # how many items the batch holds; None if that is not known


@dataclass(slots=True)
class StepInterval:
    """From one request for a batch to the next request to the same iterator."""

    episode: int  # of which iterator
    start_ns: int  # when its batch was asked for; the first of an episode begins where the iterator is made
    end_ns: int | None = None  # when the next one was asked for; None if that never happened
    # indices of the requests for batches that were made in it, those to companions too (``zip`` of two loaders)
    requests: list[int] = field(default_factory=list)


@dataclass
class Segmentation:
    """A thread's time, cut."""

    turns: list[StepInterval]  # in the order in which they began
    edges: list[int]  # start of each piece of time, ascending, in nanoseconds
    # index of the turn that owns the piece from that edge to the next; ``OUTSIDE`` for none. A loop inside another's turn owns its own
    # time: that of the turn around it excludes it.
    owners: list[int]

    @cached_property
    def episodes(self) -> Array:
        """The episode of each turn; to be asked for when all are there."""
        return np.array([turn.episode for turn in self.turns], dtype=np.int64)


@dataclass
class _Episode:
    number: int
    loader: int
    begun_ns: int
    last: int = 0  # index of its last request for a batch
    companion: bool = False
    turn: int = OUTSIDE  # the turn that is open


def split_at_requests(requests: Sequence[Request]) -> Segmentation:
    """Cut a thread's time at its requests.

    Args:
        requests: All of one thread, in order of their start.

    Loops may lie within each other's turns (evaluation every 100 steps): each instant belongs to the innermost. Two
    iterators that are asked by turns (``zip``, ``next`` on a second loader) are one loop: the one that was asked first
    leads, and the other's requests lie in the leader's turns.
    """
    episodes = _episodes(requests)
    segmentation = Segmentation([], [], [])
    open_: list[_Episode] = []
    for i, request in enumerate(requests):
        episode = episodes[request.episode]
        if episode.companion:
            if request.kind is _FETCH and open_:
                segmentation.turns[open_[-1].turn].requests.append(i)
            continue
        if episode not in open_:
            if request.kind >= _END:
                continue  # it never gave a batch
            over = next((at_ns for at_ns, e in enumerate(open_) if e.loader == request.loader and e.last < i), len(open_))
            _abandon(open_, open_[over:], request.start_ns, segmentation)
        elif request.kind not in _LET_GO:  # an iterator may be held until long after its loop
            _abandon(open_, open_[open_.index(episode) + 1 :], request.start_ns, segmentation)
        if request.kind is _ITER:
            if episode not in open_:
                _open_turn(episode, request.start_ns, open_, segmentation)
            continue
        if request.kind >= _END:
            if request.kind is not _INCOMPLETE:
                _close(episode, request.start_ns, segmentation)
            open_.remove(episode)
            _own(segmentation, request.start_ns, OUTSIDE)
            _own(segmentation, request.end_ns, open_[-1].turn if open_ else OUTSIDE)
            continue
        if episode not in open_:
            _open_turn(episode, request.start_ns, open_, segmentation)
        elif segmentation.turns[episode.turn].requests:
            _close(episode, request.start_ns, segmentation)
            _turn(episode, request.start_ns, segmentation)
        segmentation.turns[episode.turn].requests.append(i)
    return segmentation


def _episodes(requests: Sequence[Request]) -> dict[int, _Episode]:
    """The episodes by number; those that another leads are marked."""
    found: dict[int, _Episode] = {}
    for i, request in enumerate(requests):
        episode = found.get(request.episode)
        if episode is None:
            episode = found[request.episode] = _Episode(request.episode, request.loader, request.start_ns)
        if request.kind is _FETCH:
            episode.last = i
    ended: set[int] = set()
    open_: list[_Episode] = []
    for i, request in enumerate(requests):
        if request.kind is _ITER:
            continue  # iterators may be made in any order before the first is asked
        episode = found[request.episode]
        if request.kind in _LET_GO:
            if episode in open_:
                open_.remove(episode)
            continue
        if request.kind is _END:
            ended.add(episode.number)
        if episode.companion:
            continue
        if episode not in open_:
            if request.kind is _FETCH:
                open_.append(episode)
            continue
        while open_[-1] is not episode:
            above = open_.pop()
            # Both go on, or the one that leads has come to its end first: they are asked by turns.
            above.companion = above.last > i or (request.kind is _END and above.number not in ended)
        if request.kind is _END:
            open_.pop()
    return found


def _open_turn(episode: _Episode, at_ns: int, open_: list[_Episode], segmentation: Segmentation) -> None:
    open_.append(episode)
    _turn(episode, at_ns, segmentation)


def _turn(episode: _Episode, at_ns: int, segmentation: Segmentation) -> None:
    episode.turn = len(segmentation.turns)
    segmentation.turns.append(StepInterval(episode.number, at_ns))
    _own(segmentation, at_ns, episode.turn)


def _close(episode: _Episode, at_ns: int, segmentation: Segmentation) -> None:
    segmentation.turns[episode.turn].end_ns = at_ns


def _abandon(open_: list[_Episode], abandoned: list[_Episode], at_ns: int, segmentation: Segmentation) -> None:
    """Close loops that were left without their iterator's end."""
    for episode in abandoned:
        _close(episode, at_ns, segmentation)
        open_.remove(episode)
    if abandoned:
        _own(segmentation, at_ns, open_[-1].turn if open_ else OUTSIDE)


def _own(segmentation: Segmentation, at_ns: int, owner: int) -> None:
    if segmentation.edges and segmentation.edges[-1] == at_ns:
        segmentation.owners[-1] = owner
        return
    segmentation.edges.append(at_ns)
    segmentation.owners.append(owner)


_EPOCH = 1 << 32  # more than there are iterators: an epoch of a kept iterator has the number of that and so many times its own


@dataclass(frozen=True, eq=False)
class Work:
    """The spans of a thread that are a step's work; arrays of shape (n,), ascending by start."""

    start_ns: Array  # on the process's clock
    end_ns: Array  # same
    kind: Array  # which kind of work: a bit (``TRAINS``: any but the lowest)
    optimizer: Array  # which optimizer stepped
    grad: Array  # whether a model was called with gradients
    training: Array  # whether it was in training mode

    FORWARD, BACKWARD, OPTIMIZER = 1, 2, 4
    TRAINS = BACKWARD | OPTIMIZER

    def of(self, kinds: int) -> Work:
        """Only those of some kinds."""
        return self.chosen((self.kind & kinds) != 0)

    def chosen(self, which: Array) -> Work:
        """Only some."""
        columns = (self.start_ns, self.end_ns, self.kind, self.optimizer, self.grad, self.training)
        return Work(*(column[which] for column in columns))


def as_read(requests: Sequence[Request], work: Work, lengths: Mapping[int, int] | None = None) -> list[Request]:
    """The requests, each batch asked for when its step begins, each loop that was left with its end.

    Args:
        lengths: By loader, how many batches an epoch has.
    """
    requests = in_epochs(requests, work, lengths or {})
    ended = {r.episode for r in requests if r.kind is Kind.END}
    fetched = {r.episode for r in requests if r.kind is Kind.FETCH}
    known = [r for r in requests if r.kind is not Kind.LEFT or (r.episode in fetched and r.episode not in ended)]
    return _left(_without_read_ahead(known, work), work)


def in_epochs(requests: Sequence[Request], work: Work, lengths: Mapping[int, int]) -> list[Request]:
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
    found: list[Request] = []
    for request in requests:
        for iterator, batch in list(last.items()):
            if request.episode == iterator or len(_works(work, batch.end_ns, request.start_ns)):
                found.append(replace(batch, kind=Kind.LEFT, start_ns=request.start_ns, end_ns=request.start_ns, items=None))
                del last[iterator]
        if request.episode in kept:
            length = lengths[request.loader]
            given[request.episode] += request.kind is Kind.FETCH
            epoch, number = divmod(max(given[request.episode] - 1, 0), length)
            renamed = replace(request, episode=request.episode + epoch * _EPOCH)
            if request.kind is Kind.FETCH and number == length - 1:
                last[request.episode] = renamed
            found.append(renamed)
        else:
            found.append(request)
    return found


def iterator_of(episode: int) -> int:
    """The number of the iterator whose epoch this is."""
    return episode % _EPOCH if episode >= 0 else episode


def _without_read_ahead(requests: list[Request], work: Work) -> list[Request]:
    """The requests as they would be if none were made a batch ahead of the work, as accelerate's loader and prefetchers make them.

    Seen by work after the last request of the loop's iterator, and after the second, and none between the first two; where something is
    trained only that is work. The first request is then part of making the iterator, and the one that found nothing begins the last
    step, which ends with its work, or where it is asked for another.
    """
    trains = work.of(Work.TRAINS)
    of_episode: dict[int, list[int]] = {}
    for i, request in enumerate(requests):
        if request.kind is not Kind.ITER:
            of_episode.setdefault(request.episode, []).append(i)
    n, requests = len(requests), list(requests)
    for indices in of_episode.values():
        fetches = [i for i in indices if requests[i].kind is Kind.FETCH]
        if len(fetches) < 2 or len(fetches) == len(indices):
            continue
        (first, second), last = fetches[:2], indices[len(fetches)]
        done = trains if _works(trains, requests[first].end_ns, requests[last].end_ns) else work
        if _works(done, requests[first].end_ns, requests[second].start_ns):
            continue
        if not _works(done, requests[second].end_ns, requests[indices[2]].start_ns):
            continue  # all were asked for before any work: kept in a list
        if requests[last].kind is Kind.END:
            after = requests[last + 1] if last + 1 < n else None  # those behind were put there
            worked = _works(done, requests[last].end_ns, after.start_ns if after else None)
            if not worked:
                continue
            begun = [*fetches[1:], last]
            closed = after.start_ns if after and after.episode == requests[last].episode else int(worked[-1])
            requests.append(replace(requests[last], start_ns=closed, end_ns=closed))
        else:
            begun = fetches[1:]
        for i, number in zip(begun, [requests[i].items for i in fetches], strict=False):
            requests[i] = replace(requests[i], kind=Kind.FETCH, items=number)
        requests[first] = replace(requests[first], kind=Kind.ITER)
    return sorted(requests, key=lambda r: r.start_ns)


def _works(work: Work, begin_ns: int, end_ns: int | None) -> Sequence[int]:
    """When the work ended that began between two times."""
    stop = len(work.start_ns) if end_ns is None else int(np.searchsorted(work.start_ns, end_ns))
    found: list[int] = work.end_ns[int(np.searchsorted(work.start_ns, begin_ns)) : stop].tolist()
    return found


def _left(requests: list[Request], work: Work) -> list[Request]:
    """Each loop that was left ends where its last step does, or, if that was not done, without it.

    An iterator may be held long after its loop: a step then ends no later after its work than the longest of the others. A step is done
    if what was worked in all others of the loader was worked in it.
    """
    if not any(r.kind is Kind.LEFT for r in requests):
        return requests
    made = split_at_requests(requests)
    kinds, tails, last_ns = _worked(made, work)
    loader_of = {r.episode: r.loader for r in requests}
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
        if not kinds[i] or wanted & ~int(kinds[i]):
            requests[at] = replace(request, kind=Kind.INCOMPLETE)
        elif others:
            end = min(request.start_ns, int(last_ns[i] + tails[others].max()))
            requests[at] = replace(request, start_ns=end, end_ns=end)
    return sorted(requests, key=lambda r: r.start_ns)


def _worked(made: Segmentation, work: Work) -> tuple[Array, Array, Array]:
    """By turn: which kinds of work were done, how long it went on after the last of them, and when that ended; without loops in it."""
    n = len(made.turns)
    edges, owners = np.asarray(made.edges), np.asarray(made.owners)
    piece = np.searchsorted(edges, work.start_ns, side="right") - 1
    turn = np.where(piece < 0, OUTSIDE, owners[np.maximum(piece, 0)])
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


def requests_through_queue(gets: Sequence[tuple[int, int]], batches: Sequence[Request], works: Array) -> list[Request]:
    """The requests of a thread that trains on batches which another thread takes from a loader and hands to it through a ``queue.Queue``.

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
