"""Ranks that see the same data, and ranks whose parameters go apart."""

from __future__ import annotations

from voirkit_instruments.checks.detectors.epochs import Epoch, training
from voirkit_instruments.checks.detectors.facts import Fact, Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_APART = 1e-5  # relative; the last digits may differ between devices of different kinds


def _same_data(facts: Facts) -> Finding:
    alone = _alone(facts)
    if alone is not None:
        return alone
    by_rank = _epochs_by_rank(facts)
    if len(by_rank) < 2:
        return Finding(None, "No epoch of training came to its end on two ranks.")
    if not _is_data_parallel(facts, by_rank):
        return Finding(None, "It cannot be told whether the ranks are to see different data: no DistributedDataParallel was called.")
    told = 0
    for epoch in next(iter(by_rank.values())).values():
        others = [found[_key(epoch)] for found in by_rank.values() if _key(epoch) in found and found[_key(epoch)] is not epoch]
        for other in others:
            if epoch["order"] is None or None in (epoch["content"], other["content"]):
                continue
            told += 1
            if (epoch["order"], epoch["content"]) == (other["order"], other["content"]):
                return Finding(
                    True,
                    f"Ranks {epoch.fact.rank} and {other.fact.rank} saw the same {epoch['n']} samples in the same order, and their first "
                    "batches held the same.",
                    epoch.where_made, "Give the DataLoader sampler=DistributedSampler(dataset), and call its set_epoch() each epoch.",
                    {"ranks": [epoch.fact.rank, other.fact.rank], "samples": epoch["n"], "sampler": epoch.sampler},
                )  # fmt: skip
    if not told:
        return Finding(None, "What the batches of ranks hold cannot be compared.")
    return Finding(False, f"Ranks saw different samples, or in a different order ({told} epochs compared).")


def _alone(facts: Facts) -> Finding | None:
    """What is to be said where the facts of no two ranks are here."""
    if len(facts.ranks) > 1:
        return None
    worlds = facts.of("world")
    if not worlds:
        return Finding(False, "There is one rank.")
    return Finding(None, f"These are the facts of one of {worlds[0].value} ranks: give the directories of all to voirkit report.")


def _key(epoch: Epoch) -> tuple[object, ...]:
    return epoch.fact.value, epoch["iterator"], epoch["turn"]


def _epochs_by_rank(facts: Facts) -> dict[int, dict[tuple[object, ...], Epoch]]:
    """The epochs of training of each rank that has any, by which they are."""
    found: dict[int, dict[tuple[object, ...], Epoch]] = {}
    for process in facts.processes():
        for epochs in training(process):
            for epoch in epochs:
                found.setdefault(epoch.fact.rank, {})[_key(epoch)] = epoch
    return found


def _is_data_parallel(facts: Facts, by_rank: dict[int, dict[tuple[object, ...], Epoch]]) -> bool:
    """Whether each rank calls a DistributedDataParallel, or has the part of a DistributedSampler for as many ranks as there are."""
    parallel = {fact.rank for fact in facts.of("parallel")}
    world = len(facts.ranks)
    return all(
        rank in parallel or any(e.sampler == "DistributedSampler" and e["replicas"] == world for e in epochs.values())
        for rank, epochs in by_rank.items()
    )


def _diverge(facts: Facts) -> Finding:
    alone = _alone(facts)
    if alone is not None:
        return alone
    looks: dict[tuple[int, int], dict[int, Fact]] = {}
    for fact in facts.of("weights"):
        looks.setdefault((fact.args["optimizer"], fact.value), {}).setdefault(fact.rank, fact)
    compared = [of_ranks for _, of_ranks in sorted(looks.items()) if len(of_ranks) == len(facts.ranks)]
    alike = [of_ranks for of_ranks in compared if len({fact.args["shapes"] for fact in of_ranks.values()}) == 1]
    if not alike:
        return Finding(None, "The ranks hold no parameters that could be compared, or not the same: each may have a part of the model.")
    apart = [of_ranks for of_ranks in alike if _distance(of_ranks) > _APART]
    if not apart:
        return Finding(False, f"The parameters of {len(facts.ranks)} ranks were alike at {len(alike)} steps that were looked at.")
    parallel = {fact.rank for fact in facts.of("parallel")}
    if len(parallel) < len(facts.ranks):
        if facts.has("collective"):
            return Finding(None, "The parameters of ranks differ; the program exchanges tensors between them itself, and may want that.")
        if not _is_data_parallel(facts, _epochs_by_rank(facts)):
            return Finding(None, "The parameters of ranks differ; each may train a model, or a part of one, on purpose.")
    if _distance(alike[-1]) <= _APART:
        return Finding(None, "The parameters of ranks differed for some steps, and were alike again.")
    at = apart[0][min(apart[0])]
    advice = (
        "Call the DistributedDataParallel itself, not its module, and change parameters alike on all ranks."
        if parallel
        else "Wrap the model in DistributedDataParallel, and call that."
    )
    return Finding(
        True,
        f"The parameters of ranks {', '.join(map(str, sorted(apart[0])))} differ after step {at.value} of the optimizer by "
        f"{_distance(apart[0]):.1e} of their size, and by {_distance(alike[-1]):.1e} after step {alike[-1][at.rank].value}.",
        at, advice, {"ranks": sorted(apart[0]), "distance": _distance(alike[-1]), "looked_at": len(alike), "apart": len(apart)},
    )  # fmt: skip


def _distance(of_ranks: dict[int, Fact]) -> float:
    """The largest relative difference between ranks in the size of a parameter."""
    sizes = [[float(size) for size in fact.args["sizes"].split(",")] for fact in of_ranks.values()]
    most = 0.0
    for of_parameter in zip(*sizes, strict=True):
        largest = max(of_parameter)
        if largest > 0:
            most = max(most, (largest - min(of_parameter)) / largest)
    return most


SAME_DATA = Detector("ranks-same-data", _same_data, ("step",))
DIVERGE = Detector("ranks-diverge", _diverge, ("step",))
