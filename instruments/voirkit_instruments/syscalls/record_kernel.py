"""The kernel's own tracing (tracefs), which root may use: exact counts and true times at some microseconds a call, no stop of the program.

What it writes is copied into the run directory by a program beside (``record_reader.py``). It names no files: the kernel's events of
calls hold numbers.
"""

from __future__ import annotations

import os
import sys
import time

from voirkit_instruments.detached import Beside, run_beside
from voirkit_instruments.syscalls.record_tool import NO_PROC, CanNotTrace, Tracing, has_proc

_READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "record_reader.py")
_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FIRST_PIDS = "pid:[4026531836]"  # the namespace that the kernel's own numbers of processes are of
_MACHINES = ("x86_64", "aarch64")
_READY_S = 30.0
TRUSTED = {"calls, errors, bytes": "exact", "seconds": "the kernel's own", "files": "not seen (--syscalls=files names them)"}


def tracefs() -> str:
    """Where the kernel's tracing is.

    Raises:
        CanNotTrace: With what to do.
    """
    if os.geteuid():
        raise CanNotTrace("only root may have the kernel trace.")
    if not has_proc():
        raise CanNotTrace(NO_PROC)
    if os.uname().machine not in _MACHINES:
        raise CanNotTrace(f"the numbers of system calls on {os.uname().machine} are not known.")
    try:
        if os.readlink("/proc/self/ns/pid") != _FIRST_PIDS:
            raise CanNotTrace("this process is in a container, whose numbers of processes are not the kernel's.")
    except OSError:
        pass  # a kernel without such namespaces
    for place in _PLACES:
        if os.path.isdir(os.path.join(place, "instances")):
            if not os.path.exists(os.path.join(place, "events", "raw_syscalls")):
                raise CanNotTrace("this kernel can not trace system calls (it was built without CONFIG_FTRACE_SYSCALLS).")
            return place
    raise CanNotTrace(f"tracefs is not mounted.\nMount it: mount -t tracefs none {_PLACES[0]}")


def attach(pid: int, stem: str, mode: str, most_bytes: int) -> Tracing:
    """Have the kernel trace a process, its threads and what it starts; when this returns it does.

    Args:
        pid: This process.
        stem: The path of the files, without their endings.
        mode: As for strace; all calls are counted, whichever it is.
        most_bytes: What the files may take; tracing ends there.

    Raises:
        CanNotTrace: With what to do.
    """
    place = tracefs()
    command = [sys.executable, "-I", "-S", _READER, place, str(pid), stem, str(most_bytes)]
    try:
        beside = run_beside(command, f"{stem}.log", os.environ)
    except OSError as exc:
        raise CanNotTrace(f"{exc}.") from None
    _wait(beside)
    return Tracing("kernel", beside, f"{stem}.ring.json", TRUSTED)


def clean(pid: int) -> None:
    """The reader of a process was killed: remove what it has left behind."""
    from voirkit_instruments.syscalls.record_reader import name_of, remove_left

    try:
        remove_left(tracefs(), name_of(pid))
    except (OSError, CanNotTrace):
        pass  # the next run does


def _wait(beside: Beside) -> None:
    until = time.monotonic() + _READY_S
    while "ready" not in beside.words():
        if beside.ended(0.002) or time.monotonic() > until:
            beside.interrupt()
            words = beside.words().splitlines()
            raise CanNotTrace(f"the kernel's tracing could not begin: {words[-1][:200] if words else 'it said nothing'}.")
