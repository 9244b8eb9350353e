"""A count of living objects: tensors by type and shape, and the long lists, dictionaries and
deques; the growth between two counts is what is kept.

Only objects whose type is exactly one of these are looked at, by their own methods: no code of the
program is called, and nothing is kept of them but numbers and words. A census of 190,000 objects
took 38 ms of processor time, one of 330,000 (torch with an optimizer) 87 ms, on two processors that
other work kept busy. Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from itertools import compress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# of memory that python has given out, some 360,000 objects: more would take more than 50 ms on an
# idle machine
MOST_BLOCKS = 1_300_000
_LONG = 32  # elements of a container, under which it is not looked at
_MOST_TENSORS = 10_000  # that are looked at, 2 us each; of more each stands for several
_EXACT = 16  # sizes up to it are told apart; larger ones by their power of two
_DEEPEST = 2  # levels of an element that are searched for a tensor

now = time.perf_counter_ns
_name_of = type.__dict__["__name__"].__get__  # a metaclass of the program may have another


class Census:
    """The objects that live at one moment.

    Args:
        before: An earlier one; of containers that have grown since it is also looked at what they
            hold.

    Attributes:
        at_ns: When it was looked at.
        took_ns: How long that took.
        tensors: By type and rounded shape how many there are, their bytes, and their description
            (``float32[256, 256]``).
        lengths: By identity of a container, how many elements it has. No tuples: many new objects
            would make python look for garbage.
        types: By identity, its type.
        holds: By identity, what the last element of those is that have grown.
    """

    def __init__(self, torch: ModuleType, before: Census | None = None) -> None:
        self.at_ns = now()
        self.tensors: dict[tuple[Any, ...], tuple[int, int, str]] = {}
        self.lengths: dict[int, int] = {}
        self.types: dict[int, str] = {}
        self.holds: dict[int, str] = {}
        kinds = torch.Tensor, torch.nn.Parameter
        counted_types = frozenset((*kinds, list, dict, deque))
        objects = gc.get_objects()
        # a loop of python's takes four times as long
        is_counted = map(counted_types.__contains__, map(type, objects))
        tensors, containers = [], []
        for thing in compress(objects, is_counted):
            if type(thing) in kinds:
                tensors.append(thing)
            elif len(thing) >= _LONG:
                containers.append(thing)
        with torch._C.DisableTorchFunction():
            self._count(tensors)
            for container in containers:
                key = id(container)
                length = self.lengths[key] = len(container)
                kind = self.types[key] = type(container).__name__
                if before is not None and length > before.length_of(key, kind):
                    self.holds[key] = _last_element(container, kinds)
        self.took_ns = now() - self.at_ns

    def length_of(self, key: int, kind: str) -> int:
        """How many elements a container of a type had; 0 if it was not there, or short."""
        return self.lengths[key] if self.types.get(key) == kind else 0

    def _count(self, tensors: list[Any]) -> None:
        # number, bytes, shape of the first, whether others have another
        groups: dict[tuple[Any, ...], list[Any]] = {}
        every = 1 + len(tensors) // _MOST_TENSORS
        for tensor in tensors[::every]:
            try:
                shape = tuple(tensor.shape)
                has_graph = tensor.requires_grad and not tensor.is_leaf
                size = tensor.nbytes
            except Exception:  # a tensor that has no such thing: a sparse or a half-made one
                continue
            rounded = tuple(size if size <= _EXACT else 1 << size.bit_length() for size in shape)
            group = groups.setdefault((tensor.dtype, rounded, has_graph), [0, 0, shape, False])
            group[0] += every
            group[1] += every * size
            group[3] |= shape != group[2]
        for key, (n, size, shape, is_mixed) in groups.items():
            self.tensors[key] = n, size, _description(key[0], shape, key[2], is_mixed)


def _description(dtype: Any, shape: tuple[int, ...], has_graph: bool, is_mixed: bool) -> str:
    name = str(dtype).rpartition(".")[2]
    sizes = ", ".join(map(str, shape))
    prefix = "about " if is_mixed else ""
    graph = " with their graphs" if has_graph else ""
    return f"{prefix}{name}[{sizes}]{graph}"


def _last_element(container: Any, kinds: tuple[type, ...]) -> str:
    """The type of the last element, or ``Tensor`` if that holds one."""
    try:
        if type(container) is dict:
            element = next(reversed(container.values()))
        else:
            element = container[-1]
    except (IndexError, StopIteration, RuntimeError):  # another thread changes it
        return ""
    return _kind_of(element, kinds, _DEEPEST)


def _kind_of(element: Any, kinds: tuple[type, ...], depth: int) -> str:
    kind = type(element)
    if kind in kinds:
        return "Tensor"
    if depth and kind in (list, tuple, dict):
        inner = list(element.values()) if kind is dict else element
        if any(_kind_of(value, kinds, depth - 1) == "Tensor" for value in inner[:_EXACT]):
            return "Tensor"
    return str(_name_of(kind))


def is_affordable() -> bool:
    """True if so few objects live that a census is short."""
    return getattr(sys, "getallocatedblocks", lambda: 0)() <= MOST_BLOCKS


def growth(before: Census, after: Census) -> dict[str, Any]:
    """The greatest growth from one census to the next.

    Returns:
        ``tensors``: of the group of which there are most bytes more, its description ``of``, how
        many ``more``, and their ``bytes``;
        ``container``: of the one that has grown most, of those with tensors if tensors have become
        more, its ``type``, its ``length``, how many elements ``more`` these are, and what they are
        (``holds``). Empty where nothing has grown.
    """
    figures: dict[str, Any] = {}
    groups = []
    for group, (n, size, description) in after.tensors.items():
        earlier_n, earlier_size, _ = before.tensors.get(group, (0, 0, ""))
        groups.append((size - earlier_size, n - earlier_n, description))
    size_more, n_more, description = max(groups, default=(0, 0, ""))
    has_more_tensors = size_more > 0 and n_more > 1
    if has_more_tensors:
        figures["tensors"] = {"of": description, "more": n_more, "bytes": size_more}
    containers = []
    for key, holds in after.holds.items():
        kind, length = after.types[key], after.lengths[key]
        earlier_length = before.length_of(key, kind)
        has_tensors = holds == "Tensor" and has_more_tensors
        # what is new may be the table of a module that has been imported
        if has_tensors or earlier_length:
            containers.append((has_tensors, length - earlier_length, kind, length, holds))
    _, longer, kind, length, holds = max(containers, default=(False, 0, "", 0, ""))
    if longer > 1:
        figures["container"] = {"type": kind, "length": length, "more": longer, "holds": holds}
    return figures
