"""Completes the record of a run that has just ended: steps and verdict in ``summary.json``, the rollup, the trace put to rest.

A program of its own, so that the training process loads nothing for it:

    python -m voirkit.report.finish RUN --rank R --pid PID [--draw COLUMNS [--colour] --shown RUN]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from voirkit.analysis.document import Rank
from voirkit.analysis.of_run import of_run, roll_up
from voirkit.analysis.part_failures import PartFailures
from voirkit.analysis.summary import summary_of
from voirkit.runs.directory import SUMMARY, write_json
from voirkit.runs.opened import Run
from voirkit.runs.tables import compaction as at_rest
from voirkit.trace.pieces import of_stem


def finish(path: str, rank: int, pid: int) -> dict[str, Any]:
    """Complete one rank's part of a run; rank 0 writes the summary. A run that nobody launched as ranks is completed whole.

    Args:
        path: The run directory.
        rank: Whose.
        pid: The process that has recorded it, which is about to end.

    Returns:
        The summary.
    """
    with Run(path, ended=[pid]) as run:  # puts the trace to rest before it is read: it is written once
        failures = PartFailures()
        ranks: list[Rank] = PartFailures().attempt("steps", lambda: of_run(run), [])  # the summary says why
        leads = run.manifest.get("world_size", 1) == 1  # the ranks that there are it has started itself
        left: list[str] = failures.attempt("the trace", lambda: at_rest.settle(path, None if leads else rank, ended=[pid]).left, [])
        living = {(host, other) for host, _, other in map(of_stem, left)}
        for one in ranks:
            if (leads or one.rank == rank) and living.isdisjoint(one.processes):
                failures.attempt("the steps' own file, from which other reports are faster", partial(roll_up, run, one), "")
        run.warnings += failures.lines()
        summary = summary_of(run)
        if rank == 0:
            write_json(os.path.join(path, SUMMARY), summary)
    return summary


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; what goes wrong is printed by python: whoever called reports it."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="python -m voirkit.report.finish", description=__doc__)
    parser.add_argument("RUN")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--draw", type=int, metavar="COLUMNS")
    parser.add_argument("--colour", action="store_true")
    parser.add_argument("--shown")
    options: Any = parser.parse_args(argv)
    summary = finish(options.RUN, options.rank, options.pid)
    if options.draw and _says_something(summary):
        _draw(summary, options)
    at_rest.settle(options.RUN, options.rank, ended=[options.pid])  # nothing is left to do, or this says why
    return 0


def _says_something(summary: Mapping[str, Any]) -> bool:
    """Whether there is more to be seen than that a script ran."""
    from voirkit.report.terminal import shows

    steps = summary.get("steps")
    return bool(steps is None or steps["n"] or shows(summary))


def _draw(summary: dict[str, Any], options: Any) -> None:
    from rich.console import Console

    from voirkit.report.terminal import LINES, draw

    # The stream may not take what is drawn (an ASCII locale): it is the caller's, who prints it on the program's own.
    with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as file:
        draw(summary, Console(file=file, width=options.draw, force_terminal=options.colour, highlight=False), options.shown, LINES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
