"""What can not be drawn in its own thread gets a thread of its own in the trace-event format.

That format has one stack a thread: of a span that overlaps another without lying in it (coroutines and generators that take turns, work of
a device) Perfetto 52 draws nothing, and counts it as an error.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from voirkit.export.nesting import overlapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    import duckdb

    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

_FIRST = 1 << 22  # Linux gives no thread this number, nor a higher one
_WHAT = "CASE WHEN kind IN ('span', 'phase', 'loader', 'mark', 'meta', 'counter') THEN '' ELSE kind END"


def draw_beside(run: Run, selection: Selection, connection: duckdb.DuckDBPyConnection) -> list[tuple[str, int, int, int, str, int]]:
    """Find what is to be drawn beside its thread, for ``with_shown_tid``.

    Returns:
        For each thread that is made up, (host, rank, pid, tid) of the real one, what to add to its name, and the number of the new one.
    """
    events = f"SELECT *, {_WHAT} AS what FROM ({run.events(selection)})"
    connection.execute(
        "CREATE OR REPLACE TABLE chrome_threads AS SELECT row_number() OVER (ORDER BY host, rank, pid, tid, what) AS thread, * "
        f"FROM (SELECT DISTINCT host, rank, pid, tid, what FROM ({events}))"
    )
    lanes = array("q")
    last = None
    query = (
        f"SELECT thread, wall_ns, wall_ns + duration_ns FROM ({events}) JOIN chrome_threads USING (host, rank, pid, tid, what) "
        "WHERE kind NOT IN ('mark', 'meta', 'counter') ORDER BY thread, wall_ns, duration_ns DESC"
    )
    spans: Iterator[tuple[int, int, int]] = (row for batch in run.fetch(query) for row in batch)
    for found in overlapping(spans):
        if found != last:  # spans of the same times are in the same lane
            lanes.extend(found)
        last = found
    _keep(connection, lanes)
    made_up = connection.execute(
        f"""CREATE OR REPLACE TABLE chrome_beside AS SELECT *, {_FIRST} - 1 + row_number() OVER (ORDER BY thread, lane) AS shown_tid FROM (
            SELECT thread, lane FROM chrome_lanes UNION SELECT thread, 0 FROM chrome_threads WHERE what <> '');
        SELECT host, rank, pid, tid, concat(what, CASE WHEN lane > 0 THEN concat(' overlapping ', lane) END), shown_tid
        FROM chrome_beside JOIN chrome_threads USING (thread) ORDER BY shown_tid"""
    ).fetchall()
    return [(host, rank, pid, tid, what.strip(), shown) for host, rank, pid, tid, what, shown in made_up]


def with_shown_tid(events: str) -> str:
    """A query for these events with the thread that they are drawn in, ``shown_tid``."""
    return f"""SELECT e.*, coalesce(shown_tid, e.tid) AS shown_tid FROM (SELECT *, {_WHAT} AS what FROM ({events})) e
        JOIN chrome_threads USING (host, rank, pid, tid, what)
        LEFT JOIN chrome_lanes l ON (l.thread, l.wall_ns, l.duration_ns) = (chrome_threads.thread, e.wall_ns, e.duration_ns)
        LEFT JOIN chrome_beside b ON (b.thread, b.lane) = (chrome_threads.thread, coalesce(l.lane, 0))"""


def _keep(connection: duckdb.DuckDBPyConnection, lanes: array[int]) -> None:
    """Put (thread, start, end, lane) into a table."""
    import numpy as np

    columns = np.frombuffer(lanes, np.int64).reshape(-1, 4)
    table = {"thread": columns[:, 0], "wall_ns": columns[:, 1], "duration_ns": columns[:, 2] - columns[:, 1], "lane": columns[:, 3]}
    connection.register("found_lanes", {key: np.ascontiguousarray(column) for key, column in table.items()})
    connection.execute("CREATE OR REPLACE TABLE chrome_lanes AS SELECT * FROM found_lanes")
    connection.unregister("found_lanes")
