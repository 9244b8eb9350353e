"""Recorder of ``--syscalls[=full|files|counts|counters]``: the system calls of each phase, kind of
thread and loader operation (docs/syscalls.md).

A tracer in a separate process records the calls, so the program keeps its parent, its children and
its exit status. The calls are counted when the run has ended. The recorder uses the best tracer
that works on the machine:

- The kernel's own tracing (tracefs), which only root may use: exact counts and true times at some
  microseconds a call, without stopping the program. ``record_reader.py``, a separate process,
  copies the kernel's output into the run directory. Files are not named, since the kernel's events
  of calls hold only numbers.
- strace, which is attached to the program and never started around it. Its fast filter
  (``--seccomp-bpf``) is not used: a process cannot remove it, and calls fail with ENOSYS as soon as
  strace is killed (seen with strace 6.1). Without the filter a program continues undisturbed.
- This process's own counters.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit.phases import Phase, PhaseWithPriority
from voirkit.runs.directory import write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.detached import (
    ANYBODY,
    YAMA,
    Attached,
    CannotAttach,
    DetachedProcess,
    TracedAlready,
    attach_program,
    first_line,
    has_proc,
    let_trace,
    refusal,
    tracer_pid,
)
from voirkit_instruments.steps.events import StepEvents
from voirkit_instruments.syscalls import FOLDER, record_counters, record_phases
from voirkit_instruments.syscalls.record_phases import OTHER, VOIRKIT, FetchWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runner.overseer import Overseer

_READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "record_reader.py")
_TRACEFS_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FIRST_PIDS = "pid:[4026531836]"  # the initial pid namespace: its process ids are the kernel's
_MACHINES = ("x86_64", "aarch64")
_KERNEL_TRUSTED = {
    "calls, errors, bytes": "exact",
    "seconds": "the kernel's own",
    "files": "not seen (--syscalls=files names them)",
}


def tracefs() -> str:
    """Return the folder of the kernel's tracing. Raises CannotAttach with advice."""
    if os.geteuid():
        raise CannotAttach("only root may have the kernel trace.")
    if not has_proc():
        raise CannotAttach(
            "there is no /proc here, which tells of processes.\nMount it: mount -t proc none /proc"
        )
    if os.uname().machine not in _MACHINES:
        raise CannotAttach(f"the numbers of system calls on {os.uname().machine} are not known.")
    try:
        if os.readlink("/proc/self/ns/pid") != _FIRST_PIDS:
            raise CannotAttach(
                "this process is in a container, whose numbers of processes are not the kernel's."
            )
    except OSError:
        pass  # the kernel has no pid namespaces
    for place in _TRACEFS_PLACES:
        if os.path.isdir(os.path.join(place, "instances")):
            if not os.path.exists(os.path.join(place, "events", "raw_syscalls")):
                raise CannotAttach(
                    "this kernel cannot trace system calls (it was built without"
                    " CONFIG_FTRACE_SYSCALLS)."
                )
            return place
    raise CannotAttach(
        f"tracefs is not mounted.\nMount it: mount -t tracefs none {_TRACEFS_PLACES[0]}"
    )


def attach_kernel(pid: int, stem: str, most_bytes: int) -> Attached:
    """Start the kernel's tracing of all calls of a process, its threads and its children. Tracing
    is active on return.

    Args:
        stem: Path of the output files, without their endings.
        most_bytes: Limit of the files' size, at which tracing ends.

    Raises:
        CannotAttach: The kernel's tracing is not available or could not start; with advice.
    """
    command = [sys.executable, "-I", "-S", _READER, tracefs(), str(pid), stem, str(most_bytes)]
    process = attach_program(
        command,
        f"{stem}.log",
        os.environ,
        lambda process: "ready" in process.read_output(),
        _refuse_kernel,
        0.002,
    )
    return Attached("kernel", process, log=f"{stem}.ring.json", trusted=_KERNEL_TRUSTED)


def _refuse_kernel(output: str) -> CannotAttach:
    lines = output.splitlines()
    reason = lines[-1][:200] if lines else "it printed nothing"
    return CannotAttach(f"the kernel's tracing could not begin: {reason}.")


def remove_instance(pid: int) -> None:
    """Remove the tracing instance of a process whose reader was killed."""
    from voirkit_instruments.syscalls.record_reader import name_of, remove_left

    try:
        remove_left(tracefs(), name_of(pid))
    except (OSError, CannotAttach):
        pass  # the next run removes the instance


_BLOCK = 512  # bytes; the unit of the shell's file size limit
# calls that open, read, write, move or remove files, or use their file descriptors; and calls that
# create and name threads
_ON_FILES = (
    "%file",
    "read",
    "write",
    "pread64",
    "pwrite64",
    "readv",
    "writev",
    "preadv",
    "pwritev",
    "preadv2",
    "pwritev2",
    "sendfile",
    "copy_file_range",
    "splice",
    "close",
    "close_range",
    "dup",
    "dup2",
    "dup3",
    "fcntl",
    "lseek",
    "fstat",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "getdents64",
    "ioctl",
    "mmap",
    "%process",
    "prctl",
    "io_uring_enter",
)
_STRACE_TRUSTED = {
    "calls, errors, bytes": "exact",
    "seconds": (
        "too large by 2 us a call, some 60 on idle processors: each stops for strace; as root the"
        " kernel's own times are taken"
    ),
}

_WITHOUT_PROC = {
    "threads": "the first, and those that begin later; no others are found without /proc"
}


def attach_strace(pid: int, stem: str, mode: str, most_bytes: int) -> Attached:
    """Attach strace to a process, its threads and its children. Tracing is active on return.

    Args:
        stem: Path of the output files, without their endings.
        mode: ``files``: only calls on files; ``full``: all calls, with the data that is read and
            written; ``counts``: all calls, without the data.
        most_bytes: Limit of the log's size, at which strace ends.

    Raises:
        CannotAttach: strace is missing or could not attach; with advice.
    """
    program = shutil.which("strace")
    if program is None:
        raise CannotAttach(
            "strace is not installed.\nInstall it (Debian, Ubuntu: apt-get install strace; Fedora:"
            " dnf install strace)."
        )
    log = f"{stem}.strace"
    command = [program, "-f", "-ttt", "-T", "-s", "32" if mode == "full" else "0"]
    if mode == "files":
        command += ["-e", "trace=" + ",".join(_ON_FILES)]
    command += ["-o", log, "-p", str(pid)]
    limit = f"ulimit -f {max(most_bytes // _BLOCK, 1)}"
    limited = ["/bin/sh", "-c", f'{limit}; exec "$@"', "sh", *command]
    environment = {**os.environ, "LC_ALL": "C"}
    attached = f"Process {pid} attached"
    let_trace(ANYBODY)
    try:
        process = attach_program(
            limited,
            f"{stem}.log",
            environment,
            lambda process: attached in process.read_output(),
            _refuse_strace,
            0.002,
        )
    finally:
        let_trace(0)
    trusted = _STRACE_TRUSTED if has_proc() else {**_STRACE_TRUSTED, **_WITHOUT_PROC}
    return Attached("strace", process, log=log, trusted=trusted)


def _refuse_strace(output: str) -> CannotAttach:
    tracer = tracer_pid()
    if tracer:
        return TracedAlready(
            f"process {tracer} traces this one already (strace, or a debugger), and there can be"
            " one only."
        )
    if "ermitted" in output or "ermission" in output:
        return CannotAttach(
            f"it may not attach to the process{_yama_scope()}.\nRun as root, sysctl"
            " kernel.yama.ptrace_scope=1 (as root), or docker run --cap-add SYS_PTRACE."
        )
    return CannotAttach(f"strace could not begin: {first_line(output)}")


def _yama_scope() -> str:
    try:
        with open(YAMA, encoding="ascii") as file:
            return f" (kernel.yama.ptrace_scope is {file.read().strip()})"
    except OSError:
        return ""


def why_ended(process: DetachedProcess, log: str, most_bytes: int) -> str:
    """Return the reason why a tracer ended before the run did."""
    lines = [
        line for line in process.read_output().splitlines() if line.strip() and line != "ready"
    ]
    try:
        if os.path.getsize(log) >= most_bytes - _BLOCK or any("limit" in line for line in lines):
            return "what it writes has reached --trace-limit"
    except OSError:
        pass  # the log was never written
    if not lines or "attached" in lines[-1]:
        return "it was killed, or let go of the process"
    return lines[-1]


_ENDS_S = 120.0
_TRIALS = 300
_GOES_ON = "The run goes on without it."
_COUNTERS_ALONE = "Only counters are taken: bytes and calls that read and write, by phase."


class Tracer:
    """The tracing of this process.

    Args:
        mode: ``counts``, ``full``, ``files`` or ``counters``.
        tool: The only tool to use: ``kernel``, ``strace`` or ``counters``; None for the best one.
        warn: Called with a warning.
    """

    def __init__(self, mode: str, tool: str | None, warn: Callable[[str], None]) -> None:
        self._mode = mode
        self._tool = tool
        self._warn = warn
        self._pid = os.getpid()
        self._tracing: Attached | None = None
        self._counters: Any = None
        self._stem = ""
        self._most_bytes = 0
        self._record: dict[str, Any] = {}
        self._fetches: FetchWatch | None = None
        self._unwatch: Callable[[], None] | None = None

    def watch(self, _: object) -> None:
        """Watch the fetching of batches. Called once torch has been imported."""
        self._fetches = FetchWatch(self._warn)

    def restore(self) -> None:
        """Stop reporting phases and remove all patches."""
        record_phases.report_to_nobody()
        if self._fetches is not None:
            self._fetches.remove()
            self._fetches = None
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    # start of tracing

    def start(self, run_dir: str, most_bytes: int) -> None:
        """Start tracing or counting. If that is impossible, warn about the reason and let the run
        go on."""
        self._most_bytes = most_bytes
        rank = rank_and_world_size()[0]
        host = os.uname().nodename
        folder = os.path.join(run_dir, FOLDER)
        self._stem = os.path.join(folder, f"{host}-r{rank}-{self._pid}")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as exc:
            self._warn(f"--syscalls: {folder} cannot be made ({exc.strerror}).\n  {_GOES_ON}")
            self.restore()
            return
        self._record = {
            "schema": 1,
            "mode": self._mode,
            "rank": rank,
            "host": host,
            "pid": self._pid,
            "run_dir": run_dir,
            "plain_call_s": _call_s(),
            "clocks": [_clocks()],
            "began_ns": recorder.now(),
            "began_time_ns": time.time_ns(),
            "ended": False,
        }
        for name, attach in self._tracers():
            try:
                self._tracing = attach()
                break
            except TracedAlready as exc:
                self._warn(
                    f"--syscalls: {exc}\n  Phases are told to it; if it is strace -f: voirkit"
                    " syscalls LOG reads what it writes."
                )
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
        if why_not is not None and not self._tracers():
            self._warn(refusal("--syscalls: counters: ", CannotAttach(why_not), _GOES_ON))
        self.restore()

    def _tracers(self) -> list[tuple[str, Callable[[], Attached]]]:
        """Return the tracers to try, best first. Only strace names files; only the kernel measures
        true times."""
        pid, stem, mode = self._pid, self._stem, self._mode
        kernel = ("kernel", lambda: attach_kernel(pid, stem, self._most_bytes))
        strace = ("strace", lambda: attach_strace(pid, stem, mode, self._most_bytes))
        if self._tool is not None:
            return [tracer for tracer in (kernel, strace) if tracer[0] == self._tool]
        if mode == "counters":
            return []
        if os.geteuid():  # only root may use the kernel's tracing
            return [strace]
        return [strace, kernel] if mode in ("full", "files") else [kernel, strace]

    def _warn_of(self, name: str, exc: CannotAttach) -> None:
        """Warn that a tracer cannot attach, and what happens instead."""
        is_last = name == self._tracers()[-1][0]
        if self._tool is not None:
            consequence = _GOES_ON
        elif not is_last:
            consequence = "The next best is taken."
        elif record_counters.why_not() is None:
            consequence = _COUNTERS_ALONE
        else:
            consequence = _GOES_ON
        reason = str(exc).partition("\n")[0]
        beginning = f"--syscalls: {name}: "
        if name == "strace" and os.geteuid() and "installed" in reason:
            beginning = "--syscalls needs strace or root. "
        self._warn(refusal(beginning, exc, consequence))

    def _start_tracing(self, tracing: Attached) -> None:
        self._record.update(
            tool=tracing.tool,
            log=os.path.basename(tracing.log),
            trusted=dict(tracing.trusted),
            tracer_pid=tracing.process.pid,
            threads=_threads(),
            files=_files(),
        )
        began_ns = recorder.now()
        self._record.update(began_ns=began_ns, traced_call_s=_call_s())
        # One record is written, so that the run has a trace even if nothing trains. Without a trace
        # it would not be finished like other runs.
        recorder.mark(recorder.name("syscalls", "tracing", kind="mark"), began_ns)
        self._write()
        self._record["clocks"].append(_clocks())
        self._begin_phases()

    def _begin_phases(self) -> None:
        self._unwatch = record_phases.watch_recorder()
        record_phases.report_to_tracer()

    def leave_program(self) -> None:
        """Enter voirkit's own phase. Called when the program has ended, in this process or in a
        forked child: the calls that follow are voirkit's."""
        record_phases.leave(OTHER)
        record_phases.enter(VOIRKIT)

    def _count(self) -> None:
        self._counters = record_counters.Counters(self._stem)
        if self._fetches is not None:
            self._fetches.report_worker = self._counters.set_worker
        self._record.update(tool="counters", log=None, trusted=record_counters.TRUSTED)
        recorder.mark(recorder.name("syscalls", "counting", kind="mark"), self._record["began_ns"])
        self._write()
        self._counters.start()

    # end of tracing

    def stop(self) -> None:
        """Stop tracing or counting. Called when the program has ended."""
        if os.getpid() != self._pid:
            return
        if self._counters is not None:
            self._record.update(ended=True, **self._counters.stop())
        if self._tracing is not None:
            self._stop_tracing(self._tracing)
        self.restore()
        if self._record.get("ended"):
            self._write()

    def _stop_tracing(self, tracing: Attached) -> None:
        process = tracing.process
        own_threads = [
            thread.native_id
            for thread in threading.enumerate()
            if thread.name.startswith("voirkit-")
        ]
        self._record.update(ended=True, own=own_threads)
        self._record["clocks"].append(_clocks())
        if process.has_ended(0):
            why = why_ended(process, tracing.log, self._most_bytes)
            self._record["cut"] = why
            if tracing.tool == "kernel":
                remove_instance(self._pid)
            self._warn(
                f"--syscalls: {tracing.tool} ended before the run did ({why}); what it"
                " saw until then is counted."
            )
        took_s = process.cpu_s()
        took_ns = int(took_s * 1e9)
        self._record["took_s"] = took_s if has_proc() else None
        recorder.timed(0, took_ns, "processes")
        # strace's CPU time counts twice, because each system call also stops the program twice.
        # These stops cost about as much as strace itself (measured: 1.25 times as much).
        if tracing.tool == "strace":
            recorder.timed(0, took_ns, "sampling")
        try:
            process.interrupt()
        except PermissionError:  # the tracer ends by itself after the program: do not wait for it
            self._tracing = None
            self._warn(
                "--syscalls: the program has become another user, so that its tracer is not"
                " told to end; voirkit report tells."
            )

    def wait(self) -> None:
        """Wait until the tracer's log is complete. If the program ends without this call, readers
        of the log wait."""
        if os.getpid() != self._pid or self._tracing is None:
            return
        if not self._tracing.process.has_ended(_ENDS_S):
            self._warn(
                f"--syscalls: {self._tracing.tool} does not end; voirkit report reads what it saw"
                " when it has."
            )

    def _write(self) -> None:
        try:
            write_json(f"{self._stem}.json", self._record)
        except OSError as exc:
            self._warn(f"--syscalls: {self._stem}.json cannot be written ({exc.strerror}).")


def _clocks() -> tuple[int, int]:
    """Return the run's clock and the wall clock at one moment. Of several readings the closest pair
    is taken, since other code may run in between."""
    tries = [(recorder.now(), time.time_ns(), recorder.now()) for _ in range(50)]
    before_ns, wall_ns, after_ns = min(tries, key=lambda readings: readings[2] - readings[0])
    return (before_ns + after_ns) // 2, wall_ns


def _threads() -> dict[str, str]:
    """Return a dict from thread id to name, for the threads of this process."""
    names = {}
    for tid in _listed("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{tid}/comm", encoding="utf-8", errors="replace") as file:
                names[tid] = file.read().strip()
        except OSError:
            continue  # the thread has ended
    return names


def _files() -> dict[str, str]:
    """Return a dict from number to path, for the file descriptors of this process."""
    paths = {}
    for number in _listed("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.startswith("/"):
            paths[number] = path
    return paths


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the system has no /proc
        return []


def _call_s() -> float:
    """Return the duration of the fastest system call at present, in seconds: the median of
    several."""
    call, now, times = os.getppid, time.perf_counter, []
    for _ in range(_TRIALS):
        start = now()
        call()
        times.append(now() - start)
    return sorted(times)[_TRIALS // 2]


class _Strace:
    """Flag, shared by the instruments: strace is chosen to trace this run."""

    is_chosen = False


def will_strace(ov: Overseer) -> bool:
    """True if strace is to trace the run, as long as it can attach. No other tracer can then attach
    to the program."""
    return ov.shared(_Strace).is_chosen


def _takes_strace(mode: str, tool: str | None) -> bool:
    if tool is not None:
        return tool == "strace"
    return mode in ("full", "files") or (mode == "counts" and not _kernel_traces())


def _kernel_traces() -> bool:
    try:
        tracefs()
    except CannotAttach:
        return False
    return True


@instrument_definition
@once("--syscalls")
def syscalls(
    ov: Overseer, mode: str = "counts", tool: str | None = None, is_with_loader: bool = False
) -> Iterator[Phase | PhaseWithPriority]:
    """Record the program's system calls, from the start to the end of the script.

    Args:
        mode: ``counts``, ``full``, ``files`` or ``counters``.
        tool: The only tool to use: ``kernel``, ``strace`` or ``counters``; None for the best one.
        is_with_loader: True if ``--loader`` records times as well.
    """
    if not sys.platform.startswith("linux"):
        ov.warn("--syscalls: it works on Linux alone.\n  The run goes on without it.")
        return
    if _takes_strace(mode, tool):
        ov.shared(_Strace).is_chosen = True
        if is_with_loader:
            ov.warn(
                "--syscalls by strace stretches the times of --loader: each system call stops for"
                " it. Record one of them at a time."
            )
    if not ov.shared(StepEvents).wrap_phases(record_phases.around):
        ov.warn(
            "--syscalls: it began after torch was imported, so system calls of a step are not told"
            " apart by phase.\n  Begin it before."
        )
    # after --loader, which reports the fetching of batches if it is on
    yield ov.phases.parse_args(priority=-100)
    tracer = Tracer(mode, tool, ov.warn)
    when_imported("torch", tracer.watch)
    # tracing starts last and ends first, so that calls of other instruments are not traced
    yield ov.phases.load_script(priority=-100)
    if ov.run_dir is None:
        tracer.restore()
        return  # a warning has already said why there is no run directory
    try:
        tracer.start(ov.run_dir, ov.options.trace_limit)
        if ov.program is not None:
            ov.program.begins = partial(record_phases.enter, OTHER)
            ov.program.ends = tracer.leave_program
        yield ov.phases.run_script(priority=100, throw=False)
    finally:
        tracer.stop()
    yield ov.phases.finalize
    tracer.wait()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    mode = options["syscalls"]
    with_loader = any(
        ov.argparser.value(ov.options, option) for option in ("--loader", "--loader-ops")
    )
    instrument = syscalls(mode, is_with_loader=True) if with_loader else syscalls(mode)
    return instrument(ov)
