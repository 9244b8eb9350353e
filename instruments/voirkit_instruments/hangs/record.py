"""Detects from a thread of its own when the program makes no progress, and then writes what its
threads, workers and collectives do.

Progress is read from the records of the steps instrument, so nothing is added to a step. The thread
checks twelve times within the limit, and at least every five seconds. A check takes 0.04 ms of CPU
time while nothing is recorded, and 0.6 ms after 100,000 records (measured, Python 3.11): at most
0.01 % of a core.

A thread is needed because only Python itself knows its stacks and torch's flight recorder. A main
thread that waits in C answers neither signals nor requests from outside. The thread is not one of
``threading``'s, blocks all signals, and is **ended before each fork and started again after it**
(0.1 to 0.2 ms, measured). Otherwise Python 3.12 and later, which count the operating system's
threads at a fork, would warn, and a child could inherit a lock that the thread holds. The C
watchdog of ``faulthandler`` is no alternative. It would be counted as well, there is only one for
the program and all tools, and it keeps a file descriptor that the program may close. While C code
holds the GIL nothing can be written: then only the files of the other ranks show the hang.

Each process writes one file, ``hangs/<host>-r<rank>-<pid>.json``, atomically. With several ranks a
process writes it when it begins; every process writes it when it hangs, at each check during a
hang, when it goes on, and when it ends. The modification time of the file is when the process last
showed life; the ranks read it to know of each other. A process that has started others by
multiprocessing writes their exit codes into a second file.
"""

from __future__ import annotations

import os
import re
import sys
import time

# ``_thread`` instead of ``threading``, whose import is left to the program
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from collections import deque
from itertools import pairwise
from struct import iter_unpack

from voirkit.fork import at_fork
from voirkit.runs.directory import write_json
from voirkit.runs.manifest import restart
from voirkit.trace import layout, recorder
from voirkit.trace.names import text_of
from voirkit.units import duration
from voirkit_instruments.hangs import FOLDER, OPEN
from voirkit_instruments.hangs.record_state import (
    Activity,
    all_stacks,
    collectives,
    describe_threads,
    describe_workers,
    frames_of,
    signature,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

STEPS = 20.0  # a process hangs after this many times the median step time without a step
_LOOPS = {
    ("dataloader", "iter"): True,
    ("dataloader", "fetch"): True,
    ("compute", "step"): True,
    ("dataloader", "end"): False,
}
# After this many times the limit (``Detector.limit_s``) without progress, a process counts as hung
# whatever other signs of life it gives.
SIGNS = 4.0
# Used instead of ``SIGNS`` before the first step, after a loop over batches (where a program may do
# anything), and while other processes make progress. With the default limit this is ten minutes,
# after which NCCL gives up too.
PATIENCE = 10.0
_LOOKS_A_LIMIT = 12
_SELDOM_S = 5.0  # longest time between two checks
# longest time between two checks until the folder to write into is known: short, so that a rank
# that dies early has already written its file
_SOON_S = 0.5
_MEDIAN_STEPS = 64  # number of newest steps of which the median is taken
_NEWEST = 1024  # most records of a segment that are read at once
_ENDS_S = 1.0  # longest time that a fork waits for the thread to end
# kinds of records that do not count as progress; garbage collection, which any thread may run, does
# not count either
_NO_PROGRESS = ("counter", "mark", "meta")


class Detector:
    """Detector that decides when a process hangs.

    It is pure: all times are seconds of one monotonic clock. A hang is ``least_s`` seconds without
    a step, or ``STEPS`` times the median step if that is longer.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._steps_s: deque[float] = deque(maxlen=_MEDIAN_STEPS)
        self._started_s: float | None = None
        self._first_s = 0.0  # seconds from the first progress to the end of the first step
        self._seen_stacks: set[int] = set()
        # when an operation of the training last ended; None until the process is expected to make
        # progress
        self.progress_s: float | None = None
        # when the process last gave another sign of life: stacks not seen since the last progress,
        # a file read or written, or a busy worker
        self.alive_s = 0.0

    @property
    def median_s(self) -> float | None:
        """Median time of the last steps; None before the second step."""
        return sorted(self._steps_s)[len(self._steps_s) // 2] if self._steps_s else None

    @property
    def limit_s(self) -> float:
        """Number of seconds without a step that counts as a hang."""
        median_s = self.median_s
        by_steps_s = SIGNS * self._first_s if median_s is None else STEPS * median_s
        return max(self._least_s, by_steps_s)

    def on_progress(self, now_s: float, steps_s: Iterable[float] = ()) -> None:
        """Note that an operation of the training has ended. ``steps_s`` holds the durations of the
        steps among these operations; 0 for the first step, whose duration is unknown."""
        if self._started_s is None:
            self._started_s = now_s
        steps_s = list(steps_s)
        if steps_s and not self._first_s:
            self._first_s = max(now_s - self._started_s, 1e-9)
        self.progress_s = now_s
        self.alive_s = now_s
        self._steps_s.extend(step_s for step_s in steps_s if step_s)
        self._seen_stacks.clear()

    def on_standstill(self, now_s: float, stacks: int, is_busy: bool) -> None:
        """Note that no operation of the training has ended since the last check.

        Args:
            now_s: The time now.
            stacks: A hash of the functions that all threads are in. A new hash is a sign of life: a
                program that compiles has new stacks at each check, while an endless loop soon
                repeats its stacks.
            is_busy: True if the process read or wrote files, or its workers computed, read or
                wrote.
        """
        if stacks not in self._seen_stacks or is_busy:
            self._seen_stacks.add(stacks)
            self.alive_s = now_s

    def hangs(self, now_s: float, others_s: float = -1e9, is_behind: bool = False) -> bool:
        """True if the process hangs.

        ``others_s`` is when another process of the run last showed life: a process that waits for
        one that makes progress does not hang. ``is_behind`` is True if the process has left a loop
        over batches and waits for no other process.
        """
        if self.progress_s is None:
            return False
        limit_s = self.limit_s
        without_s = now_s - self.progress_s
        may_pause = is_behind or now_s - others_s < limit_s
        if may_pause and without_s < PATIENCE * limit_s:
            return False
        if now_s - self.alive_s >= limit_s:
            return True
        signs = SIGNS if self._first_s else PATIENCE
        return without_s >= signs * limit_s


class Progress:
    """Reader of the records that this process has written since the last reading, from its
    segments.

    Args:
        folder: The folder of the trace.
        stems: Pattern that the names of this process's segment files match.
        kind: Returns (category, name, kind) for the number of a name.
    """

    def __init__(
        self, folder: str, stems: re.Pattern[str], kind: Callable[[int], tuple[str, str, str]]
    ) -> None:
        self._folder = folder
        self._stems = stems
        self._kind = kind
        self._next_record: dict[str, int] = {}  # by path: index of the first record not read yet
        self._last_step_ns = 0
        # True in a loop over batches, while batches are requested and steps taken; False after the
        # loop; None before the first loop
        self.is_in_loop: bool | None = None

    def read(self) -> tuple[bool, list[float]]:
        """Read the new records.

        Returns (True if an operation has ended, the seconds between each optimizer step and the
        step before, 0 where that is unknown). Raises OSError: the folder cannot be read.
        """
        has_progress = False
        step_starts_ns = []
        latest_ns = 0
        for path in self._segments():
            for start_ns, number in self._new_records(path):
                category, name, kind = self._kind(number)
                operation = category, name
                if kind not in _NO_PROGRESS and category != "gc":
                    has_progress = True
                if operation in _LOOPS and start_ns >= latest_ns:
                    latest_ns = start_ns
                    self.is_in_loop = _LOOPS[operation]
                if operation == ("compute", "step"):
                    step_starts_ns.append(start_ns)
        return has_progress, self._step_times_s(sorted(step_starts_ns))

    def _segments(self) -> Iterator[str]:
        if os.path.isdir(self._folder):
            for name in os.listdir(self._folder):
                if name.endswith(".seg") and self._stems.match(name):
                    yield os.path.join(self._folder, name)

    def _step_times_s(self, starts_ns: list[int]) -> list[float]:
        """Return the seconds between each step and the step before; 0 where that is unknown."""
        if not starts_ns:
            return []
        before_ns = self._last_step_ns or starts_ns[0]
        self._last_step_ns = starts_ns[-1]
        return [(later - earlier) / 1e9 for earlier, later in pairwise([before_ns, *starts_ns])]

    def _new_records(self, path: str) -> list[tuple[int, int]]:
        """Return (start, number of the name) of the new records of a segment: of many only the
        newest."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            capacity = (os.fstat(file).st_size - layout.HEADER_BYTES) // layout.RECORD_BYTES

            def is_written(record: int) -> bool:
                """True if the last four bytes of a record, the number of its name, are not zero."""
                last_bytes = _offset(record + 1) - 4
                return record < capacity and any(os.pread(file, 4, last_bytes))

            first = self._next_record.get(path, 0)
            end = _end(is_written, first)
            if end - first > _NEWEST:
                self._last_step_ns = 0  # unknown: the records that are skipped may hold steps
                first = end - _NEWEST
            self._next_record[path] = end
            data = os.pread(file, (end - first) * layout.RECORD_BYTES, _offset(first))
        finally:
            os.close(file)
        whole = data[: len(data) // layout.RECORD_BYTES * layout.RECORD_BYTES]
        return [
            (start, name)
            for start, _, _, _, name in iter_unpack(layout.RECORD, whole)
            if name and name != layout.THREAD
        ]


def _offset(record: int) -> int:
    return layout.HEADER_BYTES + record * layout.RECORD_BYTES


def _end(is_written: Callable[[int], bool], first: int) -> int:
    """Return the index after the last written record of a segment. Records are written in order,
    and those before ``first`` are known to be written."""
    if not is_written(first):
        return first
    step = 1
    while is_written(first + step):
        first += step
        step *= 2
    written_record = first
    empty_record = first + step
    while empty_record - written_record > 1:
        middle = (written_record + empty_record) // 2
        if is_written(middle):
            written_record = middle
        else:
            empty_record = middle
    return empty_record


# Thread that watches the process


class Watcher:
    """Thread that watches this process for hangs.

    Args:
        least_s: See ``Detector``.
        warn: Called with a line for the user about a hang.
        report: Called with the line that says that a hang is over.
        is_child: True if the program has started this process. As it may be for any purpose, it is
            watched only once it is in a process group.
    """

    def __init__(
        self,
        least_s: float,
        warn: Callable[[str], None],
        report: Callable[[str], None],
        is_child: bool = False,
    ) -> None:
        self._warn = warn
        self._report = report
        self._is_child = is_child
        self._pid = os.getpid()
        self._main = get_ident()
        self._started_ns = time.time_ns()
        self._detector = Detector(least_s)
        self._activity = Activity(self._pid)
        self._progress: Progress | None = None
        self._document: dict[str, Any] | None = None
        self._path = ""
        self._folder = ""
        self._hang: dict[str, Any] | None = None
        self._speaks = False
        self._is_over = False
        # identity of the last hang, of this or another process, for which this process has written
        # its state
        self._answered: object = None
        self._wake = allocate_lock()
        self._tid = 0
        self._wake.acquire()
        at_fork("instruments", before=self.before_fork, in_parent=self.after_fork)

    # Start and stop of the thread

    def start(self) -> None:
        """Start the thread; also after a fork."""
        if self._is_over or self._tid or self._pid != os.getpid():
            return
        self._tid = -1
        try:
            start_new_thread(self._run, ())
        except RuntimeError as exc:  # the process cannot start more threads
            self._tid = 0
            self._warn(f"--hang: the run is not watched ({exc}).")

    def stop(self, ended: Mapping[str, Any] | None = None) -> None:
        """End the thread, and wait until the kernel has removed it. If ``ended`` is given, the
        program has ended: write how."""
        if self._pid != os.getpid():
            return
        if self._tid:
            self._stop_thread()
        if ended is not None and not self._is_over:
            self._is_over = True
            self._end_hang()
            try:
                self._set_up()  # needed if the program has ended before the first check
                self._write_exit_codes()
            except OSError:
                pass  # the folder is gone or the disk full: what was written before remains
            if self._document is not None:
                self._document["ended"] = {**ended, "time_ns": time.time_ns()}
                self._write()

    def _stop_thread(self) -> None:
        if self._wake.locked():
            self._wake.release()
        until_s = time.monotonic() + _ENDS_S
        while self._tid and time.monotonic() < until_s:
            time.sleep(0)
        task = f"/proc/self/task/{self._last_tid}"
        while os.path.exists(task) and time.monotonic() < until_s:
            time.sleep(0)
        if not self._tid:
            self._wake.acquire(False)

    def _write_exit_codes(self) -> None:
        """Write the exit codes, other than 0, of children of multiprocessing: only their parent
        learns whether a signal or ``os._exit`` ended them."""
        codes = {}
        for child in list(getattr(sys.modules.get("multiprocessing.process"), "_dangling", ())):
            process = child._popen
            # Only exit codes that multiprocessing already has are read. A ``waitpid`` here would
            # take them from its later callers.
            if process is not None and process.returncode:
                codes[str(child.pid)] = process.returncode
        settings = recorder.inherited()
        if not codes or settings is None:
            return
        trace, _, host, _, _ = settings
        folder = os.path.join(os.path.dirname(trace), FOLDER)
        name = f"{host.replace('/', '_')}-children-{self._pid}.json"
        if os.path.isdir(folder):
            path = os.path.join(folder, name)
            write_json(path, {"schema": 1, "host": host, "codes": codes})

    def before_fork(self) -> None:
        """End the thread, so that none runs during a fork."""
        self._was_running = bool(self._tid)
        self.stop()

    def after_fork(self) -> None:
        """Start the thread again in the parent."""
        if self._was_running:
            self.start()

    _was_running, _last_tid = False, 0

    def _run(self) -> None:
        self._tid = self._last_tid = get_native_id()
        try:
            import signal

            if hasattr(signal, "pthread_sigmask"):
                # this thread gets no signals: they are for the program's threads
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while not self._wake.acquire(timeout=self._pause_s()):
                start_ns = time.thread_time_ns()
                self._check()
                recorder.timed(0, time.thread_time_ns() - start_ns, "instruments")
        except Exception as exc:  # nothing that the system returns may stop the program
            self._is_over = True
            self._warn(f"--hang: the run is not watched any more ({type(exc).__name__}: {exc}).")
        finally:
            self._tid = 0

    # Checks for a hang

    def _pause_s(self) -> float:
        longest_s = _SELDOM_S if self._progress is not None else _SOON_S
        return min(self._detector.limit_s / _LOOKS_A_LIMIT, longest_s)

    def _check(self) -> None:
        if not self._set_up():
            return
        now_s = time.monotonic()
        detector, progress = self._detector, self._progress
        assert progress is not None
        has_progress, steps_s = progress.read()
        is_started = detector.progress_s is not None
        is_expected = is_started or self._document is not None or progress.is_in_loop is not None
        if is_expected and (has_progress or not is_started):
            detector.on_progress(now_s, steps_s)
            self._end_hang()
        elif is_started:
            self._note_standstill(now_s)
        self._show_life(now_s)
        if self._hang is not None:
            self._hang["seen_time_ns"] = time.time_ns()
            self._write()
        elif detector.hangs(now_s, self._others_s(now_s), self._is_behind_loop(progress)):
            self._begin_hang(now_s)
        else:
            self._answer(now_s)

    def _note_standstill(self, now_s: float) -> None:
        """Pass other signs of life to the detector. The stacks are released when this call returns:
        their frames hold objects that the program may wait to see freed."""
        stacks = all_stacks(self._main, get_ident())
        is_busy = self._activity.sample([tid for tid, _, _, _ in stacks if tid])
        self._detector.on_standstill(now_s, signature(stacks), is_busy)

    def _is_behind_loop(self, progress: Progress) -> bool:
        return progress.is_in_loop is False and not self._is_in_collective()

    def _set_up(self) -> bool:
        """Set up reading and writing. True if it is known where to record, which is so once
        something has been recorded."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if self._is_child and not (c10d is not None and c10d.is_initialized()):
            return False
        settings = recorder.inherited()
        if settings is None:
            return self._progress is not None
        trace, rank, host, _, size = settings
        if self._progress is None:
            stems = re.compile(
                rf"{re.escape(host.replace('/', '_'))}-r\d+-{self._pid}(\.\d+)?-\d+\.seg$"
            )
            self._progress = Progress(trace, stems, recorder.key_of)
            self._folder = os.path.join(os.path.dirname(trace), FOLDER)
        if size > 1 and (self._document is None or self._document["rank"] != rank):
            self._begin_document(rank, host, size)
        return True

    def _is_in_collective(self) -> bool:
        frame = sys._current_frames().get(self._main)
        return any("torch/distributed/" in str(entry["file"]) for entry in frames_of(frame))

    def _begin_document(self, rank: int, host: str, size: int) -> None:
        os.makedirs(self._folder, exist_ok=True)
        hangs = self._document["hangs"] if self._document is not None else []
        if self._document is not None and os.path.exists(self._path):
            os.unlink(self._path)  # the file that was written before the process knew its rank
        self._path = os.path.join(
            self._folder, f"{host.replace('/', '_')}-r{rank}-{self._pid}.json"
        )
        self._document = {
            "schema": 1,
            "rank": rank,
            "world_size": size,
            "host": host,
            "pid": self._pid,
            "ppid": os.getppid(),
            "clocks": {"perf_counter_ns": time.perf_counter_ns(), "time_ns": time.time_ns()},
            "restart": restart(),
            "ended": None,
            "hangs": hangs,
        }
        self._write()

    def _show_life(self, now_s: float) -> None:
        """Set the file's modification time to when the process was last alive."""
        detector = self._detector
        if self._document is None or detector.progress_s is None:
            return
        alive_s = min(detector.alive_s, detector.progress_s + SIGNS * detector.limit_s)
        time_ns = time.time_ns()
        try:
            os.utime(self._path, ns=(time_ns, time_ns - int((now_s - alive_s) * 1e9)))
        except OSError:
            pass  # the file is being replaced, or the folder is gone

    def _others_s(self, now: float) -> float:
        """Return when another process of the run was last alive."""
        if self._document is None or self._document["world_size"] < 2:
            return -1e9
        latest = -1e9
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and entry.path != self._path:
                    latest = max(latest, now - (time.time_ns() - entry.stat().st_mtime_ns) / 1e9)
        return latest

    # Handling of a hang

    def _begin_hang(self, now_s: float) -> None:
        if self._document is None:
            _, rank, host, _, size = recorder.inherited() or ("", 0, "", 0, 1)
            self._begin_document(rank, host, size)
        self._speaks = self._claim()
        self._answered = self._marker()
        self._write_state(now_s, hangs=True)
        if self._speaks:
            # wait, so that the other ranks can write their states before this one reads them
            if self._wake.acquire(timeout=2 * self._pause_s()):
                # the thread must end: release the lock again, for ``_run`` to notice
                self._wake.release()
            from voirkit_instruments.hangs import analyse

            run = os.path.dirname(self._folder)
            self._warn(f"{analyse.newest_line(run)}  Stacks: {os.path.relpath(self._folder)}")

    def _claim(self) -> bool:
        """True if this process is the first to notice the hang."""
        path = os.path.join(self._folder, OPEN)
        if self._marker() is None and os.path.exists(path):
            os.unlink(path)  # left by ranks that were killed and started again
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            return False
        return True

    def _answer(self, now: float) -> None:
        """Write what this process does while another process hangs."""
        if self._document is None:
            return
        marker = self._marker()
        if marker is not None and self._answered != marker:
            self._answered = marker
            self._write_state(now, hangs=False)

    def _marker(self) -> object:
        """Return the identity of the current hang if it began after this process; None without a
        hang."""
        try:
            status = os.stat(os.path.join(self._folder, OPEN))
        except OSError:
            return None
        if status.st_mtime_ns < self._started_ns:
            return None
        return status.st_ino, status.st_mtime_ns

    def _write_state(self, now_s: float, hangs: bool) -> None:
        """Write what this process does: first threads and workers, then torch's collectives, which
        may take longer."""
        assert self._document is not None
        detector, shares = self._detector, self._activity.shares
        without_s = 0.0 if detector.progress_s is None else now_s - detector.progress_s
        stacks = all_stacks(self._main, get_ident())
        state: dict[str, Any] = {
            "hangs": hangs,
            "noticed_time_ns": time.time_ns(),
            "since_time_ns": time.time_ns() - int(without_s * 1e9),
            "over_time_ns": None,
            "limit_s": detector.limit_s,
            "median_step_s": detector.median_s,
            "threads": describe_threads(stacks, self._main, shares),
            "workers": describe_workers(shares),
            "collectives": None,
        }
        del stacks  # the frames keep objects alive, and the program may wait until they are freed
        self._document["hangs"].append(state)
        if hangs:
            self._hang = state
        self._write()
        try:
            state["collectives"] = collectives()
        except Exception as exc:  # internals of an unknown version of torch may be different
            state["collectives_error"] = f"{type(exc).__name__}: {text_of(str(exc))}"
        self._write()

    def _end_hang(self) -> None:
        hang, self._hang = self._hang, None
        if hang is None:
            return
        hang["over_time_ns"] = time.time_ns()
        self._write()
        if not self._speaks:
            return
        self._speaks = False
        try:
            os.unlink(os.path.join(self._folder, OPEN))
        except OSError:
            pass
        if not self._is_over:
            lasted_s = (hang["over_time_ns"] - hang["since_time_ns"]) / 1e9
            self._report(f"the run goes on after {duration(lasted_s)} without a step.")

    def _write(self) -> None:
        try:
            write_json(self._path, self._document)
        except OSError as exc:
            self._warn(f"--hang: {self._path} cannot be written ({exc.strerror}).")
        if self._detector.progress_s is not None:
            self._show_life(time.monotonic())
