"""Tells when a module has been imported, without importing it.

wrapt does this too, but takes 85 ms of CPU to import (2.0 on python 3.11), which is more than all else that a plain run loads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_callbacks: dict[str, list[Callable[[ModuleType], None]]] = {}


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call back with a module when it has been imported; at once if it is already.

    The callback runs in the thread that imports, before the import statement returns; it must not raise.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        callback(module)
        return
    _callbacks.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Loader:
    """A module's own loader, and the callbacks after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if nothing had stood between: its loader is its own again before its code runs.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for callback in _callbacks.pop(module.__name__, ()):
            callback(module)


class _Finder:
    """First in ``sys.meta_path``; finds nothing itself, but puts the callbacks behind what the others find."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _callbacks:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # has a loader's methods
                    return spec
        return None


_finder: Any = _Finder()
