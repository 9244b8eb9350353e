"""``voirkit compare RUN RUN``: two runs beside each other; with ``--calls`` where they begin to do different things."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from voirkit.commands.target import read_words
from voirkit.errors import PLAIN, CommandLineError, tell
from voirkit.instrument import Instrument, resolve
from voirkit.options import ExtendedArgumentParser
from voirkit.plugins import installed_instruments
from voirkit.report.html.file import may_write, printable, with_file, write
from voirkit.report.output import STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.analysis.comparison import Figure
    from voirkit.report.comparison import Pairs
    from voirkit.runs.opened import Run

EXIT_DIFFERENT = 1  # as of diff


def main(argv: Sequence[str]) -> int:
    """Compare two runs; returns 1 if they are to call the same and do not."""
    options = read_words(_parser(), with_file(argv))
    if len(options.RUN) != 2:
        given = "no RUN is given" if not options.RUN else f"only {options.RUN[0]!r} is given" if len(options.RUN) == 1 else "there are more"
        raise CommandLineError(f"two RUNs are compared, {given}.", next="voirkit compare RUN RUN")
    asked = next((one for one in _comparing() if getattr(options, one.name)), None)
    if options.html is not None and (options.json or asked or not options.html):
        beside = "--json" if options.json else f"--{asked.name}" if asked else ""
        what = "FILE is missing" if not options.html else f"it is asked for beside {beside}"
        raise CommandLineError(f"a page is written to a file of its own, and {what}.", next="voirkit compare RUN RUN --html FILE.html")
    from voirkit.runs.directory import check_manifest
    from voirkit.runs.opened import open_run

    with ExitStack() as opened:
        first, second = (opened.enter_context(open_run(path)) for path in options.RUN)
        try:
            return _difference(asked, first, second, options) if asked else _summaries(first, second, options)
        except BrokenPipeError:  # `voirkit compare a b | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_DIFFERENT if asked else 0
        finally:
            for warning in dict.fromkeys(warning for run in (first, second) for warning in (*check_manifest(run.path), *run.warnings)):
                tell(warning)


def _difference(instrument: Instrument, first: Run, second: Run, options: Any) -> int:
    import duckdb

    try:
        document, lines = resolve(instrument.difference)(first, second, (options.RUN[0], options.RUN[1]))
    except duckdb.Error as exc:
        raise first.damaged(exc) from None
    if options.json:
        print(json.dumps({"runs": [first.path, second.path], **document}, indent=1))
    else:
        _plain()
        for line in lines:
            print(line)
    sys.stdout.flush()
    return 0 if document["equal"] else EXIT_DIFFERENT


def _summaries(first: Run, second: Run, options: Any) -> int:
    from voirkit.analysis.comparison import environments, figures, said
    from voirkit.analysis.part_failures import PartFailures
    from voirkit.analysis.summary import summary_of

    summaries = [summary_of(run) for run in (first, second)]
    if options.html is not None:
        from voirkit.report.html.comparison import comparison_page

        target = may_write(options.html)
        write(comparison_page((first, second), (options.RUN[0], options.RUN[1]), (summaries[0], summaries[1])), target)
        if target != STDOUT:
            print(printable(target))
        sys.stdout.flush()
        return 0
    failures = PartFailures()
    from voirkit.report.comparison import figures_of_instruments

    rows: list[Figure] = failures.attempt("figures", lambda: figures(summaries[0], summaries[1]), [])
    rows += failures.attempt("figures of instruments", lambda: list(figures_of_instruments(summaries[0], summaries[1])), [])
    different: Pairs = failures.attempt("what else differs", lambda: said(summaries[0], summaries[1]), {})
    environment: Pairs = failures.attempt("environment", lambda: environments(first.manifest, second.manifest), {})
    first.warnings += failures.lines()
    if options.json:
        from voirkit.runs.directory import finite

        document = {"figures": [row.as_json() for row in rows], "different": different, "environment": environment}
        print(json.dumps(finite({"runs": [first.path, second.path], **document}), indent=1))
    else:
        from rich.console import Console
        from rich.segment import SegmentLines

        from voirkit.report.terminal import comparison_table, rendered

        _plain()
        console = Console(file=sys.stdout, highlight=False)
        drawn = comparison_table((options.RUN[0], options.RUN[1]), rows, {**different, **environment}, console.width)
        console.print(SegmentLines(rendered(console, drawn), new_lines=True), end="")
    sys.stdout.flush()
    return 0


def _comparing() -> list[Instrument]:
    return [one for one in installed_instruments() if one.difference]


def _plain() -> None:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors=PLAIN)


def _parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit compare",
        "voirkit compare [--calls] [--json] [--html FILE] RUN RUN",
        description="Shows two runs beside each other: steps, phases, rates, verdicts, and what is not the same around them. With --calls: "
        "the first step and call at which they do different things; exit code 1 if there is one.",
    )
    parser.add_argument("RUN", nargs="*", help="two run directories")
    for one in _comparing():
        parser.add_argument(f"--{one.name}", action="store_true", help=f"find where what --{one.name} recorded begins to differ")
    parser.add_argument("--html", nargs="?", const="", metavar="FILE", help="write the comparison as an HTML page; - is stdout")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    return parser
