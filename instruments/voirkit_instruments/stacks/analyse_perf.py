"""Reads what ``perf script`` prints, a line for each sample, in batches: memory does not grow with the recording. Checked with perf 6.1.

    9471/9471    650.598076006:    2004008 cpu-clock:      7fb78a9eb289 deflate (/usr/lib/libz.so.1.2.13)

Nothing here knows what was running.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.stacks.analyse_frames import split_place

BATCH = 100_000  # samples; some 3 MB
_FIELDS = "pid,tid,time,event,period,ip,sym,dso"

_SAMPLE = re.compile(
    r"\s*(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+(?P<s>\d+)\.(?P<fraction>\d{1,9}):\s+"
    r"(?:(?P<period>\d+)\s+(?P<event>\S+):\s+)?(?P<ip>[0-9a-f]+)\s+(?P<rest>\S.*\))\s*"
)
_LOST = re.compile(r"PERF_RECORD_LOST(?:_SAMPLES)?\s+lost\s+(\d+)")
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
# A bare address where a name should be. C functions may be called `add` or `deadbeef`.
_ADDRESS = re.compile(r"0x[0-9a-f]+|(?=[a-f]*\d)[0-9a-f]{8,16}")
_GENERATED = re.compile(r"/tmp/perf-\d+\.map$|//anon$|/memfd:")
_KERNEL = 1 << 63  # addresses from here on are the kernel's, on x86-64 and 64-bit ARM

UNKNOWN = "?"
JIT = "[jit]"  # machine code that the program generated, as oneDNN and python's own names for perf do


class Sample(NamedTuple):
    """One sample.

    Attributes:
        pid: The process.
        tid: The thread.
        time_ns: On the clock that perf was told to use.
        event: What was counted, without modifiers (``cpu-clock``, ``cycles``); empty if the line does not say.
        period: How much of it this sample stands for: nanoseconds of ``cpu-clock``, numbers of all else; 1 if the line does not say.
        user_only: Whether the kernel was left out (``cpu-clock:u``).
        function: The function's name, demangled; None if the library has no name for it.
        library: The file's name without its folder, or ``[kernel.kallsyms]``, ``[jit]``; ``?`` if not known.
        kernel: Whether the kernel was running.
    """

    pid: int
    tid: int
    time_ns: int
    event: str
    period: int
    user_only: bool
    function: str | None
    library: str
    kernel: bool


def parse_sample(line: str) -> Sample | None:
    """The sample that a line holds, or None."""
    found = _SAMPLE.fullmatch(line)
    if found is None:
        return None
    pid, tid, seconds, fraction, period, event, ip, rest = found.groups()
    symbol, dso = split_place(rest)
    plain, user_only = _event(event or "")
    time_ns = int(seconds) * 1_000_000_000 + int(fraction.ljust(9, "0"))
    return Sample(int(pid), int(tid), time_ns, plain, int(period or 1), user_only, _function(symbol), _library(dso), int(ip, 16) >= _KERNEL)


def lost_samples(line: str) -> int:
    """How many samples a line says were lost; 0 if it says nothing of that."""
    found = _LOST.search(line)
    return int(found[1]) if found else 0


def _function(symbol: str) -> str | None:
    symbol = _OFFSET.sub("", symbol)
    if not symbol or symbol == "[unknown]" or _ADDRESS.fullmatch(symbol):
        return None
    return symbol


def _library(dso: str) -> str:
    dso = dso.removesuffix(" (deleted)")
    if dso in ("", "[unknown]", "inlined"):
        return UNKNOWN
    if dso.startswith("["):  # [kernel.kallsyms], [vdso], [nf_tables], and perf's [kernel.kallsyms]_stext
        return dso.partition("]")[0] + "]"
    if _GENERATED.match(dso):
        return JIT
    return dso.rstrip("/").rpartition("/")[2] or UNKNOWN


def _event(text: str) -> tuple[str, bool]:
    """(name, whether the kernel was left out) of ``cpu-clock:u``, ``cycles:ppp``, ``cpu_core/cycles/u``."""
    if "/" in text:
        _, text, modifiers = [*text.split("/"), "", ""][:3]
    else:
        text, _, modifiers = text.partition(":")
    return text, "u" in modifiers and "k" not in modifiers


class Code(NamedTuple):
    """What a sample was found in.

    Attributes:
        function: Its name; None if the library has none for it.
        library: The file's name.
        kernel: Whether it is the kernel's.
    """

    function: str | None
    library: str
    kernel: bool


class Batch(NamedTuple):
    """Samples; arrays of shape (n,), in the order in which they were taken.

    Attributes:
        time_ns: When.
        pid: Process.
        tid: Thread.
        code: Index into ``PerfReader.codes``.
        event: Index into ``PerfReader.events``.
        period: How much of the event each stands for.
    """

    time_ns: Array
    pid: Array
    tid: Array
    code: Array
    event: Array
    period: Array


@dataclass
class PerfReader:
    """What is learned while lines are read.

    Attributes:
        codes: By number.
        events: Names by number.
        samples: How many there were.
        lost: How many perf says that it lost.
        unread: Lines that are none of a sample, and not of a loss.
        user_only: Whether the kernel was left out.
    """

    codes: dict[Code, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    lost: int = 0
    unread: int = 0
    user_only: bool = False

    def batches(self, lines: Iterable[str], size: int = BATCH) -> Iterator[Batch]:
        """Batches of at most so many samples."""
        rows: list[tuple[int, int, int, int, int, int]] = []
        for line in lines:
            sample = parse_sample(line)
            if sample is None:
                gone = lost_samples(line)
                self.lost += gone
                self.unread += bool(not gone and line.strip())
                continue
            self.user_only |= sample.user_only
            code = self.codes.setdefault(Code(sample.function, sample.library, sample.kernel), len(self.codes))
            event = self.events.setdefault(sample.event, len(self.events))
            rows.append((sample.time_ns, sample.pid, sample.tid, code, event, sample.period))
            if len(rows) == size:
                yield self._batch(rows)
                rows = []
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[tuple[int, int, int, int, int, int]]) -> Batch:
        self.samples += len(rows)
        return Batch(*np.array(rows, dtype=np.int64).T)


def perf_script(data: str, perf: str = "perf") -> Iterator[str]:
    """The lines that perf prints of what it has recorded.

    Args:
        data: The file.
        perf: The program.

    Raises:
        OSError: perf cannot be run, or cannot read the file; the text is what it printed.
    """
    command = [perf, "script", "--force", "--show-lost-events", "--ns", "--input", data, "--fields", _FIELDS]
    # Neither the user's settings nor a server of symbols: what a file does not say stays unknown.
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PERF_CONFIG": os.devnull, "PAGER": "cat"}
    environment.pop("DEBUGINFOD_URLS", None)
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            env=environment, encoding="utf-8", errors="replace",
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        yield from process.stdout
        code = process.wait()
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()
    if code:
        raise OSError(f"{' '.join(command[:2])} ended with {code}: {words[-300:] or 'it printed nothing'}")
