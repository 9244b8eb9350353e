"""What is seldom asked of many tensors at once: whether they are finite, zero, or have changed; one wait for a device each time.

Changes nothing: no graph, no random number, no hook or mode of the program is called. Of tensors that are not plain (sharded over ranks,
sparse, quantized, of a subclass), and of those whose memory is freed, nothing is said.
"""

from __future__ import annotations

from voirkit_instruments.calls.record_quiet import quiet
from voirkit_instruments.steps.tensor_memory import is_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

INF = float("inf")
UNKNOWN = -1.0  # of a tensor that is not looked at


def largest(torch: ModuleType, tensors: Sequence[Any]) -> list[float]:
    """The largest absolute value in each tensor: nan or inf if one is in it; -1 where it is not known."""
    return _norms(torch, tensors, INF)


def digests(torch: ModuleType, tensors: Sequence[Any]) -> list[float]:
    """A number of each tensor that is another one when its values are: the sum of their absolute values; -1 where it is not known."""
    return _norms(torch, tensors, 1)


def is_plain(torch: ModuleType, tensor: Any) -> bool:
    """Whether a tensor may be looked at."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and is_readable(torch, tensor)
        and tensor.device.type in ("cpu", "cuda")
        and (tensor.is_floating_point() or tensor.is_complex())
        and tensor.element_size() > 1  # torch has no norm of float8
        and tensor.numel() > 0
    )


def is_quiet(torch: ModuleType) -> bool:
    """Whether the program would not notice: it looks at no operator itself, compiles nothing and captures no CUDA graph."""
    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if modes is None or modes():
        return False
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return False
    return not torch._C._is_tracing() if hasattr(torch._C, "_is_tracing") else True


def _norms(torch: ModuleType, tensors: Sequence[Any], order: float) -> list[float]:
    found = [UNKNOWN] * len(tensors)
    with quiet(), torch._C.DisableTorchFunction():
        if not is_quiet(torch):
            return found
        groups: dict[Any, list[int]] = {}
        for at, tensor in enumerate(tensors):
            if is_plain(torch, tensor):
                groups.setdefault((tensor.device, tensor.dtype), []).append(at)
        with torch.no_grad():
            for chosen in groups.values():
                norms = torch._foreach_norm([tensors[at].detach() for at in chosen], order)
                for at, value in zip(chosen, torch.stack(norms).tolist(), strict=True):
                    found[at] = abs(value)
    return found
