"""Reads and writes the trace of a run with DuckDB: as tables for queries, and as Parquet files.

Records have the same columns whether they come from segments or from Parquet. The Parquet files are
sorted by start time and compressed with zstd, strings as dictionaries and times as differences.
DuckDB reads numpy arrays without a copy, and needs neither pandas nor pyarrow for that. Checked
with duckdb 1.3.2 to 2.0, numpy 1.24 to 2.5.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import duckdb
import numpy as np

from voirkit.errors import VoirkitError
from voirkit.runs.trace_files import (
    Process,
    Tally,
    clean,
    damage,
    described_processes,
    description,
    layout,
    read_descriptions,
    strict,
    tally,
    without_names,
)
from voirkit.trace.layout import BATCH_KIND, DOUBLES
from voirkit.trace.reader import Array, Files, Piece, Pieces, Source, of_stem

# The columns of the table `spans` and of the Parquet files. The names of the files' folders repeat
# `kind` and `rank`.
COLUMNS = {
    "start_ns": "BIGINT",  # on the host's clock time.perf_counter_ns
    "duration_ns": "BIGINT",
    "category": "VARCHAR",
    "name": "VARCHAR",
    "value": "BIGINT",  # the event's own number, if it is an integer; else null
    "number": "DOUBLE",  # the event's own number, if it is a double, as for counters; else null
    "value_key": "VARCHAR",  # the key under which this number is shown among the arguments
    "epoch": "BIGINT",  # the argument `epoch`, if it is an integer
    "step": "BIGINT",  # the argument `step`, if it is an integer
    "args": "VARCHAR",  # all arguments as a JSON object; null if there are none
    "host": "VARCHAR",
    "pid": "BIGINT",
    "tid": "BIGINT",
    "kind": "VARCHAR",
    "rank": "INTEGER",
}
_WHOLE = (
    "CASE WHEN json_type(text, '$.{0}') IN ('BIGINT', 'UBIGINT') THEN"
    " try_cast(json_extract_string(text, '$.{0}') AS BIGINT) END AS {0}"
)


def connect(temporary: str, memory: str = "600MB") -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with bounded memory use.

    It has two threads, enough for one to read while the other writes. More threads would take
    memory, and CPU cores from the program.

    Args:
        temporary: The folder into which DuckDB spills data that does not fit into memory.
        memory: The memory limit, in DuckDB's notation.
    """
    config: dict[str, Any] = {"threads": 2, "temp_directory": reachable(temporary)}
    # Never download extensions: DuckDB's package contains all that is needed to read runs.
    config.update(
        autoinstall_known_extensions=False,
        autoload_known_extensions=False,
        allow_community_extensions=False,
    )
    connection = duckdb.connect(config=config)
    connection.execute(f"SET memory_limit = '{memory}'")
    connection.execute("SET preserve_insertion_order = true")
    # since duckdb 2.0 a progress bar appears after two seconds by default; cursors inherit the
    # setting
    try:
        connection.execute("SET enable_progress_bar = false")
    except duckdb.InvalidInputException:
        pass  # duckdb 2.0 in a notebook without ipywidgets: the bar is off, and setting it raises
    return connection


def register(connection: duckdb.DuckDBPyConnection, piece: Piece, sources: list[Source]) -> str:
    """Register the arrays of a piece as DuckDB tables.

    Returns:
        A query for the records of the piece, with the columns of ``COLUMNS``, unsorted. The piece
        must stay alive as long as the query is used.
    """
    names = piece.names
    tables: dict[str, dict[str, Any]] = {
        "piece_records": {**piece.columns, "number": piece.columns["value"].view(np.float64)},
        "piece_names": {
            "code": np.arange(len(names), dtype=np.uint32),
            **{
                key: _texts([clean(getattr(name, key)) for name in names])
                for key in ("kind", "category", "name", "value_key")
            },
        },
        "piece_arguments": {
            "code": np.fromiter(piece.arguments, np.int64, len(piece.arguments)),
            "text": _texts([strict(text) for text in piece.arguments.values()]),
        },
        "piece_processes": {
            "code": np.arange(len(sources), dtype=np.uint32),
            "host": _texts([clean(source.process.host) for source in sources]),
            "rank": np.array([source.process.rank for source in sources], np.int32),
            "pid": np.array([source.process.pid for source in sources], np.int64),
        },
    }
    for name, columns in tables.items():
        connection.register(name, columns)
    double = f"coalesce(n.kind = 'counter' OR n.value_key IN {DOUBLES}, false)"
    number = f"CASE WHEN {double} THEN r.number END"
    value = f"CASE WHEN NOT {double} AND n.value_key IS NOT NULL THEN r.value END"
    expressions = {
        **{key: f"r.{key}" for key in ("start_ns", "duration_ns", "tid")},
        **{key: f"n.{key}" for key in ("kind", "category", "name", "value_key")},
        **{key: f"p.{key}" for key in ("host", "rank", "pid")},
        **{key: f"a.{key}" for key in ("epoch", "step")},
        "args": "a.text",
        "value": value,
        "number": number,
        "value_key": "coalesce(n.value_key, CASE n.kind WHEN 'counter' THEN 'value' END)",
    }
    columns_sql = ", ".join(
        f"CAST({expressions[key]} AS {kind}) AS {key}" for key, kind in COLUMNS.items()
    )
    arguments = (
        f"SELECT code, CAST(text AS VARCHAR) AS text, {_WHOLE.format('epoch')},"
        f" {_WHOLE.format('step')} FROM piece_arguments"
    )
    return (
        f"SELECT {columns_sql} FROM piece_records r JOIN piece_names n ON n.code = r.name JOIN"
        f" piece_processes p ON p.code = r.process LEFT JOIN ({arguments}) a ON a.code = r.args"
    )


def _texts(texts: list[str | None]) -> np.ndarray[Any, Any]:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


# Parquet v2 stores integers as differences: 6 bytes per event instead of 9.
OPTIONS = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2"


def write(
    connection: duckdb.DuckDBPyConnection, pieces: Pieces, path_of: Callable[[str, int], str]
) -> list[dict[str, Any]]:
    """Write all records of some processes of one rank to Parquet files.

    Args:
        path_of: Returns the path of the file to write for a kind of records and the number of a
            piece.

    Returns:
        The descriptions of the processes, to be stored with the records.

    Raises:
        duckdb.Error, OSError: Writing failed, for instance because the disk is full. Some of the
            files may exist.
    """
    tallies: dict[int, dict[str, Tally]] = {}
    columns = ", ".join(COLUMNS)
    for number, piece in enumerate(pieces):
        query = register(connection, piece, pieces.sources)
        kinds = {piece.names[code].kind for code in np.unique(piece.columns["name"]).tolist()}
        for kind in sorted(kinds):
            path = path_of(kind, number)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            selected = (
                f"SELECT {columns} FROM ({query}) WHERE kind = {quoted(kind)} ORDER BY start_ns,"
                " duration_ns DESC"
            )
            try:
                connection.execute(f"COPY ({selected}) TO {file(path)} ({OPTIONS})").fetchall()
            except duckdb.Error as exc:
                raise system_error(exc, path) or exc from None
        tally(piece, tallies)
    return [description(source, tallies.get(i)) for i, source in enumerate(pieces.sources)]


def file(path: str) -> str:
    """Return the path of a file as an SQL string literal. Raises OSError: its folder does not
    exist."""
    return quoted(reachable(path))


def quoted(text: str) -> str:
    """Return a text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def reachable(path: str) -> str:
    """Return a path to the same file that is valid UTF-8, as DuckDB requires. The folder may have
    any name; the file's own name must be UTF-8. Raises OSError: the folder cannot be opened."""
    try:
        path.encode()
        return path
    except UnicodeEncodeError:  # Python represents undecodable bytes as lone surrogates
        folder, name = os.path.split(path)
        while True:
            try:
                folder_there = os.stat(folder)
                break
            except FileNotFoundError:  # the caller will create this folder later
                folder, last = os.path.split(folder)
                name = os.path.join(last, name)
        return os.path.join(
            "/proc/self/fd",
            str(_descriptor(folder, folder_there.st_dev, folder_there.st_ino)),
            name,
        )


@cache
def _descriptor(folder: str, device: int, inode: int) -> int:
    """Return a file descriptor of a folder, the same one at each call. It stays open until the
    process ends, since DuckDB reopens its files whenever it reads them."""
    return os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0))


def system_error(exc: Exception, path: str) -> OSError | None:
    """Return the operating system's error behind an exception of DuckDB, if it concerns the given
    file; else None. Checked with duckdb 1.3.2 to 2.0."""
    text = str(exc)
    if os.path.basename(path) not in text:
        return None
    match = re.search(r'"errno": *"(\d+)"', text)
    number = int(match[1]) if match else 0
    if not match:
        text = text.rstrip('"}')
        number = next((n for n in range(1, 134) if text.endswith(f": {os.strerror(n)}")), 0)
    return OSError(number, os.strerror(number), path) if number else None


def no_room(exc: OSError, folder: str) -> VoirkitError:
    """Return the error to raise if a folder for temporary files cannot be written to."""
    hint = "Choose another folder for temporary files: TMPDIR=FOLDER voirkit ..."
    return VoirkitError(
        f"temporary files cannot be written there: {exc.strerror or exc}.", where=folder, next=hint
    )


class Trace(NamedTuple):
    """The processes and warnings of an opened trace, whose views are in the connection."""

    described: list[dict[str, Any]]  # descriptions of the processes
    warnings: list[str]  # messages about files that could not be read


def open_trace(
    run: str,
    connection: duckdb.DuckDBPyConnection,
    segments_folder: str,
    offset_ns: int = 0,
    ranks: Collection[int] | None = None,
) -> Trace:
    """Create the views ``spans`` and ``events`` of a run's trace. ``events`` has the additional
    column ``wall_ns``, and lacks the records that list the samples of batches.

    Args:
        connection: The connection in which the views are created.
        segments_folder: A folder for temporary Parquet copies of the segments, created if needed.
        offset_ns: Offset from ``start_ns`` to the wall clock, for processes without a description.
        ranks: Read only these ranks; None for all.

    Raises:
        OSError: One of the folders cannot be read or written.
    """
    for attempt in range(10):
        now = layout(run, ranks)
        live = _from_segments(run, now.segments, connection, f"{segments_folder}/{attempt}")
        after = layout(run, ranks)
        if (now.spans, now.processes) == (after.spans, after.processes):
            break  # no segments were compacted in the meantime
    warnings = [*live.warnings, *without_names(now.orphans)]
    described = [*live.described, *read_descriptions(now.processes, warnings)]
    whole = (
        now.spans
        if _are_readable(now.spans, connection)
        else [p for p in now.spans if _is_readable(p, connection, warnings)]
    )
    _make_views(
        connection, whole + live.paths, described_processes(described, offset_ns), offset_ns
    )
    return Trace(described, warnings)


class _Live(NamedTuple):
    """Temporary Parquet copies of segments, with descriptions of the processes."""

    paths: list[str]
    described: list[dict[str, Any]]
    warnings: list[str]


def _from_segments(
    run: str, segments: Sequence[Files], connection: duckdb.DuckDBPyConnection, folder: str
) -> _Live:
    live = _Live([], [], [])
    for rank in sorted({of_stem(process_files.stem)[1] for process_files in segments}):
        pieces = Pieces(
            [process_files for process_files in segments if of_stem(process_files.stem)[1] == rank]
        )

        def path_of(kind: str, number: int, rank: int = rank) -> str:
            live.paths.append(f"{folder}/{rank}-{kind}-{number}.parquet")
            return live.paths[-1]

        live.described.extend(write(connection, pieces, path_of))
        live.warnings.extend(damage(run, pieces))
    return live


def _are_readable(paths: Sequence[str], connection: duckdb.DuckDBPyConnection) -> bool:
    """True if all Parquet files are complete. For thousands of files, one query for all of them
    takes a quarter of the time of a query for each."""
    if not paths:
        return True
    schema = f"parquet_schema([{', '.join(map(file, paths))}])"
    query = (
        f"SELECT file_name FROM {schema} WHERE name IN {tuple(COLUMNS)} GROUP BY file_name HAVING"
        f" count(*) = {len(COLUMNS)}"
    )
    try:
        return len(connection.execute(query).fetchall()) == len(paths)
    except duckdb.Error:
        return False


def _is_readable(path: str, connection: duckdb.DuckDBPyConnection, warnings: list[str]) -> bool:
    try:
        connection.execute(
            f"SELECT {', '.join(COLUMNS)} FROM read_parquet({file(path)}, hive_partitioning ="
            " false) LIMIT 0"
        ).fetchall()
    except duckdb.Error:
        warnings.append(f"{path} cannot be read; what is in it is lost.")
        return False
    return True


def _make_views(
    connection: duckdb.DuckDBPyConnection,
    files: list[str],
    processes: list[Process],
    offset_ns: int,
) -> None:
    if files:
        listed = ", ".join(file(path) for path in files)
        connection.execute(
            f"CREATE VIEW spans AS SELECT {', '.join(COLUMNS)} FROM read_parquet([{listed}],"
            " hive_partitioning = false)"
        )
    else:
        nothing = ", ".join(f"CAST(NULL AS {kind}) AS {key}" for key, kind in COLUMNS.items())
        connection.execute(f"CREATE VIEW spans AS SELECT {nothing} WHERE false")
    offsets = {process.offset_ns for process in processes}
    if len(offsets) < 2:
        offset = offsets.pop() if offsets else offset_ns
        connection.execute(
            f"CREATE VIEW events AS SELECT *, start_ns + {offset} AS wall_ns FROM spans WHERE kind"
            f" <> '{BATCH_KIND}'"
        )
        return
    connection.execute(
        "CREATE TABLE clocks (host VARCHAR, rank INTEGER, pid BIGINT, offset_ns BIGINT, PRIMARY KEY"
        " (host, rank, pid))"
    )
    unique = {
        (process.host, process.rank, process.pid): process.offset_ns
        for process in reversed(processes)
    }
    connection.executemany(
        "INSERT INTO clocks VALUES (?, ?, ?, ?)", [[*key, offset] for key, offset in unique.items()]
    )
    connection.execute(
        f"CREATE VIEW events AS SELECT s.*, s.start_ns + coalesce(c.offset_ns, {offset_ns}) AS"
        " wall_ns FROM spans s LEFT JOIN clocks c ON s.host = c.host AND s.rank = c.rank AND s.pid"
        f" = c.pid WHERE s.kind <> '{BATCH_KIND}'"
    )


class CodedSpans:
    """Some records of a run as columns of integers. The name, arguments and owner of a record are
    replaced by codes: indices into the lists of distinct values.

    Args:
        connection: The connection of a run, with the table ``spans``.
        view: The name of a view to create for the records. The tables ``VIEW_names``,
            ``VIEW_arguments`` and ``VIEW_owners`` map values to codes.
        query: The SQL query that selects the records from ``spans``.
        owner: The columns that identify the owner of a record.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        view: str,
        query: str,
        owner: str = "host, pid, tid",
    ) -> None:
        self._connection, self._view, self._owner = connection, view, owner
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {query}")
        # The distinct (category, name), ascending. A code is an index into this list, and likewise
        # for the lists below.
        self.names: list[tuple[str, str]] = self._coded("names", "category, name")
        # the distinct arguments, as JSON texts
        self.arguments = [
            text
            for (text,) in self._coded(
                "arguments", "text", f"(SELECT coalesce(args, '{{}}') AS text FROM {view})"
            )
        ]
        self.owners: list[Any] = self._coded("owners", owner)  # distinct values of ``owner``

    def _coded(self, table_name: str, columns: str, source: str = "") -> list[Any]:
        table = f"{self._view}_{table_name}"
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT *, row_number() OVER (ORDER BY"
            f" {columns}) - 1 AS code FROM (SELECT DISTINCT {columns} FROM {source or self._view})"
        )
        return self.rows(f"SELECT {columns} FROM {table} ORDER BY code")

    def rows(self, query: str) -> list[Any]:
        """Return the rows of a query, which may refer to the view and the tables of codes."""
        return self._connection.execute(query).fetchall()

    def fetch(self, columns: str, where: str = "true") -> dict[str, Array]:
        """Return columns of the records that fulfil a condition, in no order. Each is an array of
        shape (n,), int64.

        Args:
            columns: SQL list of columns. ``n.code``, ``a.code`` and ``o.code`` are the codes of a
                record's name, arguments and owner.
            where: The condition in SQL.
        """
        view = self._view
        arrays = self._connection.execute(
            f"SELECT {columns} FROM (SELECT * FROM {view} WHERE {where}) s JOIN {view}_names n"
            f" USING (category, name) JOIN {view}_arguments a ON a.text = coalesce(s.args, '{{}}')"
            f" JOIN {view}_owners o USING ({self._owner})"
        ).fetchnumpy()
        return {
            key: np.asarray(values).astype(np.int64, copy=False) for key, values in arrays.items()
        }

    def ranges(self, most: int, where: str = "true") -> list[tuple[int | None, int | None]]:
        """Return half-open ranges of ``start_ns``, ascending, that together cover all records.

        Args:
            most: The approximate maximum number of records in a range.
            where: Condition in SQL on the records to count.

        Returns:
            (low, high) of each range; None stands for no bound.
        """
        ((n,),) = self.rows(f"SELECT count(*) FROM {self._view} WHERE {where}")
        edges: list[int] = []
        if n > most:
            parts = -(-n // most)
            shares = ", ".join(str(i / parts) for i in range(1, parts))
            ((times,),) = self.rows(
                f"SELECT approx_quantile(start_ns, [{shares}]) FROM {self._view} WHERE {where}"
            )
            edges = sorted({int(time) for time in times})
        return list(zip([None, *edges], [*edges, None], strict=True))


def within(low: int | None, high: int | None, column: str = "start_ns") -> str:
    """Return an SQL condition: a column lies in a half-open range, such as one from
    ``CodedSpans.ranges``. None stands for no bound."""
    conditions = []
    if low is not None:
        conditions.append(f"{column} >= {low}")
    if high is not None:
        conditions.append(f"{column} < {high}")
    return " AND ".join(conditions) or "true"
