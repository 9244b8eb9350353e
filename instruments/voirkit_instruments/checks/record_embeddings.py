"""Gradients of embeddings: how many rows of a large table have any, where the gradient is dense.

At a look at an optimizer (``record_optimizers``) some rows of the gradient are read, other ones
each time: never a copy of the whole.
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
        self._facts = facts
        self._torch = torch
        self._models = models

    @never_raises("the gradient of an embedding")
    def examine(
        self,
        optimizer: int,
        n: int,
        where: str | None,
        parameters: Sequence[Any],
        grads: Sequence[Any],
    ) -> None:
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
            pairs = zip(parameters, grads, strict=True)
            large = [pair for pair in pairs if _is_large_table(torch, *pair)]
            if not large:
                return
            names = self._models.embeddings()
            tables = [pair for pair in large if id(pair[0]) in names]
            n_elements = sum(parameter.numel() for parameter in parameters)
            samples = [_sampled_rows(grad.detach(), n) for _, grad in tables]
            # all are counted before the device is waited for
            counts = [(sample != 0).any(1).sum() for sample in samples]
            for (parameter, _), sample, count in zip(tables, samples, counts, strict=True):
                rows, columns = parameter.shape
                self._facts.mark(
                    "embedding",
                    where,
                    n,
                    optimizer=optimizer,
                    name=names[id(parameter)],
                    rows=rows,
                    columns=columns,
                    held=n_elements,
                    sampled=len(sample),
                    graded=int(count),
                )


def _is_large_table(torch: ModuleType, parameter: Any, grad: Any) -> bool:
    """True for a parameter with many rows, and a gradient that can be read."""
    if grad is None or parameter.ndim != 2 or len(parameter) < FEWEST_ROWS:
        return False
    return is_plain(torch, grad)


def _sampled_rows(grad: Any, n: int) -> Any:
    """A view of some rows of a gradient, evenly apart: other ones at each look."""
    most = max(1, _MOST_ELEMENTS // grad.shape[1])
    apart = -(-len(grad) // most)
    return grad[n % apart :: apart]
