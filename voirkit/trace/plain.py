"""The hot path in Python, for where the C extension ``_recorder`` is not: the same names, the same
files.

It must never raise into the program.  A thread owns a writer; where to write next is taken from an
iterator, one step of C, so that a signal handler or destructor that records in the middle of a
record gets a place of its own.
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
DEEPEST = 32  # records within records within ... that have to open files
DEPTH = 40  # calls within calls within ... of a record that has to

_pack = struct.Struct(layout.RECORD).pack_into
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

# Read for each record, as are _generation and _local: names of the module, which are read faster
# than attributes.
_mode = OFF
_inherited = layout.THREAD  # arguments up to this one may have no line in this process's file yet
_highest = 0  # that was inherited
_generation: object = object()


class _Writer:
    """A segment, its window, and the next free places in it; at any time one thread's, or
    nobody's."""

    __slots__ = ("announced", "busy", "end", "markers", "places", "segment", "window")

    def __init__(self) -> None:
        self.segment: Any = None
        self.window: Any = None
        self.places: Iterator[int] = iter(range(0))
        self.end = self.markers = 0
        self.busy = False  # a window is being made for it
        self.announced = False  # a record in it says whose the next are

    def take_rest(self) -> int:
        """Take all free places, so that nobody takes one after this; returns where in the file the
        first of them is. A thread that took one before may still find no window to write to, and
        leaves a hole; one that comes later finds no place, and leaves none."""
        n_free = len(list(self.places))  # in one go: no other thread runs between
        return self.end - n_free * layout.RECORD_BYTES


class _Thread:
    """What a thread writes with; when the thread ends, another may."""

    __slots__ = ("depth", "free", "writer")

    def __init__(self, free: list[_Writer]) -> None:
        self.free, self.depth = free, 0
        self.writer: _Writer | None = None

    def __del__(self) -> None:
        # what a signal handler raised may have ended __init__
        writer = getattr(self, "writer", None)
        if writer is not None:
            self.free.append(writer)


# These are replaced, all at once, when a recording ends, and in a forked child: what was made
# before cannot be written to any more.
_local = _Local()
_writers: list[_Writer] = []
_free: list[_Writer] = []
# Records for which python could go no deeper, as (span or None, name, start, end, value, args):
# they are written when it can again.
_too_deep: list[tuple[Any, int, int, int, int, int]] = []
_holes: list[None] = []  # one for each place that was taken and not written to


def span(name_id: int, start_ns: int, end_ns: int, args: int = 0, value: int = 0) -> None:
    """Record what took from one time to another."""
    if _mode:
        try:
            window, place = _local.room
            if name_id and (not args or args > _inherited):
                _pack(window, place(), start_ns, end_ns - start_ns, value, args, name_id)
                return
        except _NO_ROOM as exc:
            _unless_the_programs(exc)
        _slow(name_id, start_ns, end_ns - start_ns, value, args)


# None yet; used up; taken away (ValueError or TypeError, depending on the version); numbers of more
# than 64 bits.
_NO_ROOM = (AttributeError, StopIteration, ValueError, TypeError, struct.error)


def _unless_the_programs(exc: Exception) -> None:
    """Raise it if it comes out of a signal handler; otherwise a place may have been taken and not
    written to."""
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
    # a window may be taken away, or filled by who interrupts, before it is written to
    tries = 4 if name_id else 0
    while tries and not stored and _mode == ON:
        tries -= 1
        try:
            _go_down(DEPTH)
            room = _make_room()
            # With the room at hand: if the recording ends and another begins meanwhile, this room
            # is no more, and all is tried again.
            if args and args <= _inherited and room is not None:
                _callbacks.resolve(args)
        except BaseException as exc:
            # of a signal handler: it goes its way when the record is written
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
    # What comes of half empty modules is voirkit's own, and so is that python can go no deeper.
    if raised is not None and not is_finalizing() and not isinstance(raised, RecursionError):
        raise raised


def _go_down(levels: int) -> None:
    """Raise RecursionError where python can go no deeper by so many calls: before a thing is half
    made whose destructor could not run."""
    if levels:
        _go_down(levels - 1)


_USED_UP = None, iter(()).__next__  # who gets this tries again


def _make_room() -> tuple[Any, Callable[[], int]] | None:
    local, free = _local, _free
    thread: _Thread | None = getattr(local, "thread", None)
    if thread is None:
        thread = local.thread = _Thread(free)
    before = writer = thread.writer
    if thread.depth >= DEEPEST:
        return None
    # busy: this is a signal handler, in the middle of what follows
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
            # the recording ended, or this is a forked child of the thread that was here before
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
            free.append(thread.writer)  # who interrupted had it
        thread.writer = writer
    room = local.room = writer.window, place
    return room


class _Exit:
    """``with span:`` looks up ``__exit__`` before it calls ``__enter__``: what it gets there holds
    the time, so the span holds no state."""

    __slots__ = ()

    def __get__(self, span: Span | None, owner: type | None = None) -> Callable[..., None]:
        if not _mode:
            return _nothing
        if span is None:  # contextlib.ExitStack looks it up on the type
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
        # at the program's limit python goes no deeper; the program's own exception is on
        # its way
        _too_deep.append((span, span.name_id, start, end, 0, 0))
        return
    if _too_deep:
        try:
            _make_up()
        except RecursionError:
            pass  # it cannot yet


def _make_up() -> None:
    """Write what could not be written where python could go no deeper."""
    for _ in range(len(_too_deep)):  # no more: what it cannot write yet comes back
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
    span._seen = generation  # not before: another thread would take the old for the new


class Span:
    """What is recorded each time that a ``with`` of it ends.  See ``recorder``."""

    __slots__ = ("_seen", "args", "enabled", "name_id")

    def __init__(self, name_id: int) -> None:
        self.name_id, self.enabled, self.args = name_id, True, 0
        self._seen: object = None

    def __enter__(self) -> Any:
        return self

    __exit__ = _Exit()

    def refresh(self) -> None:
        """Bring ``args`` and ``enabled`` up to date."""

    def is_on(self) -> bool:
        """Whether a span that begins now is recorded."""
        if not _mode:
            return False
        if self._seen is not _generation:
            _refresh(self)
        return bool(self.enabled)

    def record(self, start_ns: int, end_ns: int, value: int = 0, name_id: int = 0) -> None:
        """Record a span of this one, with its arguments as they are now, by its own name or
        another."""
        if self.is_on():
            _record(name_id or self.name_id, start_ns, end_ns, self.args, value)


_record = span


class _Nobody:
    """What ``trial`` has in place of what is a thread's."""

    room = bytearray(layout.RECORD_BYTES), repeat(0).__next__


# The same code as that of ``span``, with nothing of what threads share: it records into memory that
# nobody reads, to see what that costs.
trial = FunctionType(
    span.__code__,
    {"_mode": ON, "_local": _Nobody, "_inherited": 0, "_pack": _pack},
    "trial",
    span.__defaults__,
)


def changed() -> None:
    """Some span's arguments, or whether it is enabled, may be others now."""
    global _generation
    # a number that is counted up by two threads at once may be the same for both
    _generation = object()


# for ``recording``


class _Callbacks:
    """The functions that ``install`` sets."""

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
    """Set what is called when a thread records first, has no room, records arguments that are not
    in the files, cannot record, and when a span's ``refresh`` raises."""
    _callbacks.arrive = arrive
    _callbacks.grow = grow
    _callbacks.resolve = resolve
    _callbacks.lose = lose
    _callbacks.failed = failed


def switch(mode: int) -> None:
    """Record (1), do not (0), or count what would be recorded as dropped (2)."""
    global _mode
    if _mode == ON:
        _make_up()
    _mode = mode


def inherit(last: int) -> None:
    """Arguments up to this number may not be in the files yet; a smaller one than before is of who
    is late, and says nothing."""
    global _inherited, _highest
    if last >= _highest:
        _inherited = _highest = last


def close() -> list[tuple[Any, int, int, bool]]:
    """Take the windows away from all threads. Returns each segment, where it ends, how many of its
    places hold no event, and whether nobody writes into it for sure. Without a segment: places that
    were taken when the windows were taken away before, and never written to."""
    global _local, _writers, _free, _inherited, _holes
    while _too_deep:
        late = _too_deep.pop()
        if _mode != ON:  # else this is a forked child: they are its parent's
            _callbacks.lose(late[1])
    writers, _writers, _free = _writers, [], []
    empty, _holes = len(_holes), []
    _local, _inherited = _Local(), layout.THREAD
    ends = []
    for writer in writers:
        if writer.window is not None:
            # before it is looked how far it goes: another thread may write until then
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


# A part of a file, mapped by python's own mmap; what the C recorder does by itself. Before python
# 3.13 a mapping holds a copy of the file's descriptor and closes it by its number.  A program may
# have closed all descriptors (a daemon does) and that number may be a file of its own: then the
# mapping is kept for good.
_kept: list[Any] = []
# holds them until python is gone
(
    os.register_at_fork(after_in_child=lambda kept=_kept: None)
    if hasattr(os, "register_at_fork")
    else None
)


def _close(window: mmap.mmap) -> bool:
    try:
        window.close()
    except BufferError:  # another thread writes into it right now
        _kept.append(window)
        return False
    return True


if sys.version_info >= (3, 13) and os.name == "posix":

    def Window(fd: int, at: int, size: int) -> mmap.mmap:
        """Map bytes of a file, or of memory if the descriptor is -1."""
        return mmap.mmap(fd, size, offset=at, trackfd=False) if fd >= 0 else mmap.mmap(-1, size)

    def drop(window: mmap.mmap) -> bool:
        """Unmap it; whether that was possible."""
        return _close(window)

else:

    class Window(mmap.mmap):
        """Map bytes of a file, or of memory if the descriptor is -1."""

        copy = -1
        file: tuple[int, int] | None = None
        is_ours = os.name == "nt"  # there it holds a handle, which nobody closes by number

        def __new__(cls, fd: int, at: int, size: int) -> Window:
            if fd < 0:  # it holds no descriptor
                self = super().__new__(cls, -1, size)
                self.is_ours = True
                return self
            copy = os.dup(fd)
            os.close(copy)
            self = super().__new__(cls, fd, size, offset=at)
            file = file_identity(fd)
            # the mapping got the number that was free; otherwise another thread was faster
            if file_identity(copy) == file:
                self.copy, self.file = copy, file
            return self

    def drop(window: Window) -> bool:
        """Unmap it; whether that was possible."""
        if not window.is_ours and (
            window.file is None or file_identity(window.copy) != window.file
        ):
            _kept.append(window)
            return False
        return _close(window)
