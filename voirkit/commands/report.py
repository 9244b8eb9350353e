"""``voirkit report [RUN]``: what a run came to, of finished, running and killed runs alike."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from voirkit.commands.target import read_words
from voirkit.errors import PLAIN, CommandLineError, tell
from voirkit.options import ExtendedArgumentParser
from voirkit.report.html.file import NAME, may_write, printable, with_file, write
from voirkit.report.output import STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.runs.opened import Run
    from voirkit.runs.processes import Process


def main(argv: Sequence[str]) -> int:
    """Show a run's summary."""
    options = read_words(_parser(), with_file(argv))
    asked = [name for name in ("html", "json", "markdown", "check") if getattr(options, name) not in (None, False)]
    if len(asked) > 1:
        raise CommandLineError(f"--{asked[0]} and --{asked[1]} are two answers; ask for one of them.")
    from voirkit.analysis.summary import check_stream, summary_of
    from voirkit.runs.directory import LATEST, check_manifest
    from voirkit.runs.opened import open_run

    with ExitStack() as opened:
        runs = [opened.enter_context(open_run(path)) for path in options.RUN or [LATEST]]
        if options.check:
            return _check(runs)
        groups = _groups(runs)
        summaries = []
        for group in groups:
            for run in group:
                check_stream(run)
            summaries.append((group[0], summary_of(*group)))
        if options.html is not None:
            _pages(summaries, options.html)
        for group in groups:
            for warning in dict.fromkeys(warning for run in group for warning in (*check_manifest(run.path), *run.warnings)):
                tell(warning)
        if options.html is not None:
            return 0
    try:
        _show(summaries, options)
    except BrokenPipeError:  # `voirkit report | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _pages(summaries: Sequence[tuple[Run, dict[str, Any]]], file: str) -> None:
    """Write a page for each run, and print their names."""
    from voirkit.report.html.document import page

    if file and len(summaries) > 1:
        hint = "Leave FILE out, and each run gets its report.html; two beside each other: voirkit compare RUN RUN --html FILE."
        raise CommandLineError(f"{len(summaries)} runs do not go into one file.", where=f"--html={file}", next=hint)
    for run, summary in summaries:
        target = may_write(file or os.path.join(run.path, NAME))
        try:
            write(page(run, summary), target)
        except BrokenPipeError:  # `voirkit report --html - | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        if target != STDOUT:
            print(printable(os.path.relpath(target) if not file else target))


def _check(runs: Sequence[Run]) -> int:
    """Print the rules that the records of loaders must fulfil, and how often each does not."""
    from voirkit.errors import EXIT_CHECK_FAILED
    from voirkit.instrument import resolve
    from voirkit.plugins import installed_instruments

    broken = 0
    for run in runs:
        checked = {rank: rules for one in installed_instruments() if one.rules for rank, rules in resolve(one.rules)(run)}
        if not checked:
            tell(f"{run.path}: nothing of a loader is recorded there.\n  Record it: voirkit --loader SCRIPT")
        for rank, rules in checked.items():
            print(f"{run.path}" + (f", rank {rank}" if len(checked) > 1 else ""))
            for rule in rules:
                broken += rule.broken
                print(f"  {'BROKEN' if rule.broken else 'ok':<7}{rule.text}: {rule.checked:,} checked" + _said_of(rule))
    return EXIT_CHECK_FAILED if broken else 0


def _said_of(rule: Any) -> str:
    if not rule.broken:
        return ""
    return f", {rule.broken:,} broken" + (f", the first at {rule.example}" if rule.example else "")


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
        from voirkit.runs.directory import finite

        documents = [finite(summary) for _, summary in summaries]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
        return
    from voirkit.runs.directory import LATEST

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors=PLAIN)
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


def _parser() -> ExtendedArgumentParser:
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
