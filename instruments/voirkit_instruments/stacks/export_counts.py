"""The counted stacks of a run that an export is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from voirkit.errors import VoirkitError
from voirkit_instruments.stacks.analyse import counts_of

if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection


def chosen(run: Run, selection: Selection, format: str) -> list[dict[str, Any]]:
    """What was counted of the chosen ranks.

    Raises:
        VoirkitError: There is nothing, or steps are chosen: stacks are counted over the whole run.
    """
    where = f"--format {format}"
    if selection.steps is not None:
        raise VoirkitError("stacks are counted over the whole run.", where=f"{where} --steps", next="Leave --steps out.")
    counts = counts_of(run)
    if not counts:
        raise VoirkitError("this run has no stacks.", where=where, next="Take them: voirkit --flame SCRIPT")
    counts = [one for one in counts if selection.ranks is None or one["rank"] in selection.ranks]
    if not counts:
        raise VoirkitError("the chosen ranks have no stacks.", where=f"{where} --ranks", next="Choose others, or leave --ranks out.")
    return counts
