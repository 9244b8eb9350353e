"""In the parent: takes the events of child processes, and hands them on, in a thread that exists
only while there may be children.

No event is being handed on when the process forks; where python would warn of a fork with threads,
the thread is stopped for it. When a probe ends, the thread is stopped too, so that the thread that
ends it reads on alone.
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

# how long the thread waits for other threads' turn before it checks whether it is to stop
TURN_S = 0.05
# how long a fork waits for the thread to stop; it may be in a subscriber that takes long
FORK_S = 1.0
END_S = 10.0  # how long the end of a probe waits for it
GONE_S = 0.05  # from the end of the thread to its end for the system: 20 microseconds
WARNS = sys.version_info >= (3, 12)  # of forks with threads
HUSHED_S = 0.5  # how long after a fork the warning may come, before anybody looks if it has

Receive = Callable[[int, int, Any], None]  # process id, probe, data


def is_of_this_user(connection: socket.socket) -> bool:
    """True if the other end of a connection is this user's, or root's. Linux lets every user of the
    machine connect to a socket without a file."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the socket lies in a folder of this user's own
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid(), os.getuid())


class _Child:
    """A process that sends. ``pid``: its id; ``fd``: its pipe; ``page``: the page with its counts.
    It has shown the token of this run, which processes of the run alone can know: its events are
    believed."""

    def __init__(self, pid: int, fd: int, page: int) -> None:
        self.pid = pid
        self.fd = fd
        self.page = page
        self._identity = file_identity(fd), file_identity(page)
        self._buffer = bytearray()

    def read(self) -> tuple[list[tuple[int, Any]], bool]:
        """Read the events that it has sent; returns them, and True if it has ended."""
        # the program has closed all that it does not know
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
        """Read from its pipe; True if that has ended."""
        try:
            # a child that sends all the time must not keep others waiting
            for _ in range(2 * PIPE_BYTES // 65_536):
                chunk = os.read(self.fd, 65_536)
                if not chunk:
                    return True
                self._buffer += chunk
        except BlockingIOError:
            pass
        return False

    def dropped(self, key: int) -> int:
        """The number of events of a probe that it had to drop."""
        count = os.pread(self.page, 8, key * SLOT) if self.page >= 0 else b""
        return int.from_bytes(count, sys.byteorder) if len(count) == 8 else 0

    def end_probe(self, key: int) -> None:
        """Tell it that nobody listens any more."""
        if self.page >= 0 and os.fstat(self.page).st_size >= (key + 1) * SLOT:
            os.pwrite(self.page, struct.pack("=Q", 1), key * SLOT + 8)

    def close(self) -> None:
        for fd in (self.fd, self.page):
            if fd >= 0:
                os.close(fd)
        self.fd = self.page = -1


class _Reader(threading.Thread):
    """A daemon, and one that python knows of: where there are several threads, events wait for each
    other's turn."""

    def __init__(self, read: Callable[[_Reader], None]) -> None:
        super().__init__(name="voirkit-events", daemon=True)
        self._read = read
        self.is_to_stop = False

    def run(self) -> None:
        self._read(self)


class Exchange:
    """A socket that children connect to, and the events that they have sent. ``receive``: called
    with each event of a child; ``closed``: called with a function that gives how many events of a
    probe a child had to drop."""

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
        # held by a thread that hands on an event, and by one that forks
        self._handing = threading.RLock()
        self._forking = 0  # the thread that holds it for a fork
        self._state = threading.RLock()  # held for the three that follow
        self._thread: _Reader | None = None  # one that has been started
        self._n_alone = 0  # how many threads want to read alone
        self._is_closed = False
        self._hushed_until: float | None = None
        # thread, frame and instruction of the last fork
        self._forks_at: tuple[int, int, int] | None = None
        # of threads that may be there still, as the system counts them
        self._readers: set[int] = set()
        self._complained = False

    def uplink(self, slots: int) -> Uplink:
        """The way for a child to here."""
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
        """True if its descriptors are still its own: the program may have closed all that it does
        not know."""
        return self._own_identity() == self._identity

    # a fork

    def before_fork(self) -> None:
        """Let the thread come to rest."""
        self._unhush(by_all_means=True)
        # it would warn of this thread alone; and from 3.13 on of that which runs when the fork is
        # done
        warns_of_reader = WARNS and not self._count_other_threads()
        if warns_of_reader:
            _hush()
            self._forks_at = _caller()
            self._hushed_until = time.monotonic() + HUSHED_S
        if warns_of_reader and self._thread is not None:  # starting again takes a millisecond
            self.park()
        elif not self._forking and self._handing.acquire(timeout=FORK_S):
            self._forking = threading.get_ident()

    def after_fork(self) -> None:
        """In the parent: go on."""
        if self._forking == threading.get_ident():  # of two threads that fork at once one holds it
            self._forking = 0
            self._handing.release()
        self.start_reading()

    def _unhush(self, by_all_means: bool) -> float | None:
        """Let python warn again, when it has had the time to; returns how long that is still, in
        milliseconds."""
        until = self._hushed_until
        if until is None:
            return None
        remaining_s = until - time.monotonic()
        # a busy machine: python has not come to warn
        if remaining_s <= 0 and _is_there(self._forks_at):
            remaining_s = HUSHED_S
        if remaining_s > 0 and not by_all_means:
            return remaining_s * 1000 + 1
        self._hushed_until = None
        _unhush()
        return None

    # the thread

    def start_reading(self) -> None:
        """Read in a thread of its own, unless another wants to read alone: that one calls this when
        it has."""
        with self._state:
            thread = self._thread
            reads = thread is not None and thread.is_alive() and not thread.is_to_stop
            if reads or self._n_alone or self._is_closed:
                return
            thread = _Reader(self._read)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends, or there are too many threads
                self._thread = None
            else:
                self._thread = thread
                self._readers.add(thread.native_id or 0)

    def park(self, patience_s: float = FORK_S) -> bool:
        """Stop the thread; False if it has not stopped."""
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
        """The number of threads of this process beside this one and those that read, of which one
        that has ended may be there for a while."""
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

    # reading

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
                # one that never says a word must not use up the program's descriptors
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
        except Exception as exc:  # not what a child of ours sends
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
            if self._inbox:  # a subscriber may have had it read on
                self._take(*self._inbox.popleft())

    def _complain(self, exc: Exception) -> None:
        if not self._complained:
            self._complained = True
            error = streams.describe(exc)
            streams.report(f"the events of a child process cannot be had ({error}).")
        time.sleep(TURN_S)  # not to look again at once

    # reading to the end

    def suspend(self) -> None:
        """Have no thread started, as a fork in another thread would do, until ``resume``."""
        with self._state:
            self._n_alone += 1

    def resume(self) -> None:
        """The opposite of ``suspend``."""
        with self._state:
            self._n_alone -= 1

    def drain(self) -> None:
        """Read and hand on all that children have sent up to now, in this thread."""
        is_reader = self._thread is threading.current_thread()
        if not is_reader and not (self.park(END_S) and self._busy.acquire(timeout=END_S)):
            streams.report(
                f"a subscriber takes longer than {END_S:.0f} s: what child processes have sent"
                " since is lost."
            )
            return
        try:
            if self._serve_ready():
                self._serve_ready()  # those that have just connected must be read as well
            while self._inbox and streams.in_turn_within(END_S, self._deliver_one):
                pass
        finally:
            if not is_reader:
                self._busy.release()

    def _serve_ready(self) -> bool:
        """Read all that can be read without waiting; False if there was nothing."""
        ready = [fd for fd, _ in self._poll.poll(0)] if self.is_open else []
        for fd in ready:
            self._serve(fd)
        return bool(ready)

    def forget(self, key: int) -> int:
        """Drop the events of a probe that could not be handed on; returns how many."""
        before = len(self._inbox)
        self._inbox = deque(entry for entry in self._inbox if entry[1] != key)
        return before - len(self._inbox)

    def dropped(self, key: int) -> int:
        """The number of events of a probe that the living children have dropped."""
        return sum(child.dropped(key) for child in list(self._children.values()))

    def end_probe(self, key: int) -> None:
        """Tell the living children that a probe has ended."""
        for child in list(self._children.values()):
            try:
                child.end_probe(key)
            except OSError:
                pass

    def close(self) -> None:
        """Let go of everything."""
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
        """Close all descriptors; in a forked child they are the parent's."""
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
    """Stands in a filter of warnings in the place of a regular expression."""

    def match(self, text: str) -> bool:
        return "is multi-threaded, use of fork" in text


_HUSHED: Any = ("ignore", _AboutForks(), DeprecationWarning, None, 0)


def _hush() -> None:
    """Keep python from warning of the one thread that the program does not know of."""
    import warnings

    warnings.filters.insert(0, _HUSHED)  # type: ignore[attr-defined]  # a list
    _changed(warnings)


def _unhush() -> None:
    warnings = sys.modules.get("warnings")
    if warnings is not None and _HUSHED in warnings.filters:
        try:
            warnings.filters.remove(_HUSHED)
        except ValueError:  # another thread was quicker
            return
        _changed(warnings)


def _changed(warnings: Any) -> None:
    getattr(warnings, "_filters_mutated", int)()


def _caller() -> tuple[int, int, int] | None:
    """The place of the thread that forks: itself, the frame that does, the instruction in it."""
    frame: FrameType | None = sys._getframe(1)
    # from the hook at a fork to here
    while frame is not None and frame.f_globals.get("__name__", "").startswith("voirkit."):
        frame = frame.f_back
    # None: C forks
    return None if frame is None else (threading.get_ident(), id(frame), frame.f_lasti)


def _is_there(place: tuple[int, int, int] | None) -> bool:
    """True if a thread is still where it was, or in a call from there."""
    if place is None:
        return False
    thread, frame_id, instruction = place
    frame = sys._current_frames().get(thread)
    while frame is not None and id(frame) != frame_id:
        frame = frame.f_back
    return frame is not None and frame.f_lasti == instruction
