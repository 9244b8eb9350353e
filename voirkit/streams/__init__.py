"""The parts that all streams share: one lock, the exceptions that go through them into the program,
and the reports of their failures.

The streams themselves (``voirkit.streams.reactive``, and with it giving and reactivex: 170 ms of
CPU) are loaded when one is first asked for here: a child process that only sends events to its
parent has none.
"""

from __future__ import annotations

import _thread
import signal
import threading
from bdb import BdbQuit
from itertools import pairwise

from voirkit.errors import tell
from voirkit.fork import at_fork
from voirkit.phases import OverseerAbort, StopProgram

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn

    from voirkit.streams.reactive import (
        FastSubscriber,
        Given,
        Stream,
        of_nothing,
        place,
        place_of_failure,
    )

# Exceptions that the next events in the main thread are to raise.
_pending: list[BaseException] = []

# One lock for all streams, since a probe's stream gives into another: with one lock each, two
# threads could wait for each other.
lock = threading.RLock()
LONGEST_WAIT_S = 1.0


def _begin_in_child() -> None:
    global lock
    lock = threading.RLock()  # another thread may have held it
    _pending.clear()  # they are the parent's


at_fork("streams", in_child=_begin_in_child)

# How many threads python has started, beside the first one: with none there is nobody to wait for.
# (A thread of a library in C is not among them; the ones that call python, autograd's, do so while
# the thread that called them waits.  In a forked child those of the parent stay among them.)
# Checked with 3.10 to 3.13.
threads: Callable[[], int] = getattr(_thread, "_count", lambda: 1)


def in_turn(function: Callable[..., None], *data: Any) -> None:
    """Call a function, with an event of the program, while no other thread pushes.

    A subscriber may itself wait for a thread that gives: rather than have the two wait for each
    other, the order is given up.

    Raises:
        BaseException: That of ``function``; in the main thread, that of ``raise_soon``.
    """
    turn = lock
    has_turn = turn.acquire(timeout=LONGEST_WAIT_S)
    try:
        function(*data)
    finally:
        if has_turn:
            turn.release()
    if _pending and threading.get_ident() == threading.main_thread().ident:
        raise _pending.pop(0)


def raise_soon(exc: BaseException) -> None:
    """Have the next event in the main thread raise an exception that a subscriber raised on purpose
    in a thread that is not the program's.

    There it is as if a subscriber of that event had raised it.  An exception that comes between any
    two instructions would hit the program's ``finally`` blocks, and libraries in the middle of
    their work.
    """
    _pending.append(exc)


def cancel_pending(exc: BaseException) -> bool:
    """Have an exception not raised; False if it was already."""
    for index, other in enumerate(_pending):
        if other is exc:
            del _pending[index]
            return True
    return False


def in_turn_within(seconds: float, function: Callable[[], None]) -> bool:
    """Call a function while no other thread pushes; False, and not at all, if others push for so
    long."""
    turn = lock
    if not turn.acquire(timeout=seconds):
        return False
    try:
        function()
    finally:
        turn.release()
    return True


class OnPurpose(BaseException):
    """Carries an exception of ``.fail()`` through reactivex, which would take it for a failing
    subscriber.

    The caller of subscribers, for the program, unpacks it with ``raise_on_purpose``.
    """


# Exceptions that reach the program: those that are raised in order to. Anything else, SystemExit
# too, is a subscriber's failure.
MEANT = (StopProgram, OverseerAbort, KeyboardInterrupt, BdbQuit)
CARRIED = (OnPurpose, *MEANT)  # the same, on its way


def raise_on_purpose(carried: OnPurpose) -> NoReturn:
    """Raise an exception of ``.fail()``, or of a handler of signals, in the program as itself."""
    exc: BaseException = carried.args[0]
    if exc.__traceback__ is None:
        raise exc.with_traceback(carried.__traceback__) from None
    reraise(exc)


def reraise(exc: BaseException) -> NoReturn:
    """Raise an exception as it is."""
    context = exc.__context__
    try:
        raise exc
    finally:
        exc.__context__ = context  # python has put the exception there that is handled here


def is_meant(exc: BaseException) -> bool:
    """True if it only happened to be raised while voirkit or a subscriber ran, and is for the
    program.

    Such are the exceptions of a handler of signals, and those that come from a subscriber of a
    subscriber and were raised on purpose.
    """
    tb = exc.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code is raise_on_purpose.__code__:
            return True
        tb = tb.tb_next
    return is_from_handler(exc)


def is_from_handler(exc: BaseException) -> bool:
    """True if a signal handler of the program raised it: its traceback has a call with the signal
    and the calling frame as arguments.

    Python runs a handler in the middle of whatever the main thread does, also of a subscriber: an
    exception of the handler (a timeout, the ``sys.exit`` of a preempted job, torch's "DataLoader
    worker is killed") is the program's, and must never be taken for the subscriber's.
    """
    tb = exc.__traceback__
    while tb is not None and tb.tb_next is not None:
        if _is_handler(tb.tb_next.tb_frame, tb.tb_frame):
            return True
        tb = tb.tb_next
    return False


def _is_handler(frame: FrameType, caller: FrameType) -> bool:
    code = frame.f_code
    n_named = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: code.co_argcount]
    has_starred = bool(code.co_flags & 0x04)  # takes *args
    if has_starred:
        names += code.co_varnames[n_named : n_named + 1]
    variables = frame.f_locals  # the call has ended
    values = [variables.get(name) for name in names]
    if has_starred and isinstance(values[-1], tuple):
        values[-1:] = values[-1]
    for first, second in pairwise(values):
        if second is caller and isinstance(first, int):
            return True
    return _is_installed(code)


def _is_installed(code: object) -> bool:
    """True if it is the code of a handler, which may have given its arguments other values."""
    for number in signal.valid_signals():
        try:
            handler = signal.getsignal(number)
        except ValueError:  # a number that python does not keep
            continue
        if not callable(handler):
            continue
        own_code = getattr(handler, "__code__", None)
        if (own_code or getattr(type(handler).__call__, "__code__", None)) is code:
            return True
    return False


def to_stderr(message: str) -> None:
    tell(message)


report: Callable[[str], None] = to_stderr
"""Reports a failure; an overseer puts its own function here while it runs."""


def describe(exc: BaseException) -> str:
    """``Type: message``, whatever the exception's ``__str__`` does."""
    try:
        return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    except Exception:  # the exception's own __str__ may raise anything
        return type(exc).__name__


__all__ = [
    "CARRIED",
    "MEANT",
    "FastSubscriber",
    "Given",
    "OnPurpose",
    "Stream",
    "cancel_pending",
    "describe",
    "in_turn",
    "in_turn_within",
    "is_meant",
    "of_nothing",
    "place",
    "place_of_failure",
    "raise_on_purpose",
    "raise_soon",
    "report",
    "reraise",
    "threads",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'voirkit.streams' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module("voirkit.streams.reactive"), name)
    globals()[name] = value
    return value
