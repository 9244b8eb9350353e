"""A terminal for tests: a program runs on a real pseudo-terminal, and pyte shows what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte

CLEAN = {
    k: v for k, v in os.environ.items() if k not in ("DATA_FD", "VOIRFILE", "COLUMNS", "LINES", "NO_COLOR", "RANK") and not k.startswith("VOIRKIT")
}  # fmt: skip


class Terminal:
    """A program on a terminal of its own.

    Args:
        folder: Where it runs.
        command: The words of the command.
        size: Columns and lines.
        env: More environment variables.
        stdout: Where its standard output goes, instead of to the terminal.
    """

    def __init__(
        self,
        folder: Path,
        *command: str,
        size: tuple[int, int] = (80, 24),
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
    ) -> None:
        self.screen = pyte.HistoryScreen(*size, history=100_000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        self.raw = b""
        self.resize(*size, tell=False)
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=slave, stdout=slave if stdout is None else stdout, stderr=slave, start_new_session=True,
            env={**CLEAN, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "PYTHONUNBUFFERED": "", **(env or {})},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def until(self, condition: Callable[[], object], seconds: float = 180) -> None:
        """Read until something is so; fails if it never is."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self._read(0.05) or time.monotonic() > deadline:
                if condition():
                    return
                raise AssertionError(
                    "it never came; the screen:\n" + "\n".join(self.screen.display)
                )

    def until_shows(self, text: str, seconds: float = 180) -> None:
        """Read until a text is on the screen."""
        self.until(lambda: text in "\n".join(self.screen.display), seconds)

    def end(self, seconds: float = 180) -> int:
        """Read until the program has ended; its exit code."""
        deadline = time.monotonic() + seconds
        while self._read(0.05):
            if self.process.poll() is not None and not self._ready(0.0):
                break
            assert time.monotonic() < deadline, (
                "the program does not end; the screen:\n" + "\n".join(self.screen.display)
            )
        return self.process.wait(60)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def resize(self, columns: int, lines: int, tell: bool = True) -> None:
        """Change the size, as when a window is dragged."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if tell:
            self.screen.resize(lines, columns)
            self.screen.set_margins()

    def scrollback(self) -> list[str]:
        """All lines that have scrolled off and those on the screen, without blanks at their ends."""
        gone = [
            "".join(line[x].data for x in range(self.screen.columns)).rstrip()
            for line in self.screen.history.top
        ]
        lines = gone + [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def whole(self) -> bool:
        """Whether nothing keeps rows of the terminal apart."""
        margins = self.screen.margins
        return margins is None or (margins.top, margins.bottom) == (0, self.screen.lines - 1)

    def close(self) -> None:
        """Kill the program if it is still there."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _ready(self, seconds: float) -> bool:
        return bool(select.select([self._master], [], [], seconds)[0])

    def _read(self, seconds: float) -> bool:
        """Take in what was written; False once the terminal is closed on the other side."""
        if not self._ready(seconds):
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: nobody has the terminal open any more
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)
