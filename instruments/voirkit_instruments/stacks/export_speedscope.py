"""The stacks of a run for https://www.speedscope.app: a profile for each thread, with the phases as outermost frames."""

from __future__ import annotations

import json

from voirkit.report.output import text
from voirkit_instruments.stacks.analyse import chosen_counts
from voirkit_instruments.stacks.analyse_figures import speedscope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "speedscope", ".speedscope.json", True


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file; compressed with gzip if its name ends in ``.gz``.

    Raises:
        VoirkitError: The run has no stacks, or not of what is chosen.
    """
    document = speedscope(chosen_counts(run, selection, NAME))
    with text(target) as put:
        put(json.dumps(document) + "\n")
    return [target]
