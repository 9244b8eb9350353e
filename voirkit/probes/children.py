"""In a child process: the events of the parent's probes are sent there as plain values, and nowhere else.

A pipe is the bounded queue: an event is one write that does not wait, so what was written reaches the parent even if this process is
killed. What does not fit is counted on a page that both processes see. Must never wait for the parent, raise into the program, run its
code (no ``repr``, no ``==``), write to a descriptor that the program has closed and opened again, take one of the first three, which
programs count on, or keep anything alive.
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
    """A value as another process gets it. Returns numbers (numpy's too), strings, booleans, None and short tuples of them; for anything
    else ``summary(value)``."""
    found = _simple(value)
    if found is not _OTHER:
        return found
    if tuple in _mro(type(value)) and tuple.__len__(value) <= LONGEST_TUPLE:
        items = [_simple(item) for item in tuple.__iter__(value)]
        if all(item is not _OTHER for item in items):
            return tuple(items)
    return summary(value)


def summary(value: Any) -> dict[str, Any]:
    """What a value is: ``$type``, and where they are known ``shape`` and ``dtype``, or ``len``."""
    kind = type(value)
    module = _module(kind)
    name = _qualname(kind)
    found: dict[str, Any] = {"$type": f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name}
    if kind in _CONTAINERS:
        found["len"] = len(value)
        return found
    try:
        if _is_a(kind, "torch", "Tensor"):
            _describe_tensor(value, found)
        elif _is_a(kind, "numpy", "ndarray"):
            array = sys.modules["numpy"].ndarray
            found.update(shape=list(array.shape.__get__(value)), dtype=str(array.dtype.__get__(value)))
    except Exception:  # a library that is half imported, or of another version
        pass
    return found


def _describe_tensor(value: Any, described: dict[str, Any]) -> None:
    # Without torch's function overrides: a mode or a subclass of the program's would see that somebody asks (checked with 2.1 to 2.15).
    tensor, c = sys.modules["torch"].Tensor, sys.modules["torch"]._C
    with c.DisableTorchFunction():
        shape, dtype = tensor.shape.__get__(value), tensor.dtype.__get__(value)
    described.update(shape=[n if type(n) is int else None for n in shape], dtype=str(dtype))


_OTHER: Any = object()  # stands for what is not simple


def _simple(value: Any) -> Any:
    """A number, string, boolean or None, of exactly that type; or _OTHER."""
    kind = type(value)
    if kind in EXACT:
        return value if kind is not str or len(value) <= LONGEST_TEXT else _OTHER
    if _is_a(kind, "numpy", "generic"):
        found = sys.modules["numpy"].generic.item(value)
        return found if type(found) in EXACT else _OTHER
    for base in (int, float, str):
        if base in _mro(kind):
            exact = getattr(base, f"__{base.__name__}__")(value)
            return exact if base is not str or len(exact) <= LONGEST_TEXT else _OTHER
    return _OTHER


def _is_a(kind: type, module: str, name: str) -> bool:
    """Whether a class is or derives from one of a module that the program may have imported."""
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and base in _mro(kind)


Item = tuple[Any, ...]  # what a spawned process needs to make a probe: see processes.crossing

PIPE_BYTES = 1 << 20  # some 15 000 small events; what a user without privileges may have (/proc/sys/fs/pipe-max-size)
LARGEST_BYTES = 1 << 18  # of an event
AGAIN_S = 1.0  # between two attempts to connect
VERSION = 2  # of marshal: the newer ones look for values that occur twice, which takes longer than it saves
SLOT = 16  # bytes of a probe on the page: how many events were dropped, and whether the parent has ended it
HELLO = struct.Struct("<16sQQ")  # token, process id, size of the page
_length = struct.Struct("<I")


class Uplink:
    """The way to one process's probes.

    Args:
        address: Of its socket.
        token: Shows that this is a child.
        slots: The number of the probe with the highest, and one.
    """

    def __init__(self, address: str | bytes, token: bytes, slots: int) -> None:
        self.address, self.token, self.slots = address, token, slots
        self.forget()

    def forget(self) -> None:
        """Begin anew: this process is another, whose descriptors are its parent's."""
        self._pipe = -1
        self._pipe_id: tuple[int, int] | None = None
        self._kept: list[int] = []
        self._page: Any = None
        self._room = self._atomic = 0  # how much the pipe holds, and how much it takes whole or not at all
        self._uncounted: dict[int, int] = {}  # what was dropped while there was no page
        self._not_before = 0.0

    def close(self) -> None:
        """In a fork of a process that has sent: close what it has opened."""
        for fd in (self._pipe, *self._kept):
            _close(fd)
        self.forget()

    # sending

    def send(self, key: int, data: Any) -> None:
        """Send what belongs to a probe; count it if it does not fit."""
        if self._page is None and not self._connect():
            self._uncounted[key] = self._uncounted.get(key, 0) + 1
            return
        page, slot = self._page, 2 * key
        if page[slot + 1]:  # the probe has ended
            return
        body = marshal.dumps((key, data), VERSION)
        if len(body) > min(LARGEST_BYTES, self._room // 4):
            body = marshal.dumps((key, _smaller(data)), VERSION)
        if not self._write(_length.pack(len(body)) + body):
            page[slot] += 1

    def _write(self, frame: bytes) -> bool:
        """Whether it has been, or will be, written."""
        if file_identity(self._pipe) != self._pipe_id:  # the program has closed it: it is the program's to do so
            self._lose()
            return True
        try:
            if len(frame) > self._atomic and not self._fits(len(frame)):
                return False
            written = os.write(self._pipe, frame)
        except BlockingIOError:
            return False
        except OSError:
            self._lose()
            return True
        if written < len(frame):  # never on Linux: the parent could make nothing of what follows
            self._lose()
        return True

    def _fits(self, size: int) -> bool:
        """Whether the pipe takes it whole: it holds pages, which may be filled by half."""
        import fcntl
        import termios

        held = int.from_bytes(fcntl.ioctl(self._pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder)
        return 2 * held + size + 4 * mmap.PAGESIZE <= self._room

    def _lose(self) -> None:
        """No more from this process."""
        self.forget()
        self._not_before = float("inf")

    # connecting

    def _connect(self) -> bool:
        now = time.monotonic()
        if now < self._not_before:
            return False
        self._not_before = now + AGAIN_S
        opened: list[int] = []
        try:
            with standard_left_alone():
                self._open(opened)
        except (ConnectionRefusedError, FileNotFoundError):  # the parent has ended, or its probes have
            self._not_before = float("inf")
        except (OSError, ValueError):  # too many open files
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
        import fcntl
        import socket

        # The reading end stays open here too: a write to a pipe that nobody can read kills a program that has SIGPIPE's default back.
        reading, writing = os.pipe()
        opened += (reading, writing)
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        for size in (PIPE_BYTES, PIPE_BYTES // 4):
            try:
                self._room = fcntl.fcntl(writing, getattr(fcntl, "F_SETPIPE_SZ", 1031), size)
                break
            except OSError:  # not on this system, or more than the user may have
                continue
        else:
            self._room = fcntl.fcntl(writing, 1032) if sys.platform == "linux" else 65_536 + 4 * mmap.PAGESIZE  # F_GETPIPE_SZ
        self._atomic = os.fpathconf(writing, "PC_PIPE_BUF")
        size = -(-self.slots * SLOT // mmap.PAGESIZE) * mmap.PAGESIZE
        shared = _anonymous_file(size)
        opened.append(shared)
        page = memoryview(mmap.mmap(shared, size)).cast("Q")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            for attempt in range(10):
                try:
                    connection.connect(self.address)
                    break
                except BlockingIOError:  # more children at once than the socket lets wait
                    if attempt == 9:
                        raise
                    time.sleep(0.005)
            socket.send_fds(connection, [HELLO.pack(self.token, os.getpid(), size)], [reading, shared])
        os.close(shared)
        opened.remove(shared)
        self._pipe, self._kept, self._page = writing, [reading], page
        self._pipe_id = file_identity(writing)


class Relay:
    """A probe of the parent's, in this process.

    Args:
        key: Its number there.
        raw: Whether its events hold ``Capture`` objects.
        item: What a process spawned from here needs, if that is known.
    """

    def __init__(self, uplink: Uplink, key: int, raw: bool, item: Item | None = None) -> None:
        self.uplink, self.key, self.item = uplink, key, item
        self.emit = self._emitter(raw)
        self.engine: Any = None  # of a spawned process; it lives as long as this
        self.probe: Any = None  # of a forked one: the copy of the parent's

    def _emitter(self, raw: bool) -> Callable[[Any], None]:
        uplink, key = self.uplink, self.key

        def emit(event: dict[str, Any]) -> None:
            data: dict[str, Any] = {}
            for name, value in event.items():
                data[name] = value if type(value) in EXACT and type(value) is not str else plain(value)
            if "$wrap" in event:
                wrap = event["$wrap"]
                data["$wrap"] = {**wrap, "id": wrap["id"] + (os.getpid() << 40)}  # told apart from those of other processes
            worker = _worker_id()
            if worker is not None:
                data["$worker"] = worker
            uplink.send(key, data)

        def emit_raw(event: dict[str, Any]) -> None:
            data = {alias: (tuple(c.names), tuple(map(plain, c.values))) for alias, c in event.items() if alias != "$wrap"}
            uplink.send(key, (data, event.get("$wrap"), _worker_id()))

        return emit_raw if raw else emit

    def complain(self, text: str) -> None:
        """Have the parent report something about the probe."""
        self.uplink.send(self.key, text)


_worker: int | None = None


def _worker_id() -> int | None:
    """The number of this process if it is a worker of a ``torch.utils.data.DataLoader``."""
    global _worker
    if _worker is None:
        data = sys.modules.get("torch.utils.data")
        ask = getattr(data, "get_worker_info", None)
        info = ask() if ask is not None else None
        if info is not None:
            _worker = int(info.id)
    return _worker


def _smaller(data: Any) -> Any:
    """What belongs to a probe, with only what each value is."""
    if isinstance(data, dict):
        return {name: value if name in ("$wrap", "$worker") else summary(value) for name, value in data.items()}
    if isinstance(data, tuple):  # a raw event
        captures, wrap, worker = data
        return {alias: (names[:1], (summary(values),)) for alias, (names, values) in captures.items()}, wrap, worker
    return data[:LONGEST_TEXT]


@contextmanager
def standard_left_alone() -> Iterator[None]:
    """While something is opened: standard input, output and error, if they are closed, stay so for what the program opens next."""
    held: list[int] = []
    try:
        while not held or min(held[-2:]) <= 2:
            held += os.pipe()
    except OSError:  # too many open files
        pass
    for fd in held:
        if fd > 2:
            _close(fd)
    try:
        yield
    finally:
        for fd in held:
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
