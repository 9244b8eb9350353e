"""Processes and their threads as a log shows them: who has made whom, what phase each is in, and how long each phase has lasted.

A log may show a child's first calls before the line that tells its parent. They wait until it does; where no thread is about to make
another one, an unknown thread is a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

BEFORE, OTHER, WORKER = "before", "other", "worker"


class Task:
    """A process: what its threads share.

    Attributes:
        pid: Its number.
        kind: ``main``, ``worker 3`` or ``child``.
        files: The paths of its descriptors.
        main: Its first thread.
        seconds: How long its first thread has been in each phase, but for the one that it is in.
        marked: Whether it has told a phase, or what it is.
        headless: Whether its first thread has ended, and others go on.
    """

    __slots__ = ("files", "headless", "kind", "main", "marked", "pid", "seconds")

    def __init__(self, pid: int, kind: str, files: dict[int, str]) -> None:
        self.pid, self.kind, self.files = pid, kind, files
        self.seconds: dict[str, float] = {}
        self.marked = self.headless = False
        self.main = Thread(pid, self)

    def outside(self) -> str:
        """The phase outside of all phases."""
        if self.kind.startswith(WORKER):
            return WORKER
        return OTHER if self.marked or self.kind != "main" else BEFORE


class Thread:
    """A thread.

    Attributes:
        tid: Its number.
        task: Its process.
        name: That the program has given it, if it has.
        stack: The phases that it is in, outermost first, and when each has begun.
        marks: Whether it has ever told a phase itself.
        own: How often voirkit has begun to work for itself in it and not ended.
        since: Since when it is in its phase.
        snapshot: At the beginning of a call that has not returned: how long its process has been in each phase.
    """

    __slots__ = ("marks", "name", "own", "since", "snapshot", "stack", "task", "tid")

    def __init__(self, tid: int, task: Task) -> None:
        self.tid, self.task = tid, task
        self.name = ""
        self.stack: list[tuple[str, float]] = []
        self.marks = False
        self.own = 0
        self.since = float("nan")
        self.snapshot: tuple[str, dict[str, float]] | None = None

    def phase(self) -> str:
        """The phase that its calls belong to: its own innermost one, or, if it never told any, that of its process's first thread."""
        stack = self.stack if self.marks else self.task.main.stack
        return stack[-1][0] if stack else self.task.outside()

    def kind(self) -> str:
        """``main``, ``autograd``, ``worker 3``, ``child`` or ``other``."""
        if self.task.kind != "main":
            return self.task.kind
        if self is self.task.main:
            return "main"
        return "autograd" if self.name.startswith("pt_autograd") else "other"

    def enter(self, phase: str, at: float) -> None:
        """A phase begins."""
        self._leave_off(at)
        self.marks = self.task.marked = True
        self.stack.append((phase, at))

    def leave(self, phase: str, at: float) -> float | None:
        """A phase ends, and with it those inside of it that did not; how long it was. None: it never began, and nothing changes."""
        for depth in range(len(self.stack) - 1, -1, -1):
            if self.stack[depth][0] == phase:
                self._leave_off(at)
                began = self.stack[depth][1]
                del self.stack[depth:]
                return at - began
        return None

    def _leave_off(self, at: float) -> None:
        if self is self.task.main:
            if self.since == self.since:
                phase = self.phase()
                self.task.seconds[phase] = self.task.seconds.get(phase, 0.0) + at - self.since
            self.since = at

    def spent(self, at: float) -> dict[str, float]:
        """How long the first thread of its process has been in each phase until a time."""
        main = self.task.main
        found = dict(self.task.seconds)
        if main.since == main.since:
            phase = main.phase()
            found[phase] = found.get(phase, 0.0) + at - main.since
        return found


class Tasks:
    """All threads of a log.

    Args:
        pid: The process that the run is; the first one of the log if it is not known.
        tids: Its threads when the log began.
        files: The paths of its descriptors then.

    Attributes:
        threads: By number.
        making: Those that are about to make another one.
        main: The first thread of the run.
    """

    def __init__(self, pid: int | None = None, tids: Iterable[int] = (), files: dict[int, str] | None = None) -> None:
        self.threads: dict[int, Thread] = {}
        self.making: dict[int, Thread] = {}
        self.main: Thread | None = None
        if pid is not None:
            task = self._process(pid, "main", dict(files or {}))
            for tid in tids:
                self.threads.setdefault(tid, Thread(tid, task))

    def _process(self, pid: int, kind: str, files: dict[int, str]) -> Task:
        task = Task(pid, kind, files)
        self.threads[pid] = task.main
        if kind == "main":
            self.main = task.main
        return task

    def unknown(self, tid: int) -> Thread:
        """A thread that nobody is known to have made: the run itself if it is the first, else a process of its own."""
        return self._process(tid, "child" if self.threads else "main", {}).main

    def made(self, parent: Thread, tid: int, shares: bool) -> Thread:
        """A thread has made another one.

        Args:
            parent: Who.
            tid: The new one.
            shares: Whether it is a thread of the same process.
        """
        old = self.threads.get(tid)
        if old is not None:  # it is known already, though perhaps not whose it is
            if shares and old.task is not parent.task:
                old.task = parent.task
            return old
        if shares:
            thread = self.threads[tid] = Thread(tid, parent.task)
            return thread
        return self._process(tid, "child", dict(parent.task.files)).main

    def ended(self, tid: int) -> Task | None:
        """A thread has ended; its number may be another's from now on. The first thread of a process is there as long as any is.

        Returns:
            Its process, if that has ended with it.
        """
        thread = self.threads.get(tid)
        if thread is None:
            return None
        task = thread.task
        left = sum(1 for other in self.threads.values() if other.task is task)
        if thread is task.main and left > 1:
            task.headless = True
            return None
        del self.threads[tid]
        if left == 2 and task.headless:
            del self.threads[task.main.tid]
            return task
        return task if left == 1 else None
