"""A watch of parameters with a recorder that keeps what it is given, and a training that is watched by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import pack, unpack
from typing import Any

import torch

from voirkit_instruments.parameters.record import Watch
from voirkit_instruments.parameters.record_plan import (
    CHANGED,
    GRAD_INF,
    GRAD_NAN,
    GRAD_NONE,
    GRAD_NOT_ZERO,
    GRAD_ZERO,
    INF,
    NAN,
    SAME,
)

WORDS = {
    GRAD_NONE: "no gradient", GRAD_ZERO: "gradient zero", GRAD_NOT_ZERO: "gradient", GRAD_NAN: "gradient nan", GRAD_INF: "gradient inf",
    CHANGED: "changed", SAME: "same", NAN: "nan", INF: "inf",
}  # fmt: skip


class Kept:
    """A recorder, and what was recorded: lists of (category, name, what)."""

    def __init__(self) -> None:
        self.names: list[Any] = [None]
        self.sets: list[Any] = [{}]
        self.records: list[tuple[str, str, Any]] = []
        self.timed = lambda *_: None

    def name(self, category: str, name: str, kind: str = "span", value: str | None = None) -> int:
        assert kind == ("phase" if category == "voirkit" else "parameter")
        self.names.append((category, name, value))
        return len(self.names) - 1

    def arguments(self, mapping: Any) -> int:
        self.sets.append(dict(mapping))
        return len(self.sets) - 1

    def span(self, name: int, start_ns: int, end_ns: int, args: int = 0, value: int = 0) -> None:
        category, what, key = self.names[name]
        if category == "voirkit":
            return  # how long it looked
        told: Any = unpack("<d", pack("<q", value))[0] if key == "figure" else value
        self.records.append((category, what, self.sets[args] if category == "seen" else told))

    def of(self, category: str, name: str | None = None) -> list[Any]:
        return [
            told for kind, one, told in self.records if kind == category and name in (None, one)
        ]

    def states(self, name: str) -> list[set[str]]:
        """What was true of steps, each time that it was something else."""
        return [
            {word for flag, word in WORDS.items() if told & flag} for told in self.of("state", name)
        ]


class Watching:
    """A watch, told by hand of what the steps instrument would tell it."""

    def __init__(self, every: int = 1) -> None:
        self.kept, self.warned = Kept(), []  # type: ignore[var-annotated]
        self.watch = Watch(torch, self.kept, every, self.warned.append)

    def step(
        self, optimizer: Any, model: Any = None, closure: Callable[[], Any] | None = None
    ) -> None:
        if model is not None:
            self.watch.called(model)
        with self.stepping(optimizer):
            optimizer.step(closure) if closure is not None else optimizer.step()

    @contextmanager
    def stepping(self, optimizer: Any) -> Iterator[None]:
        self.watch.before_step(optimizer)
        yield
        self.watch.after_step(optimizer)
        assert not self.warned, self.warned

    def zero_grad(self, optimizer: Any, **how: Any) -> None:
        self.watch.before_zero_grad(optimizer)
        optimizer.zero_grad(**how)
        self.watch.after_zero_grad(optimizer)

    def train(self, model: Any, optimizer: Any, steps: int = 3) -> Watching:
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            self.step(optimizer, model)
            self.zero_grad(optimizer)
        return self
