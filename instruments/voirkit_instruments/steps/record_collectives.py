"""What ranks exchange: every collective that torch's own flight recorder has seen, DDP's and FSDP's too, with when it was begun.

The recorder keeps the last 2,000 of a process for the back end gloo, and for NCCL where the program has switched it on
(``TORCH_FR_BUFFER_SIZE``). It is read, never emptied: the program's tools find in it what they would without voirkit. That takes some 5 us
an entry, of all that it holds, so it is read when about three quarters of it are new, in the thread that trains, and at the end. What a
process that is killed began since then is not known.

Its functions are private ones of torch, checked with torch 2.15; where they are not there nothing is recorded of collectives.
"""

from __future__ import annotations

import pickle
import time

from voirkit.processes.children import after_children
from voirkit_instruments.steps.record_spans import UNKNOWN, Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Of the records, as the ranks instrument reads them: category is the back end, name the collective, value its number in the group.
_KIND = "collective"
_NEW = 1_500  # entries, of the 2,000 that are kept by default
_AT_LEAST_EVERY_NS = 10_000_000_000
_BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e5m2": 1, "Float8_e4m3fn": 1,
}  # fmt: skip


class CollectiveRecording:
    """Writes collectives into the trace plane.

    Args:
        recording: The recording that this is a part of.

    Attributes:
        lost: How many were no longer kept when they were to be read.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._look = recording.phase("voirkit", "look")
        self._waited = recording.recorder.name("processor", "waited", kind=_KIND, value="ns")
        self._names: dict[str, int] = {}
        self._arguments: dict[tuple[Any, ...], int] = {}
        self._dump: Any = None
        self.lost = 0
        self._last = -1  # number of the last entry that was written
        self._ticks = self._until = 1  # how often it was asked since it was read, and how often it is until then
        self._read_ns = 0

    def start_reading(self, backend: str) -> None:
        """A process group has been made, with that back end (``gloo``, ``nccl``, ``cpu:gloo,cuda:nccl``)."""
        if self._dump is None:
            functions = getattr(self._recording.torch._C, "_distributed_c10d", None)
            self._dump = getattr(functions, "_dump_nccl_trace" if "nccl" in backend else "_dump_fr_trace", None)
            if self._dump is not None:
                after_children(self.read)

    def tick(self, *_: object) -> int:
        """Called once or several times a step, by who exchanges something."""
        if self._dump is not None:
            self._ticks += 1
            if self._ticks >= self._until:
                self.read()
        return 1

    def read(self) -> None:
        """Write what is new."""
        if self._dump is None:
            return
        began = time.perf_counter_ns()
        recording = self._recording
        try:
            n = self._write(pickle.loads(self._dump(True, False)))
        except Exception as exc:  # a torch that is not like any known one
            self._dump = None
            recording.failed("collectives", exc)
            return
        recording.recorder.span(self._waited, began, began, 0, _waited_ns())
        ended = time.perf_counter_ns()
        recording.recorder.span(self._look, began, ended)
        recording.recorder.timed(n, ended - began)
        by_time = _AT_LEAST_EVERY_NS * self._ticks // max(began - self._read_ns, 1) if self._read_ns else 1
        by_number = _NEW * self._ticks // max(n, 1)
        self._until = max(min(by_number, by_time, 4 * self._ticks), 1)
        self._ticks, self._read_ns = 0, began

    def _write(self, trace: Mapping[str, Any]) -> int:
        """Write the entries that are new; returns how many."""
        offset = time.time_ns() - time.perf_counter_ns()
        span = self._recording.recorder.span
        entries, last, n = trace.get("entries") or (), self._last, 0
        for entry in entries:
            if entry["record_id"] <= last or entry["is_p2p"]:
                continue
            n += 1
            begun = entry["time_created_ns"] - offset
            done = entry.get("time_discovered_completed_ns")
            ended = done - offset if done else begun
            span(self._name(entry["profiling_name"]), begun, max(begun, ended), self._described(entry), entry["collective_seq_id"])
        if entries:
            self.lost += max(entries[0]["record_id"] - last - 1, 0)
            self._last = entries[-1]["record_id"]
        return n

    def _name(self, profiled: str) -> int:
        found = self._names.get(profiled)
        if found is None:
            backend, _, name = profiled.rpartition(":")
            found = self._names[profiled] = self._recording.recorder.name(backend, name, kind=_KIND, value="number")
        return found

    def _described(self, entry: Mapping[str, Any]) -> int:
        sizes, dtypes = entry["input_sizes"], entry["input_dtypes"]
        key = (entry["process_group"], *map(tuple, sizes), *dtypes)
        found = self._arguments.get(key)
        if found is None:
            name, description = entry["process_group"]
            bytes_ = _bytes(sizes, dtypes)
            about = {"group": name, **({"description": description} if description not in ("", "undefined") else {})}
            found = self._recording.recorder.arguments({**about, **({"bytes": bytes_} if bytes_ != UNKNOWN else {})})
            self._arguments[key] = found
        return found


def _waited_ns() -> int:
    """How long this thread has been ready to run and had no processor; -1 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:  # decoding it would call functions in Python, which torch.compile looks at
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return UNKNOWN


def _bytes(sizes: Any, dtypes: Any) -> int:
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=False):
        if dtype not in _BYTES:
            return UNKNOWN
        one = _BYTES[dtype]
        for length in shape:
            one *= length
        total += one
    return total
