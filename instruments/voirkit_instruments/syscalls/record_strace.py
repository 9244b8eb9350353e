"""strace as the tracer: attached from beside to the process that runs, so that the program keeps its parent, its children and its end.

Attached, and never started around the program: with its quick filter (``--seccomp-bpf``), which a process takes on for good, calls fail
with ENOSYS as soon as strace is killed (seen with strace 6.1). Without it a program goes on as if nothing had been.
"""

from __future__ import annotations

import os
import shutil

from voirkit_instruments.detached import (
    ANYBODY,
    YAMA,
    Attached,
    CannotAttach,
    DetachedProcess,
    TracedAlready,
    first_line,
    has_proc,
    let_trace,
    start_detached,
    tracer_pid,
    wait_until_ready,
)

_BLOCK = 512  # bytes: the unit in which a shell limits files
# Opening, reading, writing, moving, removing; the descriptors that it is done with; and what makes threads and tells their names.
_ON_FILES = (
    "%file", "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2", "sendfile",
    "copy_file_range", "splice", "close", "close_range", "dup", "dup2", "dup3", "fcntl", "lseek", "fstat", "ftruncate", "fallocate",
    "fsync", "fdatasync", "getdents64", "ioctl", "mmap", "%process", "prctl", "io_uring_enter",
)  # fmt: skip
TRUSTED = {
    "calls, errors, bytes": "exact",
    "seconds": "too large by 2 us a call, some 60 on idle processors: each stops for strace; as root the kernel's own times are taken",
}

_WITHOUT_PROC = {"threads": "the first, and those that begin later; no others are found without /proc"}


def attach(pid: int, stem: str, mode: str, most_bytes: int) -> Attached:
    """Have strace write down the calls of a process, its threads and what it starts; when this returns it does.

    Args:
        pid: This process.
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
    let_trace(ANYBODY)
    try:
        process = start_detached(limited, f"{stem}.log", {**os.environ, "LC_ALL": "C"})
        wait_until_ready(process, lambda: f"Process {pid} attached" in process.read_output(), _refuse, every_s=0.002)
    except OSError as exc:
        raise CannotAttach(f"{exc}.") from None
    finally:
        let_trace(0)
    trusted = TRUSTED if has_proc() else {**TRUSTED, **_WITHOUT_PROC}
    return Attached("strace", process, log=f"{stem}.strace", trusted=trusted)


def _refuse(output: str) -> CannotAttach:
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
