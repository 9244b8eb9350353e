"""From the collectives that each rank has begun to who came last, by how much, and what it did meanwhile.

Nobody leaves a collective before all have entered it, so that who enters last makes the others wait. Ranks that have waited for each
other at the collective before went on together, when the last had begun it; else each went on when it had begun it itself. They have
waited if each began this one after the last had begun that one, unless that was a reduction within the same backward pass: DDP and FSDP
begin those and wait for them at its end. Who took longest from there on is late anew; what it was late by already is not counted twice.

What a late rank did is its time by phase since then, against that of a usual other rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import NONE, Array, innermost, outer_first
from voirkit.analysis.phases import KIND, Records, meanings, training_thread
from voirkit.analysis.run_steps import records
from voirkit.analysis.steps import BACKWARD, FORWARD, LOSS, OPTIMIZER, PARTS, REST, Table
from voirkit.analysis.verdict.evidence import Evidence
from voirkit.report import duration
from voirkit.report.sections import begin_ns
from voirkit.runs.summary import PHASES
from voirkit.runs.thresholds import FEW_IN_STEP, LATE_IN, STRAGGLES

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

COLLECTIVE = "collective"  # kind of the records
# In backward they are begun as soon as gradients are there, and waited for at its end.
REDUCTIONS = ("all_reduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced")
CALLED = " (calls)"  # ends the name of a group of which only what the script calls itself is known
_COLUMNS = (*PHASES[:-1], *PARTS)
_STRETCHES = 16  # into as many is a run divided: who is late in most of them is late
_MOST_CELLS = 120  # bins of time in the heat map
_MOST_OTHERS = 8  # that a late rank is held against
_CHANCE = 0.02  # the most likely by chance that a rank is named for
_CAUSES = 0.75  # of all waiting: who causes less is one of several
_LEAST_NS = 1_000_000  # about what it takes until a thread that could go on does, where ranks share processors
_EVEN = (
    "Give each rank as much to do in every step: samples of like length or size in a batch, as many workers, no work that single ranks do "
    "by turns."
)
_COMPUTING = (FORWARD, BACKWARD, OPTIMIZER, LOSS, REST)  # what is slow where others have the processor
_NO_PROCESSOR = ("processor", "waited")
_NOTICED = 0.02  # of a step: who is late by less is not counted as last
_NS = 1e-9


@dataclass(frozen=True)
class Timeline:
    """What the training thread of a rank did when; boundaries ascending, shape (n,).

    Attributes:
        at_ns: From when on.
        column: What it did from then until the next boundary: index into wait, transfer … rest.
        backward: The backward pass that the boundary lies in, -1 for none.
        passes_ns: When each backward pass began and ended; shape (2, passes).
    """

    at_ns: Array
    column: Array
    backward: Array
    passes_ns: Array

    def spent_ns(self, column: int, begin_ns: Array, end_ns: Array) -> Array:
        """Time in a column between instants; shape of these."""
        inside = (self.column == column).astype(np.int64)
        total = np.concatenate(([0], np.cumsum(np.diff(self.at_ns) * inside[:-1])))

        def until(at_ns: Array) -> Array:
            i = np.maximum(np.searchsorted(self.at_ns, at_ns, side="right") - 1, 0)
            return total[i] + np.maximum(at_ns - self.at_ns[i], 0) * inside[i]

        spent: Array = until(end_ns) - until(begin_ns)
        return spent

    def backward_at(self, at_ns: Array) -> Array:
        """Which backward pass each instant lies in, -1 for none."""
        return self.backward[np.maximum(np.searchsorted(self.at_ns, at_ns, side="right") - 1, 0)]


def waited_in_backward_ns(timeline: Timeline, reductions_ns: Array) -> int:
    """What backward passes wait for other ranks at their end.

    Gradients are reduced as soon as they are there: with the last reduction of a pass its computing is over, and it waits for them all.

    Args:
        timeline: Of a rank.
        reductions_ns: When it began reductions, ascending.
    """
    begin, end = timeline.passes_ns
    if not len(reductions_ns):
        return 0
    at = np.searchsorted(reductions_ns, end, side="right") - 1
    last = reductions_ns[np.maximum(at, 0)]
    return int((end - last)[(at >= 0) & (last >= begin)].sum())


def timeline(start_ns: Array, duration_ns: Array, meaning: Array) -> Timeline:
    """The timeline of spans that lie in each other; arrays of shape (n,), in any order, ``meaning`` an index of a column."""
    order = outer_first(start_ns, duration_ns)
    start, end, meaning = start_ns[order], (start_ns + duration_ns)[order], meaning[order]
    at = np.unique(np.concatenate((start, end)))
    owner = innermost(start, end, at)
    passes = np.flatnonzero(meaning == BACKWARD)
    within = innermost(start[passes], end[passes], at)
    return Timeline(at, np.where(owner == NONE, REST, meaning[owner]), within, np.stack((start[passes], end[passes])))


@dataclass(frozen=True)
class Group:
    """The collectives that all ranks of a group have begun, in their order.

    Attributes:
        name: Of the group.
        ranks: Indices of its members, ascending.
        begun_ns: When each member began each; shape (members, n).
        names: What each was; shape (n,).
        bytes: What each rank passed in; -1: not known. Same shape.
    """

    name: str
    ranks: tuple[int, ...]
    begun_ns: Array
    names: Array
    bytes: Array


def matched(rank: Array, begun_ns: Array, group: Array, number: Array, name: Array, bytes_: Array, names: Sequence[str]) -> list[Group]:
    """The collectives of each group of two ranks or more.

    Args:
        rank: Whose each record is, from 0; as all that follow of shape (n,).
        begun_ns: When it was begun.
        group: Index into ``names``.
        number: Of the collective in its group.
        name: What it is, a text.
        bytes_: What was passed in.
        names: Of the groups.
    """
    found = []
    for code in np.unique(group).tolist():
        own = np.flatnonzero(group == code)
        members = np.unique(rank[own])
        if len(members) < 2:
            continue
        numbers, of_number = np.unique(number[own], return_inverse=True)
        at = np.full((len(members), len(numbers)), -1, dtype=np.int64)
        row = np.searchsorted(members, rank[own])
        at[row, of_number] = own
        whole = (at >= 0).all(axis=0)
        if whole.any():
            at = at[:, whole]
            found.append(Group(names[code], tuple(members.tolist()), begun_ns[at], name[at[0]], bytes_[at[0]]))
    return found


def released_ns(begun_ns: Array, waited_for: Array) -> Array:
    """When each rank could go on after the collective before: where all have waited for each other, when the last had begun it.

    Args:
        begun_ns: When each rank began each; shape (ranks, n).
        waited_for: Whether each was waited for before the next one was begun, where the ranks' clocks allow it; shape (n,).

    Returns:
        Shape (ranks, n); of the first collective when it was begun.
    """
    released: Array = begun_ns.copy()
    last = begun_ns[:, :-1].max(axis=0)
    met = waited_for[:-1] & (begun_ns[:, 1:].min(axis=0) >= last)
    released[:, 1:] = np.where(met, last, begun_ns[:, :-1])
    return released


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
    others = np.sort(np.where(np.arange(len(took))[:, None] == late, np.iinfo(np.int64).max, took), axis=0)[(len(took) - 2) // 2]
    return late, np.maximum(took[late, at] - others, 0)


@dataclass(frozen=True)
class Delays:
    """New delays in steps of training, one a collective of a group; arrays of shape (n,), or (members, n).

    Attributes:
        group: Of which.
        names: What each was.
        step: In which step it was begun.
        rank: Index of the rank that came last.
        by_ns: By how much that is new.
        from_ns: When each member could go on after the collective before.
        until_ns: When it began this one.
    """

    group: Group
    names: Array
    step: Array
    rank: Array
    by_ns: Array
    from_ns: Array
    until_ns: Array


def waited_for(group: Group, timeline: Timeline) -> Array:
    """Which collectives of a group its ranks waited for before they began the next one, by the timeline of its first member; shape (n,)."""
    passes = timeline.backward_at(group.begun_ns[0])
    waits = np.ones(len(passes), dtype=bool)
    waits[:-1] = ~(np.isin(group.names[:-1], REDUCTIONS) & (passes[:-1] >= 0) & (passes[:-1] == passes[1:]))
    return waits


def delays(group: Group, timeline: Timeline, train: Table, shifts_ns: Array) -> Delays:
    """The new delays of a group.

    Args:
        group: Which.
        timeline: Of its first member.
        train: The steps of training of that.
        shifts_ns: What is to be added to times of each rank of the run for those of the first one; shape (ranks,).
    """
    shifts = shifts_ns[list(group.ranks)][:, None]
    begun, first = group.begun_ns + shifts, group.begun_ns[0]
    released = released_ns(begun, waited_for(group, timeline))
    late, by_ns = new_delays_ns(begun, released)
    step = np.searchsorted(train.start_ns, first, side="right") - 1
    inside = (step >= 0) & (first < (train.start_ns + train.time_ns)[np.maximum(step, 0)])
    inside[:1] = False  # nothing is known of what was before it
    last = np.array(group.ranks)[late[inside]]
    return Delays(
        group, group.names[inside], step[inside], last, by_ns[inside], (released - shifts)[:, inside], group.begun_ns[:, inside]
    )  # fmt: skip


def aligned(
    groups: Sequence[Group], timelines: Mapping[int, Timeline], hosts: Sequence[str], shifts_ns: Sequence[int]
) -> tuple[Array, int | None]:
    """The clocks of hosts, held against each other: no rank can begin a collective before all have begun the one that it waited for.

    Args:
        groups: Collectives.
        timelines: By index of rank.
        hosts: Of each rank.
        shifts_ns: By rank, what is to be added to its times for those of the first one, by the hosts' own wall clocks.

    Returns:
        The same, moved as far as must be, and by how much at most it may be wrong: 0 on one host, None where that cannot be told.
    """
    shifts, error = np.array(shifts_ns, dtype=np.int64), 0
    host_of = np.array(hosts)
    for number, host in enumerate(dict.fromkeys(hosts)):
        low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        earlier = list(dict.fromkeys(hosts))[:number]
        for group in groups:
            members = np.array(group.ranks)
            mine, others = host_of[members] == host, np.isin(host_of[members], earlier)
            if group.ranks[0] not in timelines or not mine.any() or not others.any():
                continue
            waits = waited_for(group, timelines[group.ranks[0]])[:-1]
            own, known = group.begun_ns[mine][:, :], group.begun_ns[others] + shifts[members[others]][:, None]
            if waits.any():
                low = max(low, int((known.max(axis=0)[:-1] - own.min(axis=0)[1:])[waits].max()))
                high = min(high, int((known.min(axis=0)[1:] - own.max(axis=0)[:-1])[waits].min()))
        if number == 0:
            continue
        if not np.iinfo(np.int64).min < low <= high:
            return shifts, None
        shift = int(np.clip(shifts[host_of == host][0], low, high))
        shifts[host_of == host] = shift
        error = max(error, high - shift, shift - low)
    return shifts, error


def causes_ns(delays: Delays, rank: int, timelines: Sequence[Timeline]) -> Array:
    """How much longer a rank spent in each column than a usual other one, before the collectives that it came last to; shape (columns,)."""
    chosen = np.flatnonzero((delays.rank == rank) & (delays.by_ns > 0))
    others = [i for i, member in enumerate(delays.group.ranks) if member != rank]
    others = [others[i] for i in np.unique(np.linspace(0, len(others) - 1, _MOST_OTHERS).astype(int))]
    own = delays.group.ranks.index(rank)
    found = np.zeros(len(_COLUMNS), dtype=np.int64)
    for column in range(len(_COLUMNS)):
        spent = [
            timelines[delays.group.ranks[i]].spent_ns(column, delays.from_ns[i, chosen], delays.until_ns[i, chosen]) for i in (own, *others)
        ]
        found[column] = int((spent[0] - np.sort(spent[1:], axis=0)[(len(others) - 1) // 2]).sum())
    return found


# the part of the summary


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``collectives`` of the summary; None where fewer than two ranks recorded any."""
    members = [rank for rank in ranks if not rank.alone]
    of_process = {process: i for i, rank in enumerate(members) for process in rank.processes}
    found, timelines, starved = read(runs, of_process)
    if not found or len(timelines) < 2:
        return None
    begun_ns = begin_ns(runs[0], min(int(one.at_ns[0]) for one in timelines.values()))
    offsets = {process.host: process.offset_ns for run in runs for process in run.processes()}
    clocks = [offsets.get(rank.host, 0) - offsets.get(members[0].host, 0) for rank in members]
    shifts, error = aligned(found, timelines, [rank.host for rank in members], clocks)
    return {"collectives": document(members, found, timelines, starved, begun_ns, shifts, error)}


def read(runs: Sequence[Run], of_process: Mapping[tuple[str, int], int]) -> tuple[list[Group], dict[int, Timeline], dict[int, float]]:
    """The groups of collectives; by index of rank the timelines, and in which share of the time it was ready to run and had no processor.

    Args:
        runs: The directories of a run.
        of_process: Index of the rank of each (host, pid).
    """
    columns: dict[str, list[Array]] = {key: [] for key in ("rank", "begun", "group", "number", "name", "bytes")}
    names: list[str] = []
    timelines: dict[int, Timeline] = {}
    starved: dict[int, float] = {}
    for run in runs:
        entries = records(run, COLLECTIVE)
        rank = np.array([of_process.get((host, pid), -1) for _, host, pid in entries.processes], dtype=np.int64)[entries.process]
        is_waiting = np.array([name == _NO_PROCESSOR for name in entries.names])[entries.name]
        starved.update(_starved(rank[is_waiting], entries.start_ns[is_waiting], entries.value[is_waiting]))
        kept = (rank >= 0) & ~is_waiting
        of_arguments = [str(arguments.get("group")) for arguments in entries.arguments]
        names += [name for name in dict.fromkeys(of_arguments) if name not in names]
        columns["rank"].append(rank[kept])
        columns["begun"].append(entries.start_ns[kept])
        columns["group"].append(np.array([names.index(name) for name in of_arguments])[entries.args[kept]])
        columns["number"].append(entries.value[kept])
        columns["name"].append(np.array([name for _, name in entries.names])[entries.name[kept]])
        columns["bytes"].append(np.array([int(arguments.get("bytes", -1)) for arguments in entries.arguments])[entries.args[kept]])
        phases = records(run, KIND)
        for number, (_, host, pid) in enumerate(phases.processes):
            chosen = training_thread(phases, number) if (host, pid) in of_process else None
            if chosen is not None:
                timelines.setdefault(of_process[host, pid], _timeline_of(phases, chosen))
    whole = {key: np.concatenate(parts) for key, parts in columns.items()}
    found = matched(whole["rank"], whole["begun"], whole["group"], whole["number"], whole["name"], whole["bytes"], names)
    return found, timelines, starved


def _starved(rank: Array, at_ns: Array, waited_ns: Array) -> Iterator[tuple[int, float]]:
    """By rank, the share of the time from its first record to its last in which it waited for a processor."""
    for one in np.unique(rank[(rank >= 0) & (waited_ns >= 0)]).tolist():
        own = np.flatnonzero(rank == one)
        own = own[np.argsort(at_ns[own], kind="stable")]
        passed = int(at_ns[own[-1]] - at_ns[own[0]])
        if passed > 0:
            yield one, float(waited_ns[own[-1]] - waited_ns[own[0]]) / passed


def _timeline_of(phases: Records, chosen: Array) -> Timeline:
    meaning = meanings(phases.names)[phases.name[chosen]]
    known = meaning >= 0
    return timeline(phases.start_ns[chosen][known], phases.duration_ns[chosen][known], meaning[known])


def document(
    ranks: Sequence[Rank],
    groups: Sequence[Group],
    timelines: Mapping[int, Timeline],
    starved: Mapping[int, float],
    begun_ns: int = 0,
    shifts_ns: Array | None = None,
    error_ns: int | None = 0,
) -> dict[str, Any]:
    """``collectives`` of the summary: see docs/distributed.md.

    Args:
        ranks: Those of the run.
        groups: Of it.
        timelines: By index of rank.
        starved: By index of rank, in which share of the time it waited for a processor.
        begun_ns: When the run began, on the clock of its records.
        shifts_ns: As ``aligned`` gives them; of one host left out.
        error_ns: By how much these may be wrong.
    """
    n = min((len(rank.steps.train) for rank in ranks), default=0)
    shifts = np.zeros(len(ranks), np.int64) if shifts_ns is None else shifts_ns
    firsts = [(group, group.ranks[0]) for group in groups if group.ranks[0] in timelines]
    new = [delays(group, timelines[first], ranks[first].steps.train, shifts) for group, first in firsts]
    by_step = np.zeros((len(ranks), n))
    for one in new:
        known = one.step < n
        np.add.at(by_step, (one.rank[known], one.step[known]), one.by_ns[known])
    times = np.stack([rank.steps.train.time_ns[:n] for rank in ranks]) if n else np.zeros((len(ranks), 0))
    step_ns = float(np.median(times.max(axis=0))) if n else 0.0
    rows = [
        {"rank": rank.rank, "host": rank.host, "late_s": float(late.mean()) * _NS if n else 0.0, "last": 0.0}
        for rank, late in zip(ranks, by_step, strict=True)
    ]
    part = {
        "groups": [
            {"group": g.name, "ranks": [ranks[i].rank for i in g.ranks], "n": len(g.names), "bytes": int(g.bytes[g.bytes > 0].sum())}
            for g in groups
        ],
        "kinds": _kinds(groups),
        "ranks": rows,
        "late": None,
        "clock_error_s": None if error_ns is None else error_ns * _NS,
        "waited": {"time_s": 0.0, "share": 0.0},
        "in_backward": {"time_s": 0.0, "share": 0.0, "of_backward": 0.0},
        "over_time": None,
    }
    if not n or not step_ns:
        return part
    lost = by_step.sum(axis=0)
    counts = np.bincount(np.argmax(by_step, axis=0)[lost >= _NOTICED * step_ns], minlength=len(ranks))
    for row, count in zip(rows, counts.tolist(), strict=True):
        row["last"] = count / n
    part["waited"] = {"time_s": float(np.median(lost)) * _NS, "share": float(np.median(lost)) / step_ns}
    waits_ns = sum(waited_in_backward_ns(one, _reductions_ns(groups, i)) for i, one in timelines.items())
    passes_ns = sum(int((one.passes_ns[1] - one.passes_ns[0]).sum()) for one in timelines.values())
    part["in_backward"] = {
        "time_s": waits_ns * _NS / times.size, "share": waits_ns / max(int(times.sum()), 1), "of_backward": waits_ns / max(passes_ns, 1),
    }  # fmt: skip
    part["over_time"] = _over_time(by_step, ranks[0].steps.train, begun_ns)
    late = _late(ranks, new, by_step, step_ns, timelines, counts / n, starved)
    if late is not None and error_ns is not None and late["time_s"] > error_ns * _NS:  # else the clocks may be all that differs
        part["late"] = late
    return part


def _reductions_ns(groups: Sequence[Group], rank: int) -> Array:
    """When a rank began reductions, ascending."""
    own = [group.begun_ns[group.ranks.index(rank)][np.isin(group.names, REDUCTIONS)] for group in groups if rank in group.ranks]
    return np.sort(np.concatenate(own)) if own else np.zeros(0, np.int64)


def _kinds(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """By name of collective how many there were and their bytes, of all groups; most bytes first."""
    rows: dict[str, dict[str, Any]] = {}
    for group in groups:
        for name in np.unique(group.names).tolist():
            own = group.names == name
            row = rows.setdefault(name, {"name": name, "n": 0, "bytes": 0})
            row["n"] += int(own.sum())
            row["bytes"] += int(np.maximum(group.bytes[own], 0).sum())
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def _over_time(by_step: Array, train: Table, begun_ns: int) -> dict[str, Any]:
    """``waited``: by rank and bin of time the share of it that the others wait for it; ``begin_s``, since the run began; ``bin_s``."""
    n = by_step.shape[1]
    first, last = int(train.start_ns[0]), int(train.start_ns[n - 1] + train.time_ns[n - 1])
    bins = min(_MOST_CELLS, n)
    bin_ns = max((last - first) / bins, 1.0)
    of_step = np.minimum(((train.start_ns[:n] - first) / bin_ns).astype(np.int64), bins - 1)
    waited = [np.minimum(np.bincount(of_step, weights=late, minlength=bins) / bin_ns, 1.0).round(4).tolist() for late in by_step]
    return {"begin_s": (first - begun_ns) * _NS, "bin_s": bin_ns * _NS, "waited": waited}


def _stretches(values: Array, width: int) -> Array:
    """Means over as many steps; shape (ranks, stretches). A last stretch may be shorter."""
    edges = np.arange(0, values.shape[1], width)
    lengths = np.diff(np.append(edges, values.shape[1]))
    means: Array = np.add.reduceat(values, edges, axis=1) / lengths
    return means


def _late(
    ranks: Sequence[Rank],
    new: Sequence[Delays],
    by_step: Array,
    step_ns: float,
    timelines: Mapping[int, Timeline],
    last: Array,
    starved: Mapping[int, float],
) -> dict[str, Any] | None:
    """The rank that the others wait for in most of the run, by as much as matters, and what it does then; None if there is none."""
    n = by_step.shape[1]
    if n < FEW_IN_STEP:
        return None
    stretches = _stretches(by_step, max(n // _STRETCHES, 1))
    rank = int(np.argmax(np.median(stretches, axis=1)))
    others = np.delete(stretches, rank, axis=0)
    excess = stretches[rank] - np.sort(others, axis=0)[(len(others) - 1) // 2]
    share = float(np.median(excess)) / step_ns
    often = int((excess >= STRAGGLES * step_ns).sum())
    if share < STRAGGLES or often < LATE_IN * len(excess) or float(np.median(excess)) < _LEAST_NS:
        return None
    if _by_chance(often, len(excess), len(by_step)) > _CHANCE:
        return None
    if by_step[rank].sum() < _CAUSES * by_step.sum():
        return None
    spent = sum((causes_ns(one, rank, [timelines[i] for i in range(len(ranks))]) for one in new if rank in one.group.ranks), np.zeros(1))
    column = int(np.argmax(spent))
    place = _place(new, rank)
    phase = _COLUMNS[column]
    usual = np.sort([value for one, value in starved.items() if one != rank])
    more = starved.get(rank, 0.0) - usual[(len(usual) - 1) // 2] if len(usual) else 0.0
    if column in _COMPUTING and more * step_ns >= float(np.median(excess)) / 2:
        phase = "processor"
    return {
        "rank": ranks[rank].rank, "host": ranks[rank].host, "share": share, "time_s": float(np.median(excess)) * _NS,
        "steps": float(last[rank]), "phase": "other" if phase == "rest" else phase, "of_it": float(spent[column] / max(spent.sum(), 1)),
        "collective": place,
    }  # fmt: skip


def _by_chance(often: int, of: int, ranks: int) -> float:
    """How likely one of some ranks is late in so many stretches or more, where each is as likely to be: the binomial distribution."""
    return sum(math.comb(of, n) * (ranks - 1) ** (of - n) for n in range(often, of + 1)) / ranks**of


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
        last = "the ranks wait for the one that comes last, which is not the same in most steps"
        yield Evidence(f"{of_step} {last}", 0.0, _EVEN, waited["share"] * (1 - 1 / len(part["ranks"])))
    elif not only_called(part):  # else they may wait for each other where nobody looks
        yield Evidence("", 0.0)


def only_called(part: Mapping[str, Any]) -> bool:
    """Whether only what the script calls itself is known: there was no flight recorder."""
    return all(group["group"].endswith(CALLED) for group in part["groups"])
