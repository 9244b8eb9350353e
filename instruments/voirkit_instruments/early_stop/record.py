"""``--stop N`` and ``--stop-after 30s``: end the script early and cleanly, with exit code 0.

The script ends by ``StopProgram``, raised in the main thread at the next given value. If no value
is given within half a second, it is raised between two instructions of the main thread
(``PyThreadState_SetAsyncExc``). That happens once, and not while the main thread is inside voirkit,
a destructor or the fetch of a tensor from a loader's worker. A call into C (a long sleep, a kernel)
is not interrupted: the exception comes when it returns. Loader workers end as they do after any
exception. Nothing is raised in another thread or in a forked child.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType

from voirkit.instrument import instrument_definition
from voirkit.phases import PhaseWithPriority, StopProgram
from voirkit_instruments.rates import RATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.runner.overseer import Overseer

# When stopping is due, how long to wait for a given value, at which the program can be stopped;
# then an exception is raised from another thread.
GRACE_S = 0.5
_OURS = ("voirkit", "voirkit_instruments", "giving", "reactivex", "ptera")
# Module of multiprocessing that connects to the process that shares a file descriptor. If the
# connection is interrupted, that process prints a traceback.
_HANDSHAKE = "multiprocessing.resource_sharer"


class Stopper:
    """Ends the program from its main thread, no matter which thread requests it."""

    def __init__(self, ov: Overseer) -> None:
        self._ov = ov
        self._process = os.getpid()
        self._due_ns = 1 << 62
        self._value: object = None
        self._raised = False
        self._over = threading.Event()
        ov.given.subscribe(self._on_event)

    def after(self, seconds: float, value: object = None) -> None:
        """Stop the program after ``seconds``, at the first given value or soon after."""
        due_ns = time.perf_counter_ns() + int(seconds * 1e9)
        if due_ns < self._due_ns and not self._over.is_set():
            self._due_ns, self._value = due_ns, value
            threading.Thread(
                target=self._insist, args=(due_ns,), name="voirkit-stop", daemon=True
            ).start()

    def now(self, value: object = None) -> None:
        """Stop the program here if this is the main thread, otherwise soon."""
        self.after(0, value)
        self._on_event({})

    def end(self) -> None:
        self._over.set()
        self._due_ns = 1 << 62

    def _on_event(self, event: dict[str, Any]) -> None:
        is_due = (
            time.perf_counter_ns() >= self._due_ns and not self._raised and not self._over.is_set()
        )
        if (
            is_due
            and threading.current_thread() is threading.main_thread()
            and os.getpid() == self._process
        ):
            self._raised = True
            self._ov.stop(self._value)

    def _insist(self, due_ns: int) -> None:
        """Raise in the main thread if no value is given in time; runs in another thread."""
        while (left_s := (due_ns - time.perf_counter_ns()) / 1e9 + GRACE_S) > 0:
            if self._over.wait(left_s):
                return
        from ctypes import c_ulong, py_object, pythonapi

        main = threading.main_thread().ident or 0
        while not self._over.is_set() and not self._raised:
            # The main thread is still at this frame when the exception is set: setting it takes
            # some microseconds, and this thread keeps the interpreter (the GIL) for 5 ms.
            if interruptible(sys._current_frames().get(main)):
                self._raised = True
                pythonapi.PyThreadState_SetAsyncExc(c_ulong(main), py_object(StopProgram))
                return
            self._over.wait(0.005)


def interruptible(frame: FrameType | None) -> bool:
    """True if an exception may be raised in a thread at this frame: it runs the program, not
    voirkit or a destructor.

    Python ignores exceptions of a destructor, and voirkit may hold a lock or be writing a file.
    Also False while the thread fetches a file descriptor (of a loader's tensor) from another
    process, which takes less than a millisecond.
    """
    innermost: str | None = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "__del__" or name == _HANDSHAKE:
            return False
        module = name.partition(".")[0]
        # frames of the standard library count as part of their caller
        if innermost is None and module not in sys.stdlib_module_names:
            innermost = module
        frame = frame.f_back
    return innermost not in _OURS


@instrument_definition
def early_stop(
    ov: Overseer,
    key: str,
    n: int,
    task: object = None,
    signal: type[BaseException] | str = StopProgram,
) -> Iterator[PhaseWithPriority]:
    """Stop the program when the key is given for the (n+1)-th time, so that the work on the n-th
    value is finished.

    Args:
        key: The key to count.
        n: Number of events that are let through.
        task: Count only events with this ``task``.
        signal: The exception to end with. If it is a string, it is logged as ``{"$event":
            signal}``, and nothing ends.

    Each of the first n events gives ``progress=(i, n)`` with ``task="early_stop"``.
    """
    yield ov.phases.init(priority=0)
    stopper = Stopper(ov)
    n_events = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal n_events
        if key not in event or event.get("task") == "early_stop":
            return
        if task is not None and event.get("task") != task:
            return
        n_events += 1
        if n_events <= n:
            ov.offer({"task": "early_stop", "progress": (n_events, n)})
        elif n_events == n + 1:
            if isinstance(signal, str):
                ov.log({"$event": signal})
            elif signal is StopProgram:
                stopper.now(event)
            else:
                ov.abort(signal(event))

    ov.given.subscribe(count)
    try:
        # ends before the instruments that still give values when the script has ended
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()


@instrument_definition
def stop_after_rates(ov: Overseer, n: int) -> Iterator[PhaseWithPriority]:
    """Stop when one task has given n rates. If no option for a rate is set, switch ``train_rate``
    on."""
    from voirkit_instruments.rates.record import NO_STEP, train_rate

    flags = [flag for flag in RATES if getattr(ov.options, flag, False)]
    if not flags or "--train-rate" in flags:
        ov.require(train_rate)
        flags = ["--train-rate"]
    keys = ["rate", *(flag[2:].replace("-", "_") for flag in flags)]  # "rate" is given by voirfiles
    n_rates: dict[tuple[str, object], int] = {}
    stopper = Stopper(ov)

    def count(event: dict[str, Any]) -> None:
        for key in keys:
            if key in event:
                series = (key, event.get("task"))
                n_rates[series] = n_rates.get(series, 0) + 1
                if n_rates[series] == n:
                    # not ``now``: all subscribers must see this event before the program stops
                    stopper.after(0)

    ov.given.subscribe(count)
    try:
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()
    if not n_rates:
        ov.warn(f"--stop {n} stopped nothing: no rate was given. {NO_STEP}")
        return
    most = max(n_rates.values())
    if most < n:
        ov.say(f"--stop {n} was not reached: the script ended after {most} of {n} rates.")


@instrument_definition
def stop_after_time(ov: Overseer, seconds: float) -> Iterator[PhaseWithPriority]:
    """Stop when the script has run for ``seconds``, counted from when it was loaded."""
    stopper = Stopper(ov)
    yield ov.phases.load_script(priority=-1000)
    stopper.after(seconds)
    try:
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    if (
        ov.argparser.value(ov.options, "--what-if")
        or ov.argparser.value(ov.options, "--what-if-setting") is not None
    ):
        # --what-if counts steps itself: the times of runs that are cut off by time cannot be
        # compared
        return
    if options["stop"] is not None:
        ov.require(stop_after_rates(options["stop"]))
    if options["stop_after"] is not None:
        ov.require(stop_after_time(options["stop_after"]))
