"""Where phases begin and end, told to whoever records system calls; in runs without ``--syscalls`` this module is not loaded.

The steps instrument asks, as it puts its patches in place, whether this module is there, and has what is called before and after a function
of torch tell this one too. Nothing here may raise, but for what a signal handler of the program means for itself.
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


def _nothing() -> None:
    """Nobody listens."""


# By phase what is called at its beginning and at its end. The lists stay the same, what is in them changes.
_edges: dict[str, list[Edge]] = {phase: [_nothing, _nothing] for phase in PHASES}


# After these the steps instrument may ask the system something: the size of a file, the number of the process.
_ASKING = ("wait", "checkpoint", "transfer", "communication")


TRACER = "tracer"
told: set[str] = set()  # phases whose edges another instrument tells; and whether a tracer listens
fetching: list[Edge] = [_nothing]  # called when a batch is about to be fetched


def listen(begin: Callable[[str], Edge], end: Callable[[str], Edge]) -> None:
    """From now on tell the edges of phases.

    Args:
        begin: Makes, of a phase's name, what is called at its beginning.
        end: The same for its end.
    """
    for phase, edge in _edges.items():
        edge[:] = begin(phase), end(phase)


def to_tracer() -> None:
    """Tell them to a tracer, by calls that it sees."""
    told.add(TRACER)
    listen(lambda phase: partial(os.access, *path_and_mode(f"{phase}+")), lambda phase: partial(os.access, *path_and_mode(f"{phase}-")))


def to_nobody() -> None:
    """Tell them no more."""
    told.discard(TRACER)
    listen(lambda phase: _nothing, lambda phase: _nothing)


def begins(phase: str) -> None:
    """A phase begins here and now."""
    _edges[phase][0]()


def ends(phase: str) -> None:
    """A phase ends here and now."""
    _edges[phase][1]()


def around(phase: str, enter: Callable[..., Any], leave: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What ``Around`` calls before and after a function, and tells the edges of a phase besides."""
    edge, own = _edges[phase], _edges[OWN]
    asks = phase in _ASKING

    def enter_and_tell(*args: Any) -> Any:
        began = enter(*args)
        if began:
            edge[0]()
        return began

    def tell_and_leave(began: Any, *args: Any) -> None:
        if not began:
            leave(began, *args)
            return
        edge[1]()
        if not asks:
            leave(began, *args)
            return
        own[0]()
        try:
            leave(began, *args)
        finally:
            own[1]()

    return enter_and_tell, tell_and_leave


def around_fetch(enter: Callable[..., Any], leave: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """As ``around``, of what the loader instrument calls before and after a batch is fetched: it reads clocks, which is voirkit's own."""
    edge, own = _edges["fetch"], _edges[OWN]
    told.add("fetch")

    def enter_and_tell(*args: Any) -> Any:
        own[0]()
        try:
            fetching[0]()
            began = enter(*args)
        finally:
            own[1]()
        if began:
            edge[0]()
        return began

    def tell_and_leave(began: Any, *args: Any) -> None:
        if began:
            edge[1]()
        own[0]()
        try:
            leave(began, *args)
        finally:
            own[1]()

    return enter_and_tell, tell_and_leave


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
