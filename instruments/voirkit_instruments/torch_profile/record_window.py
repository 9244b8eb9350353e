"""The recordings of a window of steps: begun and ended at the edges of steps, written into the run directory.

A window is one recording, or several: none goes on where a loader has no more (what comes then is evaluation, most often), nor where the
program forks (the child would record for ever), nor where it begins a profiler of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from voirkit.fork import at_fork
from voirkit.imports import PatchPoint
from voirkit.runs.directory import write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.resources import resident_bytes
from voirkit_instruments.torch_profile import FOLDER
from voirkit_instruments.values import ProbeCost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.torch_profile.record import Window

MOST_RECORDINGS = 16
_GROWN = 2 << 30  # bytes that the process may grow by in a recording: torch keeps it in memory
MARK = "voirkit.mark"
_MARKS_EACH = 3  # at the begin and the end: the first is slow, of the others the best counts
_PROFILER_MODULES = ("torch.autograd", "torch.autograd.profiler", "torch.autograd.profiler_legacy")
PATCH_POINTS = (
    PatchPoint("torch.autograd", "_enable_profiler", "torch 2.1 to 2.15"),
    PatchPoint("torch.autograd.profiler", "_prepare_profiler", "torch 2.1 to 2.15"),
    PatchPoint("torch.autograd.profiler", "_enable_profiler", "torch 2.1 to 2.15"),
    PatchPoint("torch.autograd.profiler", "_disable_profiler", "torch 2.1 to 2.15"),
)
_BEGINNINGS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_ENDINGS = ("_disable_profiler", "_disable_profiler_legacy")


class Recorded:
    """What is recorded of one process. ``most_bytes``: what torch's files may take in all."""

    def __init__(self, torch: ModuleType, run_dir: str, window: Window, memory: bool, most_bytes: int, warn: Callable[[str], None]) -> None:
        self._window, self._left_bytes, self._warn = window, most_bytes, warn
        self._kineto = Kineto(torch, memory)
        self._folder = os.path.join(run_dir, FOLDER)
        rank, host = rank_and_world_size()[0], os.uname().nodename
        self._stem = f"{host}-r{rank}-{os.getpid()}"
        self._record: dict[str, Any] = {
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
        self._guard = ProfilerGuard(self._give_way)
        at_fork("instruments", before=self.before_fork, in_child=self.after_fork)

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
            self._end_recording("")
            if self._is_over:
                return
        if n >= self._window.end or self._steps >= self._window.total:
            self._finish_early()
        elif n in self._window:
            self._start_recording(n)

    def pause(self) -> None:
        """A loader has no more."""
        if self._thread is not None:
            self._end_recording("")

    def before_fork(self) -> None:
        """The program is about to fork."""
        if self._thread == threading.get_ident() and not self._forking:
            self._forking = True
            try:
                self._end_recording("a process was forked")
            finally:
                self._forking = False

    def after_fork(self) -> None:
        """This process has been forked."""
        self._is_over, self._thread, self._cancelled = True, None, None

    def _give_way(self) -> None:
        if self._is_over:
            return
        here = self._thread is None or self._thread == threading.get_ident()
        if self._thread is not None and here:
            self._end_recording("the script began a profiler of its own")
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
                self._failed("cannot be ended", exc)

    # one recording

    def _start_recording(self, n: int) -> None:
        began = recorder.now()
        try:
            if self._kineto.enabled():  # somebody else profiles this thread
                self._give_way()
                return
            os.makedirs(self._folder, exist_ok=True)
            self._record["state"] = "recording"
            self._write()
            self._began, self._edges = (n, _memory_bytes(), began), []
            self._kineto.start()
            self._thread = threading.get_ident()
        except Exception as exc:
            self._failed("cannot be begun", exc)
        finally:
            self._cost.add(began, recorder.now())

    def _end_recording(self, why: str) -> None:
        """End this recording, and write it.

        Args:
            why: What ended it; empty if a step's end did.
        """
        began, self._thread = recorder.now(), None
        recordings = self._record["recordings"]
        name = f"{self._stem}-{len(recordings)}"
        try:
            result = self._kineto.stop()
            ended = recorder.now()
            first, done = self._began[0], len(self._edges)
            self._steps += done
            if (done or why) and self._is_saved(result, path := os.path.join(self._folder, f"{name}.trace.json")):
                recordings.append(
                    {"file": os.path.basename(path), "steps": [first, first + done], "marks": self._kineto.marks, "edges": self._edges,
                     "began_ns": self._began[2], "tid": threading.get_native_id(), "ended_ns": ended, "why": why or None}
                )  # fmt: skip
            self._record["state"] = "waiting"
            self._write()
            if len(recordings) >= MOST_RECORDINGS and not self._is_over:
                self._stop(f"it was interrupted {MOST_RECORDINGS} times; {self._steps} of {self._window.total} steps were recorded")
        except Exception as exc:
            self._failed("cannot be ended", exc)
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
        if _memory_bytes() - self._began[1] < _GROWN:
            return False
        done = self._steps + len(self._edges)
        self._stop(f"the process grew by 2 GiB in the window; {done} of {self._window.total} steps were recorded")
        return True

    def _failed(self, what: str, exc: Exception) -> None:
        self._stop(f"{what} ({type(exc).__name__}: {exc})".split("\n")[0])

    def _stop(self, why: str) -> None:
        self._record["why"] = why
        self._warn(f"--torch-profile: {why}.\n  The run goes on without it.")
        self._finish_early()

    def _finish_early(self) -> None:
        self._is_over, self._thread = True, None

    # the end

    def finish(self, n: int) -> None:
        """The program has ended, after so many steps."""
        if self._record["pid"] != os.getpid():
            return
        if self._cancelled is not None:
            self._drop()
        self._guard.remove()
        if self._thread == threading.get_ident():
            self._end_recording("the run ended")
        elif self._thread is not None:
            self._failed("cannot be ended", RuntimeError("the thread that is recorded goes on"))
        self._record.update(state="ended", steps_seen=n)
        if self._record["why"] is None and self._steps < self._window.total:
            self._record["why"] = self._warn_of_few(n)
        if os.path.isdir(self._folder) or self._record["why"]:
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
            write_json(os.path.join(self._folder, f"{self._stem}.json"), self._record)
        except OSError as exc:
            if not self._is_over:
                self._failed("cannot be written", exc)


def _memory_bytes() -> int:
    """Bytes that this process holds; 0 where the system does not tell."""
    try:
        return resident_bytes()
    except (OSError, ValueError, IndexError):
        return 0


class Kineto:
    """torch's profiler of one thread, below ``torch.profiler``: one recording after the other. Nothing of ``torch.profiler`` is used that
    the program could see: no hook, no flag of its modules. Checked with torch 2.15 on a CPU; on a device it has not run."""

    def __init__(self, torch: Any, memory: bool) -> None:
        self._torch = torch
        native, profiler = torch._C._autograd, torch._C._profiler
        self._prepare, self._enable, self._disable = native._prepare_profiler, native._enable_profiler, native._disable_profiler
        self.enabled: Callable[[], bool] = native._profiler_enabled
        self._activity = profiler.ProfilerActivity
        self._config = profiler.ProfilerConfig(
            profiler.ProfilerState.KINETO, False, memory, False, False, False, profiler._ExperimentalConfig()
        )
        fast = getattr(profiler, "_RecordFunctionFast", None)
        self._marking: Callable[[], Any] = (lambda: fast(MARK)) if fast else (lambda: torch.autograd.profiler.record_function(MARK))
        self.marks: list[tuple[int, int]] = []  # for each mark of this recording, the clock before and after it, nanoseconds

    def start(self) -> None:
        """Record from now on, in this thread. Raises RuntimeError: torch refuses."""
        activities = {self._activity.CPU}
        cuda = self._torch.cuda
        if cuda.is_initialized() and self._activity.CUDA in self._torch._C._autograd._supported_activities():
            activities.add(self._activity.CUDA)
        # Kineto says on stderr that it begins and ends. It looks for this once, when prepared; the program's environment is as it was.
        said = "KINETO_LOG_LEVEL" in os.environ
        if not said:
            os.putenv("KINETO_LOG_LEVEL", "99")
        try:
            self._prepare(self._config, activities)
        finally:
            if not said:
                os.unsetenv("KINETO_LOG_LEVEL")
        self._enable(self._config, activities)
        self.marks = []
        for _ in range(_MARKS_EACH):
            self.mark()

    def mark(self) -> None:
        """Leave a mark in what is recorded, and note the clock: that is how both clocks are brought together."""
        marking = self._marking()
        enter, leave, now = marking.__enter__, marking.__exit__, time.perf_counter_ns
        before = now()
        enter()
        after = now()
        leave(None, None, None)
        self.marks.append((before, after))

    def stop(self) -> Any:
        """Record no more. Returns what was recorded, which has ``save(path)``. Raises RuntimeError: it was not this thread that began."""
        for _ in range(_MARKS_EACH):
            self.mark()
        cuda = self._torch.cuda
        if cuda.is_initialized():
            cuda.synchronize()  # as torch.profiler does: kernels that were started in the window belong to it
        return self._disable()

    def drop(self) -> None:
        """Take away from this thread what is left of a recording that torch has cancelled: what it has of it must not be touched."""
        self._dropped = self._disable()


class ProfilerGuard:
    """Notices that the program is about to begin a profiler of torch's: there can be only one, and it is the program's.

    Functions of torch's modules stand for others while a run is profiled; they are called by torch.profiler alone.

    Args:
        give_way: Called before the program begins a profiler, in the thread that does.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self.runs = False  # whether a profiler of the program runs
        self._put: list[tuple[Any, str, Any, Any]] = []
        for module in filter(None, map(sys.modules.get, _PROFILER_MODULES)):
            for name in (*_BEGINNINGS, *_ENDINGS):
                before = vars(module).get(name)
                if before is not None:
                    standing = self._around_begin(before) if name in _BEGINNINGS else self._around_end(before)
                    setattr(module, name, standing)
                    self._put.append((module, name, before, standing))

    def _around_begin(self, enable: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.runs = True
            self._give_way()
            return enable(*arguments, **named)

        return called

    def _around_end(self, disable: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            try:
                return disable(*arguments, **named)
            finally:
                self.runs = False

        return called

    def remove(self) -> None:
        """Put the functions back."""
        for module, name, before, standing in self._put:
            if vars(module).get(name) is standing:
                setattr(module, name, before)
        self._put.clear()
