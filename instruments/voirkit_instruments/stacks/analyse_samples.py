"""Readers for the output of perf, py-spy and the sampler in the program. Checked with perf 6.1 and
py-spy 0.4.3.

Each line of ``perf script`` is a sample. The samples are read in batches, so that memory does not
grow with the recording::

    9471/9471    650.598076006:   2004008 cpu-clock:    7fb78a9eb289 deflate (/lib/libz.so.1.2)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.stacks.analyse_frames import (
    ELSEWHERE,
    Frame,
    Name,
    Stacks,
    operation_and_phase,
    parse_frame,
    split_place,
)

BATCH = 100_000  # samples in a batch; some 3 MB
_FIELDS = "pid,tid,time,event,period,ip,sym,dso"

_SAMPLE = re.compile(
    r"\s*(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+(?P<s>\d+)\.(?P<fraction>\d{1,9}):\s+"
    r"(?:(?P<period>\d+)\s+(?P<event>\S+):\s+)?(?P<address>[0-9a-f]+)\s+(?P<place>\S.*\))\s*"
)
_LOST = re.compile(r"PERF_RECORD_LOST(?:_SAMPLES)?\s+lost\s+(\d+)")
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
# A bare address instead of a name. It has a digit, since C functions may be called `add` or
# `deadbeef`.
_ADDRESS = re.compile(r"0x[0-9a-f]+|(?=[a-f]*\d)[0-9a-f]{8,16}")
_GENERATED = re.compile(r"/tmp/perf-\d+\.map$|//anon$|/memfd:")
_KERNEL = 1 << 63  # addresses from here on are the kernel's, on x86-64 and 64-bit ARM

UNKNOWN = "?"
# stands for machine code that the program generated, as oneDNN and Python's support for perf do
JIT = "[jit]"


class Sample(NamedTuple):
    """One sample of perf."""

    pid: int
    tid: int
    time_ns: int  # on the clock that perf was told to use
    # the event that was counted, without modifiers (``cpu-clock``, ``cycles``); empty if the line
    # names no event
    event: str
    # how much of the event this sample stands for: nanoseconds for ``cpu-clock``, counts for other
    # events; 1 if the line does not say
    period: int
    user_only: bool  # True if the kernel was left out (``cpu-clock:u``)
    function: str | None  # the function's name, demangled; None if the library has no name for it
    # the name of the library's file without the folder, or ``[kernel.kallsyms]``, ``[jit]``; ``?``
    # if not known
    library: str
    kernel: bool  # True if the kernel was running


def parse_sample(line: str) -> Sample | None:
    """Parse the sample in a line; None if the line has none."""
    match = _SAMPLE.fullmatch(line)
    if match is None:
        return None
    pid, tid, seconds, fraction, period, event, address, place = match.groups()
    symbol, library = split_place(place)
    name, user_only = _event(event or "")
    time_ns = int(seconds + fraction.ljust(9, "0"))
    is_kernel = int(address, 16) >= _KERNEL
    function, library = _function(symbol), _library(library)
    amount = int(period or 1)
    return Sample(
        int(pid), int(tid), time_ns, name, amount, user_only, function, library, is_kernel
    )


def lost_samples(line: str) -> int:
    """Return the number of lost samples that a line reports; 0 if it reports none."""
    match = _LOST.search(line)
    return int(match[1]) if match else 0


def _function(symbol: str) -> str | None:
    symbol = _OFFSET.sub("", symbol)
    if not symbol or symbol == "[unknown]" or _ADDRESS.fullmatch(symbol):
        return None
    return symbol


def _library(dso: str) -> str:
    dso = dso.removesuffix(" (deleted)")
    if dso in ("", "[unknown]", "inlined"):
        return UNKNOWN
    # such as [kernel.kallsyms], [vdso], [nf_tables], and perf's [kernel.kallsyms]_stext
    if dso.startswith("["):
        return dso.partition("]")[0] + "]"
    if _GENERATED.match(dso):
        return JIT
    return dso.rstrip("/").rpartition("/")[2] or UNKNOWN


def _event(text: str) -> tuple[str, bool]:
    """Return (name, True if the kernel was left out) of an event: ``cpu-clock:u``, ``cycles:ppp``,
    ``cpu_core/cycles/u``."""
    if "/" in text:
        _, name, modifiers = [*text.split("/"), "", ""][:3]
    else:
        name, _, modifiers = text.partition(":")
    return name, "u" in modifiers and "k" not in modifiers


class Code(NamedTuple):
    """The function and library in which a sample was taken."""

    function: str | None  # the function's name; None if the library has none for it
    library: str  # the name of the library's file
    kernel: bool  # True for code of the kernel


class Batch(NamedTuple):
    """A batch of samples in the order in which they were taken; arrays of shape (n,)."""

    time_ns: Array
    pid: Array
    tid: Array
    code: Array  # index into ``PerfReader.codes``
    event: Array  # index into ``PerfReader.events``
    period: Array  # how much of the event each sample stands for


@dataclass
class PerfReader:
    """Reader of lines of ``perf script``, with the codes, events and totals that it has found."""

    codes: dict[Code, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)  # number of each event, by name
    samples: int = 0
    lost: int = 0  # number of samples that perf reports as lost
    unread: int = 0  # lines that hold neither a sample nor a report of lost samples
    user_only: bool = False  # True if the kernel was left out

    def batches(self, lines: Iterable[str], size: int = BATCH) -> Iterator[Batch]:
        """Yield batches of at most ``size`` samples."""
        rows: list[tuple[int, int, int, int, int, int]] = []
        for line in lines:
            sample = parse_sample(line)
            if sample is None:
                n_lost = lost_samples(line)
                self.lost += n_lost
                if not n_lost and line.strip():
                    self.unread += 1
                continue
            self.user_only |= sample.user_only
            code = Code(sample.function, sample.library, sample.kernel)
            code_number = self.codes.setdefault(code, len(self.codes))
            event = self.events.setdefault(sample.event, len(self.events))
            rows.append((sample.time_ns, sample.pid, sample.tid, code_number, event, sample.period))
            if len(rows) == size:
                yield self._batch(rows)
                rows = []
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[tuple[int, int, int, int, int, int]]) -> Batch:
        self.samples += len(rows)
        return Batch(*np.array(rows, dtype=np.int64).T)


def perf_script(data: str) -> Iterator[str]:
    """Yield the lines that ``perf script`` prints for a recording.

    The perf of this machine is used, whatever the run's record says. Raises OSError: perf cannot be
    run, or cannot read the file; the message is what perf printed.
    """
    command = [
        "perf",
        "script",
        "--force",
        "--show-lost-events",
        "--ns",
        "--no-inline",
        "--input",
        data,
        "--fields",
        _FIELDS,
    ]
    # perf uses neither the user's settings nor a symbol server (debuginfod): names that are not in
    # the files stay unknown.
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PERF_CONFIG": os.devnull, "PAGER": "cat"}
    environment.pop("DEBUGINFOD_URLS", None)
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        yield from process.stdout
        code = process.wait()
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()
    if code:
        reason = words[-300:] or "it printed nothing"
        raise OSError(f"perf script ended with {code}: {reason}")


EVENT = "stacks"  # name of the event for counts without times
_THREAD = re.compile(r"thread \((?P<tid>\d+|0x[0-9A-Fa-f]+)\)(?:: (?P<name>.*))?")


@dataclass
class Thread:
    """The stacks of one thread."""

    tid: int  # native id of the thread
    name: str  # name that Python gives it
    # (from, to, number of the stack), in microseconds of py-spy's clock, ascending
    runs: list[tuple[int, int, int]] = field(default_factory=list)


def read_chrome_trace(path: str, stacks: Stacks) -> list[Thread]:
    """Read the threads from a file of ``py-spy record --format chrometrace --threads --idle``.

    An event says that a frame began or ended between two samples; the frames open between two
    events of a thread are its stack. A thread that has ended keeps its last stack to the end of the
    file; its last sighting is noted separately.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not in py-spy's format.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        events = json.load(file)
    by_ident: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["ph"] in "BE":
            by_ident.setdefault(event["tid"], []).append(event)
    threads: dict[int, Thread] = {}
    for ident, edges in by_ident.items():
        for start_us, end_us, frames in _between(edges):
            root = _THREAD.fullmatch(frames[0].name)
            if root is None:
                raise ValueError(f"a stack of thread {ident} does not begin with its thread")
            tid = int(root["tid"], 0)
            name = root["name"] or ""
            thread = threads.setdefault(tid, Thread(tid, name))
            thread.name = thread.name or name  # the thread may get its name late
            number = stacks.number(frames[1:])
            if thread.runs and thread.runs[-1][1:] == (start_us, number):
                start_us, _, _ = thread.runs.pop()
            thread.runs.append((start_us, end_us, number))
    return list(threads.values())


def _between(edges: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, list[Frame]]]:
    """Yield (from, to, frames) of each stack; frames begin with the outermost."""
    stack: list[Frame] = []
    since_us = 0
    for edge in edges:
        now_us = int(edge["ts"])
        if now_us != since_us and stack:
            yield since_us, now_us, list(stack)
        since_us = now_us
        if edge["ph"] == "B":
            args = edge["args"]
            stack.append(Frame(edge["name"], args["filename"], args.get("line") or 0))
        elif stack:
            stack.pop()


def read_sampler(lines: Iterable[str], stacks: Stacks) -> dict[int, tuple[str, Array, Array]]:
    """Read the samples of the sampler in the program. Returns, by thread, its name, the times of
    its samples in nanoseconds and the stacks that they saw.

    A sample that waited for the GIL shows the code that held it. It counts also for the samples
    that were missed during the wait, if the thread existed before. Counted once, sleeping threads
    would seem to be most of a program that computes.
    """
    frames: list[Frame] = []
    numbers: list[int] = []  # numbers in ``stacks``, by the sampler's number of the stack
    names: dict[int, str] = {}
    samples: dict[int, tuple[list[int], list[int]]] = {}
    before: set[int] = set()
    for line in lines:
        if not line.endswith("\n"):
            break  # incomplete: the program was killed while it wrote this line
        entry: dict[str, Any] = json.loads(line)
        if "t" in entry:
            for tid, stack in entry["seen"]:
                n = 1
                if tid in before:
                    n += entry.get("waited", 0)
                times_ns, stacks_seen = samples.setdefault(tid, ([], []))
                times_ns += [entry["t"]] * n
                stacks_seen += [numbers[stack]] * n
            before = {tid for tid, _ in entry["seen"]}
        elif "frame" in entry:
            frames.append(Frame(*entry["frame"]))
        elif "stack" in entry:
            numbers.append(stacks.number([frames[number] for number in entry["stack"]]))
        else:
            names[entry["thread"]] = entry["name"]
    threads = {}
    for tid, (times_ns, stacks_seen) in samples.items():
        times = np.array(times_ns, dtype=np.int64)
        threads[tid] = names.get(tid, ""), times, np.array(stacks_seen, dtype=np.int64)
    return threads


def read_raw(lines: Iterable[str], stacks: Stacks) -> Iterator[tuple[int, str, int, int]]:
    """Yield (thread, its name, stack, number of samples) from a file of ``py-spy record --format
    raw --threads --full-filenames``, which has no times."""
    for line in lines:
        text, _, count = line.rstrip("\n").rpartition(" ")
        root, *frames = text.split(";")
        thread = _THREAD.fullmatch(root)
        if thread is not None and count.isdigit():
            stack = stacks.number([parse_frame(frame) for frame in frames])
            yield int(thread["tid"], 0), thread["name"] or "", stack, int(count)


def parse_native_stack(line: str) -> tuple[list[Frame], int] | None:
    """Parse a line of ``py-spy record --native --format raw``. Returns (frames from the outermost,
    number of samples), or None if the line is no stack."""
    text, _, count = line.rstrip("\n").rpartition(" ")
    if not count.isdigit() or not text:
        return None
    frames = [parse_frame(part) for part in text.split(";")]
    # The entry `process 30201:"main.py"`, which has no file, is left out.
    return [frame for frame in frames if frame.file], int(count)


def count_native_stacks(lines: Iterable[str], operations: Collection[str]) -> dict[str, Any]:
    """Return ``samples``, ``unread`` and ``rows`` of native stacks, in the form of the counts of
    perf's samples.

    The stacks have no times. An operation is recognised by a class or function on the stack with a
    name that the trace has, and a phase by torch's own functions. On Python 3.10 py-spy writes no
    classes: they are looked up in the source.
    """
    counts: dict[Name, dict[tuple[str, str], int]] = {}
    samples = 0
    unread = 0
    for line in lines:
        parsed = parse_native_stack(line)
        if parsed is None or not parsed[0]:
            unread += bool(line.strip())
            continue
        frames, n = parsed
        samples += n
        leaf = frames[-1]
        function = "" if leaf.is_unnamed else leaf.name
        code = function, leaf.file.rpartition("/")[2] or UNKNOWN
        for key in operation_and_phase(frames, operations) or [(ELSEWHERE, "")]:
            codes = counts.setdefault(key, {})
            codes[code] = codes.get(code, 0) + n
    rows = []
    for (group, name), codes in sorted(counts.items()):
        entries = [_entry(function, library, n) for (function, library), n in sorted(codes.items())]
        rows.append({"group": group, "name": name, "elapsed_ns": None, "n": None, "code": entries})
    return {"samples": samples, "unread": unread, "rows": rows}


def _entry(function: str, library: str, n: int) -> dict[str, Any]:
    return {
        "function": function or None,
        "library": library,
        "kernel": False,
        "other_threads": False,
        "events": {EVENT: [n, n]},
    }
