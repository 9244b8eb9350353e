"""Completes the record of a run that has just ended: adds steps and verdict to ``summary.json``,
computed from the trace segments.

It is a separate program, so that the training process loads nothing for it:

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
    """Complete the record of a run for one rank; rank 0 writes the summary.

    Args:
        path: The run directory.
        pid: The process that has recorded the run and is about to end.
        compact: Whether to compact the trace and roll up the steps now, instead of when they are
            first read.

    Returns:
        The summary.
    """
    with Run(path, ended=[pid], compacts=compact) as run:
        summary = summary_of(run)
        if rank == 0:
            write_json(os.path.join(path, SUMMARY), summary)
    return summary


def main(argv: Sequence[str]) -> int:
    """Run the program and return its exit code. An exception leads to Python's traceback on stderr,
    which the calling process reports."""
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

        # ``finish`` has compacted already; if that failed, this call raises the reason
        compaction.compact(options.RUN, options.rank, ended=[options.pid])
    return 0


def _with_own_cost(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary with the CPU time of its completion until now as part of the overhead. The
    waiting parent process records the final time."""
    overhead = summary.get("overhead")
    if not overhead:
        return summary
    # includes the times of child processes, such as perf, which reads samples
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

    # stdout is a pipe to the calling process, which prints the text. So write UTF-8 even if the
    # locale, such as ASCII, does not allow it.
    with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as file:
        draw(
            summary,
            Console(file=file, width=options.draw, force_terminal=options.colour, highlight=False),
            options.shown,
            LINES,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
