"""Starts several programs at once, and iterates over their output, logged data and ends.

It is meant for a harness, and works with any program that writes JSON lines to the file descriptor
named in ``$DATA_FD``, as voirkit and voir do.  It must never lose or reorder the lines of one pipe,
wait for a pipe whose process has ended, or end a process unasked.  POSIX only.
"""

from __future__ import annotations

import io
import json
import os
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from voirkit.escape import Decoder

Record = dict[str, Any]

# The capacity of a pipe on Linux. One read takes no more than that, so that a process that prints a
# lot cannot keep the others waiting.
_READ_BYTES = 1 << 16
_TICK_S = 0.05


@dataclass
class LogEntry:
    """One event of a program."""

    # ``"start"``, ``"line"``, ``"data"``, ``"binary"``, ``"format_error"``, ``"end"``, or the name
    # that the program gave in ``"$event"``
    event: str
    data: Any  # data of the event; see :class:`Multiplexer`
    pipe: str | None = None  # ``"stdout"``, ``"stderr"`` or ``"data"``; None for start and end

    def get(self, item: str, default: Any = None) -> Any:
        """Return an attribute of this entry, or the default if it has no such attribute."""
        return getattr(self, item, default)

    def dict(self) -> Record:
        """Return this entry as a plain dictionary."""
        return self.__dict__.copy()

    def json(self) -> str:
        """Return this entry as JSON.

        A value that JSON cannot hold (the bytes of a binary line) becomes
        ``{"$unserializable": repr}``.
        """
        return json.dumps(self.__dict__, default=lambda value: {"$unserializable": repr(value)})


class Stream:
    """A pipe that is read to its end and split into lines.

    Args:
        pipe: A file on a pipe, socket or terminal, from which nothing has been read yet.  It is
            made non-blocking, and is closed at its end.
        info: Keyword arguments for the entries made of the lines, such as ``{"pipe": "stdout"}``.
        deserializer: Converts a line to data, e.g. ``json.loads``; None for lines that stay text.
        smuggled: The stream for the data hidden in this one (:mod:`voirkit.escape`); the pipe of
            that stream is None.
    """

    def __init__(
        self,
        pipe: Any,
        info: Mapping[str, Any],
        deserializer: Callable[[str], Any] | None = None,
        smuggled: Stream | None = None,
    ) -> None:
        self.pipe = pipe
        self.info = info
        self.deserializer = deserializer
        self.smuggled = smuggled
        self._decoder = None if smuggled is None else Decoder()
        self._unfinished: list[bytes] = []  # pieces of a line whose newline has not come yet

    def lines(self, chunk: bytes) -> Iterator[tuple[Stream, bytes]]:
        """Yield each line that this chunk completes, with its stream, in order of completion."""
        if self._decoder is None or self.smuggled is None:
            yield from self._split(chunk)
        else:
            for hidden, piece in self._decoder.pieces(chunk):
                yield from (self.smuggled if hidden else self)._split(piece)

    def last_lines(self) -> Iterator[tuple[Stream, bytes]]:
        """Yield the lines that remain at the end of the pipe, which have no newline."""
        if self._decoder is not None:
            yield from self._split(self._decoder.flush())
        for stream in (self, self.smuggled):
            if stream is not None and stream._unfinished:
                yield stream, b"".join(stream._unfinished)
                stream._unfinished.clear()

    def _split(self, chunk: bytes) -> Iterator[tuple[Stream, bytes]]:
        # No splitlines(): it also splits at the carriage returns of a progress bar.
        first, *following = chunk.split(b"\n")
        if first or following:
            self._unfinished.append(first)
        if following:
            yield self, b"".join(self._unfinished) + b"\n"
            *complete, last = following
            for line in complete:
                yield self, line + b"\n"
            self._unfinished = [last] if last else []


@dataclass
class _Running:
    """A process of a multiplexer, with its pipes that are still open."""

    argv: Sequence[Any]
    info: Mapping[str, Any]
    streams: list[Stream]
    ours: bool
    w: int | None
    pidfd: int | None = None


def run(
    argv: Sequence[Any],
    info: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    constructor: Callable[..., Any] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Multiplexer:
    """Start a program and return a :class:`Multiplexer` that runs it, to iterate over.

    Args:
        argv: The command.
        info: See :meth:`Multiplexer.start`.
        timeout: See :class:`Multiplexer`; here the iteration blocks by default.
        constructor: See :class:`Multiplexer`.
        env: See :meth:`Multiplexer.start`.
        options: ``use_stdout``, ``buffered``, and the options of ``subprocess.Popen``.
    """
    multiplexer = Multiplexer(timeout=timeout, constructor=constructor)
    try:
        multiplexer.start(argv, info, env=env, **options)
    except BaseException:  # Ctrl-C too: nothing may stay open
        multiplexer.close()
        raise
    return multiplexer


class Multiplexer:
    """Runs programs in parallel; iterating over it yields the events of all of them as they occur.

    =============== ========== =====================================================================
    event           pipe       data
    =============== ========== =====================================================================
    start           None       ``{"command": argv, "time": seconds since the epoch}``
    line            stdout,    the line with its newline, if it had one
                    stderr
    data            data       what the program logged
    any ``$event``  data       what the program logged under ``"$data"``; other keys go to the
                               constructor
    binary          any        the bytes of a line that is not UTF-8
    format_error    data       ``{"line", "type", "message"}`` for a line of data that cannot be
                               parsed
    end             None       ``{"command": argv, "time": ..., "return_code": as subprocess has
                               it}``
    =============== ========== =====================================================================

    The events of one pipe come in order, and the end of a process comes after all its other events.
    When a process has ended, the data that its pipes hold at that moment is read.  The pipes are
    then closed, even if a grandchild still has them open.

    The iteration ends when no process is left.  It may be interrupted and continued later, and
    processes may be started during or after it.  Ctrl-C during the iteration leaves everything in
    place: continue to iterate, :meth:`terminate`, or :meth:`close`.  Only one thread may use this
    object at a time.  Each process takes four file descriptors here (three pipes and, on Linux, its
    pidfd).

    Args:
        timeout: None to block until an event comes.  Otherwise the maximum number of seconds to
            wait (in voir the number means milliseconds); the iteration then yields None after each
            wait and its events.
        constructor: Creates the entries: a subclass of :class:`LogEntry` that also takes the
            keywords in each process's ``info``.
    """

    def __init__(
        self, timeout: float | None = 0, constructor: Callable[..., Any] | None = None
    ) -> None:
        self.timeout = timeout
        self.constructor: Callable[..., Any] = constructor or LogEntry
        self.processes: dict[subprocess.Popen[Any], _Running] = {}
        self._pending: deque[Any] = deque()
        self._selector = selectors.DefaultSelector()
        self._pid = os.getpid()

    def start(
        self,
        argv: Sequence[Any],
        info: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        use_stdout: bool = False,
        buffered: bool = True,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program.

        Args:
            argv: The command.
            info: Keyword arguments for all entries of the program, such as ``{"name": "first"}``.
            env: The program's whole environment; None for that of this process.  ``DATA_FD`` is
                added.
            use_stdout: If true, the program hides its data in standard output (``DATA_FD=1``), from
                which the data is extracted.  This is for a program behind something that passes no
                other file descriptor on, such as ssh or a container.
            buffered: If true, the program decides on the buffering of its output.  A Python program
                then prints in blocks, so that lines come late.  False sets ``PYTHONUNBUFFERED=1``.
                (voir sets that for True and, in effect, False.)
            options: Options of ``subprocess.Popen``, except ``stdout``.

        Returns:
            The process.  It outlives this object unless you end it.

        Raises:
            OSError: The program cannot be started; nothing is left open.
            ValueError: This multiplexer is closed.
        """
        if self._selector.get_map() is None:
            raise ValueError("this multiplexer is closed; make a new one")
        info = {} if info is None else info
        # The entry is made before the process is started: a constructor that rejects the info must
        # not leave a process behind.
        data = {"command": argv, "time": time.time()}
        start_entry = self.constructor(event="start", data=data, **info)
        environment = dict(os.environ if env is None else env)
        if not buffered:
            environment["PYTHONUNBUFFERED"] = "1"
        options.setdefault("stderr", subprocess.PIPE)
        if use_stdout:
            process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, env={**environment, "DATA_FD": "1"}, **options
            )
            hidden = Stream(None, {"pipe": "data"}, json.loads)
            streams = [Stream(process.stdout, {"pipe": "stdout"}, smuggled=hidden)]
        else:
            r, w = os.pipe()
            try:
                environment["DATA_FD"] = str(w)
                options["pass_fds"] = (*options.get("pass_fds", ()), w)
                process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment, **options)
            except BaseException:  # Ctrl-C too: nothing may stay open
                os.close(r)
                raise
            finally:
                os.close(w)  # otherwise the pipe would never reach its end
            streams = [
                Stream(process.stdout, {"pipe": "stdout"}),
                Stream(io.FileIO(r), {"pipe": "data"}, json.loads),
            ]
        if process.stderr is not None:
            streams.append(Stream(process.stderr, {"pipe": "stderr"}))
        self._pending.append(start_entry)
        self.add_process(proc=process, argv=argv, info=info, streams=streams)
        self.processes[process].ours = True
        return process

    def add_process(
        self,
        *,
        proc: subprocess.Popen[Any],
        argv: Sequence[Any],
        info: Mapping[str, Any],
        streams: Sequence[Stream],
        w: int | None = None,
    ) -> None:
        """Add a process that was started elsewhere: iterating also yields its lines and its end.

        Args:
            proc: The process; only its ``pid`` and ``poll()`` are used.  :meth:`terminate` does not
                end it.
            argv: The command shown in its end entry.
            info: Keyword arguments for its entries.
            streams: Its pipes.
            w: A file descriptor to close when the process ends.
        """
        running = self.processes[proc] = _Running(argv, info, list(streams), ours=False, w=w)
        for stream in streams:
            os.set_blocking(stream.pipe.fileno(), False)
            self._selector.register(stream.pipe, selectors.EVENT_READ, (proc, stream))
        # The pidfd signals the end of the process itself; its pipes may end earlier, or later if a
        # grandchild holds them. Without a pidfd (not Linux, no file descriptor left) the process is
        # polled every 50 ms.
        with suppress(AttributeError, OSError):
            running.pidfd = os.pidfd_open(proc.pid)
            self._selector.register(running.pidfd, selectors.EVENT_READ, (proc, None))

    def __iter__(self) -> Iterator[Any]:
        """Yield all events from now on, until no process is left."""
        while self._pending or self.processes:
            if not self._pending:
                self._wait()
            while self._pending:
                yield self._pending.popleft()
            if self.timeout is not None and self.processes:
                yield None

    def terminate(self) -> None:
        """Send SIGTERM to the processes that :meth:`start` started; continue to iterate to see
        their ends."""
        for process, running in self.processes.items():
            if running.ours:
                process.terminate()

    def close(self) -> None:
        """Close all pipes and other file descriptors.  The processes continue, but get a broken
        pipe when they write."""
        self._pending.clear()
        for process in list(self.processes):
            self._forget(process)
        self._selector.close()

    def __enter__(self) -> Multiplexer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # After `for entry in run(...): break` nothing else can close the pipes. A copy of this
        # object in a forked child must not close them: it shares the epoll instance, and
        # unregistering there would stop all events of the parent.
        if getattr(self, "_pid", None) == os.getpid():
            self.close()

    def _wait(self) -> None:
        """Wait once, and create entries for everything that has come."""
        patience = self.timeout
        unwatched = [
            process for process, running in self.processes.items() if running.pidfd is None
        ]
        if unwatched:
            patience = _TICK_S if patience is None else min(patience, _TICK_S)
        ended = []
        for key, _ in self._selector.select(patience):
            process, stream = key.data
            if process not in self.processes:
                continue
            if stream is not None:
                self._read(process, stream)
            elif process.poll() is None:
                # Another thread is reaping the process, in wait(): poll the process from now on,
                # instead of spinning on the pidfd.
                self._unwatch(self.processes[process])
            else:
                ended.append(process)
        ended += [process for process in unwatched if process.poll() is not None]
        for process in ended:
            self._end(process)

    def _read(self, process: subprocess.Popen[Any], stream: Stream) -> int:
        """Read once from a pipe that may hold data, and return the number of bytes: 0 if the pipe
        is empty or has ended."""
        try:
            chunk = os.read(stream.pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal whose other side is closed raises EIO
            chunk = b""
        if chunk:
            self._add_lines(process, stream.lines(chunk))
        else:
            self._close_stream(process, stream)
        return len(chunk)

    def _end(self, process: subprocess.Popen[Any]) -> None:
        """Handle the end of a process: add entries for all that its pipes hold and for the end."""
        running = self.processes[process]
        for stream in tuple(running.streams):
            unread = _bytes_in(stream.pipe)
            while unread > 0:
                count = self._read(process, stream)
                if not count:
                    break
                unread -= count
            if stream in running.streams:
                self._close_stream(process, stream)
        data = {"command": running.argv, "time": time.time(), "return_code": process.poll()}
        self._pending.append(self.constructor(event="end", data=data, **running.info))
        self._forget(process)

    def _add_lines(
        self, process: subprocess.Popen[Any], lines: Iterator[tuple[Stream, bytes]]
    ) -> None:
        info = self.processes[process].info
        for stream, line in lines:
            self._pending.append(self._entry(line, stream, {**info, **stream.info}))

    def _entry(self, line: bytes, stream: Stream, info: Record) -> Any:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            return self.constructor(event="binary", data=line, **info)
        if stream.deserializer is None:
            return self.constructor(event="line", data=text, **info)
        try:
            data = stream.deserializer(text)
            if "$event" in data:
                event = data.pop("$event")
                value = data.pop("$data", None)
                return self.constructor(event=event, data=value, **data, **info)
            return self.constructor(event="data", data=data, **info)
        except Exception as error:
            # the line may hold anything, and the deserializer is the user's
            problem = {"line": text, "type": type(error).__name__, "message": str(error)}
            return self.constructor(event="format_error", data=problem, **info)

    def _close_stream(self, process: subprocess.Popen[Any], stream: Stream) -> None:
        self._add_lines(process, stream.last_lines())
        self._drop_stream(self.processes[process], stream)

    def _drop_stream(self, running: _Running, stream: Stream) -> None:
        running.streams.remove(stream)
        self._selector.unregister(stream.pipe)
        stream.pipe.close()

    def _unwatch(self, running: _Running) -> None:
        if running.pidfd is not None:
            self._selector.unregister(running.pidfd)
            os.close(running.pidfd)
            running.pidfd = None

    def _forget(self, process: subprocess.Popen[Any]) -> None:
        running = self.processes.pop(process)
        for stream in tuple(running.streams):
            self._drop_stream(running, stream)
        self._unwatch(running)
        if running.w is not None:
            with suppress(OSError):
                os.close(running.w)
            running.w = None


def _bytes_in(pipe: Any) -> int:
    """Return the number of bytes that a pipe holds right now.

    Reading only that many bytes comes to an end, even while a grandchild continues to write.
    """
    import fcntl  # not on Windows, where LogEntry must still be importable
    import struct
    import termios

    try:
        answer = fcntl.ioctl(pipe.fileno(), termios.FIONREAD, struct.pack("i", 0))
    except (OSError, ValueError):
        # a terminal without its other side, or a pipe that the harness itself has closed
        return 0
    (n_bytes,) = struct.unpack("i", answer)
    return int(n_bytes)
