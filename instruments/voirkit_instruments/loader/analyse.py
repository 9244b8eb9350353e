"""The ``loader`` section of a summary, for a run or for the directories of its ranks
(docs/pipeline.md).

Pure functions compute it in three stages: from the records of one rank, its batches
(``analyse_records``) and operations; from these, the totals of each loader, which add up over ranks
(``analyse_totals``); from the totals, the figures of a summary (here).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import ceil
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
    """Return the ranks that have recorded their loaders."""
    return sorted({rank for rank, _, _ in run.recorded(KIND)})


def summarise_run(
    runs: Collection[Run], training: Collection[int] = (), only: int | None = None
) -> dict[str, Any] | None:
    """Return the figures of a run's loaders; None if it was recorded without ``--loader``.

    Args:
        runs: The run, or the directories of its ranks.
        training: Numbers of the loaders whose batches a model is trained on.
        only: A rank; only its loaders are read.
    """
    # also rank 0, whose files have the records of processes that learnt their rank late
    files = None if only is None else {only, 0}
    read = partial(_loader_totals, only)
    parts = [part for run in runs for part in run.map_ranks(read, files)]
    totals = combine([loader for part in parts for loader in part])
    cpus = next((run.manifest["cpus"] for run in runs if run.manifest.get("cpus")), None)
    if cpus is not None:
        cpus = max(cpus // _ranks_on_a_host(runs), 1)
    return summarise_loaders(totals, training, cpus)


def _ranks_on_a_host(runs: Collection[Run]) -> int:
    processes = [process for run in runs for process in run.processes()]
    n_ranks = len({process.rank for process in processes})
    n_hosts = len({process.host for process in processes})
    return max(ceil(n_ranks / max(n_hosts, 1)), 1)


def _loader_totals(only: int | None, run: Run) -> list[LoaderTotals]:
    ranks = [rank for rank in loader_ranks(run) if only in (None, rank)]
    return [loader for rank in ranks for loader in totals_of_rank(run, rank)]


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the ``loader`` section of a summary; see ``voirkit.instrument.Instrument``."""
    recorded = summary.get("loader") or {}
    if recorded.get("operations") and summary.get("world_size") == 1 and len(runs) == 1:
        # a run of one rank has computed this section at its end, and keeps it without its trace
        return None
    training = dict.fromkeys(number for rank in ranks for number in rank.facts.get("loaders", ()))
    from voirkit_instruments.syscalls.analyse import is_by_strace

    loader = summarise_run(runs, list(training))
    if loader is not None and any(map(is_by_strace, runs)):
        loader["stretched_by"] = "strace"
    if loader is not None and is_contended(summary.get("processors")):
        loader["contended"] = True
    return {"loader": loader}


def summarise_rank(runs: Sequence[Run], rank: int) -> dict[str, Any] | None:
    """Return the section ``loader`` of one rank's summary. Which of the rank's loaders a model is
    trained on is unknown (``trains`` is None), so all are taken for loaders of the training."""
    return summarise_run(runs, only=rank)


_NAMED = 10  # slowest samples that a summary lists
_EPOCHS = 32  # most rows of epochs; if there are more epochs, neighbouring ones share a row
_FEW = 8  # fewest batches for which a measured value is used
_MOST_RECORDING = 0.6  # largest share of a batch's time that counts as the cost of recording
# limits of (reached rate) / (calculated rate); beyond them, something else limits the workers
_LEAST_REACHED, _MOST_REACHED = 0.3, 1.5
_EXACT = 0.1
_LEVEL = {ITEM: "sample", COLLATE: "collate", OPERATION: "operation"}
# name of the part of loading that causes waiting, by level of its records (see ``analyse_totals``)
_CAUSE = {
    OPERATION: "operations",
    **dict.fromkeys(READING, "dataset"),
    COLLATE: "collate",
    PREPROCESS: "fetch",
}
ITEMS_PER_SECOND, BATCHES_PER_SECOND = "items/s", "batches/s"


def summarise_loaders(
    loaders: Sequence[LoaderTotals], training: Collection[int], cpus: int | None
) -> dict[str, Any] | None:
    """Return the ``loader`` section: the most important loader, with the others in ``loaders``;
    None if no loader was used.

    Args:
        loaders: The loaders of a run, each added up over all ranks.
        training: Numbers of the loaders whose batches a model is trained on, the most important
            first; empty if unknown.
        cpus: Processors for each rank; None if unknown.
    """
    place = {number: i for i, number in enumerate(training)}

    def importance(loader: LoaderTotals) -> tuple[int, int, int]:
        return loader.owner, place.get(loader.loader, len(place)), -loader.counts["batches"]

    requested = [
        loader for loader in loaders if loader.counts["batches"] or loader.counts["failed"]
    ]
    if not requested:
        return None
    parts = [_summarise(loader, training, cpus) for loader in sorted(requested, key=importance)]
    return {**parts[0], "loaders": parts[1:]}


def _summarise(loader: LoaderTotals, training: Collection[int], cpus: int | None) -> dict[str, Any]:
    making, wait, counts = loader.times["preprocess"], loader.times["wait"], loader.counts
    rows = _operations(loader, making.total, wait.total)
    items, items_each = _items(loader)
    cost = _cost(loader, items_each or 1.0, cpus)
    enough = best = None
    candidates = []
    if making.n:
        enough, best = prediction.enough_workers(cost), prediction.best_workers(cost)
        candidates = prediction.candidate_workers(cpus, loader.workers, enough, best)
    iqr_ns = making.quantile(0.75) - making.quantile(0.25)
    collate = loader.facts.get("collate", "")
    first = prediction.first_change(rows, _order(loader), cost, making.n, loader.workers, collate)
    n_batches = counts["batches"]
    part: dict[str, Any] = {
        "loader": loader.loader,
        "workers": loader.workers,
        "batches": n_batches,
        "items": items,
        "units": BATCHES_PER_SECOND if items_each is None else ITEMS_PER_SECOND,
    }
    part |= {key: loader.facts.get(key) for key in ("dataset", "batch_size", "collate")}
    part["trains"] = loader.loader in training if training else None
    part["operations"] = {name: _without_level(row) for name, row in rows.items()}
    part["preprocess"] = {**making.seconds(), "iqr_s": iqr_ns * NS}
    part["wait"] = {**wait.seconds(), "by": _causes(loader, wait.total)}
    part["ready_share"] = counts["ready"] / n_batches if n_batches else None
    part |= {key: counts[key] for key in ("out_of_order", "failed")}
    part |= {name: _seconds(loader.times[name]) for name in ("delay", "put", "idle", "pin")}
    part["utilisation"] = _utilisation(loader)
    return part | {
        "queue": loader.queue,
        "epochs": _epochs(loader.epochs),
        "drift": _drift(loader),
        "slowest": _slowest(loader),
        "cost": asdict(cost),
        "starts": _starts(loader),
        "predicted": prediction.predict_rates(cost, candidates),
        "enough_workers": enough,
        "best_workers": best,
        "first": first,
    }


def _without_level(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "level"}


def _seconds(times: Histogram) -> dict[str, Any] | None:
    return times.seconds() if times.n else None


def _slowest(loader: LoaderTotals) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "n": n,
            "median_s": median * NS,
            "max_s": most * NS,
            "operation": operation or None,
        }
        for index, n, median, most, operation in loader.slowest[:_NAMED]
    ]


def _starts(loader: LoaderTotals) -> dict[str, Any]:
    """Return how long training waited for workers to start, and the share of that in all waiting.
    ``again_share`` leaves out the first start."""
    starting, starting_again = sum(loader.starts), sum(loader.starts[1:])
    waited = max(loader.times["wait"].total, 1.0)
    return {
        "n": len(loader.starts),
        "total_s": starting * NS,
        "share": starting / waited,
        "again_share": starting_again / waited,
    }


def _items(loader: LoaderTotals) -> tuple[int | None, float | None]:
    """Return the number of samples in the consumed batches, and in one batch, as steps count them;
    None if unknown.

    If steps are not recorded, samples that were read one by one are counted.
    """
    counts = loader.counts
    if counts["counted"]:
        items = None if counts["uncounted"] else counts["items"]
        return items, counts["items"] / counts["counted"]
    reads = [operation for (level, _, _), operation in loader.operations.items() if level == ITEM]
    n = sum(operation.spans.n for operation in reads)
    n_batches = loader.times["preprocess"].n
    if not n or not n_batches or any(operation.of_batches for operation in reads):
        return None, None
    return n, n / n_batches


def _cost(loader: LoaderTotals, items: float, cpus: int | None) -> prediction.Cost:
    """Return the cost of a batch. It is measured; but without workers, the cost of handing a batch
    over is calculated from its size."""
    cpu = loader.times["cpu"]
    pause_s = loader.times["pause"].mean * NS
    mean = {name: float(total / n) for name, (total, n) in loader.costs.items() if n}
    batch_s = loader.times["usual"].mean * NS
    if loader.workers:
        batch_s += loader.times["put"].mean * NS
        handover = _measured_handover(loader, mean)
        beside_s, threads = _beside_making(loader, mean, handover, batch_s)
    else:
        # plus the time that torch itself needs for a request
        batch_s += max(loader.times["wait"].mean - loader.times["preprocess"].mean, 0.0) * NS
        beside_s, threads = 0.0, 1.0
        handover = prediction.handover_costs(
            mean.get("bytes", 0.0), mean.get("tensors", 0.0), loader.handover
        )
    busy_cores = 1.0
    if pause_s and "training_ns" in mean:
        busy_cores = mean["training_ns"] * NS / pause_s
    cost = prediction.Cost(
        batch_s,
        cpu.mean * NS if cpu.n else None,
        pause_s,
        items,
        cpus,
        training_cores=min(busy_cores, cpus or busy_cores),
        beside_s=beside_s,
        threads=threads,
        **handover,
    )
    cost = replace(cost, reached=_share_reached(loader, cost))
    recording_s = min(
        prediction.recording_s(_records_a_batch(loader), loader.handover),
        _MOST_RECORDING * cost.batch_s,
    )
    cpu_s = None if cost.cpu_s is None else max(cost.cpu_s - recording_s, 0.0)
    return replace(cost, batch_s=cost.batch_s - recording_s, cpu_s=cpu_s)


def _measured_handover(loader: LoaderTotals, mean: Mapping[str, float]) -> dict[str, float]:
    """Return the times for handing a batch over, as measured with workers."""
    take_s, receive = mean.get("receive_ns", 0.0) * NS, loader.times["receive"]
    return {
        "send_s": mean.get("send_ns", 0.0) * NS,
        "take_s": take_s,
        "receive_s": receive.quantile(0.5) * NS if receive.n >= _FEW else 2 * take_s,
    }


def _beside_making(
    loader: LoaderTotals, mean: Mapping[str, float], handover: Mapping[str, float], batch_s: float
) -> tuple[float, float]:
    """Return the part of ``batch_s`` in which a worker hands batches over, and the number of its
    threads that compute at once."""
    cpu_ns = loader.times["cpu"].mean
    making_s = mean.get("making_ns", cpu_ns) * NS
    # CPU time of the worker's threads other than the one that makes batches: they hand batches over
    # and compute
    other_threads_s = max(cpu_ns * NS - making_s, 0.0)
    beside_s = min(other_threads_s, handover["send_s"] + handover["take_s"])
    threads = 1.0 + (other_threads_s - beside_s) / making_s if making_s else 1.0
    into_shared_memory = prediction.handover_costs(
        mean.get("bytes", 0.0), 0.0, {"mb_ns": loader.handover.get("mb_ns", 0.0)}
    )
    beside_s += into_shared_memory["send_s"]
    return min(beside_s, 0.9 * batch_s), threads


def _share_reached(loader: LoaderTotals, cost: prediction.Cost) -> float:
    """Return the rate that workers have reached, relative to the calculated rate. They differ
    because workers share memory, disk and caches, and wake each other."""
    turn = loader.times["turn"]
    if not loader.workers or turn.n < _FEW:
        return 1.0
    worked_out = min(prediction.rate_limits(cost, loader.workers).values())
    share = 1 / (max(turn.mean, 1.0) * NS * worked_out)
    if abs(share - 1) < _EXACT:
        return 1.0
    return min(max(share, _LEAST_REACHED), _MOST_REACHED)


def _records_a_batch(loader: LoaderTotals) -> float:
    """Return the number of records per batch that its making writes."""
    n_batches = loader.times["preprocess"].n
    if not n_batches:
        return 0.0
    in_batches = [
        operation for (level, _, _), operation in loader.operations.items() if level != PREPROCESS
    ]
    return sum(operation.spans.n for operation in in_batches) / n_batches


def _operations(
    loader: LoaderTotals, making_ns: float, waited_ns: float
) -> dict[str, dict[str, Any]]:
    """Return rows by name, those with the longest time first: operations, the dataset's own code,
    collation.

    ``share`` is relative to the time of making batches. ``wait_share`` is relative to the time of
    waiting for batches: the part that the worker of the awaited batch spent on the operation. An
    operation that only runs inside another one has ``inside``, and its shares are parts of the
    other's.
    """
    rows: dict[str, dict[str, Any]] = {}
    for (level, name, inside), operation in _named_work(loader).items():
        if level == ITEM and not operation.spans.total:
            continue
        row = _operation_row(operation, level, making_ns, waited_ns)
        if inside:
            row["inside"] = inside
        main, minor = rows.setdefault(name, row), row
        if main is row:
            continue
        if "inside" in main and (not inside or row["total_s"] > main["total_s"]):
            main, minor = row, main
            rows[name] = main
            if "nested" in minor:
                main["nested"] = minor.pop("nested")
        if "inside" in minor:  # the operation also runs inside one or more other operations
            nested = main.setdefault("nested", {"n": 0, "total_s": 0.0})
            nested["n"] += minor["n"]
            nested["total_s"] += minor["total_s"]
    return dict(sorted(rows.items(), key=lambda pair: -pair[1]["total_s"]))


def _named_work(loader: LoaderTotals) -> dict[tuple[int, str, str], Operation]:
    """Return number and time of calls by (level, displayed name, operation around it). All reading
    of a dataset is one entry, no matter if the loader or another dataset requested it."""
    dataset_name = f"{loader.facts.get('dataset') or 'dataset'}.__getitem__"
    work: dict[tuple[int, str, str], Operation] = {}
    for (level, name, inside), operation in loader.operations.items():
        if level == PREPROCESS:
            continue
        if level in READING:
            level, name = ITEM, name or dataset_name
        elif level == COLLATE:
            name = "collate_fn"
        key = level, name, inside
        work[key] = work[key] + operation if key in work else operation
    return work


def _operation_row(
    operation: Operation, level: int, making_ns: float, waited_ns: float
) -> dict[str, Any]:
    spans = operation.spans
    row = {
        **spans.seconds(),
        "under_10ms": spans.share_below(10e6),
        "under_100us": spans.share_below(100e3),
        "share": spans.total / making_ns if making_ns else 0.0,
        "wait_share": operation.waited_ns / waited_ns if waited_ns else None,
        "level": _LEVEL[level],
    }
    if level == ITEM:
        row["unit"] = "batches" if operation.of_batches == spans.n else "samples"
    return row


def _causes(loader: LoaderTotals, waited_ns: float) -> dict[str, float]:
    """Return the share of the wait that each part of loading caused. ``rest`` is the remaining time
    until a batch arrives: starting workers, queues, pinning."""
    shares = {"operations": 0.0, "dataset": 0.0, "collate": 0.0, "fetch": 0.0}
    if not waited_ns:
        return shares
    for (level, _, inside), operation in loader.operations.items():
        if not inside:
            shares[_CAUSE[level]] += operation.waited_ns / waited_ns
    return {**shares, "rest": max(1 - sum(shares.values()), 0.0)}


def _outer_operations(loader: LoaderTotals) -> dict[str, Operation]:
    return {
        name: operation
        for (level, name, inside), operation in loader.operations.items()
        if level == OPERATION and not inside
    }


def _order(loader: LoaderTotals) -> list[str]:
    """Return the operations in the order in which they are applied to a sample."""
    outer = _outer_operations(loader)
    return sorted(outer, key=lambda name: outer[name].offset_ns / max(outer[name].spans.n, 1))


def _utilisation(loader: LoaderTotals) -> dict[str, Any] | None:
    """Return the busy share of each worker while there were batches to make; None without workers.
    ``imbalance`` is how much longer than the mean the busiest worker worked, relative to the
    mean."""
    if not loader.busy:
        return None
    workers = []
    for (rank, worker), (n, busy_ns, present_ns) in sorted(loader.busy.items()):
        row = {
            "worker": worker,
            "batches": n,
            "busy": busy_ns / present_ns if present_ns else 0.0,
            "busy_s": busy_ns * NS,
        }
        workers.append({"rank": rank, **row} if len(loader.ranks) > 1 else row)
    times_s = [row["busy_s"] for row in workers]
    mean_s = sum(times_s) / len(workers)
    return {
        "busy": sum(row["busy"] for row in workers) / len(workers),
        "imbalance": max(times_s) / mean_s - 1 if mean_s else 0.0,
        "workers": workers,
    }


def _epochs(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    """Return a row for each epoch; if there are many, neighbouring epochs share a row."""
    epochs_a_row = max(ceil(len(epochs) / _EPOCHS), 1)
    rows = []
    for first in range(0, len(epochs), epochs_a_row):
        group = epochs[first : first + epochs_a_row]
        n_batches = sum(epoch.batches for epoch in group)
        making_ns = sum(epoch.making_ns for epoch in group)
        row = {
            "epoch": first,
            "epochs": len(group),
            "batches": n_batches,
            "wait_s": sum(epoch.waited_ns for epoch in group) * NS,
            "time_s": sum(epoch.lasted_ns for epoch in group) * NS,
            "preprocess_mean_s": making_ns / n_batches * NS if n_batches else 0.0,
        }
        rows.append(row)
    return rows


def _drift(loader: LoaderTotals) -> dict[str, Any] | None:
    """Return the relative change of the time to make a batch, from the first third of the epochs to
    the last, and the operation whose time changed most. None if there are fewer than two epochs."""
    by_epoch = [(epoch.batches, epoch.making_ns) for epoch in loader.epochs]
    if len(by_epoch) < 2:
        return None
    drift: dict[str, Any] = {"preprocess": _change(by_epoch)}
    outer = _outer_operations(loader)
    changes = {}
    for name, operation in outer.items():
        by_episode = [totals for _, totals in sorted(operation.by_episode.items())]
        changes[name] = _change(by_episode) or 0.0
    if changes:
        name = max(changes, key=lambda name: abs(changes[name] * outer[name].spans.total))
        drift["operation"] = name
        drift["operation_change"] = changes[name]
    return drift


def _change(values: Sequence[tuple[int, float]]) -> float | None:
    """Return the relative change of a mean, given (number, sum), from the first third to the
    last."""
    third = max(len(values) // 3, 1)
    before, after = _mean(values[:third]), _mean(values[-third:])
    return after / before - 1 if before else None


def _mean(values: Sequence[tuple[int, float]]) -> float:
    return sum(total for _, total in values) / max(sum(n for n, _ in values), 1)
