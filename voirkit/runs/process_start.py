"""When this process was started: python's own start, and the import of voirkit, are part of what a run takes."""

from __future__ import annotations

import os
import time

_LONGEST_S = 60.0  # a shell that waited for long and became python by exec


def process_begun_ns() -> int:
    """On the clock of ``time.perf_counter_ns``: as the kernel says it (Linux, to 10 ms), else what this process's processor time tells."""
    now, used_ns = time.perf_counter_ns(), time.process_time_ns()
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now - used_ns
    return now - (int(age_s * 1e9) if used_ns * 1e-9 <= age_s + 0.02 and age_s < _LONGEST_S else used_ns)
