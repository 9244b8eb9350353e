"""How much memory the process holds, phase by phase: read where a phase of training begins and ends, in the thread that trains.

What is held between two readings changes in the phase that the thread is in then, the innermost; so that growth sums to the process's.
"""

from __future__ import annotations

import os
import threading
from time import perf_counter_ns

from voirkit_instruments.steps.events import BACKWARD, BATCH_REQUESTED, FORWARD, OPTIMIZER_STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit_instruments.steps.events import StepEvents

PHASES = {BATCH_REQUESTED: "wait", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER_STEP: "optimizer"}
OTHER = "other"
Source = tuple[str, "Callable[[], tuple[int, int | None]]"]


def resident() -> Source | None:
    """``rss``: what the process holds, with what its high-water mark is; None where the system does not tell."""
    try:
        import resource

        last = held()
    except (ImportError, OSError, ValueError, IndexError):
        return None
    usage, whose = resource.getrusage, resource.RUSAGE_SELF

    def read() -> tuple[int, int | None]:
        nonlocal last
        try:
            last = held()
        except OSError as exc:  # no descriptor is left to the program
            if not _is_of(exc, held):
                raise
        return last, usage(whose).ru_maxrss * 1024

    return "rss", read


def held() -> int:
    """Bytes that this process holds. No descriptor is kept: a script may close all that it did not open.

    Raises:
        OSError, ValueError, IndexError: The system does not tell.
    """
    file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(file, 64).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(file)


def _is_of(exc: BaseException, function: Callable[..., Any]) -> bool:
    """Whether a function itself has raised this, and not a handler of the program's, of a signal that came meanwhile."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is function.__code__


class MemoryPhases:
    """What the phases of one run do to the memory.

    Args:
        events: Tells where phases begin and end.
        recorder: ``voirkit.trace.recorder``; gets a counter for each reading.

    Attributes:
        own_ns: What the readings took, and ``n`` how many there were.
    """

    def __init__(self, events: StepEvents, recorder: Any) -> None:
        self._recorder = recorder
        self._sources: list[tuple[str, Any, int, list[int]]] = []  # with the counter, and [held last, high-water mark]
        self._inside: list[str] = []
        self._thread = threading.main_thread().ident
        self._trained = False
        self._over = False
        self._rows: dict[str, dict[str, dict[str, int]]] = {}
        self.own_ns = self.n = 0
        for event, phase in PHASES.items():
            events.subscribe(event, self._begins(phase), self._ends(phase))
        os.register_at_fork(after_in_child=self.stop)

    def add(self, source: Source) -> None:
        """Read this too: its name, and what gives bytes held, and its highest mark if it keeps one that only rises."""
        name, read = source
        held, high = read()
        self._sources.append((name, read, self._recorder.name("memory", name, kind="counter", value="bytes"), [held, high or 0]))

    def stop(self) -> None:
        """Read no more."""
        self._over = True

    def _is_here(self, phase: str) -> bool:
        if self._over:
            return False
        here = threading.get_ident()
        if phase == "backward" and not self._trained:
            self._thread, self._trained = here, True
        return here == self._thread

    def _begins(self, phase: str) -> Any:
        def begins(*_: object) -> None:
            if self._is_here(phase):
                self._read(self._inside[-1] if self._inside else OTHER if self._rows else None)
                self._inside.append(phase)
                self._rows.setdefault(phase, {}).setdefault("entered", {"n": 0})["n"] += 1

        return begins

    def _ends(self, phase: str) -> Any:
        def ends(*_: object) -> None:
            if self._is_here(phase) and self._inside:
                self._read(self._inside.pop())

        return ends

    def _read(self, phase: str | None) -> None:
        """Read; what has changed since was in this phase. None: before the first, from which on all is counted."""
        began = perf_counter_ns()
        rows = self._rows.setdefault(phase, {}) if phase is not None else {}
        for name, read, counter, last in self._sources:
            held, high = read()
            row = rows.get(name)
            if row is None:
                row = rows[name] = {"growth": 0, "peak": 0}
            row["growth"] += held - last[0]
            most = max(held, last[0])
            if high is not None and high > last[1]:  # the process has never held more than in this phase
                last[1] = most = high
            if most > row["peak"]:
                row["peak"] = most
            last[0] = held
            self._recorder.counter(counter, began, held)
        self.n += 1
        self.own_ns += perf_counter_ns() - began

    def document(self) -> dict[str, Any]:
        """By phase: ``n`` (how often it was entered) and for each source ``growth`` and ``peak``, bytes."""
        found: dict[str, Any] = {}
        for phase in (*PHASES.values(), OTHER):
            rows = self._rows.get(phase)
            if rows is not None:
                found[phase] = {
                    "n": rows.get("entered", {"n": None})["n"],
                    **{name: row for name, row in rows.items() if name != "entered"},
                }
        return found
