"""A lock on a file, for processes that would put the same run in order at once. It is gone when its holder is, however that ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock; wait for it as long as another process has it. The file is there only while somebody holds or awaits it.

    Raises:
        OSError: The file cannot be made.
    """
    try:
        import fcntl
    except ImportError:  # Windows: no two processes share a run there but by a user's own doing
        yield
        return
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, path):  # else it was removed by its last holder while this one waited
                try:
                    yield
                finally:
                    os.unlink(path)
                return
        finally:
            os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)
