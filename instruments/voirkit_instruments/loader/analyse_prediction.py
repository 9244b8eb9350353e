"""Prediction of a loader's rate with other numbers of workers, and advice for the verdict: which
part of the work on a batch to change first.

The predicted rate is the tightest of several bounds, which follow from the cost of a batch.

Without workers, the training process makes a batch itself in ``batch_s``, and then trains on it for
``pause_s``.

A worker makes a batch in ``batch_s``. Threads of the worker send it and answer the training
process, which takes it with a handshake for each tensor. That delays the worker's computation, but
not its waiting: n workers make n / max(batch_s, cpu_s + send_s + receive_s) batches per second. The
training process takes a batch in ``receive_s`` and trains on it, so it requests at most 1 /
(receive_s + pause_s) batches per second. All processes together cannot use more CPU time than the
processors have. If the run had workers, these bounds are scaled to the rate that they reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Any

from voirkit.analysis.verdict.evidence import Evidence
from voirkit.runs.thresholds import START_OF_WORKERS, TINY_SAMPLE_S
from voirkit.units import duration, figure

_NEAR = 0.97  # a rate of at least this share of the best rate counts as just as good
# advice on threads is given if at least this many threads of a worker compute at once
_IN_THREADS = 1.3

# The time that torch 2.15 takes to hand a batch over: CPU time to send the batch and to take it,
# and how long the training waits if the worker is busy. The numbers are multiples of the times that
# ``record.measure_handover`` measures on the same machine. They were determined with 1 to 16
# tensors of 4 bytes to 16 MB, on a machine that made a file of shared memory in 94 us and wrote a
# million bytes into one in 0.54 ms.
_SEND_BATCH, _SEND_TENSOR, _SEND_MB = 2.4, 1.2, 1.25
_TAKE_BATCH, _TAKE_TENSOR, _TAKE_MB = 1.7, 1.1, 0.2
_RECEIVE_BATCH, _RECEIVE_TENSOR, _RECEIVE_MB = 8.0, 2.4, 0.25
# A worker that computes in Python hands batches over late: its answering thread only runs when the
# computing thread waits for something, at the latest after 5 ms. The delay counts as the CPU time
# of the batch times ``_LATE``, at most ``_LATEST_S``. Measured: with 1.75 ms of Python per batch
# one worker took 5.4 ms for a batch, with 14 ms it took 16 ms.
_LATE, _LATEST_S = 1.0, 0.002
# The share of the processors' time that can be used. With Python and PIL, three or more processes
# on two processors reached 0.74 to 0.86.
_SHARED = 0.85
# The cost of recording a sample or an operation, as a multiple of the cost of a Python call on the
# same machine (2.4 us where a call took 34 ns).
_RECORD = 70.0

# Operations whose result is random (names of torchvision 0.16 to 0.29 and albumentations 1 to 2).
_RANDOM = (
    "Random",
    "RandAugment",
    "ColorJitter",
    "TrivialAugment",
    "AutoAugment",
    "AugMix",
    "CutMix",
    "MixUp",
    "Mixup",
    "ElasticTransform",
    "ScaleJitter",
    "GaussNoise",
    "GaussianNoise",
    "GaussianBlur",
    "HorizontalFlip",
    "VerticalFlip",
    "ShiftScaleRotate",
    "CoarseDropout",
)
# Operations after which a sample is a tensor.
_TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage", "ToTensorV2", "ToTensorImage")
_READS = "Loader"

CACHE, MOVE, VECTORISE, REDUCE = "cache", "move", "vectorise", "reduce"
_ADVICE = {
    "read": (
        "keep smaller or already decoded copies (resized files, an array on disk, memory), or use a"
        " faster decoder"
    ),
    "own": (
        "look at what it reads and computes: read ahead, keep the result, or do it once before the"
        " training"
    ),
    CACHE: (
        "it comes before anything random and gives the same for a sample each time: do it once and"
        " keep the result"
    ),
    MOVE: "it works on tensors: do it on whole batches, on the device where there is one",
    VECTORISE: (
        "do it for the whole batch at once: let the dataset give whole batches (__getitems__), or"
        " stack once, into memory that is reused"
    ),
    "collate": (
        "what it does for each sample (tokenizing, padding, converting) is the same in each epoch:"
        " do it once, before the training"
    ),
    REDUCE: (
        "use a cheaper form of it (smaller images first, fewer parts, a compiled library), or do it"
        " on whole batches on the device"
    ),
}


@dataclass(frozen=True)
class Cost:
    """The cost of a batch, in seconds, and what limits the rate of batches."""

    batch_s: float  # time to make a batch and put it on a queue
    # CPU time in ``batch_s``; None if unknown: then all of ``batch_s`` counts as CPU time
    cpu_s: float | None
    pause_s: float  # the training's time between two batches
    items: float  # samples in a batch
    cores: int | None  # number of processors; None if unknown
    send_s: float = 0.0  # a worker's CPU time for sending a batch
    take_s: float = 0.0  # the training's CPU time for taking a batch
    receive_s: float = 0.0  # duration of taking a batch
    # part of ``batch_s`` in which a worker hands batches over; without workers this time is saved
    beside_s: float = 0.0
    training_cores: float = 1.0  # processors that the training keeps busy between two batches
    # rate that the present workers have reached, divided by the rate calculated for them
    reached: float = 1.0
    threads: float = 1.0  # number of a worker's threads that compute at once


def handover_costs(
    n_bytes: float, tensors: float, machine: Mapping[str, float]
) -> dict[str, float]:
    """Return the calculated ``send_s, take_s, receive_s`` of a batch.

    Args:
        machine: ``tensor_ns`` and ``mb_ns``: the cost of a file of shared memory, and of a million
            bytes in it; if they are missing, the result is 0.
    """
    file_s = machine.get("tensor_ns", 0.0) * 1e-9
    write_s = machine.get("mb_ns", 0.0) * n_bytes * 1e-15
    return {
        "send_s": file_s * (_SEND_BATCH + _SEND_TENSOR * tensors) + write_s * _SEND_MB,
        "take_s": file_s * (_TAKE_BATCH + _TAKE_TENSOR * tensors) + write_s * _TAKE_MB,
        "receive_s": file_s * (_RECEIVE_BATCH + _RECEIVE_TENSOR * tensors) + write_s * _RECEIVE_MB,
    }


def recording_s(records: float, machine: Mapping[str, float]) -> float:
    """Return the cost of this number of records of samples and operations, in seconds."""
    return records * _RECORD * machine.get("call_ns", 0.0) * 1e-9


def worker_s(cost: Cost) -> float:
    """Return a worker's time for a batch, in seconds."""
    cpu_s = cost.batch_s if cost.cpu_s is None else cost.cpu_s
    late_s = min(_LATE * cpu_s, _LATEST_S) if cost.receive_s else 0.0
    computing_s = cpu_s + cost.send_s + cost.receive_s + late_s
    return max(cost.batch_s, computing_s, 1e-12)


def rate_limits(cost: Cost, workers: int) -> dict[str, float]:
    """Return the limit that each part sets to the rate, in batches per second; ``workers=0`` loads
    in the training process itself."""
    if workers == 0:
        return {"workers": 1 / max(cost.batch_s - cost.beside_s + cost.pause_s, 1e-12)}
    limits = {
        "workers": workers / worker_s(cost),
        "training": 1 / max(cost.receive_s + cost.pause_s, 1e-12),
    }
    if cost.cores is not None:
        cpu_s = cost.batch_s if cost.cpu_s is None else cost.cpu_s
        training_s = cost.pause_s * cost.training_cores
        all_cpu_s = max(cpu_s + cost.send_s + cost.take_s + training_s, 1e-12)
        limits["processors"] = _SHARED * cost.cores / all_cpu_s
    return {part: limit * cost.reached for part, limit in limits.items()}


def rate(cost: Cost, workers: int) -> float:
    """Return the highest possible rate, in items per second."""
    return min(rate_limits(cost, workers).values()) * cost.items


def predict_rates(cost: Cost, workers: Iterable[int]) -> list[dict[str, Any]]:
    """Return ``{"workers", "rate", "loading_rate", "limited_by"}`` for each number of workers.

    ``rate`` is in items per second with the training, ``loading_rate`` of the loader alone.
    ``limited_by`` is the part that limits ``rate``: the workers, the processors or the training.
    """
    loading_cost = replace(cost, pause_s=0.0)
    rows = []
    for n in workers:
        limits, loading_limits = rate_limits(cost, n), rate_limits(loading_cost, n)
        limited_by = min(limits, key=limits.__getitem__)
        loading_limits.pop("training", None)
        row = {
            "workers": n,
            "rate": limits[limited_by] * cost.items,
            "loading_rate": min(loading_limits.values()) * cost.items,
            "limited_by": limited_by,
        }
        rows.append(row)
    return rows


def enough_workers(cost: Cost) -> int | None:
    """Return the smallest number of workers with which the training would not wait; None if there
    are too few processors for that."""
    limits = rate_limits(cost, 1)
    enough_rate = limits["training"] * _NEAR
    if limits.get("processors", limits["training"]) < enough_rate:
        return None
    return max(1, ceil(enough_rate / limits["workers"]))


def best_workers(cost: Cost) -> int:
    """Return the smallest number of workers that reaches the best rate of any number; 0 if loading
    in the training process does."""
    limits = rate_limits(cost, 1)
    best_rate = min(limits["training"], limits.get("processors", limits["training"])) * _NEAR
    if rate_limits(cost, 0)["workers"] >= best_rate:
        return 0
    return max(1, ceil(best_rate / limits["workers"]))


def candidate_workers(cores: int | None, now: int, *more: int | None) -> list[int]:
    """Return the numbers of workers to compare: 0, 1 to twice the processors, the present number,
    and ``more``."""
    most = 2 * (cores or max(now, 1))
    numbers = {most, now}
    if most <= 16:
        numbers.update(range(most + 1))
    else:
        few = (*range(9), *range(12, 33, 4), *range(40, most + 1, 8))
        numbers.update(n for n in few if n <= most)
    numbers.update(n for n in more if n is not None)
    return sorted(numbers)


def first_change(
    rows: Mapping[str, Mapping[str, Any]],
    order: Sequence[str],
    cost: Cost,
    batches: int,
    workers: int,
    collate: str = "",
) -> dict[str, Any] | None:
    """Return the operation to change first, and how.

    Args:
        rows: Operations by name, with ``total_s, share, wait_share`` (None if there was no wait),
            ``level``.
        order: Names of the operations as they follow each other on a sample.
        cost: Present cost of a batch.
        batches: Number of batches that were made.
        workers: Present number of workers.
        collate: The name of the program's own collate function; "" for torch's.

    Returns:
        ``{"operation", "share", "wait_share", "action", "because", "rate_without"}``; None without
        operations. ``rate_without`` is the highest rate of the loader, in items per second, if the
        operation cost nothing.
    """
    candidates = {
        name: row for name, row in rows.items() if "inside" not in row and row["total_s"] > 0
    }
    if not candidates:
        return None

    def weight(name: str) -> tuple[float, float]:
        return candidates[name]["wait_share"] or 0.0, candidates[name]["share"]

    name = max(candidates, key=weight)
    row = candidates[name]
    action, reason = _choose_action(name, row["level"], order, collate)
    batch_s = max(cost.batch_s - row["total_s"] / max(batches, 1), 0.0)
    cpu_s = None
    if cost.cpu_s is not None:
        cpu_s = max(cost.cpu_s * batch_s / max(cost.batch_s, 1e-12), 0.0)
    return {
        "operation": name,
        "share": row["share"],
        "wait_share": row["wait_share"],
        "action": action,
        "because": _ADVICE[reason],
        "rate_without": rate(replace(cost, batch_s=batch_s, cpu_s=cpu_s), workers),
    }


def _choose_action(name: str, level: str, order: Sequence[str], collate: str) -> tuple[str, str]:
    """Return the action for an operation, and the key of the advice in ``_ADVICE``."""
    if level == "collate":
        return (CACHE, "collate") if collate else (VECTORISE, VECTORISE)
    if level == "sample":
        return CACHE, "own"
    if name == _READS:
        return CACHE, "read"
    before = order[: order.index(name)] if name in order else ()
    if any(operation in _TO_TENSOR for operation in before):
        return MOVE, MOVE
    # advise a cache only if a random operation is known; otherwise any operation may be random
    knows_random = any(operation.startswith(_RANDOM) for operation in order)
    is_random = any(operation.startswith(_RANDOM) for operation in (*before, name))
    if knows_random and not is_random:
        return CACHE, CACHE
    return REDUCE, REDUCE


Loader = Mapping[str, Any]

# least ratio of the rate after a change to the rate before: smaller gains are not worth the change,
# and cannot be predicted exactly
_GAIN = 1.1
_FEW_BATCHES = 4  # fewest batches of a worker for which its speed is judged
_SLOW = 1.5  # a worker is named if it takes this many times as long as the other workers
_LEAST_WAIT = 0.05  # an operation that causes a smaller share of the wait is not worth a change


def advice(loader: Loader, phases: Sequence[str] = ()) -> list[Evidence]:
    """Return the operation that takes most of the time of making batches, and what to change. Empty
    if no operation is known, or if a tracer has made the operations slower."""
    first = loader.get("first")
    if not first or loader.get("stretched_by"):
        return []
    words = f"{first['operation']} is {first['share']:.0%} of the work on it"
    if first["wait_share"] is not None:
        words += f" and {first['wait_share']:.0%} of the wait"
    words += _slow_worker(loader)
    details = {
        "operation": first["operation"],
        "operation_share": first["share"],
        "operation_wait_share": first["wait_share"],
        "enough_workers": loader.get("enough_workers"),
        "best_workers": loader.get("best_workers"),
    }
    steps = [advise_workers(loader)]
    if not _is_idle(first):
        steps.append(_begin_with(loader, first))
    do = " ".join(filter(None, steps))
    return [Evidence(words, first["share"], do, share_saved(loader), details)]


def _slow_worker(loader: Loader) -> str:
    """Return words about a worker that takes much longer for its batches than the others' median;
    empty if there is none."""
    workers = (loader.get("utilisation") or {}).get("workers") or ()
    rows = [row for row in workers if row["batches"] >= _FEW_BATCHES]
    batch_s = {row["worker"]: row["busy_s"] / row["batches"] for row in rows}
    # no worker is named if several ranks have workers with the same number
    if len(batch_s) < max(len(rows), 2):
        return ""
    slow = max(batch_s, key=batch_s.__getitem__)
    slow_s = batch_s.pop(slow)
    usual_s = median(batch_s.values())
    if not slow_s > _SLOW * usual_s > 0:
        return ""
    times = figure(slow_s / usual_s)
    return f"; worker {slow} takes {times} times as long for a batch as the others"


def _is_idle(first: Mapping[str, Any]) -> bool:
    """True if almost nothing waits for the operation: the workers have done it before the batch is
    requested."""
    return first["wait_share"] is not None and first["wait_share"] < _LEAST_WAIT


def advise_workers(loader: Loader) -> str:
    """Return advice about the workers, or why no other number of them would help. A number is only
    named if it is predicted to be faster."""
    threads = _advise_threads(loader)
    if threads:
        return threads
    predicted = _predicted_rates(loader)
    is_misleading = loader.get("stretched_by") or loader.get("contended")
    if loader.get("best_workers") is None or loader["workers"] not in predicted or is_misleading:
        return ""
    starts = _advise_starts(loader)
    return starts or _advise_number(loader, predicted)


def _predicted_rates(loader: Loader) -> dict[int, float]:
    return {row["workers"]: row["rate"] for row in loader.get("predicted") or ()}


def _advise_starts(loader: Loader) -> str:
    """Return advice about the start of workers; empty if the wait for it is short."""
    starts = loader.get("starts") or {}
    share, again_share = starts.get("share", 0.0), starts.get("again_share", 0.0)
    if not loader["workers"]:
        return ""
    if again_share >= START_OF_WORKERS:
        return (
            f"Keep the workers between epochs: persistent_workers=True. {again_share:.0%} of the"
            " wait is for workers that start again."
        )
    if share >= START_OF_WORKERS:
        return (
            f"{share:.0%} of the wait is for workers that start, which a longer run has no more of."
        )
    return ""


def _advise_number(loader: Loader, predicted: Mapping[int, float]) -> str:
    """Return advice about the number of workers; another number is only named if it is predicted to
    be faster."""
    now, units = loader["workers"], loader.get("units", "items/s")
    enough, best = loader.get("enough_workers"), loader["best_workers"]
    cores = loader["cost"]["cores"]
    # Advise no more workers than processors: workers that wait need no processor, but each worker
    # is a process.
    is_capped = bool(cores) and max(best, enough or 0) > cores
    if is_capped:
        best = min(best, cores)
        if enough is not None and enough > cores:
            enough = None
    present = f"instead of {figure(predicted[now])}"

    def wins(workers: int) -> bool:
        return predicted.get(workers, 0.0) > predicted[now] * _GAIN

    if now and best == 0 and _is_handing_costly(loader) and wins(0):
        return (
            f"num_workers=0 would be faster (predicted {figure(predicted[0])} {units} {present}):"
            f" {_handing(loader)}."
        )
    if enough is not None and enough > now and wins(enough):
        return (
            f"num_workers={enough} would remove the wait (predicted {figure(predicted[enough])}"
            f" {units} {present})."
        )
    if (enough is None or now == 0) and best > now and wins(best):
        end = "then the processors are the limit, and more workers would not help"
        if is_capped:
            end = "there are no more processors, for which torch advises against more workers"
        return (
            f"num_workers={best} would give at best {figure(predicted[best])} {units} {present};"
            f" {end}."
        )
    if now == 0:
        return _without_workers(loader)
    return _why_not_more(cores, enough, is_capped)


def _why_not_more(cores: int | None, enough: int | None, is_capped: bool) -> str:
    if enough is not None:
        return (
            "The workers could keep up on average: the wait is in their start, and in batches that"
            " take longer than others."
        )
    if is_capped:
        return (
            f"There are as many workers as processors ({cores}): have each wait less, by reading"
            " ahead or keeping the result."
        )
    return (
        f"More workers would not help: what they do and the training keep the {cores}"
        " processors busy."
    )


def _advise_threads(loader: Loader) -> str:
    """Return advice about workers that compute in more threads than there are processors; empty if
    they do not."""
    cost, now = loader.get("cost") or {}, loader["workers"]
    threads, cores = cost.get("threads") or 1.0, cost.get("cores")
    if not now or not cores or threads < _IN_THREADS or now * threads <= cores:
        return ""
    return (
        f"Each of the {now} workers computes in {figure(threads)} threads at once, on {cores}"
        " processors: give it one, in worker_init_fn (cv2.setNumThreads(0),"
        " threadpoolctl.threadpool_limits(1)), or with OMP_NUM_THREADS=1 for the whole program."
    )


def _without_workers(loader: Loader) -> str:
    """Return advice for a loader without workers, for which workers would cost more than they
    save."""
    cost, rows = loader["cost"], loader.get("operations") or {}
    is_by_sample = any(row.get("unit") == "samples" for row in rows.values())
    sample_s = cost["batch_s"] / max(cost["items"], 1.0)
    if is_by_sample and sample_s < TINY_SAMPLE_S:
        return (
            "Index whole batches at once, not sample by sample: give the dataset a __getitems__,"
            " or pass sampler=BatchSampler(...) with batch_size=None. Worker processes would not"
            f" help: {_handing(loader)}."
        )
    if _is_handing_costly(loader):
        return f"Worker processes would not help: {_handing(loader)}."
    return (
        "Worker processes would not help: making batches and training keep the processors busy as"
        " it is."
    )


def _is_handing_costly(loader: Loader) -> bool:
    return _handing_s(loader) > _making_s(loader) / 4


def _handing(loader: Loader) -> str:
    return (
        f"a batch is made in {duration(_making_s(loader))}, and handing one over takes"
        f" {duration(_handing_s(loader))}"
    )


def _handing_s(loader: Loader) -> float:
    cost = loader["cost"]
    return float(cost.get("send_s", 0.0) + cost.get("receive_s", 0.0))


def _making_s(loader: Loader) -> float:
    cost = loader["cost"]
    return float(cost.get("batch_s", 0.0) - cost.get("beside_s", 0.0))


def _begin_with(loader: Loader, first: Mapping[str, Any]) -> str:
    """Return words about what to do with the operation ``first``."""
    rate_now = _predicted_rates(loader).get(loader["workers"])
    rate_without = first["rate_without"]
    words = f"Begin with {first['operation']}: {first['because']}"
    if rate_now and rate_without > rate_now * _GAIN and not loader.get("contended"):
        units = loader.get("units", "items/s")
        words += f" (without it {figure(rate_without)} {units} at best)"
    return words + "."


def share_saved(loader: Loader) -> float | None:
    """Return the largest share of a step that the advice could save; None if nothing is
    predicted."""
    predicted = _predicted_rates(loader)
    rate_now = predicted.get(loader["workers"])
    if not rate_now:
        return None
    rates = [*predicted.values(), 0.0]
    first = loader.get("first")
    if first and not _is_idle(first):
        rates.append(first["rate_without"])
    return float(max(1 - rate_now / max(rates), 0.0))
