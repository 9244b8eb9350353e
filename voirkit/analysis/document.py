"""The figures of ``summary.json`` that come from steps: steps and what is uneven in them, phases,
rates, evaluation, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.significance import Estimate, median_of_steps, rate_of_steps
from voirkit.analysis.steps import (
    BACKWARD,
    COMMUNICATION,
    LOSS,
    REST,
    WAIT,
    DeviceTable,
    Steps,
    Table,
)
from voirkit.phase_table import COLUMN, COLUMNS, PARTS, PHASES
from voirkit.runs.thresholds import STRAGGLES, UNLIKE

_NS = 1e-9


@dataclass(frozen=True)
class Collectives:
    """What a process began together with other ranks; arrays of shape (n,), ascending by start.

    Ranks that train alike have the same of all but ``begun_ns``, and share it.
    """

    # (group, name, bytes that were passed in, -1 where that is not known)
    kinds: Sequence[tuple[str, str, int]]
    kind: Array  # index into ``kinds``
    number: Array  # of the collective in its group
    backward: Array  # the backward pass of the training thread that it was begun in, -1 for none
    begun_ns: Array  # on the clock of the process's host
    # how long backward passes wait for other ranks at their end, and how long they last, in all
    backward_ns: tuple[int, int] = (0, 0)
    # in which share of the time it was ready to run and had no processor; None where that is not
    # known
    starved: float | None = None
    # until when this is known: a process that is killed may have begun more; None where that is not
    # known
    until_ns: int | None = None
    # what the training thread waited for those of each kind, by index: in calls that wait, and at
    # the end of backward
    exposed_ns: Sequence[int] = ()
    # in which share of the time it had a processor; None where that is not known
    ran: float | None = None


@dataclass(frozen=True)
class Rank:
    """What one rank did."""

    rank: int  # its number
    host: str  # where it ran
    steps: Steps
    # what else is known of it and of use to a verdict: ``workers``, ``dataset``, ``batch_size``,
    # ``cpus`` of its training loader and host
    facts: Mapping[str, Any] = field(default_factory=dict)
    # (host, pid) of those that did it: of a rank that was started again there are several
    processes: tuple[tuple[str, int], ...] = ()
    # whether it is a process that trains beside others and is in no group with them; its ``rank``
    # says nothing then
    alone: bool = False
    # what the last of its processes began together with other ranks; None for nothing
    collectives: Collectives | None = None
    # of a second training of a process, at the same time as its first, the thread that does it
    thread: int = 0


def figures(ranks: Sequence[Rank]) -> dict[str, Any]:
    """``steps``, ``rates``, ``evaluation`` and ``ranks`` of a summary.

    Ranks train in step: of several, ``steps.n`` is that of one, a step's items are those of all,
    its time that of the slowest, and the phases are summed over all, so that their shares are those
    of an average rank. Checkpoints between the steps are those of the
    rank that spends most on them: the others wait for it. Processes that train each for itself have
    rows of their own (``processes``), and their steps are added up.
    """
    trained = [rank for rank in ranks if len(rank.steps.train)]
    tables = _timed(trained)
    teams = _teams(trained, tables)
    steps = _steps(teams, all(rank.steps.wait_known for rank in trained))
    devices = [rank.steps.device for rank in trained if rank.steps.device is not None]
    if devices and len(devices) == len(trained):
        steps.update(_device(devices, [rank.steps.train for rank in trained]))
    stands_out = typical(teams[0])
    if stands_out is not None:
        steps["typical"] = stands_out
    uncounted = [_uncounted(rank) for rank in ranks if rank.steps.uncounted]
    if uncounted:
        steps["uncounted"] = uncounted
    saver = max(trained, key=lambda rank: rank.steps.saving_between_ns, default=None)
    if saver and saver.steps.saving_between_ns:  # a share of the steps and these together
        saving_ns = saver.steps.saving_between_ns
        in_steps_ns = int(saver.steps.train.time_ns.sum())
        steps["checkpoints_between"] = _part(saving_ns, saving_ns + in_steps_ns)
    rows = _rows(trained, tables)
    rank_rows, process_rows = [], []
    if len(teams[0]) > 1:
        rank_rows = [row for row, rank in zip(rows, trained, strict=True) if not rank.alone]
    if len(teams) > 1:
        process_rows = list(map(_process_row, rows, trained, tables))
    evaluated = [rank for rank in ranks if len(rank.steps.evaluation)]
    return {
        "steps": steps,
        "rates": _rates(teams),
        "evaluation": _evaluation(evaluated, [r.facts for r in ranks]) if evaluated else None,
        "ranks": rank_rows,
        "processes": process_rows,
    }


def _identity(rank: Rank) -> dict[str, int | None]:
    """The number of a rank, None of a process that trains for itself, and its process, None where
    it has several."""
    pids = [pid for _, pid in rank.processes]
    number = None if rank.alone else rank.rank
    return {"rank": number, "pid": pids[0] if len(pids) == 1 else None}


def _uncounted(rank: Rank) -> dict[str, Any]:
    """What a rank or process trained in no counted step and in no evaluation."""
    uncounted = rank.steps.uncounted
    return {
        **_identity(rank),
        "thread": rank.thread or None,
        "optimizer_steps": uncounted.optimizer_steps,
        "backward_passes": uncounted.backward_passes,
        "first_ns": uncounted.first_ns,
    }


def _timed(trained: Sequence[Rank]) -> list[Table]:
    """The steps of training, on the clock of the devices where all ranks have one."""
    devices = [rank.steps.device for rank in trained]
    on_device = [device.table for device in devices if device is not None]
    return on_device if len(on_device) == len(trained) else [rank.steps.train for rank in trained]


def _evaluation(ranks: Sequence[Rank], facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of several ranks the batches of the one that has most, and the time of the one that takes
    longest; of processes that train each for themselves all of them, and their time on the clock.
    """
    tables = [rank.steps.evaluation for rank in ranks]
    teams = [team for team in _teams(ranks, tables) if team]
    longest_ns = sum(_longest_ns(team) for team in teams)
    evaluation: dict[str, Any] = {
        "n": sum(max(map(len, team)) for team in teams),
        "total_s": longest_ns * _overlap(teams) * _NS,
        "time_s": _spread(np.concatenate([table.time_ns for table in tables]), _NS),
    }
    if any(table.own_ns[:, BACKWARD].any() for table in tables):
        evaluation["takes_gradients"] = True
    share = max((of_rank.get("inference", 0.0) for of_rank in facts), default=0.0)
    if share:
        evaluation["inference"] = share
    return evaluation


def _longest_ns(team: Sequence[Table]) -> int:
    """The time of the rank that takes longest in all."""
    return max((int(table.time_ns.sum()) for table in team), default=0)


def spread(values: Array, unit: float = 1.0) -> dict[str, float] | None:
    """Median and the tenth and ninetieth percentile; None of nothing."""
    return _spread(values.copy(), unit)


def _spread(values: Array, unit: float = 1.0) -> dict[str, float] | None:
    """As ``numpy.quantile`` has it, which takes half as long again and as much memory; the values
    are put into another order.

    Args:
        values: Numbers; whole ones of 32 bits are the fastest.
        unit: What they are multiplied by in the end.
    """
    if not len(values):
        return None
    place = np.array((0.5, 0.1, 0.9)) * (len(values) - 1)
    low = place.astype(np.int64)
    high = np.minimum(low + 1, len(values) - 1)
    if values.any():
        values.partition(sorted({*low.tolist(), *high.tolist()}))
    first, second, part = values[low].astype(float), values[high].astype(float), place - low
    apart = second - first
    quantiles = np.where(part < 0.5, first + apart * part, second - apart * (1 - part)) * unit
    return dict(zip(("median", "p10", "p90"), quantiles.tolist(), strict=True))


def _teams(trained: Sequence[Rank], tables: Sequence[Table]) -> list[list[Table]]:
    """The tables of those that train in step: first of the ranks, if there are any, then of each
    process that trains for itself."""
    pairs = list(zip(trained, tables, strict=True))
    together = [table for rank, table in pairs if not rank.alone]
    teams = [together] if together or not trained else []
    return teams + [[table] for rank, table in pairs if rank.alone]


def _steps(teams: Sequence[Sequence[Table]], wait_known: bool) -> dict[str, Any]:
    tables = [table for team in teams for table in team]
    n = sum(max(map(len, team), default=0) for team in teams)
    is_counted = all((table.items >= 0).all() for table in tables)
    time_ns = np.concatenate([_slowest(table.time_ns for table in team) for team in teams])
    busy_ns = sum(_longest_ns(team) for team in teams)
    steps: dict[str, Any] = {
        "n": n,
        "items": sum(int(table.items.sum()) for table in tables) if is_counted else None,
        "total_s": busy_ns * _overlap(teams) * _NS,
        "mean_s": busy_ns * _NS / n if n else None,
        "time_s": _spread(time_ns, _NS),
        "phases": phases(tables),
    }
    if n and is_unlike(steps["time_s"]["median"], steps["mean_s"]):
        steps["unlike"] = True
    if n and not wait_known:
        steps["wait_known"] = False
    return steps


def _device(devices: Sequence[DeviceTable], host: Sequence[Table]) -> dict[str, Any]:
    """``device``: when the GPU had nothing to do (``idle``), or was given too little
    (``launching``); and the host's own times."""
    idle_columns = [WAIT, COMMUNICATION, *range(LOSS, REST + 1)]
    total_ns = sum(int(device.table.time_ns.sum()) for device in devices)
    idle_ns = sum(int(device.table.own_ns[:, idle_columns].sum()) for device in devices)
    launching_ns = sum(int(device.launching_ns.sum()) for device in devices)
    host_ns = _slowest(table.time_ns for table in host)
    return {
        "time_of": "device",
        "device": {"idle": _part(idle_ns, total_ns), "launching": _part(launching_ns, total_ns)},
        "host_time_s": spread(host_ns, _NS),
        "host_phases": _totals(host),
    }


def phases(tables: Sequence[Table]) -> dict[str, Any]:
    """Share, total and spread by phase over the steps of all tables; ``other`` with its parts."""
    by_phase: dict[str, Any] = {}
    for phase, totals in _totals(tables).items():
        times_ns = [table.phase_ns(phase) for table in tables] or [np.zeros(0)]
        by_phase[phase] = {**totals, "step_s": _spread(np.concatenate(times_ns), _NS)}
    return by_phase


def _totals(tables: Sequence[Table]) -> dict[str, dict[str, Any]]:
    """Share and total by phase over the steps of all tables; ``other`` with its parts."""
    sums_ns = [table.own_ns.sum(axis=0) for table in tables]
    columns_ns = sum(sums_ns, np.zeros(REST + 1, np.int64)).tolist()
    total_ns = sum(int(table.time_ns.sum()) for table in tables)
    totals: dict[str, dict[str, Any]] = {
        phase: _part(phase_ns, total_ns)
        for phase, phase_ns in zip(PHASES, columns_ns, strict=False)
    }
    totals["other"] = _part(sum(columns_ns[LOSS:]), total_ns)
    totals["other"]["parts"] = {
        part: _part(part_ns, total_ns)
        for part, part_ns in zip(PARTS, columns_ns[LOSS:REST], strict=False)
        if part_ns
    }
    return totals


def _part(part_ns: int, total_ns: int) -> dict[str, float]:
    return {"share": part_ns / total_ns if total_ns else 0.0, "total_s": part_ns * _NS}


RATE_TIMES: Mapping[str, Callable[[Table], Array]] = {
    "train_rate": lambda table: table.time_ns,
    "loading_rate": lambda table: table.phase_ns("wait"),
    "compute_rate": lambda table: table.time_ns - table.phase_ns("wait"),
}


def _rates(teams: Sequence[Sequence[Table]]) -> dict[str, Any]:
    """Items per second: over the steps, over their wait, over what is not wait.

    ``value`` is throughput, items over time: of several ranks the items of all over the time of the
    rank that takes longest in all. Median, p10 and p90 are those of single steps, of which a few
    long ones say nothing.
    """
    teams = [team for team in teams if team]
    items = sum(int(t.items[t.items >= 0].sum()) for team in teams for t in team)
    overlap = _overlap(teams)
    rates: dict[str, Any] = {}
    for name, time_of in RATE_TIMES.items():
        single = np.concatenate([np.zeros(0), *(_single_rates(team, time_of) for team in teams)])
        longest_ns = overlap * sum(_counted_ns(team, time_of) for team in teams)
        if len(single) and longest_ns:
            value = items / (longest_ns * _NS)
            figures_of_steps = spread(single) or {}
            rates[name] = {"value": value, **figures_of_steps, "n": len(single), "units": "items/s"}
            if is_unlike(float(np.median(single)), value):
                rates[name]["unlike"] = True
    return rates


def _counted_ns(team: Sequence[Table], time_of: Callable[[Table], Array]) -> int:
    """The time in steps whose items are known, of the rank that takes longest in all."""
    times_ns = [time_of(table)[table.items >= 0] for table in team]
    return max(int(time_ns.sum()) for time_ns in times_ns)


def _single_rates(tables: Sequence[Table], time_of: Callable[[Table], Array]) -> Array:
    """Of those that train in step, by step: the items of all over the time of the slowest; without
    steps whose items are not known."""
    n = min(len(t) for t in tables)
    time_ns = _slowest(map(time_of, tables))
    is_counted = np.all([table.items[:n] >= 0 for table in tables], axis=0) & (time_ns > 0)
    items: Array = sum((table.items[:n] for table in tables), np.zeros(n, np.int64))
    rates: Array = items[is_counted] / (time_ns[is_counted] * _NS)
    return rates


def _overlap(teams: Sequence[Sequence[Table]]) -> float:
    """How much of the time that teams train, summed, passes on the clock: 1 one after the other,
    1/2 where two train at once."""
    if len(teams) < 2:
        return 1.0
    longest = [max(team, key=lambda table: int(table.time_ns.sum())) for team in teams]
    start_ns = np.concatenate([table.start_ns for table in longest])
    time_ns = np.concatenate([table.time_ns for table in longest])
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], (start_ns + time_ns)[order]
    # what of a step lies behind the end of all before it
    begin_ns = np.maximum(start_ns[1:], np.maximum.accumulate(end_ns)[:-1])
    later_ns = np.maximum(end_ns[1:] - begin_ns, 0).sum()
    on_the_clock_ns = int(end_ns[0] - start_ns[0]) + int(later_ns)
    return on_the_clock_ns / max(int(time_ns.sum()), 1)


def is_unlike(typical: float, mean: float) -> bool:
    """Whether steps differ so much that a typical one misleads."""
    return bool(typical and mean) and max(typical / mean, mean / typical) >= UNLIKE


def _slowest(times: Iterable[Array]) -> Array:
    """By step, the time of the rank that took longest; as many steps as all ranks have."""
    slowest = None
    # one after the other: together they take as much memory as all that is known of the steps
    for time in times:
        if slowest is None:
            slowest = time
        else:
            slowest = np.maximum(slowest[: len(time)], time[: len(slowest)])
    return np.zeros(0) if slowest is None else slowest


def _process_row(row: dict[str, Any], rank: Rank, table: Table) -> dict[str, Any]:
    """The row of a process among others that train for themselves; of a rank among them too, which
    has its number."""
    items = int(table.items[table.items >= 0].sum())
    thread = {"thread": rank.thread} if rank.thread else {}
    return {**row, **_identity(rank), "items": items, **thread}


def _rows(trained: Sequence[Rank], tables: Sequence[Table]) -> list[dict[str, Any]]:
    pairs = list(zip(trained, tables, strict=True))
    late = iter(skews([table for rank, table in pairs if not rank.alone]))
    return [
        {
            "rank": rank.rank,
            "host": rank.host,
            "steps": len(table),
            "time_s": spread(table.time_ns, _NS),
            "phases": _totals([table]),
            "skew": None if rank.alone else next(late, None),
        }
        for rank, table in pairs
    ]


# what is uneven in the steps
#
# Where a few steps take most of the time (compiling, a warm-up, one outlier), shares of summed time
# would be those of these few steps. Slow steps that come back at regular intervals (a checkpoint
# every 50, a plot every 20, the first batch of each epoch) are part of the training.
#
# Ranks meet in the backward pass and in collectives, where each waits for the last. So a rank is
# held against the others by its own time: what it spends outside of both. Medians over stretches of
# a run are compared, never sums: one slow batch makes nobody a straggler.

_SLOW = 5.0  # times the median step
_LEAST = 0.1  # of the time of all steps: a smaller part changes no share that matters
_FEWEST = 5  # steps, under which none is called an outlier
# what is done once, whichever steps it falls into
_ONE_TIME = [COLUMN["compile"], COLUMN["import"]]
# As many stretches is a run divided into. With prefetching workers steps wait by turns (0, 70, 0,
# 70 ms): single steps would hide that.
_STRETCHES = 16
_RANK_COLUMNS = [i for i in range(LOSS + len(PARTS)) if i not in (BACKWARD, COMMUNICATION)]


def typical(tables: Sequence[Table]) -> dict[str, Any] | None:
    """The time that is unlike that of most steps, and where the steps spend the rest.

    Args:
        tables: The steps of each rank; the k-th steps of all are the same step.

    Returns:
        ``{"outliers": {"n", "first", "share", "total_s", "phase"}, "phases": {name: share},
        "parts": {name: share of a step}}``: how many steps are left out, the number of the first
        one (-1: none), the share of the time of all steps that is left out, with what all steps
        spend compiling and importing, and its seconds (of the slowest rank), the phase or part of
        ``other`` that it is mostly spent in, and the shares of the rest. None where nothing stands
        out.
    """
    n = min(map(len, tables), default=0)
    if n < _FEWEST:
        return None
    times_ns = [table.own_ns[:n] for table in tables]
    total_ns = int(_slowest(parts_ns.sum(axis=1) for parts_ns in times_ns).sum())
    repeated = _slowest(
        parts_ns.sum(axis=1) - parts_ns[:, _ONE_TIME].sum(axis=1) for parts_ns in times_ns
    )
    slow = outliers(repeated)
    repeated[slow] = 0
    left_out_ns = total_ns - int(repeated.sum())
    if left_out_ns < _LEAST * total_ns:
        return None
    outlying = sum(parts_ns[slow].sum(axis=0) for parts_ns in times_ns)
    usual = sum(parts_ns.sum(axis=0) for parts_ns in times_ns) - outlying
    outlying[_ONE_TIME] += usual[_ONE_TIME]
    usual[_ONE_TIME] = 0
    usual_ns = max(int(usual.sum()), 1)
    shares = (usual / usual_ns).tolist()
    phase_shares = dict(zip(PHASES[:-1], shares, strict=False))
    phase_shares["other"] = float(usual[LOSS:].sum() / usual_ns)
    parts = zip(PARTS[:-1], shares[LOSS:], strict=False)
    phase = COLUMNS[int(np.argmax(outlying))]
    first = int(slow[0]) if len(slow) else -1
    outlier_figures = {
        "n": len(slow),
        "first": first,
        "share": left_out_ns / total_ns,
        "total_s": left_out_ns / 1e9,
        "phase": "other" if phase == "rest" else phase,
    }
    return {
        "outliers": outlier_figures,
        "phases": phase_shares,
        "parts": {part: share for part, share in parts if share},
    }


def estimates(ranks: Sequence[Rank]) -> dict[tuple[str, ...], Estimate | None]:
    """How sure figures of a summary are, by their place in it: step time, phases, rates,
    evaluation.

    They are of the steps that come back: without compiling and imports, and without the few that
    take much longer than a usual one. The
    throughput has these too: it is of all that training did.
    """
    trained = [rank for rank in ranks if len(rank.steps.train)]
    whole = [_without_one_time(team) for team in _teams(trained, _timed(trained)) if team]
    teams = [_without_outliers(team) for team in whole]
    if not teams:
        return {}
    time_ns = np.concatenate([_slowest(table.time_ns for table in team) for team in teams])
    by_place: dict[tuple[str, ...], Estimate | None] = {
        ("steps", "time_s"): median_of_steps(time_ns * _NS)
    }
    for phase in PHASES:
        times_ns = _phase_times(teams, phase)
        by_place["steps", "phases", phase, "step_s"] = median_of_steps(times_ns * _NS)
    for name, time_of in RATE_TIMES.items():
        timed = whole if name == "train_rate" else teams
        by_place["rates", name] = _rate_estimate(timed, time_of)
    evaluated = [rank.steps.evaluation.time_ns for rank in ranks if len(rank.steps.evaluation)]
    by_place["evaluation", "time_s"] = None
    if evaluated:
        by_place["evaluation", "time_s"] = median_of_steps(np.concatenate(evaluated) * _NS)
    return by_place


def _phase_times(teams: Sequence[Sequence[Table]], phase: str) -> Array:
    """The time in a phase, of shape (ranks, steps); where several teams train, their means over
    ranks, one after the other."""
    times_ns = [np.stack([table.phase_ns(phase) for table in team]) for team in teams]
    if len(times_ns) == 1:
        return times_ns[0]
    return np.hstack([by_rank.mean(axis=0) for by_rank in times_ns])


def _rate_estimate(
    teams: Sequence[Sequence[Table]], time_of: Callable[[Table], Array]
) -> Estimate | None:
    time_ns = np.concatenate([_slowest(map(time_of, team)) for team in teams])
    items = np.concatenate([np.sum([t.items for t in team], axis=0) for team in teams])
    least_items = np.concatenate([np.min([t.items for t in team], axis=0) for team in teams])
    is_counted = least_items >= 0
    return rate_of_steps(items[is_counted], time_ns[is_counted] * _NS)


def _without_one_time(team: Sequence[Table]) -> list[Table]:
    """The steps of those that train in step, as many as all have, without compiling and imports."""
    n = min(map(len, team))
    tables = []
    for table in team:
        own_ns = table.own_ns[:n].copy()
        own_ns[:, _ONE_TIME] = 0
        time_ns = own_ns.sum(axis=1)
        tables.append(Table(table.start_ns[:n], time_ns, table.items[:n], own_ns))
    return tables


def _without_outliers(team: Sequence[Table]) -> list[Table]:
    """The same steps without those that ``typical`` leaves out."""
    n = len(team[0])
    slow = outliers(_slowest(table.time_ns for table in team)) if n >= _FEWEST else []
    usual = np.delete(np.arange(n), slow)
    return [table.chosen(usual) for table in team]


def outliers(time: Array) -> Array:
    """Indices, ascending, of the few steps that take much longer than a usual one, and come back at
    no regular interval."""
    n = len(time)
    most = max(1, min(3, n // 10), n // 100)
    slow = np.flatnonzero(time > _SLOW * np.median(time))
    if not 0 < len(slow) <= most or _is_regular(slow, n):
        return slow[:0]
    return slow if time[slow].sum() >= _LEAST * time.sum() else slow[:0]


def _is_regular(slow: Array, n: int) -> bool:
    """Whether they go on through the whole run, as far apart each time."""
    if len(slow) < 2:
        return False
    gaps = np.diff(slow)
    gap = int(gaps.max())
    is_throughout = slow[0] <= gap and n - slow[-1] <= gap + 1
    return bool(gaps.min() >= gap - 1 and is_throughout)


def skews(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """By rank, how much longer its own time in a step is than the others'.

    Args:
        tables: The steps of each rank; the k-th steps of all are the same step.

    Returns:
        For each rank ``{"share", "time_s", "late", "phase"}``: by how much of a step it is later
        than the others at the median (negative: earlier), the same in seconds, in which share of
        the run's stretches it is late by ``STRAGGLES`` or more and the others wait for it, and the
        phase or part of ``other`` that differs most. Empty for fewer than two ranks, or without
        steps.
    """
    n = min(map(len, tables), default=0)
    if len(tables) < 2 or not n:
        return []
    width = max(n // _STRETCHES, 1)
    edges = np.arange(0, n - n % width, width)
    rows = slice(edges[-1] + width)
    owns = [np.add.reduceat(table.own_ns[rows, _RANK_COLUMNS], edges) for table in tables]
    times = [np.add.reduceat(table.time_ns[rows], edges) for table in tables]
    own_ns, time_ns = np.stack(owns) / width, np.stack(times) / width
    step_ns = float(np.median(time_ns.max(axis=0)))  # medians: of the ranks' steps, the slowest's
    if not step_ns:
        return []
    own_sum_ns = own_ns.sum(axis=2)
    excess_ns = own_sum_ns - _usual_of_others(own_sum_ns)
    longer_ns = time_ns - _usual_of_others(time_ns)
    # Those who wait for it are as long in a step as it is: else its lateness is its own affair, or
    # noise that the next step makes up for.
    is_late = (excess_ns >= STRAGGLES * step_ns) & (longer_ns <= excess_ns / 2)
    excess_by_column = np.median(own_ns - _usual_of_others(own_ns), axis=1)
    typical_ns = np.median(excess_ns, axis=1)
    rows_by_rank = zip(
        typical_ns.tolist(),
        is_late.mean(axis=1).tolist(),
        excess_by_column.argmax(axis=1).tolist(),
        strict=True,
    )
    skew_of_ranks = []
    for late_ns, often, column in rows_by_rank:
        phase = COLUMNS[_RANK_COLUMNS[column]]
        skew_of_ranks.append(
            {
                "share": late_ns / step_ns,
                "time_s": late_ns * _NS,
                "late": often,
                "phase": "other" if phase == "rest" else phase,
            }
        )
    return skew_of_ranks


def _usual_of_others(values: Array) -> Array:
    """By rank, the median over the other ranks; of an even number the lower of the two in the
    middle: a value that one of them has."""
    ordered, middle = np.sort(values, axis=0), (len(values) - 2) // 2
    usual: Array = np.where(values <= ordered[middle], ordered[middle + 1], ordered[middle])
    return usual
