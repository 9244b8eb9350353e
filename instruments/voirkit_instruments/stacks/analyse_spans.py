"""What was going on when a sample was taken: loader operations and phases of training, by thread and time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import NONE, Array, exclusive_ns, innermost
from voirkit.analysis.steps import COMMUNICATION, MEANING, PARTS
from voirkit.runs.parquet import quoted
from voirkit.runs.summary import PHASES

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

OPERATION, PHASE, ELSEWHERE = "operation", "phase", "elsewhere"
COLLATE, ITEM = "collate_fn", ".__getitem__"
_ARGS = "CASE WHEN s.kind = 'loader' AND s.category = 'data' AND s.name IN ('item', 'inner', 'items') THEN coalesce(s.args, '') ELSE '' END"
_NAMED = f"spans s JOIN native_names n ON n.kind = s.kind AND n.category = s.category AND n.name = s.name AND n.args = {_ARGS}"
_MEANINGS = (*PHASES[:-1], *PARTS)
Name = tuple[str, str]  # (operation or phase, its name)
Thread = tuple[int, int]  # pid, tid


def name_of(kind: str, category: str, name: str, args: str = "") -> Name | None:
    """Of a record: the operation or phase that it is, or None. What a dataset does itself and collation are named as in ``loader``."""
    if kind == "loader":
        if category == "operation":
            return OPERATION, name
        if (category, name) == ("data", "collate"):
            return OPERATION, COLLATE
        if category == "data" and name in ("item", "inner", "items"):
            return OPERATION, str(json.loads(args or "{}").get("source") or f"dataset{ITEM}")
        return None
    if kind == "phase":
        meaning = COMMUNICATION if category == "comm" else MEANING.get((category, name))
        return None if meaning is None else (PHASE, _MEANINGS[meaning])
    return None


@dataclass(frozen=True)
class Spans:
    """Spans of one group (operations, or phases) of one thread, ascending by start, the longer of two first; arrays of shape (n,)."""

    start_ns: Array
    end_ns: Array
    name: Array

    def owners(self, at_ns: Array) -> Any:
        """The name of the innermost span that each instant lies in; -1 where there is none."""
        at = innermost(self.start_ns, self.end_ns, at_ns)
        return np.where(at == NONE, NONE, self.name[at])

    def elapsed_ns(self, from_ns: int, to_ns: int, names: int) -> Any:
        """By name: how long, between two instants, it was the innermost. Shape (names,)."""
        start = np.clip(self.start_ns, from_ns, to_ns)
        own = exclusive_ns(start, np.clip(self.end_ns, from_ns, to_ns) - start)
        return np.bincount(self.name, weights=own, minlength=names).astype(np.int64)

    def starts(self, from_ns: int, to_ns: int, names: int) -> Any:
        """By name: how many began between two instants, without those inside one of the same name. Shape (names,)."""
        counts = np.zeros(names, dtype=np.int64)
        for name in np.unique(self.name).tolist():
            own = self.name == name
            start, reached = self.start_ns[own], np.maximum.accumulate(self.end_ns[own])
            outermost = np.concatenate(([True], start[1:] >= reached[:-1]))
            counts[name] = np.count_nonzero(outermost & (start >= from_ns) & (start < to_ns))
        return counts


class RecordedSpans:
    """The operations and phases of one rank's processes on one host.

    Args:
        run: The run, opened.
        rank: Its number.
        host: Its host's name.

    Attributes:
        names: By number.
        leading: By group and process: the thread with most of them, the one that trains, or loads.
        processes: Those that recorded anything.
    """

    def __init__(self, run: Run, rank: int, host: str) -> None:
        self._connection = run.connection()
        self._where = f"rank = {int(rank)} AND host = {quoted(host)}"
        chosen = f"SELECT DISTINCT kind, category, name, {_ARGS} AS args FROM spans s WHERE kind IN ('loader', 'phase') AND {self._where}"
        rows = self._connection.execute(f"{chosen} ORDER BY ALL").fetchall()
        known = [(row, name) for row in rows if (name := name_of(*row)) is not None]
        self.names: list[Name] = sorted({name for _, name in known})
        codes = {name: i for i, name in enumerate(self.names)}
        columns = "kind VARCHAR, category VARCHAR, name VARCHAR, args VARCHAR, code BIGINT"
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE native_names ({columns})")
        if known:
            self._connection.executemany("INSERT INTO native_names VALUES (?, ?, ?, ?, ?)", [(*row, codes[name]) for row, name in known])
        self._is_phase = np.array([group == PHASE for group, _ in self.names], dtype=bool)
        found = self._connection.execute(
            f"SELECT s.kind, pid, tid, count(*) AS n FROM {_NAMED} WHERE {self._where} GROUP BY ALL ORDER BY n, tid DESC"
        ).fetchall()
        self.leading: dict[str, dict[int, int]] = {OPERATION: {}, PHASE: {}}
        for kind, pid, tid, _ in found:
            self.leading[PHASE if kind == "phase" else OPERATION][pid] = tid
        pids = self._connection.execute(f"SELECT DISTINCT pid FROM spans WHERE {self._where}").fetchall()
        self.processes = {pid for (pid,) in pids}

    def between(self, from_ns: int, to_ns: int) -> dict[str, dict[Thread, Spans]]:
        """By group and thread: the spans of which a part lies between two instants."""
        columns = self._connection.execute(
            "SELECT start_ns, start_ns + duration_ns AS end_ns, pid, tid, code "
            f"FROM {_NAMED} WHERE {self._where} AND start_ns <= {to_ns} "
            f"AND start_ns + duration_ns >= {from_ns} ORDER BY pid, tid, start_ns, end_ns DESC"
        ).fetchnumpy()
        start, end, pid, tid, code = (np.asarray(columns[key]) for key in ("start_ns", "end_ns", "pid", "tid", "code"))
        found: dict[str, dict[Thread, Spans]] = {OPERATION: {}, PHASE: {}}
        for thread, part in _parts(pid, tid):
            phases = self._is_phase[code[part]]
            for group, chosen in ((OPERATION, ~phases), (PHASE, phases)):
                if chosen.any():
                    found[group][thread] = Spans(start[part][chosen], end[part][chosen], code[part][chosen])
        return found

    def owners(self, group: str, spans: Mapping[Thread, Spans], pid: int, tid: int, at_ns: Array) -> tuple[Array, Array]:
        """What a thread was in at some instants; where it was in nothing, what the thread was in that trains, or loads, in its process.

        Args:
            group: ``OPERATION`` or ``PHASE``.
            spans: Of that group, around that time.
            pid: The process.
            tid: The thread.
            at_ns: Instants. Shape (n,).

        Returns:
            The numbers of the names, ``NONE`` where there is nothing, and whether each is of that other thread.
        """
        empty = np.full(len(at_ns), NONE, dtype=np.int64)
        own = spans[pid, tid].owners(at_ns) if (pid, tid) in spans else empty
        leading = self.leading[group].get(pid, tid)
        if leading == tid or (pid, leading) not in spans:
            return own, empty != NONE
        theirs = spans[pid, leading].owners(at_ns)
        return np.where(own == NONE, theirs, own), own == NONE

    def reach(self, pid: int, tid: int) -> tuple[int, int]:
        """From when to when a thread had phases."""
        found = self._connection.execute(
            f"SELECT min(start_ns), max(start_ns + duration_ns) FROM {_NAMED} WHERE {self._where} AND pid = {pid} AND tid = {tid} "
            "AND s.kind = 'phase'"
        ).fetchall()[0]
        return int(found[0] or 0), int(found[1] or 0)


def _parts(pid: Array, tid: Array) -> Iterator[tuple[Thread, slice]]:
    """By thread, the rows that are its own; they lie together."""
    if not len(pid):
        return
    edges = [0, *(np.flatnonzero((np.diff(pid) != 0) | (np.diff(tid) != 0)) + 1).tolist(), len(pid)]
    for begin, end in pairwise(edges):
        yield (int(pid[begin]), int(tid[begin])), slice(begin, end)
