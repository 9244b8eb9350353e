"""A harness's side: start programs, several at once, and iterate over their output, their data, and
their ends.

Any program is understood that writes JSON lines to the descriptor named in ``$DATA_FD``, as voirkit
and voir do.  Must never lose or reorder the lines of one pipe, wait for a pipe whose process has
ended, or end a process unasked.  POSIX.
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

# what a pipe holds on Linux, so that a chatty process cannot starve the others
_READ_BYTES = 1 << 16
_TICK_S = 0.05


@dataclass
class LogEntry:
    """One thing that happened to a program."""

    # ``"start"``, ``"line"``, ``"data"``, ``"binary"``, ``"format_error"``, ``"end"``, or what the
    # program named in ``"$event"``
    event: str
    data: Any  # what belongs to the event; see :class:`Multiplexer`
    pipe: str | None = None  # ``"stdout"``, ``"stderr"`` or ``"data"``; None for start and end

    def get(self, item: str, default: Any = None) -> Any:
        """An attribute of this entry, or the default if there is none."""
        return getattr(self, item, default)

    def dict(self) -> Record:
        """This entry as a plain dictionary."""
        return self.__dict__.copy()

    def json(self) -> str:
        """This entry as JSON; what JSON cannot hold (the bytes of a binary line) as
        ``{"$unserializable": repr}``."""
        return json.dumps(self.__dict__, default=lambda value: {"$unserializable": repr(value)})


class Stream:
    """A pipe to read to its end, and how entries are made of its lines.

    Args:
        pipe: A file on a pipe, socket or terminal, from which nothing was read yet.  It is made
            non-blocking, and is closed at its end.
        info: Keyword arguments for the entries made of its lines, such as ``{"pipe": "stdout"}``.
        deserializer: Makes data of a line, e.g. ``json.loads``; None for lines that stay text.
        smuggled: The stream that stands for the data hidden in this one (:mod:`voirkit.escape`);
            its own pipe is None.
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
        self._unfinished: list[bytes] = []  # the pieces of a line whose end has not come

    def lines(self, chunk: bytes) -> Iterator[tuple[Stream, bytes]]:
        """The lines that are complete with this chunk, in the order in which they were
        completed."""
        if self._decoder is None or self.smuggled is None:
            yield from self._split(chunk)
        else:
            for hidden, piece in self._decoder.pieces(chunk):
                yield from (self.smuggled if hidden else self)._split(piece)

    def last_lines(self) -> Iterator[tuple[Stream, bytes]]:
        """The lines that remain when nothing more comes: the last ones, without a newline."""
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
    """A process of a multiplexer, with the pipes that are still open."""

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
    """Runs programs side by side; iterating over it gives the events of all of them as they come.

    =============== ========== =====================================================================
    event           pipe       data
    =============== ========== =====================================================================
    start           None       ``{"command": argv, "time": seconds since the epoch}``
    line            stdout,    the line with its newline, if it had one
                    stderr
    data            data       what the program logged
    any ``$event``  data       what the program logged under ``"$data"``; other keys go to the
                               constructor
    binary          any        the bytes of a line that is no UTF-8
    format_error    data       ``{"line", "type", "message"}`` of a line of data that cannot be
                               understood
    end             None       ``{"command": argv, "time": ..., "return_code": as subprocess has
                               it}``
    =============== ========== =====================================================================

    The events of one pipe come in order, and the end of a process after all the rest of it.  When a
    process has ended, what its pipes hold at that moment is read and they are closed, also if a
    grandchild still has them open.

    The iteration ends when no process is left.  It may be left and taken up again, and processes
    may be started during it or after it.  Ctrl-C during it leaves everything in place: iterate on,
    :meth:`terminate`, or :meth:`close`.  One thread at a time.  A process takes four descriptors
    here (three pipes and, on Linux, its pidfd).

    Args:
        timeout: None to block until something comes.  Otherwise how many seconds to wait at most
            (in voir the number means milliseconds); the iteration then yields None after each wait,
            when its events have been given.
        constructor: Makes the entries; a subclass of :class:`LogEntry` that also takes each
            process's ``info``.
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
            info: Keyword arguments for all its entries, such as ``{"name": "first"}``.
            env: Its whole environment; None for this process's own.  ``DATA_FD`` is set on top.
            use_stdout: Have the data hidden in standard output (``DATA_FD=1``) and take it out of
                there, for programs behind something that passes no other descriptor on, such as ssh
                or a container.
            buffered: Leave the buffering of its output to the program; a Python program then prints
                in blocks, so that lines come late.  False sets ``PYTHONUNBUFFERED=1``.  (voir sets
                that for True and, in effect, False.)
            options: Those of ``subprocess.Popen``, but for ``stdout``.

        Returns:
            The process.  It outlives this object unless you end it.

        Raises:
            OSError: The program cannot be started; nothing is left open.
            ValueError: This multiplexer is closed.
        """
        if self._selector.get_map() is None:
            raise ValueError("this multiplexer is closed; make a new one")
        info = {} if info is None else info
        # First of all, since a constructor that does not take the info must not leave a process
        # behind.
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
                os.close(w)  # or the pipe would never end
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
        """Take in a process that somebody else started: its lines and its end come with the others.

        Args:
            proc: The process; only its ``pid`` and ``poll()`` are used.  :meth:`terminate` spares
                it.
            argv: Its command in start and end entries.
            info: Keyword arguments for its entries.
            streams: Its pipes.
            w: A descriptor to close when it ends.
        """
        running = self.processes[proc] = _Running(argv, info, list(streams), ours=False, w=w)
        for stream in streams:
            os.set_blocking(stream.pipe.fileno(), False)
            self._selector.register(stream.pipe, selectors.EVENT_READ, (proc, stream))
        # The pidfd tells the end of the process itself; its pipes may end earlier, or later, with a
        # grandchild. Without it (not Linux, no descriptor left) the process is asked every 50 ms.
        with suppress(AttributeError, OSError):
            running.pidfd = os.pidfd_open(proc.pid)
            self._selector.register(running.pidfd, selectors.EVENT_READ, (proc, None))

    def __iter__(self) -> Iterator[Any]:
        """All events from here on, until no process is left."""
        while self._pending or self.processes:
            if not self._pending:
                self._wait()
            while self._pending:
                yield self._pending.popleft()
            if self.timeout is not None and self.processes:
                yield None

    def terminate(self) -> None:
        """Ask the processes that :meth:`start` started to end (SIGTERM); go on iterating to see
        their ends."""
        for process, running in self.processes.items():
            if running.ours:
                process.terminate()

    def close(self) -> None:
        """Close all that is open here.  Processes go on running, but find their pipes broken when
        they write."""
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
        # For `for entry in run(...): break`: nobody else could close the pipes.  But not for the
        # copy in a forked child: epoll is shared with it, and to unregister there would make the
        # parent deaf.
        if getattr(self, "_pid", None) == os.getpid():
            self.close()

    def _wait(self) -> None:
        """Wait once, and make entries of all that has come."""
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
                # Another thread is reaping it, in wait(); ask again instead of spinning on the
                # pidfd.
                self._unwatch(self.processes[process])
            else:
                ended.append(process)
        ended += [process for process in unwatched if process.poll() is not None]
        for process in ended:
            self._end(process)

    def _read(self, process: subprocess.Popen[Any], stream: Stream) -> int:
        """Read once from a pipe that may have something; returns the number of bytes, 0 if it is
        empty or ended."""
        try:
            chunk = os.read(stream.pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal whose other side is closed says EIO
            chunk = b""
        if chunk:
            self._add_lines(process, stream.lines(chunk))
        else:
            self._close_stream(process, stream)
        return len(chunk)

    def _end(self, process: subprocess.Popen[Any]) -> None:
        """The process has ended: give all that its pipes hold now, then its end."""
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
            # a line may be anything, and the deserializer is the user's
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
    """The number of bytes that a pipe holds right now.  Reading just this much ends, even while a
    grandchild goes on writing."""
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
