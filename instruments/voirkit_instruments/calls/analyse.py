"""The calls of a run: of each rank that recorded some, with steps and phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from voirkit_instruments.calls.analysis.figures import figures
from voirkit_instruments.calls.analysis.partial import combine, partial
from voirkit_instruments.calls.analysis.records import Call, Recorded, ranks_of
from voirkit_instruments.calls.analysis.when import unknown, when

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run


def recorded(run: Run) -> Iterator[Recorded]:
    """What each rank recorded, ascending by rank; one is to be used before the next is asked for."""
    ranks = ranks_of(run)
    places = when(run) if ranks else {}
    for rank in ranks:
        yield Recorded(run, rank, places.get(rank) or unknown())


def calls(run: Run) -> Iterator[Call]:
    """Each call of a run: by rank, then by thread and start (in chunks: see ``Recorded.chunks``)."""
    for rank in recorded(run):
        yield from rank.rows()


def calls_of(runs: Iterable[Run]) -> dict[str, Any] | None:
    """``calls`` of a summary for a run, or for the directories of its ranks; None if no call was recorded."""
    parts = [partial(rank) for run in runs for rank in recorded(run)]
    return figures(combine(parts)) if parts else None


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``calls`` of a summary; see ``voirkit.instrument.Instrument``."""
    own = summary.get("calls")  # what the run itself knows of it (``skipped``); a run of one rank has worked it all out at its end
    if own is not None and "by_function" in own and len(runs) == 1 and len(own.get("by_rank") or ()) == 1 == len(ranks_of(runs[0])):
        return None
    calls = calls_of(runs)
    return None if calls is None else {"calls": {**(own or {}), **calls}}
