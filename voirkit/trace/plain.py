"""The hot path of recording in pure Python, used where the C extension ``_recorder`` is missing.

It has the same interface and writes the same files. It must never raise into the program. Each
thread owns a writer. The place for the next record comes from an iterator, by one step in C. So a
signal handler or destructor that records while another record is being written gets a place of its
own.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from _thread import _local as _Local
from functools import partial
from itertools import repeat
from operator import length_hint
from sys import is_finalizing
from time import perf_counter_ns as now
from types import FunctionType

from voirkit.fork import file_identity
from voirkit.trace import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

OFF, ON, REFUSING = 0, 1, 2
NAME = "python"
DEEPEST = 32  # maximum nesting of records that interrupt each other while they open files
DEPTH = 40  # number of call stack levels that a record needs to open files

_pack = struct.Struct(layout.RECORD).pack_into
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

# _mode, _inherited, _generation and _local are read for each record. They are module globals, which
# are faster to read than attributes.
_mode = OFF
# arguments with ids up to this one may have no line in this process's file yet
_inherited = layout.THREAD
_highest = 0  # the highest id passed to ``inherit`` so far
_generation: object = object()


class _Writer:
    """A segment, its window (the mapped part of the file), and the free places (offsets of records)
    in the window. At any time a writer belongs to one thread, or to none."""

    __slots__ = ("announced", "busy", "end", "markers", "places", "segment", "window")

    def __init__(self) -> None:
        self.segment: Any = None
        self.window: Any = None
        self.places: Iterator[int] = iter(range(0))
        self.end = self.markers = 0
        self.busy = False  # whether a window is being created for this writer
        # whether a record in the segment names the thread of the records that follow
        self.announced = False

    def take_rest(self) -> int:
        """Take all free places, so that no thread can take one afterwards. Returns the offset of
        the first of them in the file.

        A thread that took a place before may find its window gone, and then leaves a hole in the
        file. A thread that comes later finds no place, and leaves no hole.
        """
        n_free = len(list(self.places))  # atomic: no other thread runs in between
        return self.end - n_free * layout.RECORD_BYTES


class _Thread:
    """The recording state of one thread. When the thread ends, its writer becomes free for another
    thread."""

    __slots__ = ("depth", "free", "writer")

    def __init__(self, free: list[_Writer]) -> None:
        self.free, self.depth = free, 0
        self.writer: _Writer | None = None

    def __del__(self) -> None:
        # the attribute is missing if an exception of a signal handler interrupted __init__
        writer = getattr(self, "writer", None)
        if writer is not None:
            self.free.append(writer)


# ``close`` replaces these three when a recording ends, and in a forked child. Nothing can be
# written through the earlier objects any more.
_local = _Local()
_writers: list[_Writer] = []
_free: list[_Writer] = []
# Records that could not be written because of Python's recursion limit, as (span or None, name,
# start, end, value, args). They are written once the call stack is less deep.
_too_deep: list[tuple[Any, int, int, int, int, int]] = []
_holes: list[None] = []  # one element for each place that was taken but not written to


def span(name_id: int, start_ns: int, end_ns: int, args: int = 0, value: int = 0) -> None:
    """Record a span of the name ``name_id`` from ``start_ns`` to ``end_ns``."""
    if _mode:
        try:
            window, place = _local.room
            if name_id and (not args or args > _inherited):
                _pack(window, place(), start_ns, end_ns - start_ns, value, args, name_id)
                return
        except _NO_ROOM as exc:
            _unless_the_programs(exc)
        _slow(name_id, start_ns, end_ns - start_ns, value, args)


# Raised when a thread has no window yet (AttributeError), its window is full (StopIteration) or
# closed (ValueError or TypeError, by Python version), or a number exceeds 64 bits (struct.error).
_NO_ROOM = (AttributeError, StopIteration, ValueError, TypeError, struct.error)


def _unless_the_programs(exc: Exception) -> None:
    """Raise an exception again if a signal handler of the program raised it. Otherwise count a
    hole, unless no place can have been taken."""
    if not isinstance(exc, (AttributeError, StopIteration)):
        _holes.append(None)
    if exc.__traceback__ is not None and exc.__traceback__.tb_next is not None:
        raise exc


def _slow(name_id: int, start: int, duration: int, value: int, args: int) -> None:
    raised: BaseException | None = None
    stored = False
    name_id, args = (number if 0 < number < layout.THREAD else 0 for number in (name_id, args))
    start, duration, value = (
        min(max(number, _LEAST), _MOST) for number in (start, duration, value)
    )
    # Try several times: before the record is written, its window may be closed, or be filled by
    # code that interrupts this call.
    tries = 4 if name_id else 0
    while tries and not stored and _mode == ON:
        tries -= 1
        try:
            _go_down(DEPTH)
            room = _make_room()
            # Resolve after _make_room, not before: if the recording ends and another begins
            # meanwhile, the window is closed, so the write fails and the next try repeats both.
            if args and args <= _inherited and room is not None:
                _callbacks.resolve(args)
        except BaseException as exc:
            # from a signal handler: raised again once the record is written
            raised = exc
            continue
        if room is None:
            break
        window, place = room
        try:
            _pack(window, place(), start, duration, value, args, name_id)
            stored = True
        except _NO_ROOM as exc:
            _unless_the_programs(exc)
    if _mode and not stored:
        if isinstance(raised, RecursionError) and name_id:
            _too_deep.append((None, name_id, start, start + duration, value, args))
        else:
            _callbacks.lose(name_id)
    # Not raised: exceptions at Python's exit, when modules are partly cleared, and RecursionError.
    # Both are caused by voirkit's own calls, not by the program.
    if raised is not None and not is_finalizing() and not isinstance(raised, RecursionError):
        raise raised


def _go_down(levels: int) -> None:
    """Raise RecursionError if the call stack cannot grow by this many levels. Checking this first
    avoids half-made objects whose destructor could not run."""
    if levels:
        _go_down(levels - 1)


_USED_UP = None, iter(()).__next__  # a full window: the caller fails to write, and tries again


def _make_room() -> tuple[Any, Callable[[], int]] | None:
    local, free = _local, _free
    thread: _Thread | None = getattr(local, "thread", None)
    if thread is None:
        thread = local.thread = _Thread(free)
    before = writer = thread.writer
    if thread.depth >= DEEPEST:
        return None
    # busy: this call interrupts an earlier one of the same thread, as in a signal handler
    if writer is None or writer.busy:
        try:
            writer = free.pop()
            writer.announced = False
        except IndexError:
            writer = _Writer()
            _writers.append(writer)
    writer.busy = True
    thread.depth += 1
    try:
        tid = 0 if writer.announced else _callbacks.arrive()
        if tid is None:
            return None
        if not length_hint(writer.places):
            grown = _callbacks.grow(writer.segment)
            if grown is None:
                return None
            segment, window, offset, size, first = grown
            # the recording ended during the call, or this is now a forked child
            if local is not _local:
                drop(window)
                return _USED_UP
            old, writer.segment, writer.window, writer.end = (
                writer.window,
                segment,
                window,
                offset + size,
            )
            writer.places = iter(range(first, size, layout.RECORD_BYTES))
            if old is not None:
                drop(old)
        place = writer.places.__next__
        if not writer.announced:
            try:
                _pack(writer.window, place(), now(), 0, tid, 0, layout.THREAD)
            except _NO_ROOM as exc:
                _unless_the_programs(exc)
                return _USED_UP
            writer.markers += 1
            writer.announced = True
    finally:
        writer.busy = False
        thread.depth -= 1
        if thread.writer is not before and thread.writer is not None:
            free.append(thread.writer)  # set by code that interrupted this call
        thread.writer = writer
    room = local.room = writer.window, place
    return room


class _Exit:
    """Descriptor for ``Span.__exit__`` that takes the start time when it is accessed.

    ``with span:`` looks up ``__exit__`` before it calls ``__enter__``. The function returned by
    that lookup holds the start time, so the span itself needs no state.
    """

    __slots__ = ()

    def __get__(self, span: Span | None, owner: type | None = None) -> Callable[..., None]:
        if not _mode:
            return _nothing
        if span is None:  # accessed on the class, as contextlib.ExitStack does
            return partial(_leave, now())
        if span._seen is not _generation:
            _refresh(span)
        return partial(_leave, now(), span) if span.enabled else _nothing


def _nothing(*_: object) -> None:
    pass


def _leave(start: int, span: Span, *_: object) -> None:
    end = now()
    try:
        if span._seen is not _generation:
            _refresh(span)
        if span.enabled:
            _record(span.name_id, start, end, span.args)
    except RecursionError:
        # the program has reached the recursion limit, and its own RecursionError is being
        # raised
        _too_deep.append((span, span.name_id, start, end, 0, 0))
        return
    if _too_deep:
        try:
            _make_up()
        except RecursionError:
            pass  # the call stack is still too deep


def _make_up() -> None:
    """Write the records that were postponed because of the recursion limit."""
    for _ in range(len(_too_deep)):  # a fixed number: records may be postponed again
        late = span, name_id, start, end, value, args = _too_deep.pop()
        try:
            if span is not None:
                if span._seen is not _generation:
                    _refresh(span)
                if not span.enabled:
                    continue
                args = span.args
            _record(name_id, start, end, args, value)
        except RecursionError:
            _too_deep.append(late)
            raise


def _refresh(span: Span) -> None:
    generation = _generation
    try:
        span.refresh()
    except RecursionError:
        raise
    except Exception as exc:
        _callbacks.failed(exc)
    span._seen = generation  # last, or another thread would use the attributes before the refresh


class Span:
    """A reusable span: each ``with`` block records it once, when the block ends. See
    ``recorder``."""

    __slots__ = ("_seen", "args", "enabled", "name_id")

    def __init__(self, name_id: int) -> None:
        self.name_id, self.enabled, self.args = name_id, True, 0
        self._seen: object = None

    def __enter__(self) -> Any:
        return self

    __exit__ = _Exit()

    def refresh(self) -> None:
        """Update ``args`` and ``enabled``. Does nothing here; subclasses override it."""

    def is_on(self) -> bool:
        """True if the span would be recorded if it began now."""
        if not _mode:
            return False
        if self._seen is not _generation:
            _refresh(self)
        return bool(self.enabled)

    def record(self, start_ns: int, end_ns: int, value: int = 0, name_id: int = 0) -> None:
        """Record this span with explicit times and its current arguments.

        Args:
            start_ns: The start of the span.
            end_ns: The end of the span.
            value: The record's own number.
            name_id: The id of another name to use; 0 for the span's own name.
        """
        if self.is_on():
            _record(name_id or self.name_id, start_ns, end_ns, self.args, value)


_record = span


class _Nobody:
    """Stand-in for the thread-local data that ``span`` uses, for ``trial``."""

    room = bytearray(layout.RECORD_BYTES), repeat(0).__next__


# The code of ``span`` with other globals: it records into memory that is never read. It serves to
# measure the cost of a record without any effect on the recording.
trial = FunctionType(
    span.__code__,
    {"_mode": ON, "_local": _Nobody, "_inherited": 0, "_pack": _pack},
    "trial",
    span.__defaults__,
)


def changed() -> None:
    """Make every span call ``refresh`` before its next use, since arguments or ``enabled`` may have
    changed."""
    global _generation
    # an object, not a counter: two threads that increment it at once could get the same number
    _generation = object()


# interface for the module ``recording``


class _Callbacks:
    """The callbacks that ``install`` sets."""

    __slots__ = ("arrive", "failed", "grow", "lose", "resolve")

    arrive: Callable[[], int | None]
    grow: Callable[[Any], tuple[Any, Any, int, int, int] | None]
    resolve: Callable[[int], None]
    lose: Callable[[int], None]
    failed: Callable[[Exception], None]


_callbacks = _Callbacks()


def install(
    arrive: Callable[[], int | None],
    grow: Callable[[Any], tuple[Any, Any, int, int, int] | None],
    resolve: Callable[[int], None],
    lose: Callable[[int], None],
    failed: Callable[[Exception], None],
) -> None:
    """Set the callbacks of the hot path.

    Args:
        arrive: Called when a thread first writes to a segment. Returns its native id; None if
            nothing is recorded any more.
        grow: Called with a segment that has no free place, or None for a new one. Returns (segment,
            window, offset of the window in the file, size of the window, offset of the first record
            in the window); None if nothing is recorded any more.
        resolve: Called with the id of arguments that may have no line in the files yet, before they
            are recorded.
        lose: Called with the name id of each record that cannot be written.
        failed: Called with the exception when a span's ``refresh`` raises.
    """
    _callbacks.arrive = arrive
    _callbacks.grow = grow
    _callbacks.resolve = resolve
    _callbacks.lose = lose
    _callbacks.failed = failed


def switch(mode: int) -> None:
    """Set the mode: ``ON`` records, ``OFF`` does nothing, ``REFUSING`` counts each record as
    dropped."""
    global _mode
    if _mode == ON:
        _make_up()
    _mode = mode


def inherit(last: int) -> None:
    """Declare that arguments with ids up to ``last`` may have no line in the files yet. A smaller
    value than before comes from a delayed caller, and is ignored."""
    global _inherited, _highest
    if last >= _highest:
        _inherited = _highest = last


def close() -> list[tuple[Any, int, int, bool]]:
    """Close the windows of all threads.

    Returns:
        For each segment: (segment, its used size in bytes, number of used places without an event,
        whether certainly no thread writes to it any more). Holes of earlier windows that belong to
        no segment here are returned with None as segment.
    """
    global _local, _writers, _free, _inherited, _holes
    while _too_deep:
        late = _too_deep.pop()
        if _mode != ON:  # if ON, this is a forked child, and the records are its parent's
            _callbacks.lose(late[1])
    writers, _writers, _free = _writers, [], []
    empty, _holes = len(_holes), []
    _local, _inherited = _Local(), layout.THREAD
    ends = []
    for writer in writers:
        if writer.window is not None:
            # Drop the window before ``take_rest`` determines where the records end: until then,
            # another thread may write into the window.
            dropped = drop(writer.window)
            ends.append(
                (
                    writer.segment,
                    writer.take_rest(),
                    writer.markers + empty,
                    dropped and not writer.busy,
                )
            )
            empty = 0
    if empty:
        ends.append((None, layout.HEADER_BYTES, empty, False))
    return ends


# Windows of segments: parts of a file, mapped by Python's mmap module. The C recorder maps them by
# itself.

# Mappings that must not, or cannot, be closed. Before Python 3.13, a mapping duplicates the file's
# descriptor, and closes the duplicate by its number. If the program has closed all descriptors, as
# daemons do, the number may now stand for a file of the program.
_kept: list[Any] = []
# a fork hook that refers to the list keeps it alive until Python has exited
(
    os.register_at_fork(after_in_child=lambda kept=_kept: None)
    if hasattr(os, "register_at_fork")
    else None
)


def _close(window: mmap.mmap) -> bool:
    try:
        window.close()
    except BufferError:  # another thread is writing into it at this moment
        _kept.append(window)
        return False
    return True


if sys.version_info >= (3, 13) and os.name == "posix":

    def Window(fd: int, at: int, size: int) -> mmap.mmap:
        """Map ``size`` bytes of a file from the offset ``at``; anonymous memory if ``fd`` is -1."""
        return mmap.mmap(fd, size, offset=at, trackfd=False) if fd >= 0 else mmap.mmap(-1, size)

    def drop(window: mmap.mmap) -> bool:
        """Close a window. True if it could be closed."""
        return _close(window)

else:

    class Window(mmap.mmap):
        """A mapping of ``size`` bytes of a file, from the offset ``at``; anonymous memory if ``fd``
        is -1."""

        copy = -1
        file: tuple[int, int] | None = None
        # On Windows a mapping holds a handle, which the program cannot close by number.
        is_ours = os.name == "nt"

        def __new__(cls, fd: int, at: int, size: int) -> Window:
            if fd < 0:  # anonymous memory has no descriptor
                self = super().__new__(cls, -1, size)
                self.is_ours = True
                return self
            copy = os.dup(fd)
            os.close(copy)
            self = super().__new__(cls, fd, size, offset=at)
            file = file_identity(fd)
            # the mapping's duplicate of ``fd`` has the number of ``copy``, unless another thread
            # took that number first
            if file_identity(copy) == file:
                self.copy, self.file = copy, file
            return self

    def drop(window: Window) -> bool:
        """Close a window. True if it could be closed."""
        if not window.is_ours and (
            window.file is None or file_identity(window.copy) != window.file
        ):
            _kept.append(window)
            return False
        return _close(window)
