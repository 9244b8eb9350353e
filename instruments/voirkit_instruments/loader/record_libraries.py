"""The transforms of torchvision and albumentations, wherever a program calls them: their classes are known once they have been imported.

Checked with torchvision 0.16 and 0.29, albumentations 2.0.
"""

from __future__ import annotations

import sys

from voirkit_instruments.loader.record_operations import called

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit_instruments.loader.record_operations import Operations

_FAMILIES = ("torchvision.transforms", "albumentations.core.composition", "albumentations.core.transforms_interface")
_IN_TURN = ("Compose", "ReplayCompose", "Sequential")  # these only call others
_NOT = ("BaseCompose",)
# Read and decode: a folder dataset's loaders by one name, others by their own.
_READING: dict[str, dict[str, str | None]] = {
    "torchvision.datasets.folder": {"pil_loader": "Loader", "accimage_loader": "Loader"},
    "torchvision.io.image": dict.fromkeys(("read_image", "decode_image", "decode_jpeg", "decode_png", "decode_gif", "decode_webp")),
}


class Libraries:
    """Puts what is recorded around the transforms of libraries.

    Args:
        operations: What puts it there.
        learn: Called with each transform that is called in turn and is of a class that has not been looked at.
    """

    def __init__(self, operations: Operations, learn: Callable[[Any], None]) -> None:
        self._operations, self._learn = operations, learn
        self._looked: set[str] = set()
        self._imported: tuple[int, str] | None = None

    def look(self) -> None:
        """Do it for what has been imported since it was done last: at each ``iter(loader)``, and there are thousands of modules."""
        names = list(sys.modules)
        imported = len(names), names[-1]
        if imported == self._imported:
            return
        self._imported = imported
        for name, module in list(sys.modules.items()):
            if name.startswith(_FAMILIES) and name not in self._looked and ".functional" not in name:
                self._looked.add(name)
                self._classes(name, vars(module))
        for name, functions in _READING.items():
            if name in sys.modules and name not in self._looked:
                self._looked.add(name)
                for function, called_by in functions.items():
                    self._operations.function(vars(sys.modules[name]).get(function), called_by)

    def _classes(self, name: str, found: dict[str, Any]) -> None:
        for kind in list(found.values()):
            if not isinstance(kind, type) or kind.__module__ != name or kind.__name__ in _NOT:
                continue
            if kind.__name__ in _IN_TURN:
                does = called(kind)
                if does is not None:
                    self._operations.container(*does, self._learn)
            else:
                self._operations.kind(kind)
