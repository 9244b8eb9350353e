"""Helpers for work beside the running script: a process that reads the run directory, and a thread
that acts at a fixed interval.

The process serves, sends or writes what it reads. It is not a child of the program, because the
program may wait for all its children. It ends when it is told to, or when the program has ended. It
costs the program only CPU time, which is counted as overhead of the run. The thread never acts
while the program forks, and never raises an exception into the program.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

from voirkit.fork import at_fork
from voirkit_instruments.detached import DetachedProcess, process_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_QUIETLY = getattr(socket, "MSG_NOSIGNAL", 0) | getattr(socket, "MSG_DONTWAIT", 0)
# With ``python -c``, ``sys.path[0]`` is the current folder, which may contain e.g. a numpy.py of
# the user. The program below replaces this entry with the folder that contains
# voirkit_instruments.
_PYTHON = """
import os, sys
if os.fork():
    os._exit(0)
sys.path[0] = sys.argv.pop(1)
main = __import__(sys.argv.pop(1), fromlist=["_"]).main
print(os.getpid(), flush=True)
sys.exit(main(sys.argv[1:]))
"""


class RunReader:
    """A separate process, started by this one, that reads the run directory during the run.

    Args:
        module: Name of a module with ``main(words) -> exit code``. ``main`` reads lines of JSON
            from standard input until it ends, and may write lines of JSON to standard output. The
            last line that it prints on standard error is returned by ``failure``.
        words: Arguments of ``main``.
    """

    def __init__(self, module: str, *words: str) -> None:
        from subprocess import PIPE, Popen

        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")
        }
        # One thread is enough, because the process multiplies no matrices. By default numpy's
        # library would start a thread for each processor.
        environment.update(
            dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        )
        command = [sys.executable, "-c", _PYTHON, package, module, *words]
        # A socket, not a pipe: writing to a pipe whose reader has ended would kill a program that
        # has reset SIGPIPE to its default.
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._popen = Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=PIPE,
                env=environment,
                start_new_session=True,
            )
            self._popen.wait()
        self._identity = os.fstat(self._socket.fileno())
        self._lines = b""
        self._process: DetachedProcess | None = None
        self.has_ended = False

    def first_line(self) -> str:
        """Wait for the line that the process prints after its pid, and return it; empty if the
        process ends before."""
        while self._lines.count(b"\n") < 2 and not self.has_ended:
            self._receive_bytes(None)
        pid, line, *_ = *self._lines.split(b"\n"), b"", b""
        if not pid.isdigit():
            return ""
        self._process, self._lines = process_of(int(pid)), b""
        return line.decode()

    def send(self, message: object) -> None:
        """Send a message as a line of JSON; it is dropped if the process has ended or hangs."""
        if self._is_there():
            try:
                self._socket.send(json.dumps(message).encode() + b"\n", _QUIETLY)
            except OSError:
                pass  # the process has ended, or its buffer is full

    def receive(self, within_s: float = 0.0) -> list[Any]:
        """Return the messages that the process has sent since the last call, waiting up to
        ``within_s`` for the first. ``has_ended`` is True once the process has ended."""
        while self._receive_bytes(within_s):
            if self._lines.endswith(b"\n"):
                break
        *whole, self._lines = self._lines.split(b"\n")
        return [json.loads(line) for line in whole if line.startswith(b"{")]

    def _receive_bytes(self, within_s: float | None) -> bool:
        """Read the bytes that arrive within ``within_s`` (None: no limit); True if any arrived."""
        from select import select

        if (
            self.has_ended
            or not self._is_there()
            or not select([self._socket], [], [], within_s)[0]
        ):
            return False
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        self._lines += data
        self.has_ended = not data
        return bool(data)

    def _is_there(self) -> bool:
        """True if the file descriptor still belongs to this socket. A program may close file
        descriptors that it does not know, and then get the same number for a file of its own."""
        try:
            is_ours = os.path.samestat(os.fstat(self._socket.fileno()), self._identity)
        except OSError:
            is_ours = False
        self.has_ended = self.has_ended or not is_ours
        return is_ours

    def cpu_s(self) -> float:
        """CPU time of the process in seconds, with a resolution of about 10 ms; 0 if its pid is not
        known yet, or if it has ended."""
        return 0.0 if self._process is None else self._process.cpu_s()

    def end(self, within_s: float) -> list[Any]:
        """Tell the process to end, wait at most ``within_s`` for its end, and return the last
        messages that it sends. If ``has_ended`` is False afterwards, the process continues on its
        own."""
        if self._is_there():
            try:
                # ends the standard input of the process, even if forked children of the program
                # still hold the descriptor
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the process has ended
        until, last = time.monotonic() + within_s, []
        while not self.has_ended and (remaining_s := until - time.monotonic()) > 0:
            last += self.receive(remaining_s)
        if self._is_there():
            self._socket.close()
        else:
            self._socket.detach()
        if self._popen.stderr is not None and self.has_ended:
            self._popen.stderr.close()
        return last

    def failure(self) -> str:
        """Return the last line that the process printed on standard error; call it only when the
        process has ended."""
        assert self._popen.stderr is not None
        lines = self._popen.stderr.read().decode(errors="replace").strip().splitlines()
        return str(lines[-1]) if lines else "no reason is known"


# longest time that the end of a run waits for the current call of ``act``: a driver may hang
LAST_S = 5.0


class PeriodicThread:
    """A thread that calls ``act`` when it starts, at every interval, and a last time when it is
    stopped. A subclass defines ``act``.

    Args:
        name: The name of the work in warnings, and of the thread.
        interval_s: Seconds from one call to the next.
        warn: Called once, with a message, if ``act`` fails; after that ``act`` is not called again.
            Also called if the thread does not stop in time.
        consequence: What the failure means for the user, for the message: ``no more samples are
            taken``.

    Attributes:
        at_work: A lock that is held while ``act`` runs.
        cost_s: CPU time of this thread, in seconds.
    """

    def __init__(
        self, name: str, interval_s: float, warn: Callable[[str], None], consequence: str
    ) -> None:
        self._name, self._interval_s, self._warn, self._consequence = (
            name,
            interval_s,
            warn,
            consequence,
        )
        self._over, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"voirkit-{name}", daemon=True)
        self.at_work = threading.RLock()
        self.cost_s, self.failed = 0.0, False

    def act(self) -> None:
        """Do the work of one interval; a subclass defines it."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread."""
        at_fork(
            "instruments",
            before=self._before_fork,
            in_parent=self._after_fork,
            in_child=self._in_child,
        )
        self._thread.start()

    def stop(self) -> bool:
        """Stop the thread after a last call of ``act``; True if it ended within ``LAST_S``."""
        self._over.set()
        self._thread.join(LAST_S)
        self._is_over = True
        if self._thread.is_alive():
            self._warn(
                f"{self._name}: the last figures did not come within {LAST_S:.0f} s; the run ends"
                " without them."
            )
        return not self._thread.is_alive()

    def _before_fork(self) -> None:
        if not self._is_over:
            self.at_work.acquire(timeout=LAST_S)

    def _after_fork(self) -> None:
        try:
            self.at_work.release()
        except RuntimeError:
            pass  # the lock is not held: it could not be acquired before the fork

    def _in_child(self) -> None:
        self.at_work, self._is_over = threading.RLock(), True

    def _run(self) -> None:
        self._act()
        while not self._over.wait(self._interval_s):
            self._act()
        self._act()

    def _act(self) -> None:
        if self.failed:
            return
        start_s = time.thread_time()
        try:
            with self.at_work:
                self.act()
        except Exception as exc:  # whatever error the system returns, the program must continue
            self.failed = True
            self._warn(f"{self._name}: {self._consequence} ({type(exc).__name__}: {exc}).")
        self.cost_s += time.thread_time() - start_s
