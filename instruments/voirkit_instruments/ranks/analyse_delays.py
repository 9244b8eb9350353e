"""The rank that came last to each collective, and its new delay.

No rank leaves a collective before all have entered it, so the rank that enters last makes the
others wait. A rank's time up to a collective counts from when it went on after the previous
collective. Ranks that waited for each other there went on together, when the last rank had begun
it. Otherwise each rank went on as soon as it had begun it itself.

The ranks have waited if each began this collective after the last rank had begun the previous one.
For reductions within one backward pass this is not known. DDP begins them and waits for all of them
at the end of the pass; FSDP may wait for each. There, of the two cases, the one in which the last
rank is less late counts.

The rank that took longest has a new delay. A delay that it already had is not counted twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import NONE, Array
from voirkit.analysis.steps import Steps
from voirkit_instruments.ranks.analyse_matching import Group

LEAST_NS = 1_000_000  # minimum delay that counts
_AT_ONCE = 256  # number of collectives that are processed at a time, for all ranks
_LATEST_NS = np.iinfo(np.int64).max


def released_ns(begun_ns: Array, waited_for: Array) -> Array:
    """Return when each rank could go on after the previous collective. If the ranks waited for each
    other there, that is when the last rank had begun it; otherwise when the rank itself had begun
    it.

    Args:
        begun_ns: When each rank began each collective; shape (ranks, n).
        waited_for: True for each collective that all ranks waited for before they began the next
            one, as far as their clocks allow it; shape (n,).

    Returns:
        Shape (ranks, n); for the first collective, when each rank began it.
    """
    released: Array = begun_ns.copy()
    before_ns, after_ns = begun_ns[:, :-1], begun_ns[:, 1:]
    last = before_ns.max(axis=0)
    waited = np.where(after_ns.min(axis=0) >= last, last, before_ns)
    uncertain = _less_late(after_ns, before_ns, waited)
    released[:, 1:] = np.where(waited_for[:-1], waited, uncertain)
    return released


def _less_late(begun_ns: Array, released: Array, alternative: Array) -> Array:
    """Choose, for each collective, between two sets of times at which ranks could go on: the set by
    which the last rank is less late."""
    by_ns = new_delays_ns(begun_ns, released)[1]
    alternative_by_ns = new_delays_ns(begun_ns, alternative)[1]
    less_late: Array = np.where(alternative_by_ns < by_ns, alternative, released)
    return less_late


def new_delays_ns(begun_ns: Array, released: Array) -> tuple[Array, Array]:
    """Find the rank that came last to each collective, and how much longer it took since the
    previous one than a typical other rank.

    Args:
        begun_ns: When each rank began each collective; shape (ranks, n).
        released: The result of ``released_ns``.

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
    """Groups with members that are in other groups too, and when each member began each collective,
    on the first rank's clock."""

    groups: Sequence[Group]
    begun_ns: Sequence[Array]  # by group; shape (members, n)
    flat_ns: Array  # ``begun_ns`` of all groups, one after the other; shape (all,)
    order: Array  # indices that sort ``flat_ns`` by rank, then by time
    # indices into ``flat_ns``: a rank began ``after[i]`` as its next collective after ``before[i]``
    before: Array
    after: Array

    def by_group(self, values: Array) -> list[Array]:
        """Return views of an array that is laid out like ``flat_ns``, in the shapes of
        ``begun_ns``."""
        ends = np.cumsum([begun_ns.size for begun_ns in self.begun_ns])[:-1]
        parts = zip(np.split(values, ends), self.begun_ns, strict=True)
        return [part.reshape(begun_ns.shape) for part, begun_ns in parts]

    def went_on_ns(self, only_certain: bool) -> Array:
        """Return when each rank went on after each collective, laid out like ``flat_ns``. Where it
        is not known whether ranks waited, they count as not having waited if ``only_certain``,
        otherwise as having waited."""
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
        """Return, by group, when each rank could go on if its time counts from the previous
        collective of the same group, less what it waited and was late in other groups in
        between."""
        # By collective: the time that its rank had lost by waiting and being late when the
        # collective ended, counted from an arbitrary start.
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
    """Return when each rank could go on, if ranks are in several groups: after its previous
    collective, in whichever of its groups.

    A rank that waited in one group comes later to the next group, which is not its own delay. A
    rank that was late in one group is late in the others by the same time. A delay that all members
    of one group share shows only in another group. It is what remains there of the time since the
    previous collective of the same group, without the time waited and the time counted as late in
    between.

    Args:
        groups: All groups of a run.
        shifts_ns: What to add to the times of each rank of the run to get times on the first rank's
            clock; shape (ranks,).

    Returns:
        By group, times on the first rank's clock, shape (members, n); None for a group with no
            member in another group.
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
    """New delays at the collectives of one group in training steps; arrays of shape (n,)."""

    group: Group
    # what to add to the times of each member to get times on the first rank's clock; shape
    # (members, 1)
    shifts_ns: Array
    released: Array | None  # the group's result of ``released_among_ns``
    indices: Array  # indices of the collectives in the group
    step: Array  # training step in which each collective was begun
    rank: Array  # index of the rank that came last to each
    by_ns: Array  # the new delay of that rank, in ns
    from_ns: Array  # when the rank that came last could go on after the previous collective
    met: Array  # True if all ranks could go on at ``from_ns``

    @property
    def names(self) -> Array:
        """The name of each collective; shape (n,)."""
        return self.group.names[self.indices]


def delays(group: Group, steps: Steps, shifts_ns: Array, released: Array | None = None) -> Delays:
    """Return the new delays of a group.

    Args:
        group: The group.
        steps: The steps of its first member.
        shifts_ns: What to add to the times of each rank of the run to get times on the first rank's
            clock; shape (ranks,).
        released: The group's result of ``released_among_ns``.
    """
    first = group.begun_ns[0]
    shifts = shifts_ns[list(group.ranks)][:, None]
    step = steps.training_steps_at(first)
    inside = step != NONE
    inside[:1] = False  # nothing is known of the time before the first collective
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
