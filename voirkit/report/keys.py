"""The key q of a terminal that a script may read from as well.

The terminal stays in line mode, with echo: the key is made one more end of a line (``VEOL2``), so that q alone can be read at once. A
script that waits for input gets what is typed, as always: it is read only while nobody else reads, and only if it is one character.
"""

from __future__ import annotations

import os
import select
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

QUIT = "q"


class Keys:
    """Watches for the key; a context manager. Does nothing where there is no terminal, and in forked children.

    Args:
        fd: A file descriptor of the terminal.
        is_shared: Whether a script may read from it: then only what can hardly be meant for it is read.
    """

    def __init__(self, fd: int, is_shared: bool) -> None:
        self._fd, self._is_shared, self._pid = fd, is_shared, os.getpid()
        self._is_set = False

    def __enter__(self) -> Keys:
        self._set(b"\0", QUIT.encode())
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """The terminal is as it was."""
        if self._is_set and os.getpid() == self._pid:
            self._set(QUIT.encode(), b"\0")
            self._is_set = False

    def pressed(self, seconds: float = 0.0) -> bool:
        """Whether q was pressed; waits so long for it."""
        if not self._is_set or os.getpid() != self._pid:
            if seconds:
                select.select([], [], [], seconds)
            return False
        try:
            if not select.select([self._fd], [], [], seconds)[0] or not is_in_foreground(self._fd):
                return False
            if self._is_shared and _waiting(self._fd) != 1:
                return False
            text = os.read(self._fd, 1 if self._is_shared else 4096)
        except (OSError, ValueError):  # the terminal is gone
            self._is_set = False
            return False
        if not text:  # the end of input: Ctrl-D, or a terminal that was hung up
            self._is_set = self._is_shared
        return QUIT.encode() in text.lower()

    def _set(self, before: bytes, after: bytes) -> None:
        try:
            import termios

            if not is_in_foreground(self._fd):  # setting it would stop this process
                return
            modes: list[Any] = termios.tcgetattr(self._fd)
            lines = modes[3] & termios.ICANON
            if lines and modes[6][termios.VEOL2] == before:
                modes[6][termios.VEOL2] = after
                termios.tcsetattr(self._fd, termios.TCSANOW, modes)
                self._is_set = True
        except (ImportError, OSError, ValueError):
            return  # no terminal
        except Exception as exc:
            if type(exc).__name__ != "error":  # termios.error derives from nothing else
                raise


def is_in_foreground(fd: int) -> bool:
    """Whether this process may use a terminal: not when it was sent to the background, where the shell has it."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # not our controlling terminal, hence without job control
        return True


def _waiting(fd: int) -> int:
    """How many characters can be read."""
    import fcntl
    import termios

    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])
