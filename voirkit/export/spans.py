"""What the formats of spans have in common: which span of a thread lies in which, and what values
they may hold.

And what they call the processes, threads and loader workers of a run, and which arrows lead from a
batch to its use.

Nesting follows from times alone, since records hold no parents. Spans of one thread may also
overlap without one holding the other (coroutines and generators that take turns). A viewer that
draws a thread as one stack would show wrong durations for those; here they get lanes of their own
beside it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from voirkit.plugins import installed_instruments
from voirkit.runs.opened import Run

Key = tuple[str, int, int]  # (host, rank, pid): which process

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

# The argument that connects spans, also of several threads and processes: arrows lead from one to
# the next of the same value.
FLOW = "flow"

_INT64 = range(-(2**63), 2**63)


class Nesting(Generic[T]):
    """The open spans of one thread, at a moment that only goes forward. Spans are added by their
    start; of those with the same start the longer first."""

    def __init__(self) -> None:
        self._lanes: list[list[tuple[int, int, T]]] = [[]]

    def ended(self, now_ns: int | None = None) -> Iterator[tuple[int, int, T]]:
        """Take out the spans that are over at this moment (all of them, with None). Yields (end_ns,
        lane, span); within a lane in the order in which they end."""
        for number, lane in enumerate(self._lanes):
            while lane and (now_ns is None or lane[-1][1] <= now_ns):
                _, end_ns, value = lane.pop()
                yield end_ns, number, value

    def holder(self, end_ns: int) -> T | None:
        """The innermost open span that lasts until then or longer."""
        holding = [span for lane in self._lanes for span in reversed(lane) if span[1] >= end_ns]
        # of the same start, the first: the inner ones come first
        return max(holding, key=lambda span: span[0])[2] if holding else None

    def add(self, start_ns: int, end_ns: int, what: T) -> int:
        """Open a span; what was over before its start has been taken out.

        Returns:
            Its lane: the first in which it lies wholly within the innermost open span. 0 unless
            spans overlap.
        """
        for number, lane in enumerate(self._lanes):
            if not lane or lane[-1][1] >= end_ns:
                lane.append((start_ns, end_ns, what))
                return number
        self._lanes.append([(start_ns, end_ns, what)])
        return len(self._lanes) - 1


def overlapping(spans: Iterable[tuple[H, int, int]]) -> Iterator[tuple[H, int, int, int]]:
    """The spans that do not lie in lane 0 of their thread; the same lanes as those of ``Nesting``,
    for many spans at once. ``spans``: (thread, start, end), in any unit, in the order that
    ``Nesting`` asks for. Yields (thread, start, end, lane), the lane from 1."""
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


def unicode_text(text: str) -> str:
    """The text, with what UTF-8 cannot hold (half a surrogate pair: a file name of odd bytes, say)
    as escape sequences."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def typed(value: object) -> tuple[str, object]:
    """The field that a value of an argument is in, of OTLP's and of Perfetto's messages alike, and
    the value as that can hold it."""
    if isinstance(value, bool):
        return "bool_value", value
    if isinstance(value, int) and value in _INT64:
        return "int_value", value
    if isinstance(value, float):
        return "double_value", value
    return "string_value", unicode_text(str(value))


# names of processes and threads, arrows from a batch to its use


LOADER = "loader"
_MADE, _USED = ("data", "preprocess"), ("batch", "consumed")
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


def arrow_of(
    rank: int, category: str, name: str, arguments: Mapping[str, Any]
) -> tuple[object, ...] | None:
    """What the two ends of an arrow have in common; None for what is no end of one. It begins where
    a worker begins with a batch."""
    if (category, name) == _MADE and arguments.get("worker", -1) < 0:
        return None
    if (category, name) not in (_MADE, _USED):
        return None
    return (
        "batch",
        rank,
        arguments.get("loader"),
        arguments.get("episode"),
        arguments.get("batch"),
    )


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


class Labels:
    """Names for people: ``main.py``, ``main.py (rank 1)``, ``main.py (rank 1, node7)``."""

    def __init__(self, run: Run) -> None:
        self.processes = {
            (process.host, process.rank, process.pid): process for process in run.processes()
        }
        self._ranks = len({rank for _, rank, _ in self.processes}) > 1
        self._workers = workers(run)
        self._hosts = len({host for host, _, _ in self.processes}) > 1

    def process(self, key: Key) -> str:
        """The name of a process, with its rank and host where there are several."""
        host, rank, pid = key
        process = self.processes.get(key)
        place = ([f"rank {rank}"] if self._ranks else []) + ([host] if self._hosts else [])
        name = (
            self._workers.get(key)
            or (process.name if process is not None else "")
            or f"process {pid}"
        )
        return f"{name} ({', '.join(place)})" if place else name

    def thread(self, key: Key, tid: int) -> str:
        """The name of a thread."""
        process = self.processes.get(key)
        name = process.threads.get(tid) if process is not None else None
        return name or ("MainThread" if tid == key[2] else f"thread {tid}")
