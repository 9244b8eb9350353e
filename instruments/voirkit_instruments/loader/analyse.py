"""``loader`` of a summary for a run, or for the directories of its ranks: the figures of what all ranks know of its loaders
(docs/pipeline.md).

A pipeline of pure functions: the records of one rank -> its batches (``analyse_records``) and operations -> what it knows of each loader,
which adds up over ranks (``analyse_totals``) -> the figures of a summary, here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from voirkit.runs.opened import Run
from voirkit.runs.summary import is_contended
from voirkit_instruments.loader import analyse_prediction as prediction
from voirkit_instruments.loader.analyse_records import KIND
from voirkit_instruments.loader.analyse_totals import (
    COLLATE,
    ITEM,
    NS,
    OPERATION,
    PREPROCESS,
    READING,
    Epoch,
    Histogram,
    LoaderTotals,
    Operation,
    combine,
    totals_of_rank,
)

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank


def loader_ranks(run: Run) -> list[int]:
    """The ranks that have recorded their loaders."""
    return sorted({rank for rank, _, _ in run.recorded(KIND)})


def summarise_run(runs: Collection[Run], training: Collection[int] = (), only: int | None = None) -> dict[str, Any] | None:
    """What the loaders of a run did; None if it was recorded without ``--loader``.

    Args:
        runs: The run, or the directories of its ranks.
        training: Numbers of the loaders that are trained on.
        only: Those of this rank alone.
    """
    files = None if only is None else {only, 0}  # in the first's are those that learnt their rank late
    totals = combine([loader for run in runs for part in run.map_ranks(partial(_totals, only), files) for loader in part])
    cpus = next((run.manifest["cpus"] for run in runs if run.manifest.get("cpus")), None)
    places = {(process.host, process.rank) for run in runs for process in run.processes()}
    ranks_a_host = -(-len({rank for _, rank in places}) // max(len({host for host, _ in places}), 1)) or 1
    return summarise_loaders(totals, training, None if cpus is None else max(cpus // ranks_a_host, 1))


def _totals(only: int | None, run: Run) -> list[LoaderTotals]:
    return [loader for rank in loader_ranks(run) if only in (None, rank) for loader in totals_of_rank(run, rank)]


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``loader`` of a summary; see ``voirkit.instrument.Instrument``."""
    own = summary.get("loader")
    if own and own.get("operations") and summary.get("world_size") == 1 and len(runs) == 1:
        return None  # a run of one rank has worked it out at its end, and keeps it without its trace
    training = dict.fromkeys(number for rank in ranks for number in rank.facts.get("loaders", ()))
    from voirkit_instruments.syscalls.analyse import is_by_strace

    loader = summarise_run(runs, list(training))
    if loader is not None and any(map(is_by_strace, runs)):
        loader["stretched_by"] = "strace"
    if loader is not None and is_contended(summary.get("processors")):
        loader["contended"] = True
    return {"loader": loader}


def summarise_rank(runs: Sequence[Run], rank: int) -> dict[str, Any] | None:
    """The same of one rank; its loaders are taken for trained on."""
    return summarise_run(runs, only=rank)


def rules(run: Run) -> Iterator[tuple[int, Iterable[Any]]]:
    """What must be true of the records of each rank's loaders; see ``voirkit.instrument.Instrument``."""
    from voirkit_instruments.loader.analyse_check import check

    for rank in loader_ranks(run):
        yield rank, check(run, rank)


_NAMED = 10  # samples that a summary names
_EPOCHS = 32  # more are put together
_FEW = 8  # batches that tell something
_MOST_RECORDING = 0.6  # of the time of a batch
_LEAST_REACHED, _MOST_REACHED = 0.3, 1.5  # what workers reach of the rate that is worked out; beyond, it is another thing that limits them
_EXACT = 0.1
_LEVEL = {ITEM: "sample", COLLATE: "collate", OPERATION: "operation"}
ITEMS_PER_SECOND, BATCHES_PER_SECOND = "items/s", "batches/s"


def summarise_loaders(loaders: Sequence[LoaderTotals], training: Collection[int], cpus: int | None) -> dict[str, Any] | None:
    """``loader`` of a summary: that which trains, the others in its ``loaders``; None without any.

    Args:
        loaders: Of a run, each of all ranks.
        training: Numbers of loaders whose batches a model is trained on, the most important first; empty if that is not known.
        cpus: Processors of a host.
    """
    used = [loader for loader in loaders if loader.counts["batches"] or loader.counts["failed"]]
    if not used:
        return None
    order = {number: i for i, number in enumerate(training)}
    used.sort(key=lambda loader: (loader.owner, order.get(loader.loader, len(order)), -loader.counts["batches"]))
    first, *others = (_summarise(loader, training, cpus) for loader in used)
    return {**first, "loaders": others}


def _summarise(loader: LoaderTotals, training: Collection[int], cpus: int | None) -> dict[str, Any]:
    making, wait, counts = loader.times["preprocess"], loader.times["wait"], loader.counts
    rows = _operations(loader, making.total, wait.total)
    items, items_each = _items(loader)
    cost = _cost(loader, items_each or 1.0, cpus)
    enough, best = (prediction.enough_workers(cost), prediction.best_workers(cost)) if making.n else (None, None)
    candidates = prediction.candidate_workers(cpus, loader.workers, enough, best) if making.n else []
    starting, again, waited = sum(loader.starts), sum(loader.starts[1:]), max(wait.total, 1.0)
    return {
        "loader": loader.loader,
        "workers": loader.workers,
        "batches": counts["batches"],
        "items": items,
        "units": BATCHES_PER_SECOND if items_each is None else ITEMS_PER_SECOND,
        "dataset": loader.facts.get("dataset"),
        "batch_size": loader.facts.get("batch_size"),
        "collate": loader.facts.get("collate"),
        "trains": loader.loader in training if training else None,
        "operations": {name: {key: value for key, value in row.items() if key != "level"} for name, row in rows.items()},
        "preprocess": {**making.seconds(), "iqr_s": (making.quantile(0.75) - making.quantile(0.25)) * NS},
        "wait": {**wait.seconds(), "by": _causes(loader, wait.total)},
        "ready_share": counts["ready"] / counts["batches"] if counts["batches"] else None,
        "out_of_order": counts["out_of_order"],
        "failed": counts["failed"],
        **{name: times.seconds() if (times := loader.times[name]).n else None for name in ("delay", "put", "idle", "pin")},
        "utilisation": _utilisation(loader),
        "queue": loader.queue,
        "epochs": _epochs(loader.epochs),
        "drift": _drift(loader),
        "slowest": [
            {"index": index, "n": n, "median_s": median * NS, "max_s": most * NS, "operation": operation or None}
            for index, n, median, most, operation in loader.slowest[:_NAMED]
        ],
        "cost": asdict(cost),
        "starts": {"n": len(loader.starts), "total_s": starting * NS, "share": starting / waited, "again_share": again / waited},
        "predicted": prediction.predict_rates(cost, candidates),
        "enough_workers": enough,
        "best_workers": best,
        "first": prediction.first_change(rows, _order(loader), cost, making.n, loader.workers, loader.facts.get("collate", "")),
    }


def _items(loader: LoaderTotals) -> tuple[int | None, float | None]:
    """Samples in the batches that were consumed, as steps count them, and in one batch; None where that is not known. Where steps are not
    recorded, samples that were read one by one are counted."""
    counts = loader.counts
    if counts["counted"]:
        return (None if counts["uncounted"] else counts["items"]), counts["items"] / counts["counted"]
    read = [o for (level, _, _), o in loader.operations.items() if level == ITEM]
    n, making = sum(o.spans.n for o in read), loader.times["preprocess"].n
    if not n or not making or any(o.of_batches for o in read):
        return None, None
    return n, n / making


def _cost(loader: LoaderTotals, items: float, cpus: int | None) -> prediction.Cost:
    """What a batch costs: measured, but for handing it over where no worker does, which is worked out from its size."""
    cpu, usual, pause_s = loader.times["cpu"], loader.times["usual"], loader.times["pause"].mean * NS
    mean = {name: float(total / n) for name, (total, n) in loader.costs.items() if n}
    batch_s = usual.mean * NS
    if loader.workers:
        take_s, arrives = mean.get("receive_ns", 0.0) * NS, loader.times["receive"]
        handover = {
            "send_s": mean.get("send_ns", 0.0) * NS,
            "take_s": take_s,
            "receive_s": arrives.quantile(0.5) * NS if arrives.n >= _FEW else 2 * take_s,
        }
        batch_s += loader.times["put"].mean * NS
        making_s = mean.get("making_ns", cpu.mean) * NS
        others_s = max(cpu.mean * NS - making_s, 0.0)  # of its other threads: they hand batches over, and compute
        beside_s = min(others_s, handover["send_s"] + handover["take_s"])
        threads = 1.0 + (others_s - beside_s) / making_s if making_s else 1.0
        into_shared_memory = prediction.handover_costs(mean.get("bytes", 0.0), 0.0, {"mb_ns": loader.handover.get("mb_ns", 0.0)})
        beside_s += into_shared_memory["send_s"]
        beside_s = min(beside_s, 0.9 * batch_s)
    else:
        batch_s += max(loader.times["wait"].mean - loader.times["preprocess"].mean, 0.0) * NS  # torch's own part of a request
        beside_s, threads = 0.0, 1.0
        handover = prediction.handover_costs(mean.get("bytes", 0.0), mean.get("tensors", 0.0), loader.handover)
    busy = mean["training_ns"] * NS / pause_s if pause_s and "training_ns" in mean else 1.0
    cores = min(busy, cpus or busy)
    cpu_s = cpu.mean * NS if cpu.n else None
    cost = prediction.Cost(batch_s, cpu_s, pause_s, items, cpus, training_cores=cores, beside_s=beside_s, threads=threads, **handover)
    cost = replace(cost, reached=_reached(loader, cost))
    recording_s = min(prediction.recording_s(_records(loader), loader.handover), _MOST_RECORDING * cost.batch_s)
    cpu_s = None if cost.cpu_s is None else max(cost.cpu_s - recording_s, 0.0)
    return replace(cost, batch_s=cost.batch_s - recording_s, cpu_s=cpu_s)


def _reached(loader: LoaderTotals, cost: prediction.Cost) -> float:
    """Which part of the rate that is worked out workers have reached: they share memory, disk and caches, and wake each other."""
    turn = loader.times["turn"]
    if not loader.workers or turn.n < _FEW:
        return 1.0
    worked_out = min(prediction.rate_limits(cost, loader.workers).values())
    reached = 1 / (max(turn.mean, 1.0) * NS * worked_out)
    return 1.0 if abs(reached - 1) < _EXACT else min(max(reached, _LEAST_REACHED), _MOST_REACHED)


def _records(loader: LoaderTotals) -> float:
    """Records in the making of one batch."""
    making = loader.times["preprocess"].n
    return sum(o.spans.n for (level, *_), o in loader.operations.items() if level != PREPROCESS) / making if making else 0.0


def _operations(loader: LoaderTotals, making_ns: float, waited_ns: float) -> dict[str, dict[str, Any]]:
    """Rows by name, those that take most first: operations, the dataset's own work, collation.

    Shares are of the time of making batches, ``wait_share`` of that of waiting for them: what of it the worker that made the awaited
    batch spent on it. An operation that runs only in another has ``inside``, and its shares are parts of the other's.
    """
    rows: dict[str, dict[str, Any]] = {}
    for (level, shown, inside), operation in _named_work(loader).items():
        if level == ITEM and not operation.spans.total:
            continue
        row = {
            **_row(operation.spans),
            "share": operation.spans.total / making_ns if making_ns else 0.0,
            "wait_share": operation.waited_ns / waited_ns if waited_ns else None,
            "level": _LEVEL[level],
        }
        if level == ITEM:
            row["unit"] = "batches" if operation.of_batches == operation.spans.n else "samples"
        known = rows.get(shown)
        if inside:
            row["inside"] = inside
        if known is None or ("inside" in known and (not inside or row["total_s"] > known["total_s"])):
            rows[shown], known, row = row, row, known or {}
        if row and "inside" in row:  # it runs in another operation as well, or in several
            nested = known.setdefault("nested", {"n": 0, "total_s": 0.0})
            nested["n"] += row["n"]
            nested["total_s"] += row["total_s"]
    return dict(sorted(rows.items(), key=lambda pair: -pair[1]["total_s"]))


def _named_work(loader: LoaderTotals) -> dict[tuple[int, str, str], Operation]:
    """Work by (level, the name that it is shown under, the operation in which it lies). What a dataset does is one row, whether it was
    asked by the loader or by another dataset."""
    made: dict[tuple[int, str, str], Operation] = {}
    for (level, name, inside), operation in loader.operations.items():
        if level == PREPROCESS:
            continue
        if level in READING:
            level, name = ITEM, name or f"{loader.facts.get('dataset') or 'dataset'}.__getitem__"
        elif level == COLLATE:
            name = "collate_fn"
        key = level, name, inside
        made[key] = made[key] + operation if key in made else operation
    return made


def _row(spans: Histogram) -> dict[str, Any]:
    return {**spans.seconds(), "under_10ms": spans.share_below(10e6), "under_100us": spans.share_below(100e3)}


def _causes(loader: LoaderTotals, waited_ns: float) -> dict[str, float]:
    """What of the wait each kind of work caused; the rest is the way of a batch: starting workers, queues, pinning."""
    found = {"operations": 0.0, "dataset": 0.0, "collate": 0.0, "fetch": 0.0}
    names = {OPERATION: "operations", **dict.fromkeys(READING, "dataset"), COLLATE: "collate", PREPROCESS: "fetch"}
    for (level, _, inside), operation in loader.operations.items():
        if not inside and waited_ns:
            found[names[level]] += operation.waited_ns / waited_ns
    return {**found, "rest": max(1 - sum(found.values()), 0.0)} if waited_ns else found


def _outer_operations(loader: LoaderTotals) -> dict[str, Operation]:
    return {name: operation for (level, name, inside), operation in loader.operations.items() if level == OPERATION and not inside}


def _order(loader: LoaderTotals) -> list[str]:
    """The operations as they follow each other on a sample."""
    outer = _outer_operations(loader)
    return sorted(outer, key=lambda name: outer[name].offset_ns / max(outer[name].spans.n, 1))


def _utilisation(loader: LoaderTotals) -> dict[str, Any] | None:
    """How busy each worker was while there were batches to make; ``imbalance``: how much more than the mean the busiest worked."""
    if not loader.busy:
        return None
    several = len(loader.ranks) > 1
    workers = [
        {
            **({"rank": rank} if several else {}),
            "worker": worker,
            "batches": n,
            "busy": spent / there if there else 0.0,
            "busy_s": spent * NS,
        }
        for (rank, worker), (n, spent, there) in sorted(loader.busy.items())
    ]
    mean = sum(w["busy_s"] for w in workers) / len(workers)
    shares = [w["busy"] for w in workers]
    return {
        "busy": sum(shares) / len(shares),
        "imbalance": max(w["busy_s"] for w in workers) / mean - 1 if mean else 0.0,
        "workers": workers,
    }


def _epochs(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    """A row an epoch; of many, as many neighbours in a row as there is need for."""
    many = -(-len(epochs) // _EPOCHS) or 1
    rows = []
    for first in range(0, len(epochs), many):
        group = epochs[first : first + many]
        batches = sum(epoch.batches for epoch in group)
        row = {
            "epoch": first, "epochs": len(group), "batches": batches, "wait_s": sum(epoch.waited_ns for epoch in group) * NS,
            "time_s": sum(epoch.lasted_ns for epoch in group) * NS,
            "preprocess_mean_s": sum(epoch.making_ns for epoch in group) / batches * NS if batches else 0.0,
        }  # fmt: skip
        rows.append(row)
    return rows


def _drift(loader: LoaderTotals) -> dict[str, Any] | None:
    """How much longer a batch took at the end than at the beginning (thirds of the epochs), and which operation's time changed most."""
    whole = [(e.batches, e.making_ns) for e in loader.epochs]
    if len(whole) < 2:
        return None
    drift: dict[str, Any] = {"preprocess": _change(whole)}
    outer = _outer_operations(loader)
    changes = {name: _change([o.by_episode[e] for e in sorted(o.by_episode)]) or 0.0 for name, o in outer.items()}
    if changes:
        heavy = {name: changes[name] * outer[name].spans.total for name in changes}
        name = max(heavy, key=lambda n: abs(heavy[n]))
        drift["operation"], drift["operation_change"] = name, changes[name]
    return drift


def _change(values: Sequence[tuple[int, float]]) -> float | None:
    third = max(len(values) // 3, 1)
    means = [sum(v for _, v in some) / max(sum(n for n, _ in some), 1) for some in (values[:third], values[-third:])]
    return means[1] / means[0] - 1 if means[0] else None
