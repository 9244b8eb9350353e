"""Processes that the program starts and that take part in the run: what stands there for the overseer, and their end.

``inherit`` brings instruments into processes that are started anew. What they need of a run there is this: somebody to warn,
and what they share.
"""

from __future__ import annotations

import sys

from voirkit.errors import tell
from voirkit.phases import SharedState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class ChildProcess(SharedState):
    """This process's part in the run."""

    def __init__(self) -> None:
        # what an instrument would add to the run's summary; the run's own process writes that, from what is recorded here
        self.summary: dict[str, Any] = {"dropped": {}}
        self.warnings: list[str] = []  # those shown, here or in the process that started this one: each is shown once

    def warn(self, text: str) -> None:
        """Warn the user, unless this warning has been shown."""
        if text not in self.warnings:
            self.warnings.append(text)
            tell(text)


_this = ChildProcess()


def this_process(warnings: Iterable[str] = ()) -> ChildProcess:
    """What stands for the run in this process, the same for all instruments; ``warnings`` are those shown already."""
    _this.warnings += warnings
    return _this


def has_running_children() -> bool:
    """Whether children of multiprocessing still run that python will wait for at its end. Asks nothing of them: nothing is reaped."""
    process = sys.modules.get("multiprocessing.process")
    children = list(getattr(process, "_children", ()))
    return any(not child.daemon and child._popen is not None and child._popen.returncode is None for child in children)


def after_children(function: Callable[[], None]) -> bool:
    """Call a function when multiprocessing has waited for its children at python's end; False if it will not."""
    util = sys.modules.get("multiprocessing.util")
    if util is None or util._exiting:
        return False
    util.Finalize(None, function, exitpriority=-1000)
    return True
