"""Epochs of training, as detectors of data read them: passes over a loader that came to their end and in which optimizers stepped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from voirkit_instruments.checks.detectors.facts import Fact, Facts

_SAMPLERS = "torch.utils.data"  # the modules of torch's own samplers
_SHUFFLING = ("RandomSampler", "SubsetRandomSampler", "DistributedSampler")


@dataclass(frozen=True)
class Epoch:
    """One pass of training over a loader.

    Attributes:
        fact: What was recorded of it.
        optimizers: Those that stepped in it.
        steps: How many steps they did.
    """

    fact: Fact
    optimizers: frozenset[int]
    steps: int

    def __getitem__(self, key: str) -> Any:
        """What is known of it; None if it is not."""
        return self.fact.args.get(key)

    @property
    def sampler(self) -> str:
        """The class of its sampler, without the module if it is torch's own."""
        module, _, name = str(self["sampler"]).rpartition(".")
        return name if module.startswith(_SAMPLERS) else f"{module}.{name}"

    @property
    def is_of_torch(self) -> bool:
        """Whether torch's own samplers choose its samples."""
        return "." not in self.sampler

    @property
    def shuffles(self) -> bool:
        """Whether its order is meant to be another one each time."""
        return self.sampler in _SHUFFLING

    @property
    def where_made(self) -> Fact:
        """The same, at the line where the loader was made."""
        made = self["made"]
        return self.fact if made is None else replace(self.fact, args={**self.fact.args, "where": made})


def training(process: Facts) -> list[list[Epoch]]:
    """The epochs of training of one process, loader by loader, each ascending.

    A pass in which no optimizer stepped, such as a validation between, is none.
    """
    steps = process.of("step")
    ends = [step.at_ns for step in steps]
    found: dict[int, list[Epoch]] = {}
    for fact in process.of("epoch"):
        inside = steps[bisect_left(ends, fact.start_ns) : bisect_right(ends, fact.at_ns)]
        if inside:
            trained = frozenset(step.args.get("optimizer", -1) for step in inside)
            found.setdefault(fact.value, []).append(Epoch(fact, trained, len(inside)))
    return list(found.values())


def by_optimizer(epochs: Sequence[Epoch]) -> list[list[Epoch]]:
    """Those that trained with the same optimizers: what a program does twice on purpose, from the same seed, it does with others."""
    found: dict[frozenset[int], list[Epoch]] = {}
    for epoch in epochs:
        found.setdefault(epoch.optimizers, []).append(epoch)
    return list(found.values())
