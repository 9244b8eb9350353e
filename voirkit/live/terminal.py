"""A terminal that a live view shares with a script: its lowest rows, kept for the view, and the key
q.

The terminal itself keeps the rows apart: its scrolling region ends above them. So nothing that the
script, its worker processes or a C library prints has to be caught, changed or delayed. Streams,
prints, `\\r` bars, `input()` and pdb are untouched, and the scrollback gets every line. The view
never hides the cursor. Checked with tmux 3.3, and with pyte 0.8 as the emulator in the tests.

The terminal stays in line mode, with echo. The key q becomes an additional end-of-line character
(``VEOL2``), so that q alone can be read at once. A script that waits for input still gets what is
typed: the view reads q only while nobody else reads, and only if q is the only character.
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

SAVE, RESTORE = "\0337", "\0338"  # save and restore position and style of the cursor
DOWN = "\033D"  # one row down in the same column; scrolls on the last row
WHOLE = "\033[r"  # makes the whole screen the scrolling region again; moves the cursor
CLEAR_BELOW = "\033[J"

# Number of frames after which the scrolling region is set again, in case something (curses,
# `reset`) has undone it.
HEAL_AFTER = 8

# Shell script that runs beside the program. If the program dies suddenly (kill -9, out of memory,
# os._exit), the script restores the terminal, which would otherwise stay divided.
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
        encoding: Encoding of the terminal; characters that it lacks become question marks.
    """

    def __init__(self, fd: int, encoding: str = "utf-8") -> None:
        # A duplicate, because the script may redirect its standard error.
        self._fd, self._encoding, self._pid = os.dup(fd), encoding, os.getpid()
        self._lock = threading.Lock()
        self._height = 0
        self._frames = 0
        self._size = (0, 0)
        self._closed = False
        self._guard = Guard(fd)

    def size(self) -> tuple[int, int]:
        """Return columns and lines; 80 x 24 if the terminal does not report its size. Raises
        OSError: the terminal is gone."""
        columns, lines = os.get_terminal_size(self._fd)
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> bool:
        """Show these lines; each must be narrower than the terminal. Returns False if they could
        not be shown now."""
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
        """Clear the rows and give them back to the script. The cursor stays where the script's
        output left it."""
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
        # A row of blanks and a carriage return go to the next line exactly if the cursor was not at
        # the beginning of a line.
        fresh_line = " " * (self.size()[0] - 1) + "\r"
        self._write(fresh_line + CLEAR_BELOW + "".join(f"{line}\033[0m\r\n" for line in lines))

    def _resized(self, size: tuple[int, int]) -> bool:
        """Store a new size; returns False if drawing should wait for the next frame.

        While a window is dragged, the reported size is late (with tmux up to 250 ms, with ssh by
        its latency). Rows kept at a wrong place would overwrite lines of the script. So no rows are
        kept until two frames in a row have found the same size.
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
        """Return the sequences that reserve ``height`` rows: scroll up if the cursor is in them,
        and end the scrolling region above them."""
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
        """Return the sequences that clear the rows and give them back."""
        if size == self._size:
            return [SAVE, WHOLE, "\033[0m", bottom(self._height - 1), CLEAR_BELOW, RESTORE]
        # After a resize the old rows may be anywhere below the cursor, wrapped or cut.
        return [SAVE, WHOLE, RESTORE, DOWN, "\033[A", SAVE, "\033[0m\033[B\r", CLEAR_BELOW, RESTORE]

    def _write(self, text: str) -> bool:
        """Write a text with one call if possible, because the kernel does not mix one write to a
        terminal with other writes. Returns False if the terminal is gone."""
        data = text.encode(self._encoding, "replace")
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # another program made the terminal non-blocking; it is full
                select.select([], [self._fd], [], 1.0)
            except OSError:  # the terminal is gone
                self._closed = True
                return False
        return True


def bottom(above: int) -> str:
    """Return the sequence that moves the cursor to the beginning of a row: ``above`` rows above the
    last row, for any size of the terminal."""
    return "\033[9999;1H" + (f"\033[{above}A" if above else "")


class Guard:
    """A process that restores the terminal when this process has died. It is not a child of this
    process, because a script may wait for any child. It has a session of its own, because Ctrl-C
    must not reach it."""

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
        """End the guard process, which is no longer needed."""
        try:
            # A script may have closed this descriptor, and the number may now belong to a file of
            # the script.
            if os.path.samestat(os.fstat(self._pipe), self._identity):
                os.write(self._pipe, b"done\n")
                os.close(self._pipe)
        except OSError:  # the script has closed the pipe, which has ended the guard
            return


QUIT = "q"
LEFT_S = 0.02


class Keys:
    """Watcher for the key q; a context manager. It does nothing without a terminal, and in forked
    children. ``fd``: a file descriptor of the terminal. ``is_shared``: True if the script may read
    from the terminal too; then only characters that are hardly meant for the script are read."""

    def __init__(self, fd: int, is_shared: bool) -> None:
        self._fd, self._is_shared, self._pid = fd, is_shared, os.getpid()
        self._is_set, self._can_read = False, True
        # Descriptor of the terminal, which is opened a second time so that reading through this
        # descriptor does not block, while the script's own reading still does.
        self._keys = -1

    def __enter__(self) -> Keys:
        self.start()
        return self

    def start(self) -> None:
        """Make q readable from now on."""
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
        """Restore the meaning of q in the terminal."""
        if os.getpid() != self._pid or self._keys < 0:
            return
        if self._is_set:
            self._set(QUIT.encode(), b"\0")
        self._is_set = False
        os.close(self._keys)
        self._keys = -1

    def pressed(self, seconds: float = 0.0) -> bool:
        """True if q was pressed; waits ``seconds`` for it."""
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
        except BlockingIOError:  # another reader has taken the character
            return False
        except (OSError, ValueError):  # the terminal is gone
            self._can_read = False
            return False
        self._can_read = bool(text)  # empty if the terminal has hung up
        return QUIT.encode() in text.lower()

    def _is_left(self) -> bool:
        """True if there is exactly one character to read and nobody waits for it: a waiting reader
        would take it at once."""
        if _waiting(self._keys) != 1:
            return False
        time.sleep(LEFT_S)
        return _waiting(self._keys) == 1

    def _set(self, before: bytes, after: bytes) -> None:
        try:
            import termios

            if not is_in_foreground(self._fd):  # setting the mode would stop this process
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
            if type(exc).__name__ != "error":  # termios.error has no other base class
                raise


def is_in_foreground(fd: int) -> bool:
    """True if this process may use a terminal. It may not while it is in the background and the
    shell has the terminal."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # not this process's controlling terminal: no job control
        return True


def _waiting(fd: int) -> int:
    """Return the number of characters that can be read without waiting."""
    import fcntl
    import termios

    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])
