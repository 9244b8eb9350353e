"""The events of a run as one plain table, for the formats that are tables: CSV, Parquet, Arrow."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection


def table(run: Run, selection: Selection) -> str:
    """A query for the selected events, sorted by start.

    Columns: ``start_ns`` (wall clock, since 1970), ``duration_ns, kind, category, name, epoch, step, value_key, value, number`` (that of a
    counter), ``args`` (JSON), ``rank, host, pid, process, tid, thread`` (the names of both).
    """
    connection = run.connection()
    connection.execute("CREATE OR REPLACE TABLE named_processes (host VARCHAR, rank INTEGER, pid BIGINT, process VARCHAR)")
    connection.execute("CREATE OR REPLACE TABLE named_threads (host VARCHAR, rank INTEGER, pid BIGINT, tid BIGINT, thread VARCHAR)")
    processes = {(one.host, one.rank, one.pid): one.name for one in run.processes()}
    for name, rows in (("named_processes", processes), ("named_threads", run.threads())):
        if rows:
            marks = "?, ?, ?, ?" if name == "named_processes" else "?, ?, ?, ?, ?"
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", [[*key, value] for key, value in rows.items()])
    return (
        "SELECT wall_ns AS start_ns, duration_ns, kind, category, name, epoch, step, value_key, value, number, args, rank, host, pid, "
        f"process, tid, thread FROM ({run.events(selection)}) LEFT JOIN named_processes USING (host, rank, pid) "
        "LEFT JOIN named_threads USING (host, rank, pid, tid) "
        "ORDER BY start_ns, duration_ns DESC, rank, host, pid, tid, kind"
    )
