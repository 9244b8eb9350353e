"""Ends the program from its main thread, in order, whoever decides that it is time.

The end is ``StopProgram``, raised in the main thread at the next given value. If none comes within half a second, it is
raised in the main thread between two instructions of the program (``PyThreadState_SetAsyncExc``), once, and not while
that thread is inside voirkit, a destructor or the fetch of a tensor from a loader's worker. A call into C (a long sleep,
a kernel) is not cut short: the exception comes when it returns. Worker processes of loaders end as they do after any
exception. Never raises in another thread or in a forked child.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from voirkit.phases import StopProgram

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from voirkit.runner.overseer import Overseer

GRACE_S = 0.5  # how long a given value is waited for
_OURS = ("voirkit", "voirkit_instruments", "giving", "reactivex", "ptera")
_HANDSHAKE = "multiprocessing.resource_sharer"  # connects to the process that shares: where it breaks off, that one prints a traceback


class Stopper:
    """Ends the program from its main thread, whoever decides that it is time.

    Args:
        ov: The overseer.
    """

    def __init__(self, ov: Overseer) -> None:
        self._ov = ov
        self._process = os.getpid()
        self._due_ns = 1 << 62
        self._value: object = None
        self._raised = False
        self._over = threading.Event()
        ov.given.subscribe(self._on_event)

    def after(self, seconds: float, value: object = None) -> None:
        """Stop when so much time has passed, at the first given value or soon after."""
        due_ns = time.perf_counter_ns() + int(seconds * 1e9)
        if due_ns < self._due_ns and not self._over.is_set():
            self._due_ns, self._value = due_ns, value
            threading.Thread(target=self._insist, args=(due_ns,), name="voirkit-stop", daemon=True).start()

    def now(self, value: object = None) -> None:
        """Stop here if this is the main thread, else soon."""
        self.after(0, value)
        self._on_event({})

    def end(self) -> None:
        """The script has ended: nothing is to be stopped any more."""
        self._over.set()
        self._due_ns = 1 << 62

    def _on_event(self, event: dict[str, Any]) -> None:
        if time.perf_counter_ns() >= self._due_ns and self._here() and not self._raised and not self._over.is_set():
            self._raised = True
            self._ov.stop(self._value)

    def _here(self) -> bool:
        return threading.current_thread() is threading.main_thread() and os.getpid() == self._process

    def _insist(self, due_ns: int) -> None:
        """In a thread of its own: raise in the main thread if no given value came."""
        while (left_s := (due_ns - time.perf_counter_ns()) / 1e9 + GRACE_S) > 0:
            if self._over.wait(left_s):
                return
        from ctypes import c_ulong, py_object, pythonapi

        main = threading.main_thread().ident or 0
        while not self._over.is_set() and not self._raised:
            # From this look to the raise takes some microseconds, and a thread keeps the interpreter for 5 ms: the main
            # thread stays there.
            if interruptible(sys._current_frames().get(main)):
                self._raised = True
                pythonapi.PyThreadState_SetAsyncExc(c_ulong(main), py_object(StopProgram))
                return
            self._over.wait(0.005)


def interruptible(frame: FrameType | None) -> bool:
    """Whether an exception may be raised in a thread at this frame: in the program, not in voirkit or a destructor.

    What a destructor raises is swallowed by python, and voirkit may hold a lock or be writing a file. Nor while the thread
    fetches a descriptor (a loader's tensor) from another process, which takes under a millisecond.
    """
    innermost: str | None = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "__del__" or name == _HANDSHAKE:
            return False
        module = name.partition(".")[0]
        if innermost is None and module not in sys.stdlib_module_names:  # a library's innermost frames belong to who called it
            innermost = module
        frame = frame.f_back
    return innermost not in _OURS
