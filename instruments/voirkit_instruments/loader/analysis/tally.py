"""Counts, sums and a histogram of durations: what is kept of millions of them, and can be added up over chunks, processes and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array

_FINE = 64  # buckets an octave: neighbours differ by 1.1 %, and a quantile is told by the mean of its bucket
_BUCKETS = 46 * _FINE  # up to 19 hours
_NS = 1e-9


def _nothing() -> Array:
    return np.zeros(_BUCKETS)


@dataclass
class Tally:
    """Durations in nanoseconds.

    Attributes:
        n: How many.
        total: Their sum.
        squares: The sum of their squares.
        least: The shortest; meaningless without any.
        most: The longest.
        counts: How many in each bucket.
        sums: And what these come to.
    """

    n: int = 0
    total: float = 0.0
    squares: float = 0.0
    least: float = float("inf")
    most: float = 0.0
    counts: Array = field(default_factory=_nothing)
    sums: Array = field(default_factory=_nothing)

    def add(self, durations: Array) -> None:
        """Take in so many more; shape (n,)."""
        if not len(durations):
            return
        values = np.maximum(durations.astype(np.float64), 0.0)  # clocks that run apart: the check of the records tells
        self.n += len(values)
        self.total += float(values.sum())
        self.squares += float(np.square(values).sum())
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))
        buckets = np.minimum((np.log2(values + 1) * _FINE).astype(np.int64), _BUCKETS - 1)
        self.counts += np.bincount(buckets, minlength=_BUCKETS)
        self.sums += np.bincount(buckets, weights=values, minlength=_BUCKETS)

    def merge(self, other: Tally) -> Tally:
        """Both together; neither is changed."""
        return Tally(
            self.n + other.n, self.total + other.total, self.squares + other.squares, min(self.least, other.least),
            max(self.most, other.most), self.counts + other.counts, self.sums + other.sums,
        )  # fmt: skip

    @property
    def mean(self) -> float:
        """Nanoseconds; 0 without any."""
        return self.total / self.n if self.n else 0.0

    @property
    def std(self) -> float:
        """Standard deviation (of a population), in nanoseconds."""
        return float(np.sqrt(max(self.squares / self.n - self.mean**2, 0.0))) if self.n else 0.0

    def quantile(self, q: float) -> float:
        """The q-quantile in nanoseconds, within 1 %; 0 without any."""
        if not self.n:
            return 0.0
        reached = np.cumsum(self.counts)
        place = q * (self.n - 1)
        below, above = (self._at(reached, int(i)) for i in (np.floor(place), np.ceil(place)))
        return float(below + (above - below) * (place - np.floor(place)))

    def _at(self, reached: Array, i: int) -> float:
        """The i-th shortest: the mean of its bucket."""
        if i in (0, self.n - 1):
            return self.least if i == 0 else self.most
        bucket = int(np.searchsorted(reached, i, side="right"))
        return float(self.sums[bucket] / self.counts[bucket])

    def under(self, limit_ns: float) -> float:
        """The share that is shorter; of the bucket in which the limit lies the part that reaches up to it."""
        if not self.n:
            return 0.0
        place = np.log2(limit_ns + 1) * _FINE
        whole = min(int(place), _BUCKETS - 1)
        return float((self.counts[:whole].sum() + self.counts[whole] * (place - whole)) / self.n)

    def seconds(self) -> dict[str, Any]:
        """As a summary has it."""
        values = {
            "total": self.total, "mean": self.mean, "median": self.quantile(0.5), "p90": self.quantile(0.9), "std": self.std,
            "min": self.least if self.n else 0.0, "max": self.most,
        }  # fmt: skip
        return {"n": self.n, **{f"{name}_s": value * _NS for name, value in values.items()}}

    def iqr_s(self) -> float:
        """From the first quartile to the third, in seconds."""
        return (self.quantile(0.75) - self.quantile(0.25)) * _NS
