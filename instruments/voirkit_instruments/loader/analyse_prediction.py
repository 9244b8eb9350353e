"""How fast a loader would be with other numbers of workers, which part of the work on a batch to change first, and what a verdict advises.

The rate is a bound, from what a batch costs, whichever is the tightest.

Without workers the training makes a batch itself, ``batch_s``, and then trains on it, ``pause_s``.

A worker makes a batch in ``batch_s``. Threads of its own send it and answer the training that takes it (a handshake for each tensor). That
holds up what the worker computes, but not what it waits for: n workers give n / max(batch_s, cpu_s + send_s + receive_s) batches. The
training takes each of them in ``receive_s`` and trains on it: 1 / (receive_s + pause_s), and nobody asks for more. All processes together
cannot use more than the processors' time. Where workers were there, all this is scaled to the rate that they reached.
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

# What torch 2.15 takes to hand a batch over: the processor's time to send and to take it, and how long the training waits for that where
# the worker is busy. As parts of what ``record.measure_handover`` measures on the same machine: one file of shared memory (94 us where
# these were measured, with 1 to 16 tensors of 4 bytes to 16 MB), and a million bytes written into one (0.54 ms).
_SEND, _SEND_TENSOR, _SEND_MB = 2.4, 1.2, 1.25
_TAKE, _TAKE_TENSOR, _TAKE_MB = 1.7, 1.1, 0.2
_RECEIVE, _RECEIVE_TENSOR, _RECEIVE_MB = 8.0, 2.4, 0.25
# A worker that computes in python answers late: its thread for that runs when the making waits for something, at the latest after 5 ms.
# With 1.75 ms of python a batch one worker took 5.4 ms for it, with 14 ms it took 16.
_LATE, _LATEST_S = 1.0, 0.002
# Of the processors' time what three and more processes on two processors have come to: python and PIL reached 0.74 to 0.86 of it.
_SHARED = 0.85
# What a record of a sample costs, as a part of the same machine's time for a call of python (34 ns where it was 2.4 us).
_RECORD = 70.0

# Operations that draw random numbers give something else each time (names of torchvision 0.16 to 0.29 and albumentations 1 to 2).
_RANDOM = (
    "Random", "RandAugment", "ColorJitter", "TrivialAugment", "AutoAugment", "AugMix", "CutMix", "MixUp", "Mixup", "ElasticTransform",
    "ScaleJitter", "GaussNoise", "GaussianNoise", "GaussianBlur", "HorizontalFlip", "VerticalFlip", "ShiftScaleRotate", "CoarseDropout",
)  # fmt: skip
# From these on a sample is a tensor.
_TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage", "ToTensorV2", "ToTensorImage")
_READS = "Loader"

CACHE, MOVE, VECTORISE, REDUCE = "cache", "move", "vectorise", "reduce"
_ADVICE = {
    "read": "keep smaller or already decoded copies (resized files, an array on disk, memory), or use a faster decoder",
    "own": "look at what it reads and computes: read ahead, keep the result, or do it once before the training",
    CACHE: "it comes before anything random and gives the same for a sample each time: do it once and keep the result",
    MOVE: "it works on tensors: do it on whole batches, on the device where there is one",
    VECTORISE: "do it for the whole batch at once: let the dataset give whole batches (__getitems__), or stack once, into memory that is "
    "reused",
    "collate": "what it does for each sample (tokenizing, padding, converting) is the same in each epoch: do it once, before the training",
    REDUCE: "use a cheaper form of it (smaller images first, fewer parts, a compiled library), or do it on whole batches on the device",
}


@dataclass(frozen=True)
class Cost:
    """What a batch costs, in seconds."""

    batch_s: float  # the time in which a batch is made and put on a queue
    cpu_s: float | None  # the processor's part of it; None if that is not known, and then all of it is taken for that
    pause_s: float  # the training's time between two batches
    items: float  # samples in a batch
    cores: int | None  # processors; None if that is not known
    send_s: float = 0.0  # a worker's time for sending a batch, which is the processor's
    take_s: float = 0.0  # the processor's time in which the training takes it
    receive_s: float = 0.0  # and how long that lasts
    beside_s: float = 0.0  # what of ``batch_s`` a worker's other threads take, which send: it is not there without workers
    training_cores: float = 1.0  # how many processors the training keeps busy between two batches
    reached: float = 1.0  # which part of what is worked out here present workers have reached
    threads: float = 1.0  # how many of a worker's threads compute at once


def handover_costs(n_bytes: float, tensors: float, machine: Mapping[str, float]) -> dict[str, float]:
    """``send_s, take_s, receive_s`` that a batch would need.

    Args:
        machine: ``tensor_ns`` and ``mb_ns``: what a file of shared memory and a million bytes in it cost; nothing is known without.
    """
    file_s, mb_s = machine.get("tensor_ns", 0.0) * 1e-9, machine.get("mb_ns", 0.0) * n_bytes * 1e-15
    return {
        "send_s": file_s * (_SEND + _SEND_TENSOR * tensors) + mb_s * _SEND_MB,
        "take_s": file_s * (_TAKE + _TAKE_TENSOR * tensors) + mb_s * _TAKE_MB,
        "receive_s": file_s * (_RECEIVE + _RECEIVE_TENSOR * tensors) + mb_s * _RECEIVE_MB,
    }


def recording_s(records: float, machine: Mapping[str, float]) -> float:
    """What so many records of samples and operations cost, in seconds."""
    return records * _RECORD * machine.get("call_ns", 0.0) * 1e-9


def worker_s(cost: Cost) -> float:
    """A worker's time for a batch."""
    cpu_s = cost.batch_s if cost.cpu_s is None else cost.cpu_s
    late_s = min(_LATE * cpu_s, _LATEST_S) if cost.receive_s else 0.0
    return max(cost.batch_s, cpu_s + cost.send_s + cost.receive_s + late_s, 1e-12)


def rate_limits(cost: Cost, workers: int) -> dict[str, float]:
    """Batches per second that each part would allow; ``workers=0`` loads in the training's own process."""
    if workers == 0:
        return {"workers": 1 / max(cost.batch_s - cost.beside_s + cost.pause_s, 1e-12)}
    found = {"workers": workers / worker_s(cost), "training": 1 / max(cost.receive_s + cost.pause_s, 1e-12)}
    if cost.cores is not None:
        cpu_s = cost.batch_s if cost.cpu_s is None else cost.cpu_s
        found["processors"] = _SHARED * cost.cores / max(cpu_s + cost.send_s + cost.take_s + cost.pause_s * cost.training_cores, 1e-12)
    return {what: allowed * cost.reached for what, allowed in found.items()}


def rate(cost: Cost, workers: int) -> float:
    """Items per second, at best."""
    return min(rate_limits(cost, workers).values()) * cost.items


def predict_rates(cost: Cost, workers: Iterable[int]) -> list[dict[str, Any]]:
    """For each number of workers ``{"workers", "rate", "loading_rate", "limited_by"}``: items per second with the training, what the loader
    alone could give, and whether the workers, the processors or the training itself are the limit."""
    alone = replace(cost, pause_s=0.0)
    found = []
    for n in workers:
        allowed, loading = rate_limits(cost, n), rate_limits(alone, n)
        by = min(allowed, key=lambda what: allowed[what])
        loading_rate = min(loading[what] for what in loading if what != "training") * cost.items
        found.append({"workers": n, "rate": allowed[by] * cost.items, "loading_rate": loading_rate, "limited_by": by})
    return found


def enough_workers(cost: Cost) -> int | None:
    """The fewest workers with which the training would not wait; None if the processors do not allow it."""
    allowed = rate_limits(cost, 1)
    wanted = allowed["training"]
    if allowed.get("processors", wanted) < wanted * _NEAR:
        return None
    return max(1, ceil(wanted * _NEAR / allowed["workers"]))


def best_workers(cost: Cost) -> int:
    """The fewest workers that give as much as any number of them would; 0 if loading in the training's own process does."""
    allowed = rate_limits(cost, 1)
    most = min(allowed["training"], allowed.get("processors", allowed["training"]))
    if rate_limits(cost, 0)["workers"] >= most * _NEAR:
        return 0
    return max(1, ceil(most * _NEAR / allowed["workers"]))


def candidate_workers(cores: int | None, now: int, *others: int | None) -> list[int]:
    """Numbers of workers that are worth a look: none, 1 to twice the processors, the present one, and others."""
    most = 2 * (cores or max(now, 1))
    few = range(most + 1) if most <= 16 else (*range(9), *range(12, 33, 4), *range(40, most + 1, 8))
    return sorted({*(n for n in few if n <= most), most, now, *(n for n in others if n is not None)})


def first_change(
    rows: Mapping[str, Mapping[str, Any]], order: Sequence[str], cost: Cost, batches: int, workers: int, collate: str = ""
) -> dict[str, Any] | None:
    """What to change first.

    Args:
        rows: Operations by name, with ``total_s, share, wait_share`` (None where nobody waited), ``level``.
        order: Names of the operations as they follow each other on a sample.
        cost: What a batch costs now.
        batches: How many batches were made.
        workers: How many workers there are.
        collate: The name of the program's own collate function; "" for torch's.

    Returns:
        ``{"operation", "share", "wait_share", "action", "because", "rate_without"}``; None without operations. ``rate_without`` is
        what the loader would give at best, in items per second, if the operation cost nothing.
    """
    candidates = {name: row for name, row in rows.items() if "inside" not in row and row["total_s"] > 0}
    if not candidates:
        return None
    name = max(candidates, key=lambda key: (candidates[key]["wait_share"] or 0.0, candidates[key]["share"]))
    row = candidates[name]
    action, why = (CACHE, "collate") if row["level"] == "collate" and collate else _how(name, row["level"], order)
    spared = row["total_s"] / max(batches, 1)
    left = max(cost.batch_s - spared, 0.0)
    cpu = None if cost.cpu_s is None else max(cost.cpu_s * left / max(cost.batch_s, 1e-12), 0.0)
    return {
        "operation": name,
        "share": row["share"],
        "wait_share": row["wait_share"],
        "action": action,
        "because": _ADVICE[why],
        "rate_without": rate(replace(cost, batch_s=left, cpu_s=cpu), workers),
    }


def _how(name: str, level: str, order: Sequence[str]) -> tuple[str, str]:
    if level == "collate":
        return VECTORISE, VECTORISE
    if level == "sample":
        return CACHE, "own"
    if name == _READS:
        return CACHE, "read"
    before = order[: order.index(name)] if name in order else ()
    if any(one in _TO_TENSOR for one in before):
        return MOVE, MOVE
    is_random = [one.startswith(_RANDOM) for one in (*before, name)]
    is_known = any(one.startswith(_RANDOM) for one in order)  # else nobody knows which of them are
    if is_known and not any(is_random):
        return CACHE, CACHE
    return REDUCE, REDUCE


Loader = Mapping[str, Any]

_GAIN = 1.1  # less is not worth a change, and not predicted so exactly
_FEW_BATCHES = 4  # of a worker tell nothing of it
_SLOW = 1.5  # times as long as the others: the worker is named
_LEAST_WAIT = 0.05  # share of the wait; an operation that causes less is not worth a change


def advice(loader: Loader, phases: Sequence[str] = ()) -> list[Evidence]:
    """Which operation is most of the work, and what to change; nothing where none is known, or a tracer has stretched their times."""
    first = None if loader.get("stretched_by") else loader.get("first")
    if not first:
        return []
    words = f"{first['operation']} is {first['share']:.0%} of the work on it"
    if first["wait_share"] is not None:
        words += f" and {first['wait_share']:.0%} of the wait"
    words += _slow_worker(loader)
    details = {
        "operation": first["operation"], "operation_share": first["share"], "operation_wait_share": first["wait_share"],
        "enough_workers": loader.get("enough_workers"), "best_workers": loader.get("best_workers"),
    }  # fmt: skip
    workers = advise_workers(loader)
    do = " ".join(filter(None, (workers, "" if workers and _is_idle(first) else _begin_with(loader, first))))
    return [Evidence(words, first["share"], do, share_saved(loader), details)]


def _slow_worker(loader: Loader) -> str:
    """A worker that takes much longer for its batches than a usual other one."""
    rows = [row for row in (loader.get("utilisation") or {}).get("workers") or () if row["batches"] >= _FEW_BATCHES]
    each = {row["worker"]: row["busy_s"] / row["batches"] for row in rows}
    if len(each) < max(len(rows), 2):  # ranks have workers of the same number
        return ""
    slow = max(each, key=each.__getitem__)
    usual = median(spent for worker, spent in each.items() if worker != slow)
    return (
        f"; worker {slow} takes {figure(each[slow] / usual)} times as long for a batch as the others"
        if each[slow] > _SLOW * usual > 0
        else ""
    )


def _is_idle(first: Mapping[str, Any]) -> bool:
    """Whether nobody waits for the operation: the workers have done it before a batch is asked for."""
    return first["wait_share"] is not None and first["wait_share"] < _LEAST_WAIT


def advise_workers(loader: Loader) -> str:
    """What to change about the workers, or why no number of them would help; a number only where it is predicted to win."""
    now, enough, best = loader["workers"], loader.get("enough_workers"), loader.get("best_workers")
    if threads := _in_threads(loader):
        return threads
    predicted = {row["workers"]: row["rate"] for row in loader.get("predicted") or ()}
    if best is None or now not in predicted or loader.get("stretched_by") or loader.get("contended"):
        return ""
    starts = loader.get("starts") or {}
    once, again = starts.get("share", 0.0), starts.get("again_share", 0.0)
    if now and again >= START_OF_WORKERS:
        return f"Keep the workers between epochs: persistent_workers=True. {again:.0%} of the wait is for workers that start again."
    if now and once >= START_OF_WORKERS:
        return f"{once:.0%} of the wait is for workers that start, which a longer run has no more of."
    expected, units, cores = predicted[now], loader.get("units", "items/s"), loader["cost"]["cores"]
    is_capped = bool(cores) and max(best, enough or 0) > cores  # samples that wait need no processor, but each worker is a process
    if is_capped:
        enough, best = (enough if enough is not None and enough <= cores else None), min(best, cores)
    if now and best == 0 and _handing_s(loader) > _making_s(loader) / 4 and predicted.get(0, 0.0) > expected * _GAIN:
        return (
            f"num_workers=0 would be faster (predicted {figure(predicted[0])} {units} instead of {figure(expected)}): {_handing(loader)}."
        )
    if enough is not None and enough > now and predicted[enough] > expected * _GAIN:
        return f"num_workers={enough} would remove the wait (predicted {figure(predicted[enough])} {units} instead of {figure(expected)})."
    if (enough is None or now == 0) and best > now and predicted.get(best, 0.0) > expected * _GAIN:
        end = "then the processors are the limit, and more workers would not help"
        if is_capped:
            end = "there are no more processors, for which torch advises against more workers"
        return f"num_workers={best} would give at best {figure(predicted[best])} {units} instead of {figure(expected)}; {end}."
    if now == 0:
        return _without_workers(loader)
    if enough is None and is_capped:
        return f"There are as many workers as processors ({cores}): have each wait less, by reading ahead or keeping the result."
    if enough is None:
        return f"More workers would not help: what they do and the training keep the {cores} processors busy."
    return "The workers could keep up on average: the wait is in their start, and in batches that take longer than others."


def _in_threads(loader: Loader) -> str:
    """What to do about workers that compute in more threads than there are processors; empty where they do not."""
    cost, now = loader.get("cost") or {}, loader["workers"]
    threads, cores = cost.get("threads") or 1.0, cost.get("cores")
    if not now or not cores or threads < _IN_THREADS or now * threads <= cores:
        return ""
    return (
        f"Each of the {now} workers computes in {figure(threads)} threads at once, on {cores} processors: give it one, in worker_init_fn"
        " (cv2.setNumThreads(0), threadpoolctl.threadpool_limits(1)), or with OMP_NUM_THREADS=1 for the whole program."
    )


def _without_workers(loader: Loader) -> str:
    """What to do where workers would cost more than they save."""
    cost, rows = loader["cost"], loader.get("operations") or {}
    one_by_one = any(row.get("unit") == "samples" for row in rows.values())
    if one_by_one and cost["batch_s"] / max(cost["items"], 1.0) < TINY_SAMPLE_S:
        return (
            "Index whole batches at once, not sample by sample: give the dataset a __getitems__, or pass sampler=BatchSampler(...) with "
            f"batch_size=None. Worker processes would not help: {_handing(loader)}."
        )
    if _handing_s(loader) > _making_s(loader) / 4:
        return f"Worker processes would not help: {_handing(loader)}."
    return "Worker processes would not help: making batches and training keep the processors busy as it is."


def _handing(loader: Loader) -> str:
    return f"a batch is made in {duration(_making_s(loader))}, and handing one over takes {duration(_handing_s(loader))}"


def _handing_s(loader: Loader) -> float:
    cost = loader["cost"]
    return float(cost.get("send_s", 0.0) + cost.get("receive_s", 0.0))


def _making_s(loader: Loader) -> float:
    cost = loader["cost"]
    return float(cost.get("batch_s", 0.0) - cost.get("beside_s", 0.0))


def _begin_with(loader: Loader, first: Mapping[str, Any]) -> str:
    """What to do with that operation."""
    now = {row["workers"]: row["rate"] for row in loader.get("predicted") or ()}.get(loader["workers"])
    words = f"Begin with {first['operation']}: {first['because']}"
    if now and first["rate_without"] > now * _GAIN and not loader.get("contended"):
        words += f" (without it {figure(first['rate_without'])} {loader.get('units', 'items/s')} at best)"
    return words + "."


def share_saved(loader: Loader) -> float | None:
    """Which share of a step this advice could save at best; None if nothing is predicted."""
    predicted = {row["workers"]: row["rate"] for row in loader.get("predicted") or ()}
    now = predicted.get(loader["workers"])
    if not now:
        return None
    first = loader.get("first") or {}
    best = max(*predicted.values(), 0.0 if not first or _is_idle(first) else first["rate_without"])
    return float(max(1 - now / best, 0.0))
