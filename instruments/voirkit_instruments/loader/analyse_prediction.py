"""How fast a loader would be with other numbers of workers, which part of the work on a batch to
change first, and what a verdict advises.

The rate is a bound, from what a batch costs, whichever is the tightest.

Without workers the training makes a batch itself, ``batch_s``, and then trains on it, ``pause_s``.

A worker makes a batch in ``batch_s``. Threads of its own send it and answer the training that takes
it (a handshake for each tensor). That holds up what the worker computes, but not what it waits for:
n workers give n / max(batch_s, cpu_s + send_s + receive_s) batches. The training takes each of them
in ``receive_s`` and trains on it: 1 / (receive_s + pause_s), and nobody asks for more. All
processes together cannot use more than the processors' time. Where workers were there, all this is
scaled to the rate that they reached.
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

_NEAR = 0.97  # as good as the best
_IN_THREADS = 1.3  # threads of a worker that compute at once, from which on they are told

# The time that torch 2.15 takes to hand a batch over: the processor's time to send and to take it,
# and how long the training waits for that where the worker is busy. As parts of what
# ``record.measure_handover`` measures on the same machine: one file of shared memory (94 us where
# these were measured, with 1 to 16 tensors of 4 bytes to 16 MB), and a million bytes written into
# one (0.54 ms).
_SEND_BATCH, _SEND_TENSOR, _SEND_MB = 2.4, 1.2, 1.25
_TAKE_BATCH, _TAKE_TENSOR, _TAKE_MB = 1.7, 1.1, 0.2
_RECEIVE_BATCH, _RECEIVE_TENSOR, _RECEIVE_MB = 8.0, 2.4, 0.25
# A worker that computes in python answers late: its thread for that runs when the making waits for
# something, at the latest after 5 ms. With 1.75 ms of python a batch one worker took 5.4 ms for it,
# with 14 ms it took 16.
_LATE, _LATEST_S = 1.0, 0.002
# Of the processors' time what three and more processes on two processors have come to: python and
# PIL reached 0.74 to 0.86 of it.
_SHARED = 0.85
# The cost of a record of a sample, as a part of the same machine's time for a call of python (34 ns
# where it was 2.4 us).
_RECORD = 70.0

# Operations that draw random numbers give something else each time (names of torchvision 0.16 to
# 0.29 and albumentations 1 to 2).
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
# From these on a sample is a tensor.
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
    """What a batch costs, in seconds."""

    batch_s: float  # the time in which a batch is made and put on a queue
    # the processor's part of it; None if that is not known, and then all of it is taken for that
    cpu_s: float | None
    pause_s: float  # the training's time between two batches
    items: float  # samples in a batch
    cores: int | None  # processors; None if that is not known
    send_s: float = 0.0  # a worker's time for sending a batch, which is the processor's
    take_s: float = 0.0  # the processor's time in which the training takes it
    receive_s: float = 0.0  # and how long that lasts
    # what of ``batch_s`` a worker's other threads take, which send: it is not there without workers
    beside_s: float = 0.0
    training_cores: float = 1.0  # how many processors the training keeps busy between two batches
    reached: float = 1.0  # which part of what is worked out here present workers have reached
    threads: float = 1.0  # how many of a worker's threads compute at once


def handover_costs(
    n_bytes: float, tensors: float, machine: Mapping[str, float]
) -> dict[str, float]:
    """``send_s, take_s, receive_s`` that a batch would need.

    Args:
        machine: ``tensor_ns`` and ``mb_ns``: what a file of shared memory and a million bytes in it
            cost; nothing is known without.
    """
    file_s = machine.get("tensor_ns", 0.0) * 1e-9
    write_s = machine.get("mb_ns", 0.0) * n_bytes * 1e-15
    return {
        "send_s": file_s * (_SEND_BATCH + _SEND_TENSOR * tensors) + write_s * _SEND_MB,
        "take_s": file_s * (_TAKE_BATCH + _TAKE_TENSOR * tensors) + write_s * _TAKE_MB,
        "receive_s": file_s * (_RECEIVE_BATCH + _RECEIVE_TENSOR * tensors) + write_s * _RECEIVE_MB,
    }


def recording_s(records: float, machine: Mapping[str, float]) -> float:
    """The cost of so many records of samples and operations, in seconds."""
    return records * _RECORD * machine.get("call_ns", 0.0) * 1e-9


def worker_s(cost: Cost) -> float:
    """A worker's time for a batch."""
    cpu_s = cost.batch_s if cost.cpu_s is None else cost.cpu_s
    late_s = min(_LATE * cpu_s, _LATEST_S) if cost.receive_s else 0.0
    computing_s = cpu_s + cost.send_s + cost.receive_s + late_s
    return max(cost.batch_s, computing_s, 1e-12)


def rate_limits(cost: Cost, workers: int) -> dict[str, float]:
    """Batches per second that each part would allow; ``workers=0`` loads in the training's own
    process."""
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
    """Items per second, at best."""
    return min(rate_limits(cost, workers).values()) * cost.items


def predict_rates(cost: Cost, workers: Iterable[int]) -> list[dict[str, Any]]:
    """For each number of workers ``{"workers", "rate", "loading_rate", "limited_by"}``: items per
    second with the training, what the loader alone could give, and whether the workers, the
    processors or the training itself are the limit."""
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
    """The fewest workers with which the training would not wait; None if the processors do not
    allow it."""
    limits = rate_limits(cost, 1)
    enough_rate = limits["training"] * _NEAR
    if limits.get("processors", limits["training"]) < enough_rate:
        return None
    return max(1, ceil(enough_rate / limits["workers"]))


def best_workers(cost: Cost) -> int:
    """The fewest workers that give as much as any number of them would; 0 if loading in the
    training's own process does."""
    limits = rate_limits(cost, 1)
    best_rate = min(limits["training"], limits.get("processors", limits["training"])) * _NEAR
    if rate_limits(cost, 0)["workers"] >= best_rate:
        return 0
    return max(1, ceil(best_rate / limits["workers"]))


def candidate_workers(cores: int | None, now: int, *more: int | None) -> list[int]:
    """Numbers of workers that are worth a look: none, 1 to twice the processors, the present one,
    and more."""
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
    """The operation to change first, and how.

    Args:
        rows: Operations by name, with ``total_s, share, wait_share`` (None where nobody waited),
            ``level``.
        order: Names of the operations as they follow each other on a sample.
        cost: What a batch costs now.
        batches: How many batches were made.
        workers: How many workers there are.
        collate: The name of the program's own collate function; "" for torch's.

    Returns:
        ``{"operation", "share", "wait_share", "action", "because", "rate_without"}``; None without
        operations. ``rate_without`` is what the loader would give at best, in items per second, if
        the operation cost nothing.
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
    """The action for an operation, and the key of its words in ``_ADVICE``."""
    if level == "collate":
        return (CACHE, "collate") if collate else (VECTORISE, VECTORISE)
    if level == "sample":
        return CACHE, "own"
    if name == _READS:
        return CACHE, "read"
    before = order[: order.index(name)] if name in order else ()
    if any(operation in _TO_TENSOR for operation in before):
        return MOVE, MOVE
    # else nobody knows which of them are
    knows_random = any(operation.startswith(_RANDOM) for operation in order)
    is_random = any(operation.startswith(_RANDOM) for operation in (*before, name))
    if knows_random and not is_random:
        return CACHE, CACHE
    return REDUCE, REDUCE


Loader = Mapping[str, Any]

_GAIN = 1.1  # less is not worth a change, and not predicted so exactly
_FEW_BATCHES = 4  # of a worker tell nothing of it
_SLOW = 1.5  # times as long as the others: the worker is named
_LEAST_WAIT = 0.05  # share of the wait; an operation that causes less is not worth a change


def advice(loader: Loader, phases: Sequence[str] = ()) -> list[Evidence]:
    """Which operation is most of the work, and what to change; nothing where none is known, or a
    tracer has stretched their times."""
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
    """The words for a worker that takes much longer for its batches than a usual other one."""
    workers = (loader.get("utilisation") or {}).get("workers") or ()
    rows = [row for row in workers if row["batches"] >= _FEW_BATCHES]
    batch_s = {row["worker"]: row["busy_s"] / row["batches"] for row in rows}
    if len(batch_s) < max(len(rows), 2):  # ranks have workers of the same number
        return ""
    slow = max(batch_s, key=batch_s.__getitem__)
    slow_s = batch_s.pop(slow)
    usual_s = median(batch_s.values())
    if not slow_s > _SLOW * usual_s > 0:
        return ""
    times = figure(slow_s / usual_s)
    return f"; worker {slow} takes {times} times as long for a batch as the others"


def _is_idle(first: Mapping[str, Any]) -> bool:
    """True if nobody waits for the operation: the workers have done it before a batch is asked
    for."""
    return first["wait_share"] is not None and first["wait_share"] < _LEAST_WAIT


def advise_workers(loader: Loader) -> str:
    """The change to make to the workers, or why no number of them would help; a number only where
    it is predicted to win."""
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
    """The change to make about the start of workers; empty where it takes too little."""
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
    """Another number of workers, where that is predicted to win."""
    now, units = loader["workers"], loader.get("units", "items/s")
    enough, best = loader.get("enough_workers"), loader["best_workers"]
    cores = loader["cost"]["cores"]
    # samples that wait need no processor, but each worker is a process
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
    """The change to make to workers that compute in more threads than there are processors; empty
    where they do not."""
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
    """The change to make where workers would cost more than they save."""
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
    """The words for what to do with that operation."""
    rate_now = _predicted_rates(loader).get(loader["workers"])
    rate_without = first["rate_without"]
    words = f"Begin with {first['operation']}: {first['because']}"
    if rate_now and rate_without > rate_now * _GAIN and not loader.get("contended"):
        units = loader.get("units", "items/s")
        words += f" (without it {figure(rate_without)} {units} at best)"
    return words + "."


def share_saved(loader: Loader) -> float | None:
    """The share of a step that this advice could save at best; None if nothing is predicted."""
    predicted = _predicted_rates(loader)
    rate_now = predicted.get(loader["workers"])
    if not rate_now:
        return None
    rates = [*predicted.values(), 0.0]
    first = loader.get("first")
    if first and not _is_idle(first):
        rates.append(first["rate_without"])
    return float(max(1 - rate_now / max(rates), 0.0))
