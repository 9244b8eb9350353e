"""What all streams share: one lock, what goes through them into the program, and where their failures are told.

The streams themselves (``voirkit.reactive``, and with it giving and reactivex: 170 ms of CPU) are loaded when one is first asked for here:
a child process that only sends events to its parent has none.
"""

from __future__ import annotations

import os
import threading
from bdb import BdbQuit

from voirkit.errors import tell
from voirkit.phases import OverseerAbort, StopProgram

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from voirkit.reactive import Direct, Given, Stream, of_nothing, place, place_of_failure

# One lock for all streams, since a probe's stream gives into another: with one lock each, two threads could wait for each other.
lock = threading.RLock()
LONGEST_WAIT_S = 1.0


def _new_lock() -> None:
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)  # another thread may have held it when this process was forked

# The threads that python knows of: with only one there is nobody to wait for.  (A thread of a library in C is not among them; the
# ones that call python, autograd's, do so while the thread that called them waits.)  Checked with 3.10 to 3.13.
threads: Any = getattr(threading, "_active", (None, None))


def in_turn(function: Callable[..., None], *data: Any) -> None:
    """Call a function while no other thread pushes.

    A subscriber may itself wait for a thread that gives: rather than have the two wait for each other, the order is given up.
    """
    turn = lock
    has_turn = turn.acquire(timeout=LONGEST_WAIT_S)
    try:
        function(*data)
    finally:
        if has_turn:
            turn.release()


def in_turn_within(seconds: float, function: Callable[[], None]) -> bool:
    """Call a function while no other thread pushes; False, and not at all, if others push for so long."""
    turn = lock
    if not turn.acquire(timeout=seconds):
        return False
    try:
        function()
    finally:
        turn.release()
    return True


class OnPurpose(BaseException):
    """Carries what ``.fail()`` raises through reactivex, which would take it for a failing subscriber."""


# What reaches the program: what is raised in order to. Anything else, SystemExit too, is a subscriber's failure.
MEANT = (OnPurpose, StopProgram, OverseerAbort, KeyboardInterrupt, BdbQuit)


def raise_on_purpose(carried: BaseException) -> NoReturn:
    """What ``.fail()`` raised comes out into the program as itself."""
    raise carried.args[0].with_traceback(carried.__traceback__) from None


def to_stderr(message: str) -> None:
    tell(message)


report: Callable[[str], None] = to_stderr
"""Where a failure is told; an overseer puts its own function here while it runs."""


def describe(exc: BaseException) -> str:
    """``Type: message``, whatever the exception's ``__str__`` does."""
    try:
        return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    except Exception:
        return type(exc).__name__


__all__ = [
    "MEANT",
    "Direct",
    "Given",
    "OnPurpose",
    "Stream",
    "describe",
    "in_turn",
    "in_turn_within",
    "of_nothing",
    "place",
    "place_of_failure",
    "raise_on_purpose",
    "report",
    "threads",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'voirkit.streams' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module("voirkit.reactive"), name)
    globals()[name] = value
    return value
