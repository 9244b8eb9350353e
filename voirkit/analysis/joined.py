"""The parts of a rank as one: a rank that was started again has several processes, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import DeviceTable, Steps, Table


def joined(parts: Sequence[Rank]) -> list[Rank]:
    """Ranks, ascending, each once; then the processes that train for themselves, in the order in which they began.

    Of a rank's processes those that train count, or, if none does, the one that evaluates most. A process that is the only one is no
    process beside others.
    """
    by_rank: dict[int, list[Rank]] = {}
    alone = []
    for part in parts:
        if part.alone:
            alone.append(part)
        else:
            by_rank.setdefault(part.rank, []).append(part)
    found = [_one(same) for _, same in sorted(by_rank.items())]
    alone = [part for part in alone if len(part.steps.train) or len(part.steps.evaluation)] or alone[:1]
    if len(alone) == 1 and not found:
        return [replace(alone[0], alone=False)]
    return [*found, *sorted(alone, key=lambda part: _begun(part.steps))]


def _one(parts: Sequence[Rank]) -> Rank:
    trained = [part for part in parts if len(part.steps.train)]
    most = max(trained or parts, key=lambda part: (len(part.steps.train), len(part.steps.evaluation)))
    if len(trained) < 2:
        return most
    trained.sort(key=lambda part: int(part.steps.train.start_ns.min()))
    processes = tuple(process for part in trained for process in part.processes)
    return replace(most, steps=_after_each_other([part.steps for part in trained]), processes=processes)


def _after_each_other(parts: Sequence[Steps]) -> Steps:
    train, order = _table([part.train for part in parts])
    devices = [part.device for part in parts if part.device is not None]
    device = None
    if len(devices) == len(parts):
        launching = np.concatenate([one.launching_ns for one in devices])
        device = DeviceTable(_table([one.table for one in devices], order)[0], launching[order])
    return Steps(
        train, _table([part.evaluation for part in parts])[0], all(part.wait_known for part in parts), device,
        saving_between_ns=sum(part.saving_between_ns for part in parts), aside_ns=_aside(parts),
    )  # fmt: skip


def _aside(parts: Sequence[Steps]) -> dict[str, tuple[int, int]]:
    """What is in no step, before the first step of all, and since then: also before the first of each later part."""
    found = {}
    for name in dict.fromkeys(name for part in parts for name in part.aside_ns):
        first, *later = (part.aside_ns.get(name, (0, 0)) for part in parts)
        found[name] = first[0], first[1] + sum(before + since for before, since in later)
    return found


def _table(parts: Sequence[Table], order: Array | None = None) -> tuple[Table, Array]:
    """The steps of several tables in one, ascending by start or in a given order, and that order."""
    columns = [np.concatenate([getattr(part, column) for part in parts]) for column in ("start_ns", "time_ns", "items", "own_ns")]
    if order is None:
        order = np.argsort(columns[0], kind="stable")
    return Table(*(column[order] for column in columns)), order


def on_the_clock(parts: Sequence[Rank]) -> Rank:
    """Processes that train or evaluate each for itself, as one: of steps that overlap what lies behind the end of all before.

    What each did outside of its steps is left out, but for what the first did before them.
    """
    parts = sorted(parts, key=lambda part: _begun(part.steps))
    if len(parts) < 2:
        return parts[0]
    tables = [table for part in parts for table in (part.steps.train, part.steps.evaluation)]
    trains = np.concatenate([np.full(len(table), i % 2 == 0) for i, table in enumerate(tables)])
    whole, order = _table(tables)
    trains, end = trains[order], whole.start_ns + whole.time_ns
    begun = np.maximum(whole.start_ns, np.concatenate((whole.start_ns[:1], np.maximum.accumulate(end)[:-1])))
    left = np.maximum(end - begun, 0)
    own = np.rint(whole.own_ns * (left / np.maximum(whole.time_ns, 1))[:, None]).astype(np.int64)
    both = [Table(begun[which], left[which], whole.items[which], own[which]) for which in (trains, ~trains)]
    aside = {name: (before, 0) for name, (before, _) in parts[0].steps.aside_ns.items()}
    processes = tuple(process for part in parts for process in part.processes)
    return replace(parts[0], steps=Steps(both[0], both[1], True, aside_ns=aside), processes=processes)


def _begun(steps: Steps) -> int:
    return int(min((*steps.train.start_ns, *steps.evaluation.start_ns), default=0))


__all__ = ["joined", "on_the_clock"]
