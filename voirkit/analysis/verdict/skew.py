"""How much later one rank is than the others, step by step: what a straggler is found by. Pure functions over tables of steps.

Ranks meet in the backward pass and in collectives, where each waits for the last. So a rank is held against the others by its own time:
what it spends outside of both. Medians over stretches of a run are compared, never sums: one slow batch makes nobody a straggler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import BACKWARD, COMMUNICATION, LOSS, PARTS, Table
from voirkit.runs.step_phases import PHASES
from voirkit.runs.thresholds import STRAGGLES

_NS = 1e-9
# As many stretches is a run divided into. With prefetching workers steps wait by turns (0, 70, 0, 70 ms): single steps would hide that.
_STRETCHES = 16
_OWN = [i for i in range(LOSS + len(PARTS)) if i not in (BACKWARD, COMMUNICATION)]


def skews(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """By rank, how much longer its own time in a step is than the others'.

    Args:
        tables: The steps of each rank; the k-th steps of all are the same step.

    Returns:
        For each rank ``{"share", "time_s", "late", "phase"}``: by how much of a step it is later than the others at the median (negative:
        earlier), the same in seconds, in which share of the run's stretches it is late by ``STRAGGLES`` or more and the others wait for it,
        and the phase or part of ``other`` that differs most. Empty for fewer than two ranks, or without steps.
    """
    n = min((len(table) for table in tables), default=0)
    if len(tables) < 2 or not n:
        return []
    width = max(n // _STRETCHES, 1)
    edges = np.arange(0, n - n % width, width)
    own = np.stack([np.add.reduceat(table.own_ns[: edges[-1] + width, _OWN], edges, axis=0) for table in tables]) / width
    time = np.stack([np.add.reduceat(table.time_ns[: edges[-1] + width], edges) for table in tables]) / width
    step = float(np.median(time.max(axis=0)))  # medians: of the ranks' steps, the slowest's
    return [_skew(own, time, rank, step) for rank in range(len(tables))] if step else []


def _skew(own: Array, time: Array, rank: int, step: float) -> dict[str, Any]:
    """One rank's.

    Args:
        own: Own time by rank, stretch and column, shape (ranks, stretches, columns).
        time: Time of a step by rank and stretch.
        rank: Which.
        step: A usual step's time.
    """
    others = np.delete(own, rank, axis=0)
    excess = own[rank].sum(axis=1) - _usual(others.sum(axis=2))
    longer = time[rank] - _usual(np.delete(time, rank, axis=0))
    # Those who wait for it are as long in a step as it is: else its lateness is its own affair, or noise that the next step makes up for.
    late = (excess >= STRAGGLES * step) & (longer <= excess / 2)
    by_column = np.median(own[rank] - _usual(others), axis=0)
    column = _OWN[int(np.argmax(by_column))]
    named = (*PHASES[:-1], *PARTS)[column]
    return {
        "share": float(np.median(excess)) / step,
        "time_s": float(np.median(excess)) * _NS,
        "late": float(late.mean()),
        "phase": "other" if named == "rest" else named,
    }


def _usual(others: Array) -> Array:
    """The median over ranks; of an even number the lower of the two in the middle: a value that one of them has."""
    return np.sort(others, axis=0)[(len(others) - 1) // 2]
