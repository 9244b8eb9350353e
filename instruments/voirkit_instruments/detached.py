"""Runs a program beside this one that is not a child of it: the script's ``os.wait``, SIGCHLD and
lists of children know nothing of it.

Linux only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

_ENDS_S, _READY_S = 10.0, 30.0
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
ANYBODY = -1  # for `let_trace`
_SET_PTRACER = 0x59616D61
# A shell that leaves the program behind and ends; its parent waits for the shell alone.
_LEAVE = 'output=$1; shift; "$@" >"$output" 2>&1 </dev/null & echo $!'


class DetachedProcess(NamedTuple):
    """A program that runs beside this one."""

    pid: int
    # when it began, in the kernel's ticks: another process that gets its number is not mistaken for
    # it
    start_ticks: int
    output: str  # the file with what it prints

    def has_ended(self, within_s: float) -> bool:
        """Whether it has ended, or does so in that time."""
        handle = self._handle()
        if handle is None:
            return True
        try:
            return bool(select.select([handle], [], [], within_s)[0])
        finally:
            os.close(handle)

    def interrupt(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """Ask it to end, as Ctrl-C does."""
        handle = self._handle()
        if handle is not None:
            try:
                signal.pidfd_send_signal(handle, signal_number)
            except ProcessLookupError:
                pass  # it has ended
            finally:
                os.close(handle)

    def _handle(self) -> int | None:
        """A file descriptor of the process, to be closed; None if it has ended. Not kept: a script
        may close all that it did not open."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if _stat(self.pid).start_ticks == self.start_ticks:
            return handle
        os.close(handle)
        return None

    def cpu_s(self) -> float:
        """How long it has been on a processor, in steps of some 10 ms."""
        now = _stat(self.pid)
        return now.ticks / os.sysconf("SC_CLK_TCK") if now.start_ticks == self.start_ticks else 0.0

    def read_output(self) -> str:
        """What it has printed."""
        try:
            with open(self.output, encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""


class CannotAttach(Exception):
    """Why not, and on lines of their own what to do."""


class TracedAlready(CannotAttach):
    """Another tracer has the process: phases can be reported to it."""


class Attached(NamedTuple):
    """A profiler or tracer that watches this process."""

    tool: str  # its name
    process: DetachedProcess
    version: str = ""  # of the tool, where it has one of its own
    program: str = ""
    rate_hz: int = 0  # of a profiler: samples a second
    log: str = ""  # of a tracer: what it writes
    # of a tracer: by column, how far its figures can be trusted
    trusted: Mapping[str, str] = MappingProxyType({})


def refusal(who: str, why: Exception, instead: str) -> str:
    """A warning: who cannot, what to do (the further lines of the error), and what happens
    instead."""
    fault, *todo = str(why).splitlines()
    return "\n  ".join([f"{who}{fault}", *todo, instead])


def start_detached(
    command: Sequence[str], output: str, environment: Mapping[str, str]
) -> DetachedProcess:
    """Start a program. ``output``: a file for what it prints. Raises OSError: it cannot be started,
    or would be a child of this process all the same: one that orphans come to."""
    shell = ["/bin/sh", "-c", _LEAVE, "sh", output, *command]
    ended = run_to_end(shell, environment, stderr=subprocess.DEVNULL, start_new_session=True)
    if ended.returncode or not ended.stdout.strip().isdigit():
        raise OSError(f"{command[0]} cannot be started")
    pid = int(ended.stdout)
    stat = _stat(pid)
    process = DetachedProcess(pid, stat.start_ticks, output)
    if stat.parent == os.getpid():
        # the shell has it ignore SIGINT until it sets a handler of its own
        process.interrupt(signal.SIGTERM)
        if not process.has_ended(_ENDS_S):
            process.interrupt(signal.SIGKILL)
        os.waitpid(pid, 0)
        raise OSError(
            "orphaned processes come to this one (it is process 1, or a subreaper), so that the"
            " script would see it as a child.\nIn a container, have another process be the first:"
            " docker run --init"
        )
    return process


def process_of(pid: int) -> DetachedProcess:
    """A process that runs beside this one already, whose output is nobody's."""
    return DetachedProcess(pid, _stat(pid).start_ticks, os.devnull)


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that ends soon, while no handler of the script's is called for the end of a
    child.

    Args:
        more: For ``subprocess.run``; without, errors are in the output too.

    Raises:
        OSError: It cannot be started.
    """
    streams = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        **more,
    }
    handler = signal.getsignal(signal.SIGCHLD)
    is_ours = callable(handler) and threading.current_thread() is threading.main_thread()
    try:
        if is_ours:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return subprocess.run(command, env=dict(environment), check=False, **streams)
    finally:
        if is_ours:
            signal.signal(signal.SIGCHLD, handler)


def attach_program(
    command: Sequence[str],
    output: str,
    environment: Mapping[str, str],
    is_ready: Callable[[DetachedProcess], bool],
    refuse: Callable[[str], CannotAttach],
    every_s: float = 0.01,
) -> DetachedProcess:
    """Start a program that watches this process, and wait until it does; the arguments not named
    here are as for ``start_detached``.

    Args:
        is_ready: Whether it does.
        refuse: Makes an error of what it has printed, if it ended or does not begin.
        every_s: How often that is looked at.

    Raises:
        CannotAttach: It cannot be started, or what ``refuse`` makes.
    """
    try:
        process = start_detached(command, output, environment)
        until = time.monotonic() + _READY_S
        while not is_ready(process):
            if process.has_ended(every_s) or time.monotonic() > until:
                process.interrupt()
                raise refuse(process.read_output())
    except OSError as exc:
        # also of a kernel, or of a container, that gives no descriptors of processes
        raise CannotAttach(f"{exc}.") from None
    return process


def first_line(output: str) -> str:
    """The first line of what a program has printed."""
    return next(
        (line.strip()[:200] for line in output.splitlines() if line.strip()), "it printed nothing."
    )


# being traced


def let_trace(pid: int) -> None:
    """Let another process than an ancestor trace this one, where the kernel (Yama) requires that;
    0: none any more."""
    if not os.path.exists(YAMA):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
    except (OSError, AttributeError):
        pass  # the tracer is about to report what it may not do


def tracer_pid() -> int:
    """The process that traces this one; 0 without any."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("TracerPid:")), 0)
    except OSError:
        return 0


def has_proc() -> bool:
    """Whether processes can be seen here (``/proc``), as they cannot where somebody has only
    changed the root."""
    return os.path.exists("/proc/self/stat")


class _Stat(NamedTuple):
    parent: int = 0
    ticks: int = 0  # that it has been on a processor
    start_ticks: int = 0


def _stat(pid: int) -> _Stat:
    """What the kernel says of a process; zeros of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            _, _, fields = file.read().rpartition(")")
        numbers = [int(field) for field in fields.split()[1:20]]
        return _Stat(numbers[0], numbers[10] + numbers[11], numbers[18])
    except (OSError, ValueError, IndexError):
        return _Stat()
