"""Training data that is not shuffled, and data that is shuffled into the same order in each epoch."""

from __future__ import annotations

from voirkit_instruments.checks.detectors.epochs import Epoch, by_optimizer, training
from voirkit_instruments.checks.detectors.facts import Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_FEWEST_BATCHES, _FEWEST_OF_A_CLASS = 3, 4  # with less, order says little
_FEWEST_SAMPLES = 16


def _not_shuffled(facts: Facts) -> Finding:
    unsure: str | None = None
    shuffled = False
    for process in facts.processes():
        for epochs in training(process):
            first = epochs[0]
            if not first["map"] or first["n"] is None:
                unsure = unsure or "The samples are not asked for by number: their order cannot be told."
                continue
            if not all(epoch["sequential"] for epoch in epochs):
                shuffled = True
                continue
            said = _of_sequential(epochs)
            if isinstance(said, Finding):
                return said
            unsure = said or unsure
    if unsure is not None:
        return Finding(None, unsure)
    if shuffled:
        return Finding(False, "Batches of training are not in the order of the data set.")
    return Finding(None, "No epoch of training over a loader came to its end.")


def _of_sequential(epochs: list[Epoch]) -> Finding | str | None:
    """Of a loader that goes through a dataset from the first sample to the last, each time.

    Returns:
        A finding; or why there is none; None if nothing can be said against it.
    """
    first = epochs[0]
    if first["batches"] < _FEWEST_BATCHES:
        return None
    if not first["ordered"]:
        return "The data set was put into another order before the loader goes through it."
    n, classes, runs, random_runs = (first[key] for key in ("labels", "classes", "runs", "random_runs"))
    if n is None or n != first["n"] or classes < 2 or n < _FEWEST_SAMPLES or n < _FEWEST_OF_A_CLASS * classes:
        return "Batches of training are in the order of the data set; without classes it cannot be told whether that is on purpose."
    evidence = {
        "epochs": len(epochs), "samples": n, "classes": classes, "runs": runs, "runs_if_shuffled": random_runs, "shuffle": first["shuffle"],
    }  # fmt: skip
    advice = "Give the DataLoader of the training data shuffle=True (or a sampler that shuffles)."
    if runs == classes and random_runs > 2 * classes:
        return Finding(
            True,
            f"The loader goes through the {n} samples in the order of the data set, which holds one class after another: each of "
            f"{classes} classes in one piece, in {_epochs(epochs)}.",
            first.where_made, advice, evidence,
        )  # fmt: skip
    if len(epochs) < 2 or not first.is_of_torch:
        return "Batches of training are in the order of the data set, which has no order of classes."
    if abs(runs - random_runs) > 0.2 * random_runs:
        return "Batches of training are in the order of the data set, in which neighbours are alike: it may be one of time."
    if first["shuffle"] is False:
        return Finding(
            True,
            f"shuffle=False: the loader goes through the {n} samples of {classes} classes in the order of the data set, the same batches "
            f"in {_epochs(epochs)}.",
            first.where_made, advice, evidence,
        )  # fmt: skip
    return (
        f"The loader goes through the data set in its order in {_epochs(epochs)}; its {classes} classes have no order in it, so that "
        "it may have been shuffled beforehand."
    )


def _same_order(facts: Facts) -> Finding:
    looked = 0
    for process in facts.processes():
        for of_loader in training(process):
            for epochs in by_optimizer(of_loader):
                first = epochs[0]
                if (
                    len(epochs) < 2
                    or not first.shuffles
                    or (first["distinct"] or 0) < _FEWEST_SAMPLES
                    or first["batches"] < _FEWEST_BATCHES
                ):
                    continue
                looked += len(epochs)
                if len({epoch["order"] for epoch in epochs}) > 1 or first["sequential"]:
                    continue
                distributed = first.sampler == "DistributedSampler"
                why = "set_epoch() was not called" if distributed else "the seed is set again before each"
                return Finding(
                    True,
                    f"The {first['n']} samples were shuffled into the same order in each of {len(epochs)} epochs: {why}.",
                    epochs[1].fact,
                    "Call sampler.set_epoch(epoch) before each epoch." if distributed else "Set the seed once, before the first epoch.",
                    {"epochs": len(epochs), "samples": first["n"], "sampler": first.sampler},
                )
    if not looked:
        return Finding(None, "No two epochs of training over a loader that shuffles came to their end.")
    return Finding(False, f"The order was another one in each epoch ({looked} epochs).")


def _epochs(epochs: list[Epoch]) -> str:
    return f"each of {len(epochs)} epochs" if len(epochs) > 1 else "the only epoch of this loader"


NOT_SHUFFLED = Detector("not-shuffled", _not_shuffled, ("step", "epoch"))
SAME_ORDER = Detector("same-order", _same_order, ("step", "epoch"))
