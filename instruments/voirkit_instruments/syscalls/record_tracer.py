"""Records the system calls of a run from its beginning to its end, and leaves beside them what is needed to read them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from voirkit.runs.directory import write_json
from voirkit.runs.ranks import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.detached import refusal
from voirkit_instruments.syscalls import FOLDER
from voirkit_instruments.syscalls import record_counters as syscalls_counters
from voirkit_instruments.syscalls import record_kernel as syscalls_kernel
from voirkit_instruments.syscalls import record_phase_edges as syscalls_edges
from voirkit_instruments.syscalls import record_strace as syscalls_strace
from voirkit_instruments.syscalls.record_fetch import Fetches
from voirkit_instruments.syscalls.record_markers import OTHER, OWN
from voirkit_instruments.syscalls.record_tool import CanNotTrace, TracedAlready, Tracing, a_call_takes_s, has_proc

_ENDED_S = 120.0
_GOES_ON = "The run goes on without it."
_COUNTED = "Only counters are taken: bytes and calls that read and write, by phase."


class Tracer:
    """What traces this process.

    Args:
        mode: ``counts``, ``full``, ``files`` or ``counters``.
        tool: The only one to be taken, or None.
        warn: Told what is not possible, and what to do.
    """

    def __init__(self, mode: str, tool: str | None, warn: Callable[[str], None]) -> None:
        self._mode, self._tool, self._warn = mode, tool, warn
        self._pid = os.getpid()
        self._tracing: Tracing | None = None
        self._counters: Any = None
        self._stem, self._most_bytes = "", 0
        self._taken: dict[str, Any] = {}
        self._fetches: Fetches | None = None
        self._unwatch: Callable[[], None] | None = None

    def watch(self, _: object) -> None:
        """torch has been imported."""
        self._fetches = Fetches(self._warn)

    def forget(self) -> None:
        """Nothing is recorded: put all back as it was."""
        syscalls_edges.to_nobody()
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
            self._warn(f"--syscalls: {folder} can not be made ({exc.strerror}).\n  {_GOES_ON}")
            self.forget()
            return
        self._taken = {
            "schema": 1, "mode": self._mode, "rank": rank, "host": host, "pid": self._pid, "run_dir": run_dir,
            "plain_call_s": a_call_takes_s(), "clocks": [_clocks()],
            "began_ns": recorder.now(), "began_time_ns": time.time_ns(), "ended": False,
        }  # fmt: skip
        for name, attach in self._ways():
            try:
                self._tracing = attach(most_bytes)
                break
            except TracedAlready as exc:
                self._warn(f"--syscalls: {exc}\n  Phases are told to it; if it is strace -f: voirkit syscalls LOG reads what it writes.")
                self._begin_phases()
                return
            except CanNotTrace as exc:
                self._tell(name, exc)
        if self._tracing is not None:
            self._begin(self._tracing)
            return
        why_not = syscalls_counters.why_not()
        if why_not is None and self._tool in (None, "counters"):
            self._count()
            return
        if why_not is not None and not self._ways():
            self._warn(refusal("--syscalls: counters: ", CanNotTrace(why_not), _GOES_ON))
        self.forget()

    def _ways(self) -> list[tuple[str, Callable[[int], Tracing]]]:
        """The tracers to be tried, best first. What names files is strace alone; what knows times is the kernel."""
        pid, stem, mode = self._pid, self._stem, self._mode
        kernel = ("kernel", lambda most: syscalls_kernel.attach(pid, stem, mode, most))
        strace = ("strace", lambda most: syscalls_strace.attach(pid, stem, mode, most))
        if self._tool is not None:
            return [way for way in (kernel, strace) if way[0] == self._tool]
        if mode == "counters":
            return []
        if os.geteuid():  # only root may ask the kernel
            return [strace]
        return [strace, kernel] if mode in ("full", "files") else [kernel, strace]

    def _tell(self, name: str, exc: CanNotTrace) -> None:
        last = name == self._ways()[-1][0]
        then = _COUNTED if last and syscalls_counters.why_not() is None else _GOES_ON if last else "The next best is taken."
        if self._tool is not None:
            then = _GOES_ON
        what = str(exc).partition("\n")[0]
        who = "--syscalls needs strace or root. " if name == "strace" and os.geteuid() and "installed" in what else f"--syscalls: {name}: "
        self._warn(refusal(who, exc, then))

    def _begin(self, tracing: Tracing) -> None:
        self._taken.update(
            tool=tracing.tool, log=os.path.basename(tracing.log), trusted=dict(tracing.trusted), tracer_pid=tracing.beside.pid,
            threads=_threads(), files=_files(), began_ns=recorder.now(), traced_call_s=a_call_takes_s(),
        )  # fmt: skip
        # Something of the run is in its trace, also of one that trains nothing: it is completed like any other.
        recorder.mark(recorder.name("syscalls", "tracing", kind="mark"), self._taken["began_ns"])
        self._write()
        self._taken["clocks"].append(_clocks())
        self._begin_phases()

    def _begin_phases(self) -> None:
        self._unwatch = syscalls_edges.watch_recorder()
        syscalls_edges.to_tracer()

    def begins(self) -> None:
        """The program's own work begins here and now."""
        syscalls_edges.begins(OTHER)

    def ends(self) -> None:
        """It has ended, here or in a child that has come to its end: what follows is voirkit's."""
        syscalls_edges.ends(OTHER)
        syscalls_edges.begins(OWN)

    def _count(self) -> None:
        self._counters = syscalls_counters.Counters(self._stem)
        if self._fetches is not None:
            self._fetches.is_worker = self._counters.is_worker
        self._taken.update(tool="counters", log=None, trusted=dict(self._counters.trusted))
        recorder.mark(recorder.name("syscalls", "counting", kind="mark"), self._taken["began_ns"])
        self._write()
        self._counters.begin()

    # the end

    def stop(self) -> None:
        """The program has ended: trace no more."""
        if os.getpid() != self._pid:
            return
        if self._counters is not None:
            self._taken.update(ended=True, **self._counters.end())
        if self._tracing is not None:
            beside = self._tracing.beside
            self._taken.update(ended=True, own=_own_threads())
            self._taken["clocks"].append(_clocks())
            if beside.ended(0):
                why = syscalls_strace.why_ended(beside, self._tracing.log, self._most_bytes)
                self._taken["cut"] = why
                if self._tracing.tool == "kernel":
                    syscalls_kernel.clean(self._pid)
                self._warn(f"--syscalls: {self._tracing.tool} ended before the run did ({why}); what it saw until then is counted.")
            took_s = beside.took_s()
            self._taken["took_s"] = took_s if has_proc() else None
            recorder.timed(0, int(took_s * 1e9), "processes")
            if self._tracing.tool == "strace":  # a call that is stopped twice costs the program what it costs strace (1.25 times, measured)
                recorder.timed(0, int(took_s * 1e9), "sampling")
            try:
                beside.interrupt()
            except PermissionError:  # the tracer ends when the program has, and is not waited for
                self._tracing = None
                self._warn("--syscalls: the program has become another user, so that its tracer is not told to end; voirkit report tells.")
        self.forget()
        if self._taken.get("ended"):
            self._write()

    def wait(self) -> None:
        """Wait until the tracer's log is whole; who reads it waits too, if the program ends without this."""
        if os.getpid() == self._pid and self._tracing is not None and not self._tracing.beside.ended(_ENDED_S):
            self._warn(f"--syscalls: {self._tracing.tool} does not end; voirkit report reads what it saw when it has.")

    def _write(self) -> None:
        try:
            write_json(f"{self._stem}.json", self._taken)
        except OSError as exc:
            self._warn(f"--syscalls: {self._stem}.json can not be written ({exc.strerror}).")


def _clocks() -> tuple[int, int]:
    """This clock and the wall clock, at once: the closest pair of several, since something else may run in between."""
    tries = [(recorder.now(), time.time_ns(), recorder.now()) for _ in range(50)]
    before, wall, after = min(tries, key=lambda one: one[2] - one[0])
    return (before + after) // 2, wall


def _threads() -> dict[str, str]:
    """The threads of this process and their names."""
    found = {}
    for tid in _listed("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{tid}/comm", encoding="utf-8", errors="replace") as file:
                found[tid] = file.read().strip()
        except OSError:
            continue  # it has ended
    return found


def _files() -> dict[str, str]:
    """The files that this process has open."""
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


def _own_threads() -> list[int]:
    return [thread.native_id for thread in threading.enumerate() if thread.name.startswith("voirkit-") and thread.native_id is not None]
