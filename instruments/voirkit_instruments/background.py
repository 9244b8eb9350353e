"""What goes on while the script runs, without it: a process that reads the run directory, and a
thread that acts every so many seconds.

The process serves, sends or writes what it reads. It is no child of the program, which may wait for
all its children, and ends when it is told to, or when the program is gone. What it computes costs
the program nothing but processors; how much of them is part of the run's overhead. The thread never
acts while the program forks, and never raises into it.
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
# The first place where python would look is the current folder, which may hold a numpy.py of its
# own.
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
    """Starts another process, which reads the run directory while the run goes on.

    Args:
        module: Has ``main(words) -> exit code``. It reads lines of JSON from standard input, to its
            end, and may write such lines to standard output; what it prints on standard error is
            for ``failure``.
        words: For ``main``.
    """

    def __init__(self, module: str, *words: str) -> None:
        from subprocess import PIPE, Popen

        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")
        }
        # Nothing is multiplied there: numpy's library would start a thread for each processor.
        environment.update(
            dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        )
        command = [sys.executable, "-c", _PYTHON, package, module, *words]
        # No pipe: a program that has SIGPIPE end it would be ended by a reader that has.
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
        """What it prints first, once that is there; nothing if it has ended before."""
        while self._lines.count(b"\n") < 2 and not self.has_ended:
            self._receive_bytes(None)
        pid, line, *_ = *self._lines.split(b"\n"), b"", b""
        if not pid.isdigit():
            return ""
        self._process, self._lines = process_of(int(pid)), b""
        return line.decode()

    def send(self, message: object) -> None:
        """Send it a line; none if it does not take any, since it has ended, or hangs."""
        if self._is_there():
            try:
                self._socket.send(json.dumps(message).encode() + b"\n", _QUIETLY)
            except OSError:
                pass  # it has ended, or its buffer is full

    def receive(self, within_s: float = 0.0) -> list[Any]:
        """What it has sent since the last call, and sends at most so much later; ``has_ended`` is
        true from its end on."""
        while self._receive_bytes(within_s):
            if self._lines.endswith(b"\n"):
                break
        *whole, self._lines = self._lines.split(b"\n")
        return [json.loads(line) for line in whole if line.startswith(b"{")]

    def _receive_bytes(self, within_s: float | None) -> bool:
        """Read what arrives within ``within_s`` (None: no limit); True if anything did."""
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
        """Whether the descriptor is still this one's: a program may close what it does not know,
        and get the number for a file."""
        try:
            is_ours = os.path.samestat(os.fstat(self._socket.fileno()), self._identity)
        except OSError:
            is_ours = False
        self.has_ended = self.has_ended or not is_ours
        return is_ours

    def cpu_s(self) -> float:
        """How long it has been on a processor, in steps of some 10 ms."""
        return 0.0 if self._process is None else self._process.cpu_s()

    def end(self, within_s: float) -> list[Any]:
        """Have it end, and wait so long for that; what it sends last. If ``has_ended`` is false
        then it goes on by itself."""
        if self._is_there():
            try:
                # its input ends, also where forked processes of the program hold the descriptor
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has ended
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
        """The last line that it has printed on standard error; only when it has ended."""
        assert self._popen.stderr is not None
        lines = self._popen.stderr.read().decode(errors="replace").strip().splitlines()
        return str(lines[-1]) if lines else "no reason is known"


LAST_S = 5.0  # how long the end of a run waits for what is being done: a driver may hang


class PeriodicThread:
    """Calls ``act`` at once, every interval, and a last time when it is stopped; a subclass says
    what is done.

    Args:
        name: What the user knows it by.
        interval_s: From one call to the next.
        warn: Told, once, if it fails; it is not called again then.
        consequence: What that means: ``no more samples are taken``.

    Attributes:
        at_work: Held while something is done.
        cost_s: Processor time of this thread.
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
        """What is done."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin."""
        at_fork(
            "instruments",
            before=self._before_fork,
            in_parent=self._after_fork,
            in_child=self._in_child,
        )
        self._thread.start()

    def stop(self) -> bool:
        """Act a last time, and end; whether that came in time."""
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
            pass  # it could not be had

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
        except Exception as exc:  # whatever the system shows: the program goes on
            self.failed = True
            self._warn(f"{self._name}: {self._consequence} ({type(exc).__name__}: {exc}).")
        self.cost_s += time.thread_time() - start_s
