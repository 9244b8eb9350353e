"""Completes the record of a run that has just ended: steps and verdict in ``summary.json``, from
what lies in segments.

A program of its own, so that the training process loads nothing for it:

    python -m voirkit.report.finish RUN --rank R --pid PID [--compact] [--draw COLUMNS [--colour]
    --shown RUN]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from voirkit.analysis.summary import summary_of
from voirkit.runs.directory import SUMMARY, write_json
from voirkit.runs.opened import Run


def finish(path: str, rank: int, pid: int, compact: bool = False) -> dict[str, Any]:
    """Complete a run as far as one of its ranks can; rank 0 writes the summary.

    Args:
        pid: The process that has recorded it, which is about to end.
        compact: Whether its trace is compacted and its steps are rolled up now, and not when
            somebody first reads them.

    Returns:
        The summary.
    """
    with Run(path, ended=[pid], compacts=compact) as run:
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
    parser.add_argument("--compact", action="store_true")
    parser.add_argument("--draw", type=int, metavar="COLUMNS")
    parser.add_argument("--colour", action="store_true")
    parser.add_argument("--shown")
    options: Any = parser.parse_args(argv)
    summary = finish(options.RUN, options.rank, options.pid, options.compact)
    if options.draw:
        _draw(_with_own_cost(summary), options)
    if options.compact:
        from voirkit.runs import compaction

        # nothing is left to do, or this says why
        compaction.compact(options.RUN, options.rank, ended=[options.pid])
    return 0


def _with_own_cost(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary with what completing it has taken until now; the process that waits for this one
    writes down all of it."""
    overhead = summary.get("overhead")
    if not overhead:
        return summary
    # perf and others that read what was sampled are children
    completing = {"seconds": sum(os.times()[:4])}
    return {
        **summary,
        "overhead": {
            **overhead,
            "parts": {**(overhead.get("parts") or {}), "completing": completing},
        },
    }


def _draw(summary: dict[str, Any], options: Any) -> None:
    from rich.console import Console

    from voirkit.report.terminal import LINES, draw

    # The stream may not take what is drawn (an ASCII locale): it is the caller's, who prints it on
    # the program's own.
    with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as file:
        draw(
            summary,
            Console(file=file, width=options.draw, force_terminal=options.colour, highlight=False),
            options.shown,
            LINES,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
