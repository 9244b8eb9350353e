"""Lines that ``perf script --ns -F pid,tid,time,event,period,ip,sym,dso`` prints: one sample each. Checked with perf 6.1.

    9471/9471    650.598076006:    2004008 cpu-clock:      7fb78a9eb289 deflate (/usr/lib/libz.so.1.2.13)

Nothing here knows what was running; a line that is none of a sample is None, and whoever reads counts it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

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


def parse(line: str) -> Sample | None:
    """The sample that a line holds, or None."""
    found = _SAMPLE.fullmatch(line)
    if found is None:
        return None
    pid, tid, seconds, fraction, period, event, ip, rest = found.groups()
    symbol, dso = split(rest)
    plain, user_only = _event(event or "")
    time_ns = int(seconds) * 1_000_000_000 + int(fraction.ljust(9, "0"))
    return Sample(int(pid), int(tid), time_ns, plain, int(period or 1), user_only, _function(symbol), _library(dso), int(ip, 16) >= _KERNEL)


def lost(line: str) -> int:
    """How many samples a line says were lost; 0 if it says nothing of that."""
    found = _LOST.search(line)
    return int(found[1]) if found else 0


def split(text: str) -> tuple[str, str]:
    """(symbol, file) from ``symbol (file)``. Both may hold blanks and parentheses: ``(/memfd:x (deleted))``."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if not depth:
            break
    else:
        at = max(text.rfind("("), 0)
    return text[:at].strip(), text[at + 1 : -1]


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
