"""CSV with a header: a line for each event."""

from __future__ import annotations

from voirkit.export.columns import table
from voirkit.report.output import copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "csv", ".csv", True


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file; compressed with gzip if its name ends in ``.gz``."""
    compression = "gzip" if target.endswith(".gz") else "none"
    copy(run, table(run, selection), target, f"FORMAT csv, HEADER, COMPRESSION {compression}")
    return [target]
