"""The numbers in a run's log stream, read as it grows: the last value of each key, and how it came there."""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from voirkit.live.picture import Progress

NEWEST = 1 << 18  # bytes of a file that are read of what was there before the first look
REMEMBERED = 64  # values of a key


@dataclass
class Logged:
    """The values of one key of one task.

    Attributes:
        first: The first that was read; of a long run it is not the run's first.
        values: The last ones.
        n: How many have been read.
    """

    task: str
    key: str
    units: str = ""
    first: float = 0.0
    n: int = 0
    values: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class Log:
    """The log streams of a run.

    Args:
        path: The run directory; it need not be there yet.

    Attributes:
        rows: By task and key.
        progress: What was logged as ``progress=(i, n)`` or ``progress=i, total=n``, by task and description.
    """

    def __init__(self, path: str) -> None:
        self._folder = os.path.join(path, "stream")
        self._at: dict[str, int] = {}
        self.rows: dict[tuple[str, str], Logged] = {}
        self.progress: dict[tuple[str, str], tuple[float, float]] = {}

    def look(self) -> None:
        """Take in what has been logged since the last look.

        Raises:
            OSError: The folder can not be read.
        """
        try:
            names = sorted(os.listdir(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if name.endswith(".jsonl"):
                self._read(os.path.join(self._folder, name))

    def bars(self) -> list[Progress]:
        """The progress that was logged, in order of first appearance."""
        return [Progress(" ".join(word for word in key if word), *pair, None) for key, pair in self.progress.items()]

    def _read(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                at = self._at.get(path, max(size - NEWEST, 0))
                if size <= at:
                    return
                file.seek(at)
                text = file.read(size - at)
        except FileNotFoundError:
            return
        end = text.rfind(b"\n") + 1
        self._at[path] = at + end
        for line in text[:end].splitlines():
            try:
                found = json.loads(line)
            except ValueError:  # cut off where the reading began, or damaged
                continue
            if isinstance(found, dict) and "$event" not in found:
                self._take(found)

    def _take(self, event: dict[str, Any]) -> None:
        task = event.get("task")
        task = task if isinstance(task, str) else ""
        units = event.get("units")
        progress, total = event.get("progress"), event.get("total")
        if isinstance(progress, list) and len(progress) == 2:
            progress, total = progress
        if _is_number(progress) and _is_number(total):
            descr = event.get("descr")
            self.progress[task, descr if isinstance(descr, str) else ""] = progress, total
        for key, value in event.items():
            if not _is_number(value) or key[:1] in "$#" or key in ("progress", "total"):
                continue
            row = self.rows.get((task, key))
            if row is None:
                row = self.rows[task, key] = Logged(task, key, first=value)
            row.n += 1
            row.units = units if isinstance(units, str) else row.units
            row.values.append(value)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
