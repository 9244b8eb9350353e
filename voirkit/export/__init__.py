"""Export formats for the trace of a run.

A format in another module is imported when it is requested. This module has the formats that are
one plain table, sorted by start: CSV with a header, one Parquet file, and an Arrow file (IPC,
"feather"). The Arrow file needs pyarrow (checked with 14 to 26).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from voirkit.errors import CommandLineError, VoirkitError, did_you_mean
from voirkit.plugins import installed_instruments
from voirkit.report.output import complete, copy
from voirkit.runs.parquet import OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection


class Format(NamedTuple):
    """An export format: an object of this class (``module:OBJECT``), or a module with these names.

    Attributes:
        write: Function that writes the selected part of an opened run to a target. The target is
            the path of a file, or of an existing folder if ``SUFFIX`` is empty; ``-`` is the
            standard output. Returns the paths of the files written. Raises VoirkitError, with a
            next step, if something is missing (a package, say), and OSError if, for instance, the
            disk is full.
    """

    NAME: str  # the format's name for ``--format``
    SUFFIX: str  # suffix of the file written; "" if the format writes a folder of files
    IS_TEXT: bool  # True if a terminal can show it
    write: Callable[[Run, Selection, str], list[str]]


# formats for any run, by name: (module or module:OBJECT, purpose)
_GENERAL = {
    "chrome": (
        "voirkit.export.trace_events:CHROME",
        "trace events in JSON, for Perfetto (ui.perfetto.dev), chrome://tracing and speedscope",
    ),
    "pfw": (
        "voirkit.export.trace_events:PFW",
        "DFTracer's trace, for DFAnalyzer: a folder with a .pfw.gz for each process",
    ),
    "parquet": ("voirkit.export:PARQUET", "a table, for DuckDB, pandas and polars"),
    "arrow": ("voirkit.export:ARROW", "the same as an Arrow file; needs pyarrow"),
    "csv": ("voirkit.export:CSV", "the same as text"),
}


def formats() -> dict[str, tuple[str, str]]:
    """Return (module, purpose) of each format by name: formats for any run, and those of
    instruments."""
    return {
        **_GENERAL,
        **{
            name: format
            for instrument in installed_instruments()
            for name, format in instrument.exports.items()
        },
    }


def load(name: str) -> Format:
    """Return the format with a name. Raises CommandLineError if there is no such format."""
    names = formats()
    if name not in names:
        hint = did_you_mean(name, names)
        if name == "perfetto":
            hint = "Perfetto opens the format 'chrome'."
        raise CommandLineError(
            f"{name!r} is no format.",
            where="--format",
            next=f"{hint}\nFormats: {', '.join(names)}.".strip(),
        )
    module, _, attribute = names[name][0].partition(":")
    exporter: Any = import_module(module)
    format: Format = getattr(exporter, attribute) if attribute else exporter
    return format


# formats that are one plain table

_ROWS = 100_000  # rows of an Arrow record batch


def process_table(run: Run, name: str, columns: str, rows: Sequence[Sequence[object]]) -> None:
    """Create a table of host, rank, pid and the given columns, for queries of a run."""
    run.connection().execute(
        f"CREATE OR REPLACE TABLE {name} (host VARCHAR, rank INTEGER, pid BIGINT, {columns})"
    )
    if rows:
        run.connection().executemany(
            f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows
        )


def query_table(run: Run, selection: Selection) -> str:
    """Return an SQL query for the selected events, sorted by start.

    Columns: ``start_ns`` (wall clock, since 1970), ``duration_ns, kind, category, name, epoch,
    step, value_key, value, number`` (value of a counter), ``args`` (JSON), ``rank, host, pid,
    process, tid, thread`` (``process`` and ``thread`` are names).
    """
    # a dictionary, because a process that re-executed itself is listed twice
    names = {(process.host, process.rank, process.pid): process.name for process in run.processes()}
    process_table(
        run, "named_processes", "process VARCHAR", [[*key, name] for key, name in names.items()]
    )
    process_table(
        run,
        "named_threads",
        "tid BIGINT, thread VARCHAR",
        [[*key, name] for key, name in run.threads().items()],
    )
    return (
        "SELECT wall_ns AS start_ns, duration_ns, kind, category, name, epoch, step, value_key,"
        " value, number, args, rank, host, pid, process, tid, thread FROM"
        f" ({run.events(selection)}) LEFT JOIN named_processes USING (host, rank, pid) LEFT JOIN"
        " named_threads USING (host, rank, pid, tid) ORDER BY start_ns, duration_ns DESC, rank,"
        " host, pid, tid, kind"
    )


# SQL that puts an apostrophe before strings that begin like a formula. A spreadsheet would evaluate
# such a cell, and a formula may send the table away; the apostrophe makes the cell a text. Words
# like ``-c`` are not changed.
_NO_FORMULAS = ", ".join(
    f"CASE WHEN regexp_matches({column}, '^([=@\\t\\r]|[+-].*[(|!])') THEN concat(chr(39),"
    f" {column}) ELSE {column} END AS {column}"
    for column in ("kind", "category", "name", "value_key", "args", "host", "process", "thread")
)


def write_csv(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one CSV file; it is compressed with gzip if its name ends in ``.gz``."""
    compression = "gzip" if target.endswith(".gz") else "none"
    query = f"SELECT * REPLACE ({_NO_FORMULAS}) FROM ({query_table(run, selection)})"
    copy(run, query, target, f"FORMAT csv, HEADER, COMPRESSION {compression}")
    return [target]


def write_parquet(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one Parquet file, with the columns of ``query_table``."""
    copy(run, query_table(run, selection), target, OPTIONS)
    return [target]


def write_arrow(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one Arrow file, compressed with zstd. Raises VoirkitError if pyarrow is missing."""
    try:
        import pyarrow.ipc as ipc
    except ImportError:
        raise VoirkitError(
            "the format needs pyarrow.",
            where="--format arrow",
            next="Install it: pip install 'voirkit[export]'",
        ) from None
    connection = run.connection()
    relation: Any = connection.sql(query_table(run, selection))
    # duckdb 1.5 introduced ``to_arrow_reader``, the name that duckdb 2.0 uses
    reader = (
        relation.to_arrow_reader(_ROWS)
        if hasattr(relation, "to_arrow_reader")
        else relation.fetch_arrow_reader(_ROWS)
    )
    options = ipc.IpcWriteOptions(compression="zstd")
    # Opened by Python, so that errors have Python's messages, not pyarrow's.
    with (
        complete(target) as path,
        open(path, "wb") as file,
        ipc.new_file(file, reader.schema, options=options) as table_file,
    ):
        for batch in reader:
            table_file.write_batch(batch)
    return [target]


CSV = Format("csv", ".csv", True, write_csv)
PARQUET = Format("parquet", ".parquet", False, write_parquet)
ARROW = Format("arrow", ".arrow", False, write_arrow)
