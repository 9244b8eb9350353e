"""From the collectives that each rank has begun to who came last, by how much, and what it did meanwhile.

Nobody leaves a collective before all have entered it, so that who enters last makes the others wait. Ranks that have waited for each
other at the collective before went on together, when the last had begun it; else each went on when it had begun it itself. They have
waited if each began this one after the last had begun that one. Of a reduction within the same backward pass that is not known: DDP begins
those and waits for them at its end, FSDP may wait for each; there the case counts by which somebody is less late. Who took longest from
there on is late anew; what it was late by already is not counted twice.

What a late rank did is its time by phase since then, against that of a usual other rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from voirkit.analysis.document import Collectives, Rank
from voirkit.analysis.nesting import NONE, Array, innermost, outer_first
from voirkit.analysis.phases import KIND, REDUCTIONS, Records, meanings, training_threads
from voirkit.analysis.run_steps import records
from voirkit.analysis.steps import BACKWARD, FORWARD, LOSS, OPTIMIZER, PARTS, REST, Table
from voirkit.analysis.verdict.evidence import Evidence
from voirkit.report import duration
from voirkit.report.sections import begin_ns
from voirkit.runs.opened import Run
from voirkit.runs.summary import PHASES
from voirkit.runs.thresholds import FEW_IN_STEP, LATE_IN, STRAGGLES

CALLED = " (calls)"  # ends the name of a group of which only what the script calls itself is known
_COLUMNS = (*PHASES[:-1], *PARTS)
_STRETCHES = 16  # into as many is a run divided: who is late in most of them is late
_MOST_CELLS = 120  # bins of time in the heat map
_MOST_OTHERS = 8  # that a late rank is held against
_CHANCE = 0.02  # the most likely by chance that a rank is named for
_CAUSES = 0.75  # of all waiting: who causes less is one of several
_LEAST_NS = 1_000_000  # less is not worth a name
# Where ranks share processors, a thread that could go on waits for the time slice of another: in Linux they last up to 3 ms (kernel/sched,
# base_slice_ns by the number of processors), and ranks that do the same are unlike by as much, anew at each collective.
_SLICE_NS = 4_000_000
_CONTENDED = 0.01  # of the time a rank was ready to run and had no processor
_EVEN = (
    "Give each rank as much to do in every step: samples of like length or size in a batch, as many workers, no work that single ranks do "
    "by turns."
)
_COMPUTING = (FORWARD, BACKWARD, OPTIMIZER, LOSS, REST)  # what is slow where others have the processor
_AT_ONCE = 256  # collectives of all ranks that are worked on together
_NOTICED = 0.02  # of a step: who is late by less is not counted as last
_NS = 1e-9


@dataclass(frozen=True)
class Timeline:
    """What the training thread of a rank did when; boundaries ascending, shape (n,)."""

    at_ns: Array  # from when on
    column: Array  # what it did from then until the next boundary: index into wait, transfer … rest

    def spent_ns(self, column: int, begin_ns: Array, end_ns: Array) -> Array:
        """Time in a column between instants; shape of these."""
        inside = (self.column == column).astype(np.int64)
        total = np.concatenate(([0], np.cumsum(np.diff(self.at_ns) * inside[:-1])))

        def until(at_ns: Array) -> Array:
            i = np.maximum(np.searchsorted(self.at_ns, at_ns, side="right") - 1, 0)
            return total[i] + np.maximum(at_ns - self.at_ns[i], 0) * inside[i]

        spent: Array = until(end_ns) - until(begin_ns)
        return spent


Timelines = Callable[[Collection[int]], Mapping[int, Timeline]]  # those of some ranks, by their index


def timeline(start_ns: Array, duration_ns: Array, meaning: Array) -> Timeline:
    """The timeline of spans that lie in each other; arrays of shape (n,), in any order, ``meaning`` an index of a column."""
    order = outer_first(start_ns, duration_ns)
    start, end, meaning = start_ns[order], (start_ns + duration_ns)[order], meaning[order]
    at = np.unique(np.concatenate((start, end)))
    owner = innermost(start, end, at)
    return Timeline(at, np.where(owner == NONE, REST, meaning[owner]))


@dataclass(frozen=True)
class Group:
    """The collectives that all ranks of a group have begun, in their order."""

    name: str  # of the group
    ranks: tuple[int, ...]  # indices of its members, ascending
    # when each member began each; an array of shape (n,) for each, as a matrix of all would be a copy of what they know
    begun_ns: Sequence[Array]
    names: Array  # what each was; shape (n,)
    bytes: Array  # what each rank passed in; -1: not known. Same shape.
    waited_for: Array  # whether its ranks waited for each before they began the next one. Same shape.

    def begun_in_ns(self, which: Array | slice) -> Array:
        """When each member began some of them; shape (members, n)."""
        return np.stack([one[which] for one in self.begun_ns])


def matched(exchanged: Mapping[int, Collectives]) -> list[Group]:
    """The collectives of each group of two ranks or more, from what each rank has begun, by its index."""
    found = []
    for name in sorted({name for one in exchanged.values() for name, _, _ in one.kinds}):
        own = {rank: _of_group(one, name) for rank, one in sorted(exchanged.items()) if any(group == name for group, _, _ in one.kinds)}
        if len(own) < 2:
            continue
        # Most ranks share their numbers, and have the same places.
        places = {id(exchanged[rank].number): (exchanged[rank].number, which) for rank, which in own.items()}
        numbers = reduce(np.intersect1d, (np.unique(number[which]) for number, which in places.values()))
        if not len(numbers):
            continue
        for key, (number, which) in places.items():
            order = np.flatnonzero(which)[np.argsort(number[which], kind="stable")]
            places[key] = number, order[np.searchsorted(number[order], numbers, side="right") - 1]  # the last of a number
        times = []
        for rank in own:
            begun_ns, at = exchanged[rank].begun_ns, places[id(exchanged[rank].number)][1]
            times.append(begun_ns if np.array_equal(at, np.arange(len(begun_ns))) else begun_ns[at])
        one = exchanged[next(iter(own))]
        at = places[id(one.number)][1]
        names, bytes_ = (np.array([kind[i] for kind in one.kinds])[one.kind[at]] for i in (1, 2))
        passes, waits = one.backward[at], np.ones(len(at), dtype=bool)
        waits[:-1] = ~(np.isin(names[:-1], REDUCTIONS) & (passes[:-1] != NONE) & (passes[:-1] == passes[1:]))
        found.append(Group(name, tuple(own), times, names, bytes_, waits))
    return found


def _of_group(exchanged: Collectives, name: str) -> Array:
    """Whether each is of a group."""
    return np.array([group == name for group, _, _ in exchanged.kinds], bool)[exchanged.kind]


def released_ns(begun_ns: Array, waited_for: Array) -> Array:
    """When each rank could go on after the collective before: where all have waited for each other, when the last had begun it.

    Args:
        begun_ns: When each rank began each; shape (ranks, n).
        waited_for: Whether each was waited for before the next one was begun, where the ranks' clocks allow it; shape (n,).

    Returns:
        Shape (ranks, n); of the first collective when it was begun.
    """
    released: Array = begun_ns.copy()
    released[:, 1:] = _released_ns(begun_ns[:, :-1], begun_ns[:, 1:], waited_for[:-1])
    return released


def _released_ns(before_ns: Array, begun_ns: Array, waited_for: Array) -> Array:
    """The same of some collectives, given when each rank began those before them."""
    last = before_ns.max(axis=0)
    waited = np.where(begun_ns.min(axis=0) >= last, last, before_ns)
    released: Array = np.where(waited_for, waited, _less_late(begun_ns, before_ns, waited))
    return released


def _less_late(begun_ns: Array, one: Array, other: Array) -> Array:
    """Of two cases of when ranks could go on, for each collective the one by which somebody is less late."""
    found: Array = np.where(new_delays_ns(begun_ns, other)[1] < new_delays_ns(begun_ns, one)[1], other, one)
    return found


def new_delays_ns(begun_ns: Array, released: Array) -> tuple[Array, Array]:
    """Who came last to each collective, and by how much longer than a usual other rank it took since the one before.

    Args:
        begun_ns: When each rank began each; shape (ranks, n).
        released: As ``released_ns`` gives it.

    Returns:
        Index of the rank that came last, and nanoseconds; shape (n,) each.
    """
    late = np.argmax(begun_ns, axis=0)
    took = begun_ns - released
    at = np.arange(begun_ns.shape[1])
    own = took[late, at]
    took[late, at] = np.iinfo(np.int64).max
    middle = (len(took) - 2) // 2
    return late, np.maximum(own - np.partition(took, middle, axis=0)[middle], 0)


def released_among_ns(groups: Sequence[Group], shifts_ns: Array) -> list[Array | None]:
    """When each rank could go on where ranks are in several groups: after the collective before, of whichever of its groups.

    Who waited in one group comes later to the next one, which is not its own delay; and who was late in one is late in the others by the
    same. What all members of one group are late by shows only in another: it is what is left there of the time since the collective before
    of the same group, without what was waited and what was counted as late meanwhile.

    Args:
        groups: All of a run.
        shifts_ns: What is to be added to times of each rank of the run for those of the first one; shape (ranks,).

    Returns:
        On the first rank's clock, shape (members, n); None for a group of whose members none is in another one.
    """
    found: list[Array | None] = [None] * len(groups)
    number = Counter(rank for group in groups for rank in group.ranks)
    mixed = [i for i, group in enumerate(groups) if any(number[rank] > 1 for rank in group.ranks)]
    if not mixed:
        return found
    begun = [groups[i].begun_in_ns(slice(None)) + shifts_ns[list(groups[i].ranks)][:, None] for i in mixed]
    ends = np.cumsum([own.size for own in begun])[:-1]

    def by_group(values: Array) -> list[Array]:
        return [part.reshape(own.shape) for part, own in zip(np.split(values, ends), begun, strict=True)]

    rank = np.concatenate([np.repeat(groups[i].ranks, own.shape[1]) for i, own in zip(mixed, begun, strict=True)])
    at = np.concatenate([own.ravel() for own in begun])
    order = np.lexsort((at, rank))
    same = rank[order[1:]] == rank[order[:-1]]
    before, after = order[:-1][same], order[1:][same]
    following = np.full_like(at, np.iinfo(np.int64).max)
    following[before] = at[after]

    def gone_on(only_certain: bool) -> Array:
        """When each went on after each; ``only_certain``: where it is not known whether they waited, they did not."""
        on = at.copy()
        for i, own, then, out in zip(mixed, begun, by_group(following), by_group(on), strict=True):
            last = own.max(axis=0)
            out[:] = np.where((then.min(axis=0) >= last) & (groups[i].waited_for | (not only_certain)), last, own)
        return on

    ways, free, late = (gone_on(True), gone_on(False)), at.copy(), np.zeros_like(at)
    other = at.copy()
    free[after], other[after] = (on[before] for on in ways)
    for own, one, two, out in zip(begun, by_group(free), by_group(other), by_group(late), strict=True):
        one[:] = _less_late(own, one, two)
        who, by_ns = new_delays_ns(own, one)
        out[who, np.arange(own.shape[1])] = by_ns
    alike = []
    for on in ways:
        lost = np.empty_like(at)  # to waiting and being late, until after each; of a rank, from any beginning
        lost[order] = np.cumsum((on - at + late)[order])
        parts = (on, lost, lost - (on - at) - late)
        found_ns = [own.copy() for own in begun]
        for one, went_on, gone, until in zip(found_ns, *map(by_group, parts), strict=True):
            one[:, 1:] = went_on[:, :-1] + until[:, 1:] - gone[:, :-1]
        alike.append(found_ns)
    for i, own, one, two, three in zip(mixed, begun, by_group(free), *alike, strict=True):
        together = _less_late(own, two, three)
        more = new_delays_ns(own, together)[1] > new_delays_ns(own, one)[1] + _LEAST_NS
        found[i] = np.where(more, together, one)
    return found


@dataclass(frozen=True)
class Delays:
    """New delays in steps of training, one a collective of a group; arrays of shape (n,)."""

    group: Group  # of which
    shifts_ns: Array  # what is to be added to times of each of its members for those of the first rank; shape (members, 1)
    released: Array | None  # as ``released_among_ns`` gives it
    at: Array  # which of the group's collectives each is
    step: Array  # in which step it was begun
    rank: Array  # index of the rank that came last
    by_ns: Array  # by how much that is new
    from_ns: Array  # when the rank that came last could go on after the collective before
    met: Array  # whether all went on then

    @property
    def names(self) -> Array:
        """What each was."""
        return self.group.names[self.at]


def delays(group: Group, train: Table, shifts_ns: Array, released: Array | None = None) -> Delays:
    """The new delays of a group.

    Args:
        group: Which.
        train: The steps of training of its first member.
        shifts_ns: What is to be added to times of each rank of the run for those of the first one; shape (ranks,).
        released: As ``released_among_ns`` gives it.
    """
    first, shifts = group.begun_ns[0], shifts_ns[list(group.ranks)][:, None]
    step = np.searchsorted(train.start_ns, first, side="right") - 1
    inside = (step >= 0) & (first < (train.start_ns + train.time_ns)[np.maximum(step, 0)])
    inside[:1] = False  # nothing is known of what was before it
    late, by_ns, from_ns = (np.empty(len(first), np.int64) for _ in range(3))
    met = np.empty(len(first), bool)
    for low in range(1, len(first), _AT_ONCE):
        which = slice(low - 1, low + _AT_ONCE)  # and the one before
        begun = group.begun_in_ns(which) + shifts
        free = released_ns(begun, group.waited_for[which]) if released is None else released[:, which]
        here = slice(low, low + _AT_ONCE)
        late[here], by_ns[here] = (one[1:] for one in new_delays_ns(begun, free))
        from_ns[here] = free[late[here], np.arange(1, free.shape[1])]
        met[here] = (free == free[0])[:, 1:].all(axis=0)
    at = np.flatnonzero(inside)
    return Delays(group, shifts, released, at, step[at], np.array(group.ranks)[late[at]], by_ns[at], from_ns[at], met[at])


def aligned(groups: Sequence[Group], hosts: Sequence[str], shifts_ns: Sequence[int]) -> tuple[Array, int | None]:
    """The clocks of hosts, held against each other: no rank can begin a collective before all have begun the one that it waited for.

    Args:
        groups: Collectives.
        hosts: Of each rank.
        shifts_ns: By rank, what is to be added to its times for those of the first one, by the hosts' own wall clocks.

    Returns:
        The same, moved as far as must be, and by how much at most it may be wrong: 0 on one host, None where that cannot be told.
    """
    shifts, error = np.array(shifts_ns, dtype=np.int64), 0
    host_of = np.array(hosts)
    known: dict[int, tuple[Array, Array]] = {}  # by group, when the first and the last of the hosts before began each
    for number, host in enumerate(dict.fromkeys(hosts)):
        low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        own = {}
        for i, group in enumerate(groups):
            mine = [times for rank, times in zip(group.ranks, group.begun_ns, strict=True) if hosts[rank] == host]
            if not mine:
                continue
            own[i] = first, last = np.min(mine, axis=0), np.max(mine, axis=0)
            waits = group.waited_for[:-1]
            if i in known and waits.any():
                low = max(low, int((known[i][1][:-1] - first[1:])[waits].max()))
                high = min(high, int((known[i][0][1:] - last[:-1])[waits].min()))
        if number:
            if not np.iinfo(np.int64).min < low <= high:
                return shifts, None
            shift = int(np.clip(shifts[host_of == host][0], low, high))
            shifts[host_of == host] = shift
            error = max(error, high - shift, shift - low)
        shift = int(shifts[host_of == host][0])
        for i, (first, last) in own.items():
            first, last = first + shift, last + shift
            known[i] = (np.minimum(known[i][0], first), np.maximum(known[i][1], last)) if i in known else (first, last)
    return shifts, error


def causes_ns(delays: Delays, rank: int, timelines: Timelines) -> Array:
    """How much longer a rank spent in each column than a usual other one, before the collectives that it came last to; shape (columns,)."""
    chosen = np.flatnonzero((delays.rank == rank) & (delays.by_ns > 0))
    group, at = delays.group, delays.at[chosen]
    others = [i for i, member in enumerate(group.ranks) if member != rank]
    others = [others[i] for i in np.unique(np.linspace(0, len(others) - 1, _MOST_OTHERS).astype(int))]
    members = [group.ranks.index(rank), *others]
    before_ns, until_ns = (np.stack([group.begun_ns[i][which] for i in members]) for which in (at - 1, at))
    if delays.released is not None:
        before_ns = delays.released[np.ix_(members, at)] - delays.shifts_ns[members]
    from_ns = np.where(delays.met[chosen], delays.from_ns[chosen] - delays.shifts_ns[members], before_ns)
    known = timelines([group.ranks[i] for i in members])
    found = np.zeros(len(_COLUMNS), dtype=np.int64)
    for column in range(len(_COLUMNS)):
        spent = [known[group.ranks[i]].spent_ns(column, *edges) for i, *edges in zip(members, from_ns, until_ns, strict=True)]
        found[column] = int((spent[0] - np.sort(spent[1:], axis=0)[(len(others) - 1) // 2]).sum())
    return found


# the part of the summary


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``collectives`` of the summary; None where fewer than two ranks recorded any."""
    members = [rank for rank in ranks if not rank.alone]

    def timelines(chosen: Collection[int]) -> Mapping[int, Timeline]:
        """Few ranks' are needed, and they are as large as what was recorded."""
        files = {members[i].rank for i in chosen} | {0}  # in which those are that learnt their rank late
        of_process = {process: i for i in chosen for process in members[i].processes[-1:]}
        parts = [part for run in runs for part in run.map_ranks(partial(_timelines_of_run, set(of_process)), files)]
        return {of_process[process]: line for part in parts for process, line in part.items()}

    clocks = {process.host: process.offset_ns for run in runs for process in run.processes()}
    first = min(
        (int(rank.collectives.begun_ns[0]) for rank in members if rank.collectives is not None and len(rank.collectives.begun_ns)),
        default=0,
    )
    part = _part(members, timelines, clocks, begin_ns(runs[0], first))
    return None if part is None else {"collectives": part}


def summarise_live(ranks: Sequence[Rank], phases: Records, clocks: Mapping[str, int]) -> Mapping[str, Any] | None:
    """The same of the last steps of a run that goes on; see ``voirkit.instrument.Instrument``."""
    of_process = {process: i for i, rank in enumerate(ranks) for process in rank.processes}
    lines = _timelines(set(of_process), phases)
    return _part(ranks, lambda _: {of_process[process]: line for process, line in lines.items()}, clocks)


def _part(ranks: Sequence[Rank], timelines: Timelines, clocks: Mapping[str, int], begun_ns: int = 0) -> dict[str, Any] | None:
    """``collectives``; clocks are by host what makes them one."""
    found = matched({i: rank.collectives for i, rank in enumerate(ranks) if rank.collectives is not None})
    if not found:
        return None
    hosts = [rank.host for rank in ranks]
    shifts, error = aligned(found, hosts, [clocks.get(host, 0) - clocks.get(hosts[0], 0) for host in hosts])
    return document(ranks, found, timelines, begun_ns, shifts, error)


def _timelines_of_run(processes: Collection[tuple[str, int]], run: Run) -> dict[tuple[str, int], Timeline]:
    return _timelines(processes, records(run, KIND))


def _timelines(processes: Collection[tuple[str, int]], phases: Records) -> dict[tuple[str, int], Timeline]:
    """The timelines of those of some processes that there are records of."""
    found = {}
    for number, (_, host, pid) in enumerate(phases.processes):
        trainings = training_threads(phases, number) if (host, pid) in processes else []
        if trainings:
            chosen = trainings[0]
            meaning = meanings(phases.names)[phases.name[chosen]]
            chosen, meaning = chosen[meaning >= 0], meaning[meaning >= 0]
            found[host, pid] = timeline(phases.start_ns[chosen], phases.duration_ns[chosen], meaning)
    return found


def document(
    ranks: Sequence[Rank],
    groups: Sequence[Group],
    timelines: Timelines,
    begun_ns: int = 0,
    shifts_ns: Array | None = None,
    error_ns: int | None = 0,
) -> dict[str, Any]:
    """``collectives`` of the summary: see docs/distributed.md.

    Args:
        ranks: Those of the run.
        groups: Of it.
        timelines: What reads those of ranks.
        begun_ns: When the run began, on the clock of its records.
        shifts_ns: As ``aligned`` gives them; of one host left out.
        error_ns: By how much these may be wrong.
    """
    n = min((_known_steps(rank) for rank in ranks), default=0)
    shifts = np.zeros(len(ranks), np.int64) if shifts_ns is None else shifts_ns
    released = released_among_ns(groups, shifts)
    new = [delays(group, ranks[group.ranks[0]].steps.train, shifts, free) for group, free in zip(groups, released, strict=True)]
    by_step, lost = np.zeros((len(ranks), n)), np.zeros(n)
    for one in new:
        known = one.step < n
        np.add.at(by_step, (one.rank[known], one.step[known]), one.by_ns[known])
        np.maximum(lost, np.bincount(one.step[known], one.by_ns[known], n), out=lost)  # groups wait side by side
    times = [rank.steps.train.time_ns[:n] for rank in ranks]
    longest = reduce(np.maximum, times, np.zeros(n, np.int64))
    step_ns, spent_ns = float(np.median(longest)) if n else 0.0, sum(int(time.sum()) for time in times)
    rows = [
        {"rank": rank.rank, "host": rank.host, "late_s": float(late.mean()) * _NS if n else 0.0, "last": 0.0}
        for rank, late in zip(ranks, by_step, strict=True)
    ]
    part = {
        "groups": [
            {
                "group": g.name,
                "ranks": [ranks[i].rank for i in g.ranks],
                "n": len(g.names),
                "bytes": int(g.bytes[g.bytes > 0].sum()),
                "waited_s": sum(_waited_ns(ranks[i], g.name) for i in g.ranks) * _NS / len(g.ranks),
            }
            for g in groups
        ],
        "kinds": _kinds(groups, ranks),
        "ranks": rows,
        "late": None,
        "clock_error_s": None if error_ns is None else error_ns * _NS,
        "waited": {"time_s": 0.0, "share": 0.0},
        "in_backward": {"time_s": 0.0, "share": 0.0, "of_backward": 0.0},
        "over_time": None,
    }
    if not n or not step_ns:
        return part
    counts = np.bincount(np.argmax(by_step, axis=0)[lost >= _NOTICED * step_ns], minlength=len(ranks))
    for row, count in zip(rows, counts.tolist(), strict=True):
        row["last"] = count / n
    width = max(n // _STRETCHES, 1)
    stretches, lasts = _stretches(lost[None], width)[0], _lasts(times, width)
    usual = _usual(stretches)
    waited_ns, mean_ns = float(stretches[usual].mean()), float(lasts[:, usual].mean(axis=1).max())
    part["waited"] = {"time_s": waited_ns * _NS, "share": min(waited_ns / mean_ns, 1.0)}
    begun = {i: rank.collectives for i, rank in enumerate(ranks) if rank.collectives is not None}
    waits_ns, passes_ns = (sum(one.backward_ns[i] for one in begun.values()) for i in (0, 1))
    part["in_backward"] = {
        "time_s": waits_ns * _NS / (n * len(ranks)), "share": waits_ns / max(spent_ns, 1), "of_backward": waits_ns / max(passes_ns, 1),
    }  # fmt: skip
    part["over_time"] = _over_time(by_step, ranks[0].steps.train, begun_ns)
    starved = {i: one.starved for i, one in begun.items() if one.starved is not None}
    late = _late(ranks, new, by_step, lost, times, timelines, counts / n, starved)
    if late is not None and error_ns is not None and late["time_s"] > error_ns * _NS:  # else the clocks may be all that differs
        part["late"] = late
    return part


def _known_steps(rank: Rank) -> int:
    """How many steps of training are over before it is no longer known what the rank began: fewer than all if it was killed."""
    train, until = rank.steps.train, rank.collectives.until_ns if rank.collectives is not None else None
    return len(train) if until is None else int(np.searchsorted(train.start_ns + train.time_ns, until, side="right"))


def _waited_ns(rank: Rank, group: str) -> int:
    own = rank.collectives
    return 0 if own is None else sum(ns for (name, _, _), ns in zip(own.kinds, own.exposed_ns, strict=False) if name == group)


def _kinds(groups: Sequence[Group], ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """By name of collective how many an average rank began in all groups, their bytes, and what it waited for them; most bytes first."""
    rows: dict[str, dict[str, Any]] = {}
    for group in groups:
        for name in np.unique(group.names).tolist():
            own = group.names == name
            row = rows.setdefault(name, {"name": name, "n": 0, "bytes": 0, "waited_s": 0.0})
            row["n"] += int(own.sum()) * len(group.ranks)
            row["bytes"] += int(np.maximum(group.bytes[own], 0).sum()) * len(group.ranks)
    for rank in ranks:
        if rank.collectives is not None:
            for (_, name, _), waited_ns in zip(rank.collectives.kinds, rank.collectives.exposed_ns, strict=False):
                if name in rows:
                    rows[name]["waited_s"] += waited_ns * _NS / len(ranks)
    for row in rows.values():
        row.update({key: round(row[key] / len(ranks)) for key in ("n", "bytes")})
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def _over_time(by_step: Array, train: Table, begun_ns: int) -> dict[str, Any]:
    """``waited``: by rank and bin of time the share of it that the others wait for it; ``begin_s``, since the run began; ``bin_s``."""
    n = by_step.shape[1]
    steps = train.chosen(slice(0, n))
    lasts = int(steps.start_ns[-1] + steps.time_ns[-1] - steps.start_ns[0])
    bins = min(_MOST_CELLS, n)
    waited = [shares(steps, late, bins).round(4).tolist() if late.any() else [0.0] * bins for late in by_step]
    return {"begin_s": (int(steps.start_ns[0]) - begun_ns) * _NS, "bin_s": lasts / bins * _NS, "waited": waited}


def shares(steps: Table, spent_ns: Array, bins: int) -> Array:
    """Which share of each bin of time, from the first step to the end of the last, was spent on something; shape (bins,).

    Args:
        steps: In their order.
        spent_ns: On what each spent how much of its time, evenly; shape (n,).
    """
    start, end = steps.start_ns, np.minimum(steps.start_ns + steps.time_ns, np.append(steps.start_ns[1:], np.iinfo(np.int64).max))
    after = np.cumsum(spent_ns)
    edges = np.linspace(start[0], end[-1], bins + 1)
    until = np.interp(edges, np.stack((start, end), 1).ravel(), np.stack((after - spent_ns, after), 1).ravel())
    found: Array = np.diff(until) / max((end[-1] - start[0]) / bins, 1.0)
    return np.minimum(found, 1.0)


def _stretches(values: Array, width: int) -> Array:
    """Means over as many steps; shape (ranks, stretches). A last stretch may be shorter."""
    edges = np.arange(0, values.shape[1], width)
    lengths = np.diff(np.append(edges, values.shape[1]))
    means: Array = np.add.reduceat(values, edges, axis=1) / lengths
    return means


def _lasts(times_ns: Sequence[Array], width: int) -> Array:
    """The same of how long the steps of each rank last."""
    return np.concatenate([_stretches(time[None], width) for time in times_ns])


def _usual(values: Array) -> Array:
    """Which of them are left without the tenths that are least and most, for a mean: what comes back every few steps is in some oftener."""
    tenth = len(values) // 10
    chosen: Array = np.argsort(values, kind="stable")[tenth : len(values) - tenth]
    return chosen


def _late(
    ranks: Sequence[Rank],
    new: Sequence[Delays],
    by_step: Array,
    lost: Array,
    times_ns: Sequence[Array],
    timelines: Timelines,
    last: Array,
    starved: Mapping[int, float],
) -> dict[str, Any] | None:
    """The rank that the others wait for in most of the run, by as much as matters, and what it does then; None if there is none."""
    n = by_step.shape[1]
    if n < FEW_IN_STEP:
        return None
    width = max(n // _STRETCHES, 1)
    stretches, lasts = _stretches(by_step, width), _lasts(times_ns, width)
    lasted = lasts.max(axis=0)  # where gradients are accumulated a rank waits in other steps than another one is late in
    rank = int(np.argmax(np.median(stretches, axis=1)))
    others = np.delete(stretches, rank, axis=0)
    excess = stretches[rank] - np.sort(others, axis=0)[(len(others) - 1) // 2]
    usual = _usual(excess)
    late_ns = float(excess[usual].mean())
    step_ns = float(lasts[:, usual].mean(axis=1).max())
    share = late_ns / step_ns
    often = int((excess >= STRAGGLES * lasted).sum())
    contended = max((starved.get(i, 1.0) for i in range(len(ranks))), default=1.0) >= _CONTENDED
    meetings = sum(int(one.group.waited_for[one.at[one.step < n]].sum()) for one in new if rank in one.group.ranks) / n  # a step
    least_ns = _SLICE_NS * max(math.sqrt(meetings), 1.0) if contended else _LEAST_NS  # what chance makes of each adds up like that
    if share < STRAGGLES or often < LATE_IN * len(excess) or late_ns < least_ns:
        return None
    rivals = int((np.max(others, axis=0) - stretches[rank] >= STRAGGLES * lasted).sum())
    if _by_chance(often, often + rivals, len(by_step)) > _CHANCE:
        return None
    if by_step[rank].sum() < _CAUSES * lost.sum():
        return None
    spent = sum((causes_ns(one, rank, timelines) for one in new if rank in one.group.ranks), np.zeros(1))
    column = int(np.argmax(spent))
    place = _place(new, rank)
    phase = _COLUMNS[column]
    theirs = np.sort([value for one, value in starved.items() if one != rank])
    more = starved.get(rank, 0.0) - theirs[(len(theirs) - 1) // 2] if len(theirs) else 0.0
    if column in _COMPUTING and more * step_ns >= late_ns / 2:
        phase = "processor"
    return {
        "rank": ranks[rank].rank, "host": ranks[rank].host, "share": share, "time_s": late_ns * _NS,
        "steps": float(last[rank]), "phase": "other" if phase == "rest" else phase, "of_it": float(spent[column] / max(spent.sum(), 1)),
        "collective": place,
    }  # fmt: skip


def _by_chance(often: int, of: int, ranks: int) -> float:
    """How likely one of some ranks is late in so many stretches or more of those with a late rank, where each is as likely to be it."""
    return float(sum(math.comb(of, n) * (ranks - 1) ** (of - n) for n in range(often, of + 1)) / ranks**of)


def _place(new: Sequence[Delays], rank: int) -> str:
    """The collective to which a rank brings most of its delay."""
    found: dict[str, int] = {}
    for one in new:
        names = one.names
        for name in np.unique(names).tolist():
            found[name] = found.get(name, 0) + int(one.by_ns[(one.rank == rank) & (names == name)].sum())
    return max(found, key=found.__getitem__, default="")


def exposed_communication(part: Mapping[str, Any], phases: Sequence[str]) -> Iterator[Evidence]:
    """What backward waits for other ranks at its end."""
    waits = part["in_backward"]
    of_step = f"backward waits at its end for {duration(waits['time_s'])} ({waits['share']:.0%} of a step)"
    yield Evidence(of_step if waits["share"] >= _NOTICED else "", waits.get("of_backward", 0.0))


def late_rank(part: Mapping[str, Any], phases: Sequence[str]) -> Iterator[Evidence]:
    """The rank that the others wait for; without a share and details where it is not the same one in most steps."""
    late, waited = part.get("late"), part["waited"]
    if late is not None:
        by = f"{duration(late['time_s'])} ({late['share']:.0%} of a step)"
        yield Evidence(f"it enters {late['collective']} last in {late['steps']:.0%} of the steps, by {by}", late["share"], details=late)
    elif waited["share"] >= STRAGGLES:  # what one has to do more would be a part of it on each
        of_step = f"{duration(waited['time_s'])} ({waited['share']:.0%}) of a step"
        yield Evidence(
            f"{of_step} the ranks wait for the one that comes last: {whom(part)}",
            0.0,
            _EVEN,
            waited["share"] * (1 - 1 / len(part["ranks"])),
        )
    elif not only_called(part):  # else they may wait for each other where nobody looks
        yield Evidence("", 0.0)


def whom(part: Mapping[str, Any]) -> str:
    """Whom the ranks wait for where none is named a straggler."""
    whole, most = sum(row["late_s"] for row in part["ranks"]), max(part["ranks"], key=lambda row: row["late_s"])
    error_s = part["clock_error_s"]
    if error_s is None or 0 < most["late_s"] <= error_s:  # the clocks may be all that differs
        return "which one it is the clocks of the hosts cannot tell"
    if whole and most["late_s"] >= _CAUSES * whole:
        return f"mostly rank {most['rank']}, but in too few of the steps or too little of the run to name it a straggler"
    return "it is not the same one in most steps"


def only_called(part: Mapping[str, Any]) -> bool:
    """Whether only what the script calls itself is known: there was no flight recorder."""
    return all(group["group"].endswith(CALLED) for group in part["groups"])
