"""When calls were made and how long they took, in bins of time, and the phases of the process that trains beside them; in constant memory.

Bins are as long as a power of two of seconds, and there are at most 240: when a log outgrows them, each two become one. They begin at whole
multiples of their length after an origin that the ranks of a run share, so that the bins of two ranks fall together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor
from typing import Any

MOST_BINS, MOST_NAMES = 240, 16
OTHERS = "others"
_FIRST_S = 2.0**-10


class OverTime:
    """Bins of calls and seconds by name, and of phases.

    Args:
        origin: The time of the log from which ``begin_s`` is counted; None: that of the first event.

    Attributes:
        end: The last time that was told.
    """

    def __init__(self, origin: float | None = None) -> None:
        self._origin = origin
        self._bin_s = _FIRST_S
        self._first: int | None = None  # which bin after the origin the first of the list is
        self._from = self._room = 0.0  # how much time all bins have
        self._per_s = 1 / self._bin_s
        self._rows: dict[str, tuple[list[int], list[float]]] = {}  # of both tables below
        self.end = float("-inf")
        self._calls: dict[str, list[int]] = {}
        self._seconds: dict[str, list[float]] = {}
        self._phases: dict[str, list[float]] = {}

    def add(self, name: str, began: float, seconds: float) -> None:
        """A call. It counts where it began; its seconds belong to the bins that it lasted in.

        Args:
            name: Of the call.
            began: When, on the log's clock; not ``nan``.
            seconds: How long; ``nan`` if the log does not say.
        """
        took = seconds if seconds == seconds else 0.0
        since = began - self._from
        if since >= 0 and since + took < self._room:
            at, last = int(since * self._per_s), int((since + took) * self._per_s)
            if began + took > self.end:
                self.end = began + took
        else:
            at, last = self._reach(began, began + took)
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = [0] * MOST_BINS, [0.0] * MOST_BINS
            self._calls[name], self._seconds[name] = row
        row[0][at] += 1
        if at == last:
            row[1][at] += took
        else:
            self._spread(row[1], began, took, at, last)

    def in_phase(self, phase: str, began: float, ended: float) -> None:
        """The first thread of the process that trains was in a phase, and in none inside of it."""
        if ended > began:  # not of times that are not known, either
            at, last = self._reach(began, ended)
            self._spread(self._phases.setdefault(phase, [0.0] * MOST_BINS), began, ended - began, at, last)

    # bins

    def _reach(self, began: float, ended: float) -> tuple[int, int]:
        """The bins of two times, after room has been made for both."""
        if self._first is None:
            self._origin = began if self._origin is None else self._origin
            self._starts(floor((began - self._origin) / self._bin_s))
        while True:
            at, last = floor((began - self._from) / self._bin_s), floor((ended - self._from) / self._bin_s)
            if at >= 0 and last < MOST_BINS:
                self.end = max(self.end, ended)
                return at, last
            if at < 0 and last - at < MOST_BINS and not any(any(bins[at:]) for bins in self._all()):
                self._shift(-at)
            else:
                self._double()

    def _all(self) -> Iterable[list[Any]]:
        for table in (self._calls, self._seconds, self._phases):
            yield from table.values()

    def _shift(self, bins: int) -> None:
        """Begin so many bins earlier; the last ones are empty."""
        assert self._first is not None
        for row in self._all():
            row[:] = [type(row[0])()] * bins + row[:-bins]
        self._starts(self._first - bins)

    def _double(self) -> None:
        """Make one bin of each two."""
        assert self._first is not None
        odd = self._first % 2
        for row in self._all():
            zero = type(row[0])()
            padded = [zero] * odd + row + [zero] * (MOST_BINS + odd)
            row[:] = [padded[i] + padded[i + 1] for i in range(0, 2 * MOST_BINS, 2)]
        self._bin_s *= 2
        self._starts(self._first // 2)

    def _starts(self, first: int) -> None:
        self._first = first
        self._from = (self._origin or 0.0) + first * self._bin_s
        self._room, self._per_s = MOST_BINS * self._bin_s, 1 / self._bin_s

    def _spread(self, bins: list[float], began: float, took: float, at: int, last: int) -> None:
        left = took
        for i in range(at, last):
            part = min(self._from + (i + 1) * self._bin_s - max(began, self._from + i * self._bin_s), left)
            bins[i] += part
            left -= part
        bins[last] += left

    # the document

    def document(self, timed: bool) -> dict[str, Any] | None:
        """``over_time`` in ``syscalls`` of a summary (docs/syscalls.md); None if the log has no times.

        Args:
            timed: Whether the log has durations; without, ``seconds`` is None.

        Returns:
            ``begin_s``: when the first bin begins, after the origin; ``bin_s``: how long each is; ``calls``: {call: [calls in each bin]};
            ``seconds``: {call: [seconds of all threads in each bin]}; ``phases``: {phase: [share of the bin's time]}. The calls with the
            most calls and seconds, and ``others``.
        """
        if self._first is None:
            return None
        used = [i for i in range(MOST_BINS) if any(bins[i] for bins in self._all())] or [0]
        begin, end = used[0], used[-1] + 1
        names = _most(self._calls, self._seconds)
        return {
            "begin_s": (self._first + begin) * self._bin_s, "bin_s": self._bin_s,
            "calls": _few(self._calls, names, begin, end),
            "seconds": _rounded(_few(self._seconds, names, begin, end)) if timed else None,
            "phases": _rounded({phase: [share / self._bin_s for share in bins[begin:end]] for phase, bins in self._phases.items()}),
        }  # fmt: skip


def merged(documents: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The bins of several logs that have one origin, as of a run's ranks, as those of one; phases have the mean of their shares."""
    known = [one for one in documents if one is not None]
    if not known:
        return None
    bin_s = max(one["bin_s"] for one in known)
    while True:
        first = min(floor(one["begin_s"] / bin_s) for one in known)
        n = max(floor((one["begin_s"] + (_length(one) - 0.5) * one["bin_s"]) / bin_s) for one in known) - first + 1
        if n <= MOST_BINS:
            break
        bin_s *= 2
    tables: dict[str, dict[str, list[Any]]] = {"calls": {}, "seconds": {}, "phases": {}}
    trains = max(sum(1 for one in known if one["phases"]), 1)
    for one in known:
        for key, table in tables.items():
            weight = one["bin_s"] / bin_s / trains if key == "phases" else 1
            for name, bins in (one[key] or {}).items():
                row = table.setdefault(name, [0] * n)
                for i, value in enumerate(bins):
                    row[floor((one["begin_s"] + (i + 0.5) * one["bin_s"]) / bin_s) - first] += value * weight
    names = _most(tables["calls"], tables["seconds"])
    return {
        "begin_s": first * bin_s, "bin_s": bin_s, "calls": _few(tables["calls"], names, 0, n),
        "seconds": _rounded(_few(tables["seconds"], names, 0, n)) if tables["seconds"] else None, "phases": _rounded(tables["phases"]),
    }  # fmt: skip


def _length(document: Mapping[str, Any]) -> int:
    return max((len(bins) for key in ("calls", "phases") for bins in document[key].values()), default=1)


def _most(calls: Mapping[str, Sequence[float]], seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """The names with the most calls and those with the most seconds, by turns."""
    by_calls, by_seconds = (
        [*sorted((name for name in t if name != OTHERS), key=lambda name: (-sum(t[name]), name))] for t in (calls, seconds)
    )
    turns = [name for pair in zip(by_calls, by_seconds or by_calls, strict=False) for name in pair]
    return list(dict.fromkeys(turns))[:MOST_NAMES]


def _few(table: Mapping[str, Sequence[Any]], names: Sequence[str], begin: int, end: int) -> dict[str, list[Any]]:
    """The rows of some names, and the sum of the rest."""
    found = {name: list(table[name][begin:end]) for name in names if name in table}
    rest = [table[name][begin:end] for name in table if name not in found]
    if rest:
        found[OTHERS] = [sum(column) for column in zip(*rest, strict=True)]
    return found


def _rounded(table: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: [round(value, 9) for value in bins] for name, bins in table.items()}
