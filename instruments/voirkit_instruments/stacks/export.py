"""The stacks of a run in formats of other tools: lines for flamegraph.pl and inferno, and a document for https://www.speedscope.app."""

from __future__ import annotations

from typing import Any

from voirkit.errors import VoirkitError
from voirkit.report.output import text
from voirkit.runs.opened import Run
from voirkit.runs.selection import Selection
from voirkit_instruments.stacks.analyse import COLLAPSED, FILES, SPEEDSCOPE, counts_of


class StackFormat:
    """A format of ``voirkit export``. ``file``: the file in ``flame/`` that has it, of all ranks."""

    IS_TEXT = True

    def __init__(self, file: str) -> None:
        self.NAME, self.SUFFIX = file.partition(".")[0], f".{file}"
        self._parts = FILES[file]

    def write(self, run: Run, selection: Selection, target: str) -> list[str]:
        """Write one file; compressed with gzip if its name ends in ``.gz``. Raises VoirkitError: the run has no stacks, or not of what is
        chosen."""
        counts = chosen_counts(run, selection, self.NAME)
        with text(target) as put:
            for part in self._parts(counts):
                put(part)
        return [target]


SPEEDSCOPE_FORMAT, COLLAPSED_FORMAT = StackFormat(SPEEDSCOPE), StackFormat(COLLAPSED)


def chosen_counts(run: Run, selection: Selection, format: str) -> list[dict[str, Any]]:
    """The counts of the ranks that are to be exported. Raises VoirkitError: there is nothing, or steps are chosen: stacks are counted over
    the whole run."""
    where = f"--format {format}"
    if selection.steps is not None:
        raise VoirkitError("stacks are counted over the whole run.", where=f"{where} --steps", next="Leave --steps out.")
    counts = counts_of(run)
    if not counts:
        raise VoirkitError("this run has no stacks.", where=where, next="Sample them: voirkit --flame SCRIPT")
    counts = [one for one in counts if selection.ranks is None or one["rank"] in selection.ranks]
    if not counts:
        raise VoirkitError("the chosen ranks have no stacks.", where=f"{where} --ranks", next="Choose others, or leave --ranks out.")
    return counts
