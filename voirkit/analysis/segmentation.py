"""Divides a thread's time into step intervals, called *turns*: from one request for a batch to the
next request to the same iterator over a loader.

Only requests are used, after ``loader_requests`` has normalized them. ``steps`` determines whether
a turn trains or evaluates, and the phases in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np

from voirkit.analysis.nesting import Array

OUTSIDE = -1  # used instead of the index of a turn for time that belongs to no turn


class Kind(IntEnum):
    """The kind of a request to a loader. ``END`` and the kinds after it are the last request to an
    iterator."""

    ITER = 0  # an iterator was made
    FETCH = 1  # a batch was requested and returned
    END = 2  # a batch was requested, and there were no more
    RELEASED = 3  # the iterator was released, which ends its last step
    INCOMPLETE = 4  # the iterator was released in the middle of a step


LET_GO = (Kind.RELEASED, Kind.INCOMPLETE)
# Aliases for use in loops, because looking up a member of an enum is slow.
_ITER, _FETCH, _END, _INCOMPLETE = Kind.ITER, Kind.FETCH, Kind.END, Kind.INCOMPLETE


# Not frozen: a frozen object takes three times as long to create, and each step creates two.
@dataclass(slots=True)
class Request:
    """A request to a loader or its iterator; times in nanoseconds of one clock."""

    kind: Kind
    start_ns: int  # start of the request
    end_ns: int  # end of the request: the batch has arrived
    episode: int  # number of the iterator, unique in the thread
    loader: int  # number of the loader that made the iterator
    items: int | None = None  # number of items in the batch; None if it is not known


@dataclass(slots=True)
class StepInterval:
    """The time from one request for a batch to the next request to the same iterator."""

    episode: int  # number of the iterator
    # time of the request for the interval's batch; for the first interval of an iterator, the time
    # at which the iterator was made
    start_ns: int
    end_ns: int | None = None  # time of the request that ends the interval; None if it never ended
    # indices of the requests for batches in the interval, including those to companion iterators
    # (``zip`` of two loaders)
    requests: list[int] = field(default_factory=list)


@dataclass
class Segmentation:
    """The time of a thread, divided into turns."""

    turns: list[StepInterval]  # ordered by start
    edges: list[int]  # times at which the current turn changes, in nanoseconds, ascending
    # for each time in ``edges``, the index of the turn that is current from then until the next
    # one; ``OUTSIDE`` for no turn. While an inner loop runs, its turns are the current ones: their
    # time does not count for the turn of the outer loop.
    owners: list[int]

    @cached_property
    def episodes(self) -> Array:
        """The iterator (episode) of each turn. Cached: read it only after all turns were added."""
        return np.array([turn.episode for turn in self.turns], dtype=np.int64)

    def turns_at(self, at_ns: Array) -> Array:
        """Return the index of the turn to which each instant belongs, ``OUTSIDE`` for none; shape
        as ``at_ns``."""
        if not self.edges:
            return np.full(len(at_ns), OUTSIDE)
        piece = np.searchsorted(np.asarray(self.edges), at_ns, side="right") - 1
        return np.where(piece < 0, OUTSIDE, np.asarray(self.owners)[piece])


@dataclass(eq=False)  # compared by identity, which makes searches of lists fast
class _Episode:
    number: int
    loader: int
    begun_ns: int
    last: int = 0  # index of the last request that returned a batch
    last_asked: int = 0  # index of the last request for a batch, whether or not one was left
    companion: bool = False  # True if its requests count as part of another iterator's loop
    turn: int = OUTSIDE  # index of the iterator's current turn


def split_at_requests(requests: Sequence[Request]) -> Segmentation:
    """Divide a thread's time into turns at its requests.

    Loops may be nested (evaluation every 100 steps): each instant belongs to the innermost loop.
    Two iterators that are asked alternately (``zip``, ``next`` on a second loader) form one loop.
    The one that was asked first is the leader: only its requests begin turns. The requests to the
    other, its companion, count as part of these turns.

    Args:
        requests: All requests of one thread, ascending by start.
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
                continue  # the iterator has no open loop: it returned no batch, or was abandoned
            loader = request.loader
            over = [k for k, e in enumerate(open_) if e.loader == loader and e.last < i]
            _abandon(open_, open_[over[0] :] if over else [], request.start_ns, segmentation)
        elif request.kind not in LET_GO:  # a release, which may be late, ends no inner loop
            _abandon(open_, open_[open_.index(episode) + 1 :], request.start_ns, segmentation)
        if request.kind is _ITER:
            if episode not in open_:
                _open_turn(episode, request.start_ns, open_, segmentation)
            continue
        if request.kind >= _END:
            if request.kind is not _INCOMPLETE:
                _close(episode, request.start_ns, segmentation)
            open_.remove(episode)
            _assign(segmentation, request.start_ns, OUTSIDE)
            _assign(segmentation, request.end_ns, open_[-1].turn if open_ else OUTSIDE)
            continue
        if episode not in open_:
            _open_turn(episode, request.start_ns, open_, segmentation)
        elif segmentation.turns[episode.turn].requests:
            _close(episode, request.start_ns, segmentation)
            _turn(episode, request.start_ns, segmentation)
        segmentation.turns[episode.turn].requests.append(i)
    return segmentation


def _episodes(requests: Sequence[Request]) -> dict[int, _Episode]:
    """Return the episodes by number. Of iterators that are asked alternately, all but the one that
    was asked first are marked as companions."""
    episodes: dict[int, _Episode] = {}
    for i, request in enumerate(requests):
        episode = episodes.get(request.episode)
        if episode is None:
            episode = episodes[request.episode] = _Episode(
                request.episode, request.loader, request.start_ns
            )
        if request.kind is _FETCH:
            episode.last = i
        if request.kind in (_FETCH, _END):
            episode.last_asked = i
    ended: set[int] = set()
    open_: list[_Episode] = []
    for i, request in enumerate(requests):
        if request.kind is _ITER:
            continue  # the order in which iterators are made does not matter
        episode = episodes[request.episode]
        if request.kind in LET_GO:
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
            # The iterator ``above`` was asked since the last request to ``episode``. The two are
            # asked alternately if ``above`` is asked again later, or if ``episode`` ended first.
            above.companion = above.last_asked > i or (
                request.kind is _END and above.number not in ended
            )
        if request.kind is _END:
            open_.pop()
    return episodes


def _open_turn(
    episode: _Episode, at_ns: int, open_: list[_Episode], segmentation: Segmentation
) -> None:
    open_.append(episode)
    _turn(episode, at_ns, segmentation)


def _turn(episode: _Episode, at_ns: int, segmentation: Segmentation) -> None:
    episode.turn = len(segmentation.turns)
    segmentation.turns.append(StepInterval(episode.number, at_ns))
    _assign(segmentation, at_ns, episode.turn)


def _close(episode: _Episode, at_ns: int, segmentation: Segmentation) -> None:
    segmentation.turns[episode.turn].end_ns = at_ns


def _abandon(
    open_: list[_Episode], abandoned: list[_Episode], at_ns: int, segmentation: Segmentation
) -> None:
    """Close loops that were left before their iterator was exhausted, by ``break`` or an exception.

    Args:
        open_: The open loops, the innermost last; the abandoned ones are removed.
        abandoned: The loops to close.
        at_ns: The end of these loops. From then on, time belongs to the innermost open loop.
        segmentation: The turns so far.
    """
    for episode in abandoned:
        _close(episode, at_ns, segmentation)
        open_.remove(episode)
    if abandoned:
        _assign(segmentation, at_ns, open_[-1].turn if open_ else OUTSIDE)


def _assign(segmentation: Segmentation, at_ns: int, owner: int) -> None:
    if segmentation.edges and segmentation.edges[-1] == at_ns:
        segmentation.owners[-1] = owner
        return
    segmentation.edges.append(at_ns)
    segmentation.owners.append(owner)


@dataclass(frozen=True, eq=False)
class Work:
    """The model calls, backward passes and optimizer steps of a thread; arrays of shape (n,),
    ascending by start."""

    start_ns: Array  # on the process's clock
    end_ns: Array  # on the process's clock
    kind: Array  # ``FORWARD``, ``BACKWARD`` or ``OPTIMIZER``
    optimizer: Array  # for an optimizer step, the number of the optimizer
    grad: Array  # for a model call, True if it was made with gradients
    training: Array  # for a model call, True if the model was in training mode

    FORWARD, BACKWARD, OPTIMIZER = 1, 2, 4
    TRAINS = BACKWARD | OPTIMIZER

    def of(self, kinds: int) -> Work:
        """Return only the work of some kinds, given as combined bits."""
        return self.chosen((self.kind & kinds) != 0)

    def chosen(self, rows: Array) -> Work:
        """Return only the given rows."""
        columns = (self.start_ns, self.end_ns, self.kind, self.optimizer, self.grad, self.training)
        return Work(*(column[rows] for column in columns))
