"""Processes that the program starts and that take part in the run: the object that stands there
for the overseer, and their end.

``inherit`` brings instruments into processes that are spawned. They need this of a run there:
a way to warn, and the state that they share.
"""

from __future__ import annotations

import os
import sys

from voirkit.errors import tell
from voirkit.phases import SharedState

_MAY_HAVE_TRAINED_S = 0.5  # of processor time: importing torch alone takes a second

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class ChildProcess(SharedState):
    """This process's part in the run."""

    def __init__(self) -> None:
        # the part that an instrument would add to the run's summary; the run's own process writes
        # that, from the records of this one
        self.summary: dict[str, Any] = {"dropped": {}}
        # those shown, here or in the process that started this one: each is shown once
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        """Warn the user, unless this warning has been shown."""
        if text not in self.warnings:
            self.warnings.append(text)
            tell(text)


_this = ChildProcess()


def this_process(warnings: Iterable[str] = ()) -> ChildProcess:
    """The object that stands for the run in this process, the same for all instruments;
    ``warnings`` are those shown already."""
    _this.warnings += warnings
    return _this


def has_running_children() -> bool:
    """True if children of multiprocessing still run that python will wait for at its end. Asks
    nothing of them: nothing is reaped."""
    process = sys.modules.get("multiprocessing.process")
    children = list(getattr(process, "_children", ()))
    return any(
        not child.daemon and child._popen is not None and child._popen.returncode is None
        for child in children
    )


def after_children(function: Callable[[], None]) -> bool:
    """Call a function when multiprocessing has waited for its children at python's end; False if it
    will not."""
    util = sys.modules.get("multiprocessing.util")
    if util is None or util._exiting:
        return False
    util.Finalize(None, function, exitpriority=-1000)
    return True


class UnrecordedProcesses:
    """The processes that the program has started since this was made, and that were not recorded,
    as far as they are known."""

    def __init__(self) -> None:
        self._cpu_s = _cpu_of_children_s()
        self._n_known = _count_known_children()

    def commands(self) -> list[str]:
        """Those that may have trained, as they are shown; empty where all children together have
        used too little for that. Processes of ``os.system`` and its like are known only by that
        use, where nothing else was started."""
        from voirkit.processes import subprocesses

        if _cpu_of_children_s() - self._cpu_s < _MAY_HAVE_TRAINED_S:
            return []
        if subprocesses.programs.unrecorded:
            return list(subprocesses.programs.unrecorded)
        if _count_known_children() > self._n_known:
            return []
        return ["what os.system, os.posix_spawn or the like has started"]


class _Forks:
    """The forks of this process and of those that it was forked from."""

    def __init__(self) -> None:
        self.n_forked = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_parent=self._count)

    def _count(self) -> None:
        self.n_forked += 1


_forks = _Forks()


def _count_known_children() -> int:
    """The number of processes that python's own modules have started in ways that voirkit knows of,
    recorded or not."""
    from voirkit.processes import inherit, subprocesses

    return _forks.n_forked + inherit.state.n_handed + subprocesses.programs.n_started


def _cpu_of_children_s() -> float:
    """Processor time of the children that have ended."""
    times = os.times()
    return times.children_user + times.children_system
