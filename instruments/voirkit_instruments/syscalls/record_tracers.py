"""The tracers that record a process's system calls from beside it, so that the program keeps its parent, its children and its end.

The kernel's own tracing (tracefs), which root may use: exact counts and true times at some microseconds a call, no stop of the program.
What it writes is copied into the run directory by a program beside (``record_reader.py``). It names no files: the kernel's events of calls
hold numbers.

strace, attached and never started around the program: with its quick filter (``--seccomp-bpf``), which a process takes on for good, calls
fail with ENOSYS as soon as strace is killed (seen with strace 6.1). Without it a program goes on as if nothing had been.
"""

from __future__ import annotations

import os
import shutil
import sys

from voirkit_instruments.detached import (
    ANYBODY,
    YAMA,
    Attached,
    CannotAttach,
    DetachedProcess,
    TracedAlready,
    attach_program,
    first_line,
    has_proc,
    let_trace,
    tracer_pid,
)

_READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "record_reader.py")
_TRACEFS_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FIRST_PIDS = "pid:[4026531836]"  # the namespace that the kernel's own numbers of processes are of
_MACHINES = ("x86_64", "aarch64")
_KERNEL_TRUSTED = {"calls, errors, bytes": "exact", "seconds": "the kernel's own", "files": "not seen (--syscalls=files names them)"}


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
    for place in _TRACEFS_PLACES:
        if os.path.isdir(os.path.join(place, "instances")):
            if not os.path.exists(os.path.join(place, "events", "raw_syscalls")):
                raise CannotAttach("this kernel cannot trace system calls (it was built without CONFIG_FTRACE_SYSCALLS).")
            return place
    raise CannotAttach(f"tracefs is not mounted.\nMount it: mount -t tracefs none {_TRACEFS_PLACES[0]}")


def attach_kernel(pid: int, stem: str, most_bytes: int) -> Attached:
    """Have the kernel trace all calls of a process, its threads and what it starts; when this returns it does.

    Args:
        stem: The path of the files, without their endings.
        most_bytes: What the files may take; tracing ends there.

    Raises:
        CannotAttach: With what to do.
    """
    command = [sys.executable, "-I", "-S", _READER, tracefs(), str(pid), stem, str(most_bytes)]
    process = attach_program(command, f"{stem}.log", os.environ, lambda process: "ready" in process.read_output(), _refuse_kernel, 0.002)
    return Attached("kernel", process, log=f"{stem}.ring.json", trusted=_KERNEL_TRUSTED)


def _refuse_kernel(output: str) -> CannotAttach:
    lines = output.splitlines()
    return CannotAttach(f"the kernel's tracing could not begin: {lines[-1][:200] if lines else 'it printed nothing'}.")


def remove_instance(pid: int) -> None:
    """The reader of a process was killed: remove what it has left behind."""
    from voirkit_instruments.syscalls.record_reader import name_of, remove_left

    try:
        remove_left(tracefs(), name_of(pid))
    except (OSError, CannotAttach):
        pass  # the next run does


_BLOCK = 512  # bytes: the unit in which a shell limits files
# Opening, reading, writing, moving, removing; the descriptors that it is done with; and what makes threads and tells their names.
_ON_FILES = (
    "%file", "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2", "sendfile",
    "copy_file_range", "splice", "close", "close_range", "dup", "dup2", "dup3", "fcntl", "lseek", "fstat", "ftruncate", "fallocate",
    "fsync", "fdatasync", "getdents64", "ioctl", "mmap", "%process", "prctl", "io_uring_enter",
)  # fmt: skip
_STRACE_TRUSTED = {
    "calls, errors, bytes": "exact",
    "seconds": "too large by 2 us a call, some 60 on idle processors: each stops for strace; as root the kernel's own times are taken",
}

_WITHOUT_PROC = {"threads": "the first, and those that begin later; no others are found without /proc"}


def attach_strace(pid: int, stem: str, mode: str, most_bytes: int) -> Attached:
    """Have strace write down the calls of a process, its threads and what it starts; when this returns it does.

    Args:
        stem: The path of the files, without their endings.
        mode: ``files``: calls on files alone; ``full``: with what is read and written; ``counts``: without.
        most_bytes: What the log may take; strace ends there.

    Raises:
        CannotAttach: With what to do.
    """
    program = shutil.which("strace")
    if program is None:
        raise CannotAttach("strace is not installed.\nInstall it (Debian, Ubuntu: apt-get install strace; Fedora: dnf install strace).")
    chosen = ["-e", "trace=" + ",".join(_ON_FILES)] if mode == "files" else []
    command = [program, "-f", "-ttt", "-T", "-s", "32" if mode == "full" else "0", *chosen, "-o", f"{stem}.strace", "-p", str(pid)]
    limited = ["/bin/sh", "-c", f'ulimit -f {max(most_bytes // _BLOCK, 1)}; exec "$@"', "sh", *command]
    environment, said = {**os.environ, "LC_ALL": "C"}, f"Process {pid} attached"
    let_trace(ANYBODY)
    try:
        process = attach_program(limited, f"{stem}.log", environment, lambda process: said in process.read_output(), _refuse_strace, 0.002)
    finally:
        let_trace(0)
    trusted = _STRACE_TRUSTED if has_proc() else {**_STRACE_TRUSTED, **_WITHOUT_PROC}
    return Attached("strace", process, log=f"{stem}.strace", trusted=trusted)


def _refuse_strace(output: str) -> CannotAttach:
    tracer = tracer_pid()
    if tracer:
        return TracedAlready(f"process {tracer} traces this one already (strace, or a debugger), and there can be one only.")
    if "ermitted" in output or "ermission" in output:
        return CannotAttach(
            f"it may not attach to the process{_yama_scope()}.\n"
            "Run as root, sysctl kernel.yama.ptrace_scope=1 (as root), or docker run --cap-add SYS_PTRACE."
        )
    return CannotAttach(f"strace could not begin: {first_line(output)}")


def _yama_scope() -> str:
    try:
        with open(YAMA, encoding="ascii") as file:
            return f" (kernel.yama.ptrace_scope is {file.read().strip()})"
    except OSError:
        return ""


def why_ended(process: DetachedProcess, log: str, most_bytes: int) -> str:
    """Why a tracer ended before the run did."""
    lines = [line for line in process.read_output().splitlines() if line.strip() and line != "ready"]
    try:
        if os.path.getsize(log) >= most_bytes - _BLOCK or any("limit" in line for line in lines):
            return "what it writes has reached --trace-limit"
    except OSError:
        pass  # nothing was written
    return "it was killed, or let go of the process" if not lines or "attached" in lines[-1] else lines[-1]
