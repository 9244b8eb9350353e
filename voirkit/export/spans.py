"""Arrangement of a run's spans in timelines: lanes of a thread, names of records and of loader
workers, arrows from a batch to its use.

Records hold no parents, so spans nest by their times alone. Spans of one thread may also overlap
without nesting (coroutines and generators that take turns). A viewer that draws a thread as one
stack would show wrong durations for these spans, so they get lanes of their own beside the thread.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from voirkit.plugins import installed_instruments
from voirkit.runs.opened import Run

H = TypeVar("H", bound=Hashable)


def overlapping(spans: Iterable[tuple[H, int, int]]) -> Iterator[tuple[H, int, int, int]]:
    """Yield the spans that do not lie in lane 0 of their thread. A span's lane is the first in
    which it lies wholly within each span that is open at its start.

    Args:
        spans: (thread, start, end), in any unit, ascending by start; of spans with the same start
            the longer first.

    Yields:
        (thread, start, end, lane); the lane is at least 1.
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
MOMENTS = ("queued", "arrived", "consumed")  # marks in the life of a batch, without a duration

# SQL over the columns of `events`. `ARROWS` selects the rows that arrows connect: the span in which
# a batch is made, and the mark where the program receives the batch. `ARROW` is the value that the
# rows of one arrow share. `ARROW_AT` is the time at which the arrow touches a row: the last
# nanosecond of a span, since for a viewer the span no longer exists at its end.
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
    """Return a dict from the (category, name) of instruments' records to their labels in
    timelines."""
    names: dict[tuple[str, str], str] = {}
    for instrument in installed_instruments():
        for record, label in instrument.event_names.items():
            category, _, name = record.partition(".")
            names[category, name] = label
    return names


def workers(run: Run) -> dict[tuple[str, int, int], str]:
    """Return a dict from the (host, rank, pid) of each loader worker process to its name. A name
    includes the loader's number if there are several loaders."""
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
