"""Lines of JSON that leave the process: into a file of the run directory, and to whoever listens on the data descriptor.

A line is written when the call returns. What cannot be written is counted and told once; the program goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from voirkit.fork import file_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


def to_json(data: Any) -> str:
    """One line of JSON, without the line break, in voir's format.

    What JSON cannot hold becomes ``{"$unserializable": repr}``, and what cannot even be represented ``{"$unrepresentable": null}``.
    """
    try:
        return json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps({"$unserializable": repr(data)})
    except Exception:
        return json.dumps({"$unrepresentable": None})


class LineFile:
    """A file of lines, one for each process: a forked child that writes gets its own.

    Args:
        path_of: The path for a process id.
        warn: Told once if a line cannot be written.

    Attributes:
        lost: How many lines could not be written.
    """

    def __init__(self, path_of: Callable[[int], str], warn: Callable[[str], None]) -> None:
        self._path_of, self._warn = path_of, warn
        self._fd = -1
        self._pid = 0
        self._file: tuple[int, int] | None = None
        self.lost = 0

    def write(self, line: str) -> None:
        """Append a line."""
        if self.lost:
            self.lost += 1
            return
        pid = os.getpid()
        try:
            if pid != self._pid:
                path = self._path_of(pid)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
                self._pid, self._file = pid, file_identity(self._fd)
            elif file_identity(self._fd) != self._file:  # the script closed it, and its number may stand for a file of its own now
                self._pid = 0
                self.write(line)
                return
            _write_all(self._fd, line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as exc:
            self.lost += 1
            self._warn(f"{self._path_of(pid)} cannot be written ({exc.strerror}); the log stream of this run ends here.")

    def close(self) -> None:
        """Close the file of this process."""
        if self._pid == os.getpid() and file_identity(self._fd) == self._file:
            os.close(self._fd)
        self._fd, self._pid = -1, 0


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # the harness made the pipe so, and is slow
            import select

            select.select([], [fd], [])


class DataDescriptor:
    """Where a harness listens: a file descriptor, or standard output or error with the data hidden in it.

    Args:
        fd: The descriptor; 1 and 2 stand for the script's output, in which lines are hidden as escape sequences.

    Only the process that opened it writes: a forked child's lines would reach the harness as its parent's.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._pid = os.getpid()
        self._file = file_identity(fd)
        self._hidden: Any = None
        if fd in (1, 2):
            from voirkit.escape import SmuggleWriter

            stream: TextIO | None = sys.stdout if fd == 1 else sys.stderr
            if stream is None:
                self._fd = None
            else:
                self._hidden = SmuggleWriter(stream)

    def write(self, line: str) -> None:
        """Send a line; nobody listening any more is no error."""
        if self._fd is None or os.getpid() != self._pid:
            return
        try:
            if self._hidden is not None:
                self._hidden.write(line + "\n")
            elif file_identity(self._fd) != self._file:
                self._fd = None  # the script closed it
            else:
                _write_all(self._fd, line.encode("utf-8", "backslashreplace") + b"\n")
        except (OSError, ValueError):
            self._fd = None

    def close(self) -> None:
        """Send what is buffered and, unless it is the script's output, close the descriptor: who reads it waits for its end."""
        fd, self._fd = self._fd, None
        if fd is None or os.getpid() != self._pid:
            return
        try:
            if self._hidden is not None:
                self._hidden.flush()
            elif file_identity(fd) == self._file:
                os.close(fd)
        except (OSError, ValueError):
            pass  # nobody listens any more


def listening() -> int | None:
    """The data descriptor of this process: ``$DATA_FD``, or 3, if it was handed down by the parent and can be written to.

    A descriptor that python opened for itself is not handed down to children, and so is told apart.
    """
    given = os.environ.get("DATA_FD", "3")
    try:
        fd = int(given)
    except ValueError:
        return None
    if fd in (1, 2):
        return fd
    try:
        if not os.get_inheritable(fd):
            return None
        import fcntl

        writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except (OSError, ImportError, OverflowError, ValueError):
        return None
    return fd if writable else None
