"""A recording in one process: its segments, its share of the disk, what is dropped, and what
becomes of it when the disk is full.

Everything here is called by the hot path when it cannot go on alone.  There is no lock, since it
may be interrupted at any point by a signal handler, a destructor or a gc callback that records, or
by another thread; what must happen once is decided by ``dict.setdefault``.
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
    """What all processes of a recording share; plain data, it is pickled for children.

    Attributes:
        folder: The absolute path of the files.
        limit: The most bytes that all of them may have together.
        world_size: Of the group in which this process has its rank; 1 without one.
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
    """What a process recorded.

    Attributes:
        events: Records that are in files.
        dropped: Records that are not, by ``category.name``.
        parts: Seconds by what they were spent on. ``recording``: as it was timed by who records
            (``timed``), and for other records an estimate, the measured cost of one record and the
            time spent on files. Others have the names that ``timed`` was told.
        seconds: All of them.
        stopped: Why recording ended early; None if it did not.
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
    """This process's part of a recording.

    Args:
        engine: The hot path: ``_recorder`` or ``plain``.
        names: What has been interned in this process.
        settings: Where to, and how much.
        tell: Takes the one warning.
    """

    def __init__(
        self, engine: Any, names: Names, settings: Settings, tell: Callable[[str], None]
    ) -> None:
        self.engine, self.names, self.settings, self.tell = engine, names, settings, tell
        self.pid = os.getpid()
        self.ancestors: list[str] = []  # the .names of the processes that this one was forked from
        self.stopped: str | None = None
        self._once: dict[str, Any] = {}
        self._dropped: dict[int, Any] = {}
        self._counting = False
        self._events = 0
        self._ends: dict[int, int] = {}
        self._slow_ns = 0
        self._timed_events = 0
        self._timed_ns: dict[str, int] = {}
        # of the limit: what was left when the folder was last looked at, how much of it may be used
        # before looking again, what has been
        self._left = self._share = self._used = 0

    # what the hot path calls

    def arrive(self) -> int | None:
        """A thread is about to record into a segment that was not its own.

        Returns:
            Its native id; its name is in the files.  None: nothing is recorded any more.
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
        """A segment has no room, or there is none yet. Returns the segment, its new window, the
        window's place in the file, its bytes, and where in it the first record goes; None: nothing
        is recorded any more."""
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
                raise  # it is of a signal handler of the program: a TimeoutError
            self._fail(exc, segment.path)
            return None
        self._used += size
        self._slow_ns += perf_counter_ns() - start_ns
        return segment, window, at, size, first

    def resolve(self, number: int) -> None:
        """Arguments from before there was a file are about to be recorded."""
        files = self._files()
        if files is None or number in files.resolved:
            return
        line = self.names.line_of_arguments(number) or _line_in(self.ancestors, number)
        if line is not None:
            self.write(line)
            files.resolved.add(number)

    def lose(self, name: int) -> None:
        """A record could not be written."""
        counter = self._dropped.get(name)
        if counter is None:
            counter = self._dropped.setdefault(name, count(1))
        self._save_dropped(name, next(counter))

    def _save_dropped(self, name: int, dropped: int) -> None:
        if self._counting or "uncounted" in self._once:
            return  # this was called by what is called here: by an audit hook that records
        self._counting = True
        try:
            files = self._files()
            if files is not None:
                files.count_dropped(name, dropped, self.engine.Window)
        except OSError as exc:
            if exc.errno is None:
                raise
            self._once["uncounted"] = True  # on a full disk they are counted in memory alone
        finally:
            self._counting = False

    def timed(self, events: int, took_ns: int, part: str) -> None:
        """Some records were timed while they were made; see ``recorder.timed``."""
        self._timed_events += events
        self._timed_ns[part] = self._timed_ns.get(part, 0) + took_ns

    def join_group(self, rank: int, world_size: int) -> None:
        """This process has a rank among others, also in what it has recorded before."""
        settings = self.settings
        self.settings = Settings(settings.folder, rank, settings.host, settings.limit, world_size)
        self.write(group_line(rank, world_size))

    # files

    def write(self, line: bytes, is_name: bool = False) -> None:
        """Append a line to the names, if there is a file yet. When recording has stopped names are
        needed still, for what is dropped."""
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
        """Whether anything has been recorded."""
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
                # another thread was faster, or the recording has ended meanwhile
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
            # Not only whoever made it: another thread may not record before all the names are
            # there.
            for line in self.names.lines():
                self.write(line, is_name=True)
            self.engine.inherit(self.names.begin_file())
            files.complete = True
            # spans ask for their arguments again, and get such as have a line
            self.engine.changed()
        return files

    # the limit

    def _allowed(self, n_bytes: int) -> int:
        """How large a window may be; 0: none."""
        if self._used + n_bytes > self._share:
            self._look()
        remaining = self._left - self._used
        return (
            min(n_bytes, remaining - remaining % layout.GRANULE)
            if remaining >= layout.GRANULE
            else 0
        )

    def _look(self) -> bool:
        """See how much all processes have used; whether anything is left."""
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
                raise  # the folder is gone, which is found out where something is written
        self._left, self._used = self.settings.limit - used_bytes, 0
        # Until the next check all processes together use at most an eighth of what is left.
        self._share = max(self._left, 0) // (8 * max(len(stems), 1))
        return self._left > 0

    def _beyond_limit(self) -> None:
        self._stop(
            f"the recording has reached its limit of {_size(self.settings.limit)} (--trace-limit)"
        )

    # its end

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
            # stderr is closed, or a signal handler interrupted a write to it: the totals report it
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
        """End it; the engine is off already."""
        self._close()
        dropped: dict[str, int] = {}
        for number, counter in list(self._dropped.items()):
            lost = next(counter) - 1
            # of two threads the one with the smaller number may have saved it last
            self._save_dropped(number, lost)
            name = self.names.describe(number)
            dropped[name] = dropped.get(name, 0) + lost
        files = self._once.setdefault("files", None)  # None: there will be none
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
        """Those that were timed once, with their part of the time spent on files; the others by
        what one costs."""
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
        """The part of a forked child: files of its own, made when it records."""
        child = Recording(self.engine, self.names, self.settings, self.tell)
        files = self._once.get("files")
        child.ancestors = self.ancestors if files is None else [*self.ancestors, files.names]
        if self.stopped is not None:  # told already
            child.stopped = child._once["stopped"] = self.stopped
        return child


def _cost_ns(engine: Any) -> float:
    """What a record costs now, with its two clock reads, measured into memory of the engine's own:
    other threads may be recording."""
    times = 1000
    trial = engine.trial
    start_ns = perf_counter_ns()
    for _ in range(times):
        trial(1, perf_counter_ns(), perf_counter_ns())
    return (perf_counter_ns() - start_ns) / times


def _thread() -> tuple[int, str]:
    """(native id, name) of this thread; ``threading.current_thread`` would make an object for a
    thread that python did not start."""
    from _thread import get_ident, get_native_id

    ident = get_ident()
    threading = sys.modules.get("threading")
    thread = threading._active.get(ident) if threading is not None else None
    if thread is not None:
        return get_native_id(), text_of(thread._name)
    return get_native_id(), "MainThread" if get_native_id() == os.getpid() else f"thread {ident}"


def _line_in(paths: Sequence[str], number: int) -> bytes | None:
    """The line of a set of arguments in the files of ancestors."""
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
