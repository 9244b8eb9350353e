"""Functions with taps that torch.jit.script compiles from their source: it sees no taps, so that is told.

Never imports torch: its reader of sources is patched when it has been imported.  Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from voirkit import streams
from voirkit.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_watching = False
_told: WeakSet[FunctionType] = WeakSet()


def watch(has_taps: Callable[[FunctionType], bool]) -> None:
    """From now on tell when a function with taps is scripted."""
    global _watching
    if _watching:
        return
    _watching = True

    def patch(frontend: ModuleType) -> None:
        parse_def = getattr(frontend, "parse_def", None)
        if parse_def is None:
            return  # another torch than those that were checked

        @functools.wraps(parse_def)
        def parsed(function: Any, *args: Any, **kwargs: Any) -> Any:
            plain = getattr(function, "__func__", function)
            if isinstance(plain, FunctionType) and has_taps(plain):
                _tell(plain)
            return parse_def(function, *args, **kwargs)

        frontend.parse_def = parsed  # type: ignore[attr-defined]

    when_imported("torch.jit.frontend", patch)


def look(function: FunctionType) -> None:
    """Tell if a function that gets taps has been scripted before."""
    functions = getattr(sys.modules.get("torch.jit._state"), "_jit_caching_layer", ())
    store = getattr(sys.modules.get("torch.jit._recursive"), "concrete_type_store", None)
    classes = list(getattr(store, "type_store", ()))
    if function in functions or any(v is function for kind in classes for v in vars(kind).values()):
        _tell(function)


def _tell(function: FunctionType) -> None:
    if function not in _told:
        _told.add(function)
        code = function.__code__
        where = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
        streams.report(f"{where} has probes and is compiled by torch.jit.script: they see nothing in the compiled code.")
