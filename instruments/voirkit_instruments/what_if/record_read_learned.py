"""Which files each sample of a data set opens: learned where a loader reads it, from Python's audit event ``open``.

Shared by the main process and the workers that are forked from it, over epochs: each appends what it has seen to a file of its own, and
looks at the others' when it meets a sample that it does not know. What libraries open by themselves in C is not seen.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

MOST_SAMPLES = 200_000  # that are remembered
_SHARED = 4  # a file that more samples open holds many of them: to read it all for one would be no help
_TRIED = 1000  # samples that open nothing, after which nothing is expected any more
_EVERY_S = 0.5  # between looks at what others have learned
_NO_SAMPLES = (".py", ".pyc", ".so")
_NO_FILES = ("/proc/", "/dev/", "/sys/")


class Watched(list):  # type: ignore[type-arg]
    """A batch's indices, which says which of them is being read."""

    def __init__(self, indices: list[Any], at: Callable[[Any], None]) -> None:
        super().__init__(indices)
        self._at = at

    def __iter__(self) -> Iterator[Any]:
        for index in super().__iter__():
            self._at(index)
            yield index

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (self[:],)  # a copy, here or in another process, watches nothing


class _Here(threading.local):
    index: int | str | None = None
    paths: dict[int | str, list[str]] | None = None


class Learned:
    """What is known. In each process one thread learns at a time."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="voirkit-read-")
        self._known: dict[tuple[int, int | str], list[str]] = {}
        self._openers: dict[str, int] = {}
        self._read: dict[str, int] = {}  # of each file how many bytes
        self._here = _Here()
        self._tried, self._found, self._looked_s = 0, 0, 0.0
        self._on = True
        sys.addaudithook(self._event)  # there is no way to take it back

    # learning

    def wants(self) -> bool:
        """Whether there is anything to learn still."""
        return self._on and len(self._known) < MOST_SAMPLES and (self._found > 0 or self._tried < _TRIED)

    @contextmanager
    def learning(self, dataset: int) -> Iterator[None]:
        """Note in this thread which files are opened, for the sample that ``at`` names."""
        here = self._here
        outer = here.paths, here.index  # a sample may be made by a loader of its own
        paths: dict[int | str, list[str]] = {}
        here.paths = paths
        try:
            yield
        finally:
            here.paths, here.index = outer
            lines = []
            for index, opened in paths.items():
                self._tried += 1
                if opened:
                    self._found += 1
                    self._keep((dataset, index), opened)
                    lines.append(json.dumps([dataset, index, opened]))
            self._write(lines)

    def at(self, index: Any) -> None:
        """A sample begins to be read."""
        here = self._here
        here.index = key = _key(index)
        if key is not None and here.paths is not None:
            here.paths[key] = []

    def _event(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open":
            return
        here = self._here
        if here.index is None or here.paths is None:
            return
        path, _, flags = args
        if not isinstance(path, (str, bytes, os.PathLike)) or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY)
        ):
            return
        try:
            name = os.path.abspath(os.fsdecode(path))
        except OSError:  # the folder that it begins at is gone
            return
        if not name.endswith(_NO_SAMPLES) and not name.startswith(_NO_FILES):
            here.paths[here.index].append(name)

    def _keep(self, key: tuple[int, int | str], paths: list[str]) -> None:
        if key not in self._known and len(self._known) < MOST_SAMPLES:
            self._known[key] = paths
            for path in paths:
                self._openers[path] = self._openers.get(path, 0) + 1

    # what is known

    def paths(self, dataset: int, indices: Sequence[Any]) -> tuple[dict[int | str, list[str]], bool]:
        """Of the samples that are known the files that belong to few samples; and whether all are known."""
        keys = [key for one in indices if (key := _key(one)) is not None]
        missing = any((dataset, key) not in self._known for key in keys)
        if missing and time.monotonic() - self._looked_s > _EVERY_S:
            self._look()
            missing = any((dataset, key) not in self._known for key in keys)
        known = {key: self._known[dataset, key] for key in keys if (dataset, key) in self._known}
        return {key: [path for path in paths if self._openers[path] <= _SHARED] for key, paths in known.items()}, not missing

    def count(self, files: int) -> None:
        """Files of a batch were asked for."""
        self._write([str(files)])

    def _look(self) -> None:
        """Read what the other processes have learned since the last look."""
        self._looked_s = time.monotonic()
        for name in os.listdir(self._folder):
            if name == str(os.getpid()):
                continue
            with open(os.path.join(self._folder, name), "rb") as file:
                file.seek(self._read.get(name, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._read[name] = self._read.get(name, 0) + whole
            for line in data[:whole].splitlines():
                if line.startswith(b"["):
                    dataset, index, opened = json.loads(line)
                    self._found += 1
                    self._keep((dataset, index), opened)

    def _write(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        try:
            path = os.path.join(self._folder, str(os.getpid()))
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)  # and kept in no descriptor of the program
            try:
                os.write(file, ("\n".join(lines) + "\n").encode())
            finally:
                os.close(file)
        except OSError:  # disk full, or the run is over: others learn by themselves
            pass

    def end(self) -> dict[str, Any]:
        """Learn no more.

        Returns:
            How many files were asked for (``touched``), for how many ``batches``, and how many samples are known (``learned``).
        """
        self._on = False
        touched = batches = learned = 0
        for name in os.listdir(self._folder):
            with open(os.path.join(self._folder, name), "rb") as file:
                for line in file:
                    if line.startswith(b"["):
                        learned += 1
                    elif line.endswith(b"\n"):
                        touched += int(line)
                        batches += 1
        shutil.rmtree(self._folder, ignore_errors=True)
        return {"touched": touched, "batches": batches, "learned": learned}


def _key(index: Any) -> int | str | None:
    """An index as it can be written down; None if it is neither a number nor a text."""
    if isinstance(index, str):
        return index
    try:
        return int(index.__index__())
    except (AttributeError, TypeError):
        return None
