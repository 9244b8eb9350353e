"""``--what-if read-ahead``: the kernel is told which files a batch needs before the first of them is read (``posix_fadvise``, WILLNEED).

Which files a sample opens is learned in the first epoch (``what_if_read_learned``). From then on a loader's worker announces the files of
its batch, and of the batches that already wait in its queue; without workers, those of the batch alone: to look further would draw from
the program's sampler. Worth something where files are not in memory yet. The program reads as ever.

Checked with torch 2.1 to 2.15.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from functools import wraps

from voirkit.intercept import when_there
from voirkit_instruments.what_if.record_read_learned import Learned, Watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.intercept import Patches
    from voirkit_instruments.what_if.record_changes import Ceiling

MOST = 16 << 20  # bytes of a file that are asked for: what is larger is no sample
_MOST_TOLD = 100_000


class ReadAhead:
    """The change, in the main process and in the workers that are forked from it.

    Args:
        argument: There is none.
    """

    exact = True

    def __init__(self, argument: str | None) -> None:
        if argument is not None:
            raise ValueError("read-ahead takes no argument.")
        self._learned: Learned | None = None
        self._told: set[tuple[int, int | str]] = set()  # announced before their turn
        self._facts: dict[str, Any] = {"touched": 0}
        self._off = "torch's DataLoader was not imported."

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """What the program waits for batches."""
        from voirkit_instruments.what_if.record_changes import ceiling_of_phases

        return ceiling_of_phases(summary, "waiting for batches", "wait")

    def bring(self, paths: Iterable[str]) -> int:
        """Have the kernel read files into memory; how many it could be told of."""
        n = 0
        for path in paths:
            file = opened(path)
            if file is None:
                continue
            try:
                os.posix_fadvise(file, 0, MOST, os.POSIX_FADV_WILLNEED)
                n += 1
            except OSError:  # a file system that has no such advice
                pass
            finally:
                os.close(file)
        return n

    def install(self, patches: Patches) -> None:
        """Make the change as soon as the loader is there."""
        self._learned = learned = Learned()

        def fetch(module: ModuleType) -> None:
            self._put_fetch(patches, module, learned)

        def worker(module: ModuleType) -> None:
            self._put_worker(patches, module, learned)

        when_there("torch.utils.data._utils.fetch", fetch, self._unlike)
        when_there("torch.utils.data._utils.worker", worker, self._unlike)

    def _unlike(self, module: str, why: str) -> None:
        self._off = f"{module} is not like any known one ({why})."

    def _put_fetch(self, patches: Patches, module: ModuleType, learned: Learned) -> None:
        fetcher = module._MapDatasetFetcher
        original = vars(fetcher)["fetch"]

        @wraps(original)
        def fetch(self_: Any, possibly_batched_index: Any) -> Any:
            batch, dataset = possibly_batched_index, id(self_.dataset)  # in a forked worker it is where it was
            indices = batch if self_.auto_collation else [batch]
            if type(indices) is not list:
                return original(self_, batch)
            all_known = self._bring(learned, dataset, indices)
            if all_known or not learned.wants():
                return original(self_, batch)
            with learned.learning(dataset):
                if self_.auto_collation:
                    return original(self_, Watched(indices, learned.at))
                learned.at(batch)
                return original(self_, batch)

        patches.put(fetcher, "fetch", fetch)
        self._off = ""

    def _put_worker(self, patches: Patches, module: ModuleType, learned: Learned) -> None:
        original = module._worker_loop

        @wraps(original)  # a spawned worker finds torch's own by this name
        def loop(kind: Any, dataset: Any, index_queue: Any, *args: Any, **kwargs: Any) -> Any:
            def ahead(indices: Any) -> None:
                if type(indices) is list:
                    self._bring(learned, id(dataset), indices, to_come=True)

            return original(kind, dataset, Queue(index_queue, ahead), *args, **kwargs)

        patches.put(module, "_worker_loop", loop)

    def _bring(self, learned: Learned, dataset: int, indices: list[Any], to_come: bool = False) -> bool:
        """Announce the files of a batch that are not announced yet; whether all its samples are known."""
        try:
            known, all_known = learned.paths(dataset, indices)
        except Exception:  # a batch of something else than indices: nothing that it could be asked
            return True
        told = self._told
        paths = [path for key, those in known.items() if (dataset, key) not in told for path in those]
        for key in known:
            if to_come and len(told) < _MOST_TOLD:
                told.add((dataset, key))
            elif not to_come:
                told.discard((dataset, key))
        if paths:
            learned.count(self.bring(paths))
        return all_known

    def end(self) -> None:
        """Forget all."""
        if self._learned is not None:
            self._facts = self._learned.end()

    def facts(self) -> dict[str, Any]:
        """``touched``: files announced; ``batches`` that they were for; ``learned``: samples whose files are known."""
        facts = dict(self._facts)
        if not facts["touched"]:
            learned = facts.get("learned")
            facts["because"] = self._off or (
                "no sample was read a second time: its files are only known then." if learned
                else "the loader's samples open no files of their own that Python knows of."
            )  # fmt: skip
        return facts


def opened(path: str) -> int | None:
    """A descriptor of a regular file; None if it is gone, and the program may not read it again, or is anything else.

    To open a pipe or a device is an act: who waits at its other end is let go, and fails.
    """
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        pass
    return None


class Queue:
    """A worker's queue of indices, which tells of those that wait in it. Gives the same in the same order.

    Args:
        queue: A queue of multiprocessing, read by this process alone.
        ahead: Told the indices of each batch that waits.
    """

    def __init__(self, queue: Any, ahead: Any) -> None:
        self._queue, self._ahead = queue, ahead
        self._taken: deque[Any] = deque()

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As the queue's."""
        from queue import Empty

        if not self._taken:
            self._taken.append(self._queue.get(*args, **kwargs))
        waiting = []
        try:
            while True:
                waiting.append(self._queue.get_nowait())
        except Empty:
            pass
        self._taken.extend(waiting)
        for one in waiting:
            if type(one) is tuple and len(one) == 2:
                self._ahead(one[1])
        return self._taken.popleft()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
