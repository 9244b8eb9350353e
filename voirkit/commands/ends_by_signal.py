"""Ctrl-C and SIGTERM end a command that writes as they end any other: without a traceback, and with nothing half written left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


@contextmanager
def ends_by_signal() -> Iterator[None]:
    """What the block has opened is closed and cleared up first; the process then ends by the signal itself, so that a shell sees it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, stop) for number in handled]
    try:
        yield
    except BaseException:  # DuckDB makes a RuntimeError of it
        if not received:
            raise
        signal.signal(received[0], signal.SIG_DFL)
        os.kill(os.getpid(), received[0])
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
