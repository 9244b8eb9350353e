"""Batches being fetched, in workers and in the process that trains, as a phase of system calls. Checked with torch 2.1 and 2.15."""

from __future__ import annotations

import os
from functools import partial

from voirkit.intercept import Patches, ThreadState, when_there
from voirkit.probes.around import Around
from voirkit.processes import inherit
from voirkit_instruments.syscalls import record_phase_edges as syscalls_edges
from voirkit_instruments.syscalls.record_markers import path_and_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

BEGIN = "voirkit_instruments.syscalls.record_fetch:begin"
_FETCHERS = ("_MapDatasetFetcher.fetch", "_IterableDatasetFetcher.fetch")
_here: Fetches | None = None


class Fetches:
    """What stands around the fetching of batches in one process and those that it forks.

    Args:
        warn: Told of what can not be watched.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        global _here
        _here = self
        self.patches, self._warn = Patches(), warn
        self._told = False  # whether this process has told which worker it is
        self.is_worker: Callable[[int], None] = tell_worker
        inherit.watch(BEGIN, offered)
        when_there("torch.utils.data._utils.fetch", self._put, self._off)

    def _put(self, module: ModuleType) -> None:
        syscalls_edges.fetching[0] = self._tell
        if "fetch" in syscalls_edges.told:  # --loader stands around it, where there is room for one
            return
        here = ThreadState()

        def enter() -> int:
            here.inside = 1
            return 1

        def leave(began: int, was: int) -> None:
            here.inside = was

        around = Around(here, 0, *syscalls_edges.around_fetch(enter, leave))
        for path in _FETCHERS:
            kind, _, name = path.partition(".")
            function = getattr(getattr(module, kind, None), name, None)
            if not self.patches.around(f"{module.__name__}.{path}", function, around):
                self._off(f"{module.__name__}.{path}", self.patches.table[f"{module.__name__}.{path}"])

    def _tell(self) -> None:
        if self._told:
            return
        self._told = True
        try:
            from torch.utils.data import get_worker_info

            info: Any = get_worker_info()
            if info is not None:
                self.is_worker(int(info.id))
        except Exception as exc:
            self._warn(f"--syscalls: which worker process {os.getpid()} is, is not known ({type(exc).__name__}: {exc}).")

    def _off(self, name: str, why: str) -> None:
        self._warn(f"--syscalls: {name} is not watched: it {why.rstrip('.')}.")

    def remove(self) -> None:
        """Put all back as it was."""
        inherit.unwatch(BEGIN)
        self.patches.remove()


def _after_fork() -> None:
    if _here is not None:
        _here._told = False


os.register_at_fork(after_in_child=_after_fork)


def tell_worker(number: int) -> None:
    """Tell a tracer which worker this process is."""
    partial(os.access, *path_and_mode(f"worker {number}"))()


def offered() -> bool | None:
    """What a process needs that is started anew."""
    return True if syscalls_edges.TRACER in syscalls_edges.told else None


def begin(_: object) -> None:
    """In such a process, which the tracer follows: tell it of fetches."""
    from voirkit.errors import tell

    if _here is None:
        syscalls_edges.to_tracer()
        syscalls_edges.watch_recorder()
        Fetches(tell)
