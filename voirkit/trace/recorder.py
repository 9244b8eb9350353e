"""The interface for writing a trace: names, spans, marks, counters, and start and end of recording.

The C extension ``_recorder`` writes the records. ``plain`` replaces it where it was not built, or
if ``$VOIRKIT_NO_EXTENSION`` is 1. While nothing is recorded, all functions return immediately.

``with Span(name(...)):`` records one span each time the block ends. Blocks may be nested,
recursive, in threads, in interleaved coroutines and generators, and may end by an exception: a span
object holds no state of its blocks.

- Attributes of a span: ``name_id``, ``enabled``, and ``args``, the id returned by ``arguments``.
- Subclasses override ``refresh()``, which updates ``args`` and ``enabled``. It is called before the
  span's next use after a call of ``changed()``.
- The arguments are those at the end of the block. A span is recorded if it is enabled both at the
  begin and at the end.
- ``span.record(start_ns, end_ns, value=0, name_id=0)`` records the span with explicit times, and
  optionally with another name. ``span.is_on()`` is true if it would be recorded.

Nothing here raises into the program, takes a lock, starts a thread, keeps more than one file open,
or loses a record without counting it.
"""

from __future__ import annotations

import os
import sys
from struct import Struct
from time import perf_counter_ns as now

from voirkit.errors import tell as _tell
from voirkit.fork import at_fork
from voirkit.trace import layout
from voirkit.trace.names import MOST_NAMES, Names
from voirkit.trace.recording import Recording, Settings, Totals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from voirkit.trace.plain import Span, changed, span

__all__ = [
    "Span",
    "Totals",
    "adopt",
    "arguments",
    "arguments_as_json",
    "begin",
    "changed",
    "counter",
    "end",
    "has_recorded",
    "inherited",
    "is_recording",
    "join_group",
    "key_of",
    "mark",
    "name",
    "now",
    "span",
    "timed",
]

LIMIT = 4 * 10**9  # total size of all files in bytes; the same as that of --trace-limit

_as_double, _as_integer = Struct("<d").pack, Struct("<q").unpack


def _chosen() -> Any:
    """Return the module that implements the hot path. It is ``_recorder`` if that was built for
    this version of voirkit and reads the same clock as Python; otherwise ``plain``."""
    if os.environ.get("VOIRKIT_NO_EXTENSION") != "1":
        try:
            from voirkit.trace import _recorder  # type: ignore[attr-defined]

            before = now()
            if before <= _recorder.now() <= now() and _recorder.ENGINE == layout.ENGINE:
                return _recorder
        except (ImportError, AttributeError):
            pass  # the C extension was not built, or is that of another version
    from voirkit.trace import plain

    return plain


engine = _chosen()
if not TYPE_CHECKING:
    span, changed, Span = engine.span, engine.changed, engine.Span


class _Process:
    """The recording state of this process."""

    __slots__ = ("ends_with_python", "is_registered", "recording", "reported")

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.ends_with_python = True
        self.is_registered = False  # whether ``_end_with_python`` is registered with atexit
        self.reported: set[str] = set()  # messages shown so far; each is shown once


_process = _Process()


def mark(name_id: int, at_ns: int, args: int = 0, value: int = 0) -> None:
    """Record an event without duration."""
    span(name_id, at_ns, at_ns, args, value)


def counter(name_id: int, at_ns: int, value: float) -> None:
    """Record the value of a counter, as a double."""
    span(name_id, at_ns, at_ns, 0, *_as_integer(_as_double(value)))


def timed(events: int, took_ns: int, part: str = "recording") -> None:
    """Report the measured overhead of some records, which replaces the estimate for them.

    Args:
        events: The number of these records.
        took_ns: The time for everything done for them, including the recording itself.
        part: The part of the overhead: ``recording``, ``instruments`` (inspecting the program's
            objects), ``start`` (patching) or ``processes`` (tools in other processes; CPU time).
    """
    recording = _process.recording
    if recording is not None:
        recording.timed(events, took_ns, part)


def is_recording() -> bool:
    """True if records are currently written to files."""
    return _process.recording is not None and _process.recording.stopped is None


def has_recorded() -> bool:
    """True if this process has recorded anything, so that its files exist."""
    recording = _process.recording
    return recording is not None and recording.has_files()


def begin(
    folder: str,
    rank: int = 0,
    host: str | None = None,
    limit: int = LIMIT,
    tell: Callable[[str], None] = _tell,
    world_size: int = 1,
    ends_with_python: bool = True,
) -> None:
    """Start recording.

    Args:
        folder: The run directory. The files are written into its folder ``trace``, which is created
            with the first record.
        rank: The rank of this process.
        host: The host name; by default, that of the operating system.
        limit: The maximum total size in bytes of the files of all processes of the run. Further
            records are counted as dropped.
        tell: Called once with a message for the user if recording has to stop: the disk is full,
            the folder is not writable, or the limit is reached.
        world_size: The number of ranks; 1 without a group.
        ends_with_python: Whether to stop recording at Python's exit, through ``atexit``.
    """
    if _process.recording is not None:
        end()
    _names.begin_recording()
    settings = Settings(
        os.path.abspath(layout.folder_of(folder)), rank, host or _host(), limit, world_size
    )
    _process.recording = Recording(engine, _names, settings, tell)
    engine.install(_arrive, _grow, _resolve, _lose, _failed)
    changed()  # spans get new ids of arguments: the present ones are not in the new files
    engine.switch(1)
    _process.ends_with_python = ends_with_python
    if not _process.is_registered:
        _process.is_registered = True
        import atexit

        atexit.register(_end_with_python)


def end() -> Totals:
    """Stop recording, and truncate the files to their used size.

    Returns:
        The totals of what this process recorded; all zero if it did not record.
    """
    recording = _process.recording
    _process.recording = None
    engine.switch(0)
    return recording.finish() if recording is not None else Totals(0, {}, {}, None)


def inherited() -> Any:
    """Return the data that a child process (spawn, forkserver) passes to ``adopt`` to record into
    the same run. It can be pickled. None if nothing is recorded."""
    recording = _process.recording
    if recording is None or recording.stopped is not None:
        return None
    settings = recording.settings
    return settings.folder, settings.rank, settings.host, settings.limit, settings.world_size


def adopt(data: Any) -> None:
    """Start recording in a spawned child process with the settings of its parent.

    Args:
        data: The return value of ``inherited`` in the parent.
    """
    if data is None or _process.recording is not None:
        return
    folder, rank, host, limit, world_size = data
    begin(os.path.dirname(folder), rank, host, limit, world_size=world_size)


def join_group(rank: int, world_size: int) -> None:
    """Set the rank of this process after recording has started. It applies to the earlier records
    too, and to child processes started from now on."""
    recording = _mine()
    if recording is not None:
        recording.join_group(rank, world_size)


def name(category: str, name: str, kind: str = "span", value: str | None = None) -> int:
    """Return the id of a name. It stays the same until the process ends, and in forked children.

    Args:
        category: The group of events that the name belongs to.
        name: The name of the event.
        kind: ``span``, ``mark``, ``counter`` or ``meta``.
        value: The key under which the record's own number is shown, such as ``count``; None if
            records of this name have no number.
    """
    return _names.name(category, name, kind, value)


def key_of(name_id: int) -> tuple[str, str, str]:
    """Return (category, name, kind) of a name id; empty strings if the id is unknown."""
    return _names.key(name_id)


def arguments(mapping: Mapping[str, Any]) -> int:
    """Return the id of a set of arguments; 0 if it is empty. Texts, numbers, booleans and None are
    stored as they are; any other value is stored as the name of its type."""
    return _names.arguments(mapping)


def arguments_as_json(text: str) -> int:
    """Return the id of a set of arguments given as JSON text: an object, on one line. Nested values
    are kept."""
    return _names.arguments_as_json(text)


# callbacks of the hot path


def _mine() -> Recording | None:
    """Return the recording of this process; None if nothing is recorded."""
    recording = _process.recording
    if recording is not None and recording.pid != os.getpid():
        _after_fork()  # a fork hook of the program recorded before voirkit's own hook ran
        recording = _process.recording
    return recording


def _calls(method: str) -> Callable[..., Any]:
    """Return a function that calls a method of the current ``Recording``. The function returns None
    without a recording, and reports voirkit's own errors instead of raising them."""

    def call(*args: Any) -> Any:
        recording = _mine()
        try:
            return getattr(recording, method)(*args) if recording is not None else None
        except Exception as exc:  # recording must not stop the program
            _ours(exc, recording)
            return None

    return call


_arrive, _grow, _resolve, _lose = map(_calls, ("arrive", "grow", "resolve", "lose"))


def _failed(exc: Exception) -> None:
    _ours(exc, None, "the arguments of a span cannot be had")


def _too_many() -> None:
    _once(
        f"there are more than {MOST_NAMES} names of spans; what has another is counted as dropped."
    )


def _write(line: bytes, is_name: bool) -> None:
    recording = _mine()
    if recording is not None:
        recording.write(line, is_name)


def _ours(
    exc: Exception, recording: Recording | None, text: str = "a record could not be written"
) -> None:
    """Report an exception that voirkit's own code raised, and raise any other one again.

    The others come from a signal handler of the program, which may interrupt voirkit's code at any
    point, and must reach the program. RecursionError is raised again too.
    """
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    if (
        type(exc).__module__ != "builtins"
        or not where.startswith("voirkit")
        or isinstance(exc, RecursionError)
    ):
        raise exc
    # no report if the recording has ended meanwhile, in another thread
    if recording is None or (recording is _process.recording and recording.stopped is None):
        _once(f"{text} ({type(exc).__name__}: {exc}).")


def _once(text: str) -> None:
    if text not in _process.reported:
        _process.reported.add(text)
        recording = _process.recording
        try:
            (_tell if recording is None else recording.tell)(text)
        except Exception:
            pass  # stderr is closed


# fork and exit of the process


def _after_fork() -> None:
    """Give a forked child a recording of its own, whose files are created when it records."""
    engine.close()
    recording = _process.recording
    if recording is not None and recording.pid != os.getpid():
        _process.recording = recording.in_child()
        changed()


def _end_with_python() -> None:
    if _process.ends_with_python:
        end()


def _host() -> str:
    if sys.platform == "win32":
        import platform

        return platform.node()
    return os.uname().nodename


_names = Names(_write, _too_many)
at_fork("trace", in_child=_after_fork)
