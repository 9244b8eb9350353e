"""``voirkit report [RUN]``: what a run came to, of finished, running and killed runs alike."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from voirkit.commands.target import read_words
from voirkit.errors import tell
from voirkit.options import ExtendedArgumentParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(argv: Sequence[str]) -> int:
    """Show a run's summary.

    Returns:
        The exit code.

    Raises:
        CommandLineError: The command line is wrong.
        RunDirectoryError: There is no run, or it can not be read.
    """
    options = read_words(_parser(), argv)
    from voirkit.analysis.summary import check_stream, summary_of
    from voirkit.runs.find import LATEST, check_manifest
    from voirkit.runs.opened import open_run

    with open_run(options.RUN or LATEST) as run:
        check_stream(run)
        summary = summary_of(run)
        for warning in (*check_manifest(run.path), *run.warnings):
            tell(warning)
        _show(summary, options)
    return 0


def _show(summary: dict[str, Any], options: Any) -> None:
    if options.json:
        from voirkit.runs.directory import finite

        print(json.dumps(finite(summary), indent=1))
        return
    from rich.console import Console

    from voirkit.report.table import draw

    draw(summary, Console(file=sys.stdout, highlight=False), options.RUN)


def _parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit report",
        "voirkit report [--json] [RUN]",
        description="Shows what a run came to: verdict, breakdown of a step, rates. Of finished, running and killed runs.",
    )
    parser.add_argument("RUN", nargs="?", help="the run directory (default: voirkit-runs/latest)")
    parser.add_argument("--json", action="store_true", help="print the whole summary as JSON")
    return parser
