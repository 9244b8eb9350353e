"""A recorder that keeps what it is told, for tests of the steps instrument, torch under that instrument, and a loop to train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from voirkit.phases import SharedState
from voirkit_instruments.steps.record import Steps

# The phases of one step of ``train``.
STEP = [
    "dataloader.fetch",
    "compute.forward",
    "compute.backward",
    "compute.step",
    "compute.zero_grad",
]


def points(n: int) -> TensorDataset:
    """Data of three classes."""
    return TensorDataset(torch.randn(n, 4), torch.randint(0, 3, (n,)))


def net() -> nn.Sequential:
    """A model of them, of several modules."""
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3)))


def train(model: nn.Module, loader: Any, optimizer: Any, every: int = 1) -> None:
    """A loop, with a step of the optimizer every so many batches."""
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        if (i + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()


class Kept:
    """Stands for ``voirkit.trace.recorder``.

    Attributes:
        spans: Name, begin, end, arguments and value of each span, as they came.
        pauses: The same of garbage collections, which come when they like.
        batches: The same of the indices of batches, which are within requests.
        took: How many of them were timed, and what they took.
    """

    def __init__(self) -> None:
        self._names: list[tuple[str, str, str, str | None]] = []
        self._arguments: list[dict[str, Any]] = [{}]
        self.spans: list[tuple[int, int, int, int, int]] = []
        self.pauses: list[tuple[int, int, int, int, int]] = []
        self.batches: list[tuple[int, int, int, int, int]] = []
        self.took: tuple[int, int] | None = None

    def name(self, category: str, name: str, kind: str = "span", value: str | None = None) -> int:
        """As the recorder's."""
        entry = (category, name, kind, value)
        if entry not in self._names:
            self._names.append(entry)
        return self._names.index(entry) + 1

    def arguments(self, mapping: Mapping[str, Any]) -> int:
        """As the recorder's."""
        if dict(mapping) not in self._arguments:
            self._arguments.append(dict(mapping))
        return self._arguments.index(dict(mapping))

    def span(self, name_id: int, start_ns: int, end_ns: int, args: int = 0, value: int = 0) -> None:
        """As the recorder's."""
        category, _, kind, _ = self._names[name_id - 1]
        kept = self.pauses if category == "gc" else self.batches if kind == "batch" else self.spans
        kept.append((name_id, start_ns, end_ns, args, value))

    def mark(self, name_id: int, at_ns: int, args: int = 0, value: int = 0) -> None:
        """As the recorder's."""
        self.span(name_id, at_ns, at_ns, args, value)

    def timed(self, events: int, took_ns: int, part: str = "recording") -> None:
        """As the recorder's."""
        if part == "recording":
            self.took = events, took_ns

    def kinds(self) -> list[str]:
        """``category.name`` of each span."""
        return [".".join(self._names[name - 1][:2]) for name, *_ in self.spans]

    def seen(self, what: str) -> list[dict[str, Any]]:
        """Arguments, and value if the name has one, of each span of a name."""
        found = []
        for (name, _, _, args, value), kind in zip(self.spans, self.kinds(), strict=True):
            key = self._names[name - 1][3]
            if kind == what:
                found.append({**self._arguments[args], **({key: value} if key is not None else {})})
        return found

    def generations(self) -> list[int]:
        """Which generation each garbage collection was of."""
        return [self._arguments[args]["generation"] for _, _, _, args, _ in self.pauses]

    def times(self, what: str) -> list[tuple[int, int]]:
        """Begin and end of each span of a name."""
        return [
            (begin, end)
            for (_, begin, end, _, _), kind in zip(self.spans, self.kinds(), strict=True)
            if kind == what
        ]


class _Overseer(SharedState):
    def __init__(self) -> None:
        self.summary: dict[str, Any] = {"dropped": {}}
        self.warned: list[str] = []
        self.warn = self.warned.append


class Watched:
    """torch under the steps instrument."""

    def __init__(self, kept: Kept | None = None) -> None:
        self.kept = Kept() if kept is None else kept
        self.overseer: Any = _Overseer()
        self.steps = Steps(self.overseer, self.kept)

    @property
    def patches(self) -> dict[str, str | None]:
        """The table of patches, after the end."""
        return {row["name"]: row["why_not"] for row in self.overseer.summary["patches"]}


@contextmanager
def watched() -> Iterator[Watched]:
    """torch under the steps instrument, with nothing to warn of."""
    watch = Watched()
    watch.steps.start(torch)
    try:
        yield watch
    finally:
        watch.steps.end()
    assert watch.overseer.warned == [], watch.overseer.warned
