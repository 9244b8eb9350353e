"""Completes the record of a run that has just ended: steps and verdict in ``summary.json``, the rollup, the trace put to rest.

A program of its own, so that the training process loads nothing for it:

    python -m voirkit.analysis.finish RUN --rank R --pid PID
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from voirkit.analysis.of_run import of_run, roll_up
from voirkit.analysis.summary import summary_of
from voirkit.runs import at_rest
from voirkit.runs.directory import SUMMARY, write_json
from voirkit.runs.opened import Run


def finish(path: str, rank: int, pid: int) -> None:
    """Complete one rank's part of a run; rank 0 writes the summary.

    Args:
        path: The run directory.
        rank: Whose.
        pid: The process that has recorded it, which is about to end.
    """
    with Run(path) as run:
        for one in of_run(run):
            if one.rank == rank:
                roll_up(run, one)
        if rank == 0:
            write_json(os.path.join(path, SUMMARY), summary_of(run))
    at_rest.settle(path, rank, ended=[pid])


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; what goes wrong is printed by python: whoever called reports it."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="python -m voirkit.analysis.finish", description=__doc__)
    parser.add_argument("RUN")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--pid", type=int, required=True)
    options: Any = parser.parse_args(argv)
    finish(options.RUN, options.rank, options.pid)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
