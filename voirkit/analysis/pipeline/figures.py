"""``loader`` of a summary, from what all ranks know of the loaders of a run (DESIGN 3.8, docs/pipeline.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from voirkit.analysis.pipeline import advice, predict
from voirkit.analysis.pipeline.partial import Epoch, Partial
from voirkit.analysis.pipeline.samples import COLLATE, ITEM, OPERATION, PREPROCESS
from voirkit.analysis.pipeline.tally import Tally

_NS = 1e-9
_NAMED = 10  # samples that a summary names
_EPOCHS = 32  # more are put together
_LEVEL = {ITEM: "sample", COLLATE: "collate", OPERATION: "operation"}


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
    items = sum(o.spans.n for (level, _, _), o in part.operations.items() if level == ITEM)
    items_each = items / max(making.n, 1) or float(part.known.get("batch_size") or 1)
    cost = _cost(part, items_each, cpus)
    found: dict[str, Any] = {
        "loader": part.loader,
        "workers": part.workers,
        "batches": part.batches,
        "items": items,
        "dataset": part.known.get("dataset"),
        "batch_size": part.known.get("batch_size"),
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
    found["cost"] = {key: getattr(cost, key) for key in ("batch_s", "cpu_s", "pause_s", "items", "cores")}
    enough, best = (predict.enough(cost), predict.best(cost)) if making.n else (None, None)
    found["predicted"] = predict.table(cost, predict.numbers(cpus, part.workers, enough, best)) if making.n else []
    found["enough_workers"], found["best_workers"] = enough, best
    found["first"] = advice.first(rows, _order(part), cost, making.n, part.workers)
    return found


def _cost(part: Partial, items: float, cpus: int | None) -> predict.Cost:
    cpu, put = part.times["cpu"], part.times["put"]
    usual = part.times["usual"]
    return predict.Cost((usual.mean + put.mean) * _NS, cpu.mean * _NS if cpu.n else None, part.times["pause"].mean * _NS, items, cpus)


def _operations(part: Partial, making_ns: float, waited_ns: float) -> dict[str, dict[str, Any]]:
    """Rows by name, those that take most first: operations, the dataset's own work, collation.

    Shares are of the time of making batches, ``wait_share`` of that of waiting for them: what of it the worker that made the awaited
    batch spent on it. An operation that runs only in another has ``inside``, and its shares are parts of the other's.
    """
    rows: dict[str, dict[str, Any]] = {}
    for (level, name, inside), operation in part.operations.items():
        if level == PREPROCESS or (level == ITEM and not operation.spans.total):
            continue
        shown = name if level == OPERATION else _dataset(part) if level == ITEM else "collate_fn"
        row = {
            **_row(operation.spans),
            "share": operation.spans.total / making_ns if making_ns else 0.0,
            "wait_share": operation.waited_ns / waited_ns if waited_ns else None,
            "level": _LEVEL[level],
        }
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


def _row(spans: Tally) -> dict[str, Any]:
    return {**spans.seconds(), "under_10ms": spans.under(10e6), "under_100us": spans.under(100e3)}


def _dataset(part: Partial) -> str:
    return str(part.known.get("source") or f"{part.known.get('dataset') or 'dataset'}.__getitem__")


def _causes(part: Partial, waited_ns: float) -> dict[str, float]:
    """What of the wait each kind of work caused; the rest is the way of a batch: starting workers, queues, pinning."""
    found = {"operations": 0.0, "dataset": 0.0, "collate": 0.0, "fetch": 0.0}
    names = {OPERATION: "operations", ITEM: "dataset", COLLATE: "collate", PREPROCESS: "fetch"}
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
