"""The key q of a terminal that a script may read from as well.

The terminal stays in line mode, with echo: the key is made one more end of a line (``VEOL2``), so that q alone can be read at once. A
script that waits for input gets what is typed, as always: it is read only while nobody else reads, and only if it is one character.
"""

from __future__ import annotations

import os
import select
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

QUIT = "q"
LEFT_S = 0.02


class Keys:
    """Watches for the key; a context manager. Does nothing where there is no terminal, and in forked children.

    Args:
        fd: A file descriptor of the terminal.
        is_shared: Whether a script may read from it: then only what can hardly be meant for it is read.
    """

    def __init__(self, fd: int, is_shared: bool) -> None:
        self._fd, self._is_shared, self._pid = fd, is_shared, os.getpid()
        self._is_set, self._can_read = False, True
        self._keys = -1  # the same terminal, opened anew: reading from it waits for nothing, which must not hold for the script's

    def __enter__(self) -> Keys:
        self.begin()
        return self

    def begin(self) -> None:
        """From now on q can be read."""
        try:
            self._keys = os.open(os.ttyname(self._fd), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (OSError, AttributeError):  # no terminal, or none that has a name
            return
        self._set(b"\0", QUIT.encode())

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """The terminal is as it was."""
        if os.getpid() != self._pid or self._keys < 0:
            return
        if self._is_set:
            self._set(QUIT.encode(), b"\0")
        self._is_set = False
        os.close(self._keys)
        self._keys = -1

    def pressed(self, seconds: float = 0.0) -> bool:
        """Whether q was pressed; waits so long for it."""
        if not self._can_read or not self._is_set or os.getpid() != self._pid:
            if seconds:
                select.select([], [], [], seconds)
            return False
        try:
            if not select.select([self._keys], [], [], seconds)[0] or not is_in_foreground(self._fd):
                return False
            if self._is_shared and not self._is_left():
                return False
            text = os.read(self._keys, 1 if self._is_shared else 4096)
        except BlockingIOError:  # somebody else has read it
            return False
        except (OSError, ValueError):  # the terminal is gone
            self._can_read = False
            return False
        self._can_read = bool(text)  # else it is hung up
        return QUIT.encode() in text.lower()

    def _is_left(self) -> bool:
        """Whether there is one character that nobody is waiting for: who waits has it at once."""
        if _waiting(self._keys) != 1:
            return False
        time.sleep(LEFT_S)
        return _waiting(self._keys) == 1

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
