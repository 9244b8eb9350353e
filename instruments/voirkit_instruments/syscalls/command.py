"""``voirkit syscalls LOG [LOG_B]``: shows the contents of an strace log, made by voirkit or
elsewhere, or how two logs differ."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from voirkit.commands import printing
from voirkit.errors import CommandLineError
from voirkit.instrument import whole_number
from voirkit.options import ExtendedArgumentParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 12


def main(argv: Sequence[str]) -> int:
    """Show a log, or the difference of two logs.

    Returns:
        The exit code.

    Raises:
        CommandLineError: The command line is wrong.
        SyscallLogError: A log cannot be read.
        RunDirectoryError: A folder is not a run, or its system calls were not recorded.
    """
    options = main_parser().parse_args(argv)
    if not 1 <= len(options.LOG) <= 2:
        raise CommandLineError(
            "it takes one log, or two to compare.",
            where="voirkit syscalls",
            next="A log is made by: strace -f -ttt -T -o LOG python main.py",
        )
    documents = [_document(path) for path in options.LOG]
    with printing():
        _show(documents, options)
    return 0


def _document(path: str) -> dict[str, Any]:
    from voirkit_instruments.syscalls.analyse import read_strace

    if not os.path.isdir(path):
        return read_strace(path)
    from voirkit.analysis.summary import summary_of
    from voirkit.errors import RunDirectoryError
    from voirkit.runs.opened import open_run

    with open_run(path) as run:
        document: dict[str, Any] | None = summary_of(run)["syscalls"]
    if not document or not document.get("threads"):
        raise RunDirectoryError(
            "no system calls were recorded in this run.",
            where=path,
            next="Record them: voirkit --syscalls SCRIPT",
        )
    return document


def _show(documents: Sequence[dict[str, Any]], options: Any) -> None:
    from voirkit_instruments.syscalls.analyse import difference
    from voirkit_instruments.syscalls.show import over_time_map, two_logs, whole_log

    rows = difference(*documents) if len(documents) == 2 else []
    if options.json:
        print(json.dumps([row._asdict() for row in rows] if rows else documents[0], indent=1))
        return
    from rich.console import Console

    from voirkit.errors import visible
    from voirkit.report.terminal import draw_sections

    console = Console(file=sys.stdout, highlight=False)
    if len(documents) == 2:
        section = two_logs(rows, dict(zip(options.LOG, documents, strict=True)), options.top)
    else:
        section = whole_log(documents[0], options.LOG[0], options.top)
    draw_sections([section], console)
    if options.over_time and len(documents) == 1:
        for line in over_time_map(documents[0], console.width):
            console.print(visible(line), markup=False)


def main_parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit syscalls",
        "voirkit syscalls [--top N] [--over-time] [--json] LOG [LOG_B]",
        description=(
            "Shows the system calls of a log that strace wrote, or of a run directory, by phase,"
            " kind of thread and call: how many, errors, time, bytes; of two of them how they"
            " differ, + for what the second has more."
        ),
    )
    parser.add_argument(
        "LOG",
        nargs="*",
        help="a log of strace (-o LOG; -f, -ttt and -T make it more complete), or a run directory",
    )
    rows = whole_number("no number of rows", " of at least 1", 1)
    parser.add_argument(
        "--top",
        type=rows,
        default=_MOST,
        metavar="N",
        help=f"rows of each phase, or of differences (default: {_MOST})",
    )
    parser.add_argument(
        "--over-time", action="store_true", help="show when they were made as well, of one log"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser
