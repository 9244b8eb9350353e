"""The trace of a run as tables of DuckDB: Parquet where it is at rest, and what is still in segments put into Parquet elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import duckdb

from voirkit.runs import parquet
from voirkit.runs.spans import COLUMNS
from voirkit.runs.trace_files import Layout, layout
from voirkit.trace.pieces import Pieces, of_stem, records_in
from voirkit.trace.reader import Files

_SAME_CLOCK_NS = 2_000_000_000


class Process(NamedTuple):
    """A process of a run.

    Attributes:
        name: The script's, or multiprocessing's name for a child.
        began_ns: When it began to record, on the wall clock, in nanoseconds since 1970.
        offset_ns: What is to be added to its ``start_ns`` for the wall clock: the same for all processes of a host, which have one clock.
        threads: Names of threads by native id.
        dropped: Events that were not recorded, by ``category.name``.
    """

    host: str
    rank: int
    pid: int
    ppid: int
    name: str
    argv: list[str]
    began_ns: int
    offset_ns: int
    threads: dict[int, str]
    dropped: dict[str, int]


class Trace(NamedTuple):
    """What has been opened: the tables are in the connection."""

    processes: list[Process]
    warnings: list[str]


def open_trace(run: str, connection: duckdb.DuckDBPyConnection, spare: str) -> Trace:
    """Make the views ``spans`` and ``events`` of a run's trace; ``events`` has the column ``wall_ns`` too.

    Args:
        run: The run directory.
        connection: Where they are made.
        spare: A folder, made if need be, for what is still in segments.

    Raises:
        OSError: The folders can not be read or written.
    """
    described: list[dict[str, Any]] = []
    warnings: list[str] = []
    for attempt in range(10):
        now = layout(run)
        described, warnings = [], []
        drafts = _from_segments(now.segments, connection, f"{spare}/{attempt}", described, warnings)
        after = layout(run)
        if (now.spans, now.processes) == (after.spans, after.processes):
            break  # nobody put the rest of it to rest meanwhile
    _without_names(now, warnings)
    described += _read_processes(now.processes, warnings)
    whole = [path for path in now.spans if _is_readable(path, connection, warnings)]
    processes = _processes(described)
    _make_views(connection, whole + drafts, processes)
    return Trace(processes, warnings)


def _from_segments(
    segments: Sequence[Files], connection: duckdb.DuckDBPyConnection, folder: str, described: list[dict[str, Any]], warnings: list[str]
) -> list[str]:
    """What is in segments, as Parquet files in a folder."""
    from voirkit.runs.at_rest import described as description

    written: list[str] = []

    for rank in sorted({of_stem(own.stem)[1] for own in segments}):
        pieces = Pieces([own for own in segments if of_stem(own.stem)[1] == rank])

        def path_of(kind: str, number: int, rank: int = rank) -> str:
            written.append(f"{folder}/{rank}-{kind}-{number}.parquet")
            return written[-1]

        parquet.write(connection, pieces, path_of)
        for source in pieces.sources:
            described.append(description(source))
            if source.unknown:
                warnings.append(f"{source.process.stem}: {source.unknown} events are lost: what they stand for can not be read.")
    return written


def _without_names(now: Layout, warnings: list[str]) -> None:
    lost = sum(records_in(path) for path in now.orphans)
    if lost:
        what = "an event is" if lost == 1 else f"{lost} events are"
        warnings.append(f"{what} lost: the file that says what they stand for is missing ({now.orphans[0].rpartition('-')[0]}.names).")


def _read_processes(paths: Iterable[str], warnings: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                found += [json.loads(line) for line in file]
        except (OSError, ValueError) as exc:
            warnings.append(f"{path} can not be read, so that names and clocks of processes are missing: {exc}")
    return found


def _is_readable(path: str, connection: duckdb.DuckDBPyConnection, warnings: list[str]) -> bool:
    try:
        connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM read_parquet({parquet.quoted(path)}, hive_partitioning = false) LIMIT 0"
        ).fetchall()
    except duckdb.Error:
        warnings.append(f"{path} can not be read; what is in it is lost.")
        return False
    return True


def _processes(described: Iterable[dict[str, Any]]) -> list[Process]:
    """The processes in the order in which they began, each once, though it may have been described several times."""
    unique = {one["stem"]: one for one in described}
    first: dict[str, int] = {}
    found = []
    for one in sorted(unique.values(), key=lambda one: one["time_ns"]):
        offset = one["time_ns"] - one["perf_counter_ns"]
        # The wall clock is corrected now and then, the other is not: on a host the processes' order is that of the other. One that differs
        # by much is of another start of the system, or of another machine of that name.
        if abs(first.setdefault(one["host"], offset) - offset) < _SAME_CLOCK_NS:
            offset = first[one["host"]]
        threads = {int(tid): name for tid, name in one["threads"].items()}
        who = (one["host"], one["rank"], one["pid"], one["ppid"], one["name"], one["argv"])
        found.append(Process(*who, one["time_ns"], offset, threads, one["dropped"]))
    return found


def _make_views(connection: duckdb.DuckDBPyConnection, files: list[str], processes: list[Process]) -> None:
    if files:
        listed = ", ".join(parquet.quoted(path) for path in files)
        connection.execute(f"CREATE VIEW spans AS SELECT {', '.join(COLUMNS)} FROM read_parquet([{listed}], hive_partitioning = false)")
    else:
        nothing = ", ".join(f"CAST(NULL AS {kind}) AS {key}" for key, kind in COLUMNS.items())
        connection.execute(f"CREATE VIEW spans AS SELECT {nothing} WHERE false")
    offsets = {one.offset_ns for one in processes}
    if len(offsets) < 2:
        connection.execute(f"CREATE VIEW events AS SELECT *, start_ns + {offsets.pop() if offsets else 0} AS wall_ns FROM spans")
        return
    connection.execute("CREATE TABLE clocks (host VARCHAR, rank INTEGER, pid BIGINT, offset_ns BIGINT, PRIMARY KEY (host, rank, pid))")
    unique = {(one.host, one.rank, one.pid): one.offset_ns for one in reversed(processes)}
    connection.executemany("INSERT INTO clocks VALUES (?, ?, ?, ?)", [[*key, offset] for key, offset in unique.items()])
    connection.execute(
        "CREATE VIEW events AS SELECT s.*, s.start_ns + coalesce(c.offset_ns, 0) AS wall_ns FROM spans s "
        "LEFT JOIN clocks c ON s.host = c.host AND s.rank = c.rank AND s.pid = c.pid"
    )
