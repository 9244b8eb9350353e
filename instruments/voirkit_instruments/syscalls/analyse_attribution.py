"""Gives each call to a phase and a kind of thread, and sums: events in, figures out, in memory that does not grow with the log.

The rules: a thread's own innermost phase; for a thread that tells none, that of its process's first thread, and a call that blocks while
that goes on is split over the phases it overlaps (it counts where it began). What stands before the first marker is ``before``; outside of
phases a worker's calls are ``worker``, all others ``other``. Markers and what voirkit does for itself are summed apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from voirkit_instruments.syscalls.analyse_events import ACCESSES, FORKS, OPENS, TRANSFERS, URING, Begun, Call, Ended, Event, Named
from voirkit_instruments.syscalls.analyse_files import USED, Files, follow
from voirkit_instruments.syscalls.analyse_over_time import OverTime
from voirkit_instruments.syscalls.analyse_threads import BEFORE, Task, Tasks, Thread
from voirkit_instruments.syscalls.record_markers import OWN, said_by_text

_HELD = 20_000  # calls of threads that wait until it is known who has made them
_CALLS, _ERRORS, _SECONDS, _BYTES, _WAITED = range(5)
Row = list[float]  # calls, errors, seconds, bytes, seconds of those that waited in calls that work
NOTHING: Row = [0, 0, 0.0, 0, 0.0]
Rows = dict[str, Row]


@dataclass(frozen=True)
class Known:
    """What is known of a run that was traced; nothing of a log made elsewhere.

    Attributes:
        pid: The process.
        threads: Its threads when tracing began, and the names of those that have any.
        files: The paths of its descriptors then.
        own: Threads of voirkit, found at the end.
        own_folder: The run directory: calls about files in it are voirkit's.
        operation: Tells, of a thread and a time of the log, the operation of a loader that it was in, or None.
        origin: The time of the log at which the run began.
    """

    pid: int | None = None
    threads: dict[int, str] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    own: frozenset[int] = frozenset()
    own_folder: str | None = None
    operation: Callable[[int, float], str | None] | None = None
    origin: float | None = None


class Attribution:
    """The sums of a log.

    Args:
        known: What is known of the run.

    Attributes:
        rows: By task, kind of thread and phase: by name of the call a row.
        times: By phase: how often it was entered, and how long it lasted in all.
        operations: By operation of the loaders: as ``rows``.
        files: Files and folders.
        over_time: When.
        own: Calls of voirkit itself and their seconds.
        markers: How many markers there were.
        uring: Calls that hide others.
        calls: How many calls of the program there were.
    """

    def __init__(self, known: Known | None = None) -> None:
        self._known = known or Known()
        self._tasks = Tasks(self._known.pid, self._known.threads, self._known.files)
        for tid, name in self._known.threads.items():
            self._tasks.threads[tid].name = name
        self._own_folder = None if self._known.own_folder is None else self._known.own_folder.rstrip("/") + "/"
        self.rows: dict[tuple[Task, str, str], Rows] = {}
        self.times: dict[tuple[str, str], list[float]] = {}
        self.operations: dict[str, Rows] = {}
        self.files = Files()
        self.over_time = OverTime(self._known.origin)
        self.own = [0, 0.0]
        self.markers = self.uring = self.calls = 0
        self._held: dict[int, list[Event]] = {}
        self._keys: dict[Task, list[tuple[str, str]]] = {}  # of the rows of each process
        self._together: dict[str, Task] = {}  # by kind that in whose rows those of ended processes are

    def add(self, events: Iterable[Event]) -> Attribution:
        """Sum events, in their order."""
        threads = self._tasks.threads
        for event in events:
            thread = threads.get(event[0])
            if type(event) is Call:
                if thread is None:
                    if self._holds(event):
                        continue
                    thread = self._tasks.unknown(event[0])
                self._call(thread, event)
            else:
                self._other(thread, event)
        for tid in list(self._held):
            self._release(self._tasks.unknown(tid))
        main = self._tasks.main
        if main is not None:
            self.over_time.in_phase(main.phase(), main.since, self.over_time.end)
        return self

    # threads

    def _holds(self, event: Event) -> bool:
        """Whether an event of an unknown thread must wait: another thread is about to tell that it has made it."""
        held = self._held.get(event[0])
        if held is None:
            if not self._tasks.making:
                return False
            held = self._held[event[0]] = []
        if len(held) >= _HELD:
            self._release(self._tasks.unknown(event[0]))
            return False
        held.append(event)
        return True

    def _release(self, thread: Thread) -> None:
        for event in self._held.pop(thread.tid, ()):
            if type(event) is Call:
                self._call(thread, event)
            else:
                self._other(thread, event)

    def _other(self, thread: Thread | None, event: Event) -> None:
        if type(event) is Begun:
            if thread is None:
                if self._holds(event):
                    return
                thread = self._tasks.unknown(event.tid)
            if event.name in FORKS:
                self._tasks.making[event.tid] = thread
            elif not thread.marks:
                thread.snapshot = thread.phase(), thread.spent(event.began)
        elif type(event) is Ended:
            if thread is None and event.tid in self._held:
                self._held[event.tid].append(event)
            self._ended(self._tasks.ended(event.tid))
            self._tasks.making.pop(event.tid, None)
        elif type(event) is Named:
            if event.parent is not None:
                parent = self._tasks.threads.get(event.parent) or self._tasks.unknown(event.parent)
                thread = self._tasks.made(parent, event.tid, event.shares)
            if event.name:
                (thread or self._tasks.unknown(event.tid)).name = event.name

    def _ended(self, task: Task | None) -> None:
        """Sum the rows of a process that has ended with those of others of its kind: a program may start any number of them."""
        if task is None or task.kind == "main":
            return
        together = self._together.setdefault(task.kind, task)
        if together is task:
            return
        for key in self._keys.pop(task, ()):
            rows = self.rows.pop((task, *key))
            for name, row in rows.items():
                sums = self._row(together, *key, name)
                for at, value in enumerate(row):
                    sums[at] += value

    # calls

    def _call(self, thread: Thread, call: Call) -> None:
        _, began, name, args, result, _, seconds, _, _ = call
        task = thread.task
        if name in ACCESSES and (said := said_by_text(args)) is not None:
            self.markers += 1
            self._marked(thread, said, began)
            return
        phase = thread.phase()
        path = follow(task.files, name, args, result) if name in USED else None
        if self._is_voirkits(thread, phase, path):
            self.own[0] += 1
            self.own[1] += seconds if seconds == seconds else 0.0
            thread.snapshot = None
        else:
            self._count(thread, call, phase, path)
        if name in FORKS:
            self._tasks.making.pop(thread.tid, None)
            if result is not None and result > 0:
                self._release(self._tasks.made(thread, result, "CLONE_THREAD" in args))
        elif name == "prctl" and args.startswith("PR_SET_NAME"):
            thread.name = args.partition('"')[2].partition('"')[0]

    def _count(self, thread: Thread, call: Call, phase: str, path: str | None) -> None:
        _, began, name, _, result, error, seconds, joined, waited = call
        snapshot, thread.snapshot = thread.snapshot, None
        split = None
        if joined and snapshot is not None:
            phase, before = snapshot
            split = self._split(thread, before, began + seconds)
        moved = result if result is not None and result > 0 and name in TRANSFERS else 0
        kind = thread.kind()
        rows = [self._row(thread.task, kind, phase, name)]
        if self._known.operation is not None:
            operation = self._known.operation(thread.tid, began)
            if operation is not None:
                rows.append(self.operations.setdefault(operation, {}).setdefault(name, NOTHING[:]))
        for row in rows:
            row[_CALLS] += 1
            row[_BYTES] += moved
            if error:
                row[_ERRORS] += 1
            if seconds == seconds and (split is None or row is not rows[0]):
                row[_SECONDS] += seconds
                row[_WAITED] += waited
        for other, part in (split or {}).items():
            row = self._row(thread.task, kind, other, name)
            row[_SECONDS] += part
            row[_WAITED] += waited * part / seconds
        self.calls += 1
        if began == began:
            self.over_time.add(name, began, seconds)
        if name == URING:
            self.uring += 1
        if path and result is not None and (moved or (result >= 0 and name in OPENS)):
            self.files.add(path, name, moved)

    def _row(self, task: Task, kind: str, phase: str, name: str) -> Row:
        rows = self.rows.get((task, kind, phase))
        if rows is None:
            rows = self.rows[(task, kind, phase)] = {}
            self._keys.setdefault(task, []).append((kind, phase))
        row = rows.get(name)
        if row is None:
            row = rows[name] = NOTHING[:]
        return row

    def _split(self, thread: Thread, before: dict[str, float], end: float) -> dict[str, float] | None:
        """How long a call that blocked overlapped each phase; None if no time is known."""
        if end != end:
            return None
        parts = {phase: spent - before.get(phase, 0.0) for phase, spent in thread.spent(end).items()}
        return {phase: part for phase, part in parts.items() if part > 0} or None

    def _is_voirkits(self, thread: Thread, phase: str, path: str | None) -> bool:
        """Whether a call is voirkit's own: of its threads, about the run directory, between the tracer's beginning and the program's."""
        if thread.own or thread.tid in self._known.own or (phase == BEFORE and self._known.pid is not None):
            return True
        return path is not None and self._own_folder is not None and path.startswith(self._own_folder)

    def _marked(self, thread: Thread, said: str, at: float) -> None:
        """A marker: a phase begins or ends, or a process tells what it is."""
        phase, edge = said[:-1], said[-1:]
        since, inside = thread.since, thread.phase()
        if phase == OWN:
            thread.own = max(thread.own + (1 if edge == "+" else -1), 0)
        elif edge == "+":
            thread.enter(phase, at)
        elif edge == "-":
            lasted = thread.leave(phase, at)
            if lasted is not None:
                times = self.times.setdefault((thread.kind(), phase), [0, 0.0])
                times[0] += 1
                times[1] += lasted if lasted == lasted else 0.0
        else:
            thread.task.kind = said
            thread.task.marked = True
        if thread.since != since and thread is self._tasks.main:
            self.over_time.in_phase(inside, since, thread.since)
