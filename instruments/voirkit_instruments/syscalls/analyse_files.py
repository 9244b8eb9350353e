"""Which files a program reads and writes, from its calls: descriptors to paths, and the sums by file and folder in bounded memory."""

from __future__ import annotations

import os
import re
from typing import Any

from voirkit_instruments.syscalls.analyse_events import COPIES, OPENS, READS, TRANSFERS, WRITES

_MOST = 20_000  # files, or folders, that are kept apart; those with the least are then put together
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"(\d+)(?:<([^>]*)>)?")
_ESCAPED = re.compile(rb"\\(x[0-9a-f]{2}|[0-7]{1,3}|.)", re.DOTALL)
_PLAIN = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f", b"a": b"\a", b"b": b"\b"}
USED = OPENS | TRANSFERS | frozenset(["close", "dup", "dup2", "dup3", "fcntl", "mmap", "fstat", "newfstatat", "lseek", "ftruncate", "fsync",
                                      "fdatasync", "fallocate", "ioctl", "fadvise64", "close_range"])  # fmt: skip


def path_of(args: str) -> str:
    """The first string among arguments; "" without any."""
    found = _STRING.search(args)
    if found is None:
        return ""
    text = found[1]
    if "\\" in text:
        raw = _ESCAPED.sub(_unescaped, text.encode("latin-1", "replace"))
        text = raw.decode("utf-8", "replace")
    return text + (found[2] or "")


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    if code[:1] == b"x" and len(code) == 3:
        return bytes([int(code[1:], 16)])
    if code.isdigit():
        return bytes([int(code, 8) & 255])
    return _PLAIN.get(code, code)


def follow(files: dict[int, str], name: str, args: str, result: int | None) -> str | None:
    """What a call does to a process's descriptors, and the path that it is about; None if that is not known.

    Args:
        files: The paths of the process's descriptors; changed.
        name: Of the call.
        args: Its arguments.
        result: What it returned.
    """
    if name in OPENS:
        path = path_of(args)
        if result is not None and result >= 0:
            files[result] = path
        return path
    found = _DESCRIPTOR.match(args, 6 if args.startswith("AT_FDC") else 0)
    if found is None:
        return None
    descriptor = int(found[1])
    path_then = found[2] if found[2] and found[2].startswith("/") else files.get(descriptor)
    if name == "close":
        if result == 0:
            files.pop(descriptor, None)
    elif result is not None and result >= 0 and (name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in args)):
        if path_then is None:
            files.pop(result, None)
        else:
            files[result] = path_then
    elif name == "mmap":
        inner = re.search(r", (\d+)(?:<[^>]*>)?, [^,]*$", args)
        return files.get(int(inner[1])) if inner else None
    return path_then


class Sums:
    """Opens and bytes by name, in bounded memory.

    Attributes:
        rows: By name: opens, bytes read, bytes written, files (of a folder).
        rest: What was put together of those with the least.
    """

    def __init__(self, most: int = _MOST) -> None:
        self.rows: dict[str, list[int]] = {}
        self.rest = [0, 0, 0, 0]
        self._most = most

    def row(self, name: str) -> list[int]:
        """The row of a name, to be added to at once."""
        found = self.rows.get(name)
        if found is None:
            if len(self.rows) >= self._most:
                self._shrink()
            found = self.rows[name] = [0, 0, 0, 0]
        return found

    def _shrink(self) -> None:
        ordered = sorted(self.rows.items(), key=lambda item: (item[1][1] + item[1][2], item[1][0]), reverse=True)
        for _, row in ordered[self._most // 2 :]:
            self.rest = [a + b for a, b in zip(self.rest, row, strict=True)]
        self.rows = dict(ordered[: self._most // 2])

    def top(self, n: int) -> list[dict[str, Any]]:
        """The rows with the most bytes and those with the most opens, at most ``n`` of each."""
        by_bytes = sorted(self.rows.items(), key=lambda item: -(item[1][1] + item[1][2]))[:n]
        by_opens = sorted(self.rows.items(), key=lambda item: -item[1][0])[:n]
        chosen = dict([*by_bytes, *by_opens])
        return [{"path": path, "opens": row[0], "read": row[1], "written": row[2], "files": row[3]} for path, row in chosen.items()]


class Files:
    """Which files were opened, read and written."""

    def __init__(self) -> None:
        self.files, self.folders = Sums(), Sums()

    def add(self, path: str, name: str, result: int) -> None:
        """A call that succeeded, about a path.

        Args:
            path: The path.
            name: Of the call: one of ``OPENS`` or ``TRANSFERS``.
            result: Bytes, of a transfer.
        """
        at = 0 if name in OPENS else 1 if name in READS else 2 if name in WRITES or name in COPIES else None
        if at is None or not path:
            return
        amount = 1 if at == 0 else result
        row = self.files.row(path)
        folder = self.folders.row(os.path.dirname(path) or ".")
        if row == [0, 0, 0, 0]:
            folder[3] += 1
        row[3] = 1
        row[at] += amount
        folder[at] += amount
