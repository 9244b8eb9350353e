"""Programs that run beside this process without being its children, so that the script's
``os.wait``, SIGCHLD and lists of children do not show them.

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
ANYBODY = -1  # argument of `let_trace`: any process may trace this one
_SET_PTRACER = 0x59616D61
# A shell that starts the program in the background and ends; only the shell has to be waited for.
_LEAVE = 'output=$1; shift; "$@" >"$output" 2>&1 </dev/null & echo $!'


class DetachedProcess(NamedTuple):
    """A program that runs beside this process, and is not its child."""

    pid: int
    # start time in the kernel's ticks, which distinguishes the process from a later process with
    # the same pid
    start_ticks: int
    output: str  # the file with the program's output

    def has_ended(self, within_s: float) -> bool:
        """True if the process has ended, or ends within ``within_s``."""
        handle = self._handle()
        if handle is None:
            return True
        try:
            return bool(select.select([handle], [], [], within_s)[0])
        finally:
            os.close(handle)

    def interrupt(self, signal_number: signal.Signals = signal.SIGINT) -> None:
        """Send the process a signal; the default asks it to end, as Ctrl-C does."""
        handle = self._handle()
        if handle is not None:
            try:
                signal.pidfd_send_signal(handle, signal_number)
            except ProcessLookupError:
                pass  # the process has ended
            finally:
                os.close(handle)

    def _handle(self) -> int | None:
        """Open a file descriptor of the process, which the caller must close; None if the process
        has ended. It is not kept, because a script may close all descriptors that it did not
        open."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if _stat(self.pid).start_ticks == self.start_ticks:
            return handle
        os.close(handle)
        return None

    def cpu_s(self) -> float:
        """CPU time of the process in seconds, with a resolution of about 10 ms; 0 if it has
        ended."""
        now = _stat(self.pid)
        return now.ticks / os.sysconf("SC_CLK_TCK") if now.start_ticks == self.start_ticks else 0.0

    def read_output(self) -> str:
        """Return what the process has printed; empty if its file cannot be read."""
        try:
            with open(self.output, encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""


class CannotAttach(Exception):
    """A profiler or tracer cannot be attached: the first line says why, the others what to do."""


class TracedAlready(CannotAttach):
    """Another tracer is attached to the process; phases can be reported to that tracer."""


class Attached(NamedTuple):
    """A profiler or tracer that watches this process."""

    tool: str  # name of the profiler or tracer
    process: DetachedProcess
    version: str = ""  # version of the tool; empty if it has none of its own
    program: str = ""
    rate_hz: int = 0  # of a profiler: samples per second
    log: str = ""  # of a tracer: the file that it writes
    # of a tracer: how far its values can be trusted, by column
    trusted: Mapping[str, str] = MappingProxyType({})


def refusal(who: str, why: Exception, instead: str) -> str:
    """Return a warning: who failed and why, what the user can do (the further lines of the error),
    and what happens instead."""
    fault, *todo = str(why).splitlines()
    return "\n  ".join([f"{who}{fault}", *todo, instead])


def start_detached(
    command: Sequence[str], output: str, environment: Mapping[str, str]
) -> DetachedProcess:
    """Start a program that does not become a child of this process; ``output`` is a file for what
    it prints. Raises OSError: it cannot be started, or it became a child because orphaned processes
    become children of this process."""
    shell = ["/bin/sh", "-c", _LEAVE, "sh", output, *command]
    ended = run_to_end(shell, environment, stderr=subprocess.DEVNULL, start_new_session=True)
    if ended.returncode or not ended.stdout.strip().isdigit():
        raise OSError(f"{command[0]} cannot be started")
    pid = int(ended.stdout)
    stat = _stat(pid)
    process = DetachedProcess(pid, stat.start_ticks, output)
    if stat.parent == os.getpid():
        # Not SIGINT: the shell makes the program ignore it until the program sets its own handler.
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
    """Return a process that already runs beside this one; its output is not read."""
    return DetachedProcess(pid, _stat(pid).start_ticks, os.devnull)


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that ends soon, without calling the script's handler for the end of a child
    (SIGCHLD).

    Args:
        more: Arguments for ``subprocess.run``; by default, the output includes standard error.

    Raises:
        OSError: The program cannot be started.
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
        is_ready: True once the program watches this process.
        refuse: Makes an error from the program's output, if it ends or is not ready in time.
        every_s: Seconds between two calls of ``is_ready``.

    Raises:
        CannotAttach: The program cannot be started, or the error of ``refuse``.
    """
    try:
        process = start_detached(command, output, environment)
        until = time.monotonic() + _READY_S
        while not is_ready(process):
            if process.has_ended(every_s) or time.monotonic() > until:
                process.interrupt()
                raise refuse(process.read_output())
    except OSError as exc:
        # e.g. the kernel or the container has no file descriptors of processes (pidfd)
        raise CannotAttach(f"{exc}.") from None
    return process


def first_line(output: str) -> str:
    """Return the first line that a program has printed and that is not empty."""
    return next(
        (line.strip()[:200] for line in output.splitlines() if line.strip()), "it printed nothing."
    )


# Tracing of this process by another one


def let_trace(pid: int) -> None:
    """Allow process ``pid``, which need not be an ancestor, to trace this process, if the kernel
    (Yama) requires permission; 0 revokes it."""
    if not os.path.exists(YAMA):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
    except (OSError, AttributeError):
        pass  # no permission is given; the tracer itself reports what it is not allowed to do


def tracer_pid() -> int:
    """Return the pid of the process that traces this one; 0 if there is none."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("TracerPid:")), 0)
    except OSError:
        return 0


def has_proc() -> bool:
    """True if ``/proc`` shows processes; after a bare change of the root folder (``chroot``) it
    does not."""
    return os.path.exists("/proc/self/stat")


class _Stat(NamedTuple):
    parent: int = 0
    ticks: int = 0  # CPU time used, in the kernel's ticks
    start_ticks: int = 0


def _stat(pid: int) -> _Stat:
    """Read the kernel's data on a process (``/proc/PID/stat``); zeros if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            _, _, fields = file.read().rpartition(")")
        numbers = [int(field) for field in fields.split()[1:20]]
        return _Stat(numbers[0], numbers[10] + numbers[11], numbers[18])
    except (OSError, ValueError, IndexError):
        return _Stat()
