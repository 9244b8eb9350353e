"""Where phases begin and end, for whoever records system calls.

The steps and loader instruments, which stand around these functions, let this wrap what they call before and after them (``StepEvents``).
Nothing here may raise, but for what a signal handler of the program means for itself.
"""

from __future__ import annotations

import os
from functools import partial

from voirkit_instruments.syscalls.record_markers import OWN, PHASES, path_and_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit_instruments.steps.events import Calls

    Edge = Callable[[], object]


def do_nothing() -> None:
    """Nobody listens."""


# By phase what is called at its beginning and at its end. The lists stay the same, what is in them changes.
_edges: dict[str, list[Edge]] = {phase: [do_nothing, do_nothing] for phase in PHASES}


FETCH = "fetch"
# After these voirkit may make system calls: the size of a file, the number of the process, a clock of the processor.
_PHASES_WITH_CALLS = ("wait", "checkpoint", "transfer", "communication", FETCH)

TRACER = "tracer"
reported: set[str] = set()  # whether the loader instrument reports fetches, and whether a tracer listens
before_fetch: list[Edge] = [do_nothing]  # called when a batch is about to be fetched


def listen(make_entry: Callable[[str], Edge], make_exit: Callable[[str], Edge]) -> None:
    """Report the edges of phases from now on.

    Args:
        make_entry: Makes, of a phase's name, what is called at its beginning.
        make_exit: The same for its end.
    """
    for phase, edge in _edges.items():
        edge[:] = make_entry(phase), make_exit(phase)


def report_to_tracer() -> None:
    """Report them to a tracer, by calls that it sees."""
    reported.add(TRACER)
    listen(lambda phase: partial(os.access, *path_and_mode(f"{phase}+")), lambda phase: partial(os.access, *path_and_mode(f"{phase}-")))


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
    """What is called before and after a function, and the edges of a phase besides (``StepEvents.wrap_phases``)."""
    enter, leave = calls
    edge = _edges[phase]
    if phase == FETCH:
        reported.add(FETCH)
        enter = _as_own(partial(_enter_fetch, enter))
    leave_as_own = _as_own(leave) if phase in _PHASES_WITH_CALLS else leave

    def enter_and_report(*args: Any) -> Any:
        began = enter(*args)
        if began:
            edge[0]()
        return began

    def report_and_leave(began: Any, *args: Any) -> None:
        if not began:
            leave(began, *args)
            return
        edge[1]()
        leave_as_own(began, *args)

    return enter_and_report, report_and_leave


def _enter_fetch(enter: Callable[..., Any], *args: Any) -> Any:
    before_fetch[0]()
    return enter(*args)


def _as_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of voirkit's, in a phase of its own."""
    edge = _edges[OWN]

    def do(*args: Any, **more: Any) -> Any:
        edge[0]()
        try:
            return function(*args, **more)
        finally:
            edge[1]()

    return do


def watch_recorder() -> Callable[[], None]:
    """Have what voirkit's recorder does with files be a phase of its own; seldom, and in any thread.

    Returns:
        What undoes it.
    """
    from voirkit.trace import recorder
    from voirkit.trace.recording import Recording

    seldom = [(Recording, name) for name in ("arrive", "grow", "resolve", "lose", "write")]
    before = [(owner, name, getattr(owner, name)) for owner, name in (*seldom, (recorder, "_mine"))]  # the last asks for the process

    def undo() -> None:
        for owner, name, method in before:
            setattr(owner, name, method)

    for owner, name, method in before:
        setattr(owner, name, _as_own(method))
    return undo
