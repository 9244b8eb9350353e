"""Records of the steps instrument, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voirkit.analysis.nesting import Array

KIND = "phase"  # of the records
DEVICE = "device"  # of those that say how long the same lasted on a GPU


@dataclass(frozen=True)
class Records:
    """Records of phases; arrays of shape (n,), in any order.

    Attributes:
        start_ns: On the clock of the record's host.
        duration_ns: Nanoseconds.
        name: Index into ``names``.
        args: Index into ``arguments``.
        value: The record's own number.
        process: Index into ``processes``.
        tid: Native id of the thread.
        names: (category, name) by index.
        arguments: By index.
        processes: (rank, host, pid) by index.
        world_sizes: Of the group in which each process has its rank, by index; 1: it is in none and trains, if it does, for itself. 0,
            and empty: not known, as of runs that launchers started.
    """

    start_ns: Array
    duration_ns: Array
    name: Array
    args: Array
    value: Array
    process: Array
    tid: Array
    names: Sequence[tuple[str, str]]
    arguments: Sequence[Mapping[str, Any]]
    processes: Sequence[tuple[int, str, int]]
    world_sizes: Sequence[int] = ()
