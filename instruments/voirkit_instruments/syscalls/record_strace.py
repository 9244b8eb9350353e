"""strace as the tracer: attached from beside to the process that runs, so that the program keeps its parent, its children and its end.

Attached, and never started around the program: with its quick filter (``--seccomp-bpf``), which a process takes on for good, calls fail
with ENOSYS as soon as strace is killed (seen with strace 6.1). Without it a program goes on as if nothing had been.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping

from voirkit_instruments.detached import Beside, run_beside
from voirkit_instruments.syscalls.record_tool import CanNotTrace, TracedAlready, Tracing, has_proc

_READY_S = 30.0
_BLOCK = 512  # bytes: what a shell's limits of files are told in
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_SET_PTRACER, _ANYBODY = 0x59616D61, -1
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


def why_not() -> str | None:
    """Why it can not be used here, and what to do; None if it is there."""
    if shutil.which("strace") is None:
        return "strace is not installed.\nInstall it (Debian, Ubuntu: apt-get install strace; Fedora: dnf install strace)."
    return None


def attach(pid: int, stem: str, mode: str, most_bytes: int) -> Tracing:
    """Have strace write down the calls of a process, its threads and what it starts; when this returns it does.

    Args:
        pid: This process.
        stem: The path of the files, without their endings.
        mode: ``files``: calls on files alone; ``full``: with what is read and written; ``counts``: without.
        most_bytes: What the log may take; strace ends there.

    Raises:
        CanNotTrace: With what to do.
    """
    program = shutil.which("strace")
    if program is None:
        raise CanNotTrace(why_not() or "")
    chosen = ["-e", "trace=" + ",".join(_ON_FILES)] if mode == "files" else []
    command = [program, "-f", "-ttt", "-T", "-s", "32" if mode == "full" else "0", *chosen, "-o", f"{stem}.strace", "-p", str(pid)]
    limited = ["/bin/sh", "-c", f'ulimit -f {max(most_bytes // _BLOCK, 1)}; exec "$@"', "sh", *command]
    let_trace(_ANYBODY)
    try:
        beside = run_beside(limited, f"{stem}.log", {**os.environ, "LC_ALL": "C"})
        _wait(beside, pid)
    except OSError as exc:
        raise CanNotTrace(f"{exc}.") from None
    finally:
        let_trace(0)
    trusted = TRUSTED if has_proc() else {**TRUSTED, **_WITHOUT_PROC}
    return Tracing("strace", beside, f"{stem}.strace", trusted)


def _wait(beside: Beside, pid: int) -> None:
    until = time.monotonic() + _READY_S
    while f"Process {pid} attached" not in beside.words():
        if beside.ended(0.002) or time.monotonic() > until:
            beside.interrupt()
            tracer = int(status().get("TracerPid", "0"))
            if tracer:
                raise TracedAlready(f"process {tracer} traces this one already (strace, or a debugger), and there can be one only.")
            raise CanNotTrace(_why(beside.words()))


def let_trace(pid: int) -> None:
    """Let another process than an ancestor trace this one, where the kernel (Yama) asks for that."""
    if not os.path.exists(_YAMA):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
    except (OSError, AttributeError):
        pass  # strace is about to say what it may not


def why_ended(beside: Beside, log: str, most_bytes: int) -> str:
    """Why it ended before the run did."""
    words = [line for line in beside.words().splitlines() if line.strip() and line != "ready"]
    try:
        if os.path.getsize(log) >= most_bytes - _BLOCK or any("limit" in line for line in words):
            return "what it writes has reached --trace-limit"
    except OSError:
        pass  # nothing was written
    return "it was killed, or let go of the process" if not words or "attached" in words[-1] else words[-1]


def _why(words: str) -> str:
    if "ermitted" in words or "ermission" in words:
        return (
            f"it may not attach to the process{_scope()}.\n"
            "Run as root, sysctl kernel.yama.ptrace_scope=1 (as root), or docker run --cap-add SYS_PTRACE."
        )
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return f"strace could not begin: {lines[0][:200] if lines else 'it said nothing.'}"


def _scope() -> str:
    try:
        with open(_YAMA, encoding="ascii") as file:
            return f" (kernel.yama.ptrace_scope is {file.read().strip()})"
    except OSError:
        return ""


def status() -> Mapping[str, str]:
    """What the kernel says of this process, as in ``/proc/self/status``."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
            return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
    except OSError:
        return {}
