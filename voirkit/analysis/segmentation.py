"""Cuts a thread's time into turns: from one request for a batch to the next, of one iterator over a
loader.

Knows only requests, which ``loader_requests`` has put right before. Whether a turn trains or
evaluates, and what happens in it, is the business of ``steps``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    RELEASED = 3  # nothing more: the iterator was released, and its step ends
    INCOMPLETE = 4  # the same, in the middle of a step


LET_GO = (Kind.RELEASED, Kind.INCOMPLETE)
# asking the enum takes longer than the rest of a line
_ITER, _FETCH, _END, _INCOMPLETE = Kind.ITER, Kind.FETCH, Kind.END, Kind.INCOMPLETE


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
    # when its batch was requested; the first of an episode begins where the iterator is made
    start_ns: int
    end_ns: int | None = None  # when the next one was requested; None if that never happened
    # indices of the requests for batches that were made in it, those to companions too (``zip`` of
    # two loaders)
    requests: list[int] = field(default_factory=list)


@dataclass
class Segmentation:
    """A thread's time, cut."""

    turns: list[StepInterval]  # in the order in which they began
    edges: list[int]  # start of each piece of time, ascending, in nanoseconds
    # index of the turn that owns the piece from that edge to the next; ``OUTSIDE`` for none. A loop
    # inside another's turn owns its own time: that of the turn around it excludes it.
    owners: list[int]

    @cached_property
    def episodes(self) -> Array:
        """The episode of each turn; to be asked for when all are there."""
        return np.array([turn.episode for turn in self.turns], dtype=np.int64)

    def turns_at(self, at_ns: Array) -> Array:
        """The turn to which each instant belongs, ``OUTSIDE`` for none; shape as ``at_ns``."""
        if not self.edges:
            return np.full(len(at_ns), OUTSIDE)
        piece = np.searchsorted(np.asarray(self.edges), at_ns, side="right") - 1
        return np.where(piece < 0, OUTSIDE, np.asarray(self.owners)[piece])


@dataclass(eq=False)  # one is itself alone: lists of them are searched often
class _Episode:
    number: int
    loader: int
    begun_ns: int
    last: int = 0  # index of its last request for a batch
    last_asked: int = 0  # the same, whether the batch came or not
    companion: bool = False
    turn: int = OUTSIDE  # the turn that is open


def split_at_requests(requests: Sequence[Request]) -> Segmentation:
    """Cut a thread's time at its requests.

    Args:
        requests: All of one thread, in order of their start.

    Loops may lie within each other's turns (evaluation every 100 steps): each instant belongs to
    the innermost. Two iterators that are asked by turns (``zip``, ``next`` on a second loader) are
    one loop: the one that was asked first leads, and the other's requests lie in the leader's
    turns.
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
            loader = request.loader
            over = [k for k, e in enumerate(open_) if e.loader == loader and e.last < i]
            _abandon(open_, open_[over[0] :] if over else [], request.start_ns, segmentation)
        elif request.kind not in LET_GO:  # an iterator may be held until long after its loop
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
    """The episodes by number; those that another leads are marked."""
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
            continue  # iterators may be made in any order before the first is asked
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
            # Both go on, or the one that leads has ended first: they are asked alternately.
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
    """Close loops that were left without their iterator's end."""
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

    def chosen(self, rows: Array) -> Work:
        """Only some."""
        columns = (self.start_ns, self.end_ns, self.kind, self.optimizer, self.grad, self.training)
        return Work(*(column[rows] for column in columns))
