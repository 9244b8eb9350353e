"""Files that are being written by a thread after ``torch.save`` has come back: in the order of the calls, and waited for on demand.

The thread lives only while there is something to write, so that a fork finds none. What writing a file fails with is raised in the thread
that called torch.save, where it next waits for that file or saves another.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Save:
    """One file.

    Args:
        path: As the program gave it.
        found: What ``os.stat`` says of it.
        folder: The same of its folder.
        write: Writes it.

    Attributes:
        file, folder: Device and inode.
        error: What writing it failed with.
        caller: The thread that called torch.save.
    """

    def __init__(self, path: str, found: os.stat_result, folder: os.stat_result, write: Callable[[], Any]) -> None:
        self.path = path
        self.file, self.folder = (found.st_dev, found.st_ino), (folder.st_dev, folder.st_ino)
        self.write: Callable[[], Any] | None = write
        self.written = threading.Event()
        self.error: BaseException | None = None
        self.caller = threading.get_ident()


class Saves:
    """Those of one process.

    Attributes:
        pending: Those that are not written, or failed without anybody being told yet. Empty: nobody has to wait for anything.
        waited_ns: How long the program waited.
        waits: For what, how many times.
    """

    def __init__(self) -> None:
        self.pending: list[Save] = []
        self._queue: deque[Save] = deque()
        self._lock = threading.RLock()  # a signal's handler may save
        self._pid = os.getpid()
        self._writing = False
        self._thread: threading.Thread | None = None
        self.waited_ns = 0
        self.waits: dict[str, int] = {}

    def hand_over(self, save: Save) -> None:
        """Have it written; in place where no thread can be started."""
        with self._lock:
            self.pending.append(save)
            self._queue.append(save)
            if self._writing:
                return
            self._writing = True
            if self._thread is not None:
                self._thread.join()  # it has nothing left to do
            self._thread = threading.Thread(target=self._write, name="voirkit-checkpoint")
            try:
                self._thread.start()
                return
            except RuntimeError:  # the interpreter is ending, or there is no thread left
                self._thread = None
        self._write()
        self.raise_any(save.caller)

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._writing = False
                    return
                save = self._queue.popleft()
            assert save.write is not None
            try:
                save.write()
            except BaseException as exc:
                if hasattr(exc, "add_note"):  # python 3.11
                    exc.add_note(f"voirkit: raised late by --what-if checkpoint-async, while {save.path} was written after torch.save.")
                save.error = exc
            save.write = None  # what it holds is let go of
            with self._lock:
                if save.error is None:
                    self.pending.remove(save)
            save.written.set()

    def are_awaited(self) -> bool:
        """Whether there is something that this thread would have to wait for: not in the thread that writes, nor in a child process."""
        if not self.pending or os.getpid() != self._pid:
            return False
        thread = self._thread
        return thread is None or thread.ident != threading.get_ident()

    def settle(self, save: Save | None = None, why: str = "the end") -> None:
        """Wait until one is written, or all; and then, for all, until the thread has ended."""
        began = time.perf_counter_ns()
        those = [one for one in ([save] if save is not None else list(self.pending)) if not one.written.is_set()]
        for one in those:
            one.written.wait()
        thread = self._thread
        if save is None and thread is not None:
            thread.join()
        if those:
            self.waited_ns += time.perf_counter_ns() - began
            self.waits[why] = self.waits.get(why, 0) + 1

    def raise_any(self, caller: int | None = None, save: Save | None = None) -> None:
        """Raise what the first that failed failed with, once.

        Args:
            caller: Only of what this thread saved.
            save: Only of this one.
        """
        with self._lock:
            for one in self.pending:
                if one.error is not None and (caller is None or one.caller == caller) and (save is None or one is save):
                    self.pending.remove(one)
                    break
            else:
                return
        try:
            raise one.error
        finally:
            one.error = None
