"""Two runs' calls beside each other, rank by rank: where they part, what was called just before, and what one calls more often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from voirkit.errors import RunDirectoryError
from voirkit_instruments.calls.analysis.divergence import Divergence, counts, first_divergence
from voirkit_instruments.calls.analysis.records import ranks_of
from voirkit_instruments.calls.analysis.sequence import Codes, Thread, thread_of
from voirkit_instruments.calls.analysis.when import unknown, when

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


@dataclass(frozen=True)
class Compared:
    """One rank of two runs.

    Attributes:
        first, second: What the thread that trains has called.
        codes: What their numbers stand for.
        divergence: Where they part; None if they do not.
        counts: Of the functions that are not called equally often: how often in each run.
    """

    rank: int
    first: Thread
    second: Thread
    codes: Codes
    divergence: Divergence | None
    counts: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)


def compare(first: Run, second: Run) -> tuple[list[Compared], tuple[Sequence[int], Sequence[int]]]:
    """The ranks that both have, and those that only the first and only the second has.

    Raises:
        RunDirectoryError: One of them has no calls.
    """
    runs = (first, second)
    ranks = [ranks_of(run) for run in runs]
    for run, found in zip(runs, ranks, strict=True):
        if not found:
            raise RunDirectoryError("no calls are recorded there.", where=run.path, next="Record them: voirkit --calls SCRIPT")
    places = [when(run) for run in runs]
    both = [rank for rank in ranks[0] if rank in ranks[1]]
    made = []
    for rank in both:
        codes = Codes()
        threads = [thread_of(run, rank, place.get(rank) or unknown(), codes) for run, place in zip(runs, places, strict=True)]
        divergence = first_divergence(threads[0], threads[1], codes)
        made.append(Compared(rank, threads[0], threads[1], codes, divergence, counts(threads[0], threads[1], codes)))
    alone = [[rank for rank in found if rank not in both] for found in ranks]
    return made, (alone[0], alone[1])
