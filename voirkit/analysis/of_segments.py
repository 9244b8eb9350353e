"""The steps of a small run, straight from its segments: DuckDB takes longer to start (0.1 s of CPU and more) than there is to read.

Such segments are left as they are; whoever opens the run first puts them to rest.
"""

from __future__ import annotations

import os

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.phases import KIND, Records, ranks
from voirkit.trace.layout import folder_of
from voirkit.trace.reader import read

SMALL = 1 << 20  # bytes: 32 thousand records, some five thousand steps
_OF_STEPS = {KIND, "device"}


def of_segments(run: str) -> list[Rank] | None:
    """What a run did that has recorded little, in one process, and nothing but steps; None of any other."""
    if not _is_small(folder_of(run)):
        return None
    columns = read(run)
    if not {name.kind for name in columns.names} <= _OF_STEPS:
        return None  # annotations are wanted as Parquet
    chosen = np.array([name.kind == KIND for name in columns.names], dtype=bool)[columns["name"]]
    names = [(name.category, name.name) for name in columns.names]
    processes = [(process.rank, process.host, process.pid) for process in columns.processes]
    keys = ("start_ns", "duration_ns", "name", "args", "value", "process", "tid")
    return ranks(Records(**{key: columns[key][chosen] for key in keys}, names=names, arguments=columns.arguments, processes=processes))


def _is_small(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry.stat().st_size for entry in entries}
    except OSError:
        return False
    alone = sum(name.endswith(".names") for name in found) == 1
    return alone and all(name.endswith((".names", ".seg")) for name in found) and sum(found.values()) <= SMALL
