"""Detectors of silent bugs in training data and between ranks.

They find data that is not shuffled, or in the same order in each epoch; samples that are missed or
seen twice; augmentation that is the same in several workers, or in each epoch; ranks that see the
same data, or whose parameters diverge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from voirkit_instruments.checks.analyse_facts import (
    Answer,
    Answers,
    Epoch,
    Fact,
    Facts,
    by_optimizer,
    detector,
    training,
    unknown,
)

# with fewer batches, or fewer samples of a class, the order of the samples proves little
_FEWEST_BATCHES, _FEWEST_OF_A_CLASS = 3, 4
_FEWEST_SAMPLES = 16


@detector("not-shuffled", "step", "epoch", looks_at=("epoch",))
def not_shuffled(facts: Facts) -> Answers:
    is_shuffled = False
    for _, epochs in training(facts):
        if not _has_numbers(epochs[0]):
            yield _NO_NUMBERS_NO_ORDER
        elif all(epoch["sequential"] for epoch in epochs):
            yield _answer_sequential(epochs)
        else:
            is_shuffled = True
    if is_shuffled:
        return "Batches of training are not in the order of the data set."
    return unknown(_NO_EPOCH)


_NO_NUMBERS = "The samples are not asked for by number."
_NO_NUMBERS_NO_ORDER = "The samples are not asked for by number: their order is not known."
_NO_EPOCH = "No epoch of training over a loader came to its end."


def _has_numbers(epoch: Epoch) -> bool:
    """True if the samples of an epoch are requested by index, and their number is known."""
    return bool(epoch["map"] and epoch["n"] is not None)


def _answer_sequential(epochs: list[Epoch]) -> Answer | str:
    """Return the answer for a loader that goes through the dataset in its order in each epoch: the
    bug, or why it is in doubt."""
    first = epochs[0]
    if first["batches"] < _FEWEST_BATCHES:
        return (
            f"An epoch has {first['batches']} batches: {_FEWEST_BATCHES} are needed to tell their"
            " order."
        )
    if not first["ordered"]:
        return "The data set was put into another order before the loader goes through it."
    if not _has_classes(first):
        return (
            "Batches of training are in the order of the data set; without classes it is not known"
            " whether that is on purpose."
        )
    n, classes = first["labels"], first["classes"]
    runs, random_runs = first["runs"], first["random_runs"]
    evidence = {
        "epochs": len(epochs),
        "samples": n,
        "classes": classes,
        "runs": runs,
        "runs_if_shuffled": random_runs,
        "shuffle": first["shuffle"],
    }
    advice = "Give the DataLoader of the training data shuffle=True (or a sampler that shuffles)."
    if runs == classes and random_runs > 2 * classes:
        return Answer(
            f"The loader goes through the {n} samples in the order of the data set, which holds one"
            f" class after another: each of {classes} classes in one piece, in {_epochs(epochs)}.",
            first.where_made,
            advice,
            evidence,
        )
    if len(epochs) < 2 or not first.is_of_torch:
        return (
            "Batches of training are in the order of the data set, which has no order of classes."
        )
    if abs(runs - random_runs) > 0.2 * random_runs:
        return (
            "Batches of training are in the order of the data set, in which neighbours are alike:"
            " it may be one of time."
        )
    if first["shuffle"] is False:
        return Answer(
            f"shuffle=False: the loader goes through the {n} samples of {classes} classes in the"
            f" order of the data set, the same batches in {_epochs(epochs)}.",
            first.where_made,
            advice,
            evidence,
        )
    return (
        f"The loader goes through the data set in its order in {_epochs(epochs)}; its {classes}"
        " classes have no order in it, so that it may have been shuffled beforehand."
    )


def _has_classes(epoch: Epoch) -> bool:
    """True if the labels of all samples are known, and enough to judge the order of the classes."""
    n, classes = epoch["labels"], epoch["classes"]
    if n is None or n != epoch["n"] or classes < 2:
        return False
    return bool(n >= max(_FEWEST_SAMPLES, _FEWEST_OF_A_CLASS * classes))


@detector("same-order", "step", "epoch", looks_at=("epoch",))
def same_order(facts: Facts) -> Answers:
    n_compared, reasons = 0, []
    for _, of_loader in training(facts):
        for epochs in by_optimizer(of_loader):
            first = epochs[0]
            reason = _why_not_compared(epochs)
            if reason:
                reasons.append(reason)
                continue
            n_compared += len(epochs)
            if len({epoch["order"] for epoch in epochs}) > 1 or first["sequential"]:
                continue
            if first.sampler == "DistributedSampler":
                why = "set_epoch() was not called"
                advice = "Call sampler.set_epoch(epoch) before each epoch."
            else:
                why = "the seed is set again before each"
                advice = "Set the seed once, before the first epoch."
            yield Answer(
                f"The {first['n']} samples were shuffled into the same order in each of"
                f" {len(epochs)} epochs: {why}.",
                epochs[1].fact,
                advice,
                {"epochs": len(epochs), "samples": first["n"], "sampler": first.sampler},
            )
    if not n_compared:
        return unknown(reasons[0] if reasons else _NO_EPOCH)
    return f"The order was another one in each epoch ({n_compared} epochs)."


def _why_not_compared(epochs: list[Epoch]) -> str:
    """Return why the orders of a loader's epochs cannot be judged; empty if they can."""
    first = epochs[0]
    if not _has_numbers(first):
        return _NO_NUMBERS_NO_ORDER
    if not first.shuffles and first.is_of_torch:
        return f"The loader does not shuffle all samples: its sampler is a {first.sampler}."
    if not first.shuffles:
        return f"A sampler of the program's own chooses the order: {first.sampler}."
    if first["distinct"] < _FEWEST_SAMPLES or first["batches"] < _FEWEST_BATCHES:
        return (
            f"An epoch has {first['distinct']} samples in {first['batches']} batches: too few to"
            " tell their order."
        )
    if len(epochs) < 2:
        return "One epoch of training over a loader came to its end: two are needed."
    return ""


def _epochs(epochs: list[Epoch]) -> str:
    return f"each of {len(epochs)} epochs" if len(epochs) > 1 else "the only epoch of this loader"


_FEWEST_MISSED = 8
_MOST_MISSED = 0.1  # if a larger share of the samples is missed, the program may use a subset


@detector("samples-missed", "step", "epoch", looks_at=("epoch",))
def samples_missed(facts: Facts) -> Answers:
    has_whole = False
    for process, of_loader in training(facts):
        epochs = [epoch for epoch in of_loader if epoch["exhausted"] and epoch["n"] is not None]
        if not epochs:
            if not _has_numbers(of_loader[0]):
                yield _NO_NUMBERS
            continue
        answer = _answer_missed(epochs, process)
        if answer is None:
            has_whole = True
        else:
            yield answer
    if not has_whole:
        return unknown("No epoch of training over a data set of known size came to its end.")
    return "Every sample was seen, but for those that were left out on purpose."


def _answer_missed(epochs: list[Epoch], process: Facts) -> Answer | str | None:
    """Return the bug of a loader's epochs, or why it is in doubt; None if there is none."""
    first = epochs[0]
    n_missed, n_samples = first["missed"], first["size"]
    if n_missed is None:
        return "How many samples the data set has is not known without calling it."
    # torch's own samplers miss samples on purpose: a subset, replacement, a rank's share, drop_last
    if first.is_of_torch or not any(epoch["missed"] for epoch in epochs):
        return None
    if n_samples < _FEWEST_MISSED:
        return (
            f"{n_missed} of {n_samples} samples were not seen in an epoch: too few to tell whether"
            " that is on purpose."
        )
    evidence = {
        "epochs": len(epochs),
        "samples": n_samples,
        "seen": first["distinct"],
        "missed": n_missed,
        "sampler": first["sampler"],
    }
    n_promised = first["said"]
    if n_promised > first["batches"] and all(epoch["missed"] for epoch in epochs):
        return Answer(
            f"The loader says that it has {n_promised} batches and gives {first['batches']}:"
            f" {n_missed} of {n_samples} samples are not seen in the first epoch.",
            first.where_made,
            "Let the sampler's __iter__ give as many as its __len__ says.",
            {**evidence, "batches_said": n_promised},
        )
    doubt = _why_missed_may_be_meant(epochs, process)
    if doubt:
        return doubt
    return Answer(
        f"The same {n_missed} of {n_samples} samples (the first of them is number"
        f" {first['missed_first']}) were not seen in any of {len(epochs)} epochs: the program's own"
        " sampler never gives them.",
        first.where_made,
        "Let the sampler give all samples, or shuffle before it leaves some out.",
        evidence,
    )


def _why_missed_may_be_meant(epochs: list[Epoch], process: Facts) -> str:
    """Return why the program's own sampler may leave out samples on purpose; empty if nothing
    suggests it."""
    first = epochs[0]
    n_missed, n_samples = first["missed"], first["size"]
    distinct_sets = {epoch["set"] for epoch in epochs}
    if len(epochs) < 2 or len(distinct_sets) > 1:
        return (
            f"{n_missed} of {n_samples} samples were not seen in an epoch: the program's own"
            " sampler chose others."
        )
    sets = _sets(process).get(first["dataset"], set())
    if sets - {first["set"]}:
        return f"{n_missed} of {n_samples} samples are left to another loader of the same data set."
    incomplete_batch = max(first["batch_size"] - 1, 0)
    if n_missed > max(_MOST_MISSED * n_samples, incomplete_batch):
        return (
            f"The program's own sampler chose {first['distinct']} of {n_samples} samples; whether"
            " on purpose is not known."
        )
    return ""


def _sets(process: Facts) -> dict[str, set[int]]:
    """Return a dict from the class of a dataset to digests of the sets of samples that its loaders
    have seen."""
    by_dataset: dict[str, set[int]] = {}
    for fact in process.of("epoch"):
        digest = fact.args.get("set")
        if digest is not None:
            by_dataset.setdefault(str(fact.args.get("dataset")), set()).add(digest)
    return by_dataset


@detector("samples-twice", "step", "epoch", looks_at=("epoch", "held"))
def samples_twice(facts: Facts) -> Answers:
    has_whole = False
    batches = _worker_batches(facts)
    for _, epochs in training(facts):
        first = epochs[0]
        if not first["map"]:
            answer = _answer_stream_twice(epochs, batches)
        elif first["n"] is None:
            answer = _NO_NUMBERS
        else:
            answer = _answer_twice(first)
        if answer is None:
            has_whole = True
        else:
            yield answer
    if not has_whole:
        return unknown("No epoch of training came to its end.")
    return "No sample was seen twice in an epoch."


def _answer_twice(first: Epoch) -> Answer | str | None:
    """Return the bug of a loader's first epoch, or why it is in doubt; None if there is none."""
    n_again = first["n"] - first["distinct"]
    if not n_again or first["replacement"] or first.sampler in _REPEATING_SAMPLERS:
        return None
    # all batches overlap, except perhaps the first or the last one
    if first["at_seams"] == n_again and n_again >= first["batches"] - 2 > 0:
        return Answer(
            f"Batches overlap: {n_again} samples were seen twice in an epoch, each as the last of a"
            " batch and the first of the next.",
            first.where_made,
            "Let batches begin where the one before has ended.",
            {"samples": first["distinct"], "seen": first["n"], "sampler": first["sampler"]},
        )
    return (
        f"{n_again} samples were seen again in an epoch: the sampler may choose them more often on"
        " purpose."
    )


_REPEATING_SAMPLERS = ("WeightedRandomSampler", "DistributedSampler")

# one epoch of a loader: (rank, iterator, turn: how many epochs the iterator had before)
_Pass = tuple[int, int, int]


def _pass_of(fact: Fact) -> _Pass:
    """Return the key of the epoch in which a worker recorded a fact."""
    return fact.rank, fact.args.get("iterator", -1), fact.args.get("turn", -1)


def _worker_batches(facts: Facts) -> dict[_Pass, dict[int, list[int]]]:
    """Return a dict from epoch to a dict from worker to digests of the worker's first batches."""
    by_epoch: dict[_Pass, dict[int, list[int]]] = {}
    for fact in facts.of("held"):
        by_worker = by_epoch.setdefault(_pass_of(fact), {})
        by_worker.setdefault(fact.args.get("worker", -1), []).append(fact.value)
    return by_epoch


def _answer_stream_twice(
    epochs: list[Epoch], batches: dict[_Pass, dict[int, list[int]]]
) -> Answer | str | None:
    """Return the bug of an iterable dataset of which several workers yield the same samples, or why
    the bug is in doubt; None without this bug. Two workers yield the same samples if their first
    two batches are equal."""
    if (epochs[0]["workers"] or 0) < 2:
        return (
            "The samples of an iterable data set are not asked for by number, and no two workers"
            " read it."
        )
    is_compared = False
    for epoch in epochs:
        workers = batches.get((epoch.fact.rank, epoch["iterator"], epoch["turn"]), {})
        digests = [tuple(of_worker) for of_worker in workers.values() if len(set(of_worker)) > 1]
        if len(digests) < 2:
            continue
        is_compared = True
        most = max(Counter(digests).values())
        if most < 2:
            continue
        return Answer(
            f"{most} workers each read the same samples of {epoch['dataset']}: each is seen {most}"
            " times in an epoch.",
            epoch.where_made,
            "Split the data between workers: see torch.utils.data.get_worker_info().",
            {"workers": epoch["workers"], "alike": most, "batches": epoch["batches"]},
        )
    if is_compared:
        return None
    return "What the workers of an iterable data set read cannot be compared."


_ADVICE = (
    "Seed each worker by what torch has seeded it with: worker_init_fn=lambda _:"
    " np.random.seed(torch.initial_seed() % 2**32); make a data set's own generator in the worker,"
    " from torch.initial_seed()."
)


@detector("same-augmentation", "step", "epoch", looks_at=("epoch", "drawn"))
def same_augmentation(facts: Facts) -> Answers:
    by_pass = _draws_by_pass(facts)
    n_epochs = n_drawing = n_compared = 0
    for _, of_loader in training(facts):
        for epochs in by_optimizer(of_loader):
            draws = [by_pass.get((e.fact.rank, e["iterator"], e["turn"]), []) for e in epochs]
            n_epochs += len(epochs)
            n_drawing += sum(map(bool, draws))
            n_compared += _can_be_compared(draws)
            answer = _between_workers(epochs, draws) or _between_epochs(epochs, draws)
            if answer is not None:
                yield answer
    if not n_epochs:
        return unknown(_NO_EPOCH)
    if not n_drawing:
        return (
            "The data sets of training draw no random numbers from generators that are known"
            f" ({n_epochs} epochs)."
        )
    if not n_compared:
        return unknown(
            "Random numbers are drawn in one epoch, by one worker at most: there is nothing to"
            " compare them with."
        )
    return (
        f"Generators that the data set draws from differed between workers and epochs ({n_drawing}"
        " epochs)."
    )


def _draws_by_pass(facts: Facts) -> dict[_Pass, list[Fact]]:
    by_pass: dict[_Pass, list[Fact]] = {}
    for fact in facts.of("drawn"):
        by_pass.setdefault(_pass_of(fact), []).append(fact)
    return by_pass


def _can_be_compared(draws: Sequence[Sequence[Fact]]) -> bool:
    """True if random numbers are drawn in several epochs, or by several workers."""
    workers = {fact.args["worker"] for facts in draws for fact in facts}
    return sum(map(bool, draws)) > 1 or len(workers - {-1}) > 1


def _between_workers(epochs: Sequence[Epoch], draws: Sequence[Sequence[Fact]]) -> Answer | None:
    """Return the bug of workers that draw the same random numbers in an epoch; None if there is
    none."""
    for epoch, facts in zip(epochs, draws, strict=True):
        of_workers = [fact for fact in facts if fact.args["worker"] >= 0]
        if not of_workers:
            continue
        [(state, n_alike)] = Counter(map(_state, of_workers)).most_common(1)
        if n_alike > 1:
            generator = state[0]
            return Answer(
                f"{n_alike} of {epoch['workers']} workers began with {generator} in the same state"
                " and drew the same numbers from it: samples of different workers are augmented"
                " alike.",
                epoch.fact,
                _ADVICE,
                {"generator": generator, "workers": epoch["workers"], "alike": n_alike},
            )
    return None


def _between_epochs(epochs: Sequence[Epoch], draws: Sequence[Sequence[Fact]]) -> Answer | None:
    """Return the bug of random numbers that a worker draws again in each of the epochs; None if
    there is none."""
    if len(epochs) < 2 or not all(draws):
        return None
    states = [{(fact.args["worker"], *_state(fact)) for fact in facts} for facts in draws]
    common = set.intersection(*states)
    if not common:
        return None
    generator = min(str(state[1]) for state in common)
    return Answer(
        f"In each of {len(epochs)} epochs {generator} began in the same state, and the same numbers"
        " were drawn from it: the augmentation is the same in each epoch.",
        epochs[1].fact,
        _ADVICE,
        {"generator": generator, "workers": epochs[0]["workers"], "epochs": len(epochs)},
    )


def _state(fact: Fact) -> tuple[object, ...]:
    """Return the name of a generator, its states before and after a batch, and the batch's
    number."""
    return fact.args["which"], fact.args["before"], fact.args["after"], fact.args["batch"]


# relative difference up to which values of ranks count as equal: the last digits may differ between
# kinds of devices
_APART = 1e-5


@detector("ranks-same-data", "step", looks_at=("rank", "epoch"))
def ranks_same_data(facts: Facts) -> Answers:
    single = _single_rank(facts)
    if single is not None:
        return single
    by_rank = _epochs_by_rank(facts)
    if len(by_rank) < 2:
        return unknown("No epoch of training came to its end on two ranks.")
    if not _is_data_parallel(facts, by_rank):
        return unknown(
            "It is not known whether the ranks are to see different data: no"
            " DistributedDataParallel was called."
        )
    n_compared = 0
    first_rank, *other_ranks = by_rank.values()
    for key, epoch in first_rank.items():
        for other_epochs in other_ranks:
            other = other_epochs.get(key)
            if other is None or not _are_comparable(epoch, other):
                continue
            n_compared += 1
            if (epoch["order"], epoch["content"]) == (other["order"], other["content"]):
                ranks = [epoch.fact.rank, other.fact.rank]
                yield Answer(
                    f"Ranks {ranks[0]} and {ranks[1]} saw the same {epoch['n']} samples in the same"
                    " order, and their first batches held the same.",
                    epoch.where_made,
                    "Give the DataLoader sampler=DistributedSampler(dataset), and call its"
                    " set_epoch() each epoch.",
                    {"ranks": ranks, "samples": epoch["n"], "sampler": epoch.sampler},
                )
    if not n_compared:
        return unknown("What the batches of ranks hold cannot be compared.")
    return f"Ranks saw different samples, or in a different order ({n_compared} epochs compared)."


def _are_comparable(epoch: Epoch, other: Epoch) -> bool:
    """True if the order of ``epoch`` is known, and the content of the first batches of both."""
    return None not in (epoch["order"], epoch["content"], other["content"])


def _single_rank(facts: Facts) -> Answer | str | None:
    """Return the answer if the facts of only one rank are known; otherwise None."""
    if len(facts.ranks) > 1:
        return None
    worlds = facts.of("world")
    if not worlds:
        return "There is one rank."
    return unknown(
        f"These are the facts of one of {worlds[0].value} ranks: give the directories of all to"
        " voirkit report."
    )


def _key(epoch: Epoch) -> tuple[object, ...]:
    return epoch.fact.value, epoch["iterator"], epoch["turn"]


def _epochs_by_rank(facts: Facts) -> dict[int, dict[tuple[object, ...], Epoch]]:
    """Return a dict from each rank that has training epochs to a dict from (loader, iterator, turn)
    to the epoch; ``turn`` is the number of epochs that the iterator had before."""
    by_rank: dict[int, dict[tuple[object, ...], Epoch]] = {}
    for _, epochs in training(facts):
        for epoch in epochs:
            by_rank.setdefault(epoch.fact.rank, {})[_key(epoch)] = epoch
    return by_rank


def _is_data_parallel(facts: Facts, by_rank: dict[int, dict[tuple[object, ...], Epoch]]) -> bool:
    """True if each rank calls a DistributedDataParallel, or has a DistributedSampler that splits
    the data between all ranks."""
    parallel = {fact.rank for fact in facts.of("parallel")}
    world = len(facts.ranks)
    for rank, epochs in by_rank.items():
        samplers = {(epoch.sampler, epoch["replicas"]) for epoch in epochs.values()}
        if rank not in parallel and ("DistributedSampler", world) not in samplers:
            return False
    return True


@detector("ranks-diverge", "step", looks_at=("rank", "step", "weights"))
def ranks_diverge(facts: Facts) -> Answers:
    single = _single_rank(facts)
    if single is not None:
        return single
    by_step: dict[tuple[int, int], dict[int, Fact]] = {}
    for fact in facts.of("weights"):
        of_ranks = by_step.setdefault((fact.args["optimizer"], fact.value), {})
        of_ranks.setdefault(fact.rank, fact)
    n_ranks = len(facts.ranks)
    compared = [
        of_ranks for _, of_ranks in sorted(by_step.items()) if _is_comparable(of_ranks, n_ranks)
    ]
    if not compared:
        return unknown(
            "The ranks hold no parameters that could be compared, or not the same: each may have a"
            " part of the model."
        )
    apart = [of_ranks for of_ranks in compared if _distance(of_ranks) > _APART]
    if apart:
        yield _answer_diverged(facts, compared, apart)
    return (
        f"The parameters of {n_ranks} ranks were alike at {len(compared)} steps that were examined."
    )


def _is_comparable(of_ranks: dict[int, Fact], n_ranks: int) -> bool:
    """True if all ranks were examined at a step, and hold parameters of the same shapes."""
    shapes = {fact.args["shapes"] for fact in of_ranks.values()}
    return len(of_ranks) == n_ranks and len(shapes) == 1


def _answer_diverged(
    facts: Facts, compared: list[dict[int, Fact]], apart: list[dict[int, Fact]]
) -> Answer:
    """Return the bug of ranks whose parameters differ at some of the steps, or why it is in
    doubt."""
    parallel = {fact.rank for fact in facts.of("parallel")}
    if len(parallel) < len(facts.ranks):
        if facts.has("collective"):
            return unknown(
                "The parameters of ranks differ; the program exchanges tensors between them itself,"
                " and may want that."
            )
        if not _is_data_parallel(facts, _epochs_by_rank(facts)):
            return unknown(
                "The parameters of ranks differ; each may train a model, or a part of one, on"
                " purpose."
            )
    first, last = apart[0], compared[-1]
    first_distance, last_distance = _distance(first), _distance(last)
    if last_distance <= _APART:
        return unknown("The parameters of ranks differed for some steps, and were alike again.")
    ranks = sorted(first)
    fact = first[ranks[0]]
    if parallel:
        advice = (
            "Call the DistributedDataParallel itself, not its module, and change parameters alike"
            " on all ranks."
        )
    else:
        advice = "Wrap the model in DistributedDataParallel, and call that."
    return Answer(
        f"The parameters of ranks {', '.join(map(str, ranks))} differ after step {fact.value} of"
        f" the optimizer by {first_distance:.1e} of their size, and by {last_distance:.1e} after"
        f" step {last[fact.rank].value}.",
        fact,
        advice,
        {
            "ranks": ranks,
            "distance": last_distance,
            "looked_at": len(compared),
            "apart": len(apart),
        },
    )


def _distance(of_ranks: dict[int, Fact]) -> float:
    """Return the largest relative difference between ranks in a parameter's sum of absolute
    values."""
    sizes = [[float(size) for size in fact.args["sizes"].split(",")] for fact in of_ranks.values()]
    distance = 0.0
    for of_parameter in zip(*sizes, strict=True):
        largest = max(of_parameter)
        if largest > 0:
            distance = max(distance, (largest - min(of_parameter)) / largest)
    return distance
