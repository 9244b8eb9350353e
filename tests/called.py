"""A training that nobody ran: its calls and phases on a made-up clock, recorded as ``--calls`` and the steps instrument record them."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voirkit.trace import names, recorder

US = 1000
TENSOR = {
    "tensor": "torch.Tensor",
    "dtype": "float32",
    "shape": [4, 8],
    "device": "cpu",
    "grad": True,
}
LINEAR, RELU, DROPOUT = (
    ("torch.nn.modules.linear", "Linear.__call__"),
    ("torch.nn.functional", "relu"),
    ("torch.nn.functional", "dropout"),
)
NET, LOSS = ("__main__", "Net.__call__"), ("torch.nn.functional", "cross_entropy")
BACKWARD, STEP = ("torch", "Tensor.backward"), ("torch.optim.sgd", "SGD.step")
ASKED = ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter._try_get_data")
TAKEN = ("torch.multiprocessing.reductions", "fd_id")
ZERO_GRAD = ("torch.optim.optimizer", "Optimizer.zero_grad")


@dataclass
class Training:
    """What is trained.

    Attributes:
        steps: How many.
        p: Of dropout, by step; the last one goes on.
        without: Functions that are not called, as (step, name).
        layers: Ids of the layers that are called in each step.
        base: Added to the ids of all objects and tensors.
        evaluation: Batches of the evaluation after the last step.
        fails: The step in which cross_entropy raises ValueError, and is called again.
        shape: Of the tensor that relu is given.
        relus: How often relu is called, by step; the last one goes on.
        asks: How often the loader asks whether a worker has a batch.
        phases: Whether the steps instrument was there.
    """

    steps: int = 4
    p: Sequence[float] = (0.5,)
    without: Sequence[tuple[int, str]] = ()
    layers: Sequence[int] = (1, 2)
    base: int = 1000
    evaluation: int = 0
    fails: int = -1
    shape: Sequence[int] = (4, 8)
    relus: Sequence[int] = (1,)
    asks: int = 0
    phases: bool = True


class Writer:
    def __init__(self, training: Training) -> None:
        self.training, self.now = training, recorder.now()

    def call(
        self,
        function: tuple[str, str],
        *inner: Any,
        own_us: int = 10,
        object: int = 0,
        operands: Sequence[int] = (),
        **args: Any,
    ) -> None:
        """A call that takes ``own_us`` beside the calls in it, which are made in its middle."""
        begun = self.now
        self.now += own_us * US // 2
        for one in inner:
            one()
        self.now += own_us * US - own_us * US // 2
        which = object and self.training.base + object
        if object:
            args = {
                "bound": True,
                "args": [{"type": "object"}, *args.get("args", ())],
                **{k: v for k, v in args.items() if k != "args"},
            }
        for at, one in enumerate(operands):
            name = recorder.name("call", "operand", kind="operand", value="id")
            recorder.mark(
                name, begun, recorder.arguments({"at": f"args.{at}"}), self.training.base + one
            )
        recorder.span(
            recorder.name(*function, kind="call", value="object"),
            begun,
            self.now,
            recorder.arguments(args),
            which,
        )

    def phase(
        self, category: str, name: str, *inner: Any, wait_us: int = 0, items: int = -1, **args: Any
    ) -> None:
        begun = self.now
        self.now += wait_us * US + 100  # what it takes to record something
        for one in inner:
            one()
        self.now += 100
        if self.training.phases:
            value = "items" if name == "fetch" else None
            recorder.span(
                recorder.name(category, name, "phase", value),
                begun,
                self.now,
                recorder.arguments(args),
                items,
            )

    def fetch(self, name: str, episode: int) -> None:
        number = lambda: self.call(TAKEN, args=[self.training.base], returns=self.training.base)  # noqa: E731  # as a call's inner ones
        asks = [lambda: self.call(ASKED, number)] * self.training.asks
        self.phase("dataloader", name, *asks, wait_us=50, items=4, episode=episode, loader=0)

    def forward(self, step: int) -> None:
        training = self.training
        layers = [
            lambda which=which: self.call(
                LINEAR, object=which, operands=(70 + which,), args=[TENSOR], returns=TENSOR
            )
            for which in training.layers
        ]
        p, relus = (
            values[min(max(step, 0), len(values) - 1)] for values in (training.p, training.relus)
        )
        relu = {**TENSOR, "shape": list(training.shape)}
        inner = [
            *layers,
            *[lambda: self.call(RELU, args=[relu], returns=relu)] * relus,
            lambda: self.call(
                DROPOUT, args=[TENSOR], kwargs={"p": p, "training": step >= 0}, returns=TENSOR
            ),
        ]
        self.call(
            NET,
            lambda: self.phase("compute", "forward", *inner),
            object=9,
            args=[TENSOR],
            returns=TENSOR,
            own_us=4,
        )

    def step(self, step: int) -> None:
        without = [name for at, name in self.training.without if at == step]
        self.fetch("fetch", 0)
        if ZERO_GRAD[1] not in without:
            self.call(ZERO_GRAD, object=5)
        self.forward(step)
        if step == self.training.fails:
            self.call(LOSS, args=[TENSOR, TENSOR], error="ValueError")
        self.call(LOSS, args=[TENSOR, TENSOR], returns=TENSOR)
        self.phase(
            "compute",
            "backward",
            lambda: self.call(BACKWARD, object=step + 100, own_us=100, args=[]),
        )
        self.call(
            STEP,
            lambda: self.phase(
                "compute", "step", lambda: self.call(("torch", "_foreach_add_"), own_us=40), which=0
            ),
            object=5,
        )

    def train(self) -> None:
        self.call(("__main__", "seed"), args=[42])
        self.phase("dataloader", "iter", episode=0, loader=0, workers=0)
        for step in range(self.training.steps):
            self.step(step)
        self.fetch("end", 0)
        if self.training.evaluation:
            self.phase("dataloader", "iter", episode=1, loader=1, workers=0)
            for _ in range(self.training.evaluation):
                self.fetch("fetch", 1)
                self.forward(-1)
            self.fetch("end", 1)


def record(run: Path, training: Training | None = None, rank: int = 0, **manifest: Any) -> Path:
    """A run directory with the calls of such a training."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # python 3.12 on forks beside threads: the child does nothing but record
        pid = os.fork()
    if not pid:
        try:
            names._plain = lambda value: value
            recorder.begin(str(run), rank=rank)
            Writer(training or Training()).train()
            recorder.end()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if not (run / "run.json").exists():
        document = {
            "schema": 1,
            "voirkit": "0",
            "command": ["main.py"],
            "ended": "normal",
            "exit_code": 0,
            **manifest,
        }
        (run / "run.json").write_text(json.dumps(document))
    return run
