"""Watches from a thread of its own whether the program goes on, and writes what its threads, workers and collectives do when it does not.

What the steps instrument records is what tells: nothing is added to a step. The thread looks twelve times within the limit, at least every
five seconds; a look takes 0.04 ms of processor time while nothing is recorded, 0.6 ms after 100,000 records (measured, Python 3.11): at
most 0.01 % of a core.

A thread, since only Python itself knows its stacks and torch's flight recorder, and nothing that is asked from outside or by a signal gets
an answer from a main thread that waits in C. It is none of ``threading``'s, blocks all signals, and is **ended before each fork and started
again after it** (0.1 to 0.2 ms, measured): Python 3.12 and later count the threads of the system in between and warn of a fork beside one,
and a child inherits no lock from it. C's watchdog of ``faulthandler`` would be counted as well, there is one of it for program and tools
together, and it keeps a descriptor that the program may close. While C code holds the GIL nothing can be written; the others' files tell.

Each process writes one file, ``hangs/<host>-r<rank>-<pid>.json``, in one step each time: one of several ranks when it begins, any when
it hangs, at each look while it does, when it goes on, or ends. Its time of modification is when the process last showed life, which is how
the ranks know of each other. A process that has started others by multiprocessing writes how they ended into a second one.
"""

from __future__ import annotations

import os
import re
import sys
import time
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread  # threading is imported where the program imports it
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
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

STEPS = 20.0  # times the median step that are a hang
_LOOPS = {("dataloader", "iter"): True, ("dataloader", "fetch"): True, ("compute", "step"): True, ("dataloader", "end"): False}
SIGNS = 4.0  # times the limit after which a process without a step hangs whatever other signs of life it gives
# The same before the first step, behind a loop, where a program may do anything, and while other processes go on: ten minutes, after which
# NCCL gives up too.
PATIENCE = 10.0
_LOOKS, _SELDOM_S = 12, 5.0  # looks within the limit; seconds between two of them at most
_SOON_S = 0.5  # the same before it is known where to write: a rank that dies early has then written that it was there
_KEPT = 64  # steps that the median is of
_NEWEST = 1024  # records of a segment that are looked at at once
_ENDS_S = 1.0  # how long a fork waits for the thread
_NO_PROGRESS = ("counter", "mark", "meta")  # kinds of records; python collects garbage in any thread too


class Detector:
    """When a process hangs. Pure: all moments are seconds of one clock that only goes forward. ``least_s``: so long without a step is a
    hang, or ``STEPS`` times the median step."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._steps_s: deque[float] = deque(maxlen=_KEPT)
        self._began_s: float | None = None
        self._first_s = 0.0  # from the beginning to the end of the first step
        self._seen: set[int] = set()
        self.moved_s: float | None = None  # when something of the training last ended; None while nothing is expected of the process yet
        # when it last gave another sign of life: stacks that had not been seen since, a file read or written, a busy worker
        self.alive_s = 0.0

    @property
    def median_s(self) -> float | None:
        """Of the last steps; None before there were two."""
        return sorted(self._steps_s)[len(self._steps_s) // 2] if self._steps_s else None

    @property
    def limit_s(self) -> float:
        """How long without a step is a hang."""
        median_s = self.median_s
        return max(self._least_s, SIGNS * self._first_s if median_s is None else STEPS * median_s)

    def moved(self, now_s: float, steps_s: Iterable[float] = ()) -> None:
        """Something of the training has ended; ``steps_s`` is how long each step among it took, of the first one nothing (0)."""
        if self._began_s is None:
            self._began_s = now_s
        steps_s = list(steps_s)
        if steps_s and not self._first_s:
            self._first_s = max(now_s - self._began_s, 1e-9)
        self.moved_s = self.alive_s = now_s
        self._steps_s.extend(one for one in steps_s if one)
        self._seen.clear()

    def stood(self, now_s: float, stacks: int, is_busy: bool) -> None:
        """Nothing of the training has ended.

        Args:
            stacks: A hash of the functions that all threads are in. One that has not been seen is a sign of life: a program that compiles
                is elsewhere at each look, one in a loop is soon where it has been.
            is_busy: Whether it read or wrote files, or its workers computed or did.
        """
        if stacks not in self._seen or is_busy:
            self._seen.add(stacks)
            self.alive_s = now_s

    def hangs(self, now_s: float, others_s: float = -1e9, is_behind: bool = False) -> bool:
        """Whether it does. ``others_s``: when another process of the run last showed life: who waits for one that goes on does not hang;
        ``is_behind``: whether it has come to the end of a loop over batches, and waits for no other."""
        if self.moved_s is None:
            return False
        limit, without = self.limit_s, now_s - self.moved_s
        if (is_behind or now_s - others_s < limit) and without < PATIENCE * limit:
            return False
        return without >= (SIGNS if self._first_s else PATIENCE) * limit or now_s - self.alive_s >= limit


class Progress:
    """What this process has recorded since it was last asked, read from its segments.

    Args:
        folder: Of the trace.
        stems: What the names of its files look like.
        kind: Of a name by its number: (category, name, kind).
    """

    def __init__(self, folder: str, stems: re.Pattern[str], kind: Callable[[int], tuple[str, str, str]]) -> None:
        self._folder, self._stems, self._kind = folder, stems, kind
        self._at: dict[str, int] = {}
        self._last_step_ns = 0
        self.is_in_loop: bool | None = None  # whether batches are asked for and steps taken; None before there were any

    def read(self) -> tuple[bool, list[float]]:
        """(whether something has ended, the seconds from each optimizer step to the one before, 0 where that is not known). Raises OSError:
        the folder cannot be read."""
        moved, starts, latest_ns = False, [], 0
        for name in os.listdir(self._folder) if os.path.isdir(self._folder) else ():
            if name.endswith(".seg") and self._stems.match(name):
                for start_ns, number in self._fresh(os.path.join(self._folder, name)):
                    category, what, kind = self._kind(number)
                    moved = moved or (kind not in _NO_PROGRESS and category != "gc")
                    if (category, what) in _LOOPS and start_ns >= latest_ns:
                        latest_ns, self.is_in_loop = start_ns, _LOOPS[category, what]
                    if (category, what) == ("compute", "step"):
                        starts.append(start_ns)
        starts.sort()
        before = [self._last_step_ns or starts[0], *starts] if starts else []
        self._last_step_ns = starts[-1] if starts else self._last_step_ns
        return moved, [(later - earlier) / 1e9 for earlier, later in pairwise(before)]

    def _fresh(self, path: str) -> list[tuple[int, int]]:
        """(start, number of the name) of records that have come, of many the newest."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            most = (os.fstat(file).st_size - layout.HEADER_BYTES) // layout.RECORD_BYTES
            begin = self._at.get(path, 0)
            end = _end(lambda record: record < most and any(os.pread(file, 4, _offset(record) + layout.RECORD_BYTES - 4)), begin)
            if end - begin > _NEWEST:
                self._last_step_ns = 0  # what lies between is not known
            self._at[path], begin = end, max(begin, end - _NEWEST)
            data = os.pread(file, (end - begin) * layout.RECORD_BYTES, _offset(begin))
        finally:
            os.close(file)
        whole = data[: len(data) // layout.RECORD_BYTES * layout.RECORD_BYTES]
        return [(start, name) for start, _, _, _, name in iter_unpack(layout.RECORD, whole) if name and name != layout.THREAD]


def _offset(record: int) -> int:
    return layout.HEADER_BYTES + record * layout.RECORD_BYTES


def _end(is_written: Callable[[int], bool], first: int) -> int:
    """Behind the last record that is written, of a file whose records are written in their order from a known one on."""
    if not is_written(first):
        return first
    step = 1
    while is_written(first + step):
        first, step = first + step, 2 * step
    below, above = first, first + step  # the one is written, the other not
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if is_written(middle) else (below, middle)
    return above


# the thread


class Watcher:
    """Watches this process.

    Args:
        least_s: See ``Detector``.
        warn: Takes the line for the user.
        report: Takes the line that says that a hang is over.
        is_child: Whether the program has started this process: it is one of many kinds, and watched once it is in a process group.
    """

    def __init__(self, least_s: float, warn: Callable[[str], None], report: Callable[[str], None], is_child: bool = False) -> None:
        self._warn, self._report, self._is_child = warn, report, is_child
        self._pid, self._main, self._began_ns = os.getpid(), get_ident(), time.time_ns()
        self._detector, self._activity = Detector(least_s), Activity(self._pid)
        self._progress: Progress | None = None
        self._document: dict[str, Any] | None = None
        self._path = self._folder = ""
        self._hang: dict[str, Any] | None = None
        self._speaks = self._is_over = False
        self._answered: object = None  # the hang of another process that this one has written its state for
        self._wake, self._tid = allocate_lock(), 0
        self._wake.acquire()
        at_fork("instruments", before=self.before_fork, in_parent=self.after_fork)

    # its life

    def start(self) -> None:
        """Begin; again after a fork."""
        if self._is_over or self._tid or self._pid != os.getpid():
            return
        self._tid = -1
        try:
            start_new_thread(self._run, ())
        except RuntimeError as exc:  # the process may have no thread more
            self._tid = 0
            self._warn(f"--hang: the run is not watched ({exc}).")

    def stop(self, ended: Mapping[str, Any] | None = None) -> None:
        """End the thread, and wait until the system has forgotten it. At the end of the program, write how that ended."""
        if self._pid != os.getpid():
            return
        if self._tid:
            if self._wake.locked():
                self._wake.release()
            until = time.monotonic() + _ENDS_S
            while self._tid and time.monotonic() < until:
                time.sleep(0)
            task = f"/proc/self/task/{self._last_tid}"
            while os.path.exists(task) and time.monotonic() < until:
                time.sleep(0)
            if not self._tid:
                self._wake.acquire(False)
        if ended is not None and not self._is_over:
            self._is_over = True
            self._end_hang()
            try:
                self._is_set_up()  # it may have ended before there was a look
                self._write_exit_codes()
            except OSError:
                pass  # the folder is gone, or full: what was written before is told
            if self._document is not None:
                self._document["ended"] = {**ended, "time_ns": time.time_ns()}
                self._write()

    def _write_exit_codes(self) -> None:
        """Write how the children of multiprocessing ended that a signal or ``os._exit`` ended: only their parent learns it."""
        children = list(getattr(sys.modules.get("multiprocessing.process"), "_dangling", ()))
        codes = {str(child.pid): child._popen.returncode for child in children if child._popen is not None}  # the system is not asked
        codes = {pid: code for pid, code in codes.items() if code}
        settings = recorder.inherited()
        if not codes or settings is None:
            return
        folder = os.path.join(os.path.dirname(settings[0]), FOLDER)
        name = f"{settings[2].replace('/', '_')}-children-{self._pid}.json"
        if os.path.isdir(folder):
            write_json(os.path.join(folder, name), {"schema": 1, "host": settings[2], "codes": codes})

    def before_fork(self) -> None:
        """No thread is beside a fork."""
        self._was_running = bool(self._tid)
        self.stop()

    def after_fork(self) -> None:
        """The parent goes on."""
        if self._was_running:
            self.start()

    _was_running, _last_tid = False, 0

    def _run(self) -> None:
        self._tid = self._last_tid = get_native_id()
        try:
            import signal

            if hasattr(signal, "pthread_sigmask"):
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the program's threads'
            while not self._wake.acquire(timeout=self._pause_s()):
                began = time.thread_time_ns()
                self._check()
                recorder.timed(0, time.thread_time_ns() - began, "instruments")
        except Exception as exc:  # whatever the system shows: the program goes on
            self._is_over = True
            self._warn(f"--hang: the run is not watched any more ({type(exc).__name__}: {exc}).")
        finally:
            self._tid = 0

    # a look

    def _pause_s(self) -> float:
        return min(self._detector.limit_s / _LOOKS, _SELDOM_S if self._progress is not None else _SOON_S)

    def _check(self) -> None:
        if not self._is_set_up():
            return
        now, detector, progress = time.monotonic(), self._detector, self._progress
        assert progress is not None
        moved, steps_s = progress.read()
        is_expected = detector.moved_s is not None or self._document is not None or progress.is_in_loop is not None
        if is_expected and (moved or detector.moved_s is None):
            detector.moved(now, steps_s)
            self._end_hang()
        elif detector.moved_s is not None:
            stacks = all_stacks(self._main, get_ident())
            detector.stood(now, signature(stacks), self._activity.sample([one[0] for one in stacks if one[0]]))
            del stacks  # the frames hold what the program may wait to see freed
        self._show_life(now)
        if self._hang is None and detector.hangs(now, self._others_s(now), progress.is_in_loop is False and not self._is_in_collective()):
            self._begin_hang(now)
        elif self._hang is None:
            self._answer(now)
        else:
            self._hang["seen_time_ns"] = time.time_ns()
            self._write()

    def _is_set_up(self) -> bool:
        """Whether it is known where to record to; it is when something has been."""
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if self._is_child and not (c10d is not None and c10d.is_initialized()):
            return False
        settings = recorder.inherited()
        if settings is None:
            return self._progress is not None
        trace, rank, host, _, size = settings
        if self._progress is None:
            stems = re.compile(rf"{re.escape(host.replace('/', '_'))}-r\d+-{self._pid}(\.\d+)?-\d+\.seg$")
            self._progress = Progress(trace, stems, recorder.key_of)
            self._folder = os.path.join(os.path.dirname(trace), FOLDER)
        if size > 1 and (self._document is None or self._document["rank"] != rank):
            self._begin_document(rank, host, size)
        return True

    def _is_in_collective(self) -> bool:
        frame = sys._current_frames().get(self._main)
        return any("torch/distributed/" in str(one["file"]) for one in frames_of(frame))

    def _begin_document(self, rank: int, host: str, size: int) -> None:
        os.makedirs(self._folder, exist_ok=True)
        hangs = self._document["hangs"] if self._document is not None else []
        if self._document is not None and os.path.exists(self._path):
            os.unlink(self._path)  # it has learnt its rank
        self._path = os.path.join(self._folder, f"{host.replace('/', '_')}-r{rank}-{self._pid}.json")
        self._document = {
            "schema": 1, "rank": rank, "world_size": size, "host": host, "pid": self._pid, "ppid": os.getppid(),
            "clocks": {"perf_counter_ns": time.perf_counter_ns(), "time_ns": time.time_ns()}, "restart": restart(), "ended": None,
            "hangs": hangs,
        }  # fmt: skip
        self._write()

    def _show_life(self, now: float) -> None:
        """Have the time of the file say when the process was last alive."""
        if self._document is not None and self._detector.moved_s is not None:
            since = now - min(self._detector.alive_s, self._detector.moved_s + SIGNS * self._detector.limit_s)
            try:
                os.utime(self._path, ns=(time.time_ns(), time.time_ns() - int(since * 1e9)))
            except OSError:
                pass  # it is being replaced, or the folder is gone

    def _others_s(self, now: float) -> float:
        """When another process of the run was last alive."""
        if self._document is None or self._document["world_size"] < 2:
            return -1e9
        latest = -1e9
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and entry.path != self._path:
                    latest = max(latest, now - (time.time_ns() - entry.stat().st_mtime_ns) / 1e9)
        return latest

    # a hang

    def _begin_hang(self, now: float) -> None:
        settings = recorder.inherited()
        if self._document is None:
            _, rank, host, _, size = settings if settings is not None else ("", 0, "", 0, 1)
            self._begin_document(rank, host, size)
        self._speaks = self._claim()
        self._answered = self._marker()
        self._write_state(now, hangs=True)
        if self._speaks:
            if self._wake.acquire(timeout=2 * self._pause_s()):  # the others write what they do
                self._wake.release()  # the program ends
            from voirkit_instruments.hangs import analyse

            run = os.path.dirname(self._folder)
            self._warn(f"{analyse.newest_line(run)}  Stacks: {os.path.relpath(self._folder)}")

    def _claim(self) -> bool:
        """Whether this process has noticed first."""
        path = os.path.join(self._folder, OPEN)
        if self._marker() is None and os.path.exists(path):
            os.unlink(path)  # of ranks that were killed and started again
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            return False
        return True

    def _answer(self, now: float) -> None:
        """Another process hangs: write what this one does meanwhile."""
        if self._document is None:
            return
        marker = self._marker()
        if marker is not None and self._answered != marker:
            self._answered = marker
            self._write_state(now, hangs=False)

    def _marker(self) -> object:
        """Which hang is not over, of those that began when this process was there; None without."""
        try:
            found = os.stat(os.path.join(self._folder, OPEN))
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns) if found.st_mtime_ns >= self._began_ns else None

    def _write_state(self, now: float, hangs: bool) -> None:
        """Write what this process does: first what Python knows, then torch's collectives, which may take longer."""
        assert self._document is not None
        detector, shares = self._detector, self._activity.shares
        without = now - (detector.moved_s if detector.moved_s is not None else now)
        stacks = all_stacks(self._main, get_ident())
        state: dict[str, Any] = {
            "hangs": hangs, "noticed_time_ns": time.time_ns(), "since_time_ns": time.time_ns() - int(without * 1e9), "over_time_ns": None,
            "limit_s": detector.limit_s, "median_step_s": detector.median_s, "threads": describe_threads(stacks, self._main, shares),
            "workers": describe_workers(shares), "collectives": None,
        }  # fmt: skip
        del stacks
        self._document["hangs"].append(state)
        self._hang = state if hangs else self._hang
        self._write()
        try:
            state["collectives"] = collectives()
        except Exception as exc:  # a torch that is not like any known one
            state["collectives_error"] = f"{type(exc).__name__}: {text_of(str(exc))}"
        self._write()

    def _end_hang(self) -> None:
        hang, self._hang = self._hang, None
        if hang is None:
            return
        hang["over_time_ns"] = time.time_ns()
        self._write()
        if self._speaks:
            self._speaks = False
            try:
                os.unlink(os.path.join(self._folder, OPEN))
            except OSError:
                pass
            if not self._is_over:
                self._report(f"the run goes on after {duration((hang['over_time_ns'] - hang['since_time_ns']) / 1e9)} without a step.")

    def _write(self) -> None:
        try:
            write_json(self._path, self._document)
        except OSError as exc:
            self._warn(f"--hang: {self._path} cannot be written ({exc.strerror}).")
        if self._detector.moved_s is not None:
            self._show_life(time.monotonic())
