"""``loader`` of a summary for a run, or for the directories of its ranks."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from voirkit.analysis.pipeline.records import KIND
from voirkit.runs.parquet import quoted

if TYPE_CHECKING:
    from voirkit.analysis.pipeline.partial import Partial
    from voirkit.runs.opened import Run


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
    from voirkit.analysis.pipeline.figures import figures
    from voirkit.analysis.pipeline.partial import combine, partials

    parts: list[Partial] = []
    for run, rank in recorded:
        parts += partials(run, rank)
    cpus = next((run.manifest["cpus"] for run in runs if run.manifest.get("cpus")), None)
    places = {(process.host, process.rank) for run in runs for process in run.processes()}
    ranks_of_host = -(-len({rank for _, rank in places}) // max(len({host for host, _ in places}), 1)) or 1
    return figures(combine(parts), training, None if cpus is None else max(cpus // ranks_of_host, 1))
