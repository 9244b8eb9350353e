"""Samples of the processor joined, by clock and thread, with the operations and phases of a rank: who used what code for how long.

What comes out can be added to that of other ranks and read without perf; ``native`` makes figures of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from voirkit.analysis.innermost import NONE
from voirkit.analysis.nesting import Array
from voirkit_instruments.stacks.analyse_perf_samples import Batch, Reading
from voirkit_instruments.stacks.analyse_spans import OPERATION, PHASE, Recorded

ELSEWHERE, OTHERS = "elsewhere", "other processes"
_OWN, _OTHER_THREADS = 0, 1


class Joined:
    """Counts by row (an operation, a phase, elsewhere, other processes), code, thread (its own or another of its process) and event.

    Args:
        recorded: What was going on.
        reading: Who reads the samples.
        began_ns: When sampling began.
    """

    def __init__(self, recorded: Recorded, reading: Reading, began_ns: int) -> None:
        self._recorded, self._reading, self._until_ns = recorded, reading, began_ns
        self._rows = [*recorded.names, (ELSEWHERE, ""), (OTHERS, "")]
        self._counts: dict[tuple[int, int, int, int], list[int]] = {}  # (row, code, whose, event): [samples, of the event]
        self._elapsed_ns = np.zeros(len(recorded.names), dtype=np.int64)
        self._begun = np.zeros(len(recorded.names), dtype=np.int64)

    def add(self, batches: Iterable[Batch], ended_ns: int | None) -> None:
        """Count all samples.

        Args:
            batches: Of samples, in the order of time.
            ended_ns: When sampling ended; None if nobody knows but the last sample.
        """
        for batch in batches:
            self._add(batch)
        if ended_ns is not None and ended_ns > self._until_ns:
            self._measure(self._recorded.between(self._until_ns, ended_ns), ended_ns)

    def _add(self, batch: Batch) -> None:
        last = int(batch.time_ns.max()) + 1
        spans = self._recorded.between(min(self._until_ns, int(batch.time_ns.min())), last)
        here = np.isin(batch.pid, np.fromiter(self._recorded.processes, np.int64, len(self._recorded.processes)))
        found = np.zeros(len(batch.pid), dtype=bool)
        for group in (OPERATION, PHASE):
            row, others = self._owners(batch, spans[group], self._recorded.leading[group])
            self._count(batch, row, others, row != NONE)
            found |= row != NONE
        names = len(self._recorded.names)
        none = np.zeros(len(found), dtype=np.int64)
        self._count(batch, none + names, none, here & ~found)
        self._count(batch, none + names + 1, none, ~here)
        self._measure(spans, last)

    def _owners(self, batch: Batch, spans: Any, leading: dict[int, int]) -> tuple[Array, Array]:
        """(row, whose thread) of each sample: what its thread was in, or else what the leading thread of its process was in."""
        row, others = np.full(len(batch.pid), NONE, dtype=np.int64), np.full(len(batch.pid), _OWN, dtype=np.int64)
        for (pid, tid), own in spans.items():
            chosen = (batch.pid == pid) & (batch.tid == tid)
            row[chosen] = own.owners(batch.time_ns[chosen])
        for pid, tid in leading.items():
            if (pid, tid) in spans:
                chosen = (batch.pid == pid) & (batch.tid != tid) & (row == NONE)
                row[chosen] = spans[pid, tid].owners(batch.time_ns[chosen])
                others[chosen] = _OTHER_THREADS
        return row, others

    def _count(self, batch: Batch, row: Array, others: Array, chosen: Array) -> None:
        if not chosen.any():
            return
        keys = np.stack([row[chosen], batch.code[chosen], others[chosen], batch.event[chosen]], axis=1)
        unique, which = np.unique(keys, axis=0, return_inverse=True)
        which = which.reshape(-1)  # numpy 2.0 gives it the shape of a column
        weights = np.zeros(len(unique), dtype=np.int64)
        np.add.at(weights, which, batch.period[chosen])
        for key, n, weight in zip(unique.tolist(), np.bincount(which).tolist(), weights.tolist(), strict=True):
            counts = self._counts.setdefault(tuple(key), [0, 0])
            counts[0] += n
            counts[1] += weight

    def _measure(self, spans: Any, until_ns: int) -> None:
        """How long operations and phases lasted since the last time this was asked."""
        for group in spans.values():
            for own in group.values():
                self._elapsed_ns += own.elapsed_ns(self._until_ns, until_ns, len(self._elapsed_ns))
                self._begun += own.begun(self._until_ns, until_ns, len(self._begun))
        self._until_ns = until_ns

    def document(self) -> list[dict[str, Any]]:
        """The rows as JSON holds them: ``group``, ``name``, ``elapsed_ns``, ``n``, and ``code``: one entry for each function and thread."""
        codes, events = list(self._reading.codes), list(self._reading.events)
        by_row: dict[int, dict[tuple[int, int], dict[str, list[int]]]] = {}
        for (row, code, others, event), counts in self._counts.items():
            by_row.setdefault(row, {}).setdefault((code, others), {})[events[event]] = counts
        made = []
        for number, (group, name) in enumerate(self._rows):
            known = number < len(self._elapsed_ns)
            if not known and number not in by_row:
                continue
            entries = [
                {**codes[code]._asdict(), "other_threads": bool(others), "events": amounts}
                for (code, others), amounts in sorted(by_row.get(number, {}).items())
            ]
            elapsed, n = (int(self._elapsed_ns[number]), int(self._begun[number])) if known else (None, None)
            made.append({"group": group, "name": name, "elapsed_ns": elapsed, "n": n, "code": entries})
        return made
