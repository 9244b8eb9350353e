"""Runs a program beside this one that is no child of it: the script's ``os.wait``, SIGCHLD and lists of children know nothing of it.

Linux only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

_ENDS_S = 10.0
# A shell that leaves the program behind and ends; who began it waits for the shell alone.
_LEAVE = 'said=$1; shift; "$@" >"$said" 2>&1 </dev/null & echo $!'


class Beside(NamedTuple):
    """A program that runs beside this one.

    Attributes:
        pid: Its id.
        began: When it began, in the kernel's ticks: another process that gets its number is not mistaken for it.
        said: The file with what it says.
    """

    pid: int
    began: int
    said: str

    def ended(self, within_s: float) -> bool:
        """Whether it has ended, or does so in that time."""
        handle = self._handle()
        if handle is None:
            return True
        try:
            return bool(select.select([handle], [], [], within_s)[0])
        finally:
            os.close(handle)

    def interrupt(self, by: signal.Signals = signal.SIGINT) -> None:
        """Ask it to end, as Ctrl-C does."""
        handle = self._handle()
        if handle is not None:
            try:
                signal.pidfd_send_signal(handle, by)
            except ProcessLookupError:
                pass  # it has ended
            finally:
                os.close(handle)

    def _handle(self) -> int | None:
        """A file descriptor of the process, to be closed; None if it has ended. Not kept: a script may close all that it did not open."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if _stat(self.pid).began == self.began:
            return handle
        os.close(handle)
        return None

    def took_s(self) -> float:
        """How long it has been on a processor, in steps of some 10 ms."""
        now = _stat(self.pid)
        return now.ticks / os.sysconf("SC_CLK_TCK") if now.began == self.began else 0.0

    def words(self) -> str:
        """What it said."""
        try:
            with open(self.said, encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""


class CanNotSample(Exception):
    """Why not, and on lines of their own what to do."""


def refusal(who: str, why: Exception, then: str) -> str:
    """A warning: who can not, what to do (the further lines of the error), and what happens instead."""
    what, *todo = str(why).splitlines()
    return "\n  ".join([f"{who}{what}", *todo, then])


class Sampling(NamedTuple):
    """A profiler that samples.

    Attributes:
        tool: ``perf`` or ``py-spy``.
        beside: Its process.
        rate_hz: Samples a second.
        version: Of the profiler.
        program: Its path.
    """

    tool: str
    beside: Beside
    rate_hz: int
    version: str
    program: str


def run_beside(command: Sequence[str], said: str, environment: Mapping[str, str]) -> Beside:
    """Start a program.

    Args:
        command: Its words.
        said: A file for what it says.
        environment: Its variables.

    Raises:
        OSError: It can not be started, or would be a child of this process all the same: one that orphans come to.
    """
    done = without_handler(lambda: subprocess.run(
        ["/bin/sh", "-c", _LEAVE, "sh", said, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True, env=dict(environment), check=False,
    ))  # fmt: skip
    if done.returncode or not done.stdout.strip().isdigit():
        raise OSError(f"{command[0]} can not be started")
    pid = int(done.stdout)
    begun = _stat(pid)
    beside = Beside(pid, begun.began, said)
    if begun.parent == os.getpid():
        beside.interrupt(signal.SIGTERM)  # the shell has it ignore SIGINT until it sets a handler of its own
        if not beside.ended(_ENDS_S):
            beside.interrupt(signal.SIGKILL)
        os.waitpid(pid, 0)
        raise OSError(
            "orphaned processes come to this one (it is process 1, or a subreaper), so that the script would see it as a child.\n"
            "In a container, have another process be the first: docker run --init"
        )
    return beside


def without_handler(do: Callable[[], subprocess.CompletedProcess[bytes]]) -> subprocess.CompletedProcess[bytes]:
    """Do something that waits for a child while no handler of the program's is told of children."""
    handler = signal.getsignal(signal.SIGCHLD)
    try:
        if callable(handler):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except ValueError:  # this is not the main thread
        return do()
    try:
        return do()
    finally:
        if callable(handler):
            signal.signal(signal.SIGCHLD, handler)


class _Stat(NamedTuple):
    parent: int = 0
    ticks: int = 0  # that it has been on a processor
    began: int = 0


def _stat(pid: int) -> _Stat:
    """What the kernel says of a process; zeros of one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return _Stat(int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return _Stat()
