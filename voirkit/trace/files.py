"""The files of one process's recording: segments, names, and counts of what was dropped.

A segment has the records of one thread at a time. What one of its windows is reserved for is on the
disk before it is mapped: a full disk is an error here, not a SIGBUS in the program.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import time
from itertools import count
from time import perf_counter_ns

from voirkit.fork import job
from voirkit.trace import layout
from voirkit.trace.names import header_line, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_APPEND, _UPDATE = os.O_WRONLY | os.O_APPEND | _FLAGS, os.O_RDWR | _FLAGS
_NOT_THERE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_COUNTS = 1 << 12  # so many names' counts are added to the file of what was dropped at a time


class _Descriptor:
    """An open file. It is closed when nobody holds it any more: another thread may be about to
    write to it."""

    __slots__ = ("_close", "_stat", "device", "fd", "inode")

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self.fd, self.inode, self.device = fd, status.st_ino, status.st_dev
        # when python ends, modules are emptied before objects are
        self._stat, self._close = os.fstat, os.close

    def is_ours(self) -> bool:
        """Whether the program has not closed it; its number may stand for a file of the program's
        by now."""
        try:
            status = self._stat(self.fd)
        except OSError:
            return False
        return status.st_ino == self.inode and status.st_dev == self.device

    def __del__(self) -> None:
        if self.is_ours():
            self._close(self.fd)


class Files:
    """What a process has in the folder; it is there when this has been made.

    Raises:
        OSError: It cannot be.

    Attributes:
        stem: What the names of its files begin with, with the folder.
        names: The path of its ``.names``.
    """

    def __init__(self, folder: str, host: str, rank: int, world_size: int = 1) -> None:
        os.makedirs(folder, exist_ok=True)
        plain = f"{folder}/{_in_a_path(host)}-r{rank}-{os.getpid()}"
        for attempt in count():
            self.stem = f"{plain}.{attempt}" if attempt else plain
            self.names = f"{self.stem}.names"
            try:
                self._out: _Descriptor | None = _Descriptor(
                    os.open(self.names, _APPEND | os.O_CREAT | os.O_EXCL, 0o666)
                )
                break
            except FileExistsError:
                # of a process that had the same id, or of this one before it was
                # replaced by exec
                pass
        self._numbers = count()
        self.complete = False  # whether all that was interned before is in it
        # the arguments from before there was a file that have got their line since
        self.resolved: set[int] = set()
        self._dropped: list[Any] = []
        perf, wall = time.perf_counter_ns(), time.time_ns()
        argv = [text_of(word)[:1000] for word in getattr(sys, "argv", [])[:100]]
        self.write(
            header_line(
                {
                    "schema": layout.SCHEMA,
                    "pid": os.getpid(),
                    "ppid": os.getppid(),
                    "rank": rank,
                    "world_size": world_size,
                    "host": host,
                    "job": job(),
                    "clocks": {"perf_counter_ns": perf, "time_ns": wall},
                    "process": _process_name(argv),
                    "argv": argv,
                }
            )
        )

    def write(self, line: bytes) -> None:
        """Append a line to the names. Raises OSError: it cannot be written whole."""
        out = self._out
        if out is None:
            return
        if not out.is_ours():
            out.inode = -1  # the number may come again, for the same file
            out = _Descriptor(os.open(self.names, _APPEND))
            if self._out is not None:  # closed meanwhile
                self._out = out
        if os.write(out.fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.names)

    def segment(self) -> Segment:
        """A new one; its file is made when it grows."""
        number = next(self._numbers)
        return Segment(f"{self.stem}-{number}.seg", number)

    def count_dropped(
        self, name: int, dropped: int, make_window: Callable[[int, int, int], Any]
    ) -> None:
        """Have it in a file how many records of a name were dropped, so that it is known of a
        killed process too. Raises OSError: there is no room for such a file."""
        if self._out is None:
            return
        counts = self._dropped[-1] if self._dropped else None
        if counts is None or name >= len(counts):
            size = 8 * _COUNTS * (name // _COUNTS + 1)
            fd = os.open(f"{self.stem}.dropped", _UPDATE | os.O_CREAT, 0o666)
            try:
                reserve(
                    fd,
                    0 if counts is None else 8 * len(counts),
                    size - (0 if counts is None else 8 * len(counts)),
                )
                counts = memoryview(make_window(fd, 0, size)).cast("Q")
            finally:
                os.close(fd)
            self._dropped.append(counts)
        counts[name] = dropped

    def close(self) -> None:
        """Write no more."""
        self._out = None

    def discard(self) -> None:
        """Another thread was faster."""
        self.close()
        os.unlink(self.names)


def _in_a_path(host: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in host) or "host"


def _process_name(argv: list[str]) -> str:
    process = sys.modules.get("multiprocessing.process")
    try:
        if process is not None and process.parent_process() is not None:
            return text_of(process.current_process().name)
    except Exception:
        pass  # it is only a name
    return os.path.basename(argv[0]) if argv and argv[0] else "python"


class Segment:
    """A segment of this process. ``path``: its absolute path."""

    __slots__ = ("_file", "number", "path", "size", "window")

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = path, number
        self.size = 0  # how many of its bytes are reserved
        self._file: tuple[int, int] | None = None
        self.window = layout.GRANULE  # how large the next window should be

    def grow(self, size: int, make_window: Callable[[int, int, int], Any]) -> tuple[Any, int]:
        """Reserve and map the next window.

        Args:
            make_window: Maps a file's bytes, given its descriptor, the first byte and their number.

        Returns:
            The window, and where in it the first record goes.

        Raises:
            OSError: There is no room, the folder is gone or cannot be written to.
        """
        at = self.size
        # Opened again each time: a thousand threads would hold a thousand descriptors of the
        # program's otherwise.
        fd = os.open(self.path, _UPDATE if at else _UPDATE | os.O_CREAT | os.O_EXCL, 0o666)
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
            fd = os.open(self.path, _UPDATE)
            try:
                self._check(fd)
                if os.fstat(fd).st_size > end:
                    os.ftruncate(fd, end)
            finally:
                os.close(fd)
        except OSError:
            pass  # it has been removed, or cannot be written to; readers skip what is not used

    def _check(self, fd: int) -> None:
        status = os.fstat(fd)
        file = self._file = self._file or (status.st_dev, status.st_ino)
        if file != (status.st_dev, status.st_ino):
            # there is another in its place
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def _header(self) -> bytes:
        return struct.pack(
            layout.HEADER,
            layout.MAGIC,
            layout.SCHEMA,
            layout.RECORD_BYTES,
            os.getpid(),
            self.number,
            perf_counter_ns(),
        )


def reserve(fd: int, at: int, size: int) -> None:
    """Have the disk hold these bytes of a file. Raises OSError: it does not."""
    fallocate = getattr(os, "posix_fallocate", None)
    if fallocate is not None:
        try:
            fallocate(fd, at, size)
            return
        except OSError as exc:
            if exc.errno not in _NOT_THERE:
                raise
    # macOS, Windows and some file systems cannot: zeros that are written are there as well (1 ms
    # for 4 MiB)
    os.lseek(fd, at, os.SEEK_SET)
    zeros = memoryview(bytes(min(size, 1 << 20)))
    while size:
        size -= os.write(fd, zeros[:size])


def _write_at_0(fd: int, data: bytes) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, data)
