"""The trace of a run as tables of DuckDB: Parquet where it is at rest, and what is still in segments put into Parquet elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import duckdb

from voirkit.runs.tables import parquet
from voirkit.runs.tables.spans import COLUMNS
from voirkit.runs.tables.trace_files import Layout, layout
from voirkit.trace.layout import folder_of
from voirkit.trace.pieces import Pieces, Source, of_stem, records_in
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
        world_size: Of the group in which it has its rank; 1: of none, 0: not known.
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
    world_size: int = 0


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
        OSError: The folders can not be read or written.
    """
    for attempt in range(10):
        now = layout(run)
        live = _from_segments(run, now.segments, connection, f"{spare}/{attempt}")
        after = layout(run)
        if (now.spans, now.processes) == (after.spans, after.processes):
            break  # nobody put the rest of it to rest meanwhile
    warnings = [*live.warnings, *_without_names(now)]
    described = [*live.described, *_read_processes(now.processes, warnings)]
    whole = [path for path in now.spans if _is_readable(path, connection, warnings)]
    processes = _processes(described, offset_ns)
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
        for source in pieces.sources:
            found.described.append(description(source))
            if source.unknown:
                found.warnings.append(f"{folder_of(run)}/{source.process.stem}.names is damaged: {count(source.unknown)} lost.")
        found.warnings.extend(f"{path} is damaged; what is in it is lost." for path in pieces.damaged)
    return found


def _without_names(now: Layout) -> list[str]:
    lost = {path: records_in(path) for path in now.orphans}
    missing = sorted({f"{path.rpartition('-')[0]}.names" for path, records in lost.items() if records})
    if not missing:
        return []
    return [f"{missing[0]}{' and others are' if len(missing) > 1 else ' is'} missing: {count(sum(lost.values()))} lost."]


def count(events: int) -> str:
    """``1 event is``, ``2 events are``."""
    return "1 event is" if events == 1 else f"{events:,} events are"


def _read_processes(paths: Iterable[str], warnings: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            lines = [""]
        described = [one for line in lines if (one := _described(line)) is not None]
        if len(described) < len(lines):
            warnings.append(f"{path} is damaged: names of processes and threads are missing.")
        found += described
    return found


def description(source: Source) -> dict[str, Any]:
    """What is kept of a process."""
    return {**source.process._asdict(), "threads": source.threads, "dropped": source.dropped}


def _described(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
        threads = {int(tid): str(name) for tid, name in found["threads"].items()}
        numbers = {key: int(found[key]) for key in ("rank", "pid", "ppid", "perf_counter_ns", "time_ns")}
        return {
            **found,
            **numbers,
            "threads": threads,
            "argv": list(found["argv"]),
            "dropped": dict(found["dropped"]),
            "stem": str(found["stem"]),
            "world_size": int(found.get("world_size", 0)),
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _is_readable(path: str, connection: duckdb.DuckDBPyConnection, warnings: list[str]) -> bool:
    try:
        connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM read_parquet({parquet.file(path)}, hive_partitioning = false) LIMIT 0"
        ).fetchall()
    except duckdb.Error:
        warnings.append(f"{path} can not be read; what is in it is lost.")
        return False
    return True


def _processes(described: Iterable[dict[str, Any]], offset_ns: int) -> list[Process]:
    """The processes in the order in which they began, each once, though it may have been described several times."""
    unique = {one["stem"]: one for one in described}
    first: dict[str, int] = {}
    found = []
    for one in sorted(unique.values(), key=lambda one: one["time_ns"]):
        offset = one["time_ns"] - one["perf_counter_ns"] if one["time_ns"] else offset_ns
        # The wall clock is corrected now and then, the other is not: on a host the processes' order is that of the other. One that differs
        # by much is of another start of the system, or of another machine of that name.
        if abs(first.setdefault(one["host"], offset) - offset) < _SAME_CLOCK_NS:
            offset = first[one["host"]]
        who = (one["host"], one["rank"], one["pid"], one["ppid"], one["name"], one["argv"])
        found.append(Process(*who, one["time_ns"], offset, one["threads"], one["dropped"], one["world_size"]))
    return found


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
