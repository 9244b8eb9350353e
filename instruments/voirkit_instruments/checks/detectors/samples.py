"""Samples that are never seen in an epoch, and samples that are seen twice."""

from __future__ import annotations

from voirkit_instruments.checks.detectors.epochs import Epoch, training
from voirkit_instruments.checks.detectors.facts import Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_FEWEST_SAMPLES = 8
_MOST_MISSED = 0.1  # more than this is a part of the data set that was chosen


def _missed(facts: Facts) -> Finding:
    unsure: str | None = None
    whole = False
    for process in facts.processes():
        seen_by = _sets(process)
        for epochs in training(process):
            epochs = [epoch for epoch in epochs if epoch["exhausted"] and epoch["n"] is not None]
            if not epochs:
                continue
            first = epochs[0]
            if first["missed"] is None:
                unsure = unsure or "How many samples the data set has cannot be told without calling it."
                continue
            said = _of_missed(epochs, seen_by)
            if isinstance(said, Finding):
                return said
            unsure = said or unsure
            whole = whole or not said
    if unsure is not None:
        return Finding(None, unsure)
    if not whole:
        return Finding(None, "No epoch of training over a data set of known size came to its end.")
    return Finding(False, "Every sample was seen, but for those that were left out on purpose.")


def _of_missed(epochs: list[Epoch], seen_by: dict[str, set[int]]) -> Finding | str | None:
    """Of a loader's epochs; a finding, or why there is none, or None if all is well."""
    first = epochs[0]
    missed = [epoch["missed"] for epoch in epochs]
    if not any(missed) or first["size"] < _FEWEST_SAMPLES:
        return None
    if first.is_of_torch:  # a part, with replacement, a rank's; the incomplete batch at the end that drop_last leaves out
        return None
    said = first["said"]
    evidence = {
        "epochs": len(epochs),
        "samples": first["size"],
        "seen": first["distinct"],
        "missed": missed[0],
        "sampler": first["sampler"],
    }
    if said > first["batches"] and all(missed):
        return Finding(
            True,
            f"The loader says that it has {said} batches and gives {first['batches']}: {missed[0]} of {first['size']} samples are not seen "
            "in the first epoch.",
            first.where_made, "Let the sampler's __iter__ give as many as its __len__ says.", {**evidence, "batches_said": said},
        )  # fmt: skip
    same = len({epoch["set"] for epoch in epochs}) == 1
    if len(epochs) < 2 or not same:
        return f"{missed[0]} of {first['size']} samples were not seen in an epoch: the program's own sampler chose others."
    if any(seen != first["set"] for seen in seen_by.get(first["dataset"], set())):
        return f"{missed[0]} of {first['size']} samples are left to another loader of the same data set."
    if missed[0] > max(_MOST_MISSED * first["size"], first["batch_size"] - 1 if first["batch_size"] > 0 else 0):
        return f"The program's own sampler chose {first['distinct']} of {first['size']} samples; whether on purpose cannot be told."
    return Finding(
        True,
        f"The same {missed[0]} of {first['size']} samples (the first of them is number {first['missed_first']}) were not seen in any of "
        f"{len(epochs)} epochs: the program's own sampler never gives them.",
        first.where_made, "Let the sampler give all samples, or shuffle before it leaves some out.", evidence,
    )  # fmt: skip


def _sets(process: Facts) -> dict[str, set[int]]:
    """Which samples loaders have seen, by the class of their dataset: digests of the sets."""
    found: dict[str, set[int]] = {}
    for fact in process.of("epoch"):
        if fact.args.get("set") is not None:
            found.setdefault(str(fact.args.get("dataset")), set()).add(fact.args["set"])
    return found


def _twice(facts: Facts) -> Finding:
    unsure: str | None = None
    once = False
    held = _held(facts)
    for process in facts.processes():
        for epochs in training(process):
            first = epochs[0]
            if not first["map"]:
                said = _of_stream(epochs, held)
            elif first["n"] is None:
                said = "The samples are not asked for by number."
            else:
                said = _of_twice(first)
            if isinstance(said, Finding):
                return said
            unsure = said or unsure
            once = once or not said
    if unsure is not None:
        return Finding(None, unsure)
    return Finding(False, "No sample was seen twice in an epoch.") if once else Finding(None, "No epoch of training came to its end.")


def _of_twice(first: Epoch) -> Finding | str | None:
    more = first["n"] - first["distinct"]
    if not more or first["replacement"] or first.sampler in ("WeightedRandomSampler", "DistributedSampler"):
        return None
    if first["at_seams"] == more and more >= first["batches"] - 2 > 0:
        return Finding(
            True,
            f"Batches overlap: {more} samples were seen twice in an epoch, each as the last of a batch and the first of the next.",
            first.where_made, "Let batches begin where the one before has ended.",
            {"samples": first["distinct"], "seen": first["n"], "sampler": first["sampler"]},
        )  # fmt: skip
    return f"{more} samples were seen again in an epoch: the sampler may choose them more often on purpose."


def _held(facts: Facts) -> dict[tuple[int, int, int], dict[int, list[int]]]:
    """What the first batches of workers held: by rank, iterator and turn, and by worker."""
    found: dict[tuple[int, int, int], dict[int, list[int]]] = {}
    for fact in facts.of("held"):
        key = (fact.rank, fact.args.get("iterator", -1), fact.args.get("turn", -1))
        found.setdefault(key, {}).setdefault(fact.args.get("worker", -1), []).append(fact.value)
    return found


def _of_stream(epochs: list[Epoch], held: dict[tuple[int, int, int], dict[int, list[int]]]) -> Finding | str | None:
    """Of an iterable dataset: two workers whose first two batches hold the same read the same."""
    if (epochs[0]["workers"] or 0) < 2:
        return None
    unsure = "What the workers of an iterable data set read cannot be compared."
    for epoch in epochs:
        workers = held.get((epoch.fact.rank, epoch["iterator"], epoch["turn"]), {})
        digests = [tuple(batches) for batches in workers.values() if len(set(batches)) > 1]
        if len(digests) < 2:
            continue
        most = max(digests.count(one) for one in digests)
        if most < 2:
            unsure = ""
            continue
        return Finding(
            True,
            f"{most} workers each read the same samples of {epoch['dataset']}: each is seen {most} times in an epoch.",
            epoch.where_made, "Split the data between workers: see torch.utils.data.get_worker_info().",
            {"workers": epoch["workers"], "alike": most, "batches": epoch["batches"]},
        )  # fmt: skip
    return unsure or None


MISSED = Detector("samples-missed", _missed, ("step", "epoch"))
TWICE = Detector("samples-twice", _twice, ("step", "epoch"))
