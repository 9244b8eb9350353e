"""Parent-process side of probes in child processes: it receives the events of the children and
forwards them, in a thread that exists only while there may be children.

No event is being forwarded while the process forks. Where Python would warn of a fork with threads,
the thread is stopped for the fork. The thread is also stopped when a probe ends; the thread that
ends the probe then reads the remaining events alone.
"""

from __future__ import annotations

import marshal
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from voirkit import streams
from voirkit.fork import file_identity
from voirkit.probes.children import HELLO, PIPE_BYTES, SLOT, Uplink, standard_left_alone

# longest time in seconds that the reading thread waits for the lock under which all threads push
# events; after that it checks whether to stop
TURN_S = 0.05
# longest time that a fork waits for the reading thread to stop; the thread may be in a slow
# subscriber
FORK_S = 1.0
END_S = 10.0  # longest time that the end of a probe waits for the reading thread
# longest wait after a thread has ended until the operating system has removed it, too (usually 20
# microseconds)
GONE_S = 0.05
WARNS = sys.version_info >= (3, 12)  # True if Python warns of forks with threads
# time for which Python's warning of a fork stays suppressed before each check whether the fork has
# returned
HUSHED_S = 0.5

Receive = Callable[[int, int, Any], None]  # arguments: process id, number of the probe, data


def is_of_this_user(connection: socket.socket) -> bool:
    """True if the other end of a connection belongs to this user or to root. On Linux every user of
    the machine can connect to an abstract socket, which has no file."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the socket is in a folder of this user
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid(), os.getuid())


class _Child:
    """A child process that sends events. ``pid``: its process id; ``fd``: descriptor of its pipe;
    ``page``: descriptor of the page with its counts. The child has shown the token of this run,
    which only processes of the run can know, so its events are trusted."""

    def __init__(self, pid: int, fd: int, page: int) -> None:
        self.pid = pid
        self.fd = fd
        self.page = page
        self._identity = file_identity(fd), file_identity(page)
        self._buffer = bytearray()

    def read(self) -> tuple[list[tuple[int, Any]], bool]:
        """Read the events that the child has sent; returns them, and True if the child has
        ended."""
        # The program may have closed all descriptors that it does not know. Then these belong to
        # no file, or to another one.
        if self._identity != (file_identity(self.fd), file_identity(self.page)):
            self.fd = self.page = -1
            return [], True
        has_ended = self._fill_buffer()
        buffer = self._buffer
        events = []
        start = 0
        while len(buffer) - start >= 4:
            length = int.from_bytes(buffer[start : start + 4], "little")
            end = start + 4 + length
            if len(buffer) < end:
                break
            events.append(marshal.loads(buffer[start + 4 : end]))
            start = end
        del buffer[:start]
        return events, has_ended

    def _fill_buffer(self) -> bool:
        """Read from the pipe into the buffer; True if the child has closed the pipe."""
        try:
            # the number of reads is limited, so that a child that sends all the time does not keep
            # other children waiting
            for _ in range(2 * PIPE_BYTES // 65_536):
                chunk = os.read(self.fd, 65_536)
                if not chunk:
                    return True
                self._buffer += chunk
        except BlockingIOError:
            pass
        return False

    def dropped(self, key: int) -> int:
        """Return the number of events of a probe that the child had to drop."""
        count = os.pread(self.page, 8, key * SLOT) if self.page >= 0 else b""
        return int.from_bytes(count, sys.byteorder) if len(count) == 8 else 0

    def end_probe(self, key: int) -> None:
        """Tell the child that nobody listens to a probe any more."""
        if self.page >= 0 and os.fstat(self.page).st_size >= (key + 1) * SLOT:
            os.pwrite(self.page, struct.pack("=Q", 1), key * SLOT + 8)

    def close(self) -> None:
        for fd in (self.fd, self.page):
            if fd >= 0:
                os.close(fd)
        self.fd = self.page = -1


class _Reader(threading.Thread):
    """The thread that reads events, a daemon. It is started by ``threading``, so that
    ``streams.threads`` counts it, and events of several threads are sent one after the other."""

    def __init__(self, read: Callable[[_Reader], None]) -> None:
        super().__init__(name="voirkit-events", daemon=True)
        self._read = read
        self.is_to_stop = False

    def run(self) -> None:
        self._read(self)


class Exchange:
    """A socket that children connect to, and the events that they have sent. ``receive``: called
    with each event of a child. ``closed``: called when a child has ended, with a function that
    returns how many events of a probe the child had to drop."""

    def __init__(self, receive: Receive, closed: Callable[[Callable[[int], int]], None]) -> None:
        self._take = receive
        self._closed = closed
        self._token = secrets.token_bytes(16)
        self._folder = ""
        with standard_left_alone():
            self._listener, self._address = self._listen()
            self._wake = os.pipe()
        os.set_blocking(self._wake[0], False)
        self._poll = select.poll()
        for fd in (self._listener.fileno(), self._wake[0]):
            self._poll.register(fd, select.POLLIN)
        self._identity = self._own_identity()
        self._waiting: dict[int, socket.socket] = {}
        self._children: dict[int, _Child] = {}
        self._inbox: deque[tuple[int, int, Any]] = deque()
        self._busy = threading.Lock()  # held by the thread that reads
        # held while an event is forwarded, and during a fork
        self._handing = threading.RLock()
        self._forking = 0  # id of the thread that holds ``_handing`` for a fork; 0 for none
        self._state = threading.RLock()  # protects the next three attributes
        self._thread: _Reader | None = None  # the thread that reads, once it has been started
        self._n_alone = 0  # number of threads that want to read without the reading thread
        self._is_closed = False
        self._hushed_until: float | None = None
        # where the program called the last fork, as returned by ``_caller``
        self._forks_at: tuple[int, int, int] | None = None
        # native ids of reading threads that may still exist for the operating system
        self._readers: set[int] = set()
        self._complained = False

    def uplink(self, slots: int) -> Uplink:
        """Return the connection of a child to this exchange."""
        return Uplink(self._address, self._token, slots)

    def _listen(self) -> tuple[socket.socket, str | bytes]:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: str | bytes
        if sys.platform == "linux":
            address = b"\0voirkit-" + secrets.token_hex(16).encode()
        else:
            import tempfile

            self._folder = tempfile.mkdtemp(prefix="voirkit-")
            address = os.path.join(self._folder, "events")
        listener.bind(address)
        listener.listen(4096)
        listener.setblocking(False)
        return listener, address

    def _own_identity(self) -> tuple[Any, ...]:
        return tuple(map(file_identity, (self._listener.fileno(), *self._wake)))

    @property
    def is_open(self) -> bool:
        """True if the descriptors still belong to this object. The program may have closed all
        descriptors that it does not know."""
        return self._own_identity() == self._identity

    # Before and after a fork

    def before_fork(self) -> None:
        """Stop the thread for a fork, or keep it from forwarding an event during the fork."""
        self._unhush(by_all_means=True)
        # True if the reading thread would be Python's only reason to warn; since 3.13 Python also
        # warns if the reading thread is started again after the fork
        warns_of_reader = WARNS and not self._count_other_threads()
        if warns_of_reader:
            _hush()
            self._forks_at = _caller()
            self._hushed_until = time.monotonic() + HUSHED_S
        # The thread is stopped only to avoid the warning: to start it again takes a millisecond.
        if warns_of_reader and self._thread is not None:
            self.park()
        elif not self._forking and self._handing.acquire(timeout=FORK_S):
            self._forking = threading.get_ident()

    def after_fork(self) -> None:
        """Continue in the parent after a fork."""
        # if two threads fork at once, only one of them holds ``_handing``
        if self._forking == threading.get_ident():
            self._forking = 0
            self._handing.release()
        self.start_reading()

    def _unhush(self, by_all_means: bool) -> float | None:
        """Let Python warn of forks again, once the suppressed warning has had time to come, or at
        once if ``by_all_means``. Returns the milliseconds until then; None if there is no wait."""
        until = self._hushed_until
        if until is None:
            return None
        remaining_s = until - time.monotonic()
        # on a busy machine the fork may not have returned yet, so the warning can still come
        if remaining_s <= 0 and _is_there(self._forks_at):
            remaining_s = HUSHED_S
        if remaining_s > 0 and not by_all_means:
            return remaining_s * 1000 + 1
        self._hushed_until = None
        _unhush()
        return None

    # Starting and stopping the reading thread

    def start_reading(self) -> None:
        """Start the thread that reads, unless it runs already or another thread wants to read
        alone. That other thread calls this method when it has finished."""
        with self._state:
            thread = self._thread
            reads = thread is not None and thread.is_alive() and not thread.is_to_stop
            if reads or self._n_alone or self._is_closed:
                return
            thread = _Reader(self._read)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or there are too many threads
                self._thread = None
            else:
                self._thread = thread
                self._readers.add(thread.native_id or 0)

    def park(self, patience_s: float = FORK_S) -> bool:
        """Stop the thread; False if it has not stopped within ``patience_s``."""
        thread = self._thread
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False
        thread.is_to_stop = True
        self._ring()
        thread.join(patience_s)
        if thread.is_alive():
            return False
        with self._state:
            if self._thread is thread:
                self._thread = None
        if WARNS and thread.native_id is not None:
            task = f"/proc/self/task/{thread.native_id}"
            deadline = time.monotonic() + GONE_S
            while os.path.exists(task) and time.monotonic() < deadline:
                time.sleep(0)
        return True

    def _count_other_threads(self) -> int:
        """Return the number of threads of this process, without the calling thread and the reading
        threads. A reading thread that has ended may still exist for a while."""
        try:
            tasks = set(map(int, os.listdir("/proc/self/task")))
        except OSError:
            return threading.active_count() - 1 - (self._thread is not None)
        self._readers &= tasks
        return len(tasks) - 1 - len(self._readers)

    def _ring(self) -> None:
        if self.is_open:
            os.write(self._wake[1], b"!")

    def _read(self, thread: _Reader) -> None:
        with self._busy:
            while not thread.is_to_stop and self.is_open:
                self._deliver(lambda: thread.is_to_stop)
                if thread.is_to_stop:
                    break
                for fd, _ in self._poll.poll(self._unhush(by_all_means=False)):
                    self._serve(fd)

    # Accepting children and reading their events

    def _serve(self, fd: int) -> None:
        if fd == self._wake[0]:
            try:
                os.read(fd, 4096)
            except BlockingIOError:
                pass
        elif fd == self._listener.fileno():
            self._accept()
        elif fd in self._waiting:
            self._greet(fd)
        elif fd in self._children:
            self._receive(fd)
        else:
            self._unregister(fd)

    def _accept(self) -> None:
        while True:
            try:
                with standard_left_alone():
                    connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                self._complain(exc)
                return
            if not is_of_this_user(connection):
                # closed at once: another user's client, which may never send anything, must not use
                # up the program's descriptors
                connection.close()
                continue
            connection.setblocking(False)
            self._waiting[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.POLLIN)
            self._greet(connection.fileno())

    def _greet(self, fd: int) -> None:
        connection = self._waiting[fd]
        try:
            with standard_left_alone():
                hello, fds, _, _ = socket.recv_fds(connection, HELLO.size, 2)
        except BlockingIOError:
            return
        except OSError:
            hello = b""
            fds = []
        self._unregister(fd)
        del self._waiting[fd]
        connection.close()
        token, pid, _ = HELLO.unpack(hello) if len(hello) == HELLO.size else (b"", 0, 0)
        if not secrets.compare_digest(token, self._token) or len(fds) != 2:
            for other in fds:
                os.close(other)
            if token == self._token:
                self._complain(OSError(24, "too many open files"))
            return
        for other in fds:
            os.set_inheritable(other, False)
        self._children[fds[0]] = _Child(pid, *fds)
        self._poll.register(fds[0], select.POLLIN)
        self._receive(fds[0])

    def _receive(self, fd: int) -> None:
        child = self._children[fd]
        try:
            events, has_ended = child.read()
        except Exception as exc:  # data that is not in the form in which a child sends it
            self._complain(exc)
            events = []
            has_ended = True
        self._inbox.extend([(child.pid, key, data) for key, data in events])
        if has_ended:
            self._unregister(fd)
            del self._children[fd]
            self._closed(child.dropped)
            child.close()

    def _unregister(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except KeyError:
            pass

    def _deliver(self, is_to_stop: Callable[[], bool]) -> None:
        while self._inbox and not is_to_stop():
            streams.in_turn_within(TURN_S, self._deliver_one)

    def _deliver_one(self) -> None:
        with self._handing:
            if self._inbox:  # a subscriber may have emptied the inbox
                self._take(*self._inbox.popleft())

    def _complain(self, exc: Exception) -> None:
        if not self._complained:
            self._complained = True
            error = streams.describe(exc)
            streams.report(f"the events of a child process cannot be had ({error}).")
        time.sleep(TURN_S)  # keeps the caller from trying again at once

    # The end of a probe, and of the exchange

    def suspend(self) -> None:
        """Prevent the reading thread from being started until ``resume``; a fork in another thread
        would start it."""
        with self._state:
            self._n_alone += 1

    def resume(self) -> None:
        """Undo ``suspend``."""
        with self._state:
            self._n_alone -= 1

    def drain(self) -> None:
        """Read and forward all events that children have sent so far, in the calling thread."""
        is_reader = self._thread is threading.current_thread()
        if not is_reader and not (self.park(END_S) and self._busy.acquire(timeout=END_S)):
            streams.report(
                f"a subscriber takes longer than {END_S:.0f} s: what child processes have sent"
                " since is lost."
            )
            return
        try:
            if self._serve_ready():
                self._serve_ready()  # children that have just connected must be read as well
            while self._inbox and streams.in_turn_within(END_S, self._deliver_one):
                pass
        finally:
            if not is_reader:
                self._busy.release()

    def _serve_ready(self) -> bool:
        """Read everything that can be read without waiting; False if there was nothing."""
        ready = [fd for fd, _ in self._poll.poll(0)] if self.is_open else []
        for fd in ready:
            self._serve(fd)
        return bool(ready)

    def forget(self, key: int) -> int:
        """Drop the events of a probe that have not been forwarded; returns their number."""
        before = len(self._inbox)
        self._inbox = deque(entry for entry in self._inbox if entry[1] != key)
        return before - len(self._inbox)

    def dropped(self, key: int) -> int:
        """Return the number of events of a probe that the living children have dropped."""
        return sum(child.dropped(key) for child in list(self._children.values()))

    def end_probe(self, key: int) -> None:
        """Tell the living children that a probe has ended."""
        for child in list(self._children.values()):
            try:
                child.end_probe(key)
            except OSError:
                pass

    def close(self) -> None:
        """Stop the thread, close all descriptors, and remove the socket's folder."""
        with self._state:
            self._is_closed = True
        if self._thread is not threading.current_thread():
            self.park()
        else:
            threading.current_thread().is_to_stop = True  # type: ignore[attr-defined]  # a _Reader
        self.release()
        if self._folder:
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)

    def release(self) -> None:
        """Close all descriptors; in a forked child, they are copies of the parent's."""
        self._unhush(by_all_means=True)
        for child in self._children.values():
            try:
                child.close()
            except OSError:
                pass
        for connection in self._waiting.values():
            connection.close()
        if self.is_open:
            self._listener.close()
            for fd in self._wake:
                os.close(fd)
        else:
            self._listener.detach()
        self._children.clear()
        self._waiting.clear()


class _AboutForks:
    """Object that a filter of warnings has in place of a regular expression. It matches Python's
    warning of a fork with threads."""

    def match(self, text: str) -> bool:
        return "is multi-threaded, use of fork" in text


_HUSHED: Any = ("ignore", _AboutForks(), DeprecationWarning, None, 0)


def _hush() -> None:
    """Keep Python from warning of a fork with threads: the only other thread is one that the
    program does not know of."""
    import warnings

    warnings.filters.insert(0, _HUSHED)  # type: ignore[attr-defined]  # a list
    _changed(warnings)


def _unhush() -> None:
    warnings = sys.modules.get("warnings")
    if warnings is not None and _HUSHED in warnings.filters:
        try:
            warnings.filters.remove(_HUSHED)
        except ValueError:  # another thread has removed the filter
            return
        _changed(warnings)


def _changed(warnings: Any) -> None:
    getattr(warnings, "_filters_mutated", int)()


def _caller() -> tuple[int, int, int] | None:
    """Return the place at which the calling thread forks: ids of the thread and the frame, and the
    instruction in the frame. None if C code forks."""
    frame: FrameType | None = sys._getframe(1)
    # skip voirkit's own frames, which are those from the fork hook to this function
    while frame is not None and frame.f_globals.get("__name__", "").startswith("voirkit."):
        frame = frame.f_back
    return None if frame is None else (threading.get_ident(), id(frame), frame.f_lasti)


def _is_there(place: tuple[int, int, int] | None) -> bool:
    """True if a thread is still at a place that ``_caller`` has returned, or in a call from
    there."""
    if place is None:
        return False
    thread, frame_id, instruction = place
    frame = sys._current_frames().get(thread)
    while frame is not None and id(frame) != frame_id:
        frame = frame.f_back
    return frame is not None and frame.f_lasti == instruction
