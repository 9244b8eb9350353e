"""The file of records of one thread at a time: how it is made, how it grows, how it is cut to size.

What a window is reserved for is on the disk before it is mapped: a full disk is an error here, not a SIGBUS in the program.
"""

from __future__ import annotations

import errno
import os
import struct
from time import perf_counter_ns

from voirkit.trace import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_NOT_THERE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Segment:
    """A segment of this process.

    Attributes:
        path: Its absolute path.
        size: How many of its bytes are reserved.
        window: How large the next window should be.
    """

    __slots__ = ("_file", "number", "path", "size", "window")

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = path, number
        self.size = 0
        self._file: tuple[int, int] | None = None
        self.window = layout.GRANULE

    def grow(self, size: int, make_window: Callable[[int, int, int], Any]) -> tuple[Any, int]:
        """Reserve and map the next window.

        Args:
            size: Its bytes.
            make_window: Maps a file's bytes, given its descriptor, the first byte and their number.

        Returns:
            The window, and where in it the first record goes.

        Raises:
            OSError: There is no room, the folder is gone or cannot be written to.
        """
        at = self.size
        # Opened anew each time: a thousand threads would hold a thousand descriptors of the program's otherwise.
        fd = os.open(self.path, _FLAGS if at else _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            self._check(fd)
            reserve(fd, at, size)
            if not at:
                _write_at_0(fd, self._header())
            window = make_window(fd, at, size)
        finally:
            os.close(fd)
        self.size = at + size
        self.window = min(2 * max(size, self.window), layout.LARGEST_WINDOW)
        return window, 0 if at else layout.HEADER_BYTES

    def cut(self, end: int) -> None:
        """Give back what is reserved and not used, when nothing is mapped any more."""
        try:
            fd = os.open(self.path, _FLAGS)
            try:
                self._check(fd)
                if os.fstat(fd).st_size > end:
                    os.ftruncate(fd, end)
            finally:
                os.close(fd)
        except OSError:
            pass  # it has been removed, or cannot be written to; readers skip what is not used

    def _check(self, fd: int) -> None:
        found = os.fstat(fd)
        file = self._file = self._file or (found.st_dev, found.st_ino)
        if file != (found.st_dev, found.st_ino):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)  # there is another in its place

    def _header(self) -> bytes:
        return struct.pack(layout.HEADER, layout.MAGIC, layout.SCHEMA, layout.RECORD_BYTES, os.getpid(), self.number, perf_counter_ns())


def reserve(fd: int, at: int, size: int) -> None:
    """Have the disk hold these bytes of a file.

    Raises:
        OSError: It does not.
    """
    fallocate = getattr(os, "posix_fallocate", None)
    if fallocate is not None:
        try:
            fallocate(fd, at, size)
            return
        except OSError as exc:
            if exc.errno not in _NOT_THERE:
                raise
    # macOS, Windows and some file systems cannot: zeros that are written are there as well (1 ms for 4 MiB)
    os.lseek(fd, at, os.SEEK_SET)
    zeros = memoryview(bytes(min(size, 1 << 20)))
    while size:
        size -= os.write(fd, zeros[:size])


def _write_at_0(fd: int, data: bytes) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, data)
