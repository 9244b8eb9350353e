"""py-spy beside the program, which reads the stacks of a process that it stops for a moment.
Checked with py-spy 0.4.3."""

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
_MOST_NATIVE_HZ = 100  # a stack of C takes it some milliseconds
# Threads that wait are taken too, and files in full: a stack that does not change is written once,
# so that its end would not be seen.
_OPTIONS = ("--threads", "--full-filenames")
_MAY_NOT_ATTACH = (
    "it may not look into the process (kernel.yama.ptrace_scope, or a container without"
    " SYS_PTRACE).\nRun as root, sysctl kernel.yama.ptrace_scope=1 (as root), or docker run"
    " --cap-add SYS_PTRACE."
)
native_pids: list[int] = []  # processes that it samples for --native; there can be one tracer only


def program() -> str | None:
    """The path of py-spy; None where it is not installed."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


def attach(
    pid: int, stem: str, rate_hz: int, most_bytes: int, gil: bool = False, native: bool = False
) -> Attached:
    """Have py-spy take the stacks of a process and of those below it; when this returns it does.

    Args:
        stem: The path of the files that it writes, without their endings.
        most_bytes: What the files may take.
        gil: Only threads that hold the GIL; what it writes then has no times.
        native: The frames of C too.

    Raises:
        CannotAttach: With what to do.
    """
    spy = program()
    if spy is None:
        raise CannotAttach("py-spy is not installed.\nInstall it: pip install 'voirkit[flame]'.")
    # It stops the process for each sample. It can do without (--nonblocking), but then stacks are
    # put together from parts of several: of functions that last some microseconds 9 to 54 % of them
    # were such as never are.
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
    let_trace(ANYBODY)  # it is no ancestor of this process; yama asks for that, as long as it runs
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
    """Have py-spy sample the C functions of a process and its children, where perf cannot; when
    this returns it does.

    Args:
        stem: The path of the files that it writes, without their endings.
        rate_hz: Samples a second; at most 100 are taken.
        why_not_perf: Why perf does not.

    Raises:
        CannotAttach: It cannot either.
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
