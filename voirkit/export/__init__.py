"""Formats that the trace of any run can be written in, and what a format is; those with a module
are imported when they are requested.

Here are those that are one plain table, sorted by start: CSV with a header, one Parquet file, an
Arrow file (IPC, "feather"), which needs pyarrow (checked with 14 to 26).
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
    """A format: an object of this class (``module:OBJECT``), or a module that has the same names.

    Attributes:
        write: Writes the selected part of an opened run to a target: the path of the file, or,
            without a ``SUFFIX``, of a folder that is there; ``-`` is the standard output. Returns
            the files that were written. Raises VoirkitError, with a next step, if something is
            missing (a package, say), and OSError if the disk is full, for instance.
    """

    NAME: str  # what ``--format`` calls it
    SUFFIX: str  # of the file that it writes; "" if it writes a folder of files
    IS_TEXT: bool  # whether a terminal can show it
    write: Callable[[Run, Selection, str], list[str]]


# name: (module or module:OBJECT, what it is for), of any run
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
    """(module, what it is for) of each format by name: those of any run, and those of
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
    """The format of a name. Raises CommandLineError: there is none of that name."""
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


# one plain table

_ROWS = 100_000  # of a record batch


def process_table(run: Run, name: str, columns: str, rows: Sequence[Sequence[object]]) -> None:
    """Make a table of (host, rank, pid, the other columns) for queries of a run."""
    run.connection().execute(
        f"CREATE OR REPLACE TABLE {name} (host VARCHAR, rank INTEGER, pid BIGINT, {columns})"
    )
    if rows:
        run.connection().executemany(
            f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows
        )


def query_table(run: Run, selection: Selection) -> str:
    """A query for the selected events, sorted by start.

    Columns: ``start_ns`` (wall clock, since 1970), ``duration_ns, kind, category, name, epoch,
    step, value_key, value, number`` (that of a counter), ``args`` (JSON), ``rank, host, pid,
    process, tid, thread`` (the names of both).
    """
    # one that re-executed itself is there twice
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


# A spreadsheet computes what begins so (``-c`` is left), and a formula may send the table away.
# With an apostrophe in front it is a text.
_NO_FORMULAS = ", ".join(
    f"CASE WHEN regexp_matches({column}, '^([=@\\t\\r]|[+-].*[(|!])') THEN concat(chr(39),"
    f" {column}) ELSE {column} END AS {column}"
    for column in ("kind", "category", "name", "value_key", "args", "host", "process", "thread")
)


def write_csv(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file; compressed with gzip if its name ends in ``.gz``."""
    compression = "gzip" if target.endswith(".gz") else "none"
    query = f"SELECT * REPLACE ({_NO_FORMULAS}) FROM ({query_table(run, selection)})"
    copy(run, query, target, f"FORMAT csv, HEADER, COMPRESSION {compression}")
    return [target]


def write_parquet(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file, with the columns of the other tables."""
    copy(run, query_table(run, selection), target, OPTIONS)
    return [target]


def write_arrow(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file, compressed with zstd. Raises VoirkitError: pyarrow is not installed."""
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
    # duckdb 1.5 gave the method its name of 2.0
    reader = (
        relation.to_arrow_reader(_ROWS)
        if hasattr(relation, "to_arrow_reader")
        else relation.fetch_arrow_reader(_ROWS)
    )
    options = ipc.IpcWriteOptions(compression="zstd")
    # A file of python's, since its errors are python's: those of arrow have no number.
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
