"""``loader`` of a summary for a run, or for the directories of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from voirkit.runs.parquet import quoted
from voirkit_instruments.loader.analyse_records import KIND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run


def loader_ranks(run: Run) -> list[int]:
    """The ranks that have recorded their loaders."""
    rows = run.connection().execute(f"SELECT DISTINCT rank FROM spans WHERE kind = {quoted(KIND)} ORDER BY rank").fetchall()
    return [rank for (rank,) in rows]


def summarise_run(runs: Collection[Run], training: Collection[int] = ()) -> dict[str, Any] | None:
    """What the loaders of a run did; None if it was recorded without ``--loader``.

    A pipeline of pure functions: the records of one rank -> its batches and operations -> what it knows of each loader, which adds up over
    ranks -> the figures of a summary.

    Args:
        runs: The run, or the directories of its ranks.
        training: Numbers of the loaders that are trained on.
    """
    ranks = [(run, rank) for run in runs for rank in loader_ranks(run)]
    if not ranks:
        return None
    from voirkit_instruments.loader.analyse_figures import summarise_loaders
    from voirkit_instruments.loader.analyse_totals import combine, totals_of_rank

    totals = combine([loader for run, rank in ranks for loader in totals_of_rank(run, rank)])
    cpus = next((run.manifest["cpus"] for run in runs if run.manifest.get("cpus")), None)
    places = {(process.host, process.rank) for run in runs for process in run.processes()}
    ranks_a_host = -(-len({rank for _, rank in places}) // max(len({host for host, _ in places}), 1)) or 1
    return summarise_loaders(totals, training, None if cpus is None else max(cpus // ranks_a_host, 1))


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``loader`` of a summary; see ``voirkit.instrument.Instrument``."""
    own = summary.get("loader")
    if own and own.get("operations") and summary.get("world_size") == 1 and len(runs) == 1:
        return None  # a run of one rank has worked it out at its end, and keeps it without its trace
    training = dict.fromkeys(number for rank in ranks for number in rank.facts.get("loaders", ()))
    from voirkit_instruments.syscalls.analyse import is_by_strace

    loader = summarise_run(runs, list(training))
    if loader is not None and any(map(is_by_strace, runs)):
        loader["stretched_by"] = "strace"
    return {"loader": loader}


def rules(run: Run) -> Iterator[tuple[int, Iterable[Any]]]:
    """What must be true of the records of each rank's loaders; see ``voirkit.instrument.Instrument``."""
    from voirkit_instruments.loader.analyse_check import check

    for rank in loader_ranks(run):
        yield rank, check(run, rank)
