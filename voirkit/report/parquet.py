"""One Parquet file, sorted by start, with the columns of the other tables."""

from __future__ import annotations

from voirkit.report.columns import table
from voirkit.report.output import complete
from voirkit.runs.parquet import OPTIONS, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX = "parquet", ".parquet"


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file."""
    with complete(target) as path:
        run.execute(f"COPY ({table(run, selection)}) TO {quoted(path)} ({OPTIONS})")
    return [target]
