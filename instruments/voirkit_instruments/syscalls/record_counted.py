"""What a process counted of itself by phase, in a small file that it maps: whole at every moment, however the process ends."""

from __future__ import annotations

import mmap
import os
import re

from voirkit_instruments.syscalls.record_markers import PHASES

# Of /proc/self/io: calls that read and write (of any kind), their bytes, and bytes that storage had to move. Of getrusage, in microseconds
# and times.
COLUMNS = (
    "read_calls", "write_calls", "read_bytes", "write_bytes", "storage_read", "storage_written",
    "user_us", "system_us", "minor_faults", "major_faults", "waited", "preempted", "entered", "lasted_ns",
)  # fmt: skip
ENDING = ".mapped"
_HEAD = 1  # which worker it is; -1: none


def rows(path: str, worker: int = -1) -> memoryview:
    """Make the file: a number for each phase and column, to be added to.

    Raises:
        OSError: It can not be made.
    """
    size = 8 * (_HEAD + len(PHASES) * len(COLUMNS))
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(file, size)
        view = memoryview(mmap.mmap(file, size)).cast("q")
    finally:
        os.close(file)
    view[0] = worker
    return view


def at(phase: str) -> int:
    """Where a phase's numbers begin."""
    return _HEAD + PHASES.index(phase) * len(COLUMNS)


def read(path: str) -> tuple[int, dict[str, dict[str, int]]]:
    """Which worker a process was (-1: none), and what it counted in each phase.

    Raises:
        OSError, ValueError: It can not be read.
    """
    with open(path, "rb") as file:
        numbers = memoryview(file.read()).cast("q")
    if len(numbers) != _HEAD + len(PHASES) * len(COLUMNS):
        raise ValueError(f"{path} has another size than it should")
    found = {phase: dict(zip(COLUMNS, numbers[at(phase) : at(phase) + len(COLUMNS)], strict=True)) for phase in PHASES}
    return numbers[0], {phase: row for phase, row in found.items() if any(row.values())}


def files(folder: str, stem: str) -> list[str]:
    """The files of a process and those that it made."""
    form = re.compile(re.escape(stem) + r"(\.\d+)?" + re.escape(ENDING) + "$")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if form.match(name))
