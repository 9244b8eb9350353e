"""The door of the trace plane for who records: names, spans, marks and counters, and when recording
begins and ends.

Recording into files is done by C (``_recorder``) where it was built, by ``plain`` elsewhere or if
``$VOIRKIT_NO_EXTENSION`` is 1. While nothing is recorded all of this returns at once.

``with Span(name(...)):`` records a span for each entry: nested, recursive, in threads, in
interleaved coroutines and generators, and when an exception leaves it; a span holds no state of its
entries. Its attributes are ``name_id``, ``enabled`` and ``args`` (a number of arguments). Who
derives from it overrides ``refresh()``, which is called before a span is used if ``changed()`` has
been since it was last: it brings ``args`` and ``enabled`` up to date. The arguments are those at a
span's end; it is recorded if it is enabled both when it begins and when it ends.
``span.record(start_ns, end_ns, value=0, name_id=0)`` records one with other times (and name);
``span.is_on()`` says whether it would.

What nothing here does: raise into the program, take a lock, start a thread, keep a file open but
one, or lose a record without counting it.
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

LIMIT = 4 << 30

_as_double, _as_integer = Struct("<d").pack, Struct("<q").unpack


def _chosen() -> Any:
    """The hot path: in C if it is there and reads the same clock as python."""
    if os.environ.get("VOIRKIT_NO_EXTENSION") != "1":
        try:
            from voirkit.trace import _recorder  # type: ignore[attr-defined]

            before = now()
            if before <= _recorder.now() <= now() and _recorder.ENGINE == layout.ENGINE:
                return _recorder
        except (ImportError, AttributeError):
            pass  # it was not built, or for another voirkit
    from voirkit.trace import plain

    return plain


engine = _chosen()
if not TYPE_CHECKING:
    span, changed, Span = engine.span, engine.changed, engine.Span


class _Process:
    """This process's part in what is recorded."""

    __slots__ = ("ends_with_python", "is_registered", "recording", "reported")

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.ends_with_python = True
        self.is_registered = False  # with atexit
        self.reported: set[str] = set()  # each line is reported once


_process = _Process()


def mark(name_id: int, at_ns: int, args: int = 0, value: int = 0) -> None:
    """Record a moment."""
    span(name_id, at_ns, at_ns, args, value)


def counter(name_id: int, at_ns: int, value: float) -> None:
    """Record a number, as a double."""
    span(name_id, at_ns, at_ns, 0, *_as_integer(_as_double(value)))


def timed(events: int, took_ns: int, part: str = "recording") -> None:
    """Say what records cost that were timed while they were made: no estimate is made for them.

    Args:
        took_ns: What all that was done for them took, their own recording in it.
        part: What of the overhead that is: ``recording``, ``instruments`` (looking at what the
            program has), ``start`` (patching) or ``processes`` (tools that run beside the program;
            processor time).
    """
    recording = _process.recording
    if recording is not None:
        recording.timed(events, took_ns, part)


def is_recording() -> bool:
    """Whether spans go to files now."""
    return _process.recording is not None and _process.recording.stopped is None


def has_recorded() -> bool:
    """Whether there is a file of this process's yet."""
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
    """Record from now on.

    Args:
        folder: The run directory; the files go to its folder ``trace``. Nothing is made before
            something is recorded.
        rank: This process's rank.
        host: The machine's name; by default as it calls itself.
        limit: The most bytes that all processes of the run may have in that folder; what is beyond
            is counted as dropped.
        tell: Takes a line for the user, once, when recording has to stop: disk full, folder that is
            not writable, limit.
        world_size: Of the group that the rank is of; 1 without one.
        ends_with_python: Whether it ends when python calls what is registered with ``atexit``, if
            not before.
    """
    if _process.recording is not None:
        end()
    _names.begin_recording()
    settings = Settings(
        os.path.abspath(layout.folder_of(folder)), rank, host or _host(), limit, world_size
    )
    _process.recording = Recording(engine, _names, settings, tell)
    engine.install(_arrive, _grow, _resolve, _lose, _failed)
    changed()  # what arguments spans have now is not in the files
    engine.switch(1)
    _process.ends_with_python = ends_with_python
    if not _process.is_registered:
        _process.is_registered = True
        import atexit

        atexit.register(_end_with_python)


def end() -> Totals:
    """Record no more; the files are cut to size.

    Returns:
        What this process recorded; nothing, if it did not record.
    """
    recording = _process.recording
    _process.recording = None
    engine.switch(0)
    return recording.finish() if recording is not None else Totals(0, {}, {}, None)


def inherited() -> Any:
    """What a child that is spawned (spawn, forkserver) needs to record into the same run,
    plain data. None: nothing is recorded."""
    recording = _process.recording
    if recording is None or recording.stopped is not None:
        return None
    settings = recording.settings
    return settings.folder, settings.rank, settings.host, settings.limit, settings.world_size


def adopt(data: Any) -> None:
    """In such a child: record as the parent did."""
    if data is None or _process.recording is not None:
        return
    folder, rank, host, limit, world_size = data
    begin(os.path.dirname(folder), rank, host, limit, world_size=world_size)


def join_group(rank: int, world_size: int) -> None:
    """This process is one of several ranks: so are those that it starts from now on, and what it
    has recorded before is the rank's too."""
    recording = _mine()
    if recording is not None:
        recording.join_group(rank, world_size)


def name(category: str, name: str, kind: str = "span", value: str | None = None) -> int:
    """The number of a name, the same as long as the process lives and in its forked children.

    Args:
        category: The group it belongs to.
        name: The event's name.
        kind: ``span``, ``mark``, ``counter`` or ``meta``.
        value: The key under which a record's own number is shown (``count``); None if it has none.
    """
    return _names.name(category, name, kind, value)


def key_of(name_id: int) -> tuple[str, str, str]:
    """(category, name, kind) of the number of a name."""
    return _names.key(name_id)


def arguments(mapping: Mapping[str, Any]) -> int:
    """The number of a set of arguments; 0 of an empty one. Texts, numbers, booleans and None are
    kept, of anything else its type's name."""
    return _names.arguments(mapping)


def arguments_as_json(text: str) -> int:
    """The number of a set of arguments that is a line of JSON already, of one object; what is
    nested in it stays so."""
    return _names.arguments_as_json(text)


# what the hot path calls


def _mine() -> Recording | None:
    """This process's part of the recording."""
    recording = _process.recording
    if recording is not None and recording.pid != os.getpid():
        _after_fork()  # a callback of the program's, run before voirkit's, records
        recording = _process.recording
    return recording


def _calls(method: str) -> Callable[..., Any]:
    """What calls a method of this process's part of the recording, and raises nothing of voirkit's
    own."""

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
    """Hand an exception on unless it is voirkit's own: a signal handler of the program may raise,
    and means the program."""
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
    # else it ended meanwhile, in another thread
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


# the life of the process


def _after_fork() -> None:
    """In the child: files of its own, when it records."""
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
