"""What the processes, threads and loader workers of a run are called in other tools, and which arrows lead from a batch to its use."""

from __future__ import annotations

import json
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.runs.opened import Run

    Key = tuple[str, int, int]  # (host, rank, pid): which process

LOADER = "loader"
_MADE, _USED = ("data", "preprocess"), ("batch", "consumed")
MOMENTS = ("queued", "arrived", "consumed")  # of batches: without a duration

# In SQL, over the columns of `events`: the rows that an arrow connects, what is the same of them, and where it touches them: the last
# nanosecond of the making, since at its end it is over for a viewer, and the mark where the batch was given to the program.
ARROWS = f"(kind = '{LOADER}' AND ((category = 'data' AND name = 'preprocess') OR (category = 'batch' AND name = 'consumed')))"
ARROW = "concat('batch ', rank, ' ', json_extract_string(args, '$.loader'), ' ', json_extract_string(args, '$.episode'), ' ', value)"
ARROW_AT = "since_ns + greatest(duration_ns - 1, 0)"
IS_MOMENT = f"(kind = '{LOADER}' AND category = 'batch' AND name IN {MOMENTS})"


def arrow(rank: int, category: str, name: str, arguments: Mapping[str, Any]) -> tuple[object, ...] | None:
    """What the two ends of an arrow have in common; None for what is no end of one. It begins where a worker begins with a batch."""
    if (category, name) == _MADE and arguments.get("worker", -1) < 0:
        return None
    if (category, name) not in (_MADE, _USED):
        return None
    return ("batch", rank, arguments.get("loader"), arguments.get("episode"), arguments.get("batch"))


def workers(run: Run) -> dict[tuple[str, int, int], str]:
    """Names of the processes that load, by (host, rank, pid); with the loader's number where there are several."""
    query = (
        f"SELECT DISTINCT host, rank, pid, args FROM spans WHERE kind = '{LOADER}' AND category = 'data' AND name = 'preprocess' "
        "AND args IS NOT NULL ORDER BY ALL"
    )
    found = [(key, json.loads(text)) for batch in run.fetch(query) for *key, text in batch]
    several = len({known.get("loader") for _, known in found}) > 1
    named = {}
    for (host, rank, pid), known in found:
        if known.get("worker", -1) >= 0:
            named[host, rank, pid] = f"worker {known['worker']}" + (f" of loader {known.get('loader')}" if several else " of the loader")
    return named


class Labels:
    """Names for people: ``main.py``, ``main.py (rank 1)``, ``main.py (rank 1, node7)``."""

    def __init__(self, run: Run) -> None:
        self.processes = {(process.host, process.rank, process.pid): process for process in run.processes()}
        self._ranks = len({rank for _, rank, _ in self.processes}) > 1
        self._workers = workers(run)
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
