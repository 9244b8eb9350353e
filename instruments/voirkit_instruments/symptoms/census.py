"""Count of live objects: tensors by type and shape, and long lists, dictionaries and deques. The
growth between two counts shows which objects are kept.

Only objects of exactly these types are inspected, through the types' own methods. No code of the
program is called, and only numbers and words about the objects are kept. A census of 190,000
objects took 38 ms of CPU time, one of 330,000 (torch with an optimizer) 87 ms; both were measured
on two processors busy with other work. Checked with torch 2.1 and 2.15.
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

# With more allocated blocks of Python memory (some 360,000 objects), no census is taken: it would
# take over 50 ms on an idle machine.
MOST_BLOCKS = 1_300_000
_LONG = 32  # containers with fewer elements are skipped
# maximum number of tensors that are inspected, 2 us each; if there are more, a sample of them
# stands for all
_MOST_TENSORS = 10_000
_EXACT = 16  # dimensions up to this are kept exact; larger ones are rounded to a power of two
_DEEPEST = 2  # number of nested levels of an element that are searched for a tensor

now = time.perf_counter_ns
# gets the name of a class even if the program's metaclass defines ``__name__``
_name_of = type.__dict__["__name__"].__get__


class Census:
    """Counts of the objects that are alive at one moment.

    Args:
        torch: The torch module.
        before: An earlier census. For containers that have grown since, the last element is
            described too.

    Attributes:
        at_ns: Start time of the census.
        took_ns: Duration of the census.
        tensors: Number of tensors, their bytes, and their description (``float32[256, 256]``), by
            type and rounded shape.
        lengths: Number of elements of each container, by id. The values are not tuples, since many
            new objects would trigger garbage collection.
        types: Name of the type of each container, by id.
        holds: Description of the last element of each container that has grown, by id.
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
        # ``map``, because a loop in Python takes four times as long
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
        """Return the number of elements of a container of the given type; 0 if it was missing or
        short."""
        return self.lengths[key] if self.types.get(key) == kind else 0

    def _count(self, tensors: list[Any]) -> None:
        # by group: number, bytes, shape of the first tensor, True if other tensors differ in shape
        groups: dict[tuple[Any, ...], list[Any]] = {}
        every = 1 + len(tensors) // _MOST_TENSORS
        for tensor in tensors[::every]:
            try:
                shape = tuple(tensor.shape)
                has_graph = tensor.requires_grad and not tensor.is_leaf
                size = tensor.nbytes
            except Exception:  # a sparse or partly initialised tensor may lack these attributes
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
    """Return the type name of the last element, or ``Tensor`` if the element is or holds a tensor.
    Empty if it cannot be read."""
    try:
        if type(container) is dict:
            element = next(reversed(container.values()))
        else:
            element = container[-1]
    except (IndexError, StopIteration, RuntimeError):  # another thread is changing the container
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
    """True if there are few enough live objects for a census to be quick."""
    return getattr(sys, "getallocatedblocks", lambda: 0)() <= MOST_BLOCKS


def growth(before: Census, after: Census) -> dict[str, Any]:
    """Return the greatest growth from one census to the next.

    Returns:
        ``tensors``: the group of tensors that has grown by the most bytes: its description ``of``,
            the number of tensors ``more``, and their ``bytes``.
        ``container``: the container that has grown most: its ``type``, its ``length``, the number
            of elements ``more``, and their type (``holds``). If tensors have increased, containers
            of tensors come first.
        Empty if nothing has grown.
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
        # Of new containers only those with tensors count: others may be namespaces of modules that
        # have been imported since.
        if has_tensors or earlier_length:
            containers.append((has_tensors, length - earlier_length, kind, length, holds))
    _, longer, kind, length, holds = max(containers, default=(False, 0, "", 0, ""))
    if longer > 1:
        figures["container"] = {"type": kind, "length": length, "more": longer, "holds": holds}
    return figures
