"""Where phases begin and end, for whoever records system calls; in runs without ``--syscalls`` this module is not loaded.

The steps instrument asks, as it puts its patches in place, whether this module is there, and has what is called before and after a function
of torch reported here too. Nothing here may raise, but for what a signal handler of the program means for itself.
"""

from __future__ import annotations

import os
from functools import partial

from voirkit_instruments.syscalls.record_markers import OWN, PHASES, path_and_mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Edge = Callable[[], object]


def do_nothing() -> None:
    """Nobody listens."""


# By phase what is called at its beginning and at its end. The lists stay the same, what is in them changes.
_edges: dict[str, list[Edge]] = {phase: [do_nothing, do_nothing] for phase in PHASES}


# After these the steps instrument may make system calls: the size of a file, the number of the process.
_PHASES_WITH_CALLS = ("wait", "checkpoint", "transfer", "communication")


TRACER = "tracer"
reported: set[str] = set()  # phases whose edges another instrument reports; and whether a tracer listens
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


def around(phase: str, enter: Callable[..., Any], leave: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What ``Around`` calls before and after a function, and the edges of a phase besides."""
    edge, own = _edges[phase], _edges[OWN]
    has_calls = phase in _PHASES_WITH_CALLS

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
        if not has_calls:
            leave(began, *args)
            return
        own[0]()
        try:
            leave(began, *args)
        finally:
            own[1]()

    return enter_and_report, report_and_leave


def around_fetch(enter: Callable[..., Any], leave: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """As ``around``, of what the loader instrument calls before and after a batch is fetched: it reads clocks, which is voirkit's own."""
    edge, own = _edges["fetch"], _edges[OWN]
    reported.add("fetch")

    def enter_and_report(*args: Any) -> Any:
        own[0]()
        try:
            before_fetch[0]()
            began = enter(*args)
        finally:
            own[1]()
        if began:
            edge[0]()
        return began

    def report_and_leave(began: Any, *args: Any) -> None:
        if began:
            edge[1]()
        own[0]()
        try:
            leave(began, *args)
        finally:
            own[1]()

    return enter_and_report, report_and_leave


def watch_recorder() -> Callable[[], None]:
    """Have what voirkit's recorder does with files be a phase of its own; seldom, and in any thread.

    Returns:
        What undoes it.
    """
    from voirkit.trace import recorder
    from voirkit.trace.recording import Recording

    edge = _edges[OWN]
    seldom = [(Recording, name) for name in ("arrive", "grow", "resolve", "lose", "write")]
    before = [(owner, name, getattr(owner, name)) for owner, name in (*seldom, (recorder, "_mine"))]  # the last asks for the process

    def own(method: Any) -> Any:
        def do(*args: Any, **more: Any) -> Any:
            edge[0]()
            try:
                return method(*args, **more)
            finally:
                edge[1]()

        return do

    def undo() -> None:
        for owner, name, method in before:
            setattr(owner, name, method)

    for owner, name, method in before:
        setattr(owner, name, own(method))
    return undo
