"""Another process that reads the run directory while the run goes on, and serves, sends or writes what it reads.

It is no child of the program, which may wait for all its children, and ends when it is told to, or when the program is gone. What it
computes costs the program nothing but processors; how much of them is part of the run's overhead.
"""

from __future__ import annotations

import json
import os
import sys
import time

from voirkit_instruments.detached import DetachedProcess, process_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The first place where python would look is the current folder, which may hold a numpy.py of its own.
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
    """Starts such a process.

    Args:
        module: Has ``main(words) -> exit code``. It reads lines of JSON from standard input, to the line ``null`` or the end, and may
            write such lines to standard output; what it prints on standard error is for ``failure``.
        words: For ``main``.
    """

    def __init__(self, module: str, *words: str) -> None:
        from subprocess import PIPE, Popen

        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {key: value for key, value in os.environ.items() if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")}
        # Nothing is multiplied there: numpy's library would start a thread for each processor.
        environment.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
        command = [sys.executable, "-c", _PYTHON, package, module, *words]
        self._popen = Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True, bufsize=0)
        self._popen.wait()
        self._lines = b""
        self._process: DetachedProcess | None = None
        self.has_ended = False

    def first_line(self) -> str:
        """What it prints first, once that is there; nothing if it has ended before."""
        assert self._popen.stdout is not None
        pid = self._popen.stdout.readline().strip()
        if not pid.isdigit():
            return ""
        self._process = process_of(int(pid))
        return self._popen.stdout.readline().decode().strip()

    def send(self, message: object) -> None:
        """Send it a line.

        Raises:
            OSError: It has ended.
        """
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(message).encode() + b"\n")

    def receive(self, within_s: float = 0.0) -> list[Any]:
        """What it has sent since the last call, and sends at most so much later; ``has_ended`` is true from its end on."""
        from select import select

        assert self._popen.stdout is not None
        while not self.has_ended and select([self._popen.stdout], [], [], within_s)[0]:
            data = os.read(self._popen.stdout.fileno(), 1 << 16)
            self._lines += data
            self.has_ended = not data
            if data.endswith(b"\n"):
                break
        *whole, self._lines = self._lines.split(b"\n")
        return [json.loads(line) for line in whole if line.startswith(b"{")]

    def cpu_s(self) -> float:
        """How long it has been on a processor, in steps of some 10 ms."""
        return 0.0 if self._process is None else self._process.cpu_s()

    def end(self, within_s: float) -> list[Any]:
        """Have it end, and wait so long for that; what it sends last. If ``has_ended`` is false then it goes on by itself."""
        try:
            self.send(None)
        except OSError:
            pass  # it has ended
        until, last = time.monotonic() + within_s, []
        while not self.has_ended and (left := until - time.monotonic()) > 0:
            last += self.receive(left)
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            assert stream is not None
            stream.close()
        return last

    def failure(self) -> str:
        """The last line that it has printed on standard error; only when it has ended."""
        assert self._popen.stderr is not None
        lines = self._popen.stderr.read().decode(errors="replace").strip().splitlines()
        return str(lines[-1]) if lines else "no reason is known"
