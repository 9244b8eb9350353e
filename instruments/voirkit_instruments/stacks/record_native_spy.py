"""py-spy as the sampler, where perf can not be used: it reads the stacks of Python and C of a process that it stops for a moment.

Checked with py-spy 0.4.3.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

from voirkit_instruments.detached import Beside, CanNotSample, Sampling, run_beside, without_handler

_MOST_HZ = 100  # a stack of C takes it some milliseconds
_READY_S = 20.0
attached: list[int] = []  # processes that it looks at; there can be one tracer only


def is_there() -> bool:
    """Whether it is installed."""
    return _program() is not None


def _program() -> str | None:
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


def attach(pid: int, stem: str, rate_hz: int, because: CanNotSample) -> Sampling:
    """Have py-spy sample a process and its children; when this returns it does.

    Args:
        pid: The process.
        stem: The path of the files that it writes, without their endings.
        rate_hz: Samples a second; at most 100 are taken.
        because: Why perf does not.

    Raises:
        CanNotSample: It can not either.
    """
    program, rate = _program() or "py-spy", min(rate_hz, _MOST_HZ)
    command = [program, "record", "--native", "--subprocesses", "--full-filenames", "--rate", str(rate), "--format", "raw",
               "--output", f"{stem}.data", "--pid", str(pid)]  # fmt: skip
    try:
        version = without_handler(
            lambda: subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        )
        beside = run_beside(command, f"{stem}.log", os.environ)
    except OSError as exc:
        raise CanNotSample(f"{because}\nNor can py-spy: {exc}.") from None
    until = time.monotonic() + _READY_S
    while "Sampling process" not in beside.words():
        if beside.ended(0.01) or time.monotonic() > until:
            beside.interrupt()
            raise CanNotSample(f"{because}\nNor can py-spy: {_why(beside)}")
    attached.append(pid)
    return Sampling("py-spy", beside, rate, version.stdout.decode(errors="replace").strip().removeprefix("py-spy "), program)


def _why(beside: Beside) -> str:
    words = beside.words()
    if "ermission" in words:
        return (
            "it may not look into the process (kernel.yama.ptrace_scope, or a container without SYS_PTRACE).\n"
            "Run as root, sysctl kernel.yama.ptrace_scope=0, or docker run --cap-add SYS_PTRACE."
        )
    return next((line.strip()[:200] for line in words.splitlines() if line.strip()), "it said nothing.")
