"""``loader`` of a summary, from what all ranks know of the loaders of a run (docs/pipeline.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from voirkit_instruments.loader.analysis import advice, predict
from voirkit_instruments.loader.analysis.partial import Epoch, Partial, together
from voirkit_instruments.loader.analysis.samples import COLLATE, ITEM, OPERATION, PREPROCESS, READING, Operation
from voirkit_instruments.loader.analysis.tally import Tally

_NS = 1e-9
_NAMED = 10  # samples that a summary names
_EPOCHS = 32  # more are put together
_FEW = 8  # batches that tell something
_MOST_RECORDING = 0.6  # of the time of a batch
_LEAST_REACHED, _MOST_REACHED = 0.3, 1.5  # what workers reach of the rate that is worked out; beyond, it is another thing that limits them
_EXACT = 0.1
_LEVEL = {ITEM: "sample", COLLATE: "collate", OPERATION: "operation"}
ITEMS_PER_SECOND, BATCHES_PER_SECOND = "items/s", "batches/s"


def figures(parts: Sequence[Partial], training: Collection[int], cpus: int | None) -> dict[str, Any] | None:
    """``loader`` of a summary: that which trains, the others in its ``loaders``; None without any.

    Args:
        parts: The loaders of a run, each of all ranks.
        training: Numbers of loaders whose batches a model is trained on, the most important first; empty if that is not known.
        cpus: Processors of a host.
    """
    used = [part for part in parts if part.batches or part.failed]
    if not used:
        return None
    order = {number: i for i, number in enumerate(training)}
    used.sort(key=lambda p: (p.owner, order.get(p.loader, len(order)), -p.batches))
    told = [_loader(part, training, cpus) for part in used]
    return {**told[0], "loaders": told[1:]}


def _loader(part: Partial, training: Collection[int], cpus: int | None) -> dict[str, Any]:
    making, wait = part.times["preprocess"], part.times["wait"]
    rows = _operations(part, making.total, wait.total)
    items, items_each = _items(part)
    cost = _cost(part, items_each or 1.0, cpus)
    found: dict[str, Any] = {
        "loader": part.loader,
        "workers": part.workers,
        "batches": part.batches,
        "items": items,
        "units": BATCHES_PER_SECOND if items_each is None else ITEMS_PER_SECOND,
        "dataset": part.known.get("dataset"),
        "batch_size": part.known.get("batch_size"),
        "collate": part.known.get("collate"),
        "trains": part.loader in training if training else None,
        "operations": {name: {k: v for k, v in row.items() if k != "level"} for name, row in rows.items()},
        "preprocess": {**making.seconds(), "iqr_s": making.iqr_s()},
        "wait": {**wait.seconds(), "by": _causes(part, wait.total)},
        "ready_share": part.ready / part.batches if part.batches else None,
        "out_of_order": part.out_of_order,
        "failed": part.failed,
    }
    for name in ("delay", "put", "idle", "pin"):
        found[name] = part.times[name].seconds() if part.times[name].n else None
    found["utilisation"] = _utilisation(part)
    found["queue"] = _queue(part)
    found["epochs"] = _epochs(part.epochs)
    found["drift"] = _drift(part)
    found["slowest"] = [
        {"index": index, "n": n, "median_s": median * _NS, "max_s": most * _NS, "operation": operation or None}
        for index, n, median, most, operation in part.slowest[:_NAMED]
    ]
    found["cost"] = asdict(cost)
    starting, again = sum(part.starts), sum(part.starts[1:])
    waited = max(wait.total, 1.0)
    found["starts"] = {"n": len(part.starts), "total_s": starting * _NS, "share": starting / waited, "again_share": again / waited}
    enough, best = (predict.enough(cost), predict.best(cost)) if making.n else (None, None)
    found["predicted"] = predict.table(cost, predict.numbers(cpus, part.workers, enough, best)) if making.n else []
    found["enough_workers"], found["best_workers"] = enough, best
    found["first"] = advice.first(rows, _order(part), cost, making.n, part.workers, part.known.get("collate", ""))
    return found


def _items(part: Partial) -> tuple[int | None, float | None]:
    """Samples in the batches that were consumed, as steps count them, and in one batch; None where that is not known.

    Where steps are not recorded, samples that were read one by one are counted.
    """
    if part.counted:
        return (None if part.uncounted else part.items), part.items / part.counted
    read = [o for (level, _, _), o in part.operations.items() if level == ITEM]
    n, making = sum(o.spans.n for o in read), part.times["preprocess"].n
    if not n or not making or any(o.of_batches for o in read):
        return None, None
    return n, n / making


def _cost(part: Partial, items: float, cpus: int | None) -> predict.Cost:
    """What a batch costs: measured, but for handing it over where no worker does, which is worked out from its size."""
    cpu, usual, pause_s = part.times["cpu"], part.times["usual"], part.times["pause"].mean * _NS
    mean = {name: total / n for name, (total, n) in part.costs.items() if n}
    batch_s = usual.mean * _NS
    if part.workers:
        take_s, arrives = mean.get("receive_ns", 0.0) * _NS, part.times["receive"]
        handing = {
            "send_s": mean.get("send_ns", 0.0) * _NS,
            "take_s": take_s,
            "receive_s": arrives.quantile(0.5) * _NS if arrives.n >= _FEW else 2 * take_s,
        }
        batch_s += part.times["put"].mean * _NS
        beside_s = max(cpu.mean - mean.get("making_ns", cpu.mean), 0.0) * _NS  # what it computes in threads of its own is not told apart
        beside_s = min(beside_s, handing["send_s"] + handing["take_s"])
        beside_s += predict.handing(mean.get("bytes", 0.0), 0.0, {"mb_ns": part.handing.get("mb_ns", 0.0)})["send_s"]  # into shared memory
        beside_s = min(beside_s, 0.9 * batch_s)
    else:
        batch_s += max(part.times["wait"].mean - part.times["preprocess"].mean, 0.0) * _NS  # torch's own part of a request
        beside_s = 0.0
        handing = predict.handing(mean.get("bytes", 0.0), mean.get("tensors", 0.0), part.handing)
    busy = mean["training_ns"] * _NS / pause_s if pause_s and "training_ns" in mean else 1.0
    cores = min(busy, cpus or busy)
    cpu_s = cpu.mean * _NS if cpu.n else None
    cost = predict.Cost(batch_s, cpu_s, pause_s, items, cpus, training_cores=cores, beside_s=beside_s, **handing)
    cost = replace(cost, reached=_reached(part, cost))
    recording_s = min(predict.recording_s(_records(part), part.handing), _MOST_RECORDING * cost.batch_s)
    cpu_s = None if cost.cpu_s is None else max(cost.cpu_s - recording_s, 0.0)
    return replace(cost, batch_s=cost.batch_s - recording_s, cpu_s=cpu_s)


def _reached(part: Partial, cost: predict.Cost) -> float:
    """Which part of the rate that is worked out workers have reached: they share memory, disk and caches, and wake each other."""
    turn = part.times["turn"]
    if not part.workers or turn.n < _FEW:
        return 1.0
    worked_out = min(predict.limits(cost, part.workers).values())
    reached = 1 / (max(turn.mean, 1.0) * _NS * worked_out)
    return 1.0 if abs(reached - 1) < _EXACT else min(max(reached, _LEAST_REACHED), _MOST_REACHED)


def _records(part: Partial) -> float:
    """Records in the making of one batch."""
    making = part.times["preprocess"].n
    return sum(o.spans.n for (level, *_), o in part.operations.items() if level != PREPROCESS) / making if making else 0.0


def _operations(part: Partial, making_ns: float, waited_ns: float) -> dict[str, dict[str, Any]]:
    """Rows by name, those that take most first: operations, the dataset's own work, collation.

    Shares are of the time of making batches, ``wait_share`` of that of waiting for them: what of it the worker that made the awaited
    batch spent on it. An operation that runs only in another has ``inside``, and its shares are parts of the other's.
    """
    rows: dict[str, dict[str, Any]] = {}
    for (level, shown, inside), operation in _shown(part).items():
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


def _shown(part: Partial) -> dict[tuple[int, str, str], Operation]:
    """Work by (level, the name that it is shown under, the operation in which it lies).

    What a dataset does is one row, whether it was asked by the loader or by another dataset.
    """
    made: dict[tuple[int, str, str], Operation] = {}
    for (level, name, inside), operation in part.operations.items():
        if level == PREPROCESS:
            continue
        if level in READING:
            level, name = ITEM, name or f"{part.known.get('dataset') or 'dataset'}.__getitem__"
        elif level == COLLATE:
            name = "collate_fn"
        key = level, name, inside
        made[key] = together(made[key], operation) if key in made else operation
    return made


def _row(spans: Tally) -> dict[str, Any]:
    return {**spans.seconds(), "under_10ms": spans.under(10e6), "under_100us": spans.under(100e3)}


def _causes(part: Partial, waited_ns: float) -> dict[str, float]:
    """What of the wait each kind of work caused; the rest is the way of a batch: starting workers, queues, pinning."""
    found = {"operations": 0.0, "dataset": 0.0, "collate": 0.0, "fetch": 0.0}
    names = {OPERATION: "operations", **dict.fromkeys(READING, "dataset"), COLLATE: "collate", PREPROCESS: "fetch"}
    for (level, _, inside), operation in part.operations.items():
        if not inside and waited_ns:
            found[names[level]] += operation.waited_ns / waited_ns
    return {**found, "rest": max(1 - sum(found.values()), 0.0)} if waited_ns else found


def _order(part: Partial) -> list[str]:
    """The operations as they follow each other on a sample."""
    outer = {name: o for (level, name, inside), o in part.operations.items() if level == OPERATION and not inside}
    return sorted(outer, key=lambda name: outer[name].offset_ns / max(outer[name].spans.n, 1))


def _utilisation(part: Partial) -> dict[str, Any] | None:
    """How busy each worker was while there were batches to make; ``imbalance``: how much more than the mean the busiest worked."""
    if not part.busy:
        return None
    several = len(part.ranks) > 1
    workers = [
        {
            **({"rank": rank} if several else {}),
            "worker": worker,
            "batches": n,
            "busy": spent / there if there else 0.0,
            "busy_s": spent * _NS,
        }
        for (rank, worker), (n, spent, there) in sorted(part.busy.items())
    ]
    mean = sum(w["busy_s"] for w in workers) / len(workers)
    shares = [w["busy"] for w in workers]
    return {
        "busy": sum(shares) / len(shares),
        "imbalance": max(w["busy_s"] for w in workers) / mean - 1 if mean else 0.0,
        "workers": workers,
    }


def _queue(part: Partial) -> dict[str, Any] | None:
    queue = part.queue
    if queue is None:
        return None
    return {
        "mean": queue.mean, "max": queue.most, "empty_share": queue.empty, "under_way": queue.under_way,
        "every_s": queue.every_ns * _NS, "depth": queue.depth,
    }  # fmt: skip


def _epochs(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    """A row an epoch; of many, as many neighbours in a row as there is need for."""
    many = -(-len(epochs) // _EPOCHS) or 1
    found = []
    for at in range(0, len(epochs), many):
        group = epochs[at : at + many]
        batches = sum(e.batches for e in group)
        found.append(
            {
                "epoch": at, "epochs": len(group), "batches": batches, "wait_s": sum(e.waited_ns for e in group) * _NS,
                "time_s": sum(e.lasted_ns for e in group) * _NS,
                "preprocess_mean_s": sum(e.making_ns for e in group) / batches * _NS if batches else 0.0,
            }
        )  # fmt: skip
    return found


def _drift(part: Partial) -> dict[str, Any] | None:
    """How much longer a batch took at the end than at the beginning (thirds of the epochs), and which operation's time changed most."""
    whole = [(e.batches, e.making_ns) for e in part.epochs]
    if len(whole) < 2:
        return None
    found: dict[str, Any] = {"preprocess": _change(whole)}
    changes: Mapping[str, float] = {}
    outer = {name: o for (level, name, inside), o in part.operations.items() if level == OPERATION and not inside}
    changes = {name: _change([o.by_episode[e] for e in sorted(o.by_episode)]) or 0.0 for name, o in outer.items()}
    if changes:
        heavy = {name: changes[name] * outer[name].spans.total for name in changes}
        name = max(heavy, key=lambda n: abs(heavy[n]))
        found["operation"], found["operation_change"] = name, changes[name]
    return found


def _change(values: Sequence[tuple[int, float]]) -> float | None:
    third = max(len(values) // 3, 1)
    begun, ended = values[:third], values[-third:]
    means = [sum(v for _, v in some) / max(sum(n for n, _ in some), 1) for some in (begun, ended)]
    return means[1] / means[0] - 1 if means[0] else None
