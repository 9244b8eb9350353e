"""What is read of the program's datasets and batches for ``--checks``: their size, order, labels, and a digest of what they hold.

Nothing of the program's own is called for it, and nothing is changed: what can not be told so is not told.
"""

from __future__ import annotations

import dis
import sys
from types import FunctionType
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_MOST_INDICES = 10_000
_MOST_ELEMENTS = 1 << 20
_LABELS = ("labels", "label", "target", "targets", "y", "class", "classes")
_PLAIN = (list, tuple, dict, set, frozenset, range, str, bytes)
_SILENT = {"RESUME", "CACHE", "NOP", "PRECALL", "PUSH_NULL", "COPY_FREE_VARS", "EXTENDED_ARG", "NOT_TAKEN"}


def size_of(data: ModuleType, dataset: Any) -> int:
    """How many samples a dataset has, if that can be told without calling anything of the program's; else -1.

    Args:
        data: ``torch.utils.data``.
        dataset: Any.
    """
    try:
        if type(dataset) in _PLAIN or _is_array(dataset):
            return len(dataset)
        if type(dataset) is data.Subset:
            indices = vars(dataset)["indices"]
            return len(indices) if type(indices) in _PLAIN or _is_array(indices) else -1
        if type(dataset) is data.ConcatDataset:
            return int(vars(dataset)["cumulative_sizes"][-1])
        if type(dataset) is data.TensorDataset:
            return len(vars(dataset)["tensors"][0])
        length: Any = getattr(type(dataset), "__len__", None)
        return _read_length(length, dataset) if type(length) is FunctionType else -1
    except Exception:
        return -1


def _read_length(function: FunctionType, dataset: Any) -> int:
    """What a ``__len__`` returns that does nothing but ``return len(self.a.b)``, ``return self.n`` or ``return 5``; else -1."""
    steps = [(one.opname, one.argval) for one in dis.get_instructions(function) if one.opname not in _SILENT]
    if len(steps) == 1 and steps[0][0] == "RETURN_CONST" and type(steps[0][1]) is int:
        return steps[0][1]
    if len(steps) == 2 and steps[0][0] in ("LOAD_CONST", "LOAD_SMALL_INT") and steps[1][0] == "RETURN_VALUE" and type(steps[0][1]) is int:
        return steps[0][1]
    counted = steps[0] in (("LOAD_GLOBAL", "len"),)
    if counted:
        if function.__globals__.get("len", len) is not len or steps[-2][0] not in ("CALL", "CALL_FUNCTION"):
            return -1
        steps = [steps[1], *steps[2:-2], steps[-1]]
    first = function.__code__.co_varnames[0]
    if steps[0][0] not in ("LOAD_FAST", "LOAD_FAST_BORROW") or steps[0][1] != first or steps[-1][0] != "RETURN_VALUE":
        return -1
    found = dataset
    for name, attribute in steps[1:-1]:
        if name != "LOAD_ATTR":
            return -1
        found = object.__getattribute__(found, "__dict__")[attribute]
    if counted:
        return len(found) if type(found) in _PLAIN or _is_array(found) else -1
    return found if type(found) is int else -1


def _is_array(thing: Any) -> bool:
    """Whether it is a tensor or array of the plain kind with a first dimension, or a table of pandas."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if (torch is not None and type(thing) is torch.Tensor) or (numpy is not None and type(thing) is numpy.ndarray):
        return bool(thing.ndim)
    return type(thing).__module__.startswith("pandas.core") and type(thing).__name__ in ("DataFrame", "Series")


def is_ascending(data: ModuleType, dataset: Any) -> bool:
    """Whether a dataset gives the samples of what it is made of in the order in which they lie there, as far as can be told."""
    try:
        while type(dataset) is data.Subset:
            indices, dataset = vars(dataset)["indices"], vars(dataset)["dataset"]
            if type(indices) is range:
                continue
            torch = sys.modules["torch"]
            some = indices[:_MOST_INDICES]
            some = some.tolist() if type(some) is torch.Tensor else list(some)
            if any(after < before for before, after in zip(some, some[1:], strict=False)):
                return False
    except Exception:
        return False
    return True


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
        if type(part) is not torch.Tensor or part.device.type != "cpu" or part.layout is not torch.strided:
            continue
        if part.is_floating_point() or part.is_complex() or part.ndim != 1 or part.dtype is torch.bool or not len(part):
            continue
        with torch._C.DisableTorchFunction():
            return list(part.tolist())
    return None


def content(torch: ModuleType, batch: Any) -> int | None:
    """A digest of what a batch holds, the same in all processes; None where it can not be told."""
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return _digest(torch, batch, 0, 0)
    except Exception:
        return None


def _digest(torch: ModuleType, part: Any, digest: int, depth: int) -> int:
    """Of a part, after another.

    Raises:
        TypeError: It is nothing that can be told.
    """
    if type(part) is torch.Tensor:
        if part.device.type != "cpu" or part.layout is not torch.strided or part.numel() > _MOST_ELEMENTS:
            raise TypeError
        own = part.detach().clone().contiguous()  # a tensor whose memory numpy has seen can not be resized
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
