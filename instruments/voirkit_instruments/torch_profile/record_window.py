"""The recordings of a window of steps: begun and ended at the edges of steps, written into the run directory.

A window is one recording, or several: none goes on where a loader has no more (what comes then is evaluation, most often), nor where the
program forks (the child would record for ever), nor where it begins a profiler of its own.
"""

from __future__ import annotations

import os
import threading
import weakref

from voirkit.fork import at_fork
from voirkit.runs.directory import write_json
from voirkit.runs.ranks import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.memory.record import resident_bytes
from voirkit_instruments.probe_cost import ProbeCost
from voirkit_instruments.torch_profile import FOLDER
from voirkit_instruments.torch_profile.record_guard import Guard
from voirkit_instruments.torch_profile.record_kineto import Kineto

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.torch_profile.record_steps import Window

MOST_RECORDINGS = 16
_GROWN = 2 << 30  # bytes that the process may grow by in a recording: torch keeps it in memory
_recorded: weakref.WeakSet[Recorded] = weakref.WeakSet()


def _before_fork() -> None:
    for recorded in list(_recorded):
        recorded.forks()


def _after_fork() -> None:
    for recorded in list(_recorded):
        recorded.forget()


at_fork("instruments", before=_before_fork, in_child=_after_fork)


class Recorded:
    """What is recorded of one process.

    Args:
        torch: The module.
        run_dir: The run directory.
        window: Which steps.
        memory: Whether to record what operators allocate.
        most_bytes: What torch's files may take in all.
        warn: Told what does not go as asked.
    """

    def __init__(self, torch: ModuleType, run_dir: str, window: Window, memory: bool, most_bytes: int, warn: Callable[[str], None]) -> None:
        self._window, self._left_bytes, self._warn = window, most_bytes, warn
        self._kineto = Kineto(torch, memory)
        self._folder = os.path.join(run_dir, FOLDER)
        rank, host = rank_and_world_size()[0], os.uname().nodename
        self._stem = f"{host}-r{rank}-{os.getpid()}"
        self._taken: dict[str, Any] = {
            "schema": 1, "rank": rank, "host": host, "pid": os.getpid(), "torch": str(torch.__version__), "memory": memory,
            "window": window.document(), "recordings": [], "steps_seen": 0, "state": "waiting", "why": None,
        }  # fmt: skip
        self._cost = ProbeCost(recorder)
        self._thread: int | None = None  # the one that is recorded now
        self._began = (0, 0, 0)  # the step, and bytes held and the time then
        self._edges: list[int] = []  # when steps were over, in this recording
        self._steps = 0  # recorded in earlier recordings
        self._cancelled: int | None = None  # a thread whose recording torch has cancelled
        self._is_over = False
        self._forking = False
        self._guard = Guard(torch, self._give_way)
        _recorded.add(self)

    def edge(self, n: int) -> None:
        """A step begins, or may, in the thread that trains; ``n`` were before it."""
        if self._is_over:
            if self._cancelled is not None:
                self._drop()
            return
        if self._thread is not None:
            if n == self._began[0] + len(self._edges):
                return  # another request of the same step
            self._edges.append(recorder.now())
            self._kineto.mark()
            if n in self._window and not self._is_large():
                return
            self._end("")
            if self._is_over:
                return
        if n >= self._window.end or self._steps >= self._window.total:
            self._over()
        elif n in self._window:
            self._begin(n)

    def pause(self) -> None:
        """A loader has no more."""
        if self._thread is not None:
            self._end("")

    def forks(self) -> None:
        """The program is about to fork."""
        if self._thread == threading.get_ident() and not self._forking:
            self._forking = True
            try:
                self._end("a process was forked")
            finally:
                self._forking = False

    def forget(self) -> None:
        """This process has been forked."""
        self._is_over, self._thread, self._cancelled = True, None, None

    def _give_way(self) -> None:
        """The program begins a profiler of its own."""
        if self._is_over:
            return
        here = self._thread is None or self._thread == threading.get_ident()
        if self._thread is not None and here:
            self._end("the script began a profiler of its own")
        else:
            self._cancelled = self._thread  # torch cancels what is recorded of another thread
        done = f"{self._steps} of {self._window.total} steps were recorded"
        self._stop(f"the script uses torch's profiler itself, and there can be only one; {done}")

    def _drop(self) -> None:
        """Record no more in this thread: the program's profiler, for which torch has cancelled voirkit's, is over."""
        if self._cancelled == threading.get_ident() and not self._guard.runs:
            self._cancelled = None
            try:
                self._kineto.drop()
            except Exception as exc:
                self._failed("can not be ended", exc)

    # one recording

    def _begin(self, n: int) -> None:
        began = recorder.now()
        try:
            if self._kineto.is_taken():
                self._give_way()
                return
            os.makedirs(self._folder, exist_ok=True)
            self._taken["state"] = "recording"
            self._write()
            self._began, self._edges = (n, _held(), began), []
            self._kineto.begin()
            self._thread = threading.get_ident()
        except Exception as exc:
            self._failed("can not be begun", exc)
        finally:
            self._cost.add(began, recorder.now())

    def _end(self, why: str) -> None:
        """End this recording, and write it.

        Args:
            why: What ended it; empty if a step's end did.
        """
        began, self._thread = recorder.now(), None
        recordings = self._taken["recordings"]
        name = f"{self._stem}-{len(recordings)}"
        try:
            result = self._kineto.end()
            ended = recorder.now()
            first, done = self._began[0], len(self._edges)
            self._steps += done
            if (done or why) and self._is_saved(result, path := os.path.join(self._folder, f"{name}.trace.json")):
                recordings.append(
                    {"file": os.path.basename(path), "steps": [first, first + done], "marks": self._kineto.marks, "edges": self._edges,
                     "began_ns": self._began[2], "tid": threading.get_native_id(), "ended_ns": ended, "why": why or None}
                )  # fmt: skip
            self._taken["state"] = "waiting"
            self._write()
            if len(recordings) >= MOST_RECORDINGS and not self._is_over:
                self._stop(f"it was interrupted {MOST_RECORDINGS} times; {self._steps} of {self._window.total} steps were recorded")
        except Exception as exc:
            self._failed("can not be ended", exc)
        finally:
            self._cost.add(began, recorder.now())

    def _is_saved(self, result: Any, path: str) -> bool:
        """Write what was recorded, if there is room for it; else it is told, and nothing more is recorded."""
        result.save(path)
        self._left_bytes -= os.path.getsize(path)
        if self._left_bytes < 0:
            os.unlink(path)
            self._stop("what torch recorded is larger than --trace-limit")
        return self._left_bytes >= 0

    def _is_large(self) -> bool:
        if _held() - self._began[1] < _GROWN:
            return False
        done = self._steps + len(self._edges)
        self._stop(f"the process grew by 2 GiB in the window; {done} of {self._window.total} steps were recorded")
        return True

    def _failed(self, what: str, exc: Exception) -> None:
        self._stop(f"{what} ({type(exc).__name__}: {exc})".split("\n")[0])

    def _stop(self, why: str) -> None:
        """Record nothing more."""
        self._taken["why"] = why
        self._warn(f"--torch-profile: {why}.\n  The run goes on without it.")
        self._over()

    def _over(self) -> None:
        self._is_over, self._thread = True, None

    # the end

    def finish(self, n: int) -> None:
        """The program has ended, after so many steps."""
        _recorded.discard(self)
        if self._taken["pid"] != os.getpid():
            return
        if self._cancelled is not None:
            self._drop()
        self._guard.remove()
        if self._thread == threading.get_ident():
            self._end("the run ended")
        elif self._thread is not None:
            self._failed("can not be ended", RuntimeError("the thread that is recorded goes on"))
        self._taken.update(state="ended", steps_seen=n)
        if self._taken["why"] is None and self._steps < self._window.total:
            self._taken["why"] = self._warn_of_few(n)
        if os.path.isdir(self._folder) or self._taken["why"]:
            self._write()
        self._cost.report()

    def _warn_of_few(self, n: int) -> str:
        window = self._window
        if not n:
            why = "no step of a training was seen"
        elif n <= window.first:
            why = f"the run had {n} step{'s' if n > 1 else ''}, and the window begins after {window.first}"
        else:
            why = f"the run ended in the window: {self._steps} of {window.total} steps were recorded"
        fits = (
            f"\n  voirkit --torch-profile={max(n - 2, 0) // 2}:0:{min(window.active, max(n - max(n - 2, 0) // 2 - 1, 1))} SCRIPT"
            if n
            else ""
        )
        self._warn(f"--torch-profile: {why}.{fits}")
        return why

    def _write(self) -> None:
        try:
            os.makedirs(self._folder, exist_ok=True)
            write_json(os.path.join(self._folder, f"{self._stem}.json"), self._taken)
        except OSError as exc:
            if not self._is_over:
                self._failed("can not be written", exc)


def _held() -> int:
    """Bytes that this process holds; 0 where the system does not tell."""
    try:
        return resident_bytes()
    except (OSError, ValueError, IndexError):
        return 0
