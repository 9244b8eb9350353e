"""Imports and compilations as parts of a run's time: each is one thing, whatever happens inside of it."""

from __future__ import annotations

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import COMPILE, GC, IMPORT


def whole_imports(start_ns: Array, duration_ns: Array, meaning: Array) -> tuple[Array, Array]:
    """An import that trains is one until it does; garbage that is collected in an import or a compilation is part of it.

    Args:
        start_ns: Of the spans of a thread, ascending; shape (n,).
        duration_ns: Same shape.
        meaning: Same shape.

    Returns:
        Durations, and which spans are left.
    """
    kept = np.ones(len(start_ns), dtype=bool)
    duration_ns = duration_ns.copy()
    work = np.flatnonzero(~np.isin(meaning, (IMPORT, COMPILE, GC)))
    for i in np.flatnonzero(np.isin(meaning, (IMPORT, COMPILE))).tolist():
        end = start_ns[i] + duration_ns[i]
        if meaning[i] == IMPORT:
            at = np.searchsorted(work, i)
            if at < len(work) and start_ns[work[at]] < end:
                end = start_ns[work[at]]
                duration_ns[i] = end - start_ns[i]
        inside = slice(i + 1, int(np.searchsorted(start_ns, end)))
        kept[inside] &= meaning[inside] != GC
    return duration_ns, kept
