"""An Arrow file (IPC, "feather"), for pandas, polars and others. Needs pyarrow, checked with 14 to 26."""

from __future__ import annotations

from voirkit.errors import VoirkitError
from voirkit.export.columns import table
from voirkit.report.output import complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "arrow", ".arrow", False
_ROWS = 100_000  # of a record batch


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file, compressed with zstd.

    Raises:
        VoirkitError: pyarrow is not installed.
    """
    try:
        import pyarrow.ipc as ipc
    except ImportError:
        raise VoirkitError("the format needs pyarrow.", where="--format arrow", next="Install it: pip install 'voirkit[export]'") from None
    connection = run.connection()
    relation: Any = connection.sql(table(run, selection))
    # duckdb 1.5 gave the method its name of 2.0
    reader = relation.to_arrow_reader(_ROWS) if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader(_ROWS)
    options = ipc.IpcWriteOptions(compression="zstd")
    # A file of python's, since its errors are python's: those of arrow have no number.
    with complete(target) as path, open(path, "wb") as file, ipc.new_file(file, reader.schema, options=options) as table_file:
        for batch in reader:
            table_file.write_batch(batch)
    return [target]
