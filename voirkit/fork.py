"""voirkit's hooks for forks, called in one fixed order, and the identities of files and jobs.

The order of the hooks does not depend on which module is imported first. File identities are needed
since the program may close one of voirkit's file descriptors, as daemons do after a fork. The
number of that descriptor may then refer to a file of the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import MethodType
from weakref import WeakMethod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Hook: TypeAlias = Callable[[], object] | None

# The order of the hooks after a fork, in child and parent; before the fork it is reversed. Streams
# come after the trace, in which their events may be recorded. Probes come after streams, which they
# feed.
ORDER = ("trace", "streams", "probes", "instruments")

_hooks: dict[str, list[tuple[Hook, Hook, Hook]]] = {part: [] for part in ORDER}


def at_fork(
    part: str, *, before: Hook = None, in_parent: Hook = None, in_child: Hook = None
) -> None:
    """Register functions of a part (one of ``ORDER``) to be called at each fork from now on.

    ``before`` and ``in_parent`` are called in the parent before and after the fork, ``in_child`` in
    the child. A bound method is held weakly: it is called as long as its object lives.
    """
    _hooks[part].append((_weakly(before), _weakly(in_parent), _weakly(in_child)))


def _weakly(hook: Hook) -> Hook:
    if not isinstance(hook, MethodType):
        return hook
    reference = WeakMethod(hook)

    def call() -> None:
        method = reference()
        if method is not None:
            method()

    return call


def _call(hooks: Iterable[Hook]) -> None:
    """Call all hooks, then raise the exception of the first that failed: Python reports it and
    continues."""
    failures = []
    for hook in hooks:
        if hook is not None:
            try:
                hook()
            except BaseException as exc:  # anything, even Ctrl-C: the other hooks must still run
                failures.append(exc)
    if failures:
        raise failures[0]


def _ordered(moment: int) -> list[Hook]:
    return [hooks[moment] for part in ORDER for hooks in _hooks[part]]


def _call_before() -> None:
    _call(reversed(_ordered(0)))


def _call_in_parent() -> None:
    _call(_ordered(1))


def _call_in_child() -> None:
    _call(_ordered(2))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_call_before, after_in_parent=_call_in_parent, after_in_child=_call_in_child
    )


def file_identity(fd: int) -> tuple[int, int] | None:
    """Return (device, inode) of the file that a descriptor refers to, or None if it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def job() -> str:
    """Return a string that all ranks of one job share and other jobs do not have.

    It is made from environment variables, and is the same for two jobs if all of these are.
    """
    words = (
        "TORCHELASTIC_RUN_ID",
        "MASTER_ADDR",
        "MASTER_PORT",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "OMPI_MCA_ess_base_jobid",
        "PMI_JOBID",
    )
    return "/".join(os.environ.get(word, "") for word in words)
