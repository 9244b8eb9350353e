"""The collectives that ranks exchange: every one that torch's own flight recorder has seen, DDP's
and FSDP's too, with when it was begun.

The recorder keeps the last 2,000 of a process, of each back end; before torch 2.11 if it is
switched on. It is read, never emptied: the program's tools find in it what they would without
voirkit. That takes some 5 us an entry, of all that it holds, so it is read when about three
quarters of it are new, in the thread that trains, and at the end. What a process that is killed
began since then is not known.

Its functions are private ones of torch, checked with torch 2.15. Where they are not there, or it is
switched off, the public functions of torch.distributed are recorded as they are called; what DDP
begins by itself is then not seen.

A record begins when the collective was begun, and lasts as long as it ran on the device where the
recorder has taken that (NCCL under ``TORCH_NCCL_ENABLE_TIMING``). When it began to run there is
known no better than to the 100 ms in which torch's watchdog looks. Checked with what such a
recorder gives, not on a device.
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

# Of the records, as the ranks instrument reads them: category is the back end, name the collective,
# value its number in the group.
_KIND = "collective"
# behind the group's name where functions that were called are recorded: their numbers are others
# than the recorder's
_CALLED = " (calls)"
_MESSAGES = ("send", "recv", "send_object_list", "recv_object_list")  # between two ranks
_NEW = 1_500  # entries, of the 2,000 that are kept by default
_AT_LEAST_EVERY_NS = 10_000_000_000
_OFTENEST = 1_000  # times as long as reading takes, so that it is a thousandth of the time
# until then it is known how long a collective took, unless nobody looks
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
    """The functions that dump torch's flight recorders, without stacks, as far as this torch has
    them; TypeError where it has others.

    gloo's, that of NCCL up to torch 2.14 (``TORCH_DIST_USE_NCCL2=0``), and those of the two that
    stand for NCCL since.

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
    """One of torch's flight recorders, and how far it has been read.

    Args:
        dump: Gives what it holds.

    Attributes:
        lost: How many entries were no longer kept when they were to be read.
        last: Number of the last entry that was read, -1 for none.
    """

    def __init__(self, dump: Callable[[], bytes]) -> None:
        self._dump = dump
        self.last = -1
        self.lost = 0
        self._has_times = False

    def read(self, over: bool) -> tuple[list[Mapping[str, Any]], int]:
        """The entries that are new and as complete as they will be, and how many are new. ``over``:
        whether this is the last time. Raises TypeError: it is none that is known."""
        entries = pickle.loads(self._dump()).get("entries") or []
        if not entries:
            return [], 0
        if "collective_seq_id" not in entries[0]:
            raise TypeError("a recorder of torch 2.3")
        if entries[-1]["record_id"] < self.last:
            self.last = -1  # the program has emptied it
        self.lost += max(entries[0]["record_id"] - self.last - 1, 0)
        new = [entry for entry in entries if entry["record_id"] > self.last]
        self._has_times = self._has_times or any("duration_ms" in entry for entry in new)
        n = _count_complete(new) if self._has_times and not over else len(new)
        if n:
            self.last = new[n - 1]["record_id"]
        return new[:n], len(new)


def _count_complete(entries: list[Mapping[str, Any]]) -> int:
    """How many entries there are before the first that may still get its duration."""
    young_ns = time.time_ns() - _RETIRED_NS
    for n, entry in enumerate(entries):
        if not entry["retired"] and entry["time_created_ns"] > young_ns:
            return n
    return len(entries)


class CollectiveRecording:
    """Writes collectives into the trace plane. ``recording``: the recording that this is a part
    of."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._look = recording.phase("voirkit", "look")
        self._ran = recording.recorder.name("processor", "ran", kind=_KIND, value="ns")
        self._waited = recording.recorder.name("processor", "waited", kind=_KIND, value="ns")
        self._names: dict[str, int] = {}
        self._arguments: dict[tuple[Any, ...], int] = {}
        self._recorders: list[FlightRecorder] = []
        self._backend = ""
        self._numbers: dict[str, int] = {}  # by group: of the last collective that was called
        # how often it was asked since it was read, and how often it is until then
        self._ticks = self._until = 1
        self._read_ns = 0

    @property
    def lost(self) -> int:
        """How many were no longer kept when they were to be read."""
        return sum(recorder.lost for recorder in self._recorders)

    def start_reading(self, backend: str) -> None:
        """A process group has been made, with that back end (``gloo``, ``cuda:nccl``,
        ``cpu:gloo,cuda:nccl``)."""
        if not self._backend:
            backends = {part.rpartition(":")[2] for part in backend.split(",")}
            self._backend = ",".join(sorted(backends))
            functions = getattr(self._recording.torch._C, "_distributed_c10d", None)
            self._recorders = [FlightRecorder(dump) for dump in flight_recorders(functions)]
            after_children(self.read)

    def tick(self, *_: object) -> int:
        """Called once or several times a step, by who exchanges something."""
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
        """A public function of torch.distributed has been called: a collective of its own where no
        recorder has seen any."""
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
        except Exception as exc:  # a torch that is not like any known one
            self._recording.failed("collectives", exc)

    def _group(
        self, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> str | None:
        """Name of the group of a call; None where this process is not in it."""
        ranks: Any = sys.modules["torch.distributed.distributed_c10d"]
        parameters = function.__code__.co_varnames[: len(arguments)]
        group = dict(zip(parameters, arguments, strict=False)).get("group", keywords.get("group"))
        group = ranks._get_default_group() if group is None else group
        return str(ranks._world.pg_names[group]) if ranks.get_rank(group) >= 0 else None

    def read(self, over: bool = True) -> None:
        """Write what is new. ``over``: whether this is the last time."""
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
        except Exception as exc:  # a torch that is not like any known one
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
            if "," in self._backend:  # each of them counts the group's collectives by itself
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
    """How long this thread has had a processor, and was ready to run and had none; -1 where the
    system does not tell."""
    try:
        # decoding it would call functions in Python, which torch.compile looks at
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
