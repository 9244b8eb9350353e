"""``--flame[=HERTZ]``: samples the stacks of all threads, workers and children, by phase
(docs/flame.md).

py-spy takes them beside the program; if it cannot, a thread of this process does. They are joined
with the trace when the run has ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition, once, started
from voirkit.intercept import Patches, ThreadState
from voirkit.phases import Phase, PhaseWithPriority
from voirkit.probes.around import Around
from voirkit.runs.directory import write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.detached import CannotAttach, DetachedProcess, refusal
from voirkit_instruments.stacks import FLAME_FOLDER, FLAME_HZ
from voirkit_instruments.steps.events import FunctionPatches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runner.overseer import Overseer

_ENDS_S = 20.0
_STARTS_WORKERS = "_MultiProcessingDataLoaderIter.__init__"


class StackSampler:
    """Sampler of the stacks of this process and its descendants.

    Args:
        run_dir: The run directory; its folder ``flame`` gets the files.
        most_bytes: The largest total size of the files.
    """

    def __init__(
        self,
        run_dir: str,
        rate_hz: int,
        gil: bool,
        native: bool,
        most_bytes: int,
        warn: Callable[[str], None],
    ) -> None:
        self._folder = os.path.join(run_dir, FLAME_FOLDER)
        self._rate_hz = rate_hz
        self._gil = gil
        self._native = native
        self._most_bytes = most_bytes
        self._warn = warn
        self._pid = os.getpid()
        self._stem = ""
        self._py_spy: DetachedProcess | None = None
        self._thread: ThreadSampler | None = None
        self._record: dict[str, Any] = {}

    def start(self, will_strace: bool) -> None:
        """Begin sampling. If that is not possible, a warning says why, and the run goes on.
        ``will_strace`` is True if strace is about to trace this process, so that py-spy cannot."""
        rank = rank_and_world_size()[0]
        host = os.uname().nodename if hasattr(os, "uname") else "localhost"
        self._stem = os.path.join(self._folder, f"{host}-r{rank}-{self._pid}")
        self._record = {
            "schema": 1,
            "rate_hz": self._rate_hz,
            "gil": self._gil,
            "native": self._native,
            "rank": rank,
            "host": host,
            "pid": self._pid,
            "began_ns": recorder.now(),
            "began_time_ns": time.time_ns(),
            "ended_ns": None,
            "ended": False,
            "took_s": None,
        }
        try:
            os.makedirs(self._folder, exist_ok=True)
            try:
                self._attach(will_strace)
            except CannotAttach as exc:
                self._start_thread(exc)
        except OSError as exc:
            self._warn(f"--flame: {exc}.\n  The run goes on without it.")
            return
        self._record["attached_ns"] = recorder.now()
        # Without this record, the trace of a run that trains nothing would be empty, and would not
        # be completed like any other.
        recorder.mark(recorder.name("flame", "taking", kind="mark"), self._record["began_ns"])
        self._write()

    def _attach(self, will_strace: bool) -> None:
        if not sys.platform.startswith("linux"):
            raise CannotAttach("py-spy is attached on Linux alone.")
        if will_strace:
            raise CannotAttach(
                "strace, which --syscalls uses, traces this process, and there can be one tracer"
                " only."
            )
        from voirkit_instruments.stacks import record_py_spy

        if self._pid in record_py_spy.native_pids:
            raise CannotAttach(
                "py-spy samples for --native, as perf cannot, and there can be one tracer"
                " only.\nLeave --native out."
            )
        spy = record_py_spy.attach(
            self._pid, self._stem, self._rate_hz, self._most_bytes, self._gil, self._native
        )
        self._py_spy = spy.process
        self._record.update(
            tool="py-spy", version=spy.version, by_clock=not self._gil, taker_pid=spy.process.pid
        )

    def _start_thread(self, why_not: CannotAttach) -> None:
        path = f"{self._stem}.sampled"
        self._thread = ThreadSampler(path, self._rate_hz, self._most_bytes, self._warn)
        self._thread.start()
        self._record.update(
            tool="sampler", version=None, by_clock=True, taker_pid=None, gil=False, native=False
        )
        instead = (
            "A thread of the program takes them instead: of this process alone, without loader"
            " workers and C."
        )
        self._warn(refusal("--flame: ", why_not, instead))

    def stop(self) -> None:
        """End sampling at the end of the program, and wait until the files are complete."""
        if os.getpid() != self._pid or "tool" not in self._record:
            return
        self._record.update(ended=True, ended_ns=recorder.now())
        if self._thread is not None:
            self._thread.stop()
            self._record.update(cut=self._thread.cut, late=self._thread.late)
            self._add_cost(self._thread.took_s)
        if self._py_spy is not None:
            self._stop_py_spy(self._py_spy)

    def _stop_py_spy(self, py_spy: DetachedProcess) -> None:
        if py_spy.has_ended(0):
            output = [line for line in py_spy.read_output().splitlines() if line != "ready"]
            why = output[-1] if output else "what runs py-spy was killed"
            self._record["cut"] = why
            self._warn(
                f"--flame: no stacks were taken from some time on, before the run ended ({why})."
            )
        py_spy.interrupt()
        if not py_spy.has_ended(_ENDS_S):
            self._warn(
                "--flame: py-spy does not end; voirkit report reads what it took when it has."
            )
        self._add_cost(_py_spy_cpu_s(f"{self._stem}.chunks"))

    def _add_cost(self, took_s: float | None) -> None:
        self._record["took_s"] = took_s
        took_ns = int((took_s or 0.0) * 1e9)
        recorder.timed(0, took_ns, "processes")
        # py-spy stops the program for each stack, altogether for 0.8 times py-spy's CPU time
        # (measured).
        if self._py_spy is not None:
            recorder.timed(0, took_ns, "sampling")
        self._write()

    def _write(self) -> None:
        try:
            write_json(f"{self._stem}.json", self._record)
        except OSError as exc:
            self._warn(f"--flame: {self._stem}.json cannot be written ({exc.strerror}).")


def _py_spy_cpu_s(path: str) -> float | None:
    """Return the CPU time of py-spy and of the process that runs it, from the last note."""
    try:
        with open(path, encoding="utf-8") as notes:
            last = notes.readlines()[-1]
        return float(json.loads(last)["took_s"])
    except (OSError, ValueError, LookupError):
        return None


def watch_workers(warn: Callable[[str], None]) -> Patches:
    """Mark in the trace which process is which loader worker, until the returned patches are
    removed. Checked with torch 2.1 to 2.13."""
    patches = FunctionPatches(
        lambda line: warn(f"--flame: {line} Loader workers are called children.")
    )
    around = Around(ThreadState(), 0, lambda _: 1, _leave, ("self",))
    patches.around_path("torch.utils.data.dataloader", _STARTS_WORKERS, around)
    return patches


def _leave(entered: int, was_inside: int, iterator: Any) -> None:
    try:
        for number, process in enumerate(iterator._workers):
            name = recorder.name("flame", "worker", kind="mark", value="pid")
            arguments = recorder.arguments({"worker": number})
            recorder.mark(name, recorder.now(), arguments, process.pid)
    except Exception:  # the iterator has no workers, or is not torch's
        pass


@instrument_definition
@once("--flame")
def flame(
    ov: Overseer, rate_hz: int = FLAME_HZ, gil: bool = False
) -> Iterator[Phase | PhaseWithPriority]:
    """Sample stacks from the beginning of the script's work to its end."""
    workers = watch_workers(ov.warn)
    yield ov.phases.load_script(priority=-50)
    if ov.run_dir is None:
        return  # there is no run directory, and a warning has said why
    native = started(ov, "--native")
    sampler = StackSampler(ov.run_dir, rate_hz, gil, native, ov.options.trace_limit, ov.warn)
    will_strace = False
    if started(ov, "--syscalls"):
        from voirkit_instruments.syscalls.record import will_strace as strace_traces

        will_strace = strace_traces(ov)
    sampler.start(will_strace)
    try:
        yield ov.phases.run_script
    finally:
        workers.remove()
        sampler.stop()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    if options["flame"] is None:
        raise CommandLineError(
            "--gil is about stacks, which are not taken.", next="voirkit --flame --gil SCRIPT"
        )
    return flame(options["flame"], options["gil"])(ov)


_WRITE_S = 0.5  # time between two writes; the stacks of that time are lost if a run is killed
_JOIN_S = 2.0


class ThreadSampler:
    """Thread that samples stacks and writes a line for each time, frame, stack and thread name.
    ``most_bytes`` is the largest size of the file."""

    def __init__(
        self, path: str, rate_hz: int, most_bytes: int, warn: Callable[[str], None]
    ) -> None:
        self._path = path
        self._period_s = 1 / rate_hz
        self._most_bytes = most_bytes
        self._warn = warn
        self._over = threading.Event()
        # by code object and line; keeps the code of a deleted function alive
        self._frames: dict[tuple[Any, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._names: dict[int, str] = {}
        self._lines: list[str] = []
        self._bytes = 0  # size of the file
        self._thread = threading.Thread(target=self._run, name="voirkit-flame", daemon=True)
        self.took_s = 0.0
        self.late = 0
        self.cut: str | None = None

    def start(self) -> None:
        """Start the thread. Raises OSError: the file cannot be written."""
        with open(self._path, "w", encoding="utf-8"):
            pass
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and write the remaining lines."""
        self._over.set()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._write()

    def _run(self) -> None:
        next_s = last_write_s = time.perf_counter()
        try:
            while not self._over.wait(max(next_s - time.perf_counter(), 0)):
                start_s = time.thread_time()
                waited = max(int((time.perf_counter() - next_s) / self._period_s), 0)
                try:
                    self._sample(waited)
                except AttributeError:
                    # Once, on a busy machine, CPython 3.11 returned a dict instead of a frame.
                    self.late += 1
                now_s = time.perf_counter()
                if now_s - last_write_s > _WRITE_S:
                    self._write()
                    last_write_s = now_s
                missed = max(int((now_s - next_s) / self._period_s), waited)
                self.late += missed - waited
                next_s += self._period_s * (missed + 1)
                self.took_s += time.thread_time() - start_s
                if self.cut is not None:
                    return
        except Exception as exc:  # an error in sampling must not reach the program
            self.cut = f"{type(exc).__name__}: {exc}"
        if self.cut is not None:
            self._warn(f"--flame: no more stacks are taken ({self.cut}).")

    def _sample(self, waited: int) -> None:
        """Sample all threads. ``waited`` is the number of samples that were missed before: the
        thread that held the GIL meanwhile is seen now."""
        now_ns, own_ident = time.perf_counter_ns(), threading.get_ident()
        stacks = []
        for ident, frame in sys._current_frames().items():
            if ident != own_ident:
                tid = self._tid(ident)
                if tid is not None:
                    stacks.append((tid, self._stack(frame)))
        line = {"t": now_ns, "seen": stacks}
        if waited:
            line["waited"] = waited
        self._lines.append(json.dumps(line))

    def _tid(self, ident: int) -> int | None:
        """Return the native id of a thread, and write its name once; None for voirkit's own
        threads."""
        # Not threading.enumerate(), which takes a lock that the program may hold.
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        if thread is None or thread.native_id is None:
            return ident
        if thread.name.startswith("voirkit-"):
            return None
        tid: int = thread.native_id
        if self._names.get(tid) != thread.name:
            self._names[tid] = thread.name
            self._lines.append(json.dumps({"thread": tid, "name": str(thread.name)}))
        return tid

    def _stack(self, frame: Any) -> int:
        numbers = []
        while frame is not None:
            code, line = frame.f_code, frame.f_lineno or 0
            number = self._frames.get((code, line))
            if number is None:
                number = self._frames[code, line] = len(self._frames)
                # In Python 3.11 and later, ``co_qualname`` includes the class.
                name = getattr(code, "co_qualname", code.co_name)
                self._lines.append(json.dumps({"frame": [name, code.co_filename, line]}))
            numbers.append(number)
            frame = frame.f_back
        stack = tuple(reversed(numbers))
        stack_number = self._stacks.get(stack)
        if stack_number is None:
            stack_number = self._stacks[stack] = len(self._stacks)
            self._lines.append(json.dumps({"stack": stack}))
        return stack_number

    def _write(self) -> None:
        data = "".join(f"{line}\n" for line in self._lines).encode(errors="replace")
        self._lines.clear()
        if self._bytes + len(data) > self._most_bytes:
            self.cut = "what is written has reached --trace-limit"
            return
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            self._bytes += os.write(file, data)
        finally:
            os.close(file)
