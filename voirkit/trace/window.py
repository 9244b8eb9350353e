"""A part of a file, mapped by python's own mmap; what the C recorder does by itself.

Before python 3.13 a mapping holds a copy of the file's descriptor and closes it by its number.  A program may have closed all
descriptors (a daemon does) and that number may be a file of its own: then the mapping is kept for good.
"""

from __future__ import annotations

import mmap
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_kept: list[Any] = []
os.register_at_fork(after_in_child=lambda kept=_kept: None) if hasattr(os, "register_at_fork") else None  # holds them until python is gone


def _close(window: mmap.mmap) -> bool:
    try:
        window.close()
    except BufferError:  # another thread writes into it right now
        _kept.append(window)
        return False
    return True


if sys.version_info >= (3, 13) and os.name == "posix":

    def Window(fd: int, at: int, size: int) -> mmap.mmap:
        """Map bytes of a file, or of memory if the descriptor is -1."""
        return mmap.mmap(fd, size, offset=at, trackfd=False) if fd >= 0 else mmap.mmap(-1, size)

    def drop(window: mmap.mmap) -> bool:
        """Unmap it; whether that was possible."""
        return _close(window)

else:

    class Window(mmap.mmap):
        """Map bytes of a file, or of memory if the descriptor is -1."""

        copy = -1
        file: tuple[int, int] | None = None
        is_ours = os.name == "nt"  # there it holds a handle, which nobody closes by number

        def __new__(cls, fd: int, at: int, size: int) -> Window:
            if fd < 0:  # it holds no descriptor
                self = super().__new__(cls, -1, size)
                self.is_ours = True
                return self
            copy = os.dup(fd)
            os.close(copy)
            self = super().__new__(cls, fd, size, offset=at)
            file = _identity(fd)
            if _identity(copy) == file:  # the mapping got the number that was free; else another thread was faster
                self.copy, self.file = copy, file
            return self

    def drop(window: Window) -> bool:
        """Unmap it; whether that was possible."""
        if not window.is_ours and (window.file is None or _identity(window.copy) != window.file):
            _kept.append(window)
            return False
        return _close(window)

    def _identity(fd: int) -> tuple[int, int] | None:
        try:
            found = os.fstat(fd)
        except OSError:
            return None
        return found.st_dev, found.st_ino
