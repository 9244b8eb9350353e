"""The trace of a run as tables of DuckDB: Parquet where it is at rest, and what is still in segments put into Parquet elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import duckdb

from voirkit.runs import parquet
from voirkit.runs.parquet import COLUMNS
from voirkit.runs.processes import Process, damage, described_processes, description, read_descriptions, without_names
from voirkit.runs.trace_files import layout
from voirkit.trace.reader import Files, Pieces, of_stem


class Trace(NamedTuple):
    """What has been opened: the tables are in the connection."""

    processes: list[Process]
    warnings: list[str]


def open_trace(run: str, connection: duckdb.DuckDBPyConnection, spare: str, offset_ns: int = 0) -> Trace:
    """Make the views ``spans`` and ``events`` of a run's trace; ``events`` has the column ``wall_ns`` too.

    Args:
        run: The run directory.
        connection: Where they are made.
        spare: A folder, made if need be, for what is still in segments.
        offset_ns: From the clock to the wall clock for a process of which nothing is known but its records.

    Raises:
        OSError: The folders cannot be read or written.
    """
    for attempt in range(10):
        now = layout(run)
        live = _from_segments(run, now.segments, connection, f"{spare}/{attempt}")
        after = layout(run)
        if (now.spans, now.processes) == (after.spans, after.processes):
            break  # nobody put the rest of it to rest meanwhile
    warnings = [*live.warnings, *without_names(now.orphans)]
    described = [*live.described, *read_descriptions(now.processes, warnings)]
    whole = [path for path in now.spans if _is_readable(path, connection, warnings)]
    processes = described_processes(described, offset_ns)
    _make_views(connection, whole + live.paths, processes, offset_ns)
    return Trace(processes, warnings)


class _Live(NamedTuple):
    """What is in segments: as Parquet files, with descriptions of the processes."""

    paths: list[str]
    described: list[dict[str, Any]]
    warnings: list[str]


def _from_segments(run: str, segments: Sequence[Files], connection: duckdb.DuckDBPyConnection, folder: str) -> _Live:
    found = _Live([], [], [])
    for rank in sorted({of_stem(own.stem)[1] for own in segments}):
        pieces = Pieces([own for own in segments if of_stem(own.stem)[1] == rank])

        def path_of(kind: str, number: int, rank: int = rank) -> str:
            found.paths.append(f"{folder}/{rank}-{kind}-{number}.parquet")
            return found.paths[-1]

        parquet.write(connection, pieces, path_of)
        found.described.extend(map(description, pieces.sources))
        found.warnings.extend(damage(run, pieces))
    return found


def _is_readable(path: str, connection: duckdb.DuckDBPyConnection, warnings: list[str]) -> bool:
    try:
        connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM read_parquet({parquet.file(path)}, hive_partitioning = false) LIMIT 0"
        ).fetchall()
    except duckdb.Error:
        warnings.append(f"{path} cannot be read; what is in it is lost.")
        return False
    return True


def _make_views(connection: duckdb.DuckDBPyConnection, files: list[str], processes: list[Process], offset_ns: int) -> None:
    if files:
        listed = ", ".join(parquet.file(path) for path in files)
        connection.execute(f"CREATE VIEW spans AS SELECT {', '.join(COLUMNS)} FROM read_parquet([{listed}], hive_partitioning = false)")
    else:
        nothing = ", ".join(f"CAST(NULL AS {kind}) AS {key}" for key, kind in COLUMNS.items())
        connection.execute(f"CREATE VIEW spans AS SELECT {nothing} WHERE false")
    offsets = {one.offset_ns for one in processes}
    if len(offsets) < 2:
        connection.execute(f"CREATE VIEW events AS SELECT *, start_ns + {offsets.pop() if offsets else offset_ns} AS wall_ns FROM spans")
        return
    connection.execute("CREATE TABLE clocks (host VARCHAR, rank INTEGER, pid BIGINT, offset_ns BIGINT, PRIMARY KEY (host, rank, pid))")
    unique = {(one.host, one.rank, one.pid): one.offset_ns for one in reversed(processes)}
    connection.executemany("INSERT INTO clocks VALUES (?, ?, ?, ?)", [[*key, offset] for key, offset in unique.items()])
    connection.execute(
        f"CREATE VIEW events AS SELECT s.*, s.start_ns + coalesce(c.offset_ns, {offset_ns}) AS wall_ns FROM spans s "
        "LEFT JOIN clocks c ON s.host = c.host AND s.rank = c.rank AND s.pid = c.pid"
    )
