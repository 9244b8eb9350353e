"""The edges of phases, for whoever records system calls; and the fetching of batches as a phase.
Checked with torch 2.1 and 2.15.

The steps and loader instruments, which stand around these functions, let this wrap what they call
before and after them (``StepEvents``). Nothing here may raise, but for what a signal handler of the
program means for itself.

A tracer is told by markers: calls that fail on purpose and show in its log where a phase begins and
ends. A marker is ``access("/vk!forward+", mode)``: ``+`` begins a phase, ``-`` ends it, and a name
alone says what a process is (``/vk!worker 3``). The kernel's own events hold numbers only, so the
mode says it too. No file has such a mode, so that the kernel refuses it before it looks for the
file.
"""

from __future__ import annotations

import os
import re
from functools import partial

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

VOIRKIT = "voirkit"  # in which voirkit works for itself: nothing of it is the program's
OTHER = "other"  # around all others, from the beginning of tracing to its end
IMPORT = "import"
# Markers hold their places here: new ones come last.
PHASES = (
    OTHER,
    VOIRKIT,
    "wait",
    "fetch",
    "forward",
    "backward",
    "optimizer",
    "zero_grad",
    "checkpoint",
    "transfer",
    "communication",
    IMPORT,
)

# "vk", and below it twice the phase's number, or a worker's
_MODE, _KIND, _WORKER = 0x766B0000, 0xFFFF0000, 0x8000
_TEXT = re.compile(r'"/vk!([^"]*)"')


def path_and_mode(message: str) -> tuple[str, int]:
    """The arguments of ``access`` of a marker: ``forward+``, ``forward-`` or ``worker 3``."""
    path = f"/vk!{message}"
    phase, edge = message[:-1], message[-1]
    if phase in PHASES:
        return path, _MODE + 2 * PHASES.index(phase) + (edge == "-")
    return path, _MODE + _WORKER + int(message.rpartition(" ")[2])


def message_of_text(args: str) -> str | None:
    """The message of a marker, from the arguments of an ``access`` as strace prints them; None of a
    call of the program."""
    match = _TEXT.search(args)
    return match[1] if match is not None else None


def message_of_mode(mode: int) -> str | None:
    """The message of a marker, from its mode; None if it is a call of the program."""
    if mode & _KIND != _MODE or mode >> 32:
        return None
    number = mode & ~_KIND
    if number & _WORKER:
        return f"worker {number - _WORKER}"
    phase, edge = divmod(number, 2)
    return PHASES[phase] + "+-"[edge] if phase < len(PHASES) else None


def do_nothing() -> None:
    """Nobody listens."""


# By phase what is called at its beginning and at its end. The lists stay the same, what is in them
# changes.
_edges: dict[str, list[Edge]] = {phase: [do_nothing, do_nothing] for phase in PHASES}


FETCH = "fetch"
# After these voirkit may make system calls: the size of a file, the number of the process, a clock
# of the processor.
_PHASES_WITH_CALLS = ("wait", "checkpoint", "transfer", "communication", FETCH)

TRACER = "tracer"
# ``FETCH`` if the loader instrument reports fetches, ``TRACER`` if a tracer listens
reported: set[str] = set()


def listen(make_entry: Callable[[str], Edge], make_exit: Callable[[str], Edge]) -> None:
    """Report the edges of phases from now on: each by what is made for it of the phase's name."""
    for phase, edge in _edges.items():
        edge[:] = make_entry(phase), make_exit(phase)
    recording.report_imports(*_edges[IMPORT])


def report_to_tracer() -> None:
    """Report them to a tracer, by calls that it sees."""
    reported.add(TRACER)

    def access(edge: str) -> Edge:
        return partial(os.access, *path_and_mode(edge))

    listen(lambda phase: access(f"{phase}+"), lambda phase: access(f"{phase}-"))


def report_to_nobody() -> None:
    """Report them no more."""
    reported.discard(TRACER)
    listen(lambda phase: do_nothing, lambda phase: do_nothing)


def enter(phase: str) -> None:
    """A phase begins here and now."""
    _edges[phase][0]()


def leave(phase: str) -> None:
    """A phase ends here and now."""
    _edges[phase][1]()


def around(phase: str, calls: Calls) -> Calls:
    """The calls before and after a function, with the edges of a phase besides
    (``StepEvents.wrap_phases``)."""
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
    """A function of voirkit's, in a phase of its own."""
    edge = _edges[VOIRKIT]

    def do(*args: Any, **more: Any) -> Any:
        edge[0]()
        try:
            return function(*args, **more)
        finally:
            edge[1]()

    return do


def watch_recorder() -> Callable[[], None]:
    """Have what voirkit's recorder does with files be a phase of its own; seldom, and in any
    thread. Returns what undoes it."""
    from voirkit.trace import recorder
    from voirkit.trace.recording import Recording

    functions: list[tuple[Any, str]] = [
        (Recording, name) for name in ("arrive", "grow", "resolve", "lose", "write")
    ]
    functions.append((recorder, "_mine"))  # it asks for the process
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
    """The patches around the fetching of batches in one process and those that it forks."""

    of_process: FetchWatch | None = None  # the one of this process

    def __init__(self, warn: Callable[[str], None]) -> None:
        FetchWatch.of_process = self
        self._warn = warn
        self.patches = FunctionPatches(lambda line: warn(f"--syscalls: {line}"))
        self._has_reported = False  # which worker this process is
        self.report_worker: Callable[[int], None] = mark_worker
        at_fork("instruments", in_child=self._after_fork)
        inherit.watch(_START_IN_CHILD, offer_to_children)
        self.patches.when_imported("torch.utils.data._utils.fetch", self._install)

    def _after_fork(self) -> None:
        self._has_reported = False

    def _install(self, module: ModuleType) -> None:
        if FETCH in reported:  # --loader stands around it, where there is room for one
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
        """Report, before its first batch, which worker this process is."""
        if self._has_reported:
            return
        self._has_reported = True
        try:
            from torch.utils.data import get_worker_info

            info: Any = get_worker_info()
            if info is not None:
                self.report_worker(int(info.id))
        except Exception as exc:  # a torch that is not like any known one: the batch is fetched
            self._warn(
                f"--syscalls: which worker process {os.getpid()} is, is not known"
                f" ({type(exc).__name__}: {exc})."
            )

    def remove(self) -> None:
        """Remove the patches."""
        inherit.unwatch(_START_IN_CHILD)
        self.patches.remove()


def mark_worker(number: int) -> None:
    """Mark, for a tracer, which worker this process is."""
    os.access(*path_and_mode(f"worker {number}"))


def offer_to_children() -> bool | None:
    """The settings for a spawned process."""
    return True if TRACER in reported else None


def begin_in_child(_: object) -> None:
    """Report fetches to the tracer, which follows such a process: called in it."""
    from voirkit.errors import tell
    from voirkit.processes.children import this_process
    from voirkit_instruments.steps.events import StepEvents

    if FetchWatch.of_process is None:
        report_to_tracer()
        this_process().shared(StepEvents).wrap_phases(around)
        watch_recorder()
        FetchWatch(tell)
