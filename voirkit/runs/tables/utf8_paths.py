"""Paths for DuckDB, which takes names in UTF-8 alone; a folder of another encoding is reached through a descriptor of it (Linux)."""

from __future__ import annotations

import os
from functools import cache


def reachable(path: str) -> str:
    """A path in UTF-8 by which the same file is found, whatever its folder is called; its own name is UTF-8.

    Raises:
        OSError: The folder is not there.
    """
    try:
        path.encode()
        return path
    except UnicodeEncodeError:  # python has odd bytes as halves of surrogate pairs
        folder, name = os.path.split(path)
        while True:
            try:
                folder_there = os.stat(folder)
                break
            except FileNotFoundError:  # it is about to be made
                folder, last = os.path.split(folder)
                name = os.path.join(last, name)
        return os.path.join("/proc/self/fd", str(_descriptor(folder, folder_there.st_dev, folder_there.st_ino)), name)


@cache
def _descriptor(folder: str, device: int, inode: int) -> int:
    """One for each folder, open as long as the process lives: DuckDB opens files whenever it reads them."""
    return os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0))
