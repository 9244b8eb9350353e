"""The stacks of a run as lines of ``phase;process;frames n``, for flamegraph.pl, inferno and speedscope."""

from __future__ import annotations

from voirkit.report.output import text
from voirkit_instruments.stacks.analyse import chosen_counts
from voirkit_instruments.stacks.analyse_figures import collapsed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "collapsed", ".collapsed.txt", True


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file; compressed with gzip if its name ends in ``.gz``.

    Raises:
        VoirkitError: The run has no stacks, or not of what is chosen.
    """
    counts = chosen_counts(run, selection, NAME)
    with text(target) as put:
        for line in collapsed(counts):
            put(line)
    return [target]
