"""What ``--checks`` reads of tensors, datasets and batches; of many tensors at once, with one wait for a device each time.

Nothing of the program's own is called, no graph, random number, hook or mode sees it, and nothing is changed: what cannot be known so is
left out, as are tensors that are not plain (sharded over ranks, sparse, quantized, of a subclass), and those whose memory is freed.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from zlib import crc32

from voirkit_instruments.steps.batch_sizes import only_looks
from voirkit_instruments.values import is_readable, quiet

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


_MOST_INDICES = 10_000
_MOST_ELEMENTS = 1 << 16  # of a larger tensor the first part tells
_LABELS = ("labels", "label", "target", "targets", "y", "class", "classes")


def size_of(dataset: Any) -> int:
    """How many samples a dataset has, if that is known without running code of the program; else -1."""
    try:
        return len(dataset) if only_looks(dataset) else -1
    except Exception:
        return -1


def is_ascending(data: ModuleType, dataset: Any) -> bool:
    """Whether a dataset gives the samples of what it is made of in the order in which they lie there, as far as is known."""
    try:
        while type(dataset) is data.Subset:
            indices, dataset = vars(dataset)["indices"], vars(dataset)["dataset"]
            if type(indices) is range:
                continue
            if type(indices) not in (list, tuple) and not _is_array(indices):
                return False
            some = indices[:_MOST_INDICES]
            some = some if type(some) in (list, tuple) else some.tolist()
            if any(after < before for before, after in pairwise(some)):
                return False
    except Exception:
        return False
    return True


def _is_array(thing: Any) -> bool:
    """Whether it is a tensor or an array, and no subclass of the program's."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    return (type(thing) is torch.Tensor and is_readable(torch, thing)) or (numpy is not None and type(thing) is numpy.ndarray)


def labels(torch: ModuleType, batch: Any) -> list[Any] | None:
    """The classes of a batch's samples: its last tensor of whole numbers, one for each sample, or the one called so; None: it has none."""
    parts: list[Any]
    if type(batch) in (list, tuple):
        parts = list(reversed(batch))
    elif type(batch) is dict:
        parts = [batch[name] for name in _LABELS if name in batch]
    else:
        return None
    for part in parts:
        if type(part) is not torch.Tensor or part.device.type != "cpu" or not is_readable(torch, part):
            continue
        if part.is_floating_point() or part.is_complex() or part.ndim != 1 or part.dtype is torch.bool or not len(part):
            continue
        with torch._C.DisableTorchFunction():
            return list(part.tolist())
    return None


def content(torch: ModuleType, batch: Any) -> int | None:
    """A digest of what a batch holds, the same in all processes; None where it has none."""
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return _digest(torch, batch, 0, 0)
    except Exception:
        return None


def _digest(torch: ModuleType, part: Any, digest: int, depth: int) -> int:
    """Of a part, after another.

    Raises:
        TypeError: It has no digest.
    """
    if type(part) is torch.Tensor:
        if part.device.type != "cpu" or not is_readable(torch, part):
            raise TypeError
        while part.numel() > _MOST_ELEMENTS:
            part = part[: _MOST_ELEMENTS // 4] if part.ndim == 1 else part[0]
        own = part.detach().clone().contiguous()  # a tensor whose memory numpy has seen cannot be resized
        return crc32(own.view(-1).view(torch.uint8).numpy() if own.numel() else b"", digest)
    numpy = sys.modules.get("numpy")
    if numpy is not None and (type(part) is numpy.ndarray or isinstance(part, numpy.generic)):
        if part.dtype.hasobject or part.size > _MOST_ELEMENTS:
            raise TypeError
        return crc32(part.tobytes(), digest)
    if type(part) in (int, float, str, bytes, bool, type(None)):
        return crc32(repr(part).encode(), digest)
    if depth < 4 and isinstance(part, list | tuple) and type(part).__iter__ in (list.__iter__, tuple.__iter__):
        for inner in tuple.__iter__(part) if isinstance(part, tuple) else list.__iter__(part):
            digest = _digest(torch, inner, digest, depth + 1)
        return digest
    if depth < 4 and type(part) is dict:
        for key, inner in part.items():
            digest = _digest(torch, inner, _digest(torch, key, digest, depth + 1), depth + 1)
        return digest
    raise TypeError
