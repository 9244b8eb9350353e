"""``--memory-snapshot[=tracemalloc]``: memory by phase, and on CUDA torch's history of all allocations (docs/torch-profile.md).

The history is written by torch, in its own form (a pickle, for https://pytorch.org/memory_viz); voirkit never reads it.
"""

from __future__ import annotations

import os
import sys

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition
from voirkit.report.figure import size
from voirkit_instruments.memory.record_history import History, is_out_of_memory, place_of
from voirkit_instruments.memory.record_phases import MemoryPhases, resident
from voirkit_instruments.once import once
from voirkit_instruments.steps.events import StepEvents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer


class MemorySnapshot:
    """The memory of one run.

    Args:
        ov: The overseer.
        python: Whether to trace what python's own objects hold.
    """

    def __init__(self, ov: Overseer, python: bool) -> None:
        from voirkit.trace import recorder

        events = ov.shared(StepEvents)
        self._ov, self._python, self._recorder = ov, python, recorder
        self._phases = MemoryPhases(events, recorder)
        self._history: History | None = None
        self._traces = self._over = False
        self._pid = os.getpid()

    def begin(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._over:
            return
        cuda = torch.cuda
        if cuda is not None:
            device = ("device", lambda: (int(cuda.memory_allocated()), None))
            self._history = History(torch, lambda: self._phases.add(device), self._ov.warn)
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

    def end(self, exc: BaseException | None = None) -> None:
        """The program has ended, with an exception or without."""
        self._over = True
        self._phases.stop()
        if os.getpid() != self._pid:
            return
        found = self._phases.document()
        if found:
            self._ov.summary["memory"] = {**(self._ov.summary.get("memory") or {}), "phases": found}
        self._recorder.timed(self._phases.n, self._phases.own_ns, "instruments")
        if self._traces:
            import tracemalloc

            tracemalloc.stop()
            self._recorder.timed(0, 0, "tracemalloc")
        if is_out_of_memory(exc):
            self._tell_of_the_end(exc, found)
        if self._history is not None and self._history.is_kept:
            self._dump(self._history)
        elif self._ov.run_dir is not None:
            tells = "the table tells what the process held by phase" if found else "and no phase of a training was seen"
            self._ov.warn(f"--memory-snapshot: no CUDA device was used in training, so there is no history of its allocations; {tells}.")

    def _tell_of_the_end(self, exc: Any, phases: dict[str, Any]) -> None:
        """Memory has run out: in which phase, and what held it."""
        phase, where = place_of(exc.__traceback__)
        held = self._history.held_by if self._history is not None else None
        said = f"out of memory in {phase}" + (f", at {where}" if where else "")
        if held:
            said += "; held by tensors made at " + ", ".join(f"{one['where']} {size(one['bytes'])}" for one in held)
        elif phases:
            grown = [(row["rss"]["growth"], name) for name, row in phases.items() if row.get("rss", {}).get("growth", 0) > 0]
            said += "; the process grew " + ", ".join(f"{size(n)} in {name}" for n, name in sorted(grown, reverse=True)) if grown else ""
        self._ov.summary.setdefault("memory", {})["out_of_memory"] = {"phase": phase, "where": where, "held_by": held}
        self._ov.warn(f"--memory-snapshot: {said}.")

    def _dump(self, history: History) -> None:
        from voirkit.runs.ranks import rank_and_world_size
        from voirkit_instruments.torch_profile import FOLDER

        if self._ov.run_dir is None:
            return
        name = f"{os.uname().nodename}-r{rank_and_world_size()[0]}-{self._pid}.snapshot.pickle"
        try:
            history.end(os.path.join(self._ov.run_dir, FOLDER, name))
            self._ov.summary.setdefault("memory", {})["snapshot"] = f"{FOLDER}/{name}"
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
        yield ov.phases.run_script(priority=1, throw=False)
    finally:
        snapshot.end(ov.phases.run_script.exception)


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    return memory_snapshot(options["memory_snapshot"] == "tracemalloc")(ov)
