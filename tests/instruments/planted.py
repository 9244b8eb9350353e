"""Training loops of torch whose costs are planted on a clock that stands still but for them: what voirkit says of a loop is exact.

The functions around torch's (in Python here) ask this clock, so that neither the machine nor its load is in the figures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from phases import Kept, Watched
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.phases import Records, ranks
from voirkit_instruments.steps import record_loaders as steps_loaders
from voirkit_instruments.steps import record_phases as steps_compute
from voirkit_instruments.steps import record_phases as steps_transfer
from voirkit_instruments.steps import record_plain as steps_plain

MS = 1_000_000
# What a step of ``Loop`` costs, in milliseconds, with a batch of 4.
WAIT, FORWARD, BACKWARD, OPTIMIZER, OTHER = 4, 3, 5, 2, 6
STEP = WAIT + FORWARD + BACKWARD + OPTIMIZER + OTHER


class Clock:
    """Nanoseconds that pass where ``spend`` is called."""

    def __init__(self) -> None:
        self.ns = 1_000_000

    def __call__(self) -> int:
        self.ns += 1  # no two looks at a clock see the same
        return self.ns

    def spend(self, milliseconds: float) -> None:
        """So much time passes."""
        self.ns += int(milliseconds * MS)


clock = Clock()


class Points(Dataset[Any]):
    """Each costs 1 ms."""

    def __init__(self, n: int, cost: float = 1) -> None:
        self.n, self.cost = n, cost

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        clock.spend(self.cost)
        return torch.full((4,), float(i)), i % 3


class _Drag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cost: float) -> torch.Tensor:
        ctx.cost = cost
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        clock.spend(ctx.cost)
        return gradient, None


class Net(nn.Module):
    """3 ms forward, 5 backward."""

    def __init__(self, forward: float = FORWARD, backward: float = BACKWARD) -> None:
        super().__init__()
        self.linear, self.costs = nn.Sequential(nn.Linear(4, 3)), (forward, backward)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        clock.spend(self.costs[0])
        return _Drag.apply(self.linear(x), self.costs[1])


class SGD(torch.optim.SGD):
    """2 ms a step."""

    def step(self, closure: Any = None) -> Any:
        clock.spend(OPTIMIZER)
        return super().step(closure)


class Loop:
    """What a script has at hand: a loader of 5 batches of 4 (the last may be short), a model, an optimizer, and the body of its loop."""

    def __init__(self, n: int = 20, cost: float = 1, **options: Any) -> None:
        self.loader: DataLoader[Any] = DataLoader(Points(n, cost), batch_size=4, **options)
        self.held_out: DataLoader[Any] = DataLoader(Points(8), batch_size=4)
        self.model = Net()
        self.optimizer = SGD(self.model.parameters(), 0.1)

    def train_on(self, batch: Any) -> None:
        """A step's work, 10 ms, and 6 ms of what no one sees."""
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        clock.spend(OTHER)

    def evaluate(self) -> None:
        """2 batches."""
        self.model.eval()
        with torch.no_grad():
            for x, _ in self.held_out:
                self.model(x)
        self.model.train()


class Threads(Kept):
    """Keeps in which thread each span was."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def span(self, *span: int) -> None:  # type: ignore[override]
        """As the recorder's."""
        before = len(self.spans)
        super().span(*span)
        self.threads += [threading.get_native_id()] * (
            len(self.spans) - before
        )  # pauses and indices of batches are kept elsewhere

    def records(self) -> Records:
        """What was recorded, as it would be read from a run directory."""
        columns = np.array(self.spans, dtype=np.int64).reshape(-1, 5)
        name, start, end, args, value = columns.T
        return Records(
            start, end - start, name - 1, args, value, np.zeros(len(name), np.int64), np.array(self.threads, np.int64),
            [(category, what) for category, what, _, _ in self._names], self._arguments, [(0, "here", 1)], [1],
        )  # fmt: skip


class Seen:
    """What voirkit says of a loop."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.steps = figures([rank])["steps"]

    @property
    def n(self) -> int:
        """Steps of training."""
        return int(self.steps["n"])

    @property
    def items(self) -> list[int]:
        """Of each step."""
        found: list[int] = self.rank.steps.train.items.tolist()
        return found

    @property
    def ms(self) -> list[int]:
        """How long each step took."""
        return [round(ns / MS) for ns in self.rank.steps.train.time_ns.tolist()]

    @property
    def evaluated(self) -> int:
        """Steps of evaluation."""
        return len(self.rank.steps.evaluation)

    @property
    def phases(self) -> dict[str, int]:
        """Milliseconds by phase, of all steps."""
        return {
            name: round(phase["total_s"] * 1000) for name, phase in self.steps["phases"].items()
        }


def usual(n: int) -> dict[str, int]:
    """What so many steps of ``Loop`` come to."""
    each = {
        "wait": WAIT,
        "transfer": 0,
        "forward": FORWARD,
        "backward": BACKWARD,
        "optimizer": OPTIMIZER,
        "communication": 0,
        "other": OTHER,
    }
    return {name: cost * n for name, cost in each.items()}


def seen(
    script: Callable[[], object], monkeypatch: pytest.MonkeyPatch, completed: bool = True
) -> Seen:
    """Run a script under the steps instrument and on the planted clock.

    Args:
        script: The script; an exception of it ends it.
        monkeypatch: Puts the clock in place.
        completed: Whether it comes to its own end.
    """
    monkeypatch.setenv("VOIRKIT_NO_EXTENSION", "1")
    for module in (steps_plain, steps_compute, steps_loaders, steps_transfer):
        monkeypatch.setattr(module, "now", clock)
    kept = Threads()
    watch = Watched(kept)
    watch.steps.start(torch)
    try:
        if completed:
            script()
        else:
            with pytest.raises(BaseException):  # noqa: B017, PT011  whatever ends a script
                script()
    finally:
        watch.steps.end(completed)
    assert watch.overseer.warned == [], watch.overseer.warned
    (rank,) = ranks(kept.records())
    return Seen(rank)
