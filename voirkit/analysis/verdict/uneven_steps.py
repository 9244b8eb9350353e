"""What is uneven in the steps of a run: a few steps that are unlike the others, and a rank that is later than the others.

Pure functions over tables of steps.

Where a few steps take most of the time (compiling, a warm-up, one outlier), shares of summed time would be those of these few steps. Slow
steps that come back at regular intervals (a checkpoint every 50, a plot every 20, the first batch of each epoch) are part of the training.

Ranks meet in the backward pass and in collectives, where each waits for the last. So a rank is held against the others by its own time:
what it spends outside of both. Medians over stretches of a run are compared, never sums: one slow batch makes nobody a straggler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import BACKWARD, COMMUNICATION, LOSS, PARTS, Table
from voirkit.runs.summary import PHASES
from voirkit.runs.thresholds import STRAGGLES

_NS = 1e-9
_SLOW = 5.0  # times the median step
_LEAST = 0.1  # of the time of all: fewer seconds than this change no share that matters
_FEWEST = 5  # steps, under which none is called an outlier
_COLUMNS = (*PHASES[:-1], *PARTS)
_ONCE = [_COLUMNS.index(name) for name in ("compile", "import") if name in _COLUMNS]  # what is done once, whichever steps it falls into
# As many stretches is a run divided into. With prefetching workers steps wait by turns (0, 70, 0, 70 ms): single steps would hide that.
_STRETCHES = 16
_OWN = [i for i in range(LOSS + len(PARTS)) if i not in (BACKWARD, COMMUNICATION)]


def typical(tables: Sequence[Table]) -> dict[str, Any] | None:
    """The time that is unlike that of most steps, and where the steps spend the rest.

    Args:
        tables: The steps of each rank; the k-th steps of all are the same step.

    Returns:
        ``{"outliers": {"n", "first", "share", "total_s", "phase"}, "phases": {name: share}, "parts": {name: share of a step}}``: how many
        steps are left out, the number of the first one (-1: none), the share of the time of all steps that is left out, with what all
        steps spend compiling and importing, and its seconds (of the slowest rank), the phase or part of ``other`` that it is mostly spent
        in, and the shares of the rest. None where nothing stands out.
    """
    n = min((len(table) for table in tables), default=0)
    if n < _FEWEST:
        return None
    own = np.stack([table.own_ns[:n] for table in tables]).astype(np.int64)  # (ranks, steps, columns)
    total = own.sum(axis=2).max(axis=0)
    once = own[:, :, _ONCE].sum(axis=(0, 1))
    kept = own.copy()
    kept[:, :, _ONCE] = 0
    chosen = outliers(kept.sum(axis=2).max(axis=0))
    kept[:, chosen] = 0
    left_out = int(total.sum() - kept.sum(axis=2).max(axis=0).sum())
    if left_out < _LEAST * total.sum():
        return None
    theirs = own[:, chosen].sum(axis=(0, 1))
    theirs[_ONCE] = once
    rest = kept.sum(axis=(0, 1))
    spent = max(int(rest.sum()), 1)
    phase = _COLUMNS[int(np.argmax(theirs))]
    return {
        "outliers": {
            "n": len(chosen),
            "first": int(chosen[0]) if len(chosen) else -1,
            "share": left_out / float(total.sum()),
            "total_s": left_out / 1e9,
            "phase": "other" if phase == "rest" else phase,
        },
        "phases": {name: float(rest[at] / spent) for at, name in enumerate(PHASES[:-1])} | {"other": float(rest[LOSS:].sum() / spent)},
        "parts": {name: float(rest[LOSS + at] / spent) for at, name in enumerate(PARTS[:-1]) if rest[LOSS + at]},
    }


def outliers(time: Array) -> Array:
    """Indices, ascending, of the few steps that take much longer than a usual one, and come back at no regular interval."""
    n = len(time)
    most = max(1, min(3, n // 10), n // 100)
    slow = np.flatnonzero(time > _SLOW * np.median(time))
    if not 0 < len(slow) <= most or time[slow].sum() < _LEAST * time.sum() or _is_regular(slow, n):
        return slow[:0]
    return slow


def _is_regular(slow: Array, n: int) -> bool:
    """Whether they go on through the whole run, as far apart each time."""
    if len(slow) < 2:
        return False
    gaps = np.diff(slow)
    gap = int(gaps.max())
    return bool(gaps.min() >= gap - 1 and slow[0] <= gap and n - slow[-1] <= gap + 1)


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
