"""What the ways to record system calls have in common."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from voirkit_instruments.detached import Beside

_CALLS = 300
NO_PROC = "there is no /proc here, which tells of processes.\nMount it: mount -t proc none /proc"


class CanNotTrace(Exception):
    """Why not, and on lines of their own what to do."""


class TracedAlready(CanNotTrace):
    """Somebody else's tracer has the process: it can be told the phases."""


class Tracing(NamedTuple):
    """A tracer at work.

    Attributes:
        tool: ``strace`` or ``kernel``.
        beside: Its process.
        log: What it writes.
        trusted: By column, how far its figures can be trusted.
    """

    tool: str
    beside: Beside
    log: str
    trusted: Mapping[str, str]


def has_proc() -> bool:
    """Whether a process can be seen here (``/proc``), as it can not where somebody has but changed the root."""
    return os.path.exists("/proc/self/stat")


def a_call_takes_s() -> float:
    """How long the quickest of system calls takes here and now; the median of some."""
    call, now, times = os.getppid, time.perf_counter, []
    for _ in range(_CALLS):
        began = now()
        call()
        times.append(now() - began)
    return sorted(times)[_CALLS // 2]
