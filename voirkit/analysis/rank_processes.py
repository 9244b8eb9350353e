"""Joins the processes of a restarted rank to one rank, and processes that each train or evaluate
alone to one timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import DeviceTable, Steps, Table, Uncounted, concatenated
from voirkit.analysis.work_times import NEVER


def joined(parts: Sequence[Rank]) -> list[Rank]:
    """Return the ranks, ascending by number, each once; then the processes that train alone, by
    start.

    Of a rank's processes those that train are joined. If none trains, the process that evaluates
    most is taken. If a process that trains alone is the only result, it counts as a rank (``alone``
    is False).
    """
    by_rank: dict[int, list[Rank]] = {}
    standalone = []
    for part in parts:
        if part.alone:
            standalone.append(part)
        else:
            by_rank.setdefault(part.rank, []).append(part)
    ranks = [_join_rank(same_rank) for _, same_rank in sorted(by_rank.items())]
    with_steps = [part for part in standalone if any(map(len, part.steps.tables))]
    own_processes = with_steps or standalone[:1]
    if own_processes:
        ids = {id(part) for part in own_processes}
        left_out = [part for part in standalone if id(part) not in ids]
        own_processes[0] = _with_uncounted_of(own_processes[0], left_out)
    if len(own_processes) == 1 and not ranks:
        return [replace(own_processes[0], alone=False)]
    return [*ranks, *sorted(own_processes, key=lambda part: _begin_ns(part.steps))]


def _with_uncounted_of(part: Rank, other_parts: Sequence[Rank]) -> Rank:
    """Return a process with the uncounted training of other processes added to its own."""
    uncounted = (other.steps.uncounted for other in other_parts)
    total = reduce(Uncounted.plus, uncounted, part.steps.uncounted)
    return replace(part, steps=replace(part.steps, uncounted=total))


def _join_rank(parts: Sequence[Rank]) -> Rank:
    """Join the processes of one rank."""
    trained = [part for part in parts if len(part.steps.train)]
    largest = max(trained or parts, key=lambda part: tuple(map(len, part.steps.tables)))
    if len(trained) < 2:
        uncounted = reduce(Uncounted.plus, (part.steps.uncounted for part in parts))
        return replace(largest, steps=replace(largest.steps, uncounted=uncounted))
    trained.sort(key=lambda part: int(part.steps.train.start_ns.min()))
    collectives = [part.collectives for part in trained if part.collectives is not None]
    processes = chain.from_iterable(part.processes for part in trained)
    return replace(
        largest,
        steps=_after_each_other([part.steps for part in trained]),
        processes=tuple(processes),
        # each process numbers its collectives anew: only those of the last process are kept
        collectives=collectives[-1] if collectives else None,
    )


def _after_each_other(parts: Sequence[Steps]) -> Steps:
    train, order = _sorted_table([part.train for part in parts])
    evaluation, _ = _sorted_table([part.evaluation for part in parts])
    devices = [part.device for part in parts if part.device is not None]
    device = None
    if len(devices) == len(parts):
        on_device, _ = _sorted_table([part.table for part in devices], order)
        launching_ns = np.concatenate([part.launching_ns for part in devices])
        device = DeviceTable(on_device, launching_ns[order])
    uncounted = reduce(Uncounted.plus, (part.uncounted for part in parts))
    in_evaluation_ns = sum(part.workers_in_evaluation_ns for part in parts)
    return Steps(
        train,
        evaluation,
        all(part.wait_known for part in parts),
        device,
        saving_between_ns=sum(part.saving_between_ns for part in parts),
        aside_ns=_aside(parts),
        uncounted=uncounted,
        workers_in_evaluation_ns=in_evaluation_ns,
    )


def _aside(parts: Sequence[Steps]) -> dict[str, tuple[int, int]]:
    """Return a dict from name to the times outside of steps, before and after the first step of all
    parts. The time before the first step of a later part counts as after."""
    aside_ns = {}
    for name in dict.fromkeys(name for part in parts for name in part.aside_ns):
        (before_ns, since_ns), *later = (part.aside_ns.get(name, (0, 0)) for part in parts)
        aside_ns[name] = before_ns, since_ns + sum(before + since for before, since in later)
    return aside_ns


def _sorted_table(parts: Sequence[Table], order: Array | None = None) -> tuple[Table, Array]:
    """Return the steps of several tables as one table, and the order used: ascending by start, or
    the given order."""
    whole = concatenated(parts)
    if order is None:
        order = np.argsort(whole.start_ns, kind="stable")
    return whole.chosen(order), order


def on_the_clock(parts: Sequence[Rank]) -> Rank:
    """Join processes that each train or evaluate alone to one timeline. Of a step that overlaps
    earlier steps, only the part after the end of all of them is kept.

    Time outside of steps is left out, with two exceptions: the time of the first process before its
    first step, and imports of the other processes before their first steps, as far as no process
    was in a step at that time.
    """
    parts = sorted(parts, key=lambda part: _begin_ns(part.steps))
    first = parts[0]
    if len(parts) < 2:
        return first
    tables = list(chain.from_iterable(part.steps.tables for part in parts))
    trains = np.concatenate([np.full(len(table), i % 2 == 0) for i, table in enumerate(tables)])
    whole, order = _sorted_table(tables)
    trains = trains[order]
    end_ns = whole.start_ns + whole.time_ns
    covered_ns = np.maximum.accumulate(end_ns)
    begin_ns = np.maximum(whole.start_ns, np.concatenate((whole.start_ns[:1], covered_ns[:-1])))
    time_ns = np.maximum(end_ns - begin_ns, 0)
    share = time_ns / np.maximum(whole.time_ns, 1)
    own_ns = np.rint(whole.own_ns * share[:, None]).astype(np.int64)
    train, evaluation = (
        Table(begin_ns[rows], time_ns[rows], whole.items[rows], own_ns[rows])
        for rows in (trains, ~trains)
    )
    aside_ns = {name: (before_ns, 0) for name, (before_ns, _) in first.steps.aside_ns.items()}
    if "import" in aside_ns:
        # start of a step -> for how long before that start no process was in a step
        idle_ns = {
            int(start_ns): int(start_ns - before_ns)
            for start_ns, before_ns in zip(whole.start_ns[1:], covered_ns, strict=False)
        }
        importing_ns = 0
        for part in parts[1:]:
            idle_before_ns = max(idle_ns.get(_begin_ns(part.steps), 0), 0)
            importing_ns += min(part.steps.aside_ns["import"][0], idle_before_ns)
        aside_ns["import"] = aside_ns["import"][0], importing_ns
    processes = tuple(chain.from_iterable(part.processes for part in parts))
    steps = Steps(train, evaluation, True, aside_ns=aside_ns)
    return replace(first, steps=steps, processes=processes)


def _begin_ns(steps: Steps) -> int:
    return 0 if steps.first_ns == NEVER else steps.first_ns
