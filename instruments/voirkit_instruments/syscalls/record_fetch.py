"""Batches being fetched, in workers and in the process that trains, as a phase of system calls. Checked with torch 2.1 and 2.15."""

from __future__ import annotations

import os

from voirkit.fork import at_fork
from voirkit.intercept import Patches, ThreadState, when_there
from voirkit.probes.around import Around
from voirkit.processes import inherit
from voirkit_instruments.syscalls import record_phase_edges
from voirkit_instruments.syscalls.record_markers import path_and_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

BEGIN = "voirkit_instruments.syscalls.record_fetch:begin_in_child"
_FETCHERS = ("_MapDatasetFetcher.fetch", "_IterableDatasetFetcher.fetch")
_watch: FetchWatch | None = None


class FetchWatch:
    """What stands around the fetching of batches in one process and those that it forks.

    Args:
        warn: Called with what cannot be watched.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        global _watch
        _watch = self
        self.patches, self._warn = Patches(), warn
        self._has_reported = False  # which worker this process is
        self.report_worker: Callable[[int], None] = mark_worker
        inherit.watch(BEGIN, offer_to_children)
        when_there("torch.utils.data._utils.fetch", self._install, self._warn_of)

    def _install(self, module: ModuleType) -> None:
        record_phase_edges.before_fetch[0] = self._report
        if record_phase_edges.FETCH in record_phase_edges.reported:  # --loader stands around it, where there is room for one
            return
        here = ThreadState()

        def enter() -> int:
            here.inside = 1
            return 1

        def leave(began: int, was: int) -> None:
            here.inside = was

        around = Around(here, 0, *record_phase_edges.around(record_phase_edges.FETCH, (enter, leave)))
        for path in _FETCHERS:
            kind, _, name = path.partition(".")
            function = getattr(getattr(module, kind, None), name, None)
            if not self.patches.around(f"{module.__name__}.{path}", function, around):
                self._warn_of(f"{module.__name__}.{path}", self.patches.table[f"{module.__name__}.{path}"])

    def _report(self) -> None:
        if self._has_reported:
            return
        self._has_reported = True
        try:
            from torch.utils.data import get_worker_info

            info: Any = get_worker_info()
            if info is not None:
                self.report_worker(int(info.id))
        except Exception as exc:
            self._warn(f"--syscalls: which worker process {os.getpid()} is, is not known ({type(exc).__name__}: {exc}).")

    def _warn_of(self, name: str, why: str) -> None:
        self._warn(f"--syscalls: {name} is not watched: it {why.rstrip('.')}.")

    def remove(self) -> None:
        """Remove the patches."""
        inherit.unwatch(BEGIN)
        self.patches.remove()


def _after_fork() -> None:
    if _watch is not None:
        _watch._has_reported = False


at_fork("instruments", in_child=_after_fork)


def mark_worker(number: int) -> None:
    """Mark, for a tracer, which worker this process is."""
    os.access(*path_and_mode(f"worker {number}"))


def offer_to_children() -> bool | None:
    """What a spawned process needs."""
    return True if record_phase_edges.TRACER in record_phase_edges.reported else None


def begin_in_child(_: object) -> None:
    """In such a process, which the tracer follows: report fetches to it."""
    from voirkit.errors import tell
    from voirkit.processes.children import this_process
    from voirkit_instruments.steps.events import StepEvents

    if _watch is None:
        record_phase_edges.report_to_tracer()
        this_process().shared(StepEvents).wrap_phases(record_phase_edges.around)
        record_phase_edges.watch_recorder()
        FetchWatch(tell)
