"""py-spy as what takes stacks: found, started beside the program, and why it can not be. Checked with py-spy 0.4.3."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

from voirkit_instruments.detached import Beside, CanNotSample, run_beside, without_handler
from voirkit_instruments.stacks import record_py_spy_tree as py_spy_tree
from voirkit_instruments.syscalls.record_strace import let_trace, status

CHUNK_S = 60
_READY_S = 20.0
_ANYBODY = -1
# Threads that wait are taken too, and files in full: a stack that does not change is written once, so that its end would not be seen.
_OPTIONS = ("--threads", "--full-filenames")


class Taking(NamedTuple):
    """py-spy at work.

    Attributes:
        beside: The program that runs it.
        version: Its version.
        by_clock: Whether what it writes has times.
    """

    beside: Beside
    version: str
    by_clock: bool


def program() -> str | None:
    """Where it is."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


def attach(pid: int, stem: str, rate_hz: int, most_bytes: int, gil: bool = False, native: bool = False) -> Taking:
    """Have py-spy take the stacks of a process and of those below it; when this returns it does.

    Args:
        pid: This process.
        stem: The path of the files that it writes, without their endings.
        rate_hz: Times a second.
        most_bytes: What the files may take.
        gil: Only threads that hold the GIL.
        native: The frames of C too.

    Raises:
        CanNotSample: With what to do.
    """
    spy = program()
    if spy is None:
        raise CanNotSample("py-spy is not installed.\nInstall it: pip install 'voirkit[flame]'.")
    # It stops the process for each sample. It can do without (--nonblocking), but then stacks are put together from parts of several: of
    # functions that last some microseconds 9 to 54 % of them were such as never are.
    if int(status().get("TracerPid", "0")):
        raise CanNotSample("another process traces this one (strace, a debugger), and there can be one only.")
    options = [*_OPTIONS, "--rate", str(rate_hz), "--format", "raw" if gil else "chrometrace", "--gil" if gil else "--idle"]
    options += ["--native"] if native else []
    chunk_s = str(CHUNK_S)
    words = [sys.executable, "-I", "-S", py_spy_tree.__file__, spy, str(pid), stem, chunk_s, str(most_bytes), *options]
    let_trace(_ANYBODY)  # it is no ancestor of this process; yama asks for that, as long as it runs
    try:
        version = without_handler(lambda: subprocess.run([spy, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False))
        beside = run_beside(words, f"{stem}.log", {**os.environ, "RUST_BACKTRACE": "0"})
    except OSError as exc:
        let_trace(0)
        raise CanNotSample(f"{exc}.") from None
    until = time.monotonic() + _READY_S
    while not beside.words().startswith("ready"):
        if beside.ended(0.01) or time.monotonic() > until:
            beside.interrupt()
            let_trace(0)
            raise CanNotSample(_why(beside.words()))
    return Taking(beside, version.stdout.decode(errors="replace").strip().removeprefix("py-spy "), not gil)


def _why(words: str) -> str:
    if "ermission" in words or "ermitted" in words:
        return (
            "py-spy may not look into the process (kernel.yama.ptrace_scope, or a container without SYS_PTRACE).\n"
            "Run as root, sysctl kernel.yama.ptrace_scope=1 (as root), or docker run --cap-add SYS_PTRACE."
        )
    return f"py-spy: {next((line.strip()[:200] for line in words.splitlines() if line.strip()), 'it said nothing.')}"
