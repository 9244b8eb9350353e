"""The values of ``summary.json`` that are computed from steps: steps and their outliers, phases,
rates, evaluation, ranks and their skew."""

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
    """The collectives that a process began together with other ranks; arrays of shape (n,),
    ascending by start.

    Ranks that train alike share the same arrays, except ``begun_ns``.
    """

    # (process group, name, bytes of the input; -1 if unknown)
    kinds: Sequence[tuple[str, str, int]]
    kind: Array  # index into ``kinds``
    number: Array  # number of the collective in its process group
    # number of the training thread's backward pass in which the collective was begun; -1 for none
    backward: Array
    begun_ns: Array  # on the clock of the process's host
    # (time that backward passes wait for other ranks at their end, time of all backward passes)
    backward_ns: tuple[int, int] = (0, 0)
    # share of the time in which the process was ready to run but had no processor; None if unknown
    starved: float | None = None
    # Time until which collectives are known: a process that was killed may have begun more. None if
    # unknown.
    until_ns: int | None = None
    # by index of the kind, how long the training thread waited for the collectives of that kind: in
    # calls that wait, and at the end of the backward pass
    exposed_ns: Sequence[int] = ()
    # share of the time in which the process ran on a processor; None if unknown
    ran: float | None = None


@dataclass(frozen=True)
class Rank:
    """The steps of one rank, and other facts about the rank."""

    rank: int  # the number of the rank
    host: str  # the name of the rank's host
    steps: Steps
    # facts for the verdict about the training loader and the host: ``workers``, ``dataset``,
    # ``batch_size``, ``cpus``
    facts: Mapping[str, Any] = field(default_factory=dict)
    # (host, pid) of the rank's processes; a rank that was restarted has several
    processes: tuple[tuple[str, int], ...] = ()
    # True for a process that trains beside other processes without a process group: its ``rank``
    # has no meaning
    alone: bool = False
    # the collectives that the rank's last process began; None if it began none
    collectives: Collectives | None = None
    # id of the thread, for a second training that runs in a process at the same time as the first;
    # otherwise 0
    thread: int = 0


def figures(ranks: Sequence[Rank]) -> dict[str, Any]:
    """Return ``steps``, ``rates``, ``evaluation``, ``ranks`` and ``processes`` of a summary.

    Ranks train in step, so ``steps.n`` is the number of steps of one rank. The items of a step are
    summed over all ranks, and its time is that of the slowest rank. Phases are summed over all
    ranks, so their shares are those of an average rank. Checkpoints between steps are those of the
    rank that spends most time on them, since the other ranks wait for it. Processes that each train
    alone have rows of their own (``processes``), and their steps are added up.
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
    # time of checkpoints between steps, as a share of this time plus the time of all steps
    if saver and saver.steps.saving_between_ns:
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
    """Return the number of a rank (None for a process that trains alone), and the pid of its
    process (None if it had several processes)."""
    pids = [pid for _, pid in rank.processes]
    number = None if rank.alone else rank.rank
    return {"rank": number, "pid": pids[0] if len(pids) == 1 else None}


def _uncounted(rank: Rank) -> dict[str, Any]:
    """Return the training of a rank or process that lies in no counted step and no evaluation."""
    uncounted = rank.steps.uncounted
    return {
        **_identity(rank),
        "thread": rank.thread or None,
        "optimizer_steps": uncounted.optimizer_steps,
        "backward_passes": uncounted.backward_passes,
        "first_ns": uncounted.first_ns,
    }


def _timed(trained: Sequence[Rank]) -> list[Table]:
    """Return the training steps of each rank, timed by the device if this is known for all
    ranks."""
    devices = [rank.steps.device for rank in trained]
    on_device = [device.table for device in devices if device is not None]
    return on_device if len(on_device) == len(trained) else [rank.steps.train for rank in trained]


def _evaluation(ranks: Sequence[Rank], facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``evaluation`` of a summary.

    For ranks that train in step it has the largest number of batches of a rank, and the time of the
    slowest rank. For processes that each train alone it has all batches, and their wall-clock time.
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
    """Return the total time of the rank that takes longest."""
    return max((int(table.time_ns.sum()) for table in team), default=0)


def spread(values: Array, unit: float = 1.0) -> dict[str, float] | None:
    """Return the median and the tenth and ninetieth percentile; None without values."""
    return _spread(values.copy(), unit)


def _spread(values: Array, unit: float = 1.0) -> dict[str, float] | None:
    """Return the median and the tenth and ninetieth percentile; None without values. The values are
    reordered in place. ``numpy.quantile`` gives the same in 1.5 times the time and memory.

    Args:
        values: Numbers; 32-bit integers are the fastest.
        unit: The factor for the results.
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
    """Return the tables of each team, which is a group of ranks that train in step. The first team
    has all ranks of the process group, if there are any; each process that trains alone is a team
    of its own."""
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
    """Return the values of steps that are timed by a GPU: ``device``, and the times on the host.

    ``device`` has the time in which the GPU was idle (``idle``), and the time in which its work
    ended as soon as the host had launched it (``launching``).
    """
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
    """Return share, total and spread of each phase over the steps of all tables; ``other`` also has
    its parts."""
    by_phase: dict[str, Any] = {}
    for phase, totals in _totals(tables).items():
        times_ns = [table.phase_ns(phase) for table in tables] or [np.zeros(0)]
        by_phase[phase] = {**totals, "step_s": _spread(np.concatenate(times_ns), _NS)}
    return by_phase


def _totals(tables: Sequence[Table]) -> dict[str, dict[str, Any]]:
    """Return share and total of each phase over the steps of all tables; ``other`` also has its
    parts."""
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
    """Return items per second of the steps' whole time, of the wait for batches, and of the time
    without the wait.

    ``value`` is the throughput: the items of all ranks over the total time of the slowest rank.
    Median, p10 and p90 are over single steps, so a few long steps do not affect them.
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
    """Return the largest total time of a rank, counting only steps whose items are known."""
    times_ns = [time_of(table)[table.items >= 0] for table in team]
    return max(int(time_ns.sum()) for time_ns in times_ns)


def _single_rates(tables: Sequence[Table], time_of: Callable[[Table], Array]) -> Array:
    """Return the rate of each step of a team: the items of all ranks over the time of the slowest
    rank. Steps with an unknown number of items are left out."""
    n = min(len(t) for t in tables)
    time_ns = _slowest(map(time_of, tables))
    is_counted = np.all([table.items[:n] >= 0 for table in tables], axis=0) & (time_ns > 0)
    items: Array = sum((table.items[:n] for table in tables), np.zeros(n, np.int64))
    rates: Array = items[is_counted] / (time_ns[is_counted] * _NS)
    return rates


def _overlap(teams: Sequence[Sequence[Table]]) -> float:
    """Return the wall-clock time of all teams' steps as a share of the sum of their times: 1 if the
    teams train one after the other, 1/2 if two train at the same time."""
    if len(teams) < 2:
        return 1.0
    longest = [max(team, key=lambda table: int(table.time_ns.sum())) for team in teams]
    start_ns = np.concatenate([table.start_ns for table in longest])
    time_ns = np.concatenate([table.time_ns for table in longest])
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], (start_ns + time_ns)[order]
    # ``begin_ns``: where a step's part that no earlier step overlaps begins
    begin_ns = np.maximum(start_ns[1:], np.maximum.accumulate(end_ns)[:-1])
    later_ns = np.maximum(end_ns[1:] - begin_ns, 0).sum()
    on_the_clock_ns = int(end_ns[0] - start_ns[0]) + int(later_ns)
    return on_the_clock_ns / max(int(time_ns.sum()), 1)


def is_unlike(typical: float, mean: float) -> bool:
    """True if steps differ so much that the typical step is misleading."""
    return bool(typical and mean) and max(typical / mean, mean / typical) >= UNLIKE


def _slowest(times: Iterable[Array]) -> Array:
    """Return the time of the slowest rank in each step, for the steps that all ranks have."""
    slowest = None
    # ranks are taken one by one: all times together take as much memory as the steps themselves
    for time in times:
        if slowest is None:
            slowest = time
        else:
            slowest = np.maximum(slowest[: len(time)], time[: len(slowest)])
    return np.zeros(0) if slowest is None else slowest


def _process_row(row: dict[str, Any], rank: Rank, table: Table) -> dict[str, Any]:
    """Return the row of a process for ``processes``. A rank that trains beside processes that train
    alone gets such a row too, with its number."""
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


# outliers and skew of ranks
#
# If a few steps take most of the time (compiling, a warm-up, one outlier), shares of summed time
# would describe only these steps. Slow steps that recur at regular intervals (a checkpoint every
# 50 steps, a plot every 20, the first batch of each epoch) are part of the training.
#
# Ranks meet in the backward pass and in collectives, where each rank waits for the last one. So
# ranks are compared by their own time, outside of both. A run is divided into stretches (equal
# numbers of consecutive steps), and medians over stretches are compared, not sums: one slow batch
# does not make a rank a straggler.

_SLOW = 5.0  # a step is slow if it takes more than so many times the median
# smallest share of the time of all steps that is left out: a smaller part changes no share that
# matters
_LEAST = 0.1
_FEWEST = 5  # with fewer steps there are no outliers
# compiling and importing happen once, in any of the steps
_ONE_TIME = [COLUMN["compile"], COLUMN["import"]]
# Number of stretches into which a run is divided. With prefetching workers the wait alternates from
# step to step (0, 70, 0, 70 ms), so single steps would hide a skew.
_STRETCHES = 16
_RANK_COLUMNS = [i for i in range(LOSS + len(PARTS)) if i not in (BACKWARD, COMMUNICATION)]


def typical(tables: Sequence[Table]) -> dict[str, Any] | None:
    """Find outliers among the steps, and how the usual steps spend their time.

    Args:
        tables: The steps of each rank; the k-th steps of all ranks are the same step.

    Returns:
        ``{"outliers": {"n", "first", "share", "total_s", "phase"}, "phases": {name: share},
        "parts": {name: share of a step}}``; None if nothing stands out. The time left out is that
        of the outliers, and the time that all steps spend compiling and importing.

        - ``n``: number of outliers; ``first``: index of the first outlier, -1 for none.
        - ``share``, ``total_s``: time left out, as a share of the time of all steps and in seconds
          of the slowest rank.
        - ``phase``: the phase, or part of ``other``, in which most of this time is spent.
        - ``phases``, ``parts``: shares of the remaining time.
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
    """Return a dict from the place of a value in a summary to its estimate with error, for step
    time, phases, rates and evaluation.

    Compiling, imports and outliers (few steps that take much longer than usual) are left out. Only
    throughput includes the outliers, since it covers the whole training.
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
    """Return the time of each step in a phase, of shape (ranks, steps). For several teams it has
    shape (steps,): the means over the ranks of each team, one team after the other."""
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
    """Return the steps that all ranks of a team have, without the time of compiling and imports."""
    n = min(map(len, team))
    tables = []
    for table in team:
        own_ns = table.own_ns[:n].copy()
        own_ns[:, _ONE_TIME] = 0
        time_ns = own_ns.sum(axis=1)
        tables.append(Table(table.start_ns[:n], time_ns, table.items[:n], own_ns))
    return tables


def _without_outliers(team: Sequence[Table]) -> list[Table]:
    """Return the steps of a team without the outliers of ``typical``."""
    n = len(team[0])
    slow = outliers(_slowest(table.time_ns for table in team)) if n >= _FEWEST else []
    usual = np.delete(np.arange(n), slow)
    return [table.chosen(usual) for table in team]


def outliers(time: Array) -> Array:
    """Return the indices, ascending, of the few steps that take much longer than usual and do not
    recur at a regular interval."""
    n = len(time)
    most = max(1, min(3, n // 10), n // 100)
    slow = np.flatnonzero(time > _SLOW * np.median(time))
    if not 0 < len(slow) <= most or _is_regular(slow, n):
        return slow[:0]
    return slow if time[slow].sum() >= _LEAST * time.sum() else slow[:0]


def _is_regular(slow: Array, n: int) -> bool:
    """True if slow steps recur throughout the run, at equal distances."""
    if len(slow) < 2:
        return False
    gaps = np.diff(slow)
    gap = int(gaps.max())
    is_throughout = slow[0] <= gap and n - slow[-1] <= gap + 1
    return bool(gaps.min() >= gap - 1 and is_throughout)


def skews(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Return, for each rank, how much longer its own time in a step is than that of other ranks.

    Args:
        tables: The steps of each rank; the k-th steps of all ranks are the same step.

    Returns:
        For each rank ``{"share", "time_s", "late", "phase"}``; empty for fewer than two ranks, or
        without steps.

        - ``share``, ``time_s``: median delay of the rank compared with the others, as a share of a
          step and in seconds; negative if the rank is earlier.
        - ``late``: share of the run's stretches in which the rank is late by ``STRAGGLES`` or more
          and the other ranks wait for it.
        - ``phase``: the phase, or part of ``other``, that differs most.
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
    step_ns = float(np.median(time_ns.max(axis=0)))  # the slowest rank's time; median of stretches
    if not step_ns:
        return []
    own_sum_ns = own_ns.sum(axis=2)
    excess_ns = own_sum_ns - _usual_of_others(own_sum_ns)
    longer_ns = time_ns - _usual_of_others(time_ns)
    # If the other ranks wait for a late rank, their steps take as long as its steps. If they take
    # less time, the delay holds no rank up, or is noise that the next step makes up for.
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
    """Return, for each rank, the median over the other ranks. For an even number of other ranks it
    is the lower of the two middle values, so that it is the value of one of them."""
    ordered, middle = np.sort(values, axis=0), (len(values) - 2) // 2
    usual: Array = np.where(values <= ordered[middle], ordered[middle + 1], ordered[middle])
    return usual
