"""Child processes of a run: what instruments use in them instead of the overseer, how to wait for
them, and which of them were not recorded.

``inherit`` brings instruments into spawned processes. There the instruments need two things of the
overseer: a way to warn the user, and the state that they share.
"""

from __future__ import annotations

import os
import sys

from voirkit.errors import tell
from voirkit.phases import SharedState

# CPU time in seconds; children that have used less cannot have trained, since importing torch alone
# takes a second
_MAY_HAVE_TRAINED_S = 0.5

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class ChildProcess(SharedState):
    """The object that instruments use in a child process instead of the overseer."""

    def __init__(self) -> None:
        # Instruments may add to this summary as in the run's own process. It is not written: the
        # run's own process makes the summary from the records of this process.
        self.summary: dict[str, Any] = {"dropped": {}}
        # warnings that were shown in this process, or in the process that started it; they are not
        # repeated
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        """Warn the user, unless this warning has been shown."""
        if text not in self.warnings:
            self.warnings.append(text)
            tell(text)


_this = ChildProcess()


def this_process(warnings: Iterable[str] = ()) -> ChildProcess:
    """Return the one object that all instruments of this process share; ``warnings`` were shown
    already."""
    _this.warnings += warnings
    return _this


def has_running_children() -> bool:
    """True if Python, when it exits, will wait for children of multiprocessing. Does not poll the
    children, so none is reaped."""
    process = sys.modules.get("multiprocessing.process")
    children = list(getattr(process, "_children", ()))
    return any(
        not child.daemon and child._popen is not None and child._popen.returncode is None
        for child in children
    )


def after_children(function: Callable[[], None]) -> bool:
    """Call a function at Python's exit, after multiprocessing has waited for its children. Returns
    False, and calls nothing, if multiprocessing is not loaded or already exits."""
    util = sys.modules.get("multiprocessing.util")
    if util is None or util._exiting:
        return False
    util.Finalize(None, function, exitpriority=-1000)
    return True


class UnrecordedProcesses:
    """The known processes that the program has started since this object was made, and that were
    not recorded."""

    def __init__(self) -> None:
        self._cpu_s = _cpu_of_children_s()
        self._n_known = _count_known_children()

    def commands(self) -> list[str]:
        """Return the commands, as shown to users, of unrecorded processes that may have trained.

        Empty if all children together have used too little CPU time for a training. Processes of
        ``os.system`` and the like are noticed only by this CPU time, and only if the program has
        started no other processes.
        """
        from voirkit.processes import subprocesses

        if _cpu_of_children_s() - self._cpu_s < _MAY_HAVE_TRAINED_S:
            return []
        if subprocesses.programs.unrecorded:
            return list(subprocesses.programs.unrecorded)
        if _count_known_children() > self._n_known:
            return []
        return ["what os.system, os.posix_spawn or the like has started"]


class _Forks:
    """A counter of the forks of this process and of the processes that it was forked from."""

    def __init__(self) -> None:
        self.n_forked = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_parent=self._count)

    def _count(self) -> None:
        self.n_forked += 1


_forks = _Forks()


def _count_known_children() -> int:
    """Return the number of processes that were started by fork, multiprocessing or subprocess,
    recorded or not."""
    from voirkit.processes import inherit, subprocesses

    return _forks.n_forked + inherit.state.n_handed + subprocesses.programs.n_started


def _cpu_of_children_s() -> float:
    """Return the CPU time of the children that have ended, in seconds."""
    times = os.times()
    return times.children_user + times.children_system
