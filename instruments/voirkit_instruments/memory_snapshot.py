"""``--memory-snapshot[=tracemalloc]``: memory by phase, and on CUDA torch's history of all allocations (docs/torch-profile.md).

The history is written by torch, in its own form (a pickle, for https://pytorch.org/memory_viz); voirkit never reads it.
"""

from __future__ import annotations

import os
import sys

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition
from voirkit_instruments.memory_phases import MemoryPhases, resident
from voirkit_instruments.once import once
from voirkit_instruments.steps_heard import STEPPED, heard_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase, PhaseWithPriority

MOST_ENTRIES = 100_000  # the last allocations; some 100 MB of a file


class MemorySnapshot:
    """The memory of one run.

    Args:
        ov: The overseer.
        python: Whether to trace what python's own objects hold.
    """

    def __init__(self, ov: Overseer, python: bool) -> None:
        from voirkit.trace import recorder

        heard = heard_of(ov)
        self._ov, self._python, self._recorder = ov, python, recorder
        self._phases = MemoryPhases(heard, recorder)
        self._cuda: Any = None
        self._keeps_history = False
        self._traces = self._over = False
        self._pid = os.getpid()
        heard.tell(STEPPED, after=self._look_for_device)

    def begin(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._over:
            return
        self._cuda = torch.cuda
        source = resident()
        if source is not None:
            self._phases.add(source)
        if self._python:
            self._trace_python()

    def _trace_python(self) -> None:
        import tracemalloc

        if tracemalloc.is_tracing():
            self._ov.warn("--memory-snapshot=tracemalloc: the script uses tracemalloc itself: what python holds is not told by phase.")
            return
        tracemalloc.start()
        self._traces = True

        def read() -> tuple[int, int | None]:
            return tracemalloc.get_traced_memory()[0], None

        self._phases.add(("python", read))

    def _look_for_device(self, *_: object) -> None:
        cuda = self._cuda
        if self._keeps_history or self._over or cuda is None or not cuda.is_initialized():
            return
        self._keeps_history = True
        try:
            cuda.memory._record_memory_history(max_entries=MOST_ENTRIES)
            self._phases.add(("device", lambda: (int(cuda.memory_allocated()), None)))
        except Exception as exc:
            self._cuda = None
            self._ov.warn(f"--memory-snapshot: this torch keeps no history of allocations ({type(exc).__name__}: {exc}).")

    def end(self) -> None:
        """The program has ended."""
        self._over = True
        self._phases.stop()
        if os.getpid() != self._pid:
            return
        found = self._phases.document()
        if found:
            self._ov.summary["memory"] = {**(self._ov.summary.get("memory") or {}), "phases": found}
        self._recorder.timed(self._phases.n, self._phases.own_ns)
        if self._traces:
            import tracemalloc

            tracemalloc.stop()
        if self._keeps_history and self._cuda is not None:
            self._dump()
        elif not self._keeps_history and self._ov.run_dir is not None:
            tells = "the table tells what the process held by phase" if found else "and no phase of a training was seen"
            self._ov.warn(f"--memory-snapshot: no CUDA device was used in training, so there is no history of its allocations; {tells}.")

    def _dump(self) -> None:
        from voirkit.runs.directory import TORCH_PROFILE_FOLDER
        from voirkit.runs.ranks import rank_and_world_size

        if self._ov.run_dir is None:
            return
        name = f"{os.uname().nodename}-r{rank_and_world_size()[0]}-{self._pid}.snapshot.pickle"
        try:
            os.makedirs(os.path.join(self._ov.run_dir, TORCH_PROFILE_FOLDER), exist_ok=True)
            self._cuda.memory._dump_snapshot(os.path.join(self._ov.run_dir, TORCH_PROFILE_FOLDER, name))
            self._cuda.memory._record_memory_history(enabled=None)
            self._ov.summary.setdefault("memory", {})["snapshot"] = f"{TORCH_PROFILE_FOLDER}/{name}"
        except Exception as exc:
            self._ov.warn(f"--memory-snapshot: the history of allocations can not be written ({type(exc).__name__}: {exc}).")


@instrument_definition
@once("--memory-snapshot")
def memory_snapshot(ov: Overseer, python: bool = False) -> Iterator[Phase | PhaseWithPriority]:
    """Tell what each phase does to the memory, and keep CUDA's history of allocations.

    Args:
        python: Whether to trace what python's own objects hold (``tracemalloc``), which makes a program slow.
    """
    if sys.platform == "win32":
        ov.warn("--memory-snapshot: it does not work on Windows.\n  The run goes on without it.")
        return
    snapshot = MemorySnapshot(ov, python)
    when_imported("torch", snapshot.begin)
    try:
        yield ov.phases.run_script(priority=1)
    finally:
        snapshot.end()
