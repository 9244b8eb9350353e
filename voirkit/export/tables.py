"""The events of a run as one plain table: CSV with a header, one Parquet file, an Arrow file (IPC, "feather"). Sorted by start.

Arrow needs pyarrow, checked with 14 to 26.
"""

from __future__ import annotations

from voirkit.errors import VoirkitError
from voirkit.export import Format
from voirkit.report.output import complete, copy
from voirkit.runs.parquet import OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

_ROWS = 100_000  # of a record batch


def query_table(run: Run, selection: Selection) -> str:
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


def write_csv(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file; compressed with gzip if its name ends in ``.gz``."""
    compression = "gzip" if target.endswith(".gz") else "none"
    copy(run, query_table(run, selection), target, f"FORMAT csv, HEADER, COMPRESSION {compression}")
    return [target]


def write_parquet(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file, with the columns of the other tables."""
    copy(run, query_table(run, selection), target, OPTIONS)
    return [target]


def write_arrow(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file, compressed with zstd.

    Raises:
        VoirkitError: pyarrow is not installed.
    """
    try:
        import pyarrow.ipc as ipc
    except ImportError:
        raise VoirkitError("the format needs pyarrow.", where="--format arrow", next="Install it: pip install 'voirkit[export]'") from None
    connection = run.connection()
    relation: Any = connection.sql(query_table(run, selection))
    # duckdb 1.5 gave the method its name of 2.0
    reader = relation.to_arrow_reader(_ROWS) if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader(_ROWS)
    options = ipc.IpcWriteOptions(compression="zstd")
    # A file of python's, since its errors are python's: those of arrow have no number.
    with complete(target) as path, open(path, "wb") as file, ipc.new_file(file, reader.schema, options=options) as table_file:
        for batch in reader:
            table_file.write_batch(batch)
    return [target]


CSV = Format("csv", ".csv", True, write_csv)
PARQUET = Format("parquet", ".parquet", False, write_parquet)
ARROW = Format("arrow", ".arrow", False, write_arrow)
