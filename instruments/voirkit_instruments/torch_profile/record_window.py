"""Recordings of a window of steps (see ``record.Window``), which start and end where a step begins,
and are written into the run directory.

A window is one recording or several. A recording ends early where a loader has no more batches
(evaluation usually follows). It also ends where the program forks (the child would record forever),
or starts its own profiler.
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
# bytes by which the process may grow in one recording: torch keeps a recording in memory
_GROWN = 2 << 30
MARK = "voirkit.mark"
# Number of marks (events whose time the run's clock measures) at the start of a recording, and at
# its end. The first mark is slow, and the most precise one counts.
_MARKS_EACH = 3
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
    """The recordings of one process. ``most_bytes``: limit of the total size of torch's files."""

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
        self._thread: int | None = None  # id of the thread being recorded; None: no recording
        # state of the current recording
        self._first_step = 0
        self._start_bytes = 0  # memory of the process at the start of the recording
        self._start_ns = 0
        self._edges: list[int] = []  # times at which steps of this recording ended
        self._steps = 0  # number of steps in the recordings that have ended
        self._cancelled: int | None = None  # id of a thread whose recording torch has cancelled
        self._is_over = False
        self._forking = False
        self._guard = ProfilerGuard(self._give_way)
        at_fork("instruments", before=self.before_fork, in_child=self.after_fork)

    def edge(self, n: int) -> None:
        """Start or end a recording where a step begins or may begin, in the training thread. ``n``:
        number of steps before."""
        if self._is_over:
            if self._cancelled is not None:
                self._drop()
            return
        if self._thread is not None:
            if n == self._first_step + len(self._edges):
                return  # another request for a batch in the same step
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
        """End the current recording: a loader has no more batches."""
        if self._thread is not None:
            self._end_recording("")

    def before_fork(self) -> None:
        """End the current recording: the program is about to fork."""
        if self._thread == threading.get_ident() and not self._forking:
            self._forking = True
            try:
                self._end_recording("a process was forked")
            finally:
                self._forking = False

    def after_fork(self) -> None:
        """Switch off recording in a forked process."""
        self._is_over = True
        self._thread = None
        self._cancelled = None

    def _give_way(self) -> None:
        if self._is_over:
            return
        if self._thread == threading.get_ident():
            self._end_recording("the script began a profiler of its own")
        else:
            # if another thread is being recorded, torch cancels that recording
            self._cancelled = self._thread
        self._stop(
            "the script uses torch's profiler itself, and there can be only one;"
            f" {self._steps_recorded(self._steps)}"
        )

    def _steps_recorded(self, n: int) -> str:
        return f"{n} of {self._window.total} steps were recorded"

    def _drop(self) -> None:
        """Clean up a recording that torch has cancelled in this thread, once the program's own
        profiler has ended."""
        if self._cancelled == threading.get_ident() and not self._guard.runs:
            self._cancelled = None
            try:
                self._kineto.drop()
            except Exception as exc:  # any exception of torch: the program's step goes on
                self._failed("cannot be ended", exc)

    # start and end of one recording

    def _start_recording(self, n: int) -> None:
        start_ns = recorder.now()
        try:
            if self._kineto.enabled():  # another profiler is active in this thread
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
        except Exception as exc:  # any exception of torch: the program's step goes on
            self._failed("cannot be begun", exc)
        finally:
            self._cost.add(start_ns, recorder.now())

    def _end_recording(self, why: str) -> None:
        """End the current recording and write it.

        Args:
            why: Reason for an early end; empty at the end of a step, or of a loader's batches.
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
        except Exception as exc:  # any exception of torch: the program's step goes on
            self._failed("cannot be ended", exc)
        finally:
            self._cost.add(now_ns, recorder.now())

    def _is_saved(self, result: Any, path: str) -> bool:
        """Write a recording if there is room for it. Otherwise warn and record nothing more."""
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

    # end of the run

    def finish(self, n: int) -> None:
        """End all recording and write the final record. Called when the program has ended, with the
        number ``n`` of its steps."""
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
        """Warn that too few steps were recorded, and suggest a window that fits. Return the
        reason."""
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
    """Return the resident bytes of this process; 0 if the system does not report them."""
    try:
        return resident_bytes()
    except (OSError, ValueError, IndexError):
        return 0


class Kineto:
    """torch's profiler for one thread, used through the functions beneath ``torch.profiler``; one
    recording follows another. It changes no hook and no module flag of ``torch.profiler`` that the
    program could see. Checked with torch 2.15 on a CPU; never run on a device."""

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
        # (time before, time after) each mark of this recording, in ns of the run's clock
        self.marks: list[tuple[int, int]] = []

    def start(self) -> None:
        """Start to record this thread. Raises RuntimeError: torch refuses."""
        activities = {self._activity.CPU}
        if self._torch.cuda.is_initialized():
            supported = self._torch._C._autograd._supported_activities()
            if self._activity.CUDA in supported:
                activities.add(self._activity.CUDA)
        # Kineto logs its start and end on stderr unless this variable says otherwise. It reads the
        # variable only when prepared; the program's environment is restored at once.
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
        """Put a mark into the recording and note the run's clock. The marks relate the profiler's
        clock to the run's."""
        marking = self._marking()
        enter, leave, now = marking.__enter__, marking.__exit__, time.perf_counter_ns
        before = now()
        enter()
        after = now()
        leave(None, None, None)
        self.marks.append((before, after))

    def stop(self) -> Any:
        """Stop recording and return the result, which has ``save(path)``. Raises RuntimeError:
        another thread started the recording."""
        for _ in range(_MARKS_EACH):
            self.mark()
        cuda = self._torch.cuda
        if cuda.is_initialized():
            # waits, as torch.profiler does, for kernels that were launched during the recording,
            # because they belong to it
            cuda.synchronize()
        return self._disable()

    def drop(self) -> None:
        """Remove a recording that torch has cancelled from this thread. Its remaining data must not
        be used."""
        self._dropped = self._disable()


class ProfilerGuard:
    """Detector of the program's own use of torch's profiler. Only one profiler can run, and the
    program's takes precedence.

    While a run is profiled, some functions of torch's modules are replaced. Only torch.profiler
    calls these functions.

    Args:
        give_way: Called before the program starts a profiler, in its thread.

    Attributes:
        runs: True while a profiler of the program runs.
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
        """Restore the replaced functions."""
        for module, name, before, patch in self._patches:
            if vars(module).get(name) is patch:
                setattr(module, name, before)
        self._patches.clear()
