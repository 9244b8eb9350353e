"""Annotations for training programs: ``with ai.compute.forward:``, ``@ai.data.item``, ``for batch
in ai.dataloader.fetch.iter(loader):``.

Annotations cost almost nothing while nothing records, and import only a few modules of Python's
standard library. They form a tree: eight categories of a training program's work, and the parts of
each. Names and structure are those of DFTracer (checked with dftracer 2.2.0 and pydftracer 2.0.6).
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from voirkit.ai.node import Node, allow
from voirkit.runner import recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class IO(Node):
    """Operations on files and other storage."""

    open: Node
    read: Node
    write: Node
    close: Node


class Compute(Node):
    """The computation of a training step."""

    forward: Node
    backward: Node
    step: Node


class Data(Node):
    """Loading and preparing one sample."""

    preprocess: Node
    item: Node
    io: IO


class DataLoader(Node):
    """Fetching batches."""

    fetch: Node


class Communication(Node):
    """Communication between ranks."""

    send: Node
    receive: Node
    barrier: Node
    bcast: Node
    reduce: Node
    all_reduce: Node
    gather: Node
    all_gather: Node
    scatter: Node
    reduce_scatter: Node
    all_to_all: Node


class Device(Node):
    """Copies between devices."""

    transfer: Node


class Checkpoint(Node):
    """Saving and loading the state of a run."""

    capture: Node
    restart: Node
    io: IO


class Pipeline(Node):
    """The stages of a run."""

    epoch: Node
    train: Node
    evaluate: Node
    test: Node


class Other(Node):
    """Work that belongs to no other category."""

    log: Node
    io: IO


class AI(Node):
    """The root of the tree: arguments and switches set here apply to all annotations."""

    compute: Compute
    data: Data
    dataloader: DataLoader
    comm: Communication
    device: Device
    checkpoint: Checkpoint
    pipeline: Pipeline
    other: Other

    def __reduce__(self) -> Any:
        """Pickle the global tree ``ai`` by name: it loads as the ``ai`` of the loading process."""
        return "ai" if self is ai else super().__reduce__()


_CATEGORIES: dict[str, type[Node]] = {
    "compute": Compute,
    "data": Data,
    "dataloader": DataLoader,
    "comm": Communication,
    "device": Device,
    "checkpoint": Checkpoint,
    "pipeline": Pipeline,
    "other": Other,
}


def grow() -> AI:
    """Create a new tree of annotations; a program uses the one tree ``ai``."""
    root = AI("ai_root", "ai_root")
    for category, kind in _CATEGORIES.items():
        node = kind(category, category, root, category)
        setattr(root, category, node)
        for word in kind.__annotations__:
            # A node's name is its word alone. The category is put before the word if the word is
            # ``io`` or the category is ``other``.
            name = f"{category}.{word}" if word == "io" or category == "other" else word
            below = (IO if word == "io" else Node)(category, name, node, word)
            setattr(node, word, below)
            if word == "io":
                for deed in IO.__annotations__:
                    setattr(below, deed, Node(category, f"{name}.{deed}", below, deed))
    return root


ai = grow()


comm, compute, data, dataloader = ai.comm, ai.compute, ai.data, ai.dataloader
device, checkpoint, pipeline, other = ai.device, ai.checkpoint, ai.pipeline, ai.other


class _Tree(ModuleType):
    """Class of this module, which makes the module usable as the tree. ``from voirkit import ai``
    returns the module or the tree, depending on earlier imports."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(ai, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ai(*args, **kwargs)

    def __enter__(self) -> Node:
        return ai

    @property
    # a property, so that each entry gets an __exit__ of its own: ``with`` looks __exit__ up before
    # it calls __enter__
    def __exit__(self) -> Any:
        return ai.__exit__


sys.modules[__name__].__class__ = _Tree
allow(os.environ.get("DFTRACER_ENABLE") != "0")
recording.begin_from_environment()

__all__ = [
    "Node",
    "ai",
    "checkpoint",
    "comm",
    "compute",
    "data",
    "dataloader",
    "device",
    "other",
    "pipeline",
]
