"""One Parquet file, sorted by start, with the columns of the other tables."""

from __future__ import annotations

from voirkit.export.columns import table
from voirkit.report.output import copy
from voirkit.runs.tables.parquet import OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "parquet", ".parquet", False


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file."""
    copy(run, table(run, selection), target, OPTIONS)
    return [target]
