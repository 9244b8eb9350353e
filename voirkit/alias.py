"""Has ``import dftracer`` find ``voirkit.dftracer`` where DFTracer itself is not installed: a script annotated for it runs as it is.

The finder is asked last, and answers to that one name: whatever else python finds is taken.
"""

from __future__ import annotations

import sys

from voirkit import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

VERSION = "2.2.0"  # whose names these are
_OFFER = "voirkit.alias:take"
# As they are in 2.x; and in 1.0.x, where `dftracer.logger` was a package.
_MODULES = frozenset({
    "dftracer", "dftracer.dftracer", "dftracer.logger", "dftracer.python", "dftracer.python.ai", "dftracer.python.ai_common",
    "dftracer.python.ai_init", "dftracer.python.common", "dftracer.python.env", "dftracer.python.logger", "dftracer.python.dbg",
    "dftracer.python.dbg.ai", "dftracer.python.dbg.logger", "dftracer.dbg", "dftracer.dbg.logger", "dftracer.logger.ai",
    "dftracer.logger.logger",
})  # fmt: skip


def install() -> None:
    """From now on, here and in processes that multiprocessing starts anew."""
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    inherit.watch(_OFFER, offered, before_main=True)


def remove() -> None:
    """No more; what has been imported stays."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    inherit.unwatch(_OFFER)


def offered() -> bool | None:
    """For a child process: that it is here."""
    return True if _finder in sys.meta_path else None


def take(offer: bool) -> None:
    """In a child process."""
    install()


class _Loader:
    """Fills a module with voirkit's names."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from importlib import import_module

        name = module.__name__
        if name == "dftracer":
            module.__dict__["__version__"] = VERSION
            inherit.main_needs_them = True
            return
        # First the modules in it: python sets each as an attribute of its package, and `ai` is a name that is wanted.
        for below in sorted(_MODULES):
            if below.rpartition(".")[0] == name:
                import_module(below)
        found = import_module("voirkit.dftracer")
        for word in found.__all__:
            module.__dict__[word] = getattr(found, word)
        module.__dict__.update(__all__=list(found.__all__), __getattr__=found.__getattr__, __doc__=found.__doc__)


class _Finder:
    """Last in ``sys.meta_path``."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        package = sys.modules.get("dftracer")
        if package is not None and not isinstance(getattr(package.__spec__, "loader", None), _Loader):
            return None  # the real one
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, _Loader(), origin="voirkit", is_package=True)  # type: ignore[arg-type]  # has a loader's methods


_finder: Any = _Finder()
