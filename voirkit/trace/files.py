"""Creates and writes the files of one process's recording: segments, names, and dropped counts.

A segment receives the records of one thread at a time, through windows: parts of the file mapped
into memory. Disk space for a window is reserved before it is mapped. So a full disk is an error
here, instead of a SIGBUS in the program. ``layout`` describes the file formats.
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
_COUNTS = 1 << 12  # the ``.dropped`` file grows by this number of counts at a time


class _Descriptor:
    """An open file descriptor. It is closed when this object is no longer referenced, since another
    thread may be about to write to it."""

    __slots__ = ("_close", "_stat", "device", "fd", "inode")

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self.fd, self.inode, self.device = fd, status.st_ino, status.st_dev
        # for ``__del__``: at Python's exit, modules are cleared before objects are destroyed
        self._stat, self._close = os.fstat, os.close

    def is_ours(self) -> bool:
        """True if the descriptor still refers to our file. The program may have closed it, and its
        number may have been reused for a file of the program."""
        try:
            status = self._stat(self.fd)
        except OSError:
            return False
        return status.st_ino == self.inode and status.st_dev == self.device

    def __del__(self) -> None:
        if self.is_ours():
            self._close(self.fd)


class Files:
    """The files that this process records into. Creating this object creates the ``.names`` file.

    Args:
        folder: The folder ``trace`` of the run.
        host: The host name, which becomes part of the file names.

    Raises:
        OSError: The folder or the file cannot be created.

    Attributes:
        stem: The common first part of the paths of the files.
        names: The path of the ``.names`` file.
        complete: Whether all names interned before the file existed are in it.
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
                # the files of an earlier process with the same id, or of this process before
                # an exec
                pass
        self._numbers = count()
        self.complete = False
        # ids of arguments that were interned before the file existed, and whose line has been
        # written since
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
        """Append a line to the ``.names`` file. Raises OSError: the line cannot be written
        completely."""
        out = self._out
        if out is None:
            return
        if not out.is_ours():
            # Prevent ``__del__`` of the old object from closing the descriptor's number, which the
            # next open may get for the new descriptor.
            out.inode = -1
            out = _Descriptor(os.open(self.names, _APPEND))
            if self._out is not None:  # None: ``close`` was called meanwhile
                self._out = out
        if os.write(out.fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.names)

    def segment(self) -> Segment:
        """Return a new segment, whose file is created when it first grows."""
        number = next(self._numbers)
        return Segment(f"{self.stem}-{number}.seg", number)

    def count_dropped(
        self, name: int, dropped: int, make_window: Callable[[int, int, int], Any]
    ) -> None:
        """Store the number of dropped records of a name in the mapped ``.dropped`` file, where it
        survives if the process is killed.

        Args:
            name: The id of the name.
            dropped: The number of dropped records.
            make_window: Maps bytes of a file; see ``Segment.grow``.

        Raises:
            OSError: There is no disk space for the file.
        """
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
        """Close the ``.names`` file; later writes do nothing."""
        self._out = None

    def discard(self) -> None:
        """Close and delete the ``.names`` file, because another thread created the files first, or
        the recording has ended."""
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
        pass  # a missing name is no reason to fail
    return os.path.basename(argv[0]) if argv and argv[0] else "python"


class Segment:
    """A segment that this process writes. ``path``: its absolute path."""

    __slots__ = ("_file", "number", "path", "size", "window")

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = path, number
        self.size = 0  # number of bytes reserved so far
        self._file: tuple[int, int] | None = None
        self.window = layout.GRANULE  # preferred size of the next window in bytes

    def grow(self, size: int, make_window: Callable[[int, int, int], Any]) -> tuple[Any, int]:
        """Reserve and map the next window.

        Args:
            size: The size of the window in bytes.
            make_window: Maps bytes of a file; its arguments are the file descriptor, the offset of
                the first byte, and the number of bytes.

        Returns:
            (window, offset of the first record in the window).

        Raises:
            OSError: There is no disk space, or the folder is gone or not writable.
        """
        at = self.size
        # The file is reopened each time. If it stayed open, a program with a thousand threads would
        # have a thousand more open descriptors.
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
        """Truncate the file to its used size. Called when no window is mapped any more.

        Args:
            end: The used size in bytes.
        """
        try:
            fd = os.open(self.path, _UPDATE)
            try:
                self._check(fd)
                if os.fstat(fd).st_size > end:
                    os.ftruncate(fd, end)
            finally:
                os.close(fd)
        except OSError:
            pass  # the file is gone or not writable; readers skip the unused part anyway

    def _check(self, fd: int) -> None:
        status = os.fstat(fd)
        file = self._file = self._file or (status.st_dev, status.st_ino)
        if file != (status.st_dev, status.st_ino):
            # another file is now at this path
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
    """Reserve disk space for a range of a file. Raises OSError: there is no space, or another
    error."""
    fallocate = getattr(os, "posix_fallocate", None)
    if fallocate is not None:
        try:
            fallocate(fd, at, size)
            return
        except OSError as exc:
            if exc.errno not in _NOT_THERE:
                raise
    # macOS, Windows and some file systems have no fallocate. Writing zeros reserves space as well
    # (1 ms for 4 MiB).
    os.lseek(fd, at, os.SEEK_SET)
    zeros = memoryview(bytes(min(size, 1 << 20)))
    while size:
        size -= os.write(fd, zeros[:size])


def _write_at_0(fd: int, data: bytes) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, data)
