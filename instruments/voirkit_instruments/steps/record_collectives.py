"""Recorder of the collectives that ranks exchange, with their start times: every collective in
torch's own flight recorder, including those of DDP and FSDP.

A flight recorder keeps the last 2,000 collectives of each backend in a process; before torch 2.11
only if it is switched on. Reading leaves its entries in place, so the program's own tools find what
they would without voirkit. A read takes about 5 us for each entry that the recorder holds. It is
therefore read in the training thread when about three quarters of the entries are new, and at the
end of the run. If the process is killed, the collectives since the last read are lost.

The functions that read a flight recorder are private to torch; checked with torch 2.15. If they are
missing, or the recorder is switched off, calls of the public functions of torch.distributed are
recorded instead. Collectives that DDP starts internally are then missing.

A record starts when the host issued the collective. It lasts as long as the collective ran on the
device, if the recorder measured that (NCCL with ``TORCH_NCCL_ENABLE_TIMING``). The start on the
device is known only to within the 100 ms at which torch's watchdog polls. Checked with the output
of such a recorder, not on a device.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from voirkit.processes.children import after_children
from voirkit_instruments.steps.record_spans import UNKNOWN, Recording

# kind of the records, which the ranks instrument reads: category is the backend, name the
# collective, value its sequence number in the group
_KIND = "collective"
# suffix of the group's name in records of function calls, whose numbers differ from the flight
# recorder's
_CALLED = " (calls)"
# functions that exchange data between two ranks only, and are not recorded
_MESSAGES = ("send", "recv", "send_object_list", "recv_object_list")
_NEW = 1_500  # a recorder is read after this many new entries; by default it keeps 2,000
_AT_LEAST_EVERY_NS = 10_000_000_000
# minimum interval between time-based reads, as a multiple of a read's duration: such reads take at
# most a thousandth of the time
_OFTENEST = 1_000
# Age from which an entry counts as final. By then torch's watchdog, if it runs, has set the
# entry's duration.
_RETIRED_NS = 1_000_000_000
_BYTES = {
    "Double": 8,
    "Long": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "Float": 4,
    "Int": 4,
    "Half": 2,
    "BFloat16": 2,
    "Short": 2,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Float8_e5m2": 1,
    "Float8_e4m3fn": 1,
}


def flight_recorders(functions: Any) -> Iterator[Callable[[], bytes]]:
    """Yield, for each flight recorder of this torch version, a function that dumps it without
    stacks. The function raises TypeError if this version's recorder differs.

    The recorders are gloo's, NCCL's up to torch 2.14 (``TORCH_DIST_USE_NCCL2=0``), and those of the
    two backends that replace NCCL since.

    Args:
        functions: ``torch._C._distributed_c10d``.
    """
    for name, arguments in (
        ("_dump_fr_trace", ()),
        ("_dump_nccl_trace", ()),
        ("_dump_fr_trace", (False, "nccl2")),
        ("_dump_fr_trace", (False, "nccl-lazy")),
    ):
        dump = getattr(functions, name, None)
        if dump is not None:
            yield partial(dump, True, False, *arguments)


class FlightRecorder:
    """Reader of one of torch's flight recorders, which remembers how far it has read.

    Args:
        dump: Returns the recorder's pickled content.

    Attributes:
        lost: Number of entries that the recorder had discarded before they were read.
        last: Number of the last entry that was read, -1 if none was.
    """

    def __init__(self, dump: Callable[[], bytes]) -> None:
        self._dump = dump
        self.last = -1
        self.lost = 0
        self._has_times = False

    def read(self, over: bool) -> tuple[list[Mapping[str, Any]], int]:
        """Return the new entries whose data is final, and the number of all new entries. ``over``:
        True for the last read, which returns all of them. Raises TypeError: the recorder has an
        unknown format."""
        entries = pickle.loads(self._dump()).get("entries") or []
        if not entries:
            return [], 0
        if "collective_seq_id" not in entries[0]:
            raise TypeError("a recorder of torch 2.3")
        if entries[-1]["record_id"] < self.last:
            self.last = -1  # all entries are new: the program has emptied the recorder
        self.lost += max(entries[0]["record_id"] - self.last - 1, 0)
        new = [entry for entry in entries if entry["record_id"] > self.last]
        self._has_times = self._has_times or any("duration_ms" in entry for entry in new)
        n = _count_complete(new) if self._has_times and not over else len(new)
        if n:
            self.last = new[n - 1]["record_id"]
        return new[:n], len(new)


def _count_complete(entries: list[Mapping[str, Any]]) -> int:
    """Count the entries before the first one whose duration may still be set."""
    young_ns = time.time_ns() - _RETIRED_NS
    for n, entry in enumerate(entries):
        if not entry["retired"] and entry["time_created_ns"] > young_ns:
            return n
    return len(entries)


class CollectiveRecording:
    """Writer of collectives into the trace. ``recording``: the state of the steps instrument, which
    this object is a part of."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._look = recording.phase("voirkit", "look")
        self._ran = recording.recorder.name("processor", "ran", kind=_KIND, value="ns")
        self._waited = recording.recorder.name("processor", "waited", kind=_KIND, value="ns")
        self._names: dict[str, int] = {}
        self._arguments: dict[tuple[Any, ...], int] = {}
        self._recorders: list[FlightRecorder] = []
        self._backend = ""
        self._numbers: dict[str, int] = {}  # by group: number of the last recorded call
        # calls of tick() since the last read, and the number of calls that triggers the next read
        self._ticks = self._until = 1
        self._read_ns = 0

    @property
    def lost(self) -> int:
        """Number of entries that the flight recorders had discarded before they were read."""
        return sum(recorder.lost for recorder in self._recorders)

    def start_reading(self, backend: str) -> None:
        """Begin to read the flight recorders: a process group has been created with this
        ``backend`` (``gloo``, ``cuda:nccl``, ``cpu:gloo,cuda:nccl``)."""
        if not self._backend:
            backends = {part.rpartition(":")[2] for part in backend.split(",")}
            self._backend = ",".join(sorted(backends))
            functions = getattr(self._recording.torch._C, "_distributed_c10d", None)
            self._recorders = [FlightRecorder(dump) for dump in flight_recorders(functions)]
            after_children(self.read)

    def tick(self, *_: object) -> int:
        """Read the flight recorders if it is time to. Called once or several times a step, when
        ranks exchange data. Returns 1 in place of a start time."""
        if self._backend:
            self._ticks += 1
            if self._ticks >= self._until:
                self.read(over=False)
        return 1

    def called(
        self,
        start_ns: int,
        end_ns: int,
        function: Any,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> None:
        """Record a call of a public function of torch.distributed as a collective, unless a flight
        recorder has entries: these are then recorded instead."""
        self.tick()
        if (
            not self._backend
            or any(recorder.last >= 0 for recorder in self._recorders)
            or function.__name__ in _MESSAGES
        ):
            return
        try:
            group = self._group(function, arguments, keywords)
            if group is not None:
                number = self._numbers[group] = self._numbers.get(group, 0) + 1
                name = self._name(f"{self._backend}:{function.__name__}")
                n_bytes = self._recording.bytes_of((*arguments, *keywords.values()))
                args = self._described(group + _CALLED, "", n_bytes)
                self._recording.recorder.span(name, start_ns, end_ns, args, number)
        except Exception as exc:  # a torch version with different internals
            self._recording.failed("collectives", exc)

    def _group(
        self, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> str | None:
        """Return the name of the process group of a call; None if this process is not in the
        group."""
        ranks: Any = sys.modules["torch.distributed.distributed_c10d"]
        parameters = function.__code__.co_varnames[: len(arguments)]
        group = dict(zip(parameters, arguments, strict=False)).get("group", keywords.get("group"))
        group = ranks._get_default_group() if group is None else group
        return str(ranks._world.pg_names[group]) if ranks.get_rank(group) >= 0 else None

    def read(self, over: bool = True) -> None:
        """Write the new entries of all flight recorders to the trace. ``over``: True for the last
        read."""
        if not self._backend:
            return
        start_ns = time.perf_counter_ns()
        recording, n = self._recording, 0
        try:
            for recorder in list(self._recorders):
                try:
                    entries, new = recorder.read(over)
                except TypeError:
                    self._recorders.remove(recorder)
                else:
                    self._write(entries)
                    n += new
        except Exception as exc:  # a torch version with different internals
            self._recorders = []
            recording.failed("collectives", exc)
        for name, spent_ns in zip((self._ran, self._waited), _scheduled_ns(), strict=True):
            recording.recorder.span(name, start_ns, start_ns, 0, spent_ns)
        end_ns = time.perf_counter_ns()
        recording.recorder.span(self._look, start_ns, end_ns)
        recording.recorder.timed(n, end_ns - start_ns)
        every_ns = max(_AT_LEAST_EVERY_NS, _OFTENEST * (end_ns - start_ns))
        by_time = 1
        if self._read_ns:
            by_time = every_ns * self._ticks // max(start_ns - self._read_ns, 1)
        by_number = _NEW * self._ticks // max(n, 1)
        self._until = max(min(by_number, by_time, 4 * self._ticks), 1)
        self._ticks, self._read_ns = 0, start_ns

    def _write(self, entries: list[Mapping[str, Any]]) -> None:
        offset_ns = time.time_ns() - time.perf_counter_ns()
        for entry in entries:
            if entry["is_p2p"]:
                continue
            group, description = entry["process_group"]
            profiled = entry["profiling_name"]
            if "," in self._backend:
                # The backend becomes part of the name, since each backend numbers its
                # collectives separately.
                group = f"{group} ({profiled.rpartition(':')[0]})"
            n_bytes = _bytes(entry["input_sizes"], entry["input_dtypes"])
            args = self._described(group, description, n_bytes)
            start_ns = entry["time_created_ns"] - offset_ns
            end_ns = start_ns + round(entry.get("duration_ms", 0) * 1e6)
            name = self._name(profiled)
            self._recording.recorder.span(name, start_ns, end_ns, args, entry["collective_seq_id"])

    def _name(self, profiled: str) -> int:
        number = self._names.get(profiled)
        if number is None:
            backend, _, name = profiled.rpartition(":")
            number = self._names[profiled] = self._recording.recorder.name(
                backend, name, kind=_KIND, value="number"
            )
        return number

    def _described(self, group: str, description: str, n_bytes: int) -> int:
        key = (group, description, n_bytes)
        number = self._arguments.get(key)
        if number is None:
            fields: dict[str, Any] = {"group": group}
            if description not in ("", "undefined"):
                fields["description"] = description
            if n_bytes != UNKNOWN:
                fields["bytes"] = n_bytes
            number = self._arguments[key] = self._recording.recorder.arguments(fields)
        return number


def _scheduled_ns() -> tuple[int, int]:
    """Return the nanoseconds that this thread ran on a processor, and those that it was runnable
    but waited for one; -1 if the system does not report them."""
    try:
        # In binary mode, because decoding calls functions in Python, which torch.compile would
        # trace.
        with open("/proc/thread-self/schedstat", "rb") as file:
            words = file.read().split()
        return int(words[0]), int(words[1])
    except (OSError, ValueError, IndexError):
        return UNKNOWN, UNKNOWN


def _bytes(sizes: Any, dtypes: Any) -> int:
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=False):
        if dtype not in _BYTES:
            return UNKNOWN
        size = _BYTES[dtype]
        for length in shape:
            size *= length
        total += size
    return total
