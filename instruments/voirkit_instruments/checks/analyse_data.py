"""Silent bugs of data and ranks: data that is not shuffled, or into the same order in each epoch; samples that are missed or seen twice;
augmentation that is the same in workers or epochs; ranks that see the same data, or whose parameters go apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from voirkit_instruments.checks.analyse_facts import Answer, Answers, Epoch, Fact, Facts, by_optimizer, detector, training, unknown

_FEWEST_BATCHES, _FEWEST_OF_A_CLASS = 3, 4  # with less, order says little
_FEWEST_SAMPLES = 16


@detector("not-shuffled", "step", "epoch", looks_at=("epoch",))
def not_shuffled(facts: Facts) -> Answers:
    shuffled = False
    for _, epochs in training(facts):
        first = epochs[0]
        if not first["map"] or first["n"] is None:
            yield "The samples are not asked for by number: their order is not known."
        elif not all(epoch["sequential"] for epoch in epochs):
            shuffled = True
        elif first["batches"] < _FEWEST_BATCHES:
            yield f"An epoch has {first['batches']} batches: {_FEWEST_BATCHES} are needed to tell their order."
        elif said := _of_sequential(epochs):
            yield said
    if shuffled:
        return "Batches of training are not in the order of the data set."
    return unknown("No epoch of training over a loader came to its end.")


def _of_sequential(epochs: list[Epoch]) -> Answer | str | None:
    """Of a loader that goes through a dataset from the first sample to the last, each time. Returns the bug; or why there is none; None
    if nothing can be said against it."""
    first = epochs[0]
    if not first["ordered"]:
        return "The data set was put into another order before the loader goes through it."
    n, classes, runs, random_runs = (first[key] for key in ("labels", "classes", "runs", "random_runs"))
    if n is None or n != first["n"] or classes < 2 or n < _FEWEST_SAMPLES or n < _FEWEST_OF_A_CLASS * classes:
        return "Batches of training are in the order of the data set; without classes it is not known whether that is on purpose."
    evidence = {
        "epochs": len(epochs), "samples": n, "classes": classes, "runs": runs, "runs_if_shuffled": random_runs, "shuffle": first["shuffle"],
    }  # fmt: skip
    advice = "Give the DataLoader of the training data shuffle=True (or a sampler that shuffles)."
    if runs == classes and random_runs > 2 * classes:
        return Answer(
            f"The loader goes through the {n} samples in the order of the data set, which holds one class after another: each of "
            f"{classes} classes in one piece, in {_epochs(epochs)}.",
            first.where_made, advice, evidence,
        )  # fmt: skip
    if len(epochs) < 2 or not first.is_of_torch:
        return "Batches of training are in the order of the data set, which has no order of classes."
    if abs(runs - random_runs) > 0.2 * random_runs:
        return "Batches of training are in the order of the data set, in which neighbours are alike: it may be one of time."
    if first["shuffle"] is False:
        return Answer(
            f"shuffle=False: the loader goes through the {n} samples of {classes} classes in the order of the data set, the same batches "
            f"in {_epochs(epochs)}.",
            first.where_made, advice, evidence,
        )  # fmt: skip
    return (
        f"The loader goes through the data set in its order in {_epochs(epochs)}; its {classes} classes have no order in it, so that "
        "it may have been shuffled beforehand."
    )


@detector("same-order", "step", "epoch", looks_at=("epoch",))
def same_order(facts: Facts) -> Answers:
    looked, reasons = 0, []
    for _, of_loader in training(facts):
        for epochs in by_optimizer(of_loader):
            first = epochs[0]
            reason = _why_not_compared(epochs)
            if reason:
                reasons.append(reason)
                continue
            looked += len(epochs)
            if len({epoch["order"] for epoch in epochs}) > 1 or first["sequential"]:
                continue
            distributed = first.sampler == "DistributedSampler"
            why = "set_epoch() was not called" if distributed else "the seed is set again before each"
            yield Answer(
                f"The {first['n']} samples were shuffled into the same order in each of {len(epochs)} epochs: {why}.",
                epochs[1].fact,
                "Call sampler.set_epoch(epoch) before each epoch." if distributed else "Set the seed once, before the first epoch.",
                {"epochs": len(epochs), "samples": first["n"], "sampler": first.sampler},
            )
    if not looked:
        return unknown(reasons[0] if reasons else "No epoch of training over a loader came to its end.")
    return f"The order was another one in each epoch ({looked} epochs)."


def _why_not_compared(epochs: list[Epoch]) -> str:
    """Why the orders of epochs over a loader tell nothing; empty if they do."""
    first = epochs[0]
    if not first["map"] or first["n"] is None:
        return "The samples are not asked for by number: their order is not known."
    if not first.shuffles and first.is_of_torch:
        return f"The loader does not shuffle all samples: its sampler is a {first.sampler}."
    if not first.shuffles:
        return f"A sampler of the program's own chooses the order: {first.sampler}."
    if first["distinct"] < _FEWEST_SAMPLES or first["batches"] < _FEWEST_BATCHES:
        return f"An epoch has {first['distinct']} samples in {first['batches']} batches: too few to tell their order."
    return "" if len(epochs) > 1 else "One epoch of training over a loader came to its end: two are needed."


def _epochs(epochs: list[Epoch]) -> str:
    return f"each of {len(epochs)} epochs" if len(epochs) > 1 else "the only epoch of this loader"


_FEWEST_MISSED = 8
_MOST_MISSED = 0.1  # more than this is a part of the data set that was chosen


@detector("samples-missed", "step", "epoch", looks_at=("epoch",))
def samples_missed(facts: Facts) -> Answers:
    whole = False
    for process, of_loader in training(facts):
        epochs = [epoch for epoch in of_loader if epoch["exhausted"] and epoch["n"] is not None]
        if not epochs:
            if not of_loader[0]["map"] or of_loader[0]["n"] is None:
                yield "The samples are not asked for by number."
            continue
        first = epochs[0]
        if first["missed"] is None:
            yield "How many samples the data set has is not known without calling it."
        elif said := _of_missed(epochs, _sets(process)):
            yield said
        else:
            whole = True
    if not whole:
        return unknown("No epoch of training over a data set of known size came to its end.")
    return "Every sample was seen, but for those that were left out on purpose."


def _of_missed(epochs: list[Epoch], seen_by: dict[str, set[int]]) -> Answer | str | None:
    """Of a loader's epochs; an answer, or why there is none, or None if all is well."""
    first = epochs[0]
    missed = [epoch["missed"] for epoch in epochs]
    if not any(missed):
        return None
    if first.is_of_torch:  # a part, with replacement, a rank's; the incomplete batch at the end that drop_last leaves out
        return None
    if first["size"] < _FEWEST_MISSED:
        return f"{missed[0]} of {first['size']} samples were not seen in an epoch: too few to tell whether that is on purpose."
    said = first["said"]
    evidence = {
        "epochs": len(epochs),
        "samples": first["size"],
        "seen": first["distinct"],
        "missed": missed[0],
        "sampler": first["sampler"],
    }
    if said > first["batches"] and all(missed):
        return Answer(
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
        return f"The program's own sampler chose {first['distinct']} of {first['size']} samples; whether on purpose is not known."
    return Answer(
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


@detector("samples-twice", "step", "epoch", looks_at=("epoch", "held"))
def samples_twice(facts: Facts) -> Answers:
    once = False
    held = _worker_batches(facts)
    for _, epochs in training(facts):
        first = epochs[0]
        if first["map"] and first["n"] is None:
            yield "The samples are not asked for by number."
        elif said := _of_twice(first) if first["map"] else _of_stream(epochs, held):
            yield said
        else:
            once = True
    return "No sample was seen twice in an epoch." if once else unknown("No epoch of training came to its end.")


def _of_twice(first: Epoch) -> Answer | str | None:
    more = first["n"] - first["distinct"]
    if not more or first["replacement"] or first.sampler in ("WeightedRandomSampler", "DistributedSampler"):
        return None
    if first["at_seams"] == more and more >= first["batches"] - 2 > 0:
        return Answer(
            f"Batches overlap: {more} samples were seen twice in an epoch, each as the last of a batch and the first of the next.",
            first.where_made, "Let batches begin where the one before has ended.",
            {"samples": first["distinct"], "seen": first["n"], "sampler": first["sampler"]},
        )  # fmt: skip
    return f"{more} samples were seen again in an epoch: the sampler may choose them more often on purpose."


def _worker_batches(facts: Facts) -> dict[tuple[int, int, int], dict[int, list[int]]]:
    """What the first batches of workers held: by rank, iterator and turn, and by worker."""
    found: dict[tuple[int, int, int], dict[int, list[int]]] = {}
    for fact in facts.of("held"):
        key = (fact.rank, fact.args.get("iterator", -1), fact.args.get("turn", -1))
        found.setdefault(key, {}).setdefault(fact.args.get("worker", -1), []).append(fact.value)
    return found


def _of_stream(epochs: list[Epoch], batches_by_worker: dict[tuple[int, int, int], dict[int, list[int]]]) -> Answer | str | None:
    """Of an iterable dataset: two workers whose first two batches hold the same read the same."""
    if (epochs[0]["workers"] or 0) < 2:
        return "The samples of an iterable data set are not asked for by number, and no two workers read it."
    unsure = "What the workers of an iterable data set read cannot be compared."
    for epoch in epochs:
        workers = batches_by_worker.get((epoch.fact.rank, epoch["iterator"], epoch["turn"]), {})
        digests = [tuple(batches) for batches in workers.values() if len(set(batches)) > 1]
        if len(digests) < 2:
            continue
        most = max(digests.count(one) for one in digests)
        if most < 2:
            unsure = ""
            continue
        return Answer(
            f"{most} workers each read the same samples of {epoch['dataset']}: each is seen {most} times in an epoch.",
            epoch.where_made, "Split the data between workers: see torch.utils.data.get_worker_info().",
            {"workers": epoch["workers"], "alike": most, "batches": epoch["batches"]},
        )  # fmt: skip
    return unsure or None


_ADVICE = (
    "Seed each worker by what torch has seeded it with: worker_init_fn=lambda _: np.random.seed(torch.initial_seed() % 2**32); make a data "
    "set's own generator in the worker, from torch.initial_seed()."
)


@detector("same-augmentation", "step", "epoch", looks_at=("epoch", "drawn"))
def same_augmentation(facts: Facts) -> Answers:
    drawn: dict[tuple[int, int, int], list[Fact]] = {}
    for fact in facts.of("drawn"):
        drawn.setdefault((fact.rank, fact.args.get("iterator", -1), fact.args.get("turn", -1)), []).append(fact)
    looked = compared = n_epochs = 0
    for _, of_loader in training(facts):
        for epochs in by_optimizer(of_loader):
            of_epochs = [drawn.get((e.fact.rank, e["iterator"], e["turn"]), []) for e in epochs]
            n_epochs += len(epochs)
            looked += sum(map(bool, of_epochs))
            workers = {fact.args["worker"] for facts_of_epoch in of_epochs for fact in facts_of_epoch} - {-1}
            if len(workers) > 1 or sum(map(bool, of_epochs)) > 1:
                compared += 1
            found = _between_workers(epochs, of_epochs) or _between_epochs(epochs, of_epochs)
            if found is not None:
                yield found
    if not n_epochs:
        return unknown("No epoch of training over a loader came to its end.")
    if not looked:
        return f"The data sets of training draw no random numbers from generators that are known ({n_epochs} epochs)."
    if not compared:
        return unknown("Random numbers are drawn in one epoch, by one worker at most: there is nothing to compare them with.")
    return f"Generators that the data set draws from differed between workers and epochs ({looked} epochs)."


def _between_workers(epochs: Sequence[Epoch], drawn: Sequence[Sequence[Fact]]) -> Answer | None:
    for epoch, facts in zip(epochs, drawn, strict=True):
        alike: Counter[tuple[object, ...]] = Counter(_drawn(fact) for fact in facts if fact.args["worker"] >= 0)
        if not alike:
            continue
        which, n = alike.most_common(1)[0]
        if n > 1:
            return Answer(
                f"{n} of {epoch['workers']} workers began with {which[0]} in the same state and drew the same numbers from it: samples of "
                "different workers are augmented alike.",
                epoch.fact, _ADVICE, {"generator": which[0], "workers": epoch["workers"], "alike": n},
            )  # fmt: skip
    return None


def _between_epochs(epochs: Sequence[Epoch], drawn: Sequence[Sequence[Fact]]) -> Answer | None:
    if len(epochs) < 2 or not all(drawn):
        return None
    common = {(fact.args["worker"], *_drawn(fact)) for fact in drawn[0]}
    for facts in drawn[1:]:
        common &= {(fact.args["worker"], *_drawn(fact)) for fact in facts}
    if not common:
        return None
    which = sorted(str(one[1]) for one in common)[0]
    return Answer(
        f"In each of {len(epochs)} epochs {which} began in the same state, and the same numbers were drawn from it: the augmentation is "
        "the same in each epoch.",
        epochs[1].fact, _ADVICE, {"generator": which, "workers": epochs[0]["workers"], "epochs": len(epochs)},
    )  # fmt: skip


def _drawn(fact: Fact) -> tuple[object, ...]:
    return fact.args["which"], fact.args["before"], fact.args["after"], fact.args["batch"]


_APART = 1e-5  # relative; the last digits may differ between devices of different kinds


@detector("ranks-same-data", "step", looks_at=("rank", "epoch"))
def ranks_same_data(facts: Facts) -> Answers:
    alone = _single_rank(facts)
    if alone is not None:
        return alone
    by_rank = _epochs_by_rank(facts)
    if len(by_rank) < 2:
        return unknown("No epoch of training came to its end on two ranks.")
    if not _is_data_parallel(facts, by_rank):
        return unknown("It is not known whether the ranks are to see different data: no DistributedDataParallel was called.")
    compared = 0
    for epoch in next(iter(by_rank.values())).values():
        others = [found[_key(epoch)] for found in by_rank.values() if _key(epoch) in found and found[_key(epoch)] is not epoch]
        for other in others:
            if epoch["order"] is None or None in (epoch["content"], other["content"]):
                continue
            compared += 1
            if (epoch["order"], epoch["content"]) == (other["order"], other["content"]):
                yield Answer(
                    f"Ranks {epoch.fact.rank} and {other.fact.rank} saw the same {epoch['n']} samples in the same order, and their first "
                    "batches held the same.",
                    epoch.where_made, "Give the DataLoader sampler=DistributedSampler(dataset), and call its set_epoch() each epoch.",
                    {"ranks": [epoch.fact.rank, other.fact.rank], "samples": epoch["n"], "sampler": epoch.sampler},
                )  # fmt: skip
    if not compared:
        return unknown("What the batches of ranks hold cannot be compared.")
    return f"Ranks saw different samples, or in a different order ({compared} epochs compared)."


def _single_rank(facts: Facts) -> Answer | str | None:
    """What is to be said where the facts of no two ranks are here."""
    if len(facts.ranks) > 1:
        return None
    worlds = facts.of("world")
    if not worlds:
        return "There is one rank."
    return unknown(f"These are the facts of one of {worlds[0].value} ranks: give the directories of all to voirkit report.")


def _key(epoch: Epoch) -> tuple[object, ...]:
    return epoch.fact.value, epoch["iterator"], epoch["turn"]


def _epochs_by_rank(facts: Facts) -> dict[int, dict[tuple[object, ...], Epoch]]:
    """The epochs of training of each rank that has any, by which they are."""
    found: dict[int, dict[tuple[object, ...], Epoch]] = {}
    for _, epochs in training(facts):
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


@detector("ranks-diverge", "step", looks_at=("rank", "step", "weights"))
def ranks_diverge(facts: Facts) -> Answers:
    alone = _single_rank(facts)
    if alone is not None:
        return alone
    looks: dict[tuple[int, int], dict[int, Fact]] = {}
    for fact in facts.of("weights"):
        looks.setdefault((fact.args["optimizer"], fact.value), {}).setdefault(fact.rank, fact)
    compared = [of_ranks for _, of_ranks in sorted(looks.items()) if len(of_ranks) == len(facts.ranks)]
    alike = [of_ranks for of_ranks in compared if len({fact.args["shapes"] for fact in of_ranks.values()}) == 1]
    if not alike:
        return unknown("The ranks hold no parameters that could be compared, or not the same: each may have a part of the model.")
    apart = [of_ranks for of_ranks in alike if _distance(of_ranks) > _APART]
    if apart:
        yield _of_diverged(facts, alike, apart)
    return f"The parameters of {len(facts.ranks)} ranks were alike at {len(alike)} steps that were examined."


def _of_diverged(facts: Facts, alike: list[dict[int, Fact]], apart: list[dict[int, Fact]]) -> Answer:
    parallel = {fact.rank for fact in facts.of("parallel")}
    if len(parallel) < len(facts.ranks):
        if facts.has("collective"):
            return unknown("The parameters of ranks differ; the program exchanges tensors between them itself, and may want that.")
        if not _is_data_parallel(facts, _epochs_by_rank(facts)):
            return unknown("The parameters of ranks differ; each may train a model, or a part of one, on purpose.")
    if _distance(alike[-1]) <= _APART:
        return unknown("The parameters of ranks differed for some steps, and were alike again.")
    at = apart[0][min(apart[0])]
    advice = (
        "Call the DistributedDataParallel itself, not its module, and change parameters alike on all ranks."
        if parallel
        else "Wrap the model in DistributedDataParallel, and call that."
    )
    return Answer(
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
