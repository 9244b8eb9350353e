"""Who came last to each collective, and by how much that is new.

Nobody leaves a collective before all have entered it, so that who enters last makes the others
wait. Ranks that have waited for each other at the collective before went on together, when the last
had begun it; else each went on when it had begun it itself. They have waited if each began this one
after the last had begun that one. Of a reduction within the same backward pass that is not known:
DDP begins those and waits for them at its end, FSDP may wait for each; there the case counts by
which somebody is less late. Who took longest from there on is late anew; what it was late by
already is not counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import NONE, Array
from voirkit.analysis.steps import Steps
from voirkit_instruments.ranks.analyse_matching import Group

LEAST_NS = 1_000_000  # less is not worth a name
_AT_ONCE = 256  # collectives of all ranks that are worked on together
_LATEST_NS = np.iinfo(np.int64).max


def released_ns(begun_ns: Array, waited_for: Array) -> Array:
    """When each rank could go on after the collective before: where all have waited for each other,
    when the last had begun it.

    Args:
        begun_ns: When each rank began each; shape (ranks, n).
        waited_for: Whether each was waited for before the next one was begun, where the ranks'
            clocks allow it; shape (n,).

    Returns:
        Shape (ranks, n); of the first collective when it was begun.
    """
    released: Array = begun_ns.copy()
    before_ns, after_ns = begun_ns[:, :-1], begun_ns[:, 1:]
    last = before_ns.max(axis=0)
    waited = np.where(after_ns.min(axis=0) >= last, last, before_ns)
    uncertain = _less_late(after_ns, before_ns, waited)
    released[:, 1:] = np.where(waited_for[:-1], waited, uncertain)
    return released


def _less_late(begun_ns: Array, released: Array, alternative: Array) -> Array:
    """Of two cases of when ranks could go on, for each collective the one by which somebody is less
    late."""
    by_ns = new_delays_ns(begun_ns, released)[1]
    alternative_by_ns = new_delays_ns(begun_ns, alternative)[1]
    less_late: Array = np.where(alternative_by_ns < by_ns, alternative, released)
    return less_late


def new_delays_ns(begun_ns: Array, released: Array) -> tuple[Array, Array]:
    """Who came last to each collective, and by how much longer than a usual other rank it took
    since the one before.

    Args:
        begun_ns: When each rank began each; shape (ranks, n).
        released: As ``released_ns`` gives it.

    Returns:
        Index of the rank that came last, and nanoseconds; shape (n,) each.
    """
    late = np.argmax(begun_ns, axis=0)
    took = begun_ns - released
    collectives = np.arange(begun_ns.shape[1])
    late_took = took[late, collectives]
    took[late, collectives] = _LATEST_NS
    middle = (len(took) - 2) // 2
    usual_took = np.partition(took, middle, axis=0)[middle]
    return late, np.maximum(late_took - usual_took, 0)


@dataclass(frozen=True)
class _MixedGroups:
    """Groups of which a member is in another one as well, and when each member began each of their
    collectives, on the first rank's clock."""

    groups: Sequence[Group]
    begun_ns: Sequence[Array]  # by group, shape (members, n)
    flat_ns: Array  # all of these, group after group; shape (all,)
    order: Array  # of those: by rank, then by time
    # of each two that a rank began one after the other, where the first and the second are in
    # ``flat_ns``
    before: Array
    after: Array

    def by_group(self, values: Array) -> list[Array]:
        """Views of an array like ``flat_ns``, shaped like ``begun_ns``."""
        ends = np.cumsum([begun_ns.size for begun_ns in self.begun_ns])[:-1]
        parts = zip(np.split(values, ends), self.begun_ns, strict=True)
        return [part.reshape(begun_ns.shape) for part, begun_ns in parts]

    def went_on_ns(self, only_certain: bool) -> Array:
        """When each went on after each, like ``flat_ns``; ``only_certain``: where it is not known
        whether they waited, they did not."""
        following = np.full_like(self.flat_ns, _LATEST_NS)
        following[self.before] = self.flat_ns[self.after]
        went_on = self.flat_ns.copy()
        for group, begun_ns, following_ns, went_on_ns in zip(
            self.groups,
            self.begun_ns,
            self.by_group(following),
            self.by_group(went_on),
            strict=True,
        ):
            last = begun_ns.max(axis=0)
            may_have_waited = following_ns.min(axis=0) >= last
            waited = may_have_waited & (group.waited_for | (not only_certain))
            went_on_ns[:] = np.where(waited, last, begun_ns)
        return went_on

    def released_alike_ns(self, went_on: Array, late: Array) -> list[Array]:
        """By group, when each could go on if it did by the collective before of the same group,
        without what was waited and what was counted as late meanwhile."""
        # to waiting and being late, until after each; of a rank, from any beginning
        lost = np.empty_like(self.flat_ns)
        lost[self.order] = np.cumsum((went_on - self.flat_ns + late)[self.order])
        lost_before = lost - (went_on - self.flat_ns) - late
        released = [begun_ns.copy() for begun_ns in self.begun_ns]
        for released_ns, went_on_ns, lost_ns, lost_before_ns in zip(
            released,
            self.by_group(went_on),
            self.by_group(lost),
            self.by_group(lost_before),
            strict=True,
        ):
            released_ns[:, 1:] = went_on_ns[:, :-1] + lost_before_ns[:, 1:] - lost_ns[:, :-1]
        return released


def _mix_groups(groups: Sequence[Group], shifts_ns: Array) -> _MixedGroups:
    times, ranks = [], []
    for group in groups:
        begun_ns = group.begun_in_ns(slice(None)) + shifts_ns[list(group.ranks)][:, None]
        times.append(begun_ns)
        ranks.append(np.repeat(group.ranks, begun_ns.shape[1]))
    rank = np.concatenate(ranks)
    flat_ns = np.concatenate([begun_ns.ravel() for begun_ns in times])
    order = np.lexsort((flat_ns, rank))
    of_one_rank = rank[order[1:]] == rank[order[:-1]]
    before, after = order[:-1][of_one_rank], order[1:][of_one_rank]
    return _MixedGroups(groups, times, flat_ns, order, before, after)


def released_among_ns(groups: Sequence[Group], shifts_ns: Array) -> list[Array | None]:
    """When each rank could go on where ranks are in several groups: after the collective before, of
    whichever of its groups.

    Who waited in one group comes later to the next one, which is not its own delay; and who was
    late in one is late in the others by the same. What all members of one group are late by shows
    only in another: it is what is left there of the time since the collective before of the same
    group, without what was waited and what was counted as late meanwhile.

    Args:
        groups: All of a run.
        shifts_ns: What is to be added to times of each rank of the run for those of the first one;
            shape (ranks,).

    Returns:
        On the first rank's clock, shape (members, n); None for a group of whose members none is in
        another one.
    """
    released: list[Array | None] = [None] * len(groups)
    n_groups = Counter(rank for group in groups for rank in group.ranks)
    indices = [
        i for i, group in enumerate(groups) if any(n_groups[rank] > 1 for rank in group.ranks)
    ]
    if not indices:
        return released
    mixed = _mix_groups([groups[i] for i in indices], shifts_ns)
    certain, possible = mixed.went_on_ns(True), mixed.went_on_ns(False)
    free, free_if_waited = mixed.flat_ns.copy(), mixed.flat_ns.copy()
    free[mixed.after] = certain[mixed.before]
    free_if_waited[mixed.after] = possible[mixed.before]
    late = np.zeros_like(mixed.flat_ns)
    by_group = zip(
        mixed.begun_ns,
        mixed.by_group(free),
        mixed.by_group(free_if_waited),
        mixed.by_group(late),
        strict=True,
    )
    for begun_ns, free_ns, free_if_waited_ns, late_ns in by_group:
        free_ns[:] = _less_late(begun_ns, free_ns, free_if_waited_ns)
        late_rank, by_ns = new_delays_ns(begun_ns, free_ns)
        late_ns[late_rank, np.arange(begun_ns.shape[1])] = by_ns
    in_group = zip(
        indices,
        mixed.begun_ns,
        mixed.by_group(free),
        mixed.released_alike_ns(certain, late),
        mixed.released_alike_ns(possible, late),
        strict=True,
    )
    for i, begun_ns, free_ns, certain_ns, possible_ns in in_group:
        together = _less_late(begun_ns, certain_ns, possible_ns)
        together_by_ns = new_delays_ns(begun_ns, together)[1]
        by_ns = new_delays_ns(begun_ns, free_ns)[1]
        released[i] = np.where(together_by_ns > by_ns + LEAST_NS, together, free_ns)
    return released


@dataclass(frozen=True)
class Delays:
    """New delays in steps of training, one a collective of a group; arrays of shape (n,)."""

    group: Group  # of which
    # what is to be added to times of each of its members for those of the first rank; shape
    # (members, 1)
    shifts_ns: Array
    released: Array | None  # as ``released_among_ns`` gives it
    indices: Array  # which of the group's collectives each is
    step: Array  # in which step it was begun
    rank: Array  # index of the rank that came last
    by_ns: Array  # by how much that is new
    from_ns: Array  # when the rank that came last could go on after the collective before
    met: Array  # whether all went on then

    @property
    def names(self) -> Array:
        """What each was."""
        return self.group.names[self.indices]


def delays(group: Group, steps: Steps, shifts_ns: Array, released: Array | None = None) -> Delays:
    """The new delays of a group.

    Args:
        group: Which.
        steps: Those of its first member.
        shifts_ns: What is to be added to times of each rank of the run for those of the first one;
            shape (ranks,).
        released: As ``released_among_ns`` gives it.
    """
    first = group.begun_ns[0]
    shifts = shifts_ns[list(group.ranks)][:, None]
    step = steps.training_steps_at(first)
    inside = step != NONE
    inside[:1] = False  # nothing is known of what was before it
    late, by_ns, from_ns = (np.empty(len(first), np.int64) for _ in range(3))
    met = np.empty(len(first), bool)
    for low in range(1, len(first), _AT_ONCE):
        block = slice(low, low + _AT_ONCE)
        with_previous = slice(low - 1, low + _AT_ONCE)
        begun_ns = group.begun_in_ns(with_previous) + shifts
        if released is None:
            free = released_ns(begun_ns, group.waited_for[with_previous])
        else:
            free = released[:, with_previous]
        block_late, block_by_ns = new_delays_ns(begun_ns, free)
        late[block] = block_late[1:]
        by_ns[block] = block_by_ns[1:]
        from_ns[block] = free[late[block], np.arange(1, free.shape[1])]
        met[block] = (free == free[0])[:, 1:].all(axis=0)
    indices = np.flatnonzero(inside)
    late_rank = np.array(group.ranks)[late[indices]]
    return Delays(
        group,
        shifts,
        released,
        indices,
        step[indices],
        late_rank,
        by_ns[indices],
        from_ns[indices],
        met[indices],
    )
