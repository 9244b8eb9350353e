"""Processes and their threads as a log shows them: who created whom, which phase each is in, and how long each phase has lasted."""

from __future__ import annotations

from collections.abc import Mapping

BEFORE, OTHER, WORKER = "before", "other", "worker"

Row = list[float]  # calls, errors, seconds, bytes, seconds of those that waited in calls that work
Rows = dict[str, Row]  # by name of the call


class Process:
    """What its threads share.

    Attributes:
        pid: Its number.
        kind: ``main``, ``worker 3`` or ``child``.
        files: The paths of its descriptors.
        main: Its first thread.
        rows: By kind of thread and phase, its calls.
        seconds: How long its first thread has been in each phase, except the one that it is in.
        has_markers: Whether it has named a phase, or what it is.
        is_headless: Whether its first thread has ended, and others go on.
    """

    __slots__ = ("files", "has_markers", "is_headless", "kind", "main", "pid", "rows", "seconds")

    def __init__(self, pid: int, kind: str, files: dict[int, str]) -> None:
        self.pid, self.kind, self.files = pid, kind, files
        self.rows: dict[tuple[str, str], Rows] = {}
        self.seconds: dict[str, float] = {}
        self.has_markers = self.is_headless = False
        self.main = Thread(pid, self)

    def outer_phase(self) -> str:
        """The phase outside of all phases."""
        if self.kind.startswith(WORKER):
            return WORKER
        return OTHER if self.has_markers or self.kind != "main" else BEFORE


class Thread:
    """A thread.

    Attributes:
        tid: Its number.
        process: The process that it is of.
        name: That the program has given it, if it has.
        stack: The phases that it is in, outermost first, and when each began.
        has_markers: Whether it has ever named a phase itself.
        own_depth: How often voirkit has begun to work for itself in it and not ended.
        since: Since when it is in its phase.
        snapshot: At the beginning of a call that has not returned: its phase, and how long its process has been in each phase.
    """

    __slots__ = ("has_markers", "name", "own_depth", "process", "since", "snapshot", "stack", "tid")

    def __init__(self, tid: int, process: Process, name: str = "") -> None:
        self.tid, self.process, self.name = tid, process, name
        self.stack: list[tuple[str, float]] = []
        self.has_markers = False
        self.own_depth = 0
        self.since = float("nan")
        self.snapshot: tuple[str, dict[str, float]] | None = None

    def phase(self) -> str:
        """The phase that its calls belong to: its own innermost one, or, if it never named any, that of its process's first thread."""
        stack = self.stack if self.has_markers else self.process.main.stack
        return stack[-1][0] if stack else self.process.outer_phase()

    def kind(self) -> str:
        """``main``, ``autograd``, ``worker 3``, ``child`` or ``other``."""
        if self.process.kind != "main":
            return self.process.kind
        if self is self.process.main:
            return "main"
        return "autograd" if self.name.startswith("pt_autograd") else "other"

    def enter(self, phase: str, time: float) -> None:
        """A phase begins."""
        self._close_phase(time)
        self.has_markers = self.process.has_markers = True
        self.stack.append((phase, time))

    def leave(self, phase: str, time: float) -> float | None:
        """A phase ends, and with it those inside of it that did not; how long it was. None: it never began, and nothing changes."""
        for depth in range(len(self.stack) - 1, -1, -1):
            if self.stack[depth][0] == phase:
                self._close_phase(time)
                began = self.stack[depth][1]
                del self.stack[depth:]
                return time - began
        return None

    def _close_phase(self, time: float) -> None:
        if self is self.process.main:
            self.process.seconds = self.phase_seconds(time)
            self.since = time

    def phase_seconds(self, time: float) -> dict[str, float]:
        """How long the first thread of its process has been in each phase until a time."""
        main = self.process.main
        seconds = dict(self.process.seconds)
        if main.since == main.since:
            phase = main.phase()
            seconds[phase] = seconds.get(phase, 0.0) + time - main.since
        return seconds


class ProcessTree:
    """All processes and threads of a log.

    Args:
        pid: The process that the run is; None: the first one of the log.
        threads: Its threads when the log began, with their names.
        files: The paths of its descriptors then.

    Attributes:
        processes: All of them, in the order in which they appear.
        threads: Those that run, by number.
        creators: Threads that are about to create another one, by number.
        main: The first thread of the run.
    """

    def __init__(self, pid: int | None = None, threads: Mapping[int, str] | None = None, files: Mapping[int, str] | None = None) -> None:
        self.processes: dict[Process, None] = {}
        self.threads: dict[int, Thread] = {}
        self.creators: dict[int, Thread] = {}
        self.main: Thread | None = None
        if pid is not None:
            process = self._add_process(pid, "main", dict(files or {}))
            for tid, name in (threads or {}).items():
                self.threads.setdefault(tid, Thread(tid, process)).name = name

    def _add_process(self, pid: int, kind: str, files: dict[int, str]) -> Process:
        process = Process(pid, kind, files)
        self.processes[process] = None
        self.threads[pid] = process.main
        if kind == "main":
            self.main = process.main
        return process

    def thread(self, tid: int) -> Thread:
        """A thread by its number. If nobody is known to have created it, it is the run itself if it is the first, else a new process."""
        return self.threads.get(tid) or self._add_process(tid, "child" if self.threads else "main", {}).main

    def add_created(self, creator: Thread, tid: int, is_thread: bool) -> Thread:
        """A thread has created another one.

        Args:
            creator: Who.
            tid: The new one.
            is_thread: Whether it is a thread of the same process.
        """
        thread = self.threads.get(tid)
        if thread is not None:  # it is known already, though perhaps not whose it is
            if is_thread:
                thread.process = creator.process
            return thread
        if is_thread:
            thread = self.threads[tid] = Thread(tid, creator.process)
            return thread
        return self._add_process(tid, "child", dict(creator.process.files)).main

    def end_thread(self, tid: int) -> Process | None:
        """A thread has ended; its number may be another's from now on. The first thread of a process stays as long as any does.

        Returns:
            Its process, if that has ended with it.
        """
        thread = self.threads.get(tid)
        if thread is None:
            return None
        process = thread.process
        remaining = sum(1 for other in self.threads.values() if other.process is process)
        if thread is process.main and remaining > 1:
            process.is_headless = True
            return None
        del self.threads[tid]
        if remaining == 2 and process.is_headless:
            del self.threads[process.main.tid]
            return process
        return process if remaining == 1 else None
