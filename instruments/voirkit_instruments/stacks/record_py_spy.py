"""py-spy beside the program: it stops a process for a moment to read its stacks. Checked with
py-spy 0.4.3."""

from __future__ import annotations

import os
import shutil
import sys

from voirkit_instruments.detached import (
    ANYBODY,
    Attached,
    CannotAttach,
    attach_program,
    first_line,
    let_trace,
    run_to_end,
    tracer_pid,
)
from voirkit_instruments.stacks import record_py_spy_tree

CHUNK_S = 60
_MOST_NATIVE_HZ = 100  # maximum rate with C frames: such a stack takes py-spy some milliseconds
# All threads, with full file names. Waiting threads are recorded too (``--idle``): py-spy writes an
# unchanged stack only once, so without that option the end of the stack would not be seen.
_OPTIONS = ("--threads", "--full-filenames")
_MAY_NOT_ATTACH = (
    "it may not look into the process (kernel.yama.ptrace_scope, or a container without"
    " SYS_PTRACE).\nRun as root, sysctl kernel.yama.ptrace_scope=1 (as root), or docker run"
    " --cap-add SYS_PTRACE."
)
native_pids: list[int] = []  # processes that py-spy samples for --native, as their only tracer


def program() -> str | None:
    """Return the path of py-spy; None if it is not installed."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


def attach(
    pid: int, stem: str, rate_hz: int, most_bytes: int, gil: bool = False, native: bool = False
) -> Attached:
    """Have py-spy sample the stacks of a process and its descendants. Sampling has begun when this
    returns.

    Args:
        stem: The path of py-spy's files, without their suffixes.
        most_bytes: The largest total size of the files.
        gil: Sample only threads that hold the GIL; the stacks then have no times.
        native: Also sample C frames.

    Raises:
        CannotAttach: py-spy cannot sample; the message says what to do.
    """
    spy = program()
    if spy is None:
        raise CannotAttach("py-spy is not installed.\nInstall it: pip install 'voirkit[flame]'.")
    # py-spy stops the process for each sample. ``--nonblocking`` would avoid that, but mixes parts
    # of several stacks into one: with functions that last some microseconds, 9 to 54 % of the
    # stacks were ones that never occur.
    if tracer_pid():
        raise CannotAttach(
            "another process traces this one (strace, a debugger), and there can be one only."
        )
    options = [
        *_OPTIONS,
        "--rate",
        str(rate_hz),
        "--format",
        "raw" if gil else "chrometrace",
        "--gil" if gil else "--idle",
    ]
    if native:
        options.append("--native")
    tree = [
        sys.executable,
        "-I",
        "-S",
        record_py_spy_tree.__file__,
        spy,
        str(pid),
        stem,
        str(CHUNK_S),
        str(most_bytes),
        *options,
    ]
    let_trace(ANYBODY)  # permit py-spy while it runs: Yama lets only ancestors trace a process
    try:
        environment = {**os.environ, "RUST_BACKTRACE": "0"}
        process = attach_program(
            tree,
            f"{stem}.log",
            environment,
            lambda process: process.read_output().startswith("ready"),
            _refuse,
        )
    except CannotAttach as exc:
        let_trace(0)
        raise CannotAttach(f"py-spy: {exc}") from None
    return Attached("py-spy", process, _version(spy), spy, rate_hz)


def attach_native(pid: int, stem: str, rate_hz: int, why_not_perf: CannotAttach) -> Attached:
    """Have py-spy sample the C functions of a process and its children, where perf cannot. Sampling
    has begun when this returns.

    Args:
        stem: The path of py-spy's files, without their suffixes.
        rate_hz: Samples per second; at most 100 are taken.
        why_not_perf: The reason why perf cannot.

    Raises:
        CannotAttach: py-spy cannot either.
    """
    spy = program() or "py-spy"
    rate_hz = min(rate_hz, _MOST_NATIVE_HZ)
    command = [
        spy,
        "record",
        "--native",
        "--subprocesses",
        "--full-filenames",
        "--rate",
        str(rate_hz),
        "--format",
        "raw",
        "--output",
        f"{stem}.data",
        "--pid",
        str(pid),
    ]
    try:
        process = attach_program(
            command,
            f"{stem}.log",
            os.environ,
            lambda process: "Sampling process" in process.read_output(),
            _refuse,
        )
        attached = Attached("py-spy", process, _version(spy), spy, rate_hz)
    except (OSError, CannotAttach) as exc:
        raise CannotAttach(f"{why_not_perf}\nNor can py-spy: {exc}") from None
    native_pids.append(pid)
    return attached


def _version(spy: str) -> str:
    return (
        run_to_end([spy, "--version"], os.environ)
        .stdout.decode(errors="replace")
        .strip()
        .removeprefix("py-spy ")
    )


def _refuse(output: str) -> CannotAttach:
    return CannotAttach(
        _MAY_NOT_ATTACH if "ermission" in output or "ermitted" in output else first_line(output)
    )
