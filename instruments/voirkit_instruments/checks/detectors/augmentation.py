"""Workers that all draw the same random numbers, and random numbers that are the same in each epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from voirkit_instruments.checks.detectors.epochs import Epoch, by_optimizer, training
from voirkit_instruments.checks.detectors.facts import Fact, Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_ADVICE = (
    "Seed each worker by what torch has seeded it with: worker_init_fn=lambda _: np.random.seed(torch.initial_seed() % 2**32); make a data "
    "set's own generator in the worker, from torch.initial_seed()."
)


def _same(facts: Facts) -> Finding:
    drawn: dict[tuple[int, int, int], list[Fact]] = {}
    for fact in facts.of("drawn"):
        drawn.setdefault((fact.rank, fact.args.get("iterator", -1), fact.args.get("turn", -1)), []).append(fact)
    looked = 0
    for process in facts.processes():
        for of_loader in training(process):
            for epochs in by_optimizer(of_loader):
                of_epochs = [drawn.get((e.fact.rank, e["iterator"], e["turn"]), []) for e in epochs]
                looked += sum(map(bool, of_epochs))
                found = _between_workers(epochs, of_epochs) or _between_epochs(epochs, of_epochs)
                if found is not None:
                    return found
    if not looked:
        return Finding(False, "The data sets of training draw no random numbers from generators that are known.")
    return Finding(False, f"Generators that the data set draws from were told apart between workers and epochs ({looked} epochs).")


def _between_workers(epochs: Sequence[Epoch], drawn: Sequence[Sequence[Fact]]) -> Finding | None:
    for epoch, facts in zip(epochs, drawn, strict=True):
        alike: Counter[tuple[object, ...]] = Counter(_drawn(fact) for fact in facts if fact.args["worker"] >= 0)
        if not alike:
            continue
        which, n = alike.most_common(1)[0]
        if n > 1:
            return Finding(
                True,
                f"{n} of {epoch['workers']} workers began with {which[0]} in the same state and drew the same numbers from it: samples of "
                "different workers are augmented alike.",
                epoch.fact, _ADVICE, {"generator": which[0], "workers": epoch["workers"], "alike": n},
            )  # fmt: skip
    return None


def _between_epochs(epochs: Sequence[Epoch], drawn: Sequence[Sequence[Fact]]) -> Finding | None:
    if len(epochs) < 2 or not all(drawn):
        return None
    common = {(fact.args["worker"], *_drawn(fact)) for fact in drawn[0]}
    for facts in drawn[1:]:
        common &= {(fact.args["worker"], *_drawn(fact)) for fact in facts}
    if not common:
        return None
    which = sorted(str(one[1]) for one in common)[0]
    return Finding(
        True,
        f"In each of {len(epochs)} epochs {which} began in the same state, and the same numbers were drawn from it: the augmentation is "
        "the same in each epoch.",
        epochs[1].fact, _ADVICE, {"generator": which, "workers": epochs[0]["workers"], "epochs": len(epochs)},
    )  # fmt: skip


def _drawn(fact: Fact) -> tuple[object, ...]:
    return fact.args["which"], fact.args["before"], fact.args["after"], fact.args["batch"]


SAME = Detector("same-augmentation", _same, ("step", "epoch"))
