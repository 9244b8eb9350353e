"""Which files a program reads and writes, from its calls: descriptors to paths, and the sums by file and folder in bounded memory."""

from __future__ import annotations

import os
import re
from typing import Any

from voirkit_instruments.syscalls.analyse_events import COPIES, OPENS, READS, TRANSFERS, WRITES

_MOST = 20_000  # files, or folders; beyond that those with the fewest bytes are dropped
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"(\d+)(?:<([^>]*)>)?")
_MAPPED_DESCRIPTOR = re.compile(r", (\d+)(?:<[^>]*>)?, [^,]*$")
DESCRIPTOR_CALLS = OPENS | TRANSFERS | frozenset([
    "close", "close_range", "dup", "dup2", "dup3", "fcntl", "mmap", "fstat", "newfstatat", "lseek", "ftruncate", "fsync", "fdatasync",
    "fallocate", "ioctl", "fadvise64",
])  # fmt: skip


def first_path(args: str) -> str:
    """The first string among arguments, without strace's escapes; "" without any."""
    match = _STRING.search(args)
    if match is None:
        return ""
    text = match[1]
    if "\\" in text:
        unescaped = text.encode("latin-1", "replace").decode("unicode_escape", "replace")
        text = unescaped.encode("latin-1", "replace").decode("utf-8", "replace")
    return text + (match[2] or "")


def follow_descriptors(files: dict[int, str], name: str, args: str, result: int | None) -> str | None:
    """What a call does to a process's descriptors, and the path that it is about; None if that is unknown.

    Args:
        files: The paths of the process's descriptors; changed.
        name: Of the call.
        args: Its arguments.
        result: What it returned.
    """
    if name in OPENS:
        path = first_path(args)
        if result is not None and result >= 0:
            files[result] = path
        return path
    match = _DESCRIPTOR.match(args, 6 if args.startswith("AT_FDC") else 0)
    if match is None:
        return None
    descriptor = int(match[1])
    open_path = match[2] if match[2] and match[2].startswith("/") else files.get(descriptor)
    if name == "close":
        if result == 0:
            files.pop(descriptor, None)
    elif result is not None and result >= 0 and (name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in args)):
        if open_path is None:
            files.pop(result, None)
        else:
            files[result] = open_path
    elif name == "mmap":
        mapped = _MAPPED_DESCRIPTOR.search(args)
        return files.get(int(mapped[1])) if mapped else None
    return open_path


class PathTotals(dict[str, list[int]]):
    """By path: opens, bytes read, bytes written, files (of a folder)."""

    def __missing__(self, path: str) -> list[int]:
        if len(self) >= _MOST:
            for unused in sorted(self, key=lambda path: (self[path][1] + self[path][2], self[path][0]))[: _MOST // 2]:
                del self[unused]
        row = self[path] = [0, 0, 0, 0]
        return row

    def top(self, n: int) -> list[dict[str, Any]]:
        """The rows with the most bytes and those with the most opens, at most ``n`` of each."""
        by_bytes = sorted(self.items(), key=lambda item: -(item[1][1] + item[1][2]))[:n]
        by_opens = sorted(self.items(), key=lambda item: -item[1][0])[:n]
        return [
            dict(zip(("path", "opens", "read", "written", "files"), (path, *row), strict=True))
            for path, row in dict(by_bytes + by_opens).items()
        ]


class FileTotals:
    """Which files were opened, read and written."""

    def __init__(self) -> None:
        self.files, self.folders = PathTotals(), PathTotals()

    def add(self, path: str, name: str, result: int) -> None:
        """Add a call that succeeded, about a path.

        Args:
            path: The path.
            name: Of the call: one of ``OPENS`` or ``TRANSFERS``.
            result: Bytes, of a transfer.
        """
        column = 0 if name in OPENS else 1 if name in READS else 2 if name in WRITES or name in COPIES else None
        if column is None or not path:
            return
        amount = 1 if column == 0 else result
        row, folder = self.files[path], self.folders[os.path.dirname(path) or "."]
        if not row[3]:
            row[3] = 1
            folder[3] += 1
        row[column] += amount
        folder[column] += amount
