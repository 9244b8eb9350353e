"""What one rank knows of one of its loaders, in a form that adds up over ranks: counts, sums, histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.loader.analysis.lives import NONE, Lives, lives
from voirkit_instruments.loader.analysis.queue import Queue, queue_of
from voirkit_instruments.loader.analysis.records import Columns, Recorded
from voirkit_instruments.loader.analysis.samples import Operation, operations
from voirkit_instruments.loader.analysis.sources import Sources, sources
from voirkit_instruments.loader.analysis.tally import Tally

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

SLOWEST = 20  # samples that a rank names
_FEW = 8
_LONG_PAUSE = 5  # a pause between two batches that is so many times the usual is none of the training's steps


@dataclass
class Epoch:
    """One iterator's batches: how many, nanoseconds of their making, of waiting for them, and from the first request to the last."""

    batches: int = 0
    making_ns: float = 0.0
    waited_ns: float = 0.0
    lasted_ns: float = 0.0


@dataclass
class Partial:
    """One loader of one rank, or of several ranks, added up.

    Attributes:
        loader: Its number; with ``owner`` the same in every rank.
        owner: Which of a rank's processes asks it: 0 for the one that asks most.
        known: What the steps instrument knows of it.
        workers: How many it has.
        ranks: Which ranks are in it.
        operations: By (level, name, the operation in which it lies).
        times: Histograms of ``preprocess``, ``usual`` (the same without the first batch of each worker) and its ``cpu`` time, ``wait,
            delay, put, idle, pin``; ``pause``, from a batch to the next request; ``receive``, taking a batch that was there;
            ``turn``, from one request to the next where workers are at work.
        batches: How many were consumed.
        items: In them, as steps count them.
        counted: How many batches ``items`` are of.
        uncounted: Batches whose items are not known.
        failed: How many requests raised.
        ready: How many batches were there when they were asked for.
        out_of_order: How many arrived before one of a lower number.
        busy: By (rank, worker): its batches, nanoseconds of making, and of the epochs in which it was there.
        epochs: In their order.
        queue: Batches that were made and not consumed, over time; of one rank.
        costs: Sums and counts of what a batch costs beside its making, by name: ``send_ns, receive_ns, training_ns, making_ns`` of a
            processor's time, ``bytes``, ``tensors``.
        handing: What handing a batch over costs on the machine, as ``predict.Handing`` takes it; empty if that was not measured.
        starts: Of each iterator with workers, the nanoseconds by which the wait for its first batch was longer than its making.
        slowest: Samples: (index, n, median, longest, the operation that takes most of it), times in nanoseconds.
    """

    loader: int
    owner: int
    known: Mapping[str, Any]
    workers: int
    ranks: list[int]
    operations: dict[tuple[int, str, str], Operation]
    times: dict[str, Tally]
    batches: int = 0
    items: int = 0
    counted: int = 0
    uncounted: int = 0
    failed: int = 0
    ready: int = 0
    out_of_order: int = 0
    busy: dict[tuple[int, int], tuple[int, float, float]] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    queue: Queue | None = None
    slowest: list[tuple[int, int, float, float, str]] = field(default_factory=list)
    costs: dict[str, tuple[float, int]] = field(default_factory=dict)
    handing: dict[str, float] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)


def partials(run: Run, rank: int) -> list[Partial]:
    """The loaders of one rank."""
    recorded = Recorded(run, rank)
    found = recorded.of_batches()
    if not len(found):
        return []
    known = sources(recorded, found)
    all_ = lives(recorded, known, found)
    worked = operations(recorded, known, all_)
    costs, handing = recorded.of_costs(), recorded.handing()
    of_cost = known.of(costs)
    return [
        _of_source(i, rank, recorded, known, all_.take(all_.source == i), worked, costs.take(of_cost == i), handing)
        for i in range(len(known.all))
    ]


def _of_source(
    number: int, rank: int, recorded: Recorded, known: Sources, own: Lives, worked: Mapping[tuple[int, int, str, str], Operation],
    costs: Columns, handing: Mapping[str, float],
) -> Partial:  # fmt: skip
    source = known.all[number]
    owners = list(dict.fromkeys(one.pid for one in known.all))
    begun, workers = own["begun_ns"] != NONE, own["worker"]
    of_args = known.of_args(number)
    collates = [a["collate"] for a, is_own in zip(recorded.arguments, of_args, strict=True) if is_own == number and "collate" in a]
    items, counted, fetched = recorded.fetched.get((source.pid, source.loader), (0, 0, 0))
    slowest = recorded.slowest(of_args, number, SLOWEST)
    heaviest = recorded.operations_on([index for index, *_ in slowest], of_args, number)
    return Partial(
        loader=source.loader,
        owner=owners.index(source.pid),
        known={**source.known, **({"collate": collates[0]} if collates else {})},
        workers=_workers(source.known.get("workers"), own),
        ranks=[rank],
        operations={kind[1:]: operation for kind, operation in worked.items() if kind[0] == number},
        times={name: _tally(values) for name, values in _times(own).items()},
        batches=int(((own["consumed_ns"] != NONE) & (own["failed"] != 1)).sum()),
        items=items,
        counted=counted,
        uncounted=fetched - counted,
        failed=int((own["failed"] == 1).sum()),
        ready=int(_ready(own).sum()),
        out_of_order=_out_of_order(own),
        busy={(rank, worker): row for worker, row in _busy(own.take(begun)).items() if worker >= 0},
        epochs=_epochs(own),
        queue=queue_of(own) if (workers >= 0).any() else None,
        slowest=[(*row, heaviest.get(row[0], "")) for row in slowest],
        costs=_sums(recorded, costs),
        handing=dict(handing),
        starts=_starts(own),
    )


def _workers(known: int | None, own: Lives) -> int:
    """How many workers a loader has: as it says itself, else the highest number of one that was seen."""
    return known if known is not None else max(int(own["worker"].max(initial=-1)), int(own["sent_to"].max(initial=-1))) + 1


def _tally(values: Array) -> Tally:
    made = Tally()
    made.add(values)
    return made


def _sums(recorded: Recorded, costs: Columns) -> dict[str, tuple[float, int]]:
    found = {}
    for code in np.unique(costs.name).tolist():
        values = costs.value[costs.name == code].astype(np.float64)
        if len(values) > _FEW:  # what is done once, at the first ones, is not what a batch costs
            values = np.minimum(values, _LONG_PAUSE * np.median(values))
        found[recorded.names[code][1]] = float(values.sum()), len(values)
    return found


def _starts(own: Lives) -> list[float]:
    """By iterator with workers: how much longer the training waited for its first batch than its making took."""
    found = []
    own = own.take((own["worker"] >= 0) & (own["asked_ns"] != NONE) & (own["came_ns"] != NONE) & (own["ended_ns"] != NONE))
    for episode in np.unique(own.episode).tolist():
        rows = np.flatnonzero(own.episode == episode)
        first = rows[np.argmin(own["asked_ns"][rows])]
        waited, making = own["came_ns"][first] - own["asked_ns"][first], own["ended_ns"][first] - own["begun_ns"][first]
        found.append(float(max(waited - making, 0)))
    return found


def _times(own: Lives) -> dict[str, Array]:
    usual = own.take(~_first_of_workers(own))
    known = {name: own[column][own[column] != NONE] for name, column in (("put", "put_ns"), ("idle", "idle_ns"), ("pin", "pinned_ns"))}
    return {
        "preprocess": own.durations("begun_ns", "ended_ns"),
        "usual": usual.durations("begun_ns", "ended_ns"),
        "cpu": usual["cpu_ns"][usual["cpu_ns"] != NONE],
        "wait": own.durations("asked_ns", "came_ns"),
        "delay": own.durations("ended_ns", "consumed_ns"),
        "pause": _pauses(own),
        "receive": _receives(own),
        "turn": _turns(own),
        **known,
    }


def _first_of_workers(own: Lives) -> Array:
    """The first batch of each worker process that has made several: it pays for what is imported and opened once."""
    first = np.zeros(len(own), bool)
    for thread in np.unique(own["thread"][own["thread"] != NONE]).tolist():
        made = np.flatnonzero(own["thread"] == thread)
        if len(made) > 2:
            first[made[np.argmin(own["begun_ns"][made])]] = True
    return first


def _pauses(own: Lives) -> Array:
    """From each batch to the next request of the same iterator: what the training does with a batch."""
    own = own.take((own["asked_ns"] != NONE) & (own["came_ns"] != NONE))
    order = np.lexsort((own["asked_ns"], own.episode))
    episode, asked, came = own.episode[order], own["asked_ns"][order], own["came_ns"][order]
    pauses = np.maximum(asked[1:] - came[:-1], 0)[episode[1:] == episode[:-1]]
    return pauses[pauses <= _LONG_PAUSE * np.median(pauses)] if len(pauses) else pauses


def _receives(own: Lives) -> Array:
    """How long taking a batch lasts that a worker had put on the queue before it was asked for."""
    put = own["ended_ns"] + np.maximum(own["put_ns"], 0)
    there = (own["worker"] >= 0) & (own["ended_ns"] != NONE) & (own["asked_ns"] != NONE) & (put <= own["asked_ns"]) & (own["ready"] != 1)
    own = own.take(there)
    return own.durations("asked_ns", "came_ns")


def _turns(own: Lives) -> Array:
    """From each request to the next one of the same iterator, but for the first ones, in which workers start and the queue is filled."""
    own = own.take((own["worker"] >= 0) & (own["asked_ns"] != NONE) & (own["came_ns"] != NONE))
    found = [np.zeros(0, np.int64)]
    for episode in np.unique(own.episode).tolist():
        asked = np.sort(own["asked_ns"][own.episode == episode])
        found.append(np.diff(asked)[3 * (int(own["worker"].max()) + 1) :])
    turns = np.concatenate(found)
    return turns[turns <= _LONG_PAUSE * np.median(turns)] if len(turns) else turns


def _ready(own: Lives) -> Array:
    """Which batches were there when they were asked for: taken out of turn before, or put by their worker."""
    put = own["ended_ns"] + np.maximum(own["put_ns"], 0)
    made = (own["worker"] >= 0) & (own["ended_ns"] != NONE) & (own["asked_ns"] != NONE) & (put <= own["asked_ns"])
    return made | (own["ready"] == 1)


def _out_of_order(own: Lives) -> int:
    n = 0
    arrived = own.take(own["arrived_ns"] != NONE)
    for episode in np.unique(arrived.episode).tolist():
        times = arrived["arrived_ns"][arrived.episode == episode]  # ascending by number of the batch
        n += int((times[1:] < np.maximum.accumulate(times)[:-1]).sum())
    return n


def _busy(own: Lives) -> dict[int, tuple[int, float, float]]:
    """By worker: batches, time of making them, and how long the epochs lasted in which it made some."""
    found: dict[int, tuple[int, float, float]] = {}
    making = own["ended_ns"] - own["begun_ns"]
    for episode in np.unique(own.episode).tolist():
        rows = own.episode == episode
        lasted = float(own["ended_ns"][rows].max() - own["begun_ns"][rows].min())
        for worker in np.unique(own["worker"][rows]).tolist():
            mine = rows & (own["worker"] == worker)
            n, spent, there = found.get(worker, (0, 0.0, 0.0))
            found[worker] = n + int(mine.sum()), spent + float(making[mine].sum()), there + lasted
    return found


def _epochs(own: Lives) -> list[Epoch]:
    found = []
    waits = np.where((own["asked_ns"] != NONE) & (own["came_ns"] != NONE), own["came_ns"] - own["asked_ns"], 0)
    making = np.where((own["begun_ns"] != NONE) & (own["ended_ns"] != NONE), own["ended_ns"] - own["begun_ns"], 0)
    for episode in np.unique(own.episode).tolist():
        rows = (own.episode == episode) & (own["asked_ns"] != NONE)
        if rows.any():
            lasted = float(own["came_ns"][rows].max() - own["asked_ns"][rows].min())
            found.append(Epoch(int(rows.sum()), float(making[rows].sum()), float(waits[rows].sum()), lasted))
    return found


def combine(parts: Sequence[Partial]) -> list[Partial]:
    """The loaders of a whole run from those of its ranks."""
    found: dict[tuple[int, int], Partial] = {}
    for part in parts:
        key = (part.owner, part.loader)
        found[key] = _both(found[key], part) if key in found else part
    return list(found.values())


def _both(one: Partial, other: Partial) -> Partial:
    worked = dict(one.operations)
    for kind, operation in other.operations.items():
        worked[kind] = together(worked[kind], operation) if kind in worked else operation
    n = max(len(one.epochs), len(other.epochs))
    padded = ([*part.epochs, *([Epoch()] * (n - len(part.epochs)))] for part in (one, other))
    return replace(
        one,
        ranks=[*one.ranks, *other.ranks],
        operations=worked,
        times={name: tally.merge(other.times[name]) for name, tally in one.times.items()},
        batches=one.batches + other.batches,
        items=one.items + other.items,
        counted=one.counted + other.counted,
        uncounted=one.uncounted + other.uncounted,
        failed=one.failed + other.failed,
        ready=one.ready + other.ready,
        out_of_order=one.out_of_order + other.out_of_order,
        busy={**one.busy, **other.busy},
        epochs=[
            Epoch(a.batches + b.batches, a.making_ns + b.making_ns, a.waited_ns + b.waited_ns, max(a.lasted_ns, b.lasted_ns))
            for a, b in zip(*padded, strict=True)
        ],
        costs={name: _added(one.costs.get(name), other.costs.get(name)) for name in {**one.costs, **other.costs}},
        starts=[*one.starts, *other.starts],
        slowest=sorted([*one.slowest, *other.slowest], key=lambda row: -row[2])[:SLOWEST],
    )


def _added(one: tuple[float, int] | None, other: tuple[float, int] | None) -> tuple[float, int]:
    (a, n), (b, m) = one or (0.0, 0), other or (0.0, 0)
    return a + b, n + m


def together(one: Operation, other: Operation) -> Operation:
    """The runs of both."""
    by_episode = dict(one.by_episode)
    for episode, (n, spent) in other.by_episode.items():
        before = by_episode.get(episode, (0, 0.0))
        by_episode[episode] = before[0] + n, before[1] + spent
    return Operation(
        one.spans.merge(other.spans), one.waited_ns + other.waited_ns, one.offset_ns + other.offset_ns, by_episode,
        one.of_batches + other.of_batches,
    )  # fmt: skip
