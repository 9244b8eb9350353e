"""Units of ReLU layers whose output is never above zero, in the graphs that are walked through: their results are saved there for backward.

Only layers that come right after something with parameters count: a hinge loss is a ReLU too, and is zero when all is well. What hooks of
the program have put away (``saved_tensors_hooks``, as activation checkpointing does) is not asked for: that would compute it anew.
"""

from __future__ import annotations

from voirkit_instruments.calls.record_quiet import quiet
from voirkit_instruments.checks.record_norms import is_plain, is_quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts
    from voirkit_instruments.checks.record_models import ModelFacts

RELU = "ReluBackward0"
# What may stand between parameters and a ReLU.
_LAYERS = (
    "Addmm", "Mm", "Bmm", "Convolution", "NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm", "NativeLayerNorm", "NativeGroupNorm",
    "UnsafeView", "View", "ReshapeAlias", "Add", "Linear", "MkldnnConvolution", "MkldnnLinear",
)  # fmt: skip
_MOST_LAYERS, _MOST_ELEMENTS = 64, 1 << 22
_FEWEST_UNITS = 4


class Layer:
    """A ReLU layer: which of its units have been above zero, and of how many rows that is known."""

    __slots__ = ("alive", "name", "rows")

    def __init__(self, alive: Any, name: str) -> None:
        self.alive, self.name, self.rows = alive, name, 0


class UnitFacts:
    """The ReLU layers of the graphs of each line.

    Args:
        facts: Where facts are written.
        torch: The module.
        models: Knows the names of parameters.
    """

    def __init__(self, facts: Facts, torch: ModuleType, models: ModelFacts) -> None:
        self._facts, self._torch, self._models = facts, torch, models
        self._layers: dict[str | None, list[Layer]] = {}
        self._looks: dict[str | None, int] = {}

    def look(self, nodes: Sequence[Any], where: str | None, held: set[int]) -> None:
        """Look at the ReLU nodes of a graph, in their order."""
        results = []
        with quiet(), self._torch._C.DisableTorchFunction():
            if not is_quiet(self._torch):
                return
            for node in nodes[:_MOST_LAYERS]:
                parameter = _parameter_before(node, held)
                raw = node._raw_saved_result
                if parameter is None or not hasattr(raw, "unpack_hook") or raw.unpack_hook is not None:
                    continue
                result = node._saved_result
                if is_plain(self._torch, result) and result.ndim > 1:
                    results.append((parameter, result.detach()))
            if results:
                with self._torch.no_grad():
                    self._add(results, where)

    def _add(self, results: list[tuple[Any, Any]], where: str | None) -> None:
        torch, layers = self._torch, self._layers.get(where)
        units = [(result.shape[-1 if result.ndim == 3 else 1]) for _, result in results]
        if layers is None or [len(layer.alive) for layer in layers] != units:  # another graph than the last one's
            names = self._models.names()
            layers = self._layers[where] = []
            for (parameter, result), n in zip(results, units, strict=True):
                name = names[id(parameter)][0] if id(parameter) in names else ""
                layers.append(Layer(torch.zeros(n, dtype=torch.bool, device=result.device), name))
            self._looks[where] = 0
        self._looks[where] += 1
        for layer, (_, result) in zip(layers, results, strict=True):
            rows = max(1, _MOST_ELEMENTS * len(result) // max(result.numel(), 1))
            part = result[:rows]
            others = [at for at in range(part.ndim) if at != (part.ndim - 1 if part.ndim == 3 else 1)]
            layer.alive |= ~(part.amax(others) <= 0)  # nan counts as alive
            layer.rows += part.numel() // len(layer.alive)
        counts = torch.stack([layer.alive.sum().cpu() for layer in layers]).tolist()
        self._tell([(layer, len(layer.alive) - n) for layer, n in zip(layers, counts, strict=True)], where)

    def _tell(self, dead: list[tuple[Layer, int]], where: str | None) -> None:
        some = [(n / len(layer.alive), n, layer) for layer, n in dead if len(layer.alive) >= _FEWEST_UNITS]
        if not some:
            return
        _, n, layer = max(some, key=lambda one: one[0])
        self._facts.mark(
            "units", where, self._looks[where], layers=len(dead), units=len(layer.alive), dead=n, rows=layer.rows, after=layer.name
        )


def _parameter_before(node: Any, held: set[int]) -> Any:
    """The first parameter that an optimizer holds right before a ReLU; None if its input is none of a layer's."""
    level = [following for following, _ in node.next_functions]
    for _ in range(3):
        deeper = []
        for one in level:
            leaf = getattr(one, "variable", None)
            if leaf is not None and id(leaf) in held:
                return leaf
            if one is not None and one.name().rstrip("0123456789").removesuffix("Backward") in (*_LAYERS, "T", "Transpose"):
                deeper += [following for following, _ in one.next_functions]
        level = deeper
    return None
