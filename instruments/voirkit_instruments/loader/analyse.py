"""``loader`` of a summary for a run, or for the directories of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from voirkit.runs.tables.parquet import quoted
from voirkit_instruments.loader.analysis.records import KIND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run
    from voirkit_instruments.loader.analysis.partial import Partial


def ranks_of(run: Run) -> list[int]:
    """The ranks that have recorded their loaders."""
    found = run.connection().execute(f"SELECT DISTINCT rank FROM spans WHERE kind = {quoted(KIND)} ORDER BY rank").fetchall()
    return [rank for (rank,) in found]


def loader_of(runs: Collection[Run], training: Collection[int] = ()) -> dict[str, Any] | None:
    """What the loaders of a run did; None if it was recorded without ``--loader``.

    Args:
        runs: The run, or the directories of its ranks.
        training: Numbers of the loaders that are trained on.
    """
    recorded = [(run, rank) for run in runs for rank in ranks_of(run)]
    if not recorded:
        return None
    from voirkit_instruments.loader.analysis.figures import figures
    from voirkit_instruments.loader.analysis.partial import combine, partials

    parts: list[Partial] = []
    for run, rank in recorded:
        parts += partials(run, rank)
    cpus = next((run.manifest["cpus"] for run in runs if run.manifest.get("cpus")), None)
    places = {(process.host, process.rank) for run in runs for process in run.processes()}
    ranks_of_host = -(-len({rank for _, rank in places}) // max(len({host for host, _ in places}), 1)) or 1
    return figures(combine(parts), training, None if cpus is None else max(cpus // ranks_of_host, 1))


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``loader`` of a summary; see ``voirkit.instrument.Instrument``."""
    own = summary.get("loader")
    if own and own.get("operations") and summary.get("world_size") == 1 and len(runs) == 1:
        return None  # a run of one rank has worked it out at its end, and keeps it without its trace
    training = dict.fromkeys(number for rank in ranks for number in rank.facts.get("loaders", ()))
    from voirkit_instruments.syscalls.analyse import is_by_strace

    loader = loader_of(runs, list(training))
    if loader is not None and any(map(is_by_strace, runs)):
        loader["stretched_by"] = "strace"
    return {"loader": loader}


def rules(run: Run) -> Iterator[tuple[int, Iterable[Any]]]:
    """What must be true of the records of each rank's loaders; see ``voirkit.instrument.Instrument``."""
    from voirkit_instruments.loader.analysis.check import check

    for rank in ranks_of(run):
        yield rank, check(run, rank)
