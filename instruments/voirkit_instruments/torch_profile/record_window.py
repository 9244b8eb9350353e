"""The recordings of a window of steps: begun and ended at the edges of steps, written into the run
directory.

A window is one recording, or several: none goes on where a loader has no more (what comes then is
evaluation, most often), nor where the program forks (the child would record for ever), nor where it
begins a profiler of its own.
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
_MARKS_EACH = 3  # at the start and the end: the first is slow, of the others the best counts
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
    """The recordings of one process. ``most_bytes``: what torch's files may take in all."""

    def __init__(
        self,
        torch: ModuleType,
        run_dir: str,
        window: Window,
        memory: bool,
        most_bytes: int,
        warn: Callable[[str], None],
    ) -> None:
        self._window = window
        self._left_bytes = most_bytes
        self._warn = warn
        self._kineto = Kineto(torch, memory)
        self._folder = os.path.join(run_dir, FOLDER)
        rank = rank_and_world_size()[0]
        host = os.uname().nodename
        self._stem = f"{host}-r{rank}-{os.getpid()}"
        self._record: dict[str, Any] = {
            "schema": 1,
            "rank": rank,
            "host": host,
            "pid": os.getpid(),
            "torch": str(torch.__version__),
            "memory": memory,
            "window": window.document(),
            "recordings": [],
            "steps_seen": 0,
            "state": "waiting",
            "why": None,
        }
        self._cost = ProbeCost(recorder)
        self._thread: int | None = None  # the one that is recorded now
        # of this recording
        self._first_step = 0
        self._start_bytes = 0  # that the process held
        self._start_ns = 0
        self._edges: list[int] = []  # when steps were over
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
            if n == self._first_step + len(self._edges):
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
        self._is_over = True
        self._thread = None
        self._cancelled = None

    def _give_way(self) -> None:
        if self._is_over:
            return
        if self._thread == threading.get_ident():
            self._end_recording("the script began a profiler of its own")
        else:
            self._cancelled = self._thread  # torch cancels what is recorded of another thread
        self._stop(
            "the script uses torch's profiler itself, and there can be only one;"
            f" {self._steps_recorded(self._steps)}"
        )

    def _steps_recorded(self, n: int) -> str:
        return f"{n} of {self._window.total} steps were recorded"

    def _drop(self) -> None:
        """Record no more in this thread: the program's profiler, for which torch has cancelled
        voirkit's, is over."""
        if self._cancelled == threading.get_ident() and not self._guard.runs:
            self._cancelled = None
            try:
                self._kineto.drop()
            except Exception as exc:  # whatever torch raises: the program's step goes on
                self._failed("cannot be ended", exc)

    # one recording

    def _start_recording(self, n: int) -> None:
        start_ns = recorder.now()
        try:
            if self._kineto.enabled():  # somebody else profiles this thread
                self._give_way()
                return
            os.makedirs(self._folder, exist_ok=True)
            self._record["state"] = "recording"
            self._write()
            self._first_step = n
            self._start_bytes = _memory_bytes()
            self._start_ns = start_ns
            self._edges = []
            self._kineto.start()
            self._thread = threading.get_ident()
        except Exception as exc:  # whatever torch raises: the program's step goes on
            self._failed("cannot be begun", exc)
        finally:
            self._cost.add(start_ns, recorder.now())

    def _end_recording(self, why: str) -> None:
        """End this recording, and write it.

        Args:
            why: What ended it; empty if a step's end did.
        """
        now_ns = recorder.now()
        self._thread = None
        recordings = self._record["recordings"]
        try:
            result = self._kineto.stop()
            ended_ns = recorder.now()
            n_steps = len(self._edges)
            self._steps += n_steps
            name = f"{self._stem}-{len(recordings)}.trace.json"
            if (n_steps or why) and self._is_saved(result, os.path.join(self._folder, name)):
                recordings.append(
                    {
                        "file": name,
                        "steps": [self._first_step, self._first_step + n_steps],
                        "marks": self._kineto.marks,
                        "edges": self._edges,
                        "began_ns": self._start_ns,
                        "tid": threading.get_native_id(),
                        "ended_ns": ended_ns,
                        "why": why or None,
                    }
                )
            self._record["state"] = "waiting"
            self._write()
            if len(recordings) >= MOST_RECORDINGS and not self._is_over:
                self._stop(
                    f"it was interrupted {MOST_RECORDINGS} times;"
                    f" {self._steps_recorded(self._steps)}"
                )
        except Exception as exc:  # whatever torch raises: the program's step goes on
            self._failed("cannot be ended", exc)
        finally:
            self._cost.add(now_ns, recorder.now())

    def _is_saved(self, result: Any, path: str) -> bool:
        """Write what was recorded, if there is room for it; else a warning says so, and nothing
        more is recorded."""
        result.save(path)
        self._left_bytes -= os.path.getsize(path)
        if self._left_bytes < 0:
            os.unlink(path)
            self._stop("what torch recorded is larger than --trace-limit")
        return self._left_bytes >= 0

    def _is_large(self) -> bool:
        if _memory_bytes() - self._start_bytes < _GROWN:
            return False
        n_steps = self._steps + len(self._edges)
        self._stop(f"the process grew by 2 GiB in the window; {self._steps_recorded(n_steps)}")
        return True

    def _failed(self, words: str, exc: Exception) -> None:
        message = f"{words} ({type(exc).__name__}: {exc})"
        self._stop(message.split("\n")[0])

    def _stop(self, why: str) -> None:
        self._record["why"] = why
        self._warn(f"--torch-profile: {why}.\n  The run goes on without it.")
        self._finish_early()

    def _finish_early(self) -> None:
        self._is_over = True
        self._thread = None

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
            self._failed("cannot be ended", RuntimeError("the recorded thread is still running"))
        self._record.update(state="ended", steps_seen=n)
        if self._record["why"] is None and self._steps < self._window.total:
            self._record["why"] = self._warn_of_few(n)
        if os.path.isdir(self._folder) or self._record["why"]:
            self._write()
        self._cost.report()

    def _warn_of_few(self, n: int) -> str:
        """Warn that too few steps were recorded, with a window that fits; returns the reason."""
        window = self._window
        if not n:
            why = "no step of a training was seen"
        elif n <= window.first:
            plural = "s" if n > 1 else ""
            why = f"the run had {n} step{plural}, and the window begins after {window.first}"
        else:
            why = f"the run ended in the window: {self._steps_recorded(self._steps)}"
        advice = ""
        if n:
            skip = max(n - 2, 0) // 2
            active = min(window.active, max(n - skip - 1, 1))
            advice = f"\n  voirkit --torch-profile={skip}:0:{active} SCRIPT"
        self._warn(f"--torch-profile: {why}.{advice}")
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
    """torch's profiler of one thread, below ``torch.profiler``: one recording after the other.
    Nothing of ``torch.profiler`` is used that the program could see: no hook, no flag of its
    modules. Checked with torch 2.15 on a CPU; on a device it has not run."""

    def __init__(self, torch: Any, memory: bool) -> None:
        self._torch = torch
        native, profiler = torch._C._autograd, torch._C._profiler
        self._prepare = native._prepare_profiler
        self._enable = native._enable_profiler
        self._disable = native._disable_profiler
        self.enabled: Callable[[], bool] = native._profiler_enabled
        self._activity = profiler.ProfilerActivity
        self._config = profiler.ProfilerConfig(
            profiler.ProfilerState.KINETO,
            False,
            memory,
            False,
            False,
            False,
            profiler._ExperimentalConfig(),
        )
        fast = getattr(profiler, "_RecordFunctionFast", None)
        self._marking: Callable[[], Any]
        if fast:
            self._marking = lambda: fast(MARK)
        else:
            self._marking = lambda: torch.autograd.profiler.record_function(MARK)
        # for each mark of this recording, the clock before and after it, nanoseconds
        self.marks: list[tuple[int, int]] = []

    def start(self) -> None:
        """Record from now on, in this thread. Raises RuntimeError: torch refuses."""
        activities = {self._activity.CPU}
        if self._torch.cuda.is_initialized():
            supported = self._torch._C._autograd._supported_activities()
            if self._activity.CUDA in supported:
                activities.add(self._activity.CUDA)
        # Kineto says on stderr that it begins and ends. It looks for this once, when prepared; the
        # program's environment is as it was.
        has_log_level = "KINETO_LOG_LEVEL" in os.environ
        if not has_log_level:
            os.putenv("KINETO_LOG_LEVEL", "99")
        try:
            self._prepare(self._config, activities)
        finally:
            if not has_log_level:
                os.unsetenv("KINETO_LOG_LEVEL")
        self._enable(self._config, activities)
        self.marks = []
        for _ in range(_MARKS_EACH):
            self.mark()

    def mark(self) -> None:
        """Leave a mark in what is recorded, and note the clock: that is how both clocks are brought
        together."""
        marking = self._marking()
        enter, leave, now = marking.__enter__, marking.__exit__, time.perf_counter_ns
        before = now()
        enter()
        after = now()
        leave(None, None, None)
        self.marks.append((before, after))

    def stop(self) -> Any:
        """Record no more. Returns what was recorded, which has ``save(path)``. Raises RuntimeError:
        it was not this thread that began."""
        for _ in range(_MARKS_EACH):
            self.mark()
        cuda = self._torch.cuda
        if cuda.is_initialized():
            # as torch.profiler does: kernels that were started in the window belong to it
            cuda.synchronize()
        return self._disable()

    def drop(self) -> None:
        """Take away from this thread what is left of a recording that torch has cancelled: what it
        has of it must not be touched."""
        self._dropped = self._disable()


class ProfilerGuard:
    """Notices that the program is about to begin a profiler of torch's: there can be only one, and
    it is the program's.

    Functions of torch's modules stand for others while a run is profiled; they are called by
    torch.profiler alone.

    Args:
        give_way: Called before the program begins a profiler, in the thread that does.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self.runs = False  # True while a profiler of the program runs
        self._patches: list[tuple[Any, str, Any, Any]] = []
        for module in filter(None, map(sys.modules.get, _PROFILER_MODULES)):
            for name in (*_BEGINNINGS, *_ENDINGS):
                before = vars(module).get(name)
                if before is None:
                    continue
                if name in _BEGINNINGS:
                    patch = self._around_begin(before)
                else:
                    patch = self._around_end(before)
                setattr(module, name, patch)
                self._patches.append((module, name, before, patch))

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
        for module, name, before, patch in self._patches:
            if vars(module).get(name) is patch:
                setattr(module, name, before)
        self._patches.clear()
