"""A thread that does something every so many seconds while the script runs, never while the program forks, and never raises into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from voirkit.fork import at_fork

LAST_S = 5.0  # how long the end of a run waits for what is being done: a driver may hang


class PeriodicThread:
    """Calls ``act`` at once, every interval, and a last time when it is stopped; a subclass says what is done.

    Args:
        name: What the user knows it by.
        interval_s: From one call to the next.
        warn: Told, once, if it fails; it is not called again then.
        consequence: What that means: ``no more samples are taken``.

    Attributes:
        at_work: Held while something is done.
        cost_s: Processor time of this thread.
    """

    def __init__(self, name: str, interval_s: float, warn: Callable[[str], None], consequence: str) -> None:
        self._name, self._interval_s, self._warn, self._consequence = name, interval_s, warn, consequence
        self._over, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"voirkit-{name}", daemon=True)
        self.at_work = threading.RLock()
        self.cost_s, self.failed = 0.0, False

    def act(self) -> None:
        """What is done."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin."""
        at_fork("instruments", before=self._before_fork, in_parent=self._after_fork, in_child=self._in_child)
        self._thread.start()

    def stop(self) -> bool:
        """Act a last time, and end; whether that came in time."""
        self._over.set()
        self._thread.join(LAST_S)
        self._is_over = True
        if self._thread.is_alive():
            self._warn(f"{self._name}: the last figures did not come within {LAST_S:.0f} s; the run ends without them.")
        return not self._thread.is_alive()

    def _before_fork(self) -> None:
        if not self._is_over:
            self.at_work.acquire(timeout=LAST_S)

    def _after_fork(self) -> None:
        try:
            self.at_work.release()
        except RuntimeError:
            pass  # it could not be had

    def _in_child(self) -> None:
        self.at_work, self._is_over = threading.RLock(), True

    def _run(self) -> None:
        self._act()
        while not self._over.wait(self._interval_s):
            self._act()
        self._act()

    def _act(self) -> None:
        if self.failed:
            return
        began = time.thread_time()
        try:
            with self.at_work:
                self.act()
        except Exception as exc:  # whatever the system shows: the program goes on
            self.failed = True
            self._warn(f"{self._name}: {self._consequence} ({type(exc).__name__}: {exc}).")
        self.cost_s += time.thread_time() - began
