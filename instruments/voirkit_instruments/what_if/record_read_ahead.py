"""``--what-if read-ahead``: the kernel is told which files a batch needs before the first of them
is read (``posix_fadvise``, WILLNEED).

Which files a sample opens is learned in the first epoch, from Python's audit event ``open``; what
libraries open in C is not seen. From then on a loader's worker announces the files of its batch,
and of the batches that already wait in its queue; without workers, those of the batch alone: to
look further would draw from the program's sampler. Worth something where files are not in memory
yet. The program reads as ever.

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

_MOST_BYTES = 16 << 20  # of a file that are requested: what is larger is not a sample
_MOST_ANNOUNCED = 100_000  # samples announced before their turn that are remembered
_MOST_SAMPLES = 200_000  # whose files are remembered
# a file that more samples open holds many of them: to read it all for one would be no help
_MOST_SHARING = 4
_TRIALS = 1000  # samples that open nothing, after which nothing is expected any more
_LOOK_EVERY_S = 0.5  # at what other processes have learned
_CODE = (".py", ".pyc", ".so")
_NO_FILES = ("/proc/", "/dev/", "/sys/")


class ReadAhead:
    """The change, in the main process and in the workers that are forked from it."""

    exact = True

    def __init__(self, argument: str | None) -> None:
        self._files: SampleFiles | None = None
        self._announced: set[tuple[int, Index]] = set()  # before their turn
        self._facts: dict[str, Any] = {"touched": 0}
        self._off = "torch's DataLoader was not imported."

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """What the program waits for batches."""
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
            # in a forked worker it is where it was
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

        @wraps(original)  # a spawned worker finds torch's own by this name
        def loop(kind: Any, dataset: Any, index_queue: Any, *args: Any, **kwargs: Any) -> Any:
            def on_waiting(indices: Any) -> None:
                if type(indices) is list:
                    self._announce(files, id(dataset), indices, early=True)

            return original(kind, dataset, WatchedQueue(index_queue, on_waiting), *args, **kwargs)

        patches.put(module, "_worker_loop", loop, ("dataset_kind", "dataset", "index_queue"))

    def _announce(
        self, files: SampleFiles, dataset: int, indices: list[Any], early: bool = False
    ) -> bool:
        """Announce the files of a batch that are not announced yet; whether all its samples are
        known."""
        try:
            by_sample, all_known = files.lookup(dataset, indices)
        except Exception:  # a batch of something else than indices: nothing that it could be asked
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
        """Have the kernel read files into memory; how many it could be told of. Files that are
        gone, or are not regular ones any more, are passed over unopened: to open a pipe or a device
        is an act, which releases who waits at its other end."""
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
        """``touched``: files announced; ``batches`` that they were for; ``learned``: samples whose
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
    """A worker's queue of indices, which reports those that wait in it. Gives the same in the same
    order. ``queue``: a queue of multiprocessing, read by this process alone; ``on_waiting``: called
    with the indices of each batch that waits."""

    def __init__(self, queue: Any, on_waiting: Callable[[Any], None]) -> None:
        self._queue, self._on_waiting = queue, on_waiting
        self._buffer: deque[Any] = deque()

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As the queue's."""
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
    """The indices of a batch; reports each index when its sample is about to be read."""

    def __init__(self, indices: list[Any], on_sample: Callable[[Any], None]) -> None:
        super().__init__(indices)
        self._on_sample = on_sample

    def __iter__(self) -> Iterator[Any]:
        for index in super().__iter__():
            self._on_sample(index)
            yield index

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (self[:],)  # a copy, here or in another process, watches nothing


class _Reading(threading.local):
    """What this thread is learning."""

    index: Index | None = None
    paths: dict[Index, list[str]] | None = None


class SampleFiles:
    """Which files each sample of a data set opens. In each process one thread learns at a time.

    The main process and the workers that are forked from it share, over epochs, a file to which
    each appends what it has seen: lines of ``[dataset, index, paths]``, and the number of files
    that were asked for of each batch.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="voirkit-read-")
        self._shared = os.path.join(self._folder, "learned")
        self._offset, self._read_at_s = 0, 0.0
        self._paths: dict[tuple[int, Index], list[str]] = {}
        self._sharing: dict[str, int] = {}  # path -> how many samples open it
        self._reading = _Reading()
        self._tried = 0
        self._on = True
        sys.addaudithook(self._on_event)  # there is no way to take it back

    def wants_more(self) -> bool:
        """Whether there is anything to learn still."""
        return (
            self._on
            and len(self._paths) < _MOST_SAMPLES
            and (bool(self._paths) or self._tried < _TRIALS)
        )

    @contextmanager
    def learning(self, dataset: int) -> Iterator[None]:
        """Note in this thread which files are opened, for the sample that ``start_sample``
        names."""
        reading = self._reading
        outer = reading.paths, reading.index  # a sample may be made by a loader of its own
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
        """A sample begins to be read."""
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
        with suppress(OSError):  # the folder that it begins at is gone
            name = os.path.abspath(os.fsdecode(path))
            if not name.endswith(_CODE) and not name.startswith(_NO_FILES):
                reading.paths[reading.index].append(name)

    def _remember(self, dataset: int, index: Index, paths: list[str]) -> None:
        if (dataset, index) not in self._paths and len(self._paths) < _MOST_SAMPLES:
            self._paths[dataset, index] = paths
            for path in paths:
                self._sharing[path] = self._sharing.get(path, 0) + 1

    def lookup(self, dataset: int, indices: Sequence[Any]) -> tuple[dict[Index, list[str]], bool]:
        """Of the samples that are known the files that belong to few samples; and whether all are
        known."""
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
        """Read what has been learned since the last look."""
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
        """Share lines with the other processes, in one write: appended ones do not mix."""
        if not lines:
            return
        with suppress(OSError):  # disk full, or the run is over: others learn by themselves
            # no descriptor of the program's
            file = os.open(
                self._shared, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                os.write(file, ("\n".join(lines) + "\n").encode())
            finally:
                os.close(file)

    def end(self) -> dict[str, Any]:
        """Learn no more. Returns how many files were asked for (``touched``), for how many
        ``batches``, and how many samples are known (``learned``)."""
        self._on = False
        lines: list[bytes] = []
        with suppress(FileNotFoundError), open(self._shared, "rb") as file:
            lines = [line for line in file if line.endswith(b"\n")]
        shutil.rmtree(self._folder, ignore_errors=True)
        counts = [int(line) for line in lines if not line.startswith(b"[")]
        return {"touched": sum(counts), "batches": len(counts), "learned": len(lines) - len(counts)}


def _key(index: Any) -> Index | None:
    """An index as it can be written down; None if it is neither a number nor a text."""
    if isinstance(index, str):
        return index
    try:
        return int(index.__index__())
    except (AttributeError, TypeError):
        return None
