"""``voirkit compare RUN RUN``: two runs beside each other, or several a side."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from voirkit.analysis.significance import Estimate
from voirkit.analysis.summary import summary_of
from voirkit.commands import printing
from voirkit.commands.report import add_engine, check_still_there, engine, group_directories, print_warnings
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

EXIT_DIFFERENT = 1  # as of diff


def compare(argv: Sequence[str]) -> int:
    """Compare runs; returns 1 if they are to call the same and do not, 3 if a condition of ``--require`` does not hold."""
    options = compare_parser().parse_args(with_file(argv))
    asked = next((one for one in _comparing() if getattr(options, one.name)), None)
    paths = _sides(options, asked)
    if options.html is not None and (options.json or options.markdown or asked or not options.html):
        beside = "--json" if options.json else "--markdown" if options.markdown else f"--{asked.name}" if asked else ""
        what = "FILE is missing" if not options.html else f"it is asked for beside {beside}"
        raise CommandLineError(f"a page is written to a file of its own, and {what}.", next="voirkit compare RUN RUN --html FILE.html")
    if options.markdown and (options.json or asked):
        beside = "json" if asked is None else asked.name
        raise CommandLineError(f"--markdown and --{beside} are two answers; ask for one of them.")
    if options.require and asked:
        raise CommandLineError(f"--require is of figures, and is not looked at with --{asked.name}.")
    with ExitStack() as opened:
        runs = [[opened.enter_context(open_run(path)) for path in side] for side in paths]
        known = {*empty(""), *parts_of_summary(), *chain.from_iterable(run.summary or () for run in chain(*runs))}
        required = [read(text, known, baseline=True) for text in options.require]
        executor = opened.enter_context(engine(options.engine))
        for run in chain(*runs):
            run.executor = executor
        try:
            if asked:
                return _difference(asked, runs[0][0], runs[1][0], options)
            sides = [_side(side, typed) for side, typed in zip(runs, paths, strict=True)]
            return _summaries(sides[0], sides[1], options, required)
        finally:
            print_warnings([run for side in runs for run in side])


def _sides(options: Any, instrument: Instrument | None) -> list[list[str]]:
    """The directories of each side, as they were typed."""
    first, second = options.RUN, options.side
    if not second and len(first) != 2:
        given = "no RUN is given" if not first else f"only {first[0]!r} is given" if len(first) == 1 else "there are more"
        several = "" if len(first) < 3 else "\n  Several a side: voirkit compare A1 A2 --with B1 B2"
        raise CommandLineError(f"two RUNs are compared, {given}.", next=f"voirkit compare RUN RUN{several}")
    if second and not first:
        raise CommandLineError("--with: there is no RUN to compare them with.", next="voirkit compare A1 A2 --with B1 B2")
    sides = [first, second] if second else [first[:1], first[1:]]
    if instrument and max(map(len, sides)) > 1:
        raise CommandLineError(f"--{instrument.name} compares one run with one.", next=f"voirkit compare --{instrument.name} RUN RUN")
    for side in sides:
        places = [os.path.realpath(path) for path in side]
        twice = next((path for path, place in zip(side, places, strict=True) if places.count(place) > 1), None)
        if twice is not None:
            raise CommandLineError("it is given twice, and counts as one run.", where=twice)
    return sides


def _side(runs: Sequence[Run], typed: Sequence[str]) -> Side:
    """The runs of a side; directories that hold ranks of one run are one."""
    from voirkit.report.comparison import Side

    groups = group_directories(runs)
    names = {run.path: path for run, path in zip(runs, typed, strict=True)}
    failures = PartFailures()
    summaries = [summary_of(*group) for group in groups]
    nothing: Mapping[Place, Estimate | None] = {}
    sure = [
        failures.attempt("intervals", partial(_estimates, group, summary), nothing)
        for group, summary in zip(groups, summaries, strict=True)
    ]
    runs[0].warnings += failures.lines()
    return Side(summaries, [names[group[0].path] for group in groups], [group[0] for group in groups], sure, groups)


def _estimates(group: Sequence[Run], summary: Mapping[str, Any]) -> Mapping[Place, Estimate | None]:
    """How sure the figures of a run are, whose directories these are."""
    from voirkit.analysis.document import estimates
    from voirkit.analysis.run_steps import read_steps
    from voirkit.report.comparison import WALL, wall_estimate

    of_steps = estimates([rank for run in group for rank in read_steps(run)])
    return {**of_steps, WALL: wall_estimate(summary, of_steps)}


def _difference(instrument: Instrument, first: Run, second: Run, options: Any) -> int:
    import duckdb

    try:
        document, lines = resolve(instrument.difference)(first, second, (options.RUN[0], options.RUN[1]))
    except duckdb.Error as exc:
        raise first.damaged(exc) from None
    with printing():
        for line in [json.dumps({"runs": [first.where, second.where], **document}, indent=1)] if options.json else lines:
            print(visible(line))
    return 0 if document["equal"] else EXIT_DIFFERENT


def _summaries(first: Side, second: Side, options: Any, required: Sequence[Condition]) -> int:
    from voirkit.analysis.first_difference import first_differences, rank_as_json
    from voirkit.report.comparison import environments, figures, figures_of_instruments, missed_by, said
    from voirkit.report.comparison_sections import answer_section, differences_section, figures_section
    from voirkit.report.html.comparison import comparison_page

    if not options.force:
        _check_comparable(first, second)
    failures = PartFailures()
    rows: list[Figure] = failures.attempt("figures", lambda: figures(first, second), [])
    rows += failures.attempt("figures of instruments", lambda: list(figures_of_instruments(first, second)), [])
    different: Pairs = failures.attempt("what else differs", lambda: said(first, second), {})
    environment: Pairs = failures.attempt("environment", lambda: environments(first, second), {})
    nothing: list[RankDifference] = []
    apart = failures.attempt("first difference", lambda: first_differences(first.directories[0], second.directories[0]), nothing)
    page = comparison_page(first, second) if options.html is not None else ""
    check_still_there([*first.runs, *second.runs])
    missed = [line for one in required for line in missed_by(one, rows, first, second)]
    first.runs[0].warnings += failures.lines()
    if page:
        target = may_write(options.html)
        with printing():
            write(page, target)
            if target != STDOUT:
                print(printable(target))
    elif options.json:
        paths = [[run.where for run in side.runs] for side in (first, second)]
        document = {"figures": [row.as_json() for row in rows], "different": different, "environment": environment, "missed": missed}
        document["first_difference"] = [rank_as_json(rank) for rank in apart]
        with printing():
            print(json.dumps(finite({"runs": [side[0] if len(side) == 1 else side for side in paths], **document}), indent=1))
    else:
        sections = [answer_section(first, second, rows, apart), figures_section(rows), differences_section({**different, **environment})]
        with printing():
            if options.markdown:
                from voirkit.report.markdown import in_markdown

                print(in_markdown("Comparison", sections), end="")
            else:
                from rich.console import Console

                from voirkit.report.terminal import draw_sections

                draw_sections(sections, Console(file=sys.stdout, highlight=False))
    for line in missed:
        tell(f"check failed: {line}")
    return EXIT_CHECK_FAILED if missed else 0


def _check_comparable(first: Side, second: Side) -> None:
    """Raise CommandLineError if one of the runs has trained, and another has not: their figures have nothing in common."""
    known = [(name, summary) for side in (first, second) for name, summary in zip(side.names, side.summaries, strict=True)]
    untrained = [name for name, summary in known if not (summary.get("steps") or {}).get("n")]
    if 0 < len(untrained) < len(known):  # runs that train nothing have other figures
        raise CommandLineError("no step of a training is recorded there.", where=untrained[0], next="--force compares them all the same.")


def _comparing() -> list[Instrument]:
    return [one for one in installed_instruments() if one.difference]


def compare_parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit compare",
        "voirkit compare [--json] [--markdown] [--html FILE] [--require CONDITION] [--engine dask:ADDRESS] RUN RUN\n"
        "       voirkit compare RUN ... --with RUN ...",
        description="Shows two runs beside each other: steps, phases, rates, whether they differ by more than noise, verdicts, and what is "
        "not the same around them. With --with several runs a side, which show how much runs differ. With --calls: the first step and "
        "call at which they do different things; exit code 1 if there is one.",
    )
    parser.add_argument("RUN", nargs="*", help="two run directories; those of the first side where --with has the second's")
    parser.add_argument("--with", dest="side", nargs="+", default=[], metavar="RUN", help="run directories of the second side")
    for one in _comparing():
        parser.add_argument(f"--{one.name}", action="store_true", help=f"find where what --{one.name} recorded begins to differ")
    parser.add_argument("--html", nargs="?", const="", metavar="FILE", help="write the comparison as an HTML page; - is stdout")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.add_argument("--markdown", action="store_true", help="print it as Markdown, for the summary of a CI job")
    require = 'exit with code 3 if the second misses a target beside the first: "step_time<+3%%", "memory<+10%%" (repeatable)'
    parser.add_argument("--require", action="append", default=[], metavar="CONDITION", help=require)
    parser.add_argument("--force", action="store_true", help="compare runs of which one has no training steps")
    add_engine(parser)
    return parser
