"""Reads the trace that torch's profiler writes (Chrome's format, Kineto), and brings its times onto the run's clock.

It is read event by event: the file may be larger than memory.

Checked with what torch 2.15 writes.
"""

from __future__ import annotations

import gzip
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array

OPERATOR, ANNOTATION, RUNTIME, KERNEL, MEMORY = range(5)
CATEGORIES = ("operator", "annotation", "runtime", "kernel", "memory")
_CATEGORY = {
    "cpu_op": OPERATOR, "user_annotation": ANNOTATION, "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME,
    "hip_runtime": RUNTIME, "xpu_runtime": RUNTIME, "xpu_driver": RUNTIME,
    "kernel": KERNEL, "gpu_memcpy": KERNEL, "gpu_memset": KERNEL, "cpu_instant_event": MEMORY,
}  # fmt: skip
MOST_EVENTS = 4_000_000
_CHUNK = 1 << 20
_US = 1000
_BASE = re.compile(r'"baseTimeNanoseconds":\s*(\d+)')


class Events:
    """The events of one trace; arrays of shape (n,), in the order of the file.

    Attributes:
        category: One of ``OPERATOR``, ``ANNOTATION`` (what the program or torch calls a part of it), ``RUNTIME`` (calls that start
            work on a device), ``KERNEL`` (that work) and ``MEMORY``.
        name: Index into ``names``.
        start_ns: Nanoseconds of the wall clock.
        duration_ns: Nanoseconds.
        tid: The thread; of a kernel its stream.
        device: Of kernels and memory, else -1.
        linked: What a kernel and the call that started it have in common; else -1.
        bytes: Of memory: allocated, negative if freed.
        names: By index.
        left_out: Events beyond ``MOST_EVENTS``.
    """

    def __init__(self, path: str) -> None:
        """Read a file; ``path`` may end in ``.gz``.

        Raises:
            OSError: It cannot be read.
            ValueError: It is no such trace, or torn.
        """
        columns = {key: array("q") for key in ("category", "name", "tid", "device", "linked", "bytes")}
        times = {key: array("d") for key in ("ts", "dur")}
        names: dict[str, int] = {}
        self.left_out = 0
        self._base_ns = 0
        for event in self._read(path):
            category = _CATEGORY.get(event.get("cat", ""))
            if category is None or event.get("ph") not in ("X", "i"):
                continue
            if len(times["ts"]) >= MOST_EVENTS:
                self.left_out += 1
                continue
            more = event.get("args") or {}
            times["ts"].append(event["ts"])
            times["dur"].append(event.get("dur", 0))
            columns["category"].append(category)
            columns["name"].append(names.setdefault(event["name"], len(names)))
            columns["tid"].append(_whole(event.get("tid")))
            columns["device"].append(_whole(more.get("device", more.get("Device Id"))))
            columns["linked"].append(_whole(more.get("correlation")))
            columns["bytes"].append(_whole(more.get("Bytes"), 0))
        plain: dict[str, Array] = {key: np.frombuffer(values, np.int64) for key, values in columns.items()}
        self.category, self.name, self.tid = plain["category"], plain["name"], plain["tid"]
        self.device, self.linked, self.bytes = plain["device"], plain["linked"], plain["bytes"]
        self.start_ns: Array = _nanoseconds(times["ts"]) + self._base_ns
        self.duration_ns: Array = _nanoseconds(times["dur"])
        self.names = list(names)

    def _read(self, path: str) -> Iterator[dict[str, Any]]:
        open_file: Any = gzip.open if path.endswith(".gz") else open
        with open_file(path, "rt", encoding="utf-8", errors="replace") as file:
            head = ""
            while '"traceEvents"' not in head:
                chunk = file.read(_CHUNK)
                if not chunk:
                    raise ValueError("it is no trace of torch's profiler")
                head += chunk
            before, _, rest = head.partition('"traceEvents"')
            rest = yield from _objects(rest[rest.index("[") + 1 :], file)
            found = _BASE.search(before) or _BASE.search(rest + file.read())
            self._base_ns = int(found[1]) if found else 0


def _objects(text: str, file: IO[str]) -> Any:
    """The objects of a list, of which a beginning has been read; returns what was read behind it."""
    decode, at = json.JSONDecoder().raw_decode, 0
    while True:
        while at < len(text) and text[at] in " \n\r\t,":
            at += 1
        if at < len(text) and text[at] == "]":
            return text[at:]
        try:
            found, at = decode(text, at)
        except ValueError:
            chunk = file.read(_CHUNK)
            if not chunk:
                raise ValueError("it is torn") from None
            text, at = text[at:] + chunk, 0
        else:
            yield found


def _whole(value: Any, otherwise: int = -1) -> int:
    return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else otherwise


def _nanoseconds(microseconds: array[float]) -> Array:
    return np.round(np.frombuffer(microseconds, np.float64) * 1000).astype(np.int64)


class Clock(NamedTuple):
    """From the wall clock, as torch's profiler has it, to the run's.

    Attributes:
        offset_ns: To be added.
        error_ns: By how much a time may be wrong; the marks say nothing closer.
    """

    offset_ns: int
    error_ns: int

    def __call__(self, at_ns: Array) -> Array:
        """Times on the run's clock."""
        return at_ns + self.offset_ns


def find_clock(seen_ns: Array, marks: Sequence[Sequence[int]]) -> Clock:
    """Find the offset that all marks agree with.

    Args:
        seen_ns: Where the profiler has them, ascending; shape (n,).
        marks: For each, the run's clock before and after it.

    Raises:
        ValueError: There are none, or not as many.

    A mark lies between its two readings of the run's clock, so each bounds the offset from both sides; what all of them leave open is the
    error. If they contradict each other (one of the clocks was corrected meanwhile), the middle one counts, and the error is the largest.
    """
    if not len(seen_ns) or len(seen_ns) != len(marks):
        raise ValueError(f"of {len(marks)} marks {len(seen_ns)} were recorded")
    seen_ns = np.asarray(seen_ns, np.int64)
    step = _US if not (seen_ns % _US).any() else 1  # torch 2.1 cuts times to whole microseconds
    between = np.asarray(marks, np.int64) - seen_ns[:, None]
    low, high = int(between[:, 0].max()) - (step - 1), int(between[:, 1].min())
    if low <= high:
        return Clock((low + high) // 2, (high - low + 1) // 2 + step)
    middles = between.mean(axis=1)
    offset = int(np.median(middles))
    return Clock(offset, int(np.abs(middles - offset).max()) + step)
