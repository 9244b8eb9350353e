"""Annotations for training programs: ``with ai.compute.forward:``, ``@ai.data.item``, ``for batch in ai.dataloader.fetch.iter(loader):``.

They cost next to nothing while nothing records, and import nothing but a few modules of python's own.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from voirkit.ai.node import Node, allow
from voirkit.ai.tree import ai
from voirkit.runner import recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

comm, compute, data, dataloader = ai.comm, ai.compute, ai.data, ai.dataloader
device, checkpoint, pipeline, other = ai.device, ai.checkpoint, ai.pipeline, ai.other


class _Tree(ModuleType):
    """This module, which can be used as the tree: ``from voirkit import ai`` finds the one or the other, by what was imported before."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(ai, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ai(*args, **kwargs)

    def __enter__(self) -> Node:
        return ai

    @property
    def __exit__(self) -> Any:  # looked up before __enter__ is called, so that each entry has its own
        return ai.__exit__


sys.modules[__name__].__class__ = _Tree
allow(os.environ.get("DFTRACER_ENABLE") != "0")
recording.begin_from_environment()

__all__ = ["Node", "ai", "checkpoint", "comm", "compute", "data", "dataloader", "device", "other", "pipeline"]
