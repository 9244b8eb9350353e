"""Which file a descriptor stands for: the program may close one of voirkit's, and its number may come to stand for a file of its own."""

from __future__ import annotations

import os


def identity(fd: int) -> tuple[int, int] | None:
    """(device, inode) of what a descriptor stands for, or None if it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
