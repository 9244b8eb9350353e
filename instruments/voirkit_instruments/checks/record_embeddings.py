"""Dense gradients of large embeddings: records how many rows have a gradient that is not zero.

Whenever ``record_optimizers`` examines an optimizer, some rows of the gradient are read, different
rows each time. The whole gradient is never copied.
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
    """Writer of facts about the share of embedding rows that have a gradient."""

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
        """Examine the gradients of large embeddings, after the ``n``-th step of their optimizer.

        Args:
            optimizer: The optimizer's number.
            n: How many steps the optimizer has done.
            where: The source line that called the optimizer's ``step``.
            parameters: All parameters of the optimizer.
            grads: The gradient of each parameter, or None.
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
            # queue all counts before the first ``int()`` waits for the device
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
    """True if a parameter has many rows and a gradient that can be read."""
    if grad is None or parameter.ndim != 2 or len(parameter) < FEWEST_ROWS:
        return False
    return is_plain(torch, grad)


def _sampled_rows(grad: Any, n: int) -> Any:
    """A view of evenly spaced rows of a gradient: different rows for each ``n``."""
    most = max(1, _MOST_ELEMENTS // grad.shape[1])
    apart = -(-len(grad) // most)
    return grad[n % apart :: apart]
