"""Gradients of embeddings: how many rows of a large table have any, where the gradient is dense.

At a look at an optimizer (``record_optimizers``) some rows of the gradient are read, other ones each time: never a copy of the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from voirkit_instruments.checks.record_facts import Facts, ModelFacts, is_plain, never_raises
from voirkit_instruments.values import quiet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

FEWEST_ROWS = 50_000
_MOST_ELEMENTS = 1 << 20


class EmbeddingFacts:
    """Writes what share of the rows of embeddings has a gradient."""

    def __init__(self, facts: Facts, torch: ModuleType, models: ModelFacts) -> None:
        self._facts, self._torch, self._models = facts, torch, models

    @never_raises("the gradient of an embedding")
    def examine(self, optimizer: int, n: int, where: str | None, parameters: Sequence[Any], grads: Sequence[Any]) -> None:
        """At a look at an optimizer after its ``n``-th step.

        Args:
            optimizer: Its number.
            n: How many steps it has done.
            where: The line that stepped it.
            parameters: All that it holds.
            grads: The gradient of each; None without one.
        """
        torch = self._torch
        with quiet(), torch._C.DisableTorchFunction(), torch.no_grad():
            large = [
                (parameter, grad)
                for parameter, grad in zip(parameters, grads, strict=True)
                if grad is not None and parameter.ndim == 2 and len(parameter) >= FEWEST_ROWS and is_plain(torch, grad)
            ]
            if not large:
                return
            names = self._models.embeddings()
            tables = [(parameter, grad.detach()) for parameter, grad in large if id(parameter) in names]
            held = sum(parameter.numel() for parameter in parameters)
            samples = [_sampled_rows(grad, n) for _, grad in tables]
            counts = [(sample != 0).any(1).sum() for sample in samples]
            graded = [int(count) for count in counts]
            for (parameter, _), sample, with_gradient in zip(tables, samples, graded, strict=True):
                rows, columns = parameter.shape
                self._facts.mark(
                    "embedding", where, n, optimizer=optimizer, name=names[id(parameter)], rows=rows, columns=columns, held=held,
                    sampled=len(sample), graded=with_gradient,
                )  # fmt: skip


def _sampled_rows(grad: Any, n: int) -> Any:
    """A view of some rows of a gradient, evenly apart: other ones at each look."""
    most = max(1, _MOST_ELEMENTS // grad.shape[1])
    apart = -(-len(grad) // most)
    return grad[n % apart :: apart]
