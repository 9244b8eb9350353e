"""The kernel's own tracing (tracefs), which root may use: exact counts and true times at some microseconds a call, no stop of the program.

What it writes is copied into the run directory by a program beside (``record_reader.py``). It names no files: the kernel's events of
calls hold numbers.
"""

from __future__ import annotations

import os
import sys

from voirkit_instruments.detached import Attached, CannotAttach, has_proc, start_detached, wait_until_ready

_READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "record_reader.py")
_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FIRST_PIDS = "pid:[4026531836]"  # the namespace that the kernel's own numbers of processes are of
_MACHINES = ("x86_64", "aarch64")
TRUSTED = {"calls, errors, bytes": "exact", "seconds": "the kernel's own", "files": "not seen (--syscalls=files names them)"}


def tracefs() -> str:
    """Where the kernel's tracing is.

    Raises:
        CannotAttach: With what to do.
    """
    if os.geteuid():
        raise CannotAttach("only root may have the kernel trace.")
    if not has_proc():
        raise CannotAttach("there is no /proc here, which tells of processes.\nMount it: mount -t proc none /proc")
    if os.uname().machine not in _MACHINES:
        raise CannotAttach(f"the numbers of system calls on {os.uname().machine} are not known.")
    try:
        if os.readlink("/proc/self/ns/pid") != _FIRST_PIDS:
            raise CannotAttach("this process is in a container, whose numbers of processes are not the kernel's.")
    except OSError:
        pass  # a kernel without such namespaces
    for place in _PLACES:
        if os.path.isdir(os.path.join(place, "instances")):
            if not os.path.exists(os.path.join(place, "events", "raw_syscalls")):
                raise CannotAttach("this kernel cannot trace system calls (it was built without CONFIG_FTRACE_SYSCALLS).")
            return place
    raise CannotAttach(f"tracefs is not mounted.\nMount it: mount -t tracefs none {_PLACES[0]}")


def attach(pid: int, stem: str, most_bytes: int) -> Attached:
    """Have the kernel trace all calls of a process, its threads and what it starts; when this returns it does.

    Args:
        pid: This process.
        stem: The path of the files, without their endings.
        most_bytes: What the files may take; tracing ends there.

    Raises:
        CannotAttach: With what to do.
    """
    command = [sys.executable, "-I", "-S", _READER, tracefs(), str(pid), stem, str(most_bytes)]
    try:
        process = start_detached(command, f"{stem}.log", os.environ)
    except OSError as exc:
        raise CannotAttach(f"{exc}.") from None
    wait_until_ready(process, lambda: "ready" in process.read_output(), _refuse, every_s=0.002)
    return Attached("kernel", process, log=f"{stem}.ring.json", trusted=TRUSTED)


def _refuse(output: str) -> CannotAttach:
    lines = output.splitlines()
    return CannotAttach(f"the kernel's tracing could not begin: {lines[-1][:200] if lines else 'it printed nothing'}.")


def remove_instance(pid: int) -> None:
    """The reader of a process was killed: remove what it has left behind."""
    from voirkit_instruments.syscalls.record_reader import name_of, remove_left

    try:
        remove_left(tracefs(), name_of(pid))
    except (OSError, CannotAttach):
        pass  # the next run does
