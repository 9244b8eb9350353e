"""Shared parts of all streams: the lock, exceptions meant for the program, and failure reports.

The streams themselves are in ``voirkit.streams.reactive``, which also loads giving and reactivex
(170 ms of CPU time). That module is imported when one of its names is first accessed here. A child
process that only sends events to its parent never needs it.
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

# Exceptions to raise in the main thread, one at each of its next events.
_pending: list[BaseException] = []

# One lock for all streams, since events of a probe's stream may be pushed into another stream. With
# one lock per stream, two threads could deadlock.
lock = threading.RLock()
LONGEST_WAIT_S = 1.0


def _begin_in_child() -> None:
    global lock
    lock = threading.RLock()  # a thread of the parent may have held the old lock
    _pending.clear()  # these exceptions are for the parent


at_fork("streams", in_child=_begin_in_child)

# Returns the number of threads that Python has started, without the main thread. If it is 0, no
# lock is needed. Threads of C libraries, such as those of autograd, are not counted: while one of
# them executes Python code, the thread that called the library waits. A forked child counts its
# parent's threads too.
# Checked with Python 3.10 to 3.13.
threads: Callable[[], int] = getattr(_thread, "_count", lambda: 1)


def in_turn(function: Callable[..., None], *data: Any) -> None:
    """Call ``function(*data)``, which pushes an event into a stream, while no other thread does so.

    Waits at most ``LONGEST_WAIT_S`` for the lock, then calls the function without it. This avoids a
    deadlock if a subscriber waits for a thread that pushes an event.

    Raises:
        BaseException: The exception that ``function`` raised. In the main thread, also an exception
            passed to ``raise_soon``.
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
    """Raise an exception at the next event in the main thread, as if a subscriber of that event had
    raised it. For exceptions that a subscriber raises on purpose in a thread that is not the
    program's.

    An asynchronous exception, which may occur between any two instructions, would not do: it could
    interrupt ``finally`` blocks of the program, and libraries in the middle of their work.
    """
    _pending.append(exc)


def cancel_pending(exc: BaseException) -> bool:
    """Cancel an exception passed to ``raise_soon``. False if it has already been raised."""
    for index, other in enumerate(_pending):
        if other is exc:
            del _pending[index]
            return True
    return False


def in_turn_within(seconds: float, function: Callable[[], None]) -> bool:
    """Call a function while no other thread pushes events into streams. If the lock is not free
    within ``seconds``, return False without calling the function."""
    turn = lock
    if not turn.acquire(timeout=seconds):
        return False
    try:
        function()
    finally:
        turn.release()
    return True


class OnPurpose(BaseException):
    """Wrapper that carries an exception of ``.fail()`` through reactivex, which would otherwise
    treat it as a failure of the subscriber.

    The code that calls subscribers unwraps it with ``raise_on_purpose``, so that it reaches the
    program.
    """


# Exceptions of subscribers that are raised on purpose, and reach the program. Any other exception,
# including SystemExit, is a failure of the subscriber.
MEANT = (StopProgram, OverseerAbort, KeyboardInterrupt, BdbQuit)
# The exceptions that code between a subscriber and the program must let pass.
CARRIED = (OnPurpose, *MEANT)


def raise_on_purpose(carried: OnPurpose) -> NoReturn:
    """Unwrap and raise an exception of ``.fail()`` or of a signal handler of the program."""
    exc: BaseException = carried.args[0]
    if exc.__traceback__ is None:
        raise exc.with_traceback(carried.__traceback__) from None
    reraise(exc)


def reraise(exc: BaseException) -> NoReturn:
    """Raise an exception without changing its ``__context__``."""
    context = exc.__context__
    try:
        raise exc
    finally:
        exc.__context__ = context  # ``raise`` set it to the exception that is being handled now


def is_meant(exc: BaseException) -> bool:
    """True if an exception is meant for the program, and not a failure of voirkit or a subscriber.

    This holds for exceptions of a signal handler of the program, and for exceptions that a nested
    push of events has already unwrapped with ``raise_on_purpose``.
    """
    tb = exc.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code is raise_on_purpose.__code__:
            return True
        tb = tb.tb_next
    return is_from_handler(exc)


def is_from_handler(exc: BaseException) -> bool:
    """True if a signal handler of the program raised an exception. The sign is a call in the
    traceback whose arguments are a signal number and the calling frame.

    Python runs signal handlers in the middle of whatever the main thread executes, which may be a
    subscriber. An exception of the handler must never be taken for a failure of the subscriber.
    Examples are a timeout, the ``sys.exit`` of a preempted job, and torch's "DataLoader worker is
    killed".
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
    has_starred = bool(code.co_flags & 0x04)  # CO_VARARGS: the function takes *args
    if has_starred:
        names += code.co_varnames[n_named : n_named + 1]
    variables = frame.f_locals  # at the end of the call: the function may have rebound arguments
    values = [variables.get(name) for name in names]
    if has_starred and isinstance(values[-1], tuple):
        values[-1:] = values[-1]
    for first, second in pairwise(values):
        if second is caller and isinstance(first, int):
            return True
    return _is_installed(code)


def _is_installed(code: object) -> bool:
    """True if a code object is that of an installed signal handler. Used in case the handler has
    rebound its arguments, so that they do not identify it."""
    for number in signal.valid_signals():
        try:
            handler = signal.getsignal(number)
        except ValueError:  # Python does not support this signal number
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
"""The function that reports failures of streams. An overseer replaces it while it runs."""


def describe(exc: BaseException) -> str:
    """Return ``Type: message`` of an exception; the type alone if there is no message or its
    ``__str__`` raises."""
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
