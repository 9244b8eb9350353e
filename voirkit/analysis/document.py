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
    trained = [r for r in ranks if len(r.steps.train)]
    devices = [r.steps.device for r in trained if r.steps.device is not None]
    on_device = bool(trained) and len(devices) == len(trained)
    tables = _timed(trained)
    evaluated = [r for r in ranks if len(r.steps.evaluation)]
    teams = _teams(trained, tables)
    steps = _steps(teams, all(r.steps.wait_known for r in trained))
    if on_device:
        steps.update(_device(devices, [r.steps.train for r in trained]))
    rows = _rows(trained, tables)
    if (stands_out := typical(teams[0])) is not None:
        steps["typical"] = stands_out
    saver = max((r.steps for r in trained), key=lambda one: one.saving_between_ns, default=None)
    if uncounted := [row for rank in ranks if (row := _uncounted(rank))]:
        steps["uncounted"] = uncounted
    if saver and saver.saving_between_ns:  # a share of the steps and these together
        steps["checkpoints_between"] = _part(
            saver.saving_between_ns, saver.saving_between_ns + int(saver.train.time_ns.sum())
        )
    return {
        "steps": steps,
        "rates": _rates(teams),
        "evaluation": _evaluation(evaluated, [r.facts for r in ranks]) if evaluated else None,
        "ranks": [row for row, r in zip(rows, trained, strict=True) if not r.alone]
        if len(teams[0]) > 1
        else [],
        "processes": [_alone(*one) for one in zip(rows, trained, tables, strict=True)]
        if len(teams) > 1
        else [],
    }


def _uncounted(rank: Rank) -> dict[str, Any] | None:
    """What a rank or process trained in no counted step and in no evaluation; None for nothing."""
    known = rank.steps.uncounted
    if not known:
        return None
    pids = [pid for _, pid in rank.processes]
    return {
        "rank": None if rank.alone else rank.rank,
        "pid": pids[0] if len(pids) == 1 else None,
        "thread": rank.thread or None,
        "optimizer_steps": known.optimizer_steps,
        "backward_passes": known.backward_passes,
        "first_ns": known.first_ns,
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
    n = sum(max(map(len, team)) for team in teams)
    total = sum(max(int(table.time_ns.sum()) for table in team) for team in teams)
    times = np.concatenate([table.time_ns for table in tables])
    found: dict[str, Any] = {
        "n": n,
        "total_s": total * _overlap(teams) * _NS,
        "time_s": _spread(times, _NS),
    }
    if any(table.own_ns[:, BACKWARD].any() for table in tables):
        found["takes_gradients"] = True
    share = max((one.get("inference", 0.0) for one in facts), default=0.0)
    return {**found, "inference": share} if share else found


def spread(values: Array) -> dict[str, float] | None:
    """Median and the tenth and ninetieth percentile; None of nothing."""
    return _spread(values.copy())


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
    found = np.where(part < 0.5, first + apart * part, second - apart * (1 - part)) * unit
    return dict(zip(("median", "p10", "p90"), found.tolist(), strict=True))


def _teams(trained: Sequence[Rank], tables: Sequence[Table]) -> list[list[Table]]:
    """The tables of those that train in step: first of the ranks, if there are any, then of each
    process that trains for itself."""
    together = [table for rank, table in zip(trained, tables, strict=True) if not rank.alone]
    return [
        *([together] if together or not trained else []),
        *([t] for r, t in zip(trained, tables, strict=True) if r.alone),
    ]


def _steps(teams: Sequence[Sequence[Table]], wait_known: bool) -> dict[str, Any]:
    tables = [table for team in teams for table in team]
    n = sum(max((len(t) for t in team), default=0) for team in teams)
    items = (
        None
        if any((t.items < 0).any() for t in tables)
        else sum(int(t.items.sum()) for t in tables)
    )
    time = np.concatenate([_slowest(t.time_ns for t in team) for team in teams])
    busy = sum(max((int(t.time_ns.sum()) for t in team), default=0) for team in teams)
    found: dict[str, Any] = {
        "n": n,
        "items": items,
        "total_s": busy * _overlap(teams) * _NS,
        "mean_s": busy * _NS / n if n else None,
        "time_s": _spread(time, _NS),
        "phases": phases(tables),
    }
    if n and is_unlike(found["time_s"]["median"], found["mean_s"]):
        found["unlike"] = True
    if n and not wait_known:
        found["wait_known"] = False
    return found


def _device(devices: Sequence[DeviceTable], host: Sequence[Table]) -> dict[str, Any]:
    """``device``: when the GPU had nothing to do (``idle``), or was given too little
    (``launching``); and the host's own times."""
    total = sum(int(d.table.time_ns.sum()) for d in devices)
    idle = sum(
        int(d.table.own_ns[:, [WAIT, COMMUNICATION, *range(LOSS, REST + 1)]].sum()) for d in devices
    )
    launching = sum(int(d.launching_ns.sum()) for d in devices)
    return {
        "time_of": "device",
        "device": {"idle": _part(idle, total), "launching": _part(launching, total)},
        "host_time_s": _spread(_slowest(t.time_ns for t in host).copy(), _NS),
        "host_phases": _totals(host),
    }


def phases(tables: Sequence[Table]) -> dict[str, Any]:
    """Share, total and spread by phase over the steps of all tables; ``other`` with its parts."""
    found: dict[str, Any] = {}
    for phase, totals in _totals(tables).items():
        values = np.concatenate([t.phase_ns(phase) for t in tables]) if tables else np.zeros(0)
        found[phase] = {**totals, "step_s": _spread(values, _NS)}
    return found


def _totals(tables: Sequence[Table]) -> dict[str, dict[str, Any]]:
    """Share and total by phase over the steps of all tables; ``other`` with its parts."""
    spent = (
        np.sum([t.own_ns.sum(axis=0) for t in tables], axis=0).tolist()
        if tables
        else [0] * (REST + 1)
    )
    total = sum(int(t.time_ns.sum()) for t in tables)
    found: dict[str, dict[str, Any]] = {
        phase: _part(spent[i] if phase != "other" else sum(spent[LOSS:]), total)
        for i, phase in enumerate(PHASES)
    }
    found["other"]["parts"] = {
        part: _part(one, total)
        for part, one in zip(PARTS[:-1], spent[LOSS:REST], strict=True)
        if one
    }
    return found


def _part(spent: int, total: int) -> dict[str, float]:
    return {"share": spent / total if total else 0.0, "total_s": spent * _NS}


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
    total = sum(int(t.items[t.items >= 0].sum()) for team in teams for t in team)
    overlap = _overlap(teams)
    found = {}
    for name, time_of in RATE_TIMES.items():
        values = (
            np.concatenate([_single_rates(team, time_of) for team in teams])
            if teams
            else np.zeros(0)
        )
        longest = (
            sum(max(int(time_of(t)[t.items >= 0].sum()) for t in team) for team in teams) * overlap
        )
        if len(values) and longest:
            value = total / (longest * _NS)
            found[name] = {
                "value": value,
                **(spread(values) or {}),
                "n": len(values),
                "units": "items/s",
            }
            if is_unlike(float(np.median(values)), value):
                found[name]["unlike"] = True
    return found


def _single_rates(tables: Sequence[Table], time_of: Callable[[Table], Array]) -> Array:
    """Of those that train in step, by step: the items of all over the time of the slowest; without
    steps whose items are not known."""
    n = min(len(t) for t in tables)
    time = _slowest(map(time_of, tables))
    counted = np.all([t.items[:n] >= 0 for t in tables], axis=0) & (time > 0)
    items: Array = sum((t.items[:n] for t in tables), np.zeros(n, np.int64))
    rates: Array = items[counted] / (time[counted] * _NS)
    return rates


def _overlap(teams: Sequence[Sequence[Table]]) -> float:
    """How much of the time that teams train, summed, passes on the clock: 1 one after the other,
    1/2 where two train at once."""
    if len(teams) < 2:
        return 1.0
    tables = [max(team, key=lambda t: int(t.time_ns.sum())) for team in teams]
    start, time = (
        np.concatenate([getattr(t, key) for t in tables]) for key in ("start_ns", "time_ns")
    )
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + time)[order]
    # what of a step lies behind the end of all before it
    begun = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    passed = int(end[0] - start[0]) + int(np.maximum(end[1:] - begun, 0).sum())
    return passed / max(int(time.sum()), 1)


def is_unlike(typical: float, mean: float) -> bool:
    """Whether steps differ so much that a typical one misleads."""
    return bool(typical and mean) and max(typical / mean, mean / typical) >= UNLIKE


def _slowest(times: Iterable[Array]) -> Array:
    """By step, the time of the rank that took longest; as many steps as all ranks have."""
    found = None
    # one after the other: together they take as much memory as all that is known of the steps
    for time in times:
        found = time if found is None else np.maximum(found[: len(time)], time[: len(found)])
    return np.zeros(0) if found is None else found


def _alone(row: dict[str, Any], rank: Rank, table: Table) -> dict[str, Any]:
    """The row of a process among others that train for themselves; of a rank among them too, which
    has its number."""
    pids = [pid for _, pid in rank.processes]
    items = int(table.items[table.items >= 0].sum())
    whose = {"rank": None if rank.alone else rank.rank, "pid": pids[0] if len(pids) == 1 else None}
    return {**row, **whose, "items": items, **({"thread": rank.thread} if rank.thread else {})}


def _rows(trained: Sequence[Rank], tables: Sequence[Table]) -> list[dict[str, Any]]:
    together = [table for rank, table in zip(trained, tables, strict=True) if not rank.alone]
    late = iter(skews(together) or len(together) * (None,))
    return [
        _rank(rank, table, None if rank.alone else next(late))
        for rank, table in zip(trained, tables, strict=True)
    ]


def _rank(rank: Rank, table: Table, skew: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "steps": len(table),
        "time_s": _spread(table.time_ns.copy(), _NS),
        "phases": _totals([table]),
        "skew": skew,
    }


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
_LEAST = 0.1  # of the time of all: fewer seconds than this change no share that matters
_FEWEST = 5  # steps, under which none is called an outlier
# what is done once, whichever steps it falls into
_ONCE = [COLUMN["compile"], COLUMN["import"]]
# As many stretches is a run divided into. With prefetching workers steps wait by turns (0, 70, 0,
# 70 ms): single steps would hide that.
_STRETCHES = 16
_OWN = [i for i in range(LOSS + len(PARTS)) if i not in (BACKWARD, COMMUNICATION)]


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
    n = min((len(table) for table in tables), default=0)
    if n < _FEWEST:
        return None
    owns = [table.own_ns[:n] for table in tables]
    total = _slowest(own.sum(axis=1) for own in owns)
    kept = _slowest(own.sum(axis=1) - own[:, _ONCE].sum(axis=1) for own in owns)
    chosen = outliers(kept)
    kept[chosen] = 0
    left_out = int(total.sum() - kept.sum())
    if left_out < _LEAST * total.sum():
        return None
    theirs, rest = (sum(own[which].sum(axis=0) for own in owns) for which in (chosen, slice(None)))
    rest = rest - theirs
    theirs[_ONCE] += rest[_ONCE]
    rest[_ONCE] = 0
    spent = max(int(rest.sum()), 1)
    phase = COLUMNS[int(np.argmax(theirs))]
    return {
        "outliers": {
            "n": len(chosen),
            "first": int(chosen[0]) if len(chosen) else -1,
            "share": left_out / float(total.sum()),
            "total_s": left_out / 1e9,
            "phase": "other" if phase == "rest" else phase,
        },
        "phases": {name: float(rest[at] / spent) for at, name in enumerate(PHASES[:-1])}
        | {"other": float(rest[LOSS:].sum() / spent)},
        "parts": {
            name: float(rest[LOSS + at] / spent)
            for at, name in enumerate(PARTS[:-1])
            if rest[LOSS + at]
        },
    }


def estimates(ranks: Sequence[Rank]) -> dict[tuple[str, ...], Estimate | None]:
    """How sure figures of a summary are, by their place in it: step time, phases, rates,
    evaluation.

    They are of the steps that come back: without compiling and imports, and without the few that
    take much longer than a usual one. The
    throughput has these too: it is of all that training did.
    """
    trained = [rank for rank in ranks if len(rank.steps.train)]
    whole = [_without_once(team) for team in _teams(trained, _timed(trained)) if team]
    teams = [_without_outliers(team) for team in whole]
    if not teams:
        return {}
    time = np.concatenate([_slowest(t.time_ns for t in team) for team in teams])
    found: dict[tuple[str, ...], Estimate | None] = {
        ("steps", "time_s"): median_of_steps(time * _NS)
    }
    for phase in PHASES:
        own = [np.stack([table.phase_ns(phase) for table in team]) for team in teams]
        found["steps", "phases", phase, "step_s"] = median_of_steps(
            (own[0] if len(own) == 1 else np.hstack([o.mean(axis=0) for o in own])) * _NS
        )
    for name, time_of in RATE_TIMES.items():
        found["rates", name] = _rate_estimate(whole if name == "train_rate" else teams, time_of)
    evaluated = [rank.steps.evaluation.time_ns for rank in ranks if len(rank.steps.evaluation)]
    found["evaluation", "time_s"] = (
        median_of_steps(np.concatenate(evaluated) * _NS) if evaluated else None
    )
    return found


def _rate_estimate(
    teams: Sequence[Sequence[Table]], time_of: Callable[[Table], Array]
) -> Estimate | None:
    time = np.concatenate([_slowest(map(time_of, team)) for team in teams])
    items = np.concatenate([np.sum([t.items for t in team], axis=0) for team in teams])
    counted = np.concatenate([np.all([t.items >= 0 for t in team], axis=0) for team in teams])
    return rate_of_steps(items[counted], time[counted] * _NS)


def _without_once(team: Sequence[Table]) -> list[Table]:
    """The steps of those that train in step, as many as all have, without compiling and imports."""
    n = min(map(len, team))
    own = np.stack([table.own_ns[:n] for table in team])
    own[:, :, _ONCE] = 0
    time = own.sum(axis=2)
    return [Table(t.start_ns[:n], time[i], t.items[:n], own[i]) for i, t in enumerate(team)]


def _without_outliers(team: Sequence[Table]) -> list[Table]:
    """The same steps without those that ``typical`` leaves out."""
    n = len(team[0])
    slow = outliers(np.max([table.time_ns for table in team], axis=0)) if n >= _FEWEST else []
    kept = np.delete(np.arange(n), slow)
    return [table.chosen(kept) for table in team]


def outliers(time: Array) -> Array:
    """Indices, ascending, of the few steps that take much longer than a usual one, and come back at
    no regular interval."""
    n = len(time)
    most = max(1, min(3, n // 10), n // 100)
    slow = np.flatnonzero(time > _SLOW * np.median(time))
    if not 0 < len(slow) <= most or time[slow].sum() < _LEAST * time.sum() or _is_regular(slow, n):
        return slow[:0]
    return slow


def _is_regular(slow: Array, n: int) -> bool:
    """Whether they go on through the whole run, as far apart each time."""
    if len(slow) < 2:
        return False
    gaps = np.diff(slow)
    gap = int(gaps.max())
    return bool(gaps.min() >= gap - 1 and slow[0] <= gap and n - slow[-1] <= gap + 1)


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
    n = min((len(table) for table in tables), default=0)
    if len(tables) < 2 or not n:
        return []
    width = max(n // _STRETCHES, 1)
    edges = np.arange(0, n - n % width, width)
    own = (
        np.stack(
            [
                np.add.reduceat(table.own_ns[: edges[-1] + width, _OWN], edges, axis=0)
                for table in tables
            ]
        )
        / width
    )
    time = (
        np.stack([np.add.reduceat(table.time_ns[: edges[-1] + width], edges) for table in tables])
        / width
    )
    step = float(np.median(time.max(axis=0)))  # medians: of the ranks' steps, the slowest's
    if not step:
        return []
    excess = own.sum(axis=2) - _usual_of_others(own.sum(axis=2))
    longer = time - _usual_of_others(time)
    # Those who wait for it are as long in a step as it is: else its lateness is its own affair, or
    # noise that the next step makes up for.
    late = ((excess >= STRAGGLES * step) & (longer <= excess / 2)).mean(axis=1)
    columns = np.argmax(np.median(own - _usual_of_others(own), axis=1), axis=1)
    named = [COLUMNS[_OWN[column]] for column in columns.tolist()]
    typical_excess = np.median(excess, axis=1).tolist()
    return [
        {
            "share": excess_ns / step,
            "time_s": excess_ns * _NS,
            "late": often,
            "phase": "other" if name == "rest" else name,
        }
        for excess_ns, often, name in zip(typical_excess, late.tolist(), named, strict=True)
    ]


def _usual_of_others(values: Array) -> Array:
    """By rank, the median over the other ranks; of an even number the lower of the two in the
    middle: a value that one of them has."""
    ordered, middle = np.sort(values, axis=0), (len(values) - 2) // 2
    usual: Array = np.where(values <= ordered[middle], ordered[middle + 1], ordered[middle])
    return usual
