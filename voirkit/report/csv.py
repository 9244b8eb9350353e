"""CSV with a header: a line for each event."""

from __future__ import annotations

from voirkit.report.columns import table
from voirkit.report.output import complete
from voirkit.runs.parquet import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX = "csv", ".csv"


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file; compressed with gzip if its name ends in ``.gz``."""
    compression = "gzip" if target.endswith(".gz") else "none"
    with complete(target) as path:
        run.execute(f"COPY ({table(run, selection)}) TO {quoted(path)} (FORMAT csv, HEADER, COMPRESSION {compression})")
    return [target]
