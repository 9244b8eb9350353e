"""Computes how long ranks wait for each other, and for which rank, from the recorded collectives.

``analyse_matching`` matches the collectives that the ranks of a group have in common.
``analyse_delays`` finds the rank that began each collective last, and how much of its delay is new.
``analyse_straggler`` finds the rank that is late in most of the run, and what it does meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.nesting import Array
from voirkit.analysis.phases import KIND, Records, meanings, training_threads
from voirkit.analysis.run_steps import records
from voirkit.analysis.steps import Table
from voirkit.analysis.verdict.evidence import Evidence
from voirkit.report import duration
from voirkit.report.sections import begin_ns
from voirkit.runs.opened import Run
from voirkit.runs.thresholds import STRAGGLES
from voirkit_instruments.ranks.analyse_delays import Delays, delays, released_among_ns
from voirkit_instruments.ranks.analyse_matching import Group, aligned, matched
from voirkit_instruments.ranks.analyse_straggler import (
    CAUSES,
    StepDelays,
    Timeline,
    Timelines,
    find_straggler,
    stretch_durations,
    stretch_means,
    stretch_width,
    timeline,
    usual_stretches,
)

CALLED = " (calls)"  # suffix of a group's name if only the script's own calls are known
_MOST_CELLS = 120  # bins of time in the heat map
_EVEN = (
    "Give each rank as much to do in every step: samples of like length or size in a batch, as many"
    " workers, no work that single ranks do by turns."
)
_NOTICED = 0.02  # minimum delay, as a share of a step, for a rank to count as last
_NS = 1e-9


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return ``collectives`` of the summary; None if fewer than two ranks recorded collectives."""
    members = [rank for rank in ranks if not rank.alone]

    def timelines(indices: Collection[int]) -> Mapping[int, Timeline]:
        """Read the timelines of some ranks. Only few are needed, and they are large."""
        # Rank 0's files are read too: they hold processes that learnt their rank after they
        # started.
        files = {members[i].rank for i in indices} | {0}
        of_process = {process: i for i in indices for process in members[i].processes[-1:]}
        read = partial(_timelines_of_run, set(of_process))
        parts = [part for run in runs for part in run.map_ranks(read, files)]
        return {of_process[process]: line for part in parts for process, line in part.items()}

    clocks = {process.host: process.offset_ns for run in runs for process in run.processes()}
    times = [rank.collectives.begun_ns for rank in members if rank.collectives is not None]
    first = min((int(begun_ns[0]) for begun_ns in times if len(begun_ns)), default=0)
    part = _summarise_collectives(members, timelines, clocks, begin_ns(runs[0], first))
    return None if part is None else {"collectives": part}


def summarise_live(
    ranks: Sequence[Rank], phases: Records, clocks: Mapping[str, int]
) -> Mapping[str, Any] | None:
    """Return ``collectives`` for the last steps of a run in progress; see
    ``voirkit.instrument.Instrument``."""
    of_process = {process: i for i, rank in enumerate(ranks) for process in rank.processes}
    lines = _timelines(set(of_process), phases)
    by_rank = {of_process[process]: line for process, line in lines.items()}
    return _summarise_collectives(ranks, lambda _: by_rank, clocks)


def _summarise_collectives(
    ranks: Sequence[Rank], timelines: Timelines, clocks: Mapping[str, int], begun_ns: int = 0
) -> dict[str, Any] | None:
    """Return ``collectives``. ``clocks``: for each host, the offset to a common clock, in ns."""
    groups = matched(
        {i: rank.collectives for i, rank in enumerate(ranks) if rank.collectives is not None}
    )
    if not groups:
        return None
    hosts = [rank.host for rank in ranks]
    first_clock = clocks.get(hosts[0], 0)
    offsets = [clocks.get(host, 0) - first_clock for host in hosts]
    shifts, error = aligned(groups, hosts, offsets)
    return document(ranks, groups, timelines, begun_ns, shifts, error)


def _timelines_of_run(
    processes: Collection[tuple[str, int]], run: Run
) -> dict[tuple[str, int], Timeline]:
    return _timelines(processes, records(run, KIND))


def _timelines(
    processes: Collection[tuple[str, int]], phases: Records
) -> dict[tuple[str, int], Timeline]:
    """Return the timelines of those of the given processes that have records."""
    lines = {}
    for number, (_, host, pid) in enumerate(phases.processes):
        if (host, pid) not in processes:
            continue
        threads = training_threads(phases, number)
        if threads:
            meaning = meanings(phases.names)[phases.name[threads[0]]]
            is_phase = meaning >= 0
            spans = threads[0][is_phase]
            lines[host, pid] = timeline(
                phases.start_ns[spans], phases.duration_ns[spans], meaning[is_phase]
            )
    return lines


def document(
    ranks: Sequence[Rank],
    groups: Sequence[Group],
    timelines: Timelines,
    begun_ns: int = 0,
    shifts_ns: Array | None = None,
    error_ns: int | None = 0,
) -> dict[str, Any]:
    """Return ``collectives`` of the summary; see docs/distributed.md.

    Args:
        ranks: The ranks of the run.
        groups: The groups of ranks, with their matched collectives.
        timelines: The function that reads the timelines of ranks.
        begun_ns: The time at which the run began, on the clock of its records.
        shifts_ns: Clock offsets of the ranks as ``aligned`` returns them; None for a single host.
        error_ns: The possible error of ``shifts_ns``; None if it is not known.
    """
    n_steps = min((_count_known_steps(rank) for rank in ranks), default=0)
    shifts = np.zeros(len(ranks), np.int64) if shifts_ns is None else shifts_ns
    released = released_among_ns(groups, shifts)
    delays_by_group = [
        delays(group, ranks[group.ranks[0]].steps, shifts, free)
        for group, free in zip(groups, released, strict=True)
    ]
    by_step = _delays_by_step(ranks, delays_by_group, n_steps)
    step_ns = 0.0
    if n_steps:
        longest = reduce(np.maximum, by_step.durations_ns, np.zeros(n_steps, np.int64))
        step_ns = float(np.median(longest))
    rows = _rank_rows(ranks, by_step)
    part = {
        "groups": [_group_row(group, ranks) for group in groups],
        "kinds": _kinds(groups, ranks),
        "ranks": rows,
        "late": None,
        "clock_error_s": None if error_ns is None else error_ns * _NS,
        "waited": {"time_s": 0.0, "share": 0.0},
        "in_backward": {"time_s": 0.0, "share": 0.0, "of_backward": 0.0},
        "over_time": None,
    }
    if not step_ns:
        return part
    is_noticed = by_step.lost_ns >= _NOTICED * step_ns
    last = np.argmax(by_step.late_ns, axis=0)[is_noticed]
    last_share = np.bincount(last, minlength=len(ranks)) / n_steps
    for row, share in zip(rows, last_share.tolist(), strict=True):
        row["last"] = share
    part["waited"] = _waited(by_step)
    part["in_backward"] = _waited_in_backward(ranks, by_step)
    part["over_time"] = _over_time(by_step.late_ns, ranks[0].steps.train, begun_ns)
    straggler = find_straggler(ranks, delays_by_group, by_step, timelines, last_share)
    # Not reported if the delay is within the error of the clocks.
    if straggler is not None and error_ns is not None and straggler["time_s"] > error_ns * _NS:
        part["late"] = straggler
    return part


def _count_known_steps(rank: Rank) -> int:
    """Count the training steps of a rank that ended before ``until_ns``, the time until which its
    collectives are known. These are not all steps if the rank was killed."""
    train = rank.steps.train
    if rank.collectives is None or rank.collectives.until_ns is None:
        return len(train)
    return int(np.searchsorted(train.end_ns, rank.collectives.until_ns, side="right"))


def _delays_by_step(
    ranks: Sequence[Rank], delays_by_group: Sequence[Delays], n_steps: int
) -> StepDelays:
    late, lost = np.zeros((len(ranks), n_steps)), np.zeros(n_steps)
    for group_delays in delays_by_group:
        is_known = group_delays.step < n_steps
        step, by_ns = group_delays.step[is_known], group_delays.by_ns[is_known]
        np.add.at(late, (group_delays.rank[is_known], step), by_ns)
        # Groups wait at the same time, so a step loses only the longest delay.
        np.maximum(lost, np.bincount(step, by_ns, n_steps), out=lost)
    return StepDelays(late, lost, [rank.steps.train.time_ns[:n_steps] for rank in ranks])


def _group_row(group: Group, ranks: Sequence[Rank]) -> dict[str, Any]:
    waited_ns = sum(_waited_ns(ranks[i], group.name) for i in group.ranks)
    n_bytes = int(group.bytes[group.bytes > 0].sum())
    return {
        "group": group.name,
        "ranks": [ranks[i].rank for i in group.ranks],
        "n": len(group.names),
        "bytes": n_bytes,
        "waited_s": waited_ns * _NS / len(group.ranks),
    }


def _waited_ns(rank: Rank, group: str) -> int:
    """Return the time that a rank waited for the collectives of a group, in ns."""
    if rank.collectives is None:
        return 0
    waits = zip(rank.collectives.kinds, rank.collectives.exposed_ns, strict=False)
    return sum(exposed_ns for (name, _, _), exposed_ns in waits if name == group)


def _rank_rows(ranks: Sequence[Rank], by_step: StepDelays) -> list[dict[str, Any]]:
    n_steps = by_step.late_ns.shape[1]
    return [
        {
            "rank": rank.rank,
            "host": rank.host,
            "late_s": float(late_ns.mean()) * _NS if n_steps else 0.0,
            "last": 0.0,
        }
        for rank, late_ns in zip(ranks, by_step.late_ns, strict=True)
    ]


def _waited(by_step: StepDelays) -> dict[str, float]:
    """Return ``waited``: the time that a typical step waits for the last rank, in seconds and as a
    share of the step."""
    width = stretch_width(len(by_step.lost_ns))
    lost = stretch_means(by_step.lost_ns[None], width)[0]
    durations = stretch_durations(by_step.durations_ns, width)
    usual = usual_stretches(lost)
    waited_ns = float(lost[usual].mean())
    mean_ns = float(durations[:, usual].mean(axis=1).max())
    return {"time_s": waited_ns * _NS, "share": min(waited_ns / mean_ns, 1.0)}


def _waited_in_backward(ranks: Sequence[Rank], by_step: StepDelays) -> dict[str, float]:
    """Return ``in_backward``: the time that an average step waits for other ranks at the end of the
    backward pass; in seconds, as a share of the step, and as a share of the backward pass."""
    passes = [rank.collectives.backward_ns for rank in ranks if rank.collectives is not None]
    waits_ns = sum(wait_ns for wait_ns, _ in passes)
    backward_ns = sum(pass_ns for _, pass_ns in passes)
    steps_ns = sum(int(durations_ns.sum()) for durations_ns in by_step.durations_ns)
    n_steps = by_step.late_ns.size
    return {
        "time_s": waits_ns * _NS / n_steps,
        "share": waits_ns / max(steps_ns, 1),
        "of_backward": waits_ns / max(backward_ns, 1),
    }


def _kinds(groups: Sequence[Group], ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """Return for each kind of collective (``all_reduce`` ...) its number, its bytes and the time
    waited for it, per rank on average over all groups; most bytes first."""
    rows: dict[str, dict[str, Any]] = {}
    for group in groups:
        for name in np.unique(group.names).tolist():
            is_named = group.names == name
            n_bytes = int(np.maximum(group.bytes[is_named], 0).sum())
            row = rows.setdefault(name, {"name": name, "n": 0, "bytes": 0, "waited_s": 0.0})
            row["n"] += int(is_named.sum()) * len(group.ranks)
            row["bytes"] += n_bytes * len(group.ranks)
    for rank in ranks:
        if rank.collectives is None:
            continue
        waits = zip(rank.collectives.kinds, rank.collectives.exposed_ns, strict=False)
        for (_, name, _), waited_ns in waits:
            if name in rows:
                rows[name]["waited_s"] += waited_ns * _NS / len(ranks)
    for row in rows.values():
        row["n"] = round(row["n"] / len(ranks))
        row["bytes"] = round(row["bytes"] / len(ranks))
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def _over_time(late_ns: Array, train: Table, begun_ns: int) -> dict[str, Any]:
    """Return ``waited``: for each rank and bin of time, the share of the bin in which other ranks
    wait for it; ``begin_s``, the start since the run began; ``bin_s``, the width of a bin."""
    n_steps = late_ns.shape[1]
    steps = train.chosen(slice(0, n_steps))
    first_ns = int(steps.start_ns[0])
    n_bins = min(_MOST_CELLS, n_steps)
    waited = []
    for rank_late_ns in late_ns:
        if rank_late_ns.any():
            waited.append(shares(steps, rank_late_ns, n_bins).round(4).tolist())
        else:
            waited.append([0.0] * n_bins)
    return {
        "begin_s": (first_ns - begun_ns) * _NS,
        "bin_s": (int(steps.end_ns[-1]) - first_ns) / n_bins * _NS,
        "waited": waited,
    }


def shares(steps: Table, spent_ns: Array, bins: int) -> Array:
    """Return the share of each bin of time that was spent on an activity; shape (bins,). The bins
    divide the time from the first step to the end of the last.

    Args:
        steps: The steps, in order of time.
        spent_ns: The time spent on the activity in each step, taken as evenly spread over the step;
            shape (n,).
    """
    start = steps.start_ns
    next_start = np.append(start[1:], np.iinfo(np.int64).max)
    end = np.minimum(steps.end_ns, next_start)
    after = np.cumsum(spent_ns)
    edges = np.linspace(start[0], end[-1], bins + 1)
    instants = np.stack((start, end), 1).ravel()
    amounts = np.stack((after - spent_ns, after), 1).ravel()
    amount_until = np.interp(edges, instants, amounts)
    bin_ns = max((end[-1] - start[0]) / bins, 1.0)
    share: Array = np.diff(amount_until) / bin_ns
    return np.minimum(share, 1.0)


def exposed_communication(part: Mapping[str, Any], phases: Sequence[str]) -> Iterator[Evidence]:
    """Yield the evidence for waiting for other ranks at the end of the backward pass."""
    waits = part["in_backward"]
    of_step = (
        f"backward waits at its end for {duration(waits['time_s'])} ({waits['share']:.0%} of a"
        " step)"
    )
    yield Evidence(of_step if waits["share"] >= _NOTICED else "", waits.get("of_backward", 0.0))


def late_rank(part: Mapping[str, Any], phases: Sequence[str]) -> Iterator[Evidence]:
    """Yield the evidence for a rank that the other ranks wait for. If it is not the same rank in
    most steps, the evidence has neither a share nor details."""
    late, waited = part.get("late"), part["waited"]
    if late is not None:
        by = f"{duration(late['time_s'])} ({late['share']:.0%} of a step)"
        yield Evidence(
            f"it enters {late['collective']} last in {late['steps']:.0%} of the steps, by {by}",
            late["share"],
            details=late,
        )
    elif waited["share"] >= STRAGGLES:
        of_step = f"{duration(waited['time_s'])} ({waited['share']:.0%}) of a step"
        yield Evidence(
            f"{of_step} the ranks wait for the one that comes last: {whom(part)}",
            0.0,
            _EVEN,
            # Spread evenly, the extra work would still cost each rank its part of this time.
            waited["share"] * (1 - 1 / len(part["ranks"])),
        )
    elif not only_called(part):  # if only calls are known, waits may be unrecorded
        yield Evidence("", 0.0)


def whom(part: Mapping[str, Any]) -> str:
    """Describe which ranks the other ranks wait for, in a run without a straggler."""
    all_late_s = sum(row["late_s"] for row in part["ranks"])
    latest = max(part["ranks"], key=lambda row: row["late_s"])
    error_s = part["clock_error_s"]
    # the delay is within the error of the clocks
    if error_s is None or 0 < latest["late_s"] <= error_s:
        return "which one it is the clocks of the hosts cannot tell"
    if all_late_s and latest["late_s"] >= CAUSES * all_late_s:
        return (
            f"mostly rank {latest['rank']}, but in too few of the steps or too little of the run to"
            " name it a straggler"
        )
    return "it is not the same one in most steps"


def only_called(part: Mapping[str, Any]) -> bool:
    """True if only collectives that the script called itself are known, since torch's flight
    recorder was not available."""
    return all(group["group"].endswith(CALLED) for group in part["groups"])
