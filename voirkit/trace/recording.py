"""The recording of one process: its files, its share of the disk limit, and its dropped records.

The hot path calls this code when a thread has no window to write to, or needs a line in the
``.names`` file. There is no lock. Signal handlers, destructors or gc callbacks that record may
interrupt this code at any point, and so may other threads. ``dict.setdefault`` decides who performs
an action that must happen only once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import count
from time import perf_counter_ns

from voirkit.trace import layout
from voirkit.trace.files import Files, Segment
from voirkit.trace.names import Names, ends_line, group_line, text_of, thread_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Settings:
    """The settings of a recording, which child processes inherit.

    Attributes:
        folder: The absolute path of the folder with the files.
        rank: The rank of this process.
        host: The host name.
        limit: The maximum total size of all files in bytes.
        world_size: The number of ranks; 1 without a group.
    """

    __slots__ = ("folder", "host", "limit", "rank", "world_size")

    def __init__(self, folder: str, rank: int, host: str, limit: int, world_size: int = 1) -> None:
        self.folder, self.rank, self.host, self.limit, self.world_size = (
            folder,
            rank,
            host,
            limit,
            world_size,
        )


class Totals:
    """The totals of what a process recorded.

    Attributes:
        events: The number of records in files.
        dropped: The numbers of records that were not written, by ``category.name``.
        parts: Seconds of overhead, by the part named in calls of ``timed``. ``recording`` also
            contains an estimate for all other records: the measured cost of one record, and the
            time spent on files.
        seconds: The sum of ``parts``.
        stopped: The reason why recording ended early; None if it did not.
    """

    __slots__ = ("dropped", "events", "parts", "stopped")

    def __init__(
        self, events: int, dropped: dict[str, int], parts: dict[str, float], stopped: str | None
    ) -> None:
        self.events, self.dropped, self.parts, self.stopped = events, dropped, parts, stopped

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    def __repr__(self) -> str:
        return (
            f"Totals(events={self.events}, dropped={self.dropped}, seconds={self.seconds:.6f},"
            f" stopped={self.stopped!r})"
        )


class Recording:
    """The part of a recording that this process writes.

    Args:
        engine: The module of the hot path: ``_recorder`` or ``plain``.
        names: The interned names and arguments of this process.
        settings: The folder, rank, and size limit of the recording.
        tell: Called once with a message if recording has to stop.
    """

    def __init__(
        self, engine: Any, names: Names, settings: Settings, tell: Callable[[str], None]
    ) -> None:
        self.engine, self.names, self.settings, self.tell = engine, names, settings, tell
        self.pid = os.getpid()
        # .names files of the processes that this one was forked from, oldest first
        self.ancestors: list[str] = []
        self.stopped: str | None = None
        self._once: dict[str, Any] = {}
        self._dropped: dict[int, Any] = {}
        self._counting = False
        self._events = 0
        self._ends: dict[int, int] = {}
        self._slow_ns = 0
        self._timed_events = 0
        self._timed_ns: dict[str, int] = {}
        # State of the limit, in bytes: what was left at the last check of the folder, how much of
        # that this process may use before the next check, and how much it has used since.
        self._left = self._share = self._used = 0

    # callbacks of the hot path

    def arrive(self) -> int | None:
        """Write the name of the current thread to the files, before it first records into a
        segment.

        Returns:
            The native id of the thread; None if nothing is recorded any more.
        """
        start_ns = perf_counter_ns()
        files = self._files()
        if files is None:
            return None
        tid, name = _thread()
        self.write(thread_line(tid, name))
        self._slow_ns += perf_counter_ns() - start_ns
        return None if self.stopped else tid

    def grow(self, segment: Segment | None) -> tuple[Segment, Any, int, int, int] | None:
        """Map the next window of a full segment.

        Args:
            segment: The segment; None for a new one.

        Returns:
            (segment, new window, offset of the window in the file, size of the window, offset of
            the first record in the window). None if nothing is recorded any more.
        """
        start_ns = perf_counter_ns()
        files = self._files()
        if files is None or self.stopped:
            return None
        if segment is None:
            segment = files.segment()
        size = self._allowed(segment.window)
        if not size:
            self._beyond_limit()
            return None
        at = segment.size
        try:
            window, first = segment.grow(size, self.engine.Window)
        except OSError as exc:
            if exc.errno is None:
                raise  # raised by a signal handler of the program, such as a TimeoutError
            self._fail(exc, segment.path)
            return None
        self._used += size
        self._slow_ns += perf_counter_ns() - start_ns
        return segment, window, at, size, first

    def resolve(self, number: int) -> None:
        """Write the line of arguments that were interned before this process had its file. Called
        before the first record that uses their id."""
        files = self._files()
        if files is None or number in files.resolved:
            return
        line = self.names.line_of_arguments(number) or _line_in(self.ancestors, number)
        if line is not None:
            self.write(line)
            files.resolved.add(number)

    def lose(self, name: int) -> None:
        """Count a record that could not be written. ``name``: its name id."""
        counter = self._dropped.get(name)
        if counter is None:
            counter = self._dropped.setdefault(name, count(1))
        self._save_dropped(name, next(counter))

    def _save_dropped(self, name: int, dropped: int) -> None:
        if self._counting or "uncounted" in self._once:
            return  # a recursive call, as by an audit hook that records while the file is opened
        self._counting = True
        try:
            files = self._files()
            if files is not None:
                files.count_dropped(name, dropped, self.engine.Window)
        except OSError as exc:
            if exc.errno is None:
                raise
            self._once["uncounted"] = True  # the disk is full: only the counts in memory are kept
        finally:
            self._counting = False

    def timed(self, events: int, took_ns: int, part: str) -> None:
        """Add the measured overhead of some records; see ``recorder.timed``."""
        self._timed_events += events
        self._timed_ns[part] = self._timed_ns.get(part, 0) + took_ns

    def join_group(self, rank: int, world_size: int) -> None:
        """Set the rank and world size of this process, also for its earlier records."""
        settings = self.settings
        self.settings = Settings(settings.folder, rank, settings.host, settings.limit, world_size)
        self.write(group_line(rank, world_size))

    # the ``.names`` file and segments

    def write(self, line: bytes, is_name: bool = False) -> None:
        """Append a line to the ``.names`` file, if it exists yet. After recording has stopped, only
        the lines of names are written: the counts of dropped records refer to them."""
        files = self._once.get("files")
        if files is None or (self.stopped and not is_name):
            return
        self._used += len(line)
        if self._used > self._share and not self._look() and not self.stopped:
            self._beyond_limit()
        try:
            files.write(line)
        except OSError as exc:
            if exc.errno is None:
                raise
            self._fail(exc, files.names)

    def has_files(self) -> bool:
        """True if the files exist, because something has been recorded."""
        return self._once.get("files") is not None

    def _files(self) -> Files | None:
        once = self._once
        if "files" not in once:
            try:
                made = Files(
                    self.settings.folder,
                    self.settings.host,
                    self.settings.rank,
                    self.settings.world_size,
                )
                # another thread created the files first, or the recording has ended
                if once.setdefault("files", made) is not made:
                    made.discard()
            except OSError as exc:
                if exc.errno is None:
                    raise
                once.setdefault("files", None)
                self._fail(exc, self.settings.folder)
        files: Files | None = once["files"]
        if files is None:
            return None
        if not files.complete:
            # Done by every thread that gets here, not only by the one that created the files: no
            # thread may record before all names are in the file.
            for line in self.names.lines():
                self.write(line, is_name=True)
            self.engine.inherit(self.names.begin_file())
            files.complete = True
            # makes spans intern their arguments again, and so get ids with lines in this file
            self.engine.changed()
        return files

    # the limit on the size of all files

    def _allowed(self, n_bytes: int) -> int:
        """Return the size in bytes that a window may have under the limit: at most ``n_bytes``, and
        0 if the limit is reached."""
        if self._used + n_bytes > self._share:
            self._look()
        remaining = self._left - self._used
        return (
            min(n_bytes, remaining - remaining % layout.GRANULE)
            if remaining >= layout.GRANULE
            else 0
        )

    def _look(self) -> bool:
        """Measure how much space the files of all processes take. True if the limit is not yet
        reached."""
        used_bytes, stems = 0, set()
        try:
            with os.scandir(self.settings.folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        used_bytes += entry.stat(follow_symlinks=False).st_size
                        stems.add(
                            entry.name.rpartition("-")[0]
                            if entry.name.endswith(".seg")
                            else entry.name.rpartition(".")[0]
                        )
        except OSError as exc:
            if exc.errno is None:
                raise  # raised by a signal handler of the program
            # otherwise the folder is gone, and the next write to the folder reports that
        self._left, self._used = self.settings.limit - used_bytes, 0
        # This process's share: until the next check, all processes together use at most an eighth
        # of the space that is left.
        self._share = max(self._left, 0) // (8 * max(len(stems), 1))
        return self._left > 0

    def _beyond_limit(self) -> None:
        self._stop(
            f"the recording has reached its limit of {_size(self.settings.limit)} (--trace-limit)"
        )

    # end of the recording

    def _fail(self, exc: OSError, path: str) -> None:
        self._stop(f"{path} cannot be written ({exc.strerror})")

    def _stop(self, why: str) -> None:
        if self._once.setdefault("stopped", why) is not why:
            return
        self.stopped = why
        self.engine.switch(2)
        self._close()
        self._tell(f"{why}; what comes now is counted as dropped.")

    def _tell(self, text: str) -> None:
        try:
            self.tell(text)
        except Exception:
            # stderr is closed, or a signal handler interrupted the write. The totals also tell why
            # the recording has stopped.
            pass

    def _close(self) -> None:
        for segment, end, n_others, is_free in self.engine.close():
            self._events += (end - layout.HEADER_BYTES) // layout.RECORD_BYTES - n_others
            if segment is None:
                continue
            self._ends[segment.number] = end
            if is_free:
                segment.cut(end)

    def finish(self) -> Totals:
        """Close the files and return the totals. The engine must have been switched off before."""
        self._close()
        dropped: dict[str, int] = {}
        for number, counter in list(self._dropped.items()):
            lost = next(counter) - 1
            # saved again: of two threads, the one with the smaller count may have saved last
            self._save_dropped(number, lost)
            name = self.names.describe(number)
            dropped[name] = dropped.get(name, 0) + lost
        files = self._once.setdefault("files", None)  # None prevents files from being created later
        if files is not None:
            try:
                files.write(ends_line(self._ends))
            except OSError as exc:
                if exc.errno is None:
                    raise
            files.close()
        return Totals(
            self._events,
            dropped,
            {part: ns / 1e9 for part, ns in self._took_ns().items()},
            self.stopped,
        )

    def _took_ns(self) -> dict[str, float]:
        """Return a dict from part to its overhead in nanoseconds.

        Timed records count with their measured time, which includes time spent on files. The others
        count with the measured cost of one record, and a proportional share of the time spent on
        files.
        """
        n_untimed = max(self._events - self._timed_events, 0)
        took: dict[str, float] = {"recording": 0.0, **self._timed_ns}
        if n_untimed:
            took["recording"] += self._slow_ns * n_untimed / self._events + n_untimed * _cost_ns(
                self.engine
            )
        elif not self._timed_events:
            took["recording"] += self._slow_ns
        return took

    def in_child(self) -> Recording:
        """Return the recording for a forked child, whose files are created when it records."""
        child = Recording(self.engine, self.names, self.settings, self.tell)
        files = self._once.get("files")
        child.ancestors = self.ancestors if files is None else [*self.ancestors, files.names]
        if self.stopped is not None:  # the parent has already warned the user
            child.stopped = child._once["stopped"] = self.stopped
        return child


def _cost_ns(engine: Any) -> float:
    """Measure the cost of one record in nanoseconds, including two clock reads. ``trial`` writes to
    separate memory, so threads that record meanwhile are not disturbed."""
    times = 1000
    trial = engine.trial
    start_ns = perf_counter_ns()
    for _ in range(times):
        trial(1, perf_counter_ns(), perf_counter_ns())
    return (perf_counter_ns() - start_ns) / times


def _thread() -> tuple[int, str]:
    """Return (native id, name) of the current thread. ``threading.current_thread`` is not used,
    since it creates an object for a thread that Python did not start."""
    from _thread import get_ident, get_native_id

    ident = get_ident()
    threading = sys.modules.get("threading")
    thread = threading._active.get(ident) if threading is not None else None
    if thread is not None:
        return get_native_id(), text_of(thread._name)
    return get_native_id(), "MainThread" if get_native_id() == os.getpid() else f"thread {ident}"


def _line_in(paths: Sequence[str], number: int) -> bytes | None:
    """Return the line of arguments from the ``.names`` files of ancestors, the nearest first; None
    if there is no such line.

    Args:
        paths: The files, oldest ancestor first.
        number: The id of the arguments.
    """
    prefix = f'{{"{layout.ARGUMENTS}":{number},'.encode()
    for path in reversed(paths):
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.startswith(prefix) and line.endswith(b"\n"):
                        return line
        except OSError as exc:
            if exc.errno is None:
                raise
    return None


def _size(size: float) -> str:
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"
