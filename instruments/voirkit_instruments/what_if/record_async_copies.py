"""What ``torch.save`` writes, kept until a thread writes it: bytes as they are, the memory of tensors as a copy.

It takes the place of torch's writer (``PyTorchFileWriter``) while torch.save pickles. What it can not keep, for want of memory or because
it is unknown, is written at once, after all that was kept before.
"""

from __future__ import annotations

import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

NO_ROOM = "for want of memory"
_UNKNOWN = "with records of an unknown kind"


class Spare:
    """Memory of copies that are written, for those of the next save: fresh memory would take three times as long to copy to."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[Any]] = {}

    def take(self, size: int) -> Any:
        """A storage of this many bytes, or None."""
        try:
            return self._by_size[size].pop()
        except (KeyError, IndexError):
            return None

    def give(self, copy: Any) -> None:
        """Keep one."""
        self._by_size.setdefault(copy.nbytes(), []).append(copy)

    def clear(self) -> None:
        """Let go of all: of what the last save had no use for."""
        self._by_size = {}


class Held:
    """The records of one file.

    Args:
        begin: Makes the writer that they are for.
        room: Bytes that new copies may take.
        spare: Where memory is taken from, and given back to.
        found: Its path, and what ``os.stat`` says of it and of its folder.

    Attributes:
        bytes: Of the copies.
        copying_ns: What they took.
        why_through: Why records now go straight to the writer; empty while they are kept.
    """

    def __init__(self, begin: Callable[[], Any], room: float, spare: Spare, found: tuple[str, os.stat_result, os.stat_result]) -> None:
        self._begin = begin
        self._writer: Any = None
        self._room = room
        self._spare = spare
        self.found = found
        self._records: deque[tuple[str, tuple[Any, ...], Any]] = deque()  # method, arguments, what must live as long
        self.bytes, self.copying_ns = 0, 0
        self.why_through = ""

    def writer(self) -> Any:
        """The writer; made when it is first asked for.

        Raises:
            RuntimeError, OSError: As it is made.
        """
        if self._writer is None:
            self._writer = self._begin()
        return self._writer

    def write_record(self, name: Any, data: Any, size: int) -> Any:
        """As the writer's: text, bytes, a storage, or (torch 2.1) an address."""
        if not self.why_through:
            if isinstance(data, (str, bytes)):
                self._records.append(("write_record", (name, data, size), None))
                return None
            if self._copied(name, data, size):
                return None
        return self.writer().write_record(name, data, size)

    def write_record_metadata(self, *args: Any) -> Any:
        """As the writer's."""
        if self.why_through:
            return self.writer().write_record_metadata(*args)
        self._records.append(("write_record_metadata", args, None))
        return None

    def __getattr__(self, name: str) -> Any:
        """Anything else that torch may want of its writer: it has it, from then on."""
        self._stop_keeping(_UNKNOWN)
        return getattr(self.writer(), name)

    def _copied(self, name: Any, data: Any, size: int) -> bool:
        """Keep a copy of some memory; False if that can not be, and then nothing is kept any more."""
        import ctypes

        import torch

        began = time.perf_counter_ns()
        address = data if isinstance(data, int) else data.data_ptr() if isinstance(data, torch.UntypedStorage) else None
        if address is None or (not isinstance(data, int) and data.device.type != "cpu"):
            self._stop_keeping(_UNKNOWN)
            return False
        copy = self._spare.take(size)
        if copy is None:
            self._room -= size
            try:
                if self._room < 0:
                    raise MemoryError
                copy = torch.UntypedStorage(size)  # and no tensor: no mode of torch that is on may have a say in this
            except (MemoryError, RuntimeError):
                self._stop_keeping(NO_ROOM)
                return False
        if size:
            ctypes.memmove(copy.data_ptr(), address, size)
        self._records.append(("write_record", (name, copy.data_ptr() if isinstance(data, int) else copy, size), copy))
        self.bytes += size
        self.copying_ns += time.perf_counter_ns() - began
        return True

    def _stop_keeping(self, why: str) -> None:
        if not self.why_through:
            self.why_through = why
            self.go_through(self.writer())
            self._spare.clear()

    def go_through(self, writer: Any) -> None:
        """Write what is kept, and give its memory back piece by piece.

        Raises:
            RuntimeError: As the writer raises it (disk full); what is left is never written then.
        """
        records, self._records = self._records, deque()
        while records:
            method, args, copy = records.popleft()
            getattr(writer, method)(*args)
            if copy is not None:
                self._spare.give(copy)


def room() -> float:
    """Bytes of memory that copies of one file may take: half of what the machine, and the control group, have left."""
    left = [_machine(), _group()]
    return min(left) / 2


def _machine() -> float:
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass
    return float("inf")


def _group() -> float:
    """What the process's own control group (version 2) lets it have: its limit less what is used and can not be given back."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            own = next(line[3:].strip() for line in file if line.startswith("0::"))
        folder = "/sys/fs/cgroup" + own.rstrip("/")
        with open(folder + "/memory.max", encoding="utf-8") as file:
            most = float(file.read())  # "max" is none
        with open(folder + "/memory.current", encoding="utf-8") as file:
            used = float(file.read())
        with open(folder + "/memory.stat", encoding="utf-8") as file:
            cached = sum(float(line.split()[1]) for line in file if line.startswith(("inactive_file ", "active_file ")))
        return most - used + cached
    except (OSError, ValueError, StopIteration):
        return float("inf")
