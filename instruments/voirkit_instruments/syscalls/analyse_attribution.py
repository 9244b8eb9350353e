"""Attribution of system calls to phases and kinds of thread, and their totals, in memory that does
not grow with the log.

A call belongs to its thread's own innermost phase. A thread that names no phase takes that of its
process's first thread. If the phase changes while a call of such a thread blocks, the call's time
is split over the phases it overlaps; the call itself counts in the phase where it began. Calls
before the first marker are ``before``. Calls outside of phases are ``worker`` in a worker, and
``other`` in all other processes. Markers (calls by which voirkit names phases) and voirkit's own
calls are summed separately.

A log may show a child's first calls before the line that names its parent. These calls wait for the
line. If no thread is about to create another one, an unknown thread is a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from voirkit_instruments.syscalls.analyse_calls import (
    ACCESSES,
    DESCRIPTOR_CALLS,
    FORKS,
    OPENS,
    TRANSFERS,
    URING,
    Call,
    CallEntry,
    Event,
    FileTotals,
    OverTime,
    ThreadExit,
    ThreadName,
    follow_descriptors,
)
from voirkit_instruments.syscalls.record_phases import IMPORT, VOIRKIT, message_of_text

_CHECKPOINT = "checkpoint"
# Temporary phase of the calls after one piece of a checkpoint (model, optimizer). The next marker
# decides whether these calls belong to the checkpoint.
_AFTER_PIECE = "after a piece of a checkpoint"
_FINISHES = frozenset(
    {"fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "rename", "renameat", "renameat2"}
)
_SHARED_MEMORY = "/dev/shm/"
BEFORE, OTHER, WORKER = "before", "other", "worker"

Row = list[float]  # calls, errors, seconds, bytes, seconds spent waiting (included in seconds)
Rows = dict[str, Row]  # by name of the call


class Process:
    """A process, with the state that its threads share.

    Attributes:
        pid: Process id.
        kind: ``main``, ``worker 3`` or ``child``.
        files: Path of each open file descriptor.
        has_markers: True if the process has named a phase, or its own kind.
        is_headless: True if its first thread has ended while others still run.
    """

    def __init__(self, pid: int, kind: str, files: dict[int, str]) -> None:
        self.pid = pid
        self.kind = kind
        self.files = files
        self.rows: dict[tuple[str, str], Rows] = {}  # by (kind of thread, phase)
        # seconds that the process's first thread spent in each phase, up to ``main.since``
        self.seconds: dict[str, float] = {}
        self.has_markers = False
        self.is_headless = False
        self.main = Thread(pid, self)

    def outer_phase(self) -> str:
        """Return the phase that applies outside of all named phases."""
        if self.kind.startswith(WORKER):
            return WORKER
        return OTHER if self.has_markers or self.kind != "main" else BEFORE


class Thread:
    """A thread.

    Attributes:
        name: The name that the program has given it, or empty.
        snapshot: State at the start of a call that has not returned: the thread's phase, and the
            seconds of its process in each phase.
    """

    def __init__(self, tid: int, process: Process, name: str = "") -> None:
        self.tid = tid
        self.process = process
        self.name = name
        # the open phases, outermost first, with their start times
        self.stack: list[tuple[str, float]] = []
        self.has_markers = False  # True once this thread itself has named a phase
        self.own_depth = 0  # nesting depth of the phase of voirkit's own code in this thread
        # time of the last start or end of a phase; only kept for a process's first thread
        self.since = float("nan")
        self.snapshot: tuple[str, dict[str, float]] | None = None

    def phase(self) -> str:
        """Return the phase that the thread's calls belong to: its own innermost one, or that of its
        process's first thread if it never named a phase."""
        stack = self.stack if self.has_markers else self.process.main.stack
        return stack[-1][0] if stack else self.process.outer_phase()

    def kind(self) -> str:
        """Return ``main``, ``autograd``, ``worker 3``, ``child`` or ``other``."""
        if self.process.kind != "main":
            return self.process.kind
        if self is self.process.main:
            return "main"
        return "autograd" if self.name.startswith("pt_autograd") else "other"

    def enter(self, phase: str, time: float) -> None:
        """Start a phase. Imports by voirkit's own code are ignored: they are not imports of the
        program."""
        if phase == IMPORT and self.stack and self.stack[-1][0] == VOIRKIT:
            return
        self._close_phase(time)
        self.has_markers = True
        self.process.has_markers = True
        self.stack.append((phase, time))

    def leave(self, phase: str, time: float) -> float | None:
        """End a phase and all phases still open inside it. Return its duration. If the phase was
        never started, return None and change nothing."""
        for depth in range(len(self.stack) - 1, -1, -1):
            name, start = self.stack[depth]
            if name == phase:
                self._close_phase(time)
                del self.stack[depth:]
                return time - start
        return None

    def _close_phase(self, time: float) -> None:
        if self is self.process.main:
            self.process.seconds = self.phase_seconds(time)
            self.since = time

    def phase_seconds(self, time: float) -> dict[str, float]:
        """Return the seconds that the first thread of the process has spent in each phase up to a
        time."""
        main = self.process.main
        seconds = dict(self.process.seconds)
        if main.since == main.since:
            phase = main.phase()
            seconds[phase] = seconds.get(phase, 0.0) + time - main.since
        return seconds


class ProcessTree:
    """The processes and threads of a log.

    Args:
        pid: The run's main process; None: the first process in the log.
        threads: Names of its threads when the log began, by thread id.
        files: Paths of its file descriptors when the log began.
    """

    def __init__(
        self,
        pid: int | None = None,
        threads: Mapping[int, str] | None = None,
        files: Mapping[int, str] | None = None,
    ) -> None:
        self.processes: dict[Process, None] = {}  # all processes, in order of appearance
        self.threads: dict[int, Thread] = {}  # running threads, by thread id
        # threads that are about to create another one, by thread id
        self.creators: dict[int, Thread] = {}
        self.main: Thread | None = None  # first thread of the run's main process
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
        """Return the thread with this id. A thread without a known creator is the run's main thread
        if it is the first in the log, otherwise a new process."""
        thread = self.threads.get(tid)
        if thread is not None:
            return thread
        kind = "child" if self.threads else "main"
        return self._add_process(tid, kind, {}).main

    def add_created(self, creator: Thread, tid: int, is_thread: bool) -> Thread:
        """Record that a thread has created another one. ``is_thread``: True if both belong to the
        same process."""
        thread = self.threads.get(tid)
        # calls of the thread came earlier in the log, when its process may have been unknown
        if thread is not None:
            if is_thread:
                thread.process = creator.process
            return thread
        if is_thread:
            thread = self.threads[tid] = Thread(tid, creator.process)
            return thread
        return self._add_process(tid, "child", dict(creator.process.files)).main

    def end_thread(self, tid: int) -> Process | None:
        """Remove a thread that has ended, as its id may be reused. The first thread of a process
        stays until all others have ended. Return the process if it has ended too, else None."""
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


_MOST_WAITING = 20_000  # limit of calls of one thread that are held back until its creator is known
CALLS, ERRORS, SECONDS, BYTES, WAITED = range(5)  # columns of a row
EMPTY_ROW: Row = [0, 0, 0.0, 0, 0.0]


@dataclass(frozen=True)
class TraceContext:
    """Facts about a traced run; all empty for a log that voirkit did not record."""

    pid: int | None = None
    # names of the main process's threads when tracing began, by thread id
    threads: Mapping[int, str] = field(default_factory=dict)
    files: Mapping[int, str] = field(default_factory=dict)
    # threads of voirkit that were alive at the end of the run
    own_threads: frozenset[int] = frozenset()
    own_folder: str | None = None  # the run directory: calls on files in it count as voirkit's own
    # (thread id, time of the log) -> the loader operation that the thread was in, or None
    operation: Callable[[int, float], str | None] | None = None
    origin: float | None = None  # the start of the run, in the log's time


def add_rows(sums: Rows, rows: Mapping[str, Row]) -> None:
    """Add rows to totals, by name of the call."""
    for name, row in rows.items():
        total = sums.setdefault(name, EMPTY_ROW[:])
        for column, value in enumerate(row):
            total[column] += value


class Attribution:
    """Totals of the calls of a log.

    Attributes:
        times: By kind of thread and phase: how often the phase was entered, and its total seconds.
        uring: Number of io_uring calls, whose reads and writes no tracer of calls sees.
    """

    def __init__(self, context: TraceContext | None = None) -> None:
        context = context or TraceContext()
        self._context = context
        self.tree = ProcessTree(context.pid, context.threads, context.files)
        self._own_folder: str | None = None
        if context.own_folder is not None:
            self._own_folder = context.own_folder.rstrip("/") + "/"
        self.times: dict[tuple[str, str], list[float]] = {}
        self.operations: dict[str, Rows] = {}  # rows, by loader operation
        self.files = FileTotals()
        # number of opened shared memory files, by phase; workers hand over tensors in such files
        self.shared_memory: dict[str, int] = {}
        self.over_time = OverTime(context.origin)
        self.own = [0, 0.0]  # number and seconds of voirkit's own calls
        self.markers = 0
        self.uring = 0
        self.calls = 0
        # (time at which a piece of a checkpoint ended in the main thread, phase around the piece);
        # None otherwise. If another piece follows, the time between both may belong to the
        # checkpoint.
        self._after_piece: tuple[float, str] | None = None
        self._waiting: dict[int, list[Event]] = {}
        # by kind of process, the one process to which the rows of all ended processes are added
        self._ended: dict[str, Process] = {}

    def add(self, events: Iterable[Event]) -> Attribution:
        """Add events in their order. Returns this object."""
        for event in events:
            self._add_event(event)
        for tid in list(self._waiting):
            self._release(tid)
        main = self.tree.main
        if main is not None:
            self._end_piece(main, "", self.over_time.end)
            self.over_time.add_phase(main.phase(), main.since, self.over_time.end)
        return self

    def _add_event(self, event: Event) -> None:
        if isinstance(event, (Call, CallEntry)):
            thread = self.tree.threads.get(event.tid)
            if thread is None:
                if self._must_wait(event):
                    return
                thread = self.tree.thread(event.tid)
            if isinstance(event, Call):
                self._add_call(thread, event)
            else:
                self._add_entry(thread, event)
        elif isinstance(event, ThreadExit):
            if event.tid in self._waiting:
                self._waiting[event.tid].append(event)
            self._end_process(self.tree.end_thread(event.tid))
            self.tree.creators.pop(event.tid, None)
        elif isinstance(event, ThreadName):
            if event.parent is not None:
                parent = self.tree.thread(event.parent)
                self.tree.add_created(parent, event.tid, event.is_thread)
            if event.name:
                self.tree.thread(event.tid).name = event.name

    def _add_entry(self, thread: Thread, entry: CallEntry) -> None:
        if entry.name in FORKS:
            self.tree.creators[entry.tid] = thread
        elif not thread.has_markers:
            thread.snapshot = thread.phase(), thread.phase_seconds(entry.start)

    def _must_wait(self, event: Event) -> bool:
        """True if an event of an unknown thread must wait, because the log is about to show which
        thread created it."""
        waiting = self._waiting.get(event.tid)
        if waiting is None:
            if not self.tree.creators:
                return False
            waiting = self._waiting[event.tid] = []
        if len(waiting) >= _MOST_WAITING:
            self._release(event.tid)
            return False
        waiting.append(event)
        return True

    def _release(self, tid: int) -> None:
        events = self._waiting.pop(tid, ())
        if events:
            self.tree.thread(tid)
        for event in events:
            self._add_event(event)

    def _end_process(self, process: Process | None) -> None:
        """Merge the rows of an ended process into those of its kind: a program may start any number
        of processes."""
        if process is None or process.kind == "main":
            return
        total = self._ended.setdefault(process.kind, process)
        if total is not process:
            for key, rows in process.rows.items():
                add_rows(total.rows.setdefault(key, {}), rows)
            del self.tree.processes[process]

    def _add_call(self, thread: Thread, call: Call) -> None:
        _, start, name, args, result, _, seconds, _, _ = call
        if name in ACCESSES:
            message = message_of_text(args)
            if message is not None:
                self.markers += 1
                self._mark(thread, message, start)
                return
        phase = thread.phase()
        path = None
        if name in DESCRIPTOR_CALLS:
            path = follow_descriptors(thread.process.files, name, args, result)
        if self._is_own(thread, phase, path):
            self.own[0] += 1
            self.own[1] += seconds if seconds == seconds else 0.0
            thread.snapshot = None
        else:
            self._count(thread, call, phase, path)
        if name in FORKS:
            self.tree.creators.pop(thread.tid, None)
            if result is not None and result > 0:
                self.tree.add_created(thread, result, "CLONE_THREAD" in args)
                self._release(result)
        elif name == "prctl" and args.startswith("PR_SET_NAME"):
            thread.name = args.partition('"')[2].partition('"')[0]

    def _count(self, thread: Thread, call: Call, phase: str, path: str | None) -> None:
        _, start, name, _, result, error, seconds, is_joined, waited = call
        snapshot, thread.snapshot = thread.snapshot, None
        split: dict[str, float] = {}
        if is_joined and snapshot is not None:
            phase, before = snapshot
            split = _split(thread, before, start + seconds)
        n_bytes = result if result is not None and result > 0 and name in TRANSFERS else 0
        kind = thread.kind()
        if self._after_piece is not None and thread is self.tree.main:
            phase = _AFTER_PIECE
        row = _row(thread.process, kind, phase, name)
        _add_call(row, n_bytes, error)
        if not split:
            _add_time(row, seconds, waited)
        for part_phase, part in split.items():
            part_row = _row(thread.process, kind, part_phase, name)
            _add_time(part_row, part, waited * part / seconds)
        if self._context.operation is not None:
            operation = self._context.operation(thread.tid, start)
            if operation is not None:
                rows = self.operations.setdefault(operation, {})
                row = rows.setdefault(name, EMPTY_ROW[:])
                _add_call(row, n_bytes, error)
                _add_time(row, seconds, waited)
        self.calls += 1
        if start == start:
            self.over_time.add(name, start, seconds)
        if name == URING:
            self.uring += 1
        if path and result is not None:
            self._count_file(path, name, result, n_bytes, phase)

    def _count_file(self, path: str, name: str, result: int, n_bytes: int, phase: str) -> None:
        """Count a call that opened a file, or read or wrote any of it."""
        is_opened = name in OPENS and result >= 0
        if n_bytes or is_opened:
            self.files.add(path, name, n_bytes)
        if is_opened and path.startswith(_SHARED_MEMORY):
            self.shared_memory[phase] = self.shared_memory.get(phase, 0) + 1

    def _is_own(self, thread: Thread, phase: str, path: str | None) -> bool:
        """True if a call is voirkit's own: made by its code or its threads, about the run
        directory, or between the start of tracing and that of the program."""
        if thread.own_depth or thread.tid in self._context.own_threads:
            return True
        if phase == BEFORE and self._context.pid is not None:
            return True
        if path is None or self._own_folder is None:
            return False
        return path.startswith(self._own_folder)

    def _mark(self, thread: Thread, message: str, time: float) -> None:
        """Process a marker: a phase begins or ends, or a process names its kind."""
        phase, edge = message[:-1], message[-1:]
        since, inside = thread.since, thread.phase()
        if phase != VOIRKIT and thread is self.tree.main and self._end_piece(thread, message, time):
            inside = _CHECKPOINT
        if phase == VOIRKIT:
            change = 1 if edge == "+" else -1
            thread.own_depth = max(thread.own_depth + change, 0)
        elif edge == "+":
            thread.enter(phase, time)
        elif edge == "-":
            self._leave(thread, phase, time)
        else:
            thread.process.kind = message
            thread.process.has_markers = True
        if thread.since != since and thread is self.tree.main:
            self.over_time.add_phase(inside, since, thread.since)

    def _leave(self, thread: Thread, phase: str, time: float) -> None:
        lasted = thread.leave(phase, time)
        if lasted is None:
            return
        times = self.times.setdefault((thread.kind(), phase), [0, 0.0])
        times[0] += 1
        times[1] += lasted if lasted == lasted else 0.0
        if phase == _CHECKPOINT and thread is self.tree.main and self._has_trained():
            self._after_piece = time, thread.phase()

    def _has_trained(self) -> bool:
        return ("main", "backward") in self.times or ("main", "optimizer") in self.times

    def _end_piece(self, main: Thread, message: str, time: float) -> bool:
        """Decide the phase of the calls after a piece of a checkpoint, at the next marker. They
        belong to the checkpoint if its next piece follows, and some of them complete a file
        (fsync, rename). Return True in that case."""
        if self._after_piece is None:
            return False
        since, outside = self._after_piece
        self._after_piece = None
        rows = main.process.rows.pop(("main", _AFTER_PIECE), {})
        is_checkpoint = message == f"{_CHECKPOINT}+" and not _FINISHES.isdisjoint(rows)
        phase = _CHECKPOINT if is_checkpoint else outside
        add_rows(main.process.rows.setdefault(("main", phase), {}), rows)
        if is_checkpoint and time == time:
            self.times["main", _CHECKPOINT][1] += time - since
        return is_checkpoint


def _row(process: Process, kind: str, phase: str, name: str) -> Row:
    rows = process.rows.get((kind, phase))
    if rows is None:
        rows = process.rows[kind, phase] = {}
    row = rows.get(name)
    if row is None:
        row = rows[name] = EMPTY_ROW[:]
    return row


def _add_call(row: Row, n_bytes: int, error: str) -> None:
    row[CALLS] += 1
    row[BYTES] += n_bytes
    if error:
        row[ERRORS] += 1


def _add_time(row: Row, seconds: float, waited: float) -> None:
    if seconds == seconds:
        row[SECONDS] += seconds
        row[WAITED] += waited


def _split(thread: Thread, before: Mapping[str, float], end: float) -> dict[str, float]:
    """Return the seconds of a blocked call by phase; empty if its end is unknown."""
    if end != end:
        return {}
    parts = {
        phase: seconds - before.get(phase, 0.0)
        for phase, seconds in thread.phase_seconds(end).items()
    }
    return {phase: part for phase, part in parts.items() if part > 0}
