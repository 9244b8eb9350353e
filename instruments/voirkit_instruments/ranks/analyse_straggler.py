"""The rank that the others wait for in most of a run, and what it does then.

What a late rank did is its time by phase since it could go on, against that of a usual other rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.nesting import NONE, Array, innermost, outer_first
from voirkit.analysis.steps import BACKWARD, FORWARD, LOSS, OPTIMIZER, REST
from voirkit.phase_table import COLUMNS
from voirkit.runs.thresholds import FEW_IN_STEP, LATE_IN, STRAGGLES
from voirkit_instruments.ranks.analyse_delays import LEAST_NS, Delays

_STRETCHES = 16  # into as many is a run divided: who is late in most of them is late
_MOST_OTHERS = 8  # that a late rank is held against
_CHANCE = 0.02  # the most likely by chance that a rank is named for
CAUSES = 0.75  # of all waiting: who causes less is one of several
# Where ranks share processors, a thread that could go on waits for the time slice of another: in
# Linux they last up to 3 ms (kernel/sched, base_slice_ns by the number of processors), and ranks
# that do the same are unlike by as much, anew at each collective.
_SLICE_NS = 4_000_000
_CONTENDED = 0.01  # of the time a rank was ready to run and had no processor
# what is slow where others have the processor
_COMPUTING = (FORWARD, BACKWARD, OPTIMIZER, LOSS, REST)
_NS = 1e-9


@dataclass(frozen=True)
class Timeline:
    """What the training thread of a rank did when; boundaries ascending, shape (n,)."""

    at_ns: Array  # from when on
    column: Array  # what it did from then until the next boundary: index into wait, transfer … rest

    def spent_ns(self, column: int, begin_ns: Array, end_ns: Array) -> Array:
        """Time in a column between instants; shape of these."""
        inside = (self.column == column).astype(np.int64)
        intervals_ns = np.diff(self.at_ns) * inside[:-1]
        total = np.concatenate(([0], np.cumsum(intervals_ns)))

        def until(instants_ns: Array) -> Array:
            i = np.maximum(np.searchsorted(self.at_ns, instants_ns, side="right") - 1, 0)
            since_boundary = np.maximum(instants_ns - self.at_ns[i], 0)
            return total[i] + since_boundary * inside[i]

        duration_ns: Array = until(end_ns) - until(begin_ns)
        return duration_ns


# those of some ranks, by their index
Timelines = Callable[[Collection[int]], Mapping[int, Timeline]]


def timeline(start_ns: Array, duration_ns: Array, meaning: Array) -> Timeline:
    """The timeline of spans that lie in each other; arrays of shape (n,), in any order, ``meaning``
    an index of a column."""
    order = outer_first(start_ns, duration_ns)
    start, end = start_ns[order], (start_ns + duration_ns)[order]
    boundaries = np.unique(np.concatenate((start, end)))
    owner = innermost(start, end, boundaries)
    return Timeline(boundaries, np.where(owner == NONE, REST, meaning[order][owner]))


def causes_ns(delays: Delays, rank: int, timelines: Timelines) -> Array:
    """How much longer a rank spent in each column than a usual other one, before the collectives
    that it came last to; shape (columns,)."""
    group = delays.group
    late = np.flatnonzero((delays.rank == rank) & (delays.by_ns > 0))
    indices = delays.indices[late]
    peers = [i for i, member in enumerate(group.ranks) if member != rank]
    spread = np.linspace(0, len(peers) - 1, _MOST_OTHERS).astype(int)
    peers = [peers[i] for i in np.unique(spread)]
    members = [group.ranks.index(rank), *peers]
    until_ns = np.stack([group.begun_ns[i][indices] for i in members])
    if delays.released is None:
        before_ns = np.stack([group.begun_ns[i][indices - 1] for i in members])
    else:
        before_ns = delays.released[np.ix_(members, indices)] - delays.shifts_ns[members]
    together_ns = delays.from_ns[late] - delays.shifts_ns[members]
    from_ns = np.where(delays.met[late], together_ns, before_ns)
    lines = timelines([group.ranks[i] for i in members])
    middle = (len(peers) - 1) // 2
    longer_ns = np.zeros(len(COLUMNS), dtype=np.int64)
    for column in range(len(COLUMNS)):
        times_ns = [
            lines[group.ranks[i]].spent_ns(column, begin_ns, end_ns)
            for i, begin_ns, end_ns in zip(members, from_ns, until_ns, strict=True)
        ]
        usual_ns = np.sort(times_ns[1:], axis=0)[middle]
        longer_ns[column] = int((times_ns[0] - usual_ns).sum())
    return longer_ns


@dataclass(frozen=True)
class StepDelays:
    """What ranks are late by, by step of training."""

    late_ns: Array  # by how much each rank is late anew; shape (ranks, steps)
    lost_ns: Array  # what is lost by it, groups wait side by side; shape (steps,)
    durations_ns: Sequence[Array]  # of the steps of each rank; shape (steps,) each


def stretch_width(n_steps: int) -> int:
    """How many steps are in a stretch."""
    return max(n_steps // _STRETCHES, 1)


def stretch_means(values: Array, width: int) -> Array:
    """Means over as many steps; shape (ranks, stretches). A last stretch may be shorter."""
    edges = np.arange(0, values.shape[1], width)
    lengths = np.diff(np.append(edges, values.shape[1]))
    means: Array = np.add.reduceat(values, edges, axis=1) / lengths
    return means


def stretch_durations(durations_ns: Sequence[Array], width: int) -> Array:
    """The same of how long the steps of each rank last."""
    return np.concatenate([stretch_means(duration[None], width) for duration in durations_ns])


def usual_stretches(values: Array) -> Array:
    """The indices without the tenths that are least and most, for a mean: what comes back every few
    steps is in some oftener."""
    tenth = len(values) // 10
    order: Array = np.argsort(values, kind="stable")
    return order[tenth : len(values) - tenth]


def find_straggler(
    ranks: Sequence[Rank],
    delays_by_group: Sequence[Delays],
    by_step: StepDelays,
    timelines: Timelines,
    last_share: Array,
) -> dict[str, Any] | None:
    """The rank that the others wait for in most of the run, by as much as matters, and what it does
    then; None if there is none. ``last_share``: in which share of the steps each comes last."""
    n_steps = by_step.late_ns.shape[1]
    if n_steps < FEW_IN_STEP:
        return None
    width = stretch_width(n_steps)
    late = stretch_means(by_step.late_ns, width)
    durations = stretch_durations(by_step.durations_ns, width)
    rank = int(np.argmax(np.median(late, axis=1)))
    peers = np.delete(late, rank, axis=0)
    usual_peer = np.sort(peers, axis=0)[(len(peers) - 1) // 2]
    excess = late[rank] - usual_peer
    usual = usual_stretches(excess)
    late_ns = float(excess[usual].mean())
    step_ns = float(durations[:, usual].mean(axis=1).max())
    share = late_ns / step_ns
    # where gradients are accumulated a rank waits in other steps than another one is late in
    straggling = STRAGGLES * durations.max(axis=0)
    n_late = int((excess >= straggling).sum())
    of_rank = [delays for delays in delays_by_group if rank in delays.group.ranks]
    if share < STRAGGLES or n_late < LATE_IN * len(excess):
        return None
    if late_ns < _least_delay_ns(ranks, of_rank, n_steps):
        return None
    n_rivals = int((np.max(peers, axis=0) - late[rank] >= straggling).sum())
    if _probability_by_chance(n_late, n_late + n_rivals, len(ranks)) > _CHANCE:
        return None
    if by_step.late_ns[rank].sum() < CAUSES * by_step.lost_ns.sum():
        return None
    longer_ns = sum((causes_ns(delays, rank, timelines) for delays in of_rank), np.zeros(1))
    column = int(np.argmax(longer_ns))
    phase = "other" if column == REST else COLUMNS[column]
    if column in _COMPUTING and _starved_more(rank, ranks) * step_ns >= late_ns / 2:
        phase = "processor"
    share_of_phase = float(longer_ns[column] / max(longer_ns.sum(), 1))
    return {
        "rank": ranks[rank].rank,
        "host": ranks[rank].host,
        "share": share,
        "time_s": late_ns * _NS,
        "steps": float(last_share[rank]),
        "phase": phase,
        "of_it": share_of_phase,
        "collective": _latest_collective(delays_by_group, rank),
    }


def _least_delay_ns(ranks: Sequence[Rank], of_rank: Sequence[Delays], n_steps: int) -> float:
    """The least delay of a step that counts, of a rank with these delays."""
    starved = _starved_by_rank(ranks)
    most_starved = max((starved.get(i, 1.0) for i in range(len(ranks))), default=1.0)
    if most_starved < _CONTENDED:
        return LEAST_NS
    n_meetings = 0
    for delays in of_rank:
        in_steps = delays.indices[delays.step < n_steps]
        n_meetings += int(delays.group.waited_for[in_steps].sum())
    # what chance makes of each adds up like that
    return _SLICE_NS * max(math.sqrt(n_meetings / n_steps), 1.0)


def _starved_by_rank(ranks: Sequence[Rank]) -> dict[int, float]:
    return {
        i: rank.collectives.starved
        for i, rank in enumerate(ranks)
        if rank.collectives is not None and rank.collectives.starved is not None
    }


def _ran_by_rank(ranks: Sequence[Rank]) -> dict[int, float]:
    return {
        i: rank.collectives.ran
        for i, rank in enumerate(ranks)
        if rank.collectives is not None and rank.collectives.ran is not None
    }


def _starved_more(rank: int, ranks: Sequence[Rank]) -> float:
    """The share of the time that a rank had no processor beyond what it would have had none if it
    got one as readily as the others: who computes more than they do waits more for a processor on a
    machine that is shared, while they sleep. 0 where that is not known."""
    starved, ran = _starved_by_rank(ranks), _ran_by_rank(ranks)
    peers = [i for i in starved if i != rank and ran.get(i)]
    ratios = sorted(starved[i] / ran[i] for i in peers)
    if not ratios or rank not in starved or rank not in ran:
        return 0.0
    usual_ratio = ratios[(len(ratios) - 1) // 2]
    return starved[rank] - ran[rank] * usual_ratio


def _probability_by_chance(n_late: int, n: int, n_ranks: int) -> float:
    """How likely one of some ranks is late in so many stretches or more of those with a late rank,
    where each is as likely to be it."""
    cases = sum(math.comb(n, k) * (n_ranks - 1) ** (n - k) for k in range(n_late, n + 1))
    return float(cases / n_ranks**n)


def _latest_collective(delays_by_group: Sequence[Delays], rank: int) -> str:
    """The collective to which a rank brings most of its delay."""
    late_ns: dict[str, int] = {}
    for delays in delays_by_group:
        names = delays.names
        for name in np.unique(names).tolist():
            is_late = (delays.rank == rank) & (names == name)
            late_ns[name] = late_ns.get(name, 0) + int(delays.by_ns[is_late].sum())
    return max(late_ns, key=late_ns.__getitem__, default="")
