"""Counters that a run records (``--monitor``) as a live view shows them: their last values, and only what says something by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from voirkit.live.picture import Number
from voirkit.live.window import Counter

# What counts from the beginning of the run, and parts of other figures.
_LEFT_OUT = {"read", "write", "disk_read", "disk_write", "net_sent", "net_received", "shared", "processes"}


def devices(counters: Mapping[tuple[int, str, str], Counter], rank: int = 0) -> Iterator[Number]:
    """The counters of one rank, by the names of the monitor; those of others with their category."""
    for (of_rank, category, name), counter in counters.items():
        if of_rank != rank or (category == "monitor" and name in _LEFT_OUT):
            continue
        shown = name if category == "monitor" else f"{category}.{name}"
        yield Number(shown.replace("_", " "), counter.value, counter.units, ())
