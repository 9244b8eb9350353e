"""``--memory-snapshot[=tracemalloc]``: memory by phase, and on CUDA torch's history of all
allocations (docs/torch-profile.md).

Memory is read at the beginning and end of each phase of training, in the thread that trains. The
change between two readings counts for the innermost phase that the thread is in. So the growth of
all phases adds up to the growth of the process.

The history is written by torch, in its own form (a pickle, for https://pytorch.org/memory_viz);
voirkit never reads it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter_ns
from types import ModuleType, TracebackType
from typing import Any

from voirkit import phase_names
from voirkit.fork import at_fork
from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit.phase_table import phase_of_function
from voirkit.phases import Phase, PhaseWithPriority
from voirkit.report import size
from voirkit_instruments.places import Owner, file_owner
from voirkit_instruments.resources import resident_bytes
from voirkit_instruments.steps.events import (
    BACKWARD,
    BATCH_REQUESTED,
    FORWARD,
    OPTIMIZER_STEP,
    StepEvents,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runner.overseer import Overseer


class MemorySnapshot:
    """Records memory by phase, CUDA's history of allocations, and out-of-memory errors of a run."""

    def __init__(self, ov: Overseer, python: bool) -> None:
        from voirkit.trace import recorder

        self._ov, self._python, self._recorder = ov, python, recorder
        self._phases = MemoryPhases(ov.shared(StepEvents), recorder)
        self._history: History | None = None
        self._traces = self._over = False
        self._pid = os.getpid()

    def torch_imported(self, torch: ModuleType) -> None:
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
            self._ov.warn(
                "--memory-snapshot=tracemalloc: the script uses tracemalloc itself: what python"
                " holds is not reported by phase."
            )
            return
        tracemalloc.start()
        self._traces = True

        def read() -> tuple[int, int | None]:
            return tracemalloc.get_traced_memory()[0], None

        self._phases.add(("python", read))

    def end(self, exc: BaseException | None = None) -> None:
        """Report memory by phase and write the history. ``exc``: the exception that ended the
        program; None if it ended without one."""
        self._over = True
        self._phases.stop()
        if os.getpid() != self._pid:
            return
        phases = self._phases.document()
        if phases:
            self._ov.summary["memory"] = {
                **(self._ov.summary.get("memory") or {}),
                "phases": phases,
            }
        self._recorder.timed(self._phases.n, self._phases.own_ns, "instruments")
        if self._traces:
            import tracemalloc

            tracemalloc.stop()
            self._recorder.timed(0, 0, "tracemalloc")
        if is_out_of_memory(exc):
            self._report_out_of_memory(exc, phases)
        if self._history is not None and self._history.is_kept:
            self._dump(self._history)
        elif self._ov.run_dir is not None:
            tells = (
                "the table tells what the process held by phase"
                if phases
                else "and no phase of a training was seen"
            )
            self._ov.warn(
                "--memory-snapshot: no CUDA device was used in training, so there is no history of"
                f" its allocations; {tells}."
            )

    def _report_out_of_memory(self, exc: Any, phases: dict[str, Any]) -> None:
        phase, where = place_of(exc.__traceback__)
        holders = self._history.held_by if self._history is not None else None
        text = f"out of memory in {phase}" + (f", at {where}" if where else "")
        if holders:
            text += "; held by tensors made at " + ", ".join(
                f"{holder['where']} {size(holder['bytes'])}" for holder in holders
            )
        elif phases:
            growth = [(row.get("rss", {}).get("growth", 0), name) for name, row in phases.items()]
            grown = sorted([pair for pair in growth if pair[0] > 0], reverse=True)
            if grown:
                parts = [f"{size(n)} in {name}" for n, name in grown]
                text += "; the process grew " + ", ".join(parts)
        self._ov.summary.setdefault("memory", {})["out_of_memory"] = {
            "phase": phase,
            "where": where,
            "held_by": holders,
        }
        self._ov.warn(f"--memory-snapshot: {text}.")

    def _dump(self, history: History) -> None:
        from voirkit.runs.manifest import rank_and_world_size
        from voirkit_instruments.torch_profile import FOLDER

        if self._ov.run_dir is None:
            return
        name = f"{os.uname().nodename}-r{rank_and_world_size()[0]}-{self._pid}.snapshot.pickle"
        try:
            history.end(os.path.join(self._ov.run_dir, FOLDER, name))
            self._ov.summary.setdefault("memory", {})["snapshot"] = f"{FOLDER}/{name}"
        except Exception as exc:  # writing may fail, and torch's private functions may differ
            self._ov.warn(
                "--memory-snapshot: the history of allocations cannot be written"
                f" ({type(exc).__name__}: {exc})."
            )


@instrument_definition
@once("--memory-snapshot")
def memory_snapshot(ov: Overseer, python: bool = False) -> Iterator[Phase | PhaseWithPriority]:
    """Report memory by phase, and keep CUDA's history of allocations. ``python``: True to trace the
    memory of Python objects too (``tracemalloc``), which makes a program slow."""
    if sys.platform == "win32":
        ov.warn("--memory-snapshot: it does not work on Windows.\n  The run goes on without it.")
        return
    snapshot = MemorySnapshot(ov, python)
    when_imported("torch", snapshot.torch_imported)
    try:
        yield ov.phases.run_script(priority=1, throw=False)
    finally:
        snapshot.end(ov.phases.run_script.exception)


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    return memory_snapshot(options["memory_snapshot"] == "tracemalloc")(ov)


MOST_ENTRIES = 100_000  # torch keeps only this many latest entries: a file of some 100 MB
# maximum number of lines of source that are listed, and of out-of-memory errors in a run for which
# these lines are looked up
_MOST_LINES, _MOST_READ = 5, 3
_ERRORS = ("OutOfMemoryError", "MemoryError")
_OF_CPU = ("DefaultCPUAllocator", "not enough memory")


class History:
    """CUDA's history of allocations in one process, from its first use of a device; and the lines
    of the program whose tensors held the memory when it ran out.

    Nothing here initializes CUDA: torch calls ``_start`` when it does so itself. Written against
    torch's functions (2.1 to 2.15) and tested only with a fake of them: never run on a GPU.
    """

    def __init__(
        self, torch: Any, on_start: Callable[[], None], warn: Callable[[str], None]
    ) -> None:
        self._core, self._cuda, self._on_start, self._warn = torch._C, torch.cuda, on_start, warn
        self._pid, self._reads = os.getpid(), 0
        self._over = False
        self.is_kept = False  # True once the program has used a device and torch keeps the history
        # bytes held by the tensors that each line of source allocated, when memory last ran out,
        # the most first; None if memory has not run out
        self.held_by: list[dict[str, Any]] | None = None
        try:
            self._cuda._lazy_call(self._start)
        except Exception as exc:  # torch's private functions may differ
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        self.is_kept = False
        self._warn(
            f"--memory-snapshot: this torch keeps no history of allocations ({type(exc).__name__}:"
            f" {exc})."
        )

    def _start(self) -> None:
        if self._over or os.getpid() != self._pid:
            return
        try:
            self._cuda.memory._record_memory_history(max_entries=MOST_ENTRIES)
            self.is_kept = True
            self._on_start()
        except Exception as exc:
            # torch calls this while it initializes CUDA, which an exception would break
            self._failed(exc)
            return
        attach = getattr(self._core, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self._ran_out)

    def _ran_out(self, *_: object) -> None:
        """Callback of torch when an allocation has failed, in the thread that requested it: note
        which lines' tensors hold the memory."""
        if self._over or self._reads >= _MOST_READ:
            return
        self._reads += 1
        try:
            self.held_by = holders(self._cuda.memory._snapshot())
        except Exception:  # torch's private function may differ, and memory is short
            self.held_by = None

    def end(self, path: str) -> None:
        """Write the history to ``path`` and have torch stop keeping it. Raises an exception if it
        cannot be written."""
        self._over = True
        if self.is_kept:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._cuda.memory._dump_snapshot(path)
            self._cuda.memory._record_memory_history(enabled=None)


def holders(snapshot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the bytes of live tensors by the line of the program that allocated them: rows of
    ``where`` and ``bytes``, the most bytes first."""
    sums: Counter[str] = Counter()
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                where = "unknown"
                for frame in block.get("frames", ()):
                    if _is_programs(frame["filename"]):
                        where = f"{os.path.basename(frame['filename'])}:{frame['line']}"
                        break
                sums[where] += block["size"]
    return [{"where": where, "bytes": n} for where, n in sums.most_common(_MOST_LINES)]


def is_out_of_memory(exc: BaseException | None) -> bool:
    """True if a program ended because a device or the host ran out of memory."""
    if exc is None:
        return False
    if type(exc).__name__ in _ERRORS:
        return True
    return isinstance(exc, RuntimeError) and any(word in str(exc) for word in _OF_CPU)


def place_of(trace: TracebackType | None) -> tuple[str, str | None]:
    """Return the phase in which an exception was raised, and the innermost line of the program in
    its traceback: ``("backward", "main.py:12")``."""
    phase, where = "other", None
    while trace is not None:
        code = trace.tb_frame.f_code
        path = code.co_filename
        phase = phase_of_function(path, code.co_name) or phase
        if _is_programs(path):
            where = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return phase, where


def _is_programs(path: str) -> bool:
    return path.endswith(".py") and file_owner(path) is Owner.PROGRAM


PHASES = {
    BATCH_REQUESTED: phase_names.WAIT,
    FORWARD: phase_names.FORWARD,
    BACKWARD: phase_names.BACKWARD,
    OPTIMIZER_STEP: phase_names.OPTIMIZER,
}
Source = tuple[str, "Callable[[], tuple[int, int | None]]"]


def resident() -> Source | None:
    """Return the source ``rss``: the resident memory of the process, and its high-water mark. None
    if the system does not report them."""
    try:
        import resource

        last = resident_bytes()
    except (ImportError, OSError, ValueError, IndexError):
        return None
    usage, target = resource.getrusage, resource.RUSAGE_SELF

    def read() -> tuple[int, int | None]:
        nonlocal last
        try:
            last = resident_bytes()
        except OSError as exc:  # the program has no free file descriptor
            if not _is_of(exc, resident_bytes):
                raise
        return last, usage(target).ru_maxrss * 1024

    return "rss", read


def _is_of(exc: BaseException, function: Callable[..., Any]) -> bool:
    """True if the function itself raised the exception; False if it was a signal handler of the
    program that ran during the call."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is function.__code__


class MemoryPhases:
    """The growth and the peak of the memory in each phase of one run.

    Args:
        events: The events at which phases begin and end.
        recorder: ``voirkit.trace.recorder``; gets a counter for each reading.

    Attributes:
        own_ns: The time that the readings took; ``n`` is their number.
    """

    def __init__(self, events: StepEvents, recorder: Any) -> None:
        self._recorder = recorder
        # (name, function that reads it, name id of its counter in the trace, [last bytes held,
        # high-water mark])
        self._sources: list[tuple[str, Any, int, list[int]]] = []
        self._inside: list[str] = []
        self._thread = threading.main_thread().ident
        self._trained = False
        self._over = False
        self._rows: dict[str, dict[str, dict[str, int]]] = {}
        self.own_ns = self.n = 0
        for event, phase in PHASES.items():
            events.subscribe(event, self._begins(phase), self._ends(phase))
        at_fork("instruments", in_child=self.stop)

    def add(self, source: Source) -> None:
        """Read another source from now on: a name, and a function that returns the bytes held and
        the high-water mark (None if the source has no such mark)."""
        name, read = source
        allocated, high = read()
        self._sources.append(
            (
                name,
                read,
                self._recorder.name("memory", name, kind="counter", value="bytes"),
                [allocated, high or 0],
            )
        )

    def stop(self) -> None:
        """Stop reading."""
        self._over = True

    def _is_here(self, phase: str) -> bool:
        if self._over:
            return False
        tid = threading.get_ident()
        if phase == phase_names.BACKWARD and not self._trained:
            self._thread, self._trained = tid, True
        return tid == self._thread

    def _begins(self, phase: str) -> Any:
        def begins(*_: object) -> None:
            if self._is_here(phase):
                outside = phase_names.OTHER if self._rows else None
                self._read(self._inside[-1] if self._inside else outside)
                self._inside.append(phase)
                self._rows.setdefault(phase, {}).setdefault("entered", {"n": 0})["n"] += 1

        return begins

    def _ends(self, phase: str) -> Any:
        def ends(*_: object) -> None:
            if self._is_here(phase) and self._inside:
                self._read(self._inside.pop())

        return ends

    def _read(self, phase: str | None) -> None:
        """Read all sources; the changes since the last reading count for ``phase``. ``phase=None``:
        no phase has begun, and the changes do not count."""
        start_ns = perf_counter_ns()
        rows = self._rows.setdefault(phase, {}) if phase is not None else {}
        for name, read, counter, last in self._sources:
            allocated, high = read()
            row = rows.get(name)
            if row is None:
                row = rows[name] = {"growth": 0, "peak": 0}
            row["growth"] += allocated - last[0]
            most = max(allocated, last[0])
            # the high-water mark rose since the last reading: the peak was in this phase
            if high is not None and high > last[1]:
                last[1] = most = high
            if most > row["peak"]:
                row["peak"] = most
            last[0] = allocated
            self._recorder.counter(counter, start_ns, allocated)
        self.n += 1
        self.own_ns += perf_counter_ns() - start_ns

    def document(self) -> dict[str, Any]:
        """Return for each phase ``n``, how often it was entered, and for each source ``growth`` and
        ``peak``, in bytes. ``n`` is None for the phase ``other``."""
        document: dict[str, Any] = {}
        for phase in (*PHASES.values(), phase_names.OTHER):
            rows = self._rows.get(phase)
            if rows is not None:
                entered = rows.get("entered", {"n": None})["n"]
                document[phase] = {
                    "n": entered,
                    **{name: row for name, row in rows.items() if name != "entered"},
                }
        return document
