"""The layers of a model, and those that behave differently in train mode and eval mode.

Nothing of the program is called: a module's own ``children()`` and ``parameters()`` may be
overridden.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MOST_MODULES = 50_000
_DROPS = ("DropPath", "StochasticDepth", "DropBlock2d")  # class names in timm and torchvision


def modules(module: Any) -> list[tuple[str, Any]]:
    """Return a module and all modules inside it, each once, with their full names."""
    layers: list[tuple[str, Any]] = []
    visited: set[int] = set()
    stack = [("", module)]
    while stack and len(layers) < MOST_MODULES:
        path, layer = stack.pop()
        if layer is None or id(layer) in visited:
            continue
        visited.add(id(layer))
        layers.append((path, layer))
        stack += [
            (f"{path}.{name}" if path else name, child)
            for name, child in reversed(list(children(layer).items()))
        ]
    return layers


def drops(torch: ModuleType, layer: Any) -> bool:
    """True if a layer drops values in train mode."""
    nn = torch.nn
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return bool(layer.p > 0)
    if isinstance(layer, nn.modules.rnn.RNNBase):
        return bool(layer.dropout > 0 and layer.num_layers > 1)
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout > 0)
    if type(layer).__name__ not in _DROPS:
        return False
    return bool((getattr(layer, "drop_prob", None) or getattr(layer, "p", None) or 0) > 0)


def keeps_statistics(torch: ModuleType, layer: Any) -> bool:
    """True if a layer keeps running statistics, which each batch changes in train mode."""
    return isinstance(layer, torch.nn.modules.batchnorm._NormBase) and bool(
        layer.track_running_stats
    )


def depends_on_mode(torch: ModuleType, module: Any) -> bool:
    """True if any layer of a model that is in train mode would behave differently in eval mode."""
    in_training = [layer for _, layer in modules(module) if layer.training]
    return any(drops(torch, layer) or keeps_statistics(torch, layer) for layer in in_training)


def children(module: Any) -> dict[str, Any]:
    """Return a dict from name to each direct submodule of a module."""
    children = vars(module).get("_modules")
    return children if isinstance(children, dict) else {}


def parameters(module: Any) -> dict[str, Any]:
    """Return a dict from name to each of a module's own parameters, without those of its
    submodules; some may be None."""
    parameters = vars(module).get("_parameters")
    return parameters if isinstance(parameters, dict) else {}
