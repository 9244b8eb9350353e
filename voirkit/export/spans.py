"""How timelines arrange the spans of a run: lanes of a thread, names of records and of loader
workers, arrows from a batch to its use.

Nesting follows from times alone, since records hold no parents. Spans of one thread may also
overlap without one holding the other (coroutines and generators that take turns). A viewer that
draws a thread as one stack would show wrong durations for those; here they get lanes of their own
beside it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from voirkit.plugins import installed_instruments
from voirkit.runs.opened import Run

H = TypeVar("H", bound=Hashable)


def overlapping(spans: Iterable[tuple[H, int, int]]) -> Iterator[tuple[H, int, int, int]]:
    """The spans that do not lie in lane 0 of their thread. A span's lane is the first in which it
    lies wholly within each span that is open at its start.

    Args:
        spans: (thread, start, end), in any unit, by their start; of those with the same start the
            longer first.

    Yields:
        (thread, start, end, lane), the lane from 1.
    """
    threads: dict[H, list[list[int]]] = {}
    for thread, start, end in spans:
        lanes = threads.get(thread)
        if lanes is None:
            lanes = threads[thread] = [[]]
        lane = 0
        for ends in lanes:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or ends[-1] >= end:
                ends.append(end)
                break
            lane += 1
        else:
            lanes.append([end])
        if lane:
            yield thread, start, end, lane


LOADER = "loader"
MOMENTS = ("queued", "arrived", "consumed")  # of batches: without a duration

# In SQL, over the columns of `events`: the rows that an arrow connects, what is the same of them,
# and where it touches them: the last nanosecond of the making, since at its end it is over for a
# viewer, and the mark where the batch was given to the program.
ARROWS = (
    f"(kind = '{LOADER}' AND ((category = 'data' AND name = 'preprocess') OR (category = 'batch'"
    " AND name = 'consumed')))"
)
ARROW = (
    "concat('batch ', rank, ' ', json_extract_string(args, '$.loader'), ' ',"
    " json_extract_string(args, '$.episode'), ' ', value)"
)
ARROW_AT = "since_ns + greatest(duration_ns - 1, 0)"
_IS_BATCH = f"category = 'batch' AND name IN {MOMENTS}"
_IS_COST = "category = 'cost' OR (category = 'data' AND name = 'cpu')"
IS_MOMENT = f"(kind = '{LOADER}' AND (({_IS_BATCH}) OR {_IS_COST}))"


def event_names() -> dict[tuple[str, str], str]:
    """What timelines call records of instruments, by their category and name."""
    names: dict[tuple[str, str], str] = {}
    for instrument in installed_instruments():
        for record, label in instrument.event_names.items():
            category, _, name = record.partition(".")
            names[category, name] = label
    return names


def workers(run: Run) -> dict[tuple[str, int, int], str]:
    """Names of the processes that load, by (host, rank, pid); with the loader's number where there
    are several."""
    query = (
        f"SELECT DISTINCT host, rank, pid, args FROM spans WHERE kind = '{LOADER}' AND category ="
        " 'data' AND name = 'preprocess' AND args IS NOT NULL ORDER BY ALL"
    )
    rows = [(key, json.loads(text)) for batch in run.fetch(query) for *key, text in batch]
    several = len({arguments.get("loader") for _, arguments in rows}) > 1
    named = {}
    for (host, rank, pid), arguments in rows:
        if arguments.get("worker", -1) >= 0:
            named[host, rank, pid] = f"worker {arguments['worker']}" + (
                f" of loader {arguments.get('loader')}" if several else " of the loader"
            )
    return named
