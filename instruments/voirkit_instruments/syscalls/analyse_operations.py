"""Which operation of a loader a thread was in at a time, from what ``--loader`` recorded: by time, since its records have no markers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from voirkit.runs.tables.parquet import quoted

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


def operations_of(run: Run, rank: int, host: str, clock: Callable[[float], int]) -> Callable[[int, float], str | None] | None:
    """Tells the innermost operation of a thread at a time of the tracer's; None if ``--loader`` recorded none.

    Args:
        run: The run, opened.
        rank: Whose.
        host: Where.
        clock: From a time of the log to the run's clock.
    """
    chosen = f"rank = {int(rank)} AND host = {quoted(host)} AND kind = 'loader' AND category = 'operation'"
    spans: dict[int, tuple[list[int], list[int], list[str]]] = {}
    query = f"SELECT tid, start_ns, duration_ns, name FROM spans WHERE {chosen} ORDER BY tid, start_ns, duration_ns DESC"
    for batch in run.fetch(query):
        for tid, start, duration, name in batch:
            starts, ends, names = spans.setdefault(tid, ([], [], []))
            starts.append(start)
            ends.append(start + duration)
            names.append(name)
    if not spans:
        return None

    def operation(tid: int, began: float) -> str | None:
        found = spans.get(tid)
        if found is None or began != began:
            return None
        starts, ends, names = found
        at, now = bisect_right(starts, clock(began)) - 1, clock(began)
        for i in range(at, max(at - 8, -1), -1):  # those around it have begun before; operations are not nested deeply
            if ends[i] > now:
                return names[i]
        return None

    return operation
