"""The hooks of voirkit where the process forks, in one declared order, whatever is imported first;
the file that a descriptor stands for, and the job that a process is part of.

The descriptors since the program may close one of voirkit's, as daemons do after a fork, and its
number may come to stand for a file of its own.
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

# In the child and in the parent afterwards; before the fork it is the reverse. Events of streams
# may be recorded, probes give into streams.
ORDER = ("trace", "streams", "probes", "instruments")

_hooks: dict[str, list[tuple[Hook, Hook, Hook]]] = {part: [] for part in ORDER}


def at_fork(
    part: str, *, before: Hook = None, in_parent: Hook = None, in_child: Hook = None
) -> None:
    """Call functions of a part (one of ``ORDER``) at each fork from now on: in the parent before
    and after it, and in the child. A method is called as long as its object lives, and keeps it not
    alive."""
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
    """Call all, and raise the exception of the first of those that failed: python reports it, and
    goes on."""
    failures = []
    for hook in hooks:
        if hook is not None:
            try:
                hook()
            except BaseException as exc:  # of any hook, even Ctrl-C: the others must still run
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
    """(device, inode) of the file that a descriptor stands for, or None if it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def job() -> str:
    """A word that all ranks of one job share and that other jobs do not, as far as the environment
    tells."""
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
