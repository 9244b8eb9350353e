"""The trace of a run in DuckDB: records as rows, one schema whether they come from segments or lie
in Parquet, and as Parquet files.

Files are sorted by start: zstd, texts as dictionaries, times as differences. Checked with duckdb
1.3.2 to 2.0, numpy 1.24 to 2.5. DuckDB reads numpy arrays without a copy, and needs neither pandas
nor pyarrow for it.
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

# The table `spans`; also the schema of the Parquet files, in which `kind` and `rank` stand in the
# names of the folders.
COLUMNS = {
    "start_ns": "BIGINT",  # of the host's clock, time.perf_counter_ns
    "duration_ns": "BIGINT",
    "category": "VARCHAR",
    "name": "VARCHAR",
    "value": "BIGINT",  # the event's own number, if its name has a key for one
    "number": "DOUBLE",  # a counter's
    "value_key": "VARCHAR",
    "epoch": "BIGINT",  # the arguments epoch and step, if they are whole numbers
    "step": "BIGINT",
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
    """A connection that holds itself to a bounded memory, and puts what is more into a folder. Two
    threads: one that reads and one that writes keep each other busy, more take memory and the
    program's cores."""
    config: dict[str, Any] = {"threads": 2, "temp_directory": reachable(temporary)}
    # What reads runs fetches no code: all that is needed is in the package of DuckDB.
    config.update(
        autoinstall_known_extensions=False,
        autoload_known_extensions=False,
        allow_community_extensions=False,
    )
    connection = duckdb.connect(config=config)
    connection.execute(f"SET memory_limit = '{memory}'")
    connection.execute("SET preserve_insertion_order = true")
    try:  # it is on by default since duckdb 2.0, after two seconds; cursors have it from here
        connection.execute("SET enable_progress_bar = false")
    except duckdb.InvalidInputException:
        pass  # in a notebook without ipywidgets, where it is off, and cannot be set (duckdb 2.0)
    return connection


def register(connection: duckdb.DuckDBPyConnection, piece: Piece, sources: list[Source]) -> str:
    """Make the records of a piece known to DuckDB.

    Returns:
        A query for them with the columns of ``COLUMNS``, not sorted. The piece must live as long as
        it is used.
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


# v2 keeps whole numbers as differences: 6 bytes an event instead of 9.
OPTIONS = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2"


def write(
    connection: duckdb.DuckDBPyConnection, pieces: Pieces, path_of: Callable[[str, int], str]
) -> list[dict[str, Any]]:
    """Write all records of some processes of one rank.

    Args:
        path_of: The path of the file for a kind and the number of a piece.

    Returns:
        What is to be kept of the processes.

    Raises:
        duckdb.Error, OSError: The disk is full, for instance; the files may be there in part.
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
    """The path of a file as a literal of SQL. Raises OSError: its folder is not there."""
    return quoted(reachable(path))


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def reachable(path: str) -> str:
    """A path in UTF-8, which is all that DuckDB takes, to a file whose folder may be called
    anything; its own name is UTF-8. Raises OSError: the folder is not there."""
    try:
        path.encode()
        return path
    except UnicodeEncodeError:  # python has odd bytes as halves of surrogate pairs
        folder, name = os.path.split(path)
        while True:
            try:
                folder_there = os.stat(folder)
                break
            except FileNotFoundError:  # it is about to be made
                folder, last = os.path.split(folder)
                name = os.path.join(last, name)
        return os.path.join(
            "/proc/self/fd",
            str(_descriptor(folder, folder_there.st_dev, folder_there.st_ino)),
            name,
        )


@cache
def _descriptor(folder: str, device: int, inode: int) -> int:
    """One for each folder, open as long as the process lives: DuckDB opens files whenever it reads
    them."""
    return os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0))


def system_error(exc: Exception, path: str) -> OSError | None:
    """The error of the operating system in DuckDB's, if it is about that file; checked with duckdb
    1.3.2 to 2.0."""
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
    """The error for what could not be put into a folder of temporary files."""
    hint = "Choose another folder for temporary files: TMPDIR=FOLDER voirkit ..."
    return VoirkitError(
        f"temporary files cannot be written there: {exc.strerror or exc}.", where=folder, next=hint
    )


class Trace(NamedTuple):
    """What has been opened: the tables are in the connection."""

    described: list[dict[str, Any]]
    warnings: list[str]


def open_trace(
    run: str,
    connection: duckdb.DuckDBPyConnection,
    segments_folder: str,
    offset_ns: int = 0,
    ranks: Collection[int] | None = None,
) -> Trace:
    """Make the views ``spans`` and ``events`` of a run's trace; ``events`` has the column
    ``wall_ns`` too, and no records of batches.

    Args:
        connection: Where they are made.
        spare: A folder, made if need be, for what is still in segments.
        offset_ns: From the clock to the wall clock for a process of which nothing is known but its
            records.
        ranks: Of which ranks; all by default.

    Raises:
        OSError: The folders cannot be read or written.
    """
    for attempt in range(10):
        now = layout(run, ranks)
        live = _from_segments(run, now.segments, connection, f"{segments_folder}/{attempt}")
        after = layout(run, ranks)
        if (now.spans, now.processes) == (after.spans, after.processes):
            break  # nobody put the rest of it to rest meanwhile
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
    """What is in segments: as Parquet files, with descriptions of the processes."""

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
    """Whether all files are whole; asked of all at once, of thousands it takes a quarter of the
    time."""
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
    """Some records of a run as columns of numbers: what they are of, their arguments and whose they
    are become indices.

    Args:
        connection: Of a run, with the table ``spans``.
        view: What queries call these records. The tables ``VIEW_names``, ``VIEW_arguments`` and
            ``VIEW_owners`` have the codes.
        query: For them, of ``spans``.
        owner: The columns that say whose a record is.
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
        # (category, name) by code, ascending; as are those below
        self.names: list[tuple[str, str]] = self._coded("names", "category, name")
        # as JSON
        self.arguments = [
            text
            for (text,) in self._coded(
                "arguments", "text", f"(SELECT coalesce(args, '{{}}') AS text FROM {view})"
            )
        ]
        self.owners: list[Any] = self._coded("owners", owner)  # the values of ``owner``

    def _coded(self, table_name: str, columns: str, source: str = "") -> list[Any]:
        table = f"{self._view}_{table_name}"
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT *, row_number() OVER (ORDER BY"
            f" {columns}) - 1 AS code FROM (SELECT DISTINCT {columns} FROM {source or self._view})"
        )
        return self.rows(f"SELECT {columns} FROM {table} ORDER BY code")

    def rows(self, query: str) -> list[Any]:
        """The rows of a query, which may name the view and its tables."""
        return self._connection.execute(query).fetchall()

    def fetch(self, columns: str, where: str = "true") -> dict[str, Array]:
        """Columns of the records for which something holds, of int64, each of shape (n,), in no
        order.

        Args:
            columns: Of the records; ``n.code``, ``a.code`` and ``o.code`` are the codes of name,
                arguments and owner.
            where: In SQL.
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
        """Ranges of ``start_ns``, ascending, each with about so many records at most; None: no
        bound."""
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
    """In SQL, whether a column lies in a half-open range, such as one of ``ranges``; None: no
    bound."""
    conditions = []
    if low is not None:
        conditions.append(f"{column} >= {low}")
    if high is not None:
        conditions.append(f"{column} < {high}")
    return " AND ".join(conditions) or "true"
