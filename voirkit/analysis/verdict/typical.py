"""What a typical step of a run spends its time in, where a few steps take most of it: compiling, a warm-up, one outlier.

Shares of summed time would be those of these few steps. Slow steps that come back at regular intervals (a checkpoint every 50, a plot every
20, the first batch of each epoch) are part of the training and stay in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import LOSS, PARTS, Table
from voirkit.runs.step_phases import PHASES

_SLOW = 5.0  # times the median step
_LEAST = 0.1  # of the time of all: fewer seconds than this change no share that matters
_FEWEST = 5  # steps, under which none is called an outlier
_COLUMNS = (*PHASES[:-1], *PARTS)
_ONCE = [_COLUMNS.index(name) for name in ("compile", "import") if name in _COLUMNS]  # what is done once, whichever steps it falls into


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
