"""Child-process side of probes: the events of the parent's probes are sent to the parent as plain
values, and nowhere else.

A pipe is the bounded queue: an event is one write that does not wait, so it reaches the parent even
if this process is killed. Events that do not fit are counted on a page of shared memory.

This code must never wait for the parent, raise an exception into the program, run the program's
code (no ``repr``, no ``==``) or keep its objects alive. It must not write to a descriptor that the
program has closed and opened again, or occupy descriptors 0 to 2, on which programs rely.
"""

from __future__ import annotations

import marshal
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from voirkit.fork import file_identity

LONGEST_TUPLE = 16
LONGEST_TEXT = 65_536

EXACT = frozenset({int, float, bool, str, complex, type(None)})
_CONTAINERS = frozenset({tuple, list, dict, set, frozenset, str, bytes, bytearray})
_mro: Any = type.__dict__["__mro__"].__get__
_qualname: Any = type.__dict__["__qualname__"].__get__
_module: Any = type.__dict__["__module__"].__get__


def plain(value: Any) -> Any:
    """Return a value in the form that is sent to another process. Numbers (numpy's too), strings,
    booleans, None and short tuples of these keep their value; anything else becomes
    ``summary(value)``."""
    simple = _simple(value)
    if simple is not _OTHER:
        return simple
    if tuple in _mro(type(value)) and tuple.__len__(value) <= LONGEST_TUPLE:
        items = [_simple(item) for item in tuple.__iter__(value)]
        if all(item is not _OTHER for item in items):
            return tuple(items)
    return summary(value)


def summary(value: Any) -> dict[str, Any]:
    """Return a description of a value: ``$type``, and if known ``shape`` and ``dtype``, or
    ``len``."""
    kind = type(value)
    module = _module(kind)
    name = _qualname(kind)
    if isinstance(module, str) and module != "builtins":
        name = f"{module}.{name}"
    described: dict[str, Any] = {"$type": name}
    if kind in _CONTAINERS:
        described["len"] = len(value)
        return described
    try:
        if _is_a(kind, "torch", "Tensor"):
            _describe_tensor(value, described)
        elif _is_a(kind, "numpy", "ndarray"):
            array = sys.modules["numpy"].ndarray
            shape = list(array.shape.__get__(value))
            described.update(shape=shape, dtype=str(array.dtype.__get__(value)))
    except Exception:  # the library is partly imported, or of another version
        pass
    return described


def _describe_tensor(value: Any, described: dict[str, Any]) -> None:
    # Torch's function overrides are disabled, so that a mode or tensor subclass of the program does
    # not notice these accesses (checked with torch 2.1 to 2.15).
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        shape = torch.Tensor.shape.__get__(value)
        dtype = torch.Tensor.dtype.__get__(value)
    sizes = [size if type(size) is int else None for size in shape]
    described.update(shape=sizes, dtype=str(dtype))


_OTHER: Any = object()  # returned by ``_simple`` for a value that is not simple


def _simple(value: Any) -> Any:
    """Return a value as a number, string, boolean or None of exactly these types; _OTHER if it is
    none of them, or a long string."""
    kind = type(value)
    if kind in EXACT:
        return value if kind is not str or len(value) <= LONGEST_TEXT else _OTHER
    if _is_a(kind, "numpy", "generic"):
        item = sys.modules["numpy"].generic.item(value)
        return item if type(item) in EXACT else _OTHER
    for base in (int, float, str):
        if base in _mro(kind):
            exact = getattr(base, f"__{base.__name__}__")(value)
            return exact if base is not str or len(exact) <= LONGEST_TEXT else _OTHER
    return _OTHER


def _is_a(kind: type, module: str, name: str) -> bool:
    """True if a class is, or derives from, the class ``name`` of a module that the program may have
    imported."""
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and base in _mro(kind)


# the values from which a spawned process makes a probe; ``processes.crossing`` returns them
Item = tuple[Any, ...]

# size of the pipe: some 15 000 small events; the maximum for a user without privileges
# (/proc/sys/fs/pipe-max-size)
PIPE_BYTES = 1 << 20
LARGEST_BYTES = 1 << 18  # maximum size of an event
AGAIN_S = 1.0  # seconds between two attempts to connect
# version of marshal's format; with newer versions, marshal looks for values that occur twice, which
# takes longer than it saves
VERSION = 2
# bytes for each probe on the page of shared memory: two integers, the number of dropped events,
# and 1 if the parent has ended the probe
SLOT = 16
HELLO = struct.Struct("<16sQQ")  # token, process id, size of the page
_length = struct.Struct("<I")


class Uplink:
    """Connection from a child process to the probes of the parent.

    Args:
        address: Address of the parent's socket.
        token: Secret that shows the parent that this process is its child.
        slots: The highest number of a probe, plus one.
    """

    def __init__(self, address: str | bytes, token: bytes, slots: int) -> None:
        self.address = address
        self.token = token
        self.slots = slots
        self.forget()

    def forget(self) -> None:
        """Forget the connection, without closing its descriptors."""
        self._pipe = -1
        self._pipe_id: tuple[int, int] | None = None
        self._reading_ends: list[int] = []
        self._page: Any = None
        self._room = 0  # capacity of the pipe in bytes
        self._atomic = 0  # maximum number of bytes that the pipe takes as a whole or not at all
        # by probe: the number of events that were dropped while there was no page
        self._uncounted: dict[int, int] = {}
        self._not_before = 0.0

    def close(self) -> None:
        """Close the descriptors that the process has opened; called in a fork of a process that has
        sent events."""
        for fd in (self._pipe, *self._reading_ends):
            _close(fd)
        self.forget()

    # Sending events

    def send(self, key: int, data: Any) -> None:
        """Send an event or a text of a probe; if it does not fit, drop and count it."""
        if self._page is None and not self._connect():
            self._uncounted[key] = self._uncounted.get(key, 0) + 1
            return
        page = self._page
        slot = 2 * key
        if page[slot + 1]:  # the probe has ended
            return
        body = marshal.dumps((key, data), VERSION)
        if len(body) > min(LARGEST_BYTES, self._room // 4):
            body = marshal.dumps((key, _smaller(data)), VERSION)
        if not self._write(_length.pack(len(body)) + body):
            page[slot] += 1

    def _write(self, frame: bytes) -> bool:
        """Write a message, its length and its body; False if it does not fit into the pipe."""
        # the program may have closed the pipe and opened another file with the same descriptor
        if file_identity(self._pipe) != self._pipe_id:
            self._lose()
            return True
        try:
            if len(frame) > self._atomic and not self._fits(len(frame)):
                return False
            n_written = os.write(self._pipe, frame)
        except BlockingIOError:
            return False
        except OSError:
            self._lose()
            return True
        if n_written < len(frame):
            # Never happens on Linux. Nothing more is sent, since the parent could not find the
            # beginning of the next message.
            self._lose()
        return True

    def _fits(self, size: int) -> bool:
        """True if the pipe certainly takes a message of this size as a whole. The pipe consists of
        pages, which may be only half full."""
        import fcntl
        import termios

        answer = fcntl.ioctl(self._pipe, termios.FIONREAD, b"\0" * 4)
        n_unread = int.from_bytes(answer, sys.byteorder)
        return 2 * n_unread + size + 4 * mmap.PAGESIZE <= self._room

    def _lose(self) -> None:
        """Send nothing more from this process."""
        self.forget()
        self._not_before = float("inf")

    # Connecting to the parent

    def _connect(self) -> bool:
        now = time.monotonic()
        if now < self._not_before:
            return False
        self._not_before = now + AGAIN_S
        opened: list[int] = []
        try:
            with standard_left_alone():
                self._open(opened)
        except (ConnectionRefusedError, FileNotFoundError):
            self._not_before = float("inf")  # the parent or its probes have ended
        except (OSError, ValueError):  # such as too many open files
            pass
        if self._page is None:
            for fd in opened:
                _close(fd)
            return False
        for key, number in self._uncounted.items():
            self._page[2 * key] += number
        self._uncounted = {}
        return True

    def _open(self, opened: list[int]) -> None:
        import socket

        # The reading end stays open in this process too. A write to a pipe without a reader would
        # kill a program that has restored the default of SIGPIPE.
        reading, writing = os.pipe()
        opened += (reading, writing)
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._room = _enlarge_pipe(writing)
        self._atomic = os.fpathconf(writing, "PC_PIPE_BUF")
        n_pages = -(-self.slots * SLOT // mmap.PAGESIZE)
        size = n_pages * mmap.PAGESIZE
        shared = _anonymous_file(size)
        opened.append(shared)
        page = memoryview(mmap.mmap(shared, size)).cast("Q")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            for attempt in range(10):
                try:
                    connection.connect(self.address)
                    break
                except BlockingIOError:  # the socket's queue is full: many children connect at once
                    if attempt == 9:
                        raise
                    time.sleep(0.005)
            hello = HELLO.pack(self.token, os.getpid(), size)
            socket.send_fds(connection, [hello], [reading, shared])
        os.close(shared)
        opened.remove(shared)
        self._pipe = writing
        self._reading_ends = [reading]
        self._page = page
        self._pipe_id = file_identity(writing)


def _enlarge_pipe(fd: int) -> int:
    """Make a pipe as large as it may be; returns its size in bytes."""
    import fcntl

    for size in (PIPE_BYTES, PIPE_BYTES // 4):
        try:
            return fcntl.fcntl(fd, getattr(fcntl, "F_SETPIPE_SZ", 1031), size)
        except OSError:  # not supported, or above the limit of this user
            continue
    if sys.platform == "linux":
        return fcntl.fcntl(fd, 1032)  # F_GETPIPE_SZ
    return 65_536 + 4 * mmap.PAGESIZE


class Relay:
    """A probe of the parent as it is in this child process: it sends its events to the parent.

    Args:
        key: Number of the probe in the parent.
        raw: True if the events hold ``Capture`` objects.
        item: The values from which a process spawned by this one makes the probe; None if unknown.
    """

    def __init__(self, uplink: Uplink, key: int, raw: bool, item: Item | None = None) -> None:
        self.uplink = uplink
        self.key = key
        self.item = item
        self.emit = self._emitter(raw)
        # in a spawned process: the engine, which this reference keeps alive
        self.engine: Any = None
        # in a forked process: the copy of the parent's probe
        self.probe: Any = None

    def _emitter(self, raw: bool) -> Callable[[Any], None]:
        uplink = self.uplink
        key = self.key

        def emit(event: dict[str, Any]) -> None:
            data: dict[str, Any] = {}
            for name, value in event.items():
                if type(value) in EXACT and type(value) is not str:
                    data[name] = value
                else:
                    data[name] = plain(value)
            if "$wrap" in event:
                wrap = event["$wrap"]
                # makes the id differ from the ids of other processes
                data["$wrap"] = {**wrap, "id": wrap["id"] + (os.getpid() << 40)}
            worker = _loader_worker.number()
            if worker is not None:
                data["$worker"] = worker
            uplink.send(key, data)

        def emit_raw(event: dict[str, Any]) -> None:
            data = {
                alias: (tuple(capture.names), tuple(map(plain, capture.values)))
                for alias, capture in event.items()
                if alias != "$wrap"
            }
            uplink.send(key, (data, event.get("$wrap"), _loader_worker.number()))

        return emit_raw if raw else emit

    def complain(self, text: str) -> None:
        """Have the parent report a text about the probe."""
        self.uplink.send(self.key, text)


class _LoaderWorker:
    """State of this process as a worker of a ``torch.utils.data.DataLoader``, if it is a worker."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number: int | None = None

    def number(self) -> int | None:
        """Return the number of this process among the workers of its loader; None if it is not a
        worker."""
        if self._number is None:
            data = sys.modules.get("torch.utils.data")
            get_worker_info = getattr(data, "get_worker_info", None)
            info = get_worker_info() if get_worker_info is not None else None
            if info is not None:
                self._number = int(info.id)
        return self._number


_loader_worker = _LoaderWorker()


def _smaller(data: Any) -> Any:
    """Return a smaller form of an event or a text of a probe: each value is replaced by its
    description, and a text is cut."""
    if isinstance(data, dict):
        return {
            name: value if name in ("$wrap", "$worker") else summary(value)
            for name, value in data.items()
        }
    if isinstance(data, tuple):  # a raw event
        captures, wrap, worker = data
        summaries = {
            alias: (names[:1], (summary(values),)) for alias, (names, values) in captures.items()
        }
        return summaries, wrap, worker
    return data[:LONGEST_TEXT]


@contextmanager
def standard_left_alone() -> Iterator[None]:
    """Context manager for code that opens descriptors. If the program has closed standard input,
    output or error, their numbers stay free for the files that the program opens next."""
    fillers: list[int] = []
    try:
        while not fillers or min(fillers[-2:]) <= 2:
            fillers += os.pipe()
    except OSError:  # too many open files
        pass
    for fd in fillers:
        if fd > 2:
            _close(fd)
    try:
        yield
    finally:
        for fd in fillers:
            if fd <= 2:
                _close(fd)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("voirkit", os.MFD_CLOEXEC)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd
