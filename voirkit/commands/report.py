"""``voirkit report [RUN]``, what a run came to, and ``voirkit compare RUN RUN``, two beside each other.

Of finished, running and killed runs alike.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from voirkit.analysis.part_failures import PartFailures
from voirkit.analysis.summary import check_stream, summary_of
from voirkit.commands import printing
from voirkit.errors import EXIT_CHECK_FAILED, CommandLineError, tell
from voirkit.instrument import Instrument, resolve
from voirkit.options import ExtendedArgumentParser
from voirkit.plugins import installed_instruments
from voirkit.report.html.document import page
from voirkit.report.output import NAME, STDOUT, may_write, printable, with_file, write
from voirkit.runs.directory import LATEST, check_manifest, finite
from voirkit.runs.opened import Run, open_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.report.comparison import Figure, Pairs
    from voirkit.runs.trace_files import Process

EXIT_DIFFERENT = 1  # as of diff


def report(argv: Sequence[str]) -> int:
    """Show a run's summary."""
    options = _report_parser().parse_args(with_file(argv))
    asked = [name for name in ("html", "json", "markdown", "check") if getattr(options, name) not in (None, False)]
    if len(asked) > 1:
        raise CommandLineError(f"--{asked[0]} and --{asked[1]} are two answers; ask for one of them.")
    with ExitStack() as opened:
        runs = [opened.enter_context(open_run(path)) for path in options.RUN or [LATEST]]
        if options.check:
            with printing():
                return _check(runs)
        groups = _groups(runs)
        summaries = []
        for group in groups:
            for run in group:
                check_stream(run)
            summaries.append((group[0], summary_of(*group)))
        if options.html is not None:
            with printing():
                _pages(summaries, options.html)
        for group in groups:
            _warn(group)
        if options.html is not None:
            return 0
    with printing():
        _show(summaries, options)
    return 0


def _warn(runs: Sequence[Run]) -> None:
    for warning in dict.fromkeys(warning for run in runs for warning in (*check_manifest(run.path), *run.warnings)):
        tell(warning)


def _pages(summaries: Sequence[tuple[Run, dict[str, Any]]], file: str) -> None:
    """Write a page for each run, and print their names."""
    if file and len(summaries) > 1:
        hint = "Leave FILE out, and each run gets its report.html; two beside each other: voirkit compare RUN RUN --html FILE."
        raise CommandLineError(f"{len(summaries)} runs do not go into one file.", where=f"--html={file}", next=hint)
    for run, summary in summaries:
        target = may_write(file or os.path.join(run.path, NAME))
        write(page(run, summary), target)
        if target != STDOUT:
            print(printable(os.path.relpath(target) if not file else target))


def _check(runs: Sequence[Run]) -> int:
    """Print the rules that the records of loaders must fulfil, and how often each does not."""
    broken = 0
    for run in runs:
        checked = {rank: rules for one in installed_instruments() if one.rules for rank, rules in resolve(one.rules)(run)}
        if not checked:
            tell(f"{run.path}: nothing of a loader is recorded there.\n  Record it: voirkit --loader SCRIPT")
        for rank, rules in checked.items():
            print(f"{run.path}" + (f", rank {rank}" if len(checked) > 1 else ""))
            for rule in rules:
                broken += rule.broken
                example = f", the first at {rule.example}" if rule.example else ""
                how_often = f", {rule.broken:,} broken{example}" if rule.broken else ""
                print(f"  {'BROKEN' if rule.broken else 'ok':<7}{rule.text}: {rule.checked:,} checked{how_often}")
    return EXIT_CHECK_FAILED if broken else 0


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """The directories that belong together: several are one run if each holds ranks that no other does and one at most has begun it."""
    distinct = list({run.path: run for run in runs}.values())
    if len(distinct) == 1:
        return [distinct]
    held = [{process.rank for process in _processes(run)} for run in distinct]
    if sum(map(len, held)) > len(set[int]().union(*held)) or sum(bool(run.manifest) for run in distinct) > 1:
        return [[run] for run in distinct]
    order = sorted(range(len(distinct)), key=lambda i: (not distinct[i].manifest, min(held[i], default=0)))
    return [[distinct[i] for i in order]]


def _processes(run: Run) -> Sequence[Process]:
    import duckdb

    try:
        return run.processes()
    except duckdb.Error as exc:
        raise run.damaged(exc) from None


def _show(summaries: Sequence[tuple[Run, dict[str, Any]]], options: Any) -> None:
    if options.json:
        documents = [finite(summary) for _, summary in summaries]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
        return
    typed = options.RUN or [LATEST]
    named = [(summary, next((path for path in typed if os.path.realpath(path) == run.path), run.path)) for run, summary in summaries]
    if options.markdown:
        from voirkit.report.markdown import markdown

        print("\n".join(markdown(summary, path) for summary, path in named), end="")
        return
    from rich.console import Console

    from voirkit.report.terminal import draw

    console = Console(file=sys.stdout, highlight=False)
    for at, (summary, path) in enumerate(named):
        if at:
            console.print()
        draw(summary, console, path)


def _report_parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit report",
        "voirkit report [--html[=FILE]] [--json] [--markdown] [--check] [RUN ...]",
        description="Shows what a run came to: verdict, breakdown of a step, rates. Of finished, running and killed runs. "
        "Several directories that hold the ranks of one run are put together; several runs are shown one after the other.",
    )
    parser.add_argument("RUN", nargs="*", help="run directories (default: voirkit-runs/latest)")
    parser.add_argument(
        "--check", action="store_true", help="hold what --loader recorded against what must be true of it; 3 if something is not"
    )
    parser.add_argument(
        "--html", nargs="?", const="", metavar="FILE", help="write all of it as one HTML page (default: report.html in RUN); - is stdout"
    )
    parser.add_argument("--json", action="store_true", help="print the whole summary as JSON; of several runs a list")
    parser.add_argument("--markdown", action="store_true", help="print it as Markdown, for the summary of a CI job or an issue")
    return parser


# two runs


def compare(argv: Sequence[str]) -> int:
    """Compare two runs; returns 1 if they are to call the same and do not."""
    options = _compare_parser().parse_args(with_file(argv))
    if len(options.RUN) != 2:
        given = "no RUN is given" if not options.RUN else f"only {options.RUN[0]!r} is given" if len(options.RUN) == 1 else "there are more"
        raise CommandLineError(f"two RUNs are compared, {given}.", next="voirkit compare RUN RUN")
    asked = next((one for one in _comparing() if getattr(options, one.name)), None)
    if options.html is not None and (options.json or asked or not options.html):
        beside = "--json" if options.json else f"--{asked.name}" if asked else ""
        what = "FILE is missing" if not options.html else f"it is asked for beside {beside}"
        raise CommandLineError(f"a page is written to a file of its own, and {what}.", next="voirkit compare RUN RUN --html FILE.html")
    with ExitStack() as opened:
        first, second = (opened.enter_context(open_run(path)) for path in options.RUN)
        try:
            return _difference(asked, first, second, options) if asked else _summaries(first, second, options)
        finally:
            _warn((first, second))


def _difference(instrument: Instrument, first: Run, second: Run, options: Any) -> int:
    import duckdb

    try:
        document, lines = resolve(instrument.difference)(first, second, (options.RUN[0], options.RUN[1]))
    except duckdb.Error as exc:
        raise first.damaged(exc) from None
    with printing():
        for line in [json.dumps({"runs": [first.path, second.path], **document}, indent=1)] if options.json else lines:
            print(line)
    return 0 if document["equal"] else EXIT_DIFFERENT


def _summaries(first: Run, second: Run, options: Any) -> int:
    from voirkit.report.comparison import comparison_page, comparison_table, environments, figures, figures_of_instruments, said

    summaries = [summary_of(run) for run in (first, second)]
    if options.html is not None:
        target = may_write(options.html)
        with printing():
            write(comparison_page((first, second), (options.RUN[0], options.RUN[1]), (summaries[0], summaries[1])), target)
            if target != STDOUT:
                print(printable(target))
        return 0
    failures = PartFailures()
    rows: list[Figure] = failures.attempt("figures", lambda: figures(summaries[0], summaries[1]), [])
    rows += failures.attempt("figures of instruments", lambda: list(figures_of_instruments(summaries[0], summaries[1])), [])
    different: Pairs = failures.attempt("what else differs", lambda: said(summaries[0], summaries[1]), {})
    environment: Pairs = failures.attempt("environment", lambda: environments(first.manifest, second.manifest), {})
    first.warnings += failures.lines()
    if options.json:
        document = {"figures": [row.as_json() for row in rows], "different": different, "environment": environment}
        with printing():
            print(json.dumps(finite({"runs": [first.path, second.path], **document}), indent=1))
    else:
        from rich.console import Console
        from rich.segment import SegmentLines

        from voirkit.report.terminal import rendered

        with printing():
            console = Console(file=sys.stdout, highlight=False)
            drawn = comparison_table((options.RUN[0], options.RUN[1]), rows, {**different, **environment}, console.width)
            console.print(SegmentLines(rendered(console, drawn), new_lines=True), end="")
    return 0


def _comparing() -> list[Instrument]:
    return [one for one in installed_instruments() if one.difference]


def _compare_parser() -> ExtendedArgumentParser:
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
