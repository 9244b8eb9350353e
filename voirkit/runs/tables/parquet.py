"""Records of the trace plane as Parquet files, sorted by start: zstd, texts as dictionaries, times as differences."""

from __future__ import annotations

import os
from collections.abc import Callable

import duckdb
import numpy as np

from voirkit.runs.tables.no_room import of_the_system
from voirkit.runs.tables.spans import COLUMNS, register
from voirkit.runs.tables.utf8_paths import reachable
from voirkit.trace.pieces import Pieces

# v2 keeps whole numbers as differences: 6 bytes an event instead of 9.
OPTIONS = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2"


def write(connection: duckdb.DuckDBPyConnection, pieces: Pieces, path_of: Callable[[str, int], str]) -> int:
    """Write all records of some processes of one rank.

    Args:
        connection: Of ``spans.connect``.
        pieces: What to write.
        path_of: The path of the file for a kind and the number of a piece.

    Returns:
        How many records were written.

    Raises:
        duckdb.Error, OSError: The disk is full, for instance; the files may be there in part.
    """
    events = 0
    columns = ", ".join(COLUMNS)
    for number, piece in enumerate(pieces):
        query = register(connection, piece, pieces.sources)
        kinds = {piece.names[code].kind for code in np.unique(piece.columns["name"]).tolist()}
        for kind in sorted(kinds):
            path = path_of(kind, number)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            chosen = f"SELECT {columns} FROM ({query}) WHERE kind = {quoted(kind)} ORDER BY start_ns, duration_ns DESC"
            try:
                connection.execute(f"COPY ({chosen}) TO {file(path)} ({OPTIONS})").fetchall()
            except duckdb.Error as exc:
                raise of_the_system(exc, path) or exc from None
        events += len(piece.columns["tid"])
    return events


def file(path: str) -> str:
    """The path of a file as a literal of SQL.

    Raises:
        OSError: Its folder is not there.
    """
    return quoted(reachable(path))


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
