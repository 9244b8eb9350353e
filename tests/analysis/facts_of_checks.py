"""Facts of ``--checks`` written by hand, as a training would record them, one microsecond apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from voirkit_instruments.checks.analyse import DETECTORS
from voirkit_instruments.checks.analyse_facts import Fact, Facts


class Told:
    """Facts, one after the other."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def add(
        self, name: str, value: int = 0, where: str | None = None, rank: int = 0, **args: Any
    ) -> Told:
        """One more fact."""
        at_ns = 1000 * (len(self.facts) + 1)
        given = {**args, **({"where": where} if where else {})}
        self.facts.append(Fact(name, at_ns + 500, value, given, rank, 7, 7, at_ns))
        return self

    def call(
        self, model: int = 0, training: bool = True, grad: bool = True, where: str = "main.py:10"
    ) -> Told:
        """A call of a model."""
        return self.add("call", 0, where, model=model, training=training, grad=grad)

    def backward(self, where: str = "main.py:11") -> Told:
        """A backward pass."""
        return self.add("backward", 0, where)

    def zero_grad(self, where: str = "main.py:9", optimizer: int = 0) -> Told:
        """Gradients are cleared."""
        return self.add("zero_grad", 0, where, optimizer=optimizer)

    def step(self, n: int, where: str = "main.py:12", still: bool = False, **look: Any) -> Told:
        """An optimizer's step, and a look after it."""
        found = {
            "optimizer": 0,
            "kind": "SGD",
            "held": 4,
            "trainable": 4,
            "graded": 4,
            "zero": 0,
            "of_models": 4,
            **look,
        }
        self.add("step", int(still), where, optimizer=found["optimizer"])
        return self.add("look", n, where, still=still, **found)

    def layers(
        self, model: int = 0, training: bool = True, grad: bool = True, **layers: int
    ) -> Told:
        """What layers a model has in a mode."""
        none = {
            "dropout_on": 0,
            "dropout_off": 0,
            "norm_on": 0,
            "norm_off": 0,
            "fresh": 0,
            "frozen": 0,
            "trainable": 4,
        }
        return self.add(
            "model",
            model,
            "main.py:10",
            kind="Net",
            training=training,
            grad=grad,
            **{**none, **layers},
        )

    def trained(self, model: int = 0) -> Told:
        """A model's parameters are held by an optimizer, and have gradients."""
        return self.add("trained", model, "main.py:12", optimizer=0, graded=4, of=4)

    def unheld(self, still: int, **args: Any) -> Told:
        """Parameters that get gradients and are in no optimizer."""
        none = {
            "changed": 0,
            "models": "Net",
            "partly": True,
            "unnamed": 0,
            "after": 0,
            "names": "fc2.weight",
        }
        return self.add("unheld", still, "main.py:12", **{**none, **args})

    def without(self, n: int, never: int, **args: Any) -> Told:
        """Parameters in an optimizer that had no gradient so far."""
        none = {
            "changed": 0,
            "graded": 2,
            "called": 0,
            "before": 0,
            "of_models": 4,
            "model": "Net",
            "names": "encoder.weight",
        }
        return self.add("without", n, "main.py:12", optimizer=0, never=never, **{**none, **args})

    def reach(
        self, held: int = 4, parameters: int = 0, leaf_root: bool = False, where: str = "main.py:11"
    ) -> Told:
        """What a backward pass comes to."""
        return self.add(
            "reach", held + parameters, where, held=held, parameters=parameters, leaf_root=leaf_root
        )

    def says(self, name: str, evaluated: tuple[int, int] | None = None) -> dict[str, Any]:
        """What a detector says of these facts; from the fact with the first number to that with the second nothing was trained in a loop."""
        (detector,) = [detector for detector in DETECTORS if detector.name == name]
        if evaluated is None:
            return detector.examine(Facts(self.facts))
        first, last = (self.facts[at] for at in evaluated)
        no_steps, none = (
            SimpleNamespace(start_ns=np.zeros(0, dtype=np.int64)),
            np.array([first.start_ns]),
        )
        evaluation = SimpleNamespace(start_ns=none, end_ns=np.array([last.at_ns]))
        rank: Any = SimpleNamespace(
            rank=0, steps=SimpleNamespace(train=no_steps, evaluation=evaluation)
        )
        return detector.examine(Facts(self.facts, [rank]))
