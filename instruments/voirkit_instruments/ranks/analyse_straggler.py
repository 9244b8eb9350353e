"""The rank that the others wait for in most of a run, and what it does meanwhile.

The rank's time in each phase since it could go on is compared with that of a typical other rank.
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

# A run is divided into so many intervals of steps ("stretches"). A rank that is late in most of
# them is late.
_STRETCHES = 16
_MOST_OTHERS = 8  # maximum number of other ranks that a late rank is compared with
_CHANCE = 0.02  # a rank is named if its result has at most this probability by chance
CAUSES = 0.75  # least share of all waiting that a straggler causes; with less, it is one of several
# Where ranks share processors, a thread that could go on waits until the time slice of another
# thread ends. On Linux a slice lasts up to 3 ms (kernel/sched, base_slice_ns by the number of
# processors). So ranks that do the same work differ by up to a slice at each collective.
_SLICE_NS = 4_000_000
# ranks share processors if a rank was ready to run, but had none, for this share of the time
_CONTENDED = 0.01
# columns (phases) that take longer if other processes occupy the processor
_COMPUTING = (FORWARD, BACKWARD, OPTIMIZER, LOSS, REST)
_NS = 1e-9


@dataclass(frozen=True)
class Timeline:
    """Timeline of a rank's training thread, as intervals that each belong to a column; arrays of
    shape (n,)."""

    at_ns: Array  # begin of each interval, ascending; each lasts to the next
    column: Array  # phase of each interval: index into wait, transfer … rest

    def spent_ns(self, column: int, begin_ns: Array, end_ns: Array) -> Array:
        """Return the nanoseconds spent in a column from ``begin_ns`` to ``end_ns``, for each pair
        of instants; same shape."""
        inside = (self.column == column).astype(np.int64)
        intervals_ns = np.diff(self.at_ns) * inside[:-1]
        total = np.concatenate(([0], np.cumsum(intervals_ns)))

        def until(instants_ns: Array) -> Array:
            i = np.maximum(np.searchsorted(self.at_ns, instants_ns, side="right") - 1, 0)
            since_boundary = np.maximum(instants_ns - self.at_ns[i], 0)
            return total[i] + since_boundary * inside[i]

        duration_ns: Array = until(end_ns) - until(begin_ns)
        return duration_ns


# function that returns the timelines of some ranks, by index of the rank
Timelines = Callable[[Collection[int]], Mapping[int, Timeline]]


def timeline(start_ns: Array, duration_ns: Array, meaning: Array) -> Timeline:
    """Return the timeline of nested spans. The arrays have shape (n,) and any order; ``meaning`` is
    the index of each span's column."""
    order = outer_first(start_ns, duration_ns)
    start, end = start_ns[order], (start_ns + duration_ns)[order]
    boundaries = np.unique(np.concatenate((start, end)))
    owner = innermost(start, end, boundaries)
    return Timeline(boundaries, np.where(owner == NONE, REST, meaning[order][owner]))


def causes_ns(delays: Delays, rank: int, timelines: Timelines) -> Array:
    """Return how many nanoseconds longer than a typical other rank a rank spent in each column,
    before the collectives to which it came last; shape (columns,)."""
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
    """Delays of the ranks in each training step."""

    late_ns: Array  # the new delay of each rank; shape (ranks, steps)
    lost_ns: Array  # time lost by the delays, in the group that lost most; shape (steps,)
    durations_ns: Sequence[Array]  # durations of each rank's steps; shape (steps,) each


def stretch_width(n_steps: int) -> int:
    """Return the number of steps in a stretch."""
    return max(n_steps // _STRETCHES, 1)


def stretch_means(values: Array, width: int) -> Array:
    """Return the means over stretches of ``width`` steps; shape (ranks, stretches). The last
    stretch may be shorter."""
    edges = np.arange(0, values.shape[1], width)
    lengths = np.diff(np.append(edges, values.shape[1]))
    means: Array = np.add.reduceat(values, edges, axis=1) / lengths
    return means


def stretch_durations(durations_ns: Sequence[Array], width: int) -> Array:
    """Return the mean duration of each rank's steps by stretch; shape (ranks, stretches)."""
    return np.concatenate([stretch_means(duration[None], width) for duration in durations_ns])


def usual_stretches(values: Array) -> Array:
    """Return the indices of the values without the lowest and the highest tenth, for a mean. An
    event that recurs every few steps falls into some stretches more often than into others."""
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
    """Find the rank that the others wait for in most of the run, for long enough to matter, and
    what it does meanwhile; None if there is no such rank. ``last_share`` is the share of the steps
    in which each rank comes last."""
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
    # Relative to the longest duration of any rank: with gradient accumulation, ranks wait in other
    # steps than those in which another rank is late.
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
    """Return the least delay per step that counts for a rank whose delays are ``of_rank``."""
    starved = _starved_by_rank(ranks)
    most_starved = max((starved.get(i, 1.0) for i in range(len(ranks))), default=1.0)
    if most_starved < _CONTENDED:
        return LEAST_NS
    n_meetings = 0
    for delays in of_rank:
        in_steps = delays.indices[delays.step < n_steps]
        n_meetings += int(delays.group.waited_for[in_steps].sum())
    # random delays at several collectives add up as the square root of their number
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
    """Return the share of the time in which a rank was ready but had no processor, beyond the share
    expected if it got a processor as readily as the other ranks; 0 if not known.

    On a shared machine, a rank that computes more than the others, which sleep meanwhile, also
    waits more for a processor.
    """
    starved, ran = _starved_by_rank(ranks), _ran_by_rank(ranks)
    peers = [i for i in starved if i != rank and ran.get(i)]
    ratios = sorted(starved[i] / ran[i] for i in peers)
    if not ratios or rank not in starved or rank not in ran:
        return 0.0
    usual_ratio = ratios[(len(ratios) - 1) // 2]
    return starved[rank] - ran[rank] * usual_ratio


def _probability_by_chance(n_late: int, n: int, n_ranks: int) -> float:
    """Return the probability that a given one of ``n_ranks`` ranks is the late one in ``n_late`` or
    more of ``n`` stretches with a late rank, if each rank is equally likely to be it."""
    cases = sum(math.comb(n, k) * (n_ranks - 1) ** (n - k) for k in range(n_late, n + 1))
    return float(cases / n_ranks**n)


def _latest_collective(delays_by_group: Sequence[Delays], rank: int) -> str:
    """Return the name of the collective at which a rank has most of its delay."""
    late_ns: dict[str, int] = {}
    for delays in delays_by_group:
        names = delays.names
        for name in np.unique(names).tolist():
            is_late = (delays.rank == rank) & (names == name)
            late_ns[name] = late_ns.get(name, 0) + int(delays.by_ns[is_late].sum())
    return max(late_ns, key=late_ns.__getitem__, default="")
