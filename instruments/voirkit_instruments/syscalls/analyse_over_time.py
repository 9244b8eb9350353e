"""When calls were made and how long they took, in bins of time, and the phases of the training process beside them; in constant memory.

A bin is a power of two of seconds long, and there are at most 240: when a log outgrows them, each two become one. They begin at whole
multiples of their length after an origin that the ranks of a run share, so that the bins of two ranks fall together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

MOST_BINS, MOST_NAMES = 240, 16
OTHERS = "others"
_FIRST_S = 2.0**-10

Bins = dict[int, float]  # by number of the bin after the origin; a bin without anything is missing


class OverTime:
    """Bins of calls and seconds by name, and of phases.

    Args:
        origin: The time of the log from which ``begin_s`` is counted; None: that of the first event.

    Attributes:
        end: The last time that was added.
    """

    def __init__(self, origin: float | None = None) -> None:
        self._origin = origin
        self._bin_s = _FIRST_S
        self._first, self._last = float("inf"), float("-inf")  # bins in use
        self._calls: dict[str, Bins] = {}
        self._seconds: dict[str, Bins] = {}
        self._phases: dict[str, Bins] = {}
        self.end = float("-inf")

    def add(self, name: str, began: float, seconds: float) -> None:
        """Add a call. It counts where it began; its seconds belong to the bins that it lasted in.

        Args:
            name: Of the call.
            began: When, on the log's clock; not ``nan``.
            seconds: How long; ``nan`` if the log does not have it.
        """
        ended = began + seconds if seconds == seconds else began
        first, last = self._bins_between(began, ended)
        row = self._calls.get(name)
        if row is None:
            row, self._seconds[name] = self._calls.setdefault(name, {}), {}
        row[first] = row.get(first, 0) + 1
        self._spread(self._seconds[name], began, ended - began, first, last)

    def add_phase(self, phase: str, began: float, ended: float) -> None:
        """Add a time in which the first thread of the training process was in a phase, and in none inside of it."""
        if ended > began:  # not of unknown times, either
            first, last = self._bins_between(began, ended)
            self._spread(self._phases.setdefault(phase, {}), began, ended - began, first, last)

    def add_document(self, document: Mapping[str, Any], phase_weight: float) -> None:
        """Add the bins of another log with the same origin.

        Args:
            document: As ``document`` returns it.
            phase_weight: By what the time in its phases is multiplied.
        """
        bin_s = document["bin_s"]
        weights = ((self._calls, "calls", 1), (self._seconds, "seconds", 1), (self._phases, "phases", bin_s * phase_weight))
        n = max((len(values) for key in ("calls", "phases") for values in document[key].values()), default=0)
        for i in range(n):
            middle = document["begin_s"] + (i + 0.5) * bin_s
            number, _ = self._bins_between(middle, middle)
            for table, key, weight in weights:
                for name, values in (document[key] or {}).items():
                    row = table.setdefault(name, {})
                    row[number] = row.get(number, 0) + values[i] * weight

    def lengthen_bins(self, bin_s: float) -> None:
        """Have bins at least so long."""
        while self._bin_s < bin_s:
            self._double()

    def _bins_between(self, began: float, ended: float) -> tuple[int, int]:
        """The bins of two times, after bins have become long enough for both."""
        if self._origin is None:
            self._origin = began
        if ended > self.end:
            self.end = ended
        while True:
            first, last = floor((began - self._origin) / self._bin_s), floor((ended - self._origin) / self._bin_s)
            if first >= self._first and last <= self._last:
                return first, last
            if max(last, self._last) - min(first, self._first) < MOST_BINS:
                self._first, self._last = min(first, self._first), max(last, self._last)
                return first, last
            self._double()

    def _double(self) -> None:
        """Make one bin of each two."""
        for table in (self._calls, self._seconds, self._phases):
            for name, row in table.items():
                doubled: Bins = {}
                for number, value in row.items():
                    doubled[number >> 1] = doubled.get(number >> 1, 0) + value
                table[name] = doubled
        self._bin_s *= 2
        if self._first <= self._last:
            self._first, self._last = int(self._first) >> 1, int(self._last) >> 1

    def _spread(self, row: Bins, began: float, seconds: float, first: int, last: int) -> None:
        rest = seconds
        for number in range(first, last):
            begin = (self._origin or 0.0) + number * self._bin_s
            part = min(begin + self._bin_s - max(began, begin), rest)
            row[number] = row.get(number, 0.0) + part
            rest -= part
        row[last] = row.get(last, 0.0) + rest

    def document(self, timed: bool) -> dict[str, Any] | None:
        """``over_time`` in ``syscalls`` of a summary (docs/syscalls.md); None if the log has no times.

        Args:
            timed: Whether the log has durations; without, ``seconds`` is None.

        Returns:
            ``begin_s``: when the first bin begins, after the origin; ``bin_s``: how long each is; ``calls``: {call: [calls in each bin]};
            ``seconds``: {call: [seconds of all threads in each bin]}; ``phases``: {phase: [share of the bin's time]}. The calls with the
            most calls and seconds, and ``others``.
        """
        tables = (self._calls, self._seconds, self._phases)
        used = {number for table in tables for row in table.values() for number, value in row.items() if value}
        if not used:
            return None
        numbers = range(min(used), max(used) + 1)
        names = _most_frequent(self._calls, self._seconds)
        shares = {phase: [row.get(number, 0.0) / self._bin_s for number in numbers] for phase, row in self._phases.items()}
        return {
            "begin_s": numbers[0] * self._bin_s, "bin_s": self._bin_s,
            "calls": _rows(self._calls, names, numbers),
            "seconds": _rounded(_rows(self._seconds, names, numbers)) if timed else None,
            "phases": _rounded(shares),
        }  # fmt: skip


def merge_over_time(documents: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The bins of several logs that have one origin, as of a run's ranks, as those of one; phases have the mean of their shares."""
    existing = [one for one in documents if one is not None]
    merged = OverTime(0.0)
    merged.lengthen_bins(max((one["bin_s"] for one in existing), default=0.0))
    phase_weight = 1 / max(sum(1 for one in existing if one["phases"]), 1)
    for one in existing:
        merged.add_document(one, phase_weight)
    return merged.document(timed=any(one["seconds"] for one in existing))


def _most_frequent(calls: Mapping[str, Bins], seconds: Mapping[str, Bins]) -> list[str]:
    """The names with the most calls and those with the most seconds, in turn."""
    orders = [sorted(set(table) - {OTHERS}, key=lambda name: (-sum(table[name].values()), name)) for table in (calls, seconds) if table]
    return list(dict.fromkeys(name for names in zip(*orders, strict=False) for name in names))[:MOST_NAMES]


def _rows(table: Mapping[str, Bins], names: Sequence[str], numbers: range) -> dict[str, list[float]]:
    """The rows of some names, and the sum of the rest."""
    rows = {name: [table[name].get(number, 0) for number in numbers] for name in names if name in table}
    rest = [row for name, row in table.items() if name not in rows]
    if rest:
        rows[OTHERS] = [sum(row.get(number, 0) for row in rest) for number in numbers]
    return rows


def _rounded(table: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: [round(value, 9) for value in values] for name, values in table.items()}
