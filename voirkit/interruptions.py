"""Tells an exception that a signal handler of the program raised from one of the code that the signal came upon.

Python runs a handler in the middle of whatever the main thread does, also of a subscriber: what the handler raises (a timeout, the
``sys.exit`` of a preempted job, torch's "DataLoader worker is killed") is the program's, and must never be taken for the subscriber's.
"""

from __future__ import annotations

import signal
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def is_from_handler(exc: BaseException) -> bool:
    """Whether a signal handler raised it: in its traceback stands a call that has the signal and the calling frame as its arguments."""
    tb = exc.__traceback__
    while tb is not None and tb.tb_next is not None:
        if _is_handler(tb.tb_next.tb_frame, tb.tb_frame):
            return True
        tb = tb.tb_next
    return False


def _is_handler(frame: FrameType, caller: FrameType) -> bool:
    code = frame.f_code
    rest = bool(code.co_flags & 0x04)  # takes *args
    names = code.co_varnames[: code.co_argcount] + (code.co_varnames[code.co_argcount + code.co_kwonlyargcount :][:1] if rest else ())
    there = frame.f_locals  # the call has ended
    values = [there.get(name) for name in names]
    if rest and isinstance(values[-1], tuple):
        values[-1:] = values[-1]
    given = any(second is caller and isinstance(first, int) for first, second in pairwise(values))
    return given or _is_installed(code)


def _is_installed(code: object) -> bool:
    """Whether it is the code of a handler, which may have given its arguments other values."""
    for number in signal.valid_signals():
        try:
            handler = signal.getsignal(number)
        except ValueError:  # a number that python does not keep
            continue
        if callable(handler) and (getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)) is code:
            return True
    return False
