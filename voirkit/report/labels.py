"""What the processes and threads of a run are called in other tools."""

from __future__ import annotations

from voirkit.report import loader_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from voirkit.runs.opened import Run

    Key = tuple[str, int, int]  # (host, rank, pid): which process


class Labels:
    """Names for people: ``main.py``, ``main.py (rank 1)``, ``main.py (rank 1, node7)``."""

    def __init__(self, run: Run) -> None:
        self.processes = {(process.host, process.rank, process.pid): process for process in run.processes()}
        self._ranks = len({rank for _, rank, _ in self.processes}) > 1
        self._workers = loader_rows.workers(run)
        self._hosts = len({host for host, _, _ in self.processes}) > 1

    def process(self, key: Key) -> str:
        """The name of a process, with its rank and host where there are several."""
        host, rank, pid = key
        process = self.processes.get(key)
        place = ([f"rank {rank}"] if self._ranks else []) + ([host] if self._hosts else [])
        name = self._workers.get(key) or (process.name if process is not None else "") or f"process {pid}"
        return f"{name} ({', '.join(place)})" if place else name

    def thread(self, key: Key, tid: int) -> str:
        """The name of a thread."""
        process = self.processes.get(key)
        name = process.threads.get(tid) if process is not None else None
        return name or ("MainThread" if tid == key[2] else f"thread {tid}")


def rows_of_processes(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of a summary the row of each rank, or of each process if some train for themselves; none if there was one alone."""
    return list(summary.get("processes") or summary.get("ranks") or ())


def name_of_row(row: Mapping[str, Any]) -> str:
    """``rank 3``, or ``process 4711`` of one that is in no group of ranks."""
    return f"rank {row['rank']}" if row["rank"] is not None else f"process {row['pid']}"
