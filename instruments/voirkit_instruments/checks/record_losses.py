"""What goes into torch's loss functions: probabilities where logits are expected, targets of another shape; by the line that does it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts

_MADE_BY = {"SoftmaxBackward": "softmax", "LogSoftmaxBackward": "log_softmax", "SigmoidBackward": "sigmoid"}
# What changes the shape or type of a tensor, and no value but the smallest and largest.
_SAME = ("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Slice", "Select",
         "Alias", "Expand", "Index", "AsStrided", "Split", "Unbind", "Cat", "Contiguous",
         "Stack", "Clamp", "ClampMin", "ClampMax")  # fmt: skip
_MOST_NODES = 8
_EACH, _SELDOM, _TOLD = 256, 257, 3  # calls that are all looked at; how seldom later ones are; facts of one line


class LossFacts:
    """The inputs of loss functions.

    Args:
        facts: Where facts are written.
        torch: The module.
    """

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        self._facts, self._torch = facts, torch
        self._told: set[tuple[str, str, str | None]] = set()
        self._calls: dict[str, int] = {}
        self._shapes: dict[tuple[str, str | None], int] = {}

    def around(self, function: str) -> tuple[Callable[..., int], Callable[..., None]]:
        """Before and after calls of a loss function."""

        def enter(given: Any) -> int:
            try:
                self._look(function, given)
            except Exception as exc:
                self._facts.failed("the input of a loss", exc)
            return 1

        return enter, _nothing

    def around_pair(self, function: str) -> tuple[Callable[..., int], Callable[..., None]]:
        """Before and after calls of a loss function whose input and target have one shape, or are broadcast to one."""

        def enter(given: Any, target: Any, reduction: Any) -> int:
            n = self._calls[function] = self._calls.get(function, 0) + 1
            if (n <= _EACH or n % _SELDOM == 0) and reduction != "none":
                try:
                    self._compare(function, given, target)
                except Exception as exc:
                    self._facts.failed("the input of a loss", exc)
            return 1

        return enter, _nothing

    def _compare(self, function: str, given: Any, target: Any) -> None:
        tensor = self._torch.Tensor
        if not (issubclass(type(given), tensor) and issubclass(type(target), tensor)):
            return
        with self._torch._C.DisableTorchFunction():
            one, other = tuple(given.shape), tuple(target.shape)
            if one == other or not (given.requires_grad or target.requires_grad):
                return
        # As many numbers, one dimension more: pairs of all with all are asked for with as many dimensions, or without a reduction.
        if len(one) == len(other) or _without_ones(one) != _without_ones(other) or _broadcast(one, other) == _broadcast(one, one):
            return
        where = self._facts.places.of(sys._getframe(3))
        n = self._shapes[function, where] = self._shapes.get((function, where), 0) + 1
        if n <= _TOLD:
            shapes = {"input": str(one), "target": str(other)}
            self._facts.mark("loss_shapes", where, n, loss=function, becomes=str(_broadcast(one, other)), **shapes)

    def _look(self, function: str, given: Any) -> None:
        tensor = self._torch.Tensor
        if not issubclass(type(given), tensor):
            return
        if type(given) is tensor:
            node = given.grad_fn
        else:
            with self._torch._C.DisableTorchFunction():
                node = given.grad_fn
        made = _made_by(node)
        if made is None and not self._torch.is_grad_enabled():
            made = "evaluated"
        if made is not None:
            where = self._facts.places.of(sys._getframe(2))
            if (function, made, where) not in self._told:
                self._told.add((function, made, where))
                self._facts.mark("loss_input", where, loss=function, input=made)


def _nothing(*_: object) -> None:
    """Nothing is done after a call."""


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that two shapes are broadcast to; without dimensions of 1 at its beginning."""
    n = max(len(one), len(other))
    pairs = zip((1,) * (n - len(one)) + one, (1,) * (n - len(other)) + other, strict=True)
    found = tuple(max(a, b) for a, b in pairs)
    while found[:1] == (1,):
        found = found[1:]
    return found


def _made_by(node: Any) -> str | None:
    """Which of the functions of ``_MADE_BY`` made a tensor, by its node in the graph; through what changes no value."""
    for _ in range(_MOST_NODES):
        if node is None:
            return None
        name = node.name().rstrip("0123456789")
        if name in _MADE_BY:
            return _MADE_BY[name]
        if name.removesuffix("Backward") not in _SAME:
            return None
        node = node.next_functions[0][0] if node.next_functions else None
    return None
