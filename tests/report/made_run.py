"""A run made of rows, as much of one as the formats ask for; with it a test says exactly what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

START = 1_795_167_064_029_205_123  # ns since the epoch, some day in November 2026
HOST, PID = "node1", 100


@dataclass(frozen=True)
class Process:
    pid: int = PID
    ppid: int = 1
    rank: int = 0
    host: str = HOST
    name: str = "main.py"
    began_ns: int = START
    offset_ns: int = START - 5_000_000_000
    threads: dict[int, str] = field(default_factory=lambda: {PID: "MainThread"})


@dataclass
class MadeRun:
    """Rows in two batches, sorted as a run sorts them."""

    recorded: list[tuple[Any, ...]] = field(default_factory=list)
    made_of: Sequence[Process] = (Process(),)
    manifest: dict[str, Any] = field(
        default_factory=lambda: {
            "command": ["train/main.py", "--epochs", "1"],
            "host": HOST,
            "rank": 0,
            "pid": PID,
            "clocks": {"time_ns": START},
        }
    )
    path: str = "voirkit-runs/some"

    def rows(self, selection: Any) -> Iterator[list[tuple[Any, ...]]]:
        rows = sorted(self.recorded, key=lambda row: (row[3], -row[4]))
        yield rows[: len(rows) // 2]
        yield rows[len(rows) // 2 :]

    def fetch(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """Nothing: what is asked in SQL is of loaders."""
        return iter(())

    def processes(self) -> list[Process]:
        return list(self.made_of)


def row(
    name: str,
    start: int,
    duration: int = 0,
    category: str = "compute",
    kind: str = "span",
    thread: tuple[str, int, int] = (HOST, PID, PID),
    rank: int = 0,
    **arguments: Any,
) -> tuple[Any, ...]:
    """One row; ``start`` is in ns from the beginning of the run."""
    return (kind, category, name, START + start, duration, rank, *thread, arguments)
