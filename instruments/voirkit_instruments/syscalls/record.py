"""``--syscalls[=full|files|counts|counters]``: the system calls of each phase, kind of thread and loader operation (docs/syscalls.md).

A tracer beside the program records them; when the run has ended they are counted. The best one that works here is chosen: the kernel's own
tracing as root, else strace, else this process's counters.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit.runs.directory import write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.detached import Attached, CannotAttach, TracedAlready, has_proc, refusal
from voirkit_instruments.steps.events import StepEvents
from voirkit_instruments.syscalls import FOLDER, record_counters, record_phases, record_tracers
from voirkit_instruments.syscalls.record_phases import OTHER, OWN, FetchWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer

_ENDS_S = 120.0
_TRIALS = 300
_GOES_ON = "The run goes on without it."
_COUNTED = "Only counters are taken: bytes and calls that read and write, by phase."


class Tracer:
    """What traces this process.

    Args:
        mode: ``counts``, ``full``, ``files`` or ``counters``.
        tool: The only one to be taken, or None.
    """

    def __init__(self, mode: str, tool: str | None, warn: Callable[[str], None]) -> None:
        self._mode, self._tool, self._warn = mode, tool, warn
        self._pid = os.getpid()
        self._tracing: Attached | None = None
        self._counters: Any = None
        self._stem, self._most_bytes = "", 0
        self._record: dict[str, Any] = {}
        self._fetches: FetchWatch | None = None
        self._unwatch: Callable[[], None] | None = None

    def watch(self, _: object) -> None:
        """torch has been imported."""
        self._fetches = FetchWatch(self._warn)

    def restore(self) -> None:
        """Report nothing more, and put all patches back."""
        record_phases.report_to_nobody()
        if self._fetches is not None:
            self._fetches.remove()
            self._fetches = None
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    # the beginning

    def start(self, run_dir: str, most_bytes: int) -> None:
        """Begin; if that is not possible it is said why, and the rest goes on."""
        self._most_bytes = most_bytes
        rank, host = rank_and_world_size()[0], os.uname().nodename
        folder = os.path.join(run_dir, FOLDER)
        self._stem = os.path.join(folder, f"{host}-r{rank}-{self._pid}")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as exc:
            self._warn(f"--syscalls: {folder} cannot be made ({exc.strerror}).\n  {_GOES_ON}")
            self.restore()
            return
        self._record = {
            "schema": 1, "mode": self._mode, "rank": rank, "host": host, "pid": self._pid, "run_dir": run_dir,
            "plain_call_s": _call_s(), "clocks": [_clocks()],
            "began_ns": recorder.now(), "began_time_ns": time.time_ns(), "ended": False,
        }  # fmt: skip
        for name, attach in self._ways():
            try:
                self._tracing = attach()
                break
            except TracedAlready as exc:
                self._warn(f"--syscalls: {exc}\n  Phases are told to it; if it is strace -f: voirkit syscalls LOG reads what it writes.")
                self._begin_phases()
                return
            except CannotAttach as exc:
                self._warn_of(name, exc)
        if self._tracing is not None:
            self._start_tracing(self._tracing)
            return
        why_not = record_counters.why_not()
        if why_not is None and self._tool in (None, "counters"):
            self._count()
            return
        if why_not is not None and not self._ways():
            self._warn(refusal("--syscalls: counters: ", CannotAttach(why_not), _GOES_ON))
        self.restore()

    def _ways(self) -> list[tuple[str, Callable[[], Attached]]]:
        """The tracers to be tried, best first. What names files is strace alone; what knows times is the kernel."""
        pid, stem, mode = self._pid, self._stem, self._mode
        kernel = ("kernel", lambda: record_tracers.attach_kernel(pid, stem, self._most_bytes))
        strace = ("strace", lambda: record_tracers.attach_strace(pid, stem, mode, self._most_bytes))
        if self._tool is not None:
            return [way for way in (kernel, strace) if way[0] == self._tool]
        if mode == "counters":
            return []
        if os.geteuid():  # only root may ask the kernel
            return [strace]
        return [strace, kernel] if mode in ("full", "files") else [kernel, strace]

    def _warn_of(self, name: str, exc: CannotAttach) -> None:
        last = name == self._ways()[-1][0]
        then = _COUNTED if last and record_counters.why_not() is None else _GOES_ON if last else "The next best is taken."
        if self._tool is not None:
            then = _GOES_ON
        what = str(exc).partition("\n")[0]
        who = "--syscalls needs strace or root. " if name == "strace" and os.geteuid() and "installed" in what else f"--syscalls: {name}: "
        self._warn(refusal(who, exc, then))

    def _start_tracing(self, tracing: Attached) -> None:
        self._record.update(
            tool=tracing.tool, log=os.path.basename(tracing.log), trusted=dict(tracing.trusted), tracer_pid=tracing.process.pid,
            threads=_threads(), files=_files(), began_ns=recorder.now(), traced_call_s=_call_s(),
        )  # fmt: skip
        # Something of the run is in its trace, also of one that trains nothing: it is completed like any other.
        recorder.mark(recorder.name("syscalls", "tracing", kind="mark"), self._record["began_ns"])
        self._write()
        self._record["clocks"].append(_clocks())
        self._begin_phases()

    def _begin_phases(self) -> None:
        self._unwatch = record_phases.watch_recorder()
        record_phases.report_to_tracer()

    def leave_program(self) -> None:
        """It has ended, here or in a child that has come to its end: what follows is voirkit's."""
        record_phases.leave(OTHER)
        record_phases.enter(OWN)

    def _count(self) -> None:
        self._counters = record_counters.Counters(self._stem)
        if self._fetches is not None:
            self._fetches.report_worker = self._counters.set_worker
        self._record.update(tool="counters", log=None, trusted=record_counters.TRUSTED)
        recorder.mark(recorder.name("syscalls", "counting", kind="mark"), self._record["began_ns"])
        self._write()
        self._counters.start()

    # the end

    def stop(self) -> None:
        """The program has ended: trace no more."""
        if os.getpid() != self._pid:
            return
        if self._counters is not None:
            self._record.update(ended=True, **self._counters.stop())
        if self._tracing is not None:
            process = self._tracing.process
            self._record.update(ended=True, own=[one.native_id for one in threading.enumerate() if one.name.startswith("voirkit-")])
            self._record["clocks"].append(_clocks())
            if process.has_ended(0):
                why = record_tracers.why_ended(process, self._tracing.log, self._most_bytes)
                self._record["cut"] = why
                if self._tracing.tool == "kernel":
                    record_tracers.remove_instance(self._pid)
                self._warn(f"--syscalls: {self._tracing.tool} ended before the run did ({why}); what it saw until then is counted.")
            took_s = process.cpu_s()
            self._record["took_s"] = took_s if has_proc() else None
            recorder.timed(0, int(took_s * 1e9), "processes")
            if self._tracing.tool == "strace":  # a call that is stopped twice costs the program what it costs strace (1.25 times, measured)
                recorder.timed(0, int(took_s * 1e9), "sampling")
            try:
                process.interrupt()
            except PermissionError:  # the tracer ends when the program has, and is not waited for
                self._tracing = None
                self._warn("--syscalls: the program has become another user, so that its tracer is not told to end; voirkit report tells.")
        self.restore()
        if self._record.get("ended"):
            self._write()

    def wait(self) -> None:
        """Wait until the tracer's log is whole; who reads it waits too, if the program ends without this."""
        if os.getpid() == self._pid and self._tracing is not None and not self._tracing.process.has_ended(_ENDS_S):
            self._warn(f"--syscalls: {self._tracing.tool} does not end; voirkit report reads what it saw when it has.")

    def _write(self) -> None:
        try:
            write_json(f"{self._stem}.json", self._record)
        except OSError as exc:
            self._warn(f"--syscalls: {self._stem}.json cannot be written ({exc.strerror}).")


def _clocks() -> tuple[int, int]:
    """This clock and the wall clock, at once: the closest pair of several, since something else may run in between."""
    tries = [(recorder.now(), time.time_ns(), recorder.now()) for _ in range(50)]
    before, wall, after = min(tries, key=lambda one: one[2] - one[0])
    return (before + after) // 2, wall


def _threads() -> dict[str, str]:
    found = {}
    for tid in _listed("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{tid}/comm", encoding="utf-8", errors="replace") as file:
                found[tid] = file.read().strip()
        except OSError:
            continue  # it has ended
    return found


def _files() -> dict[str, str]:
    found = {}
    for number in _listed("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.startswith("/"):
            found[number] = path
    return found


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # there is no /proc
        return []


def _call_s() -> float:
    """How long the quickest of system calls takes here and now; the median of some."""
    call, now, times = os.getppid, time.perf_counter, []
    for _ in range(_TRIALS):
        began = now()
        call()
        times.append(now() - began)
    return sorted(times)[_TRIALS // 2]


class _Strace:
    """Whether strace is to trace a run."""

    is_chosen = False


def will_strace(ov: Overseer) -> bool:
    """Whether strace is to trace a run, as long as it can: no other program can then attach to it."""
    return ov.shared(_Strace).is_chosen


def _kernel_traces() -> bool:
    try:
        record_tracers.tracefs()
    except CannotAttach:
        return False
    return True


@instrument_definition
@once("--syscalls")
def syscalls(
    ov: Overseer, mode: str = "counts", tool: str | None = None, is_with_loader: bool = False
) -> Iterator[Phase | PhaseWithPriority]:
    """Record the program's system calls, from the beginning of the script's work to its end.

    Args:
        mode: ``counts``, ``full``, ``files`` or ``counters``.
        tool: ``kernel``, ``strace`` or ``counters``, to use no other; the best one if left out.
        is_with_loader: Whether the times of loaders are recorded too.
    """
    if not sys.platform.startswith("linux"):
        ov.warn("--syscalls: it works on Linux alone.\n  The run goes on without it.")
        return
    if tool == "strace" or (tool is None and (mode in ("full", "files") or (mode == "counts" and not _kernel_traces()))):
        ov.shared(_Strace).is_chosen = True
        if is_with_loader:
            ov.warn("--syscalls by strace stretches the times of --loader: each system call stops for it. Record one of them at a time.")
    if not ov.shared(StepEvents).wrap_phases(record_phases.around):
        ov.warn("--syscalls: it began after torch was imported, so system calls of a step are not told apart by phase.\n  Begin it before.")
    yield ov.phases.parse_args(priority=-100)  # after --loader, which reports fetches itself
    tracer = Tracer(mode, tool, ov.warn)
    when_imported("torch", tracer.watch)
    yield ov.phases.load_script(priority=-100)  # the last to begin, the first to end: no instrument's work lies between
    if ov.run_dir is None:
        tracer.restore()
        return  # a warning has named the reason
    try:
        tracer.start(ov.run_dir, ov.options.trace_limit)
        if ov.program is not None:
            ov.program.begins, ov.program.ends = partial(record_phases.enter, OTHER), tracer.leave_program
        yield ov.phases.run_script(priority=100, throw=False)
    finally:
        tracer.stop()
    yield ov.phases.finalize
    tracer.wait()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    with_loader = ov.argparser.value(ov.options, "--loader") or ov.argparser.value(ov.options, "--loader-ops")
    return (syscalls(options["syscalls"], is_with_loader=True) if with_loader else syscalls(options["syscalls"]))(ov)
