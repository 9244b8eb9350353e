"""Keeps a probe on a function that is defined anew: a cell of a notebook that is run again, ``exec`` of another ``def``.

Nothing of python tells that a name gets another value.  But the function that it had goes at that moment, unless
something else holds it; IPython tells when a cell has been run; and the end of the probe is the last time to look.
Checked with IPython 8.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from voirkit.probes import find

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

_followers: WeakSet[Follower] = WeakSet()
_hooked: set[int] = set()


class Follower:
    """Looks whether a name of a module still stands for the same function.

    Args:
        module: The module's name.
        path: Of the function in it.
        function: What it stands for now.
        renewed: Called with another function that it stands for; must not raise.
    """

    def __init__(self, module: str, path: tuple[str, ...], function: FunctionType, renewed: Callable[[FunctionType], None]) -> None:
        self.module, self.path, self._renewed = module, path, renewed
        self.is_on = True
        self._function = ref(function, self._gone)
        _followers.add(self)
        _hook()

    def _gone(self, _: Any) -> None:
        """The function is no more: as a rule because its name has just been given to another."""
        if sys is not None and not sys.is_finalizing():  # at the end of python this module's own names go too
            self.look()

    def other(self) -> FunctionType | None:
        """Another function than the last one that was told of, if the name stands for one."""
        now = find.at(self.module, self.path) if self.is_on else None
        return now if now is not self._function() else None

    def look(self) -> None:
        """Tell of another function, if there is one."""
        now = self.other()
        if now is not None:
            self._function = ref(now, self._gone)
            self._renewed(now)


def follows(module: str, path: tuple[str, ...], function: FunctionType) -> bool:
    """Whether a function is what a name of a module stands for, and not only held by somebody."""
    names = getattr(sys.modules.get(module), "__dict__", None)
    return names is function.__globals__ and find.at(module, path) is function


def _hook() -> None:
    """Look after each cell of a notebook."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get() if get is not None else None
    events = getattr(shell, "events", None)
    if events is not None and id(shell) not in _hooked:
        _hooked.add(id(shell))
        events.register("post_run_cell", _look_at_all)


def _look_at_all(*result: Any) -> None:
    for follower in list(_followers):
        follower.look()
