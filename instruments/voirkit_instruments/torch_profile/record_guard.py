"""Tells that the program is about to begin a profiler of torch's: there can be only one, and it is the program's.

Functions of torch's modules stand for others while a run is profiled; they are called by torch.profiler alone.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MODULES = ("torch.autograd", "torch.autograd.profiler", "torch.autograd.profiler_legacy")
_BEGIN = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_END = ("_disable_profiler", "_disable_profiler_legacy")


class Guard:
    """What stands in the modules of torch.

    Args:
        torch: The module.
        give_way: Called before the program begins a profiler, in the thread that does.

    Attributes:
        runs: Whether a profiler of the program runs.
    """

    def __init__(self, torch: Any, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self.runs = False
        self._put: list[tuple[Any, str, Any, Any]] = []
        for module in filter(None, map(sys.modules.get, _MODULES)):
            for name in (*_BEGIN, *_END):
                before = vars(module).get(name)
                if before is not None:
                    standing = self._beginning(before) if name in _BEGIN else self._ending(before)
                    setattr(module, name, standing)
                    self._put.append((module, name, before, standing))

    def _beginning(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.runs = True
            self._give_way()
            return begin(*arguments, **named)

        return called

    def _ending(self, end: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            try:
                return end(*arguments, **named)
            finally:
                self.runs = False

        return called

    def remove(self) -> None:
        """Put all back."""
        for module, name, before, standing in self._put:
            if vars(module).get(name) is standing:
                setattr(module, name, before)
        self._put.clear()
