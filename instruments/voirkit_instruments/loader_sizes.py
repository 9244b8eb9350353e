"""How large a batch is that a worker would have to hand over: bytes and tensors.

Looks into plain lists, tuples and dicts only, and at torch's own tensors and numpy's own arrays; runs no code of the program.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 4096  # parts of a batch that are looked at
_OBJECT = 16  # bytes that pickle writes for a number, some


def size(batch: Any) -> tuple[int, int]:
    """The bytes of a batch and the number of its tensors, each of which is handed over in shared memory of its own."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    tensor, array = getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None)
    n_bytes = tensors = looked_at = 0
    open_ = [batch]
    with torch._C.DisableTorchFunction():  # type: ignore[union-attr]  # a batch was fetched: torch is there
        while open_ and looked_at < _MOST:
            part = open_.pop()
            looked_at += 1
            kind = type(part)
            if kind is tensor:
                tensors += 1
                n_bytes += part.numel() * part.element_size()
            elif kind is array:
                n_bytes += int(part.nbytes)
            elif kind is dict:
                open_ += part.values()
            elif kind is list or kind is tuple:
                open_ += part
            elif kind is str or kind is bytes:
                n_bytes += len(part)
            else:
                n_bytes += _OBJECT
    return n_bytes, tensors
