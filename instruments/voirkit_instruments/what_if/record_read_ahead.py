"""``--what-if read-ahead``: announces the files of a batch to the kernel before the first of them
is read (``posix_fadvise``, WILLNEED).

The files that a sample opens are learned in the first epoch, from Python's audit event ``open``;
files that libraries open in C are not seen. After that a loader's worker announces the files of its
batch, and of the batches that already wait in its queue. Without workers, only the files of the
current batch are announced: looking further would draw from the program's sampler. This helps if
the files are not in memory yet. The program's own reads do not change.

Checked with torch 2.1 to 2.15.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from types import ModuleType
from typing import Any

from voirkit.intercept import Patches, when_there
from voirkit_instruments.what_if.record_changes import Ceiling, ceiling_of_phases

TYPE_CHECKING = False
if TYPE_CHECKING:
    Index = int | str

# bytes of a file that the kernel is asked to read at most; a larger file is not one sample
_MOST_BYTES = 16 << 20
_MOST_ANNOUNCED = 100_000  # largest number of remembered samples that were announced early
_MOST_SAMPLES = 200_000  # largest number of samples whose files are remembered
# A file that more samples than this open contains many samples: reading all of it for one sample
# would not help.
_MOST_SHARING = 4
_TRIALS = 1000  # learning stops if this many samples were read and none has opened a file
_LOOK_EVERY_S = 0.5  # interval between reads of the files that other processes have learned
_CODE = (".py", ".pyc", ".so")
_NO_FILES = ("/proc/", "/dev/", "/sys/")


class ReadAhead:
    """The change ``read-ahead``, in the main process and in workers forked from it; see
    ``Change``."""

    exact = True

    def __init__(self, argument: str | None) -> None:
        self._files: SampleFiles | None = None
        # Samples (dataset id, index) that were announced early: their files were announced while
        # their batch still waited in the worker's queue.
        self._announced: set[tuple[int, Index]] = set()
        self._facts: dict[str, Any] = {"touched": 0}
        self._off = "torch's DataLoader was not imported."

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """Return the upper bound of the time that this change can save: the time that the program
        waits for batches."""
        return ceiling_of_phases(summary, "waiting for batches", "wait")

    def install(self, patches: Patches) -> None:
        self._files = files = SampleFiles()

        when_there(
            "torch.utils.data._utils.fetch",
            partial(self._patch_fetch, patches, files),
            self._switch_off,
        )
        when_there(
            "torch.utils.data._utils.worker",
            partial(self._patch_worker, patches, files),
            self._switch_off,
        )

    def _switch_off(self, module: str, why: str) -> None:
        self._off = f"{module} is not like any known one ({why})."

    def _patch_fetch(self, patches: Patches, files: SampleFiles, module: ModuleType) -> None:
        fetcher = module._MapDatasetFetcher
        original = vars(fetcher)["fetch"]

        @wraps(original)
        def fetch(self_: Any, possibly_batched_index: Any) -> Any:
            # a forked worker has the dataset at the same address: its id is equal in all processes
            batch, dataset = possibly_batched_index, id(self_.dataset)
            indices = batch if self_.auto_collation else [batch]
            if (
                type(indices) is not list
                or self._announce(files, dataset, indices)
                or not files.wants_more()
            ):
                return original(self_, batch)
            with files.learning(dataset):
                if self_.auto_collation:
                    return original(self_, WatchedIndices(indices, files.start_sample))
                files.start_sample(batch)
                return original(self_, batch)

        patches.put(fetcher, "fetch", fetch, ("possibly_batched_index",))
        self._off = ""

    def _patch_worker(self, patches: Patches, files: SampleFiles, module: ModuleType) -> None:
        original = module._worker_loop

        @wraps(original)  # pickled by name: a spawned worker gets torch's own ``_worker_loop``
        def loop(kind: Any, dataset: Any, index_queue: Any, *args: Any, **kwargs: Any) -> Any:
            def on_waiting(indices: Any) -> None:
                if type(indices) is list:
                    self._announce(files, id(dataset), indices, early=True)

            return original(kind, dataset, WatchedQueue(index_queue, on_waiting), *args, **kwargs)

        patches.put(module, "_worker_loop", loop, ("dataset_kind", "dataset", "index_queue"))

    def _announce(
        self, files: SampleFiles, dataset: int, indices: list[Any], early: bool = False
    ) -> bool:
        """Announce the files of a batch, except those announced before. Returns True if the files
        of all its samples are known. ``early`` is for batches that still wait in the queue."""
        try:
            by_sample, all_known = files.lookup(dataset, indices)
        except Exception:  # the batch does not consist of indices: nothing can be looked up
            return True
        paths = [
            path
            for key, those in by_sample.items()
            if (dataset, key) not in self._announced
            for path in those
        ]
        for key in by_sample:
            if not early:
                self._announced.discard((dataset, key))
            elif len(self._announced) < _MOST_ANNOUNCED:
                self._announced.add((dataset, key))
        if paths:
            files.append([str(self.prefetch(paths))])
        return all_known

    def prefetch(self, paths: Iterable[str]) -> int:
        """Ask the kernel to read files into memory, and return the number of files requested.

        Files that are gone or are no regular files are skipped without opening them: opening a pipe
        or device has effects, such as releasing a process that waits at the other end.
        """
        n = 0
        for path in paths:
            with suppress(OSError, ValueError):
                if not stat.S_ISREG(os.stat(path).st_mode):
                    continue
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    os.posix_fadvise(file, 0, _MOST_BYTES, os.POSIX_FADV_WILLNEED)
                    n += 1
                finally:
                    os.close(file)
        return n

    def end(self) -> None:
        if self._files is not None:
            self._facts = self._files.end()

    def facts(self) -> dict[str, Any]:
        """Return the facts of ``Change.facts``. ``touched``: number of files announced;
        ``batches``: number of batches with announced files; ``learned``: number of samples whose
        files are known."""
        facts = dict(self._facts)
        if not facts["touched"]:
            facts["because"] = self._off or (
                "no sample was read a second time: its files are only known then."
                if facts.get("learned")
                else "the loader's samples open no files of their own that Python knows of."
            )
        return facts


class WatchedQueue:
    """Wrapper of a worker's index queue, which reports the batches that wait in it. It returns the
    same items in the same order.

    Args:
        queue: A multiprocessing queue that only this process reads.
        on_waiting: Called with the indices of each batch that waits.
    """

    def __init__(self, queue: Any, on_waiting: Callable[[Any], None]) -> None:
        self._queue, self._on_waiting = queue, on_waiting
        self._buffer: deque[Any] = deque()

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next item, as the queue's ``get`` does, and report the batches that wait after
        it."""
        from queue import Empty

        if not self._buffer:
            self._buffer.append(self._queue.get(*args, **kwargs))
        waiting = []
        with suppress(Empty):
            while True:
                waiting.append(self._queue.get_nowait())
        self._buffer.extend(waiting)
        for item in waiting:
            if type(item) is tuple and len(item) == 2:
                self._on_waiting(item[1])
        return self._buffer.popleft()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class WatchedIndices(list):  # type: ignore[type-arg]
    """List of the indices of a batch, which reports each index when its sample is about to be
    read."""

    def __init__(self, indices: list[Any], on_sample: Callable[[Any], None]) -> None:
        super().__init__(indices)
        self._on_sample = on_sample

    def __iter__(self) -> Iterator[Any]:
        for index in super().__iter__():
            self._on_sample(index)
            yield index

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (self[:],)  # a copy, here or in another process, is a plain list


class _Reading(threading.local):
    """Per-thread state while files are learned: the index of the sample being read, and the opened
    files by index. Both are None while nothing is learned."""

    index: Index | None = None
    paths: dict[Index, list[str]] | None = None


class SampleFiles:
    """The files that each sample of a dataset opens. In each process one thread learns at a time.

    The main process and the workers forked from it share one file over all epochs. Each process
    appends a line ``[dataset, index, paths]`` for each learned sample, and the number of requested
    files for each batch.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="voirkit-read-")
        self._shared = os.path.join(self._folder, "learned")
        self._offset, self._read_at_s = 0, 0.0
        self._paths: dict[tuple[int, Index], list[str]] = {}
        self._sharing: dict[str, int] = {}  # path -> number of samples that open it
        self._reading = _Reading()
        self._tried = 0
        self._on = True
        sys.addaudithook(self._on_event)  # an audit hook cannot be removed

    def wants_more(self) -> bool:
        """True if files of further samples should still be learned."""
        return (
            self._on
            and len(self._paths) < _MOST_SAMPLES
            and (bool(self._paths) or self._tried < _TRIALS)
        )

    @contextmanager
    def learning(self, dataset: int) -> Iterator[None]:
        """Context manager that records the files that this thread opens, for the sample that
        ``start_sample`` set last."""
        reading = self._reading
        # restored at the end: a dataset may use a loader of its own to get a sample
        outer = reading.paths, reading.index
        paths: dict[Index, list[str]] = {}
        reading.paths = paths
        try:
            yield
        finally:
            reading.paths, reading.index = outer
            self._tried += len(paths)
            for index, those in paths.items():
                if those:
                    self._remember(dataset, index, those)
            self.append(
                [json.dumps([dataset, index, those]) for index, those in paths.items() if those]
            )

    def start_sample(self, index: Any) -> None:
        """Set the sample that is about to be read."""
        reading = self._reading
        reading.index = key = _key(index)
        if key is not None and reading.paths is not None:
            reading.paths[key] = []

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open":
            return
        reading = self._reading
        if reading.index is None or reading.paths is None:
            return
        path, _, flags = args
        if not isinstance(path, (str, bytes, os.PathLike)) or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY)
        ):
            return
        with suppress(OSError):  # the path is relative, and the current folder is gone
            name = os.path.abspath(os.fsdecode(path))
            if not name.endswith(_CODE) and not name.startswith(_NO_FILES):
                reading.paths[reading.index].append(name)

    def _remember(self, dataset: int, index: Index, paths: list[str]) -> None:
        if (dataset, index) not in self._paths and len(self._paths) < _MOST_SAMPLES:
            self._paths[dataset, index] = paths
            for path in paths:
                self._sharing[path] = self._sharing.get(path, 0) + 1

    def lookup(self, dataset: int, indices: Sequence[Any]) -> tuple[dict[Index, list[str]], bool]:
        """Return the files of each known sample in a batch, without files that many samples share;
        and whether all samples of the batch are known."""
        keys = [key for index in indices if (key := _key(index)) is not None]
        if (
            any((dataset, key) not in self._paths for key in keys)
            and time.monotonic() - self._read_at_s > _LOOK_EVERY_S
        ):
            self._read_shared()
        known = {key: self._paths[dataset, key] for key in keys if (dataset, key) in self._paths}
        few = {
            key: [path for path in paths if self._sharing[path] <= _MOST_SHARING]
            for key, paths in known.items()
        }
        return few, all(key in known for key in keys)

    def _read_shared(self) -> None:
        """Read the files that all processes have learned since the last call."""
        self._read_at_s = time.monotonic()
        with suppress(FileNotFoundError), open(self._shared, "rb") as file:
            file.seek(self._offset)
            data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._offset += len(data)
            for line in data.splitlines():
                if line.startswith(b"["):
                    self._remember(*json.loads(line))

    def append(self, lines: Sequence[str]) -> None:
        """Append lines to the shared file in one write, so that lines of processes do not mix."""
        if not lines:
            return
        with suppress(OSError):  # disk full, or the run is over: other processes learn on their own
            # opened for each write, so that no file descriptor stays open in the program
            file = os.open(
                self._shared, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                os.write(file, ("\n".join(lines) + "\n").encode())
            finally:
                os.close(file)

    def end(self) -> dict[str, Any]:
        """Stop learning. Returns the numbers of requested files (``touched``), of batches with such
        files (``batches``), and of known samples (``learned``)."""
        self._on = False
        lines: list[bytes] = []
        with suppress(FileNotFoundError), open(self._shared, "rb") as file:
            lines = [line for line in file if line.endswith(b"\n")]
        shutil.rmtree(self._folder, ignore_errors=True)
        counts = [int(line) for line in lines if not line.startswith(b"[")]
        return {"touched": sum(counts), "batches": len(counts), "learned": len(lines) - len(counts)}


def _key(index: Any) -> Index | None:
    """Return an index as an int or str, which JSON can hold; None if it is neither."""
    if isinstance(index, str):
        return index
    try:
        return int(index.__index__())
    except (AttributeError, TypeError):
        return None
