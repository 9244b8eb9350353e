"""A terminal that a live view shares with a script: its lowest rows, kept for the view, and the key
q.

The terminal itself keeps the rows apart (its scrolling region ends above them), so nothing that the
script, its worker processes or a C library prints has to be caught, changed or delayed: streams,
prints, `\\r` bars, `input()` and pdb are untouched, and the scrollback gets every line. Checked
with tmux 3.3, and with pyte 0.8 as the emulator in the tests. Never hides the cursor.

It stays in line mode, with echo: q is made one more end of a line (``VEOL2``), so that q alone can
be read at once. A script that waits for
input gets what is typed, as always: q is read only while nobody else reads, and only if it is one
character.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

SAVE, RESTORE = "\0337", "\0338"  # position and style of the cursor
DOWN = "\033D"  # one row down in the same column; scrolls on the last row
WHOLE = "\033[r"  # the scrolling region is the whole screen again; moves the cursor
CLEAR_BELOW = "\033[J"

# Frames after which the scrolling region is set again, in case that something (curses, `reset`) has
# undone it.
HEAL_AFTER = 8

# Runs beside the program: if that dies without a word (kill -9, out of memory, os._exit), the
# terminal would stay divided.
GUARD = r"""exec 3<&0 4<&1 </dev/null
( read -r line <&3
[ "$line" = done ] && exit
printf '\0337\033[r\0338\033[J'
stty -a <&4 | grep -q 'eol2 = q' && stty eol2 undef <&4 ) &"""


class BottomRows:
    """The view's rows at the bottom of a terminal. Safe to use from several threads; does nothing
    in forked children.

    Args:
        fd: A file descriptor of the terminal.
        encoding: The terminal's; what it cannot show becomes a question mark.
    """

    def __init__(self, fd: int, encoding: str = "utf-8") -> None:
        # A descriptor of its own: the script may well point its standard error somewhere else.
        self._fd, self._encoding, self._pid = os.dup(fd), encoding, os.getpid()
        self._lock = threading.Lock()
        self._height = 0
        self._frames = 0
        self._size = (0, 0)
        self._closed = False
        self._guard = Guard(fd)

    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 x 24 if the terminal does not know. OSError once the terminal is
        gone."""
        columns, lines = os.get_terminal_size(self._fd)
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> bool:
        """Show these lines; each must be narrower than the terminal. False if they could not be
        shown, now."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self._closed or not is_in_foreground(self._fd):
                return False
            try:
                size = self.size()
            except OSError:
                return False
            if size != self._size:
                return self._resized(size) and self._show(lines)
            return self._show(lines)

    def close(self) -> None:
        """Give the rows back, blank. The cursor stays where the script's output left it."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._height:
                    self._write("".join(self._blank(self.size())))
            except OSError:
                return
            finally:
                self._guard.dismiss()

    def leave(self, lines: Sequence[str]) -> None:
        """Print lines as ordinary output from where the cursor is, on lines of their own; only
        after ``close``."""
        if os.getpid() != self._pid or not lines or not is_in_foreground(self._fd):
            return
        # A row of blanks and a return: goes to the next line exactly if the cursor was not at the
        # beginning of one.
        fresh_line = " " * (self.size()[0] - 1) + "\r"
        self._write(fresh_line + CLEAR_BELOW + "".join(f"{line}\033[0m\r\n" for line in lines))

    def _resized(self, size: tuple[int, int]) -> bool:
        """Take note of a new size; False if drawing had better wait for the next frame.

        While a window is dragged the size that we know is late (tmux tells it up to 250 ms after,
        ssh by its latency), and rows kept at the wrong place would cost the script's lines. So
        nothing is kept until the size has been the same twice.
        """
        first = self._size == (0, 0)
        if self._height:
            self._write("".join(self._blank(size)))
        self._size, self._height = size, 0
        return first

    def _show(self, lines: Sequence[str]) -> bool:
        height = max(len(lines), self._height)
        if not 0 < height <= self._size[1] - 2:  # nothing to show, or no room for it
            return False
        burst = []
        if height != self._height or self._frames % HEAL_AFTER == 0:
            burst += self._make_room(height)
        self._height = height
        self._frames += 1
        burst += [SAVE, "\033[0m"]
        for above, line in zip(
            range(height - 1, -1, -1), [""] * (height - len(lines)) + list(lines), strict=True
        ):
            burst.append(f"{bottom(above)}\033[2K{line}\033[0m")
        burst.append(RESTORE)
        return self._write("".join(burst))

    def _make_room(self, height: int) -> list[str]:
        """Keep so many rows: scroll up if the cursor stands in them, and end the scrolling region
        above them."""
        whole = (
            [SAVE, WHOLE, RESTORE]
            if height == self._height or not self._height
            else self._blank(self._size)
        )
        return [
            *whole,
            DOWN * height,
            f"\033[{height}A",
            SAVE,
            f"\033[1;{self._size[1] - height}r",
            RESTORE,
        ]

    def _blank(self, size: tuple[int, int]) -> list[str]:
        """Give the rows back, cleared."""
        if size == self._size:
            return [SAVE, WHOLE, "\033[0m", bottom(self._height - 1), CLEAR_BELOW, RESTORE]
        # After a resize the old rows may be anywhere below the cursor, wrapped or cut.
        return [SAVE, WHOLE, RESTORE, DOWN, "\033[A", SAVE, "\033[0m\033[B\r", CLEAR_BELOW, RESTORE]

    def _write(self, text: str) -> bool:
        """Write all in one go: the kernel does not mix one write to a terminal with those of
        others."""
        data = text.encode(self._encoding, "replace")
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # somebody made the terminal non-blocking, and it is full
                select.select([], [self._fd], [], 1.0)
            except OSError:  # the terminal is gone
                self._closed = True
                return False
        return True


def bottom(above: int) -> str:
    """To the beginning of the row that is so many rows above the last one, wherever that is."""
    return "\033[9999;1H" + (f"\033[{above}A" if above else "")


class Guard:
    """The process that undivides the terminal when this one is gone. It is nobody's child (a script
    that waits for any child must not meet it) and in a session of its own (Ctrl-C is not for it).
    """

    def __init__(self, terminal: int) -> None:
        read_end, self._pipe = os.pipe()
        try:
            self._identity = os.fstat(self._pipe)
            subprocess.run(
                ["/bin/sh", "-c", GUARD],
                stdin=read_end,
                stdout=terminal,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=False,
            )
        except OSError:  # no shell: then only a sudden death leaves the terminal divided
            pass
        finally:
            os.close(read_end)

    def dismiss(self) -> None:
        """Tell it that all is well."""
        try:
            # A script may close descriptors that it does not know and get their numbers for files
            # of its own.
            if os.path.samestat(os.fstat(self._pipe), self._identity):
                os.write(self._pipe, b"done\n")
                os.close(self._pipe)
        except OSError:  # closed by the script: the guard has ended long ago
            return


QUIT = "q"
LEFT_S = 0.02


class Keys:
    """Watches for the key; a context manager. Does nothing where there is no terminal, and in
    forked children. ``fd``: a file descriptor of the terminal; ``is_shared``: whether a script may
    read from it: then only what can hardly be meant for it is read."""

    def __init__(self, fd: int, is_shared: bool) -> None:
        self._fd, self._is_shared, self._pid = fd, is_shared, os.getpid()
        self._is_set, self._can_read = False, True
        # the same terminal, opened anew: reading from it waits for nothing, which must not hold for
        # the script's
        self._keys = -1

    def __enter__(self) -> Keys:
        self.start()
        return self

    def start(self) -> None:
        """From now on q can be read."""
        try:
            self._keys = os.open(
                os.ttyname(self._fd), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
        except (OSError, AttributeError):  # no terminal, or none that has a name
            return
        self._set(b"\0", QUIT.encode())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
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
            if not select.select([self._keys], [], [], seconds)[0] or not is_in_foreground(
                self._fd
            ):
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
    """Whether this process may use a terminal: not when it was sent to the background, where the
    shell has it."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # not our controlling terminal, hence without job control
        return True


def _waiting(fd: int) -> int:
    """How many characters can be read."""
    import fcntl
    import termios

    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])
