"""``voirkit compare RUN RUN``: compares two runs, or two groups of runs, side by side."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from voirkit.analysis.significance import Estimate
from voirkit.analysis.summary import summary_of
from voirkit.commands import printing
from voirkit.commands.report import (
    add_engine,
    check_still_there,
    engine,
    group_directories,
    print_warnings,
)
from voirkit.errors import EXIT_CHECK_FAILED, CommandLineError, PartFailures, tell, visible
from voirkit.instrument import Instrument, resolve
from voirkit.options import ExtendedArgumentParser
from voirkit.plugins import installed_instruments, parts_of_summary
from voirkit.report.html import may_write, with_file, write
from voirkit.report.output import STDOUT, printable
from voirkit.runs.conditions import Condition, read
from voirkit.runs.directory import finite
from voirkit.runs.opened import Run, open_run
from voirkit.runs.summary import empty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.analysis.first_difference import RankDifference
    from voirkit.report.comparison import Figure, Pairs, Place, Side

EXIT_DIFFERENT = 1  # like the exit code of diff


def compare(argv: Sequence[str]) -> int:
    """Compare runs, and return the exit code.

    Returns:
        1 if an instrument's option (``--calls``) finds a difference, 3 if a condition of
        ``--require`` does not hold, otherwise 0.
    """
    options = compare_parser().parse_args(with_file(argv))
    instrument = next((item for item in _comparing() if getattr(options, item.name)), None)
    paths = _sides(options, instrument)
    _check_answers(options, instrument)
    with ExitStack() as opened:
        runs = [[opened.enter_context(open_run(path)) for path in side] for side in paths]
        all_runs = list(chain(*runs))
        required = _conditions(options.require, all_runs)
        executor = opened.enter_context(engine(options.engine))
        for run in all_runs:
            run.executor = executor
        try:
            if instrument:
                return _difference(instrument, runs[0][0], runs[1][0], options)
            first, second = (_side(side, typed) for side, typed in zip(runs, paths, strict=True))
            return _summaries(first, second, options, required)
        finally:
            print_warnings(all_runs)


def _check_answers(options: Any, instrument: Instrument | None) -> None:
    """Raise CommandLineError if the options ask for more than one form of output."""
    answers = []
    if options.json:
        answers.append("--json")
    if options.markdown:
        answers.append("--markdown")
    if instrument:
        answers.append(f"--{instrument.name}")
    if options.html is not None and (answers or not options.html):
        fault = f"it is asked for beside {answers[0]}" if options.html else "FILE is missing"
        raise CommandLineError(
            f"a page is written to a file of its own, and {fault}.",
            next="voirkit compare RUN RUN --html FILE.html",
        )
    if options.markdown and len(answers) > 1:
        other = f"--{instrument.name}" if instrument else "--json"
        raise CommandLineError(f"--markdown and {other} are two answers; ask for one of them.")
    if options.require and instrument:
        raise CommandLineError(
            f"--require is of figures, and is not looked at with --{instrument.name}."
        )


def _conditions(texts: Sequence[str], runs: Sequence[Run]) -> list[Condition]:
    """Return the parsed conditions of ``--require``."""
    figures = {*empty(""), *parts_of_summary()}
    for run in runs:
        figures.update(run.summary or ())
    return [read(text, figures, baseline=True) for text in texts]


def _sides(options: Any, instrument: Instrument | None) -> list[list[str]]:
    """Return the run directories of each side, as typed by the user."""
    first, second = options.RUN, options.side
    if second:
        if not first:
            raise CommandLineError(
                "--with: there is no RUN to compare them with.",
                next="voirkit compare A1 A2 --with B1 B2",
            )
        sides = [first, second]
    else:
        _check_two(first)
        sides = [first[:1], first[1:]]
    if instrument and max(map(len, sides)) > 1:
        raise CommandLineError(
            f"--{instrument.name} compares one run with one.",
            next=f"voirkit compare --{instrument.name} RUN RUN",
        )
    for side in sides:
        directories = [os.path.realpath(path) for path in side]
        for path, directory in zip(side, directories, strict=True):
            if directories.count(directory) > 1:
                raise CommandLineError("it is given twice, and counts as one run.", where=path)
    return sides


def _check_two(runs: Sequence[str]) -> None:
    if len(runs) == 2:
        return
    hint = "voirkit compare RUN RUN"
    if not runs:
        fault = "no RUN is given"
    elif len(runs) == 1:
        fault = f"only {runs[0]!r} is given"
    else:
        fault = "there are more"
        hint += "\n  Several a side: voirkit compare A1 A2 --with B1 B2"
    raise CommandLineError(f"two RUNs are compared, {fault}.", next=hint)


def _side(runs: Sequence[Run], typed: Sequence[str]) -> Side:
    """Return one side of the comparison; directories with ranks of one run count as one run."""
    from voirkit.report.comparison import Side

    groups = group_directories(runs)
    names = {run.path: path for run, path in zip(runs, typed, strict=True)}
    failures = PartFailures()
    summaries = [summary_of(*group) for group in groups]
    no_estimates: Mapping[Place, Estimate | None] = {}
    intervals = [
        failures.attempt("intervals", partial(_estimates, group, summary), no_estimates)
        for group, summary in zip(groups, summaries, strict=True)
    ]
    runs[0].warnings += failures.lines()
    first_directories = [group[0] for group in groups]
    side_names = [names[run.path] for run in first_directories]
    return Side(summaries, side_names, first_directories, intervals, groups)


def _estimates(group: Sequence[Run], summary: Mapping[str, Any]) -> Mapping[Place, Estimate | None]:
    """Return the estimates, with intervals, of a run's figures; ``group`` is its directories."""
    from voirkit.analysis.document import estimates
    from voirkit.analysis.run_steps import read_steps
    from voirkit.report.comparison import WALL, wall_estimate

    of_steps = estimates([rank for run in group for rank in read_steps(run)])
    return {**of_steps, WALL: wall_estimate(summary, of_steps)}


def _difference(instrument: Instrument, first: Run, second: Run, options: Any) -> int:
    import duckdb

    try:
        document, lines = resolve(instrument.difference)(
            first, second, (options.RUN[0], options.RUN[1])
        )
    except duckdb.Error as exc:
        raise first.damaged(exc) from None
    if options.json:
        lines = [json.dumps({"runs": [first.where, second.where], **document}, indent=1)]
    with printing():
        for line in lines:
            print(visible(line))
    return 0 if document["equal"] else EXIT_DIFFERENT


def _summaries(first: Side, second: Side, options: Any, required: Sequence[Condition]) -> int:
    from voirkit.analysis.first_difference import first_differences
    from voirkit.report.comparison import (
        different_facts,
        environments,
        figures,
        figures_of_instruments,
        missed_by,
    )
    from voirkit.report.html.comparison import comparison_page

    if not options.force:
        _check_comparable(first, second)
    failures = PartFailures()
    rows: list[Figure] = failures.attempt("figures", lambda: figures(first, second), [])
    rows += failures.attempt(
        "figures of instruments", lambda: list(figures_of_instruments(first, second)), []
    )
    different: Pairs = failures.attempt(
        "what else differs", lambda: different_facts(first, second), {}
    )
    environment: Pairs = failures.attempt("environment", lambda: environments(first, second), {})
    no_ranks: list[RankDifference] = []
    rank_differences = failures.attempt(
        "first difference",
        lambda: first_differences(first.directories[0], second.directories[0]),
        no_ranks,
    )
    page = comparison_page(first, second) if options.html is not None else ""
    check_still_there([*first.runs, *second.runs])
    missed: list[str] = []
    for condition in required:
        missed += missed_by(condition, rows, first, second)
    first.runs[0].warnings += failures.lines()
    comparison = _Comparison(rows, different, environment, rank_differences)
    if page:
        target = may_write(options.html)
        with printing():
            write(page, target)
            if target != STDOUT:
                print(printable(target))
    elif options.json:
        document = _document(first, second, comparison, missed)
        with printing():
            print(json.dumps(finite(document), indent=1))
    else:
        _print_sections(first, second, comparison, options.markdown)
    for line in missed:
        tell(f"check failed: {line}")
    return EXIT_CHECK_FAILED if missed else 0


@dataclass(frozen=True)
class _Comparison:
    """The differences between two sides."""

    figures: list[Figure]
    different: Pairs  # other facts that differ, by name
    environment: Pairs
    first_differences: list[RankDifference]


def _document(
    first: Side, second: Side, comparison: _Comparison, missed: Sequence[str]
) -> dict[str, Any]:
    from voirkit.analysis.first_difference import rank_as_json

    runs: list[str | list[str]] = []
    for side in (first, second):
        paths = [run.where for run in side.runs]
        runs.append(paths[0] if len(paths) == 1 else paths)
    return {
        "runs": runs,
        "figures": [row.as_json() for row in comparison.figures],
        "different": comparison.different,
        "environment": comparison.environment,
        "missed": missed,
        "first_difference": [rank_as_json(rank) for rank in comparison.first_differences],
    }


def _print_sections(first: Side, second: Side, comparison: _Comparison, is_markdown: bool) -> None:
    from voirkit.report.comparison_sections import (
        answer_section,
        differences_section,
        figures_section,
    )

    sections = [
        answer_section(first, second, comparison.figures, comparison.first_differences),
        figures_section(comparison.figures),
        differences_section({**comparison.different, **comparison.environment}),
    ]
    with printing():
        if is_markdown:
            from voirkit.report.markdown import in_markdown

            print(in_markdown("Comparison", sections), end="")
        else:
            from rich.console import Console

            from voirkit.report.terminal import draw_sections

            draw_sections(sections, Console(file=sys.stdout, highlight=False))


def _check_comparable(first: Side, second: Side) -> None:
    """Raise CommandLineError if some runs have training steps and others have none.

    The values of such runs have nothing in common.
    """
    named_summaries = [
        *zip(first.names, first.summaries, strict=True),
        *zip(second.names, second.summaries, strict=True),
    ]
    untrained = []
    for name, summary in named_summaries:
        steps = summary.get("steps") or {}
        if not steps.get("n"):
            untrained.append(name)
    if 0 < len(untrained) < len(named_summaries):  # if all lack steps, other values count
        raise CommandLineError(
            "no step of a training is recorded there.",
            where=untrained[0],
            next="--force compares them all the same.",
        )


def _comparing() -> list[Instrument]:
    """Return the instruments that can find the first difference between two runs."""
    return [instrument for instrument in installed_instruments() if instrument.difference]


def compare_parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit compare",
        "voirkit compare [--json] [--markdown] [--html FILE] [--require CONDITION] [--engine"
        " dask:ADDRESS] RUN RUN\n       voirkit compare RUN ... --with RUN ...",
        description=(
            "Shows two runs beside each other: steps, phases, rates, whether they differ by more"
            " than noise, verdicts, and what is not the same around them. With --with several runs"
            " a side, which show how much runs differ. With --calls: the first step and call at"
            " which they do different things; exit code 1 if there is one."
        ),
    )
    parser.add_argument(
        "RUN",
        nargs="*",
        help="two run directories; those of the first side where --with has the second's",
    )
    parser.add_argument(
        "--with",
        dest="side",
        nargs="+",
        default=[],
        metavar="RUN",
        help="run directories of the second side",
    )
    for instrument in _comparing():
        parser.add_argument(
            f"--{instrument.name}",
            action="store_true",
            help=f"find where what --{instrument.name} recorded begins to differ",
        )
    parser.add_argument(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="write the comparison as an HTML page; - is stdout",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.add_argument(
        "--markdown", action="store_true", help="print it as Markdown, for the summary of a CI job"
    )
    require = (
        'exit with code 3 if the second misses a target beside the first: "step_time<+3%%",'
        ' "memory<+10%%" (repeatable)'
    )
    parser.add_argument("--require", action="append", default=[], metavar="CONDITION", help=require)
    parser.add_argument(
        "--force", action="store_true", help="compare runs of which one has no training steps"
    )
    add_engine(parser)
    return parser
