"""Edges (starts and ends) of phases, reported to the recorders of system calls; and the fetching of
batches as a phase. Checked with torch 2.1 and 2.15.

The steps and loader instruments patch torch's functions. ``StepEvents`` lets this module wrap their
callbacks. Nothing here may raise, except for exceptions from a signal handler of the program.

Edges reach a tracer as markers: calls that fail on purpose and show in the log where a phase begins
and ends. A marker is ``access("/vk!forward+", mode)``: ``+`` begins a phase, ``-`` ends it, and a
name alone identifies a process (``/vk!worker 3``). The kernel's own events hold only numbers, so
``mode`` encodes the message too. The mode is invalid for any file, so the kernel rejects the call
before it looks for the file.
"""

from __future__ import annotations

import os
import re
from functools import partial

from voirkit import phase_names
from voirkit.fork import at_fork
from voirkit.intercept import ThreadState
from voirkit.probes.around import Around
from voirkit.processes import inherit
from voirkit.runner import recording
from voirkit_instruments.steps.events import FunctionPatches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.steps.events import Calls

    Edge = Callable[[], object]

VOIRKIT = "voirkit"  # time in voirkit's own code, which is no part of the program
OTHER = phase_names.OTHER  # encloses all other phases, from the start of the program to its end
IMPORT = "import"
# Markers contain a phase's position in this list: append new phases at the end.
PHASES = (
    OTHER,
    VOIRKIT,
    phase_names.WAIT,
    "fetch",
    phase_names.FORWARD,
    phase_names.BACKWARD,
    phase_names.OPTIMIZER,
    "zero_grad",
    "checkpoint",
    phase_names.TRANSFER,
    phase_names.COMMUNICATION,
    IMPORT,
)

# The mode of a marker has "vk" in its upper 16 bits. The lower bits are twice the phase's position,
# plus 1 at the end of the phase; or ``_WORKER`` plus the number of a worker.
_MODE, _KIND, _WORKER = 0x766B0000, 0xFFFF0000, 0x8000
_TEXT = re.compile(r'"/vk!([^"]*)"')


def path_and_mode(message: str) -> tuple[str, int]:
    """Return the arguments of ``access`` for a marker: ``forward+``, ``forward-`` or ``worker
    3``."""
    path = f"/vk!{message}"
    phase, edge = message[:-1], message[-1]
    if phase in PHASES:
        return path, _MODE + 2 * PHASES.index(phase) + (edge == "-")
    return path, _MODE + _WORKER + int(message.rpartition(" ")[2])


def message_of_text(args: str) -> str | None:
    """Return the message of a marker, from the arguments of an ``access`` as strace prints them;
    None for a call of the program."""
    match = _TEXT.search(args)
    return match[1] if match is not None else None


def message_of_mode(mode: int) -> str | None:
    """Return the message of a marker, from its mode; None for a call of the program."""
    if mode & _KIND != _MODE or mode >> 32:
        return None
    number = mode & ~_KIND
    if number & _WORKER:
        return f"worker {number - _WORKER}"
    phase, edge = divmod(number, 2)
    return PHASES[phase] + "+-"[edge] if phase < len(PHASES) else None


def do_nothing() -> None:
    """Ignore the start or end of a phase: no recorder listens."""


# Callbacks at the start and the end of each phase. Wrapped functions hold these lists, so the lists
# stay the same objects, and only their elements are replaced.
_edges: dict[str, list[Edge]] = {phase: [do_nothing, do_nothing] for phase in PHASES}


FETCH = "fetch"
# When these phases end, voirkit's own callbacks may make system calls: to read a file's size, the
# process id or a CPU clock.
_PHASES_WITH_CALLS = (
    phase_names.WAIT,
    "checkpoint",
    phase_names.TRANSFER,
    phase_names.COMMUNICATION,
    FETCH,
)

TRACER = "tracer"
# contains ``FETCH`` if the loader instrument reports fetches, and ``TRACER`` if a tracer listens
reported: set[str] = set()


def listen(make_entry: Callable[[str], Edge], make_exit: Callable[[str], Edge]) -> None:
    """Report the starts and ends of phases from now on. Each factory is called with a phase's name
    and returns the callback for the start or the end of that phase."""
    for phase, edge in _edges.items():
        edge[:] = make_entry(phase), make_exit(phase)
    recording.report_imports(*_edges[IMPORT])


def report_to_tracer() -> None:
    """Report the starts and ends of phases to a tracer of system calls, by calls of ``access``."""
    reported.add(TRACER)

    def access(edge: str) -> Edge:
        return partial(os.access, *path_and_mode(edge))

    listen(lambda phase: access(f"{phase}+"), lambda phase: access(f"{phase}-"))


def report_to_nobody() -> None:
    """Stop reporting the starts and ends of phases."""
    reported.discard(TRACER)
    listen(lambda phase: do_nothing, lambda phase: do_nothing)


def enter(phase: str) -> None:
    """Report the start of a phase."""
    _edges[phase][0]()


def leave(phase: str) -> None:
    """Report the end of a phase."""
    _edges[phase][1]()


def around(phase: str, calls: Calls) -> Calls:
    """Return the callbacks around a function, extended so that they also report the start and end
    of a phase (``StepEvents.wrap_phases``)."""
    enter, leave = calls
    edge = _edges[phase]
    if phase == FETCH:
        reported.add(FETCH)
        enter = _as_own(partial(_enter_fetch, enter))
    leave_as_own = _as_own(leave) if phase in _PHASES_WITH_CALLS else leave

    def enter_and_report(*args: Any) -> Any:
        entered = enter(*args)
        if entered:
            edge[0]()
        return entered

    def report_and_leave(entered: Any, *args: Any) -> None:
        if not entered:
            leave(entered, *args)
            return
        edge[1]()
        leave_as_own(entered, *args)

    return enter_and_report, report_and_leave


def _enter_fetch(enter: Callable[..., Any], *args: Any) -> Any:
    watch = FetchWatch.of_process
    if watch is not None:
        watch.report()
    return enter(*args)


def _as_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of voirkit wrapped in voirkit's own phase."""
    edge = _edges[VOIRKIT]

    def do(*args: Any, **more: Any) -> Any:
        edge[0]()
        try:
            return function(*args, **more)
        finally:
            edge[1]()

    return do


def watch_recorder() -> Callable[[], None]:
    """Put the file operations of voirkit's recorder into voirkit's own phase. They are rare and may
    happen in any thread. Return a function that undoes this."""
    from voirkit.trace import recorder
    from voirkit.trace.recording import Recording

    functions: list[tuple[Any, str]] = [
        (Recording, name) for name in ("arrive", "grow", "resolve", "lose", "write")
    ]
    functions.append((recorder, "_mine"))  # makes a system call to get the process id
    before = [(owner, name, getattr(owner, name)) for owner, name in functions]

    def undo() -> None:
        for owner, name, method in before:
            setattr(owner, name, method)

    for owner, name, method in before:
        setattr(owner, name, _as_own(method))
    return undo


_START_IN_CHILD = "voirkit_instruments.syscalls.record_phases:begin_in_child"
_FETCHERS = ("_MapDatasetFetcher.fetch", "_IterableDatasetFetcher.fetch")


class FetchWatch:
    """Patches around the fetching of batches, in one process and those that it forks."""

    of_process: FetchWatch | None = None  # the instance of this process

    def __init__(self, warn: Callable[[str], None]) -> None:
        FetchWatch.of_process = self
        self._warn = warn
        self.patches = FunctionPatches(lambda line: warn(f"--syscalls: {line}"))
        self._has_reported = False  # True once this process has reported its worker number
        self.report_worker: Callable[[int], None] = mark_worker
        at_fork("instruments", in_child=self._after_fork)
        inherit.watch(_START_IN_CHILD, offer_to_children)
        self.patches.when_imported("torch.utils.data._utils.fetch", self._install)

    def _after_fork(self) -> None:
        self._has_reported = False

    def _install(self, module: ModuleType) -> None:
        if FETCH in reported:  # --loader has patched the function, which can have only one patch
            return
        state = ThreadState()

        def enter() -> int:
            state.inside = 1
            return 1

        def leave(entered: int, was_inside: int) -> None:
            state.inside = was_inside

        fetch = Around(state, 0, *around(FETCH, (enter, leave)))
        for path in _FETCHERS:
            self.patches.around_now(module, path, fetch)

    def report(self) -> None:
        """Report the worker number of this process, once, before its first batch."""
        if self._has_reported:
            return
        self._has_reported = True
        try:
            from torch.utils.data import get_worker_info

            info: Any = get_worker_info()
            if info is not None:
                self.report_worker(int(info.id))
        except Exception as exc:  # an unknown torch version must not stop the fetching of a batch
            self._warn(
                f"--syscalls: which worker process {os.getpid()} is, is not known"
                f" ({type(exc).__name__}: {exc})."
            )

    def remove(self) -> None:
        """Remove the patches."""
        inherit.unwatch(_START_IN_CHILD)
        self.patches.remove()


def mark_worker(number: int) -> None:
    """Mark for a tracer that this process is the worker with this number."""
    os.access(*path_and_mode(f"worker {number}"))


def offer_to_children() -> bool | None:
    """Return the settings for a spawned process: True if a tracer listens, else None."""
    return True if TRACER in reported else None


def begin_in_child(_: object) -> None:
    """Report fetches to the tracer, which also follows spawned processes. Called in the spawned
    process."""
    from voirkit.errors import tell
    from voirkit.processes.children import this_process
    from voirkit_instruments.steps.events import StepEvents

    if FetchWatch.of_process is None:
        report_to_tracer()
        this_process().shared(StepEvents).wrap_phases(around)
        watch_recorder()
        FetchWatch(tell)
