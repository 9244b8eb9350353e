"""``voirkit report [RUN]``, what a run came to, and ``voirkit compare RUN RUN``, two beside each other.

Of finished, running and killed runs alike.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any

from voirkit.analysis.significance import Estimate
from voirkit.analysis.summary import check_stream, summary_of
from voirkit.commands import printing
from voirkit.errors import EXIT_CHECK_FAILED, CommandLineError, PartFailures, RunDirectoryError, tell, visible
from voirkit.instrument import Instrument, resolve
from voirkit.options import ExtendedArgumentParser
from voirkit.plugins import installed_instruments, parts_of_summary
from voirkit.report.html import NAME, may_write, page, with_file, write
from voirkit.report.output import STDOUT, printable
from voirkit.runs.conditions import Condition, read
from voirkit.runs.directory import LATEST, check_manifest, finite
from voirkit.runs.opened import Run, open_run
from voirkit.runs.summary import empty
from voirkit.runs.trace_files import Origin, Process, origins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Executor

    from voirkit.report.comparison import Figure, Pairs, Side

EXIT_DIFFERENT = 1  # as of diff


def report(argv: Sequence[str]) -> int:
    """Show a run's summary."""
    options = report_parser().parse_args(with_file(argv))
    asked = [name for name in ("html", "json", "markdown", "check") if getattr(options, name) not in (None, False)]
    if len(asked) > 1:
        raise CommandLineError(f"--{asked[0]} and --{asked[1]} are two answers; ask for one of them.")
    with ExitStack() as opened:
        executor = opened.enter_context(_engine(options.engine))
        runs = [opened.enter_context(open_run(path)) for path in options.RUN or [LATEST]]
        for run in runs:
            run.executor = executor
        if options.check:
            with printing():
                return _check(runs)
        groups = _groups(runs)
        summaries = []
        for group in groups:
            for run in group:
                check_stream(run)
            summaries.append((group[0], summary_of(*group)))
        _check_there([run for group in groups for run in group])
        if options.html is not None:
            with printing():
                _pages(summaries, options.html)
        for group in groups:
            _warn(group[:1], group[1:])
        if options.html is not None:
            return 0
    with printing():
        _show(summaries, options)
    return 0


def _check_there(runs: Sequence[Run]) -> None:
    """What was read of a directory that has vanished is not known to be all of it. Raises RunDirectoryError: one is there no more."""
    for run in runs:
        if not os.path.isdir(run.path):
            raise RunDirectoryError("it was removed while it was read.", where=run.where)


def _warn(runs: Sequence[Run], nodes: Sequence[Run] = ()) -> None:
    """Say what could not be read of runs, and of directories of theirs that have no manifest."""
    manifests = [warning for run in runs for warning in check_manifest(run.path, run.where)]
    for warning in dict.fromkeys([*manifests, *(warning for run in (*runs, *nodes) for warning in run.warnings)]):
        tell(warning)


def _pages(summaries: Sequence[tuple[Run, dict[str, Any]]], file: str) -> None:
    """Write a page for each run, and print their names."""
    if file and len(summaries) > 1:
        hint = "Leave FILE out, and each run gets its report.html; two beside each other: voirkit compare RUN RUN --html FILE."
        raise CommandLineError(f"{len(summaries)} runs do not go into one file.", where=f"--html={file}", next=hint)
    fetched = next((run.where for run, _ in summaries if run.where != run.path), "")
    if fetched and not file:
        raise CommandLineError("nothing is written there.", where=fetched, next="The page needs a name: voirkit report --html=FILE")
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
            tell(f"{run.where}: nothing of a loader is recorded there.\n  Record it: voirkit --loader SCRIPT")
        for rank, rules in checked.items():
            print(printable(run.where) + (f", rank {rank}" if len(checked) > 1 else ""))
            for rule in rules:
                broken += rule.broken
                example = f", the first at {rule.example}" if rule.example else ""
                how_often = f", {rule.broken:,} broken{example}" if rule.broken else ""
                print(visible(f"  {'BROKEN' if rule.broken else 'ok':<7}{rule.text}: {rule.checked:,} checked{how_often}"))
    return EXIT_CHECK_FAILED if broken else 0


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """The directories that belong together: several are one run if each holds ranks that no other does and one at most has begun it."""
    distinct = list({run.path: run for run in runs}.values())
    if len(distinct) == 1:
        return [distinct]
    known = {run.path: [one for one in origins(run.path) if one.world_size > 1] for run in distinct}
    if any(known[run.path] and not run.manifest for run in distinct):
        held = [_ranks_of_node(run, distinct[:i], known) for i, run in enumerate(distinct)]
        size = min(one.world_size for of_run in known.values() for one in of_run)
        if missing := sorted(set(range(size)).difference(*held)):
            named = ", ".join(map(str, [*missing[:8], *(["..."] if missing[8:] else [])]))
            raise RunDirectoryError(f"of {size} ranks these are in none of the directories: {named}.", next=_NODES)
    else:
        held = [{process.rank for process in _processes(run)} for run in distinct]
        if sum(map(len, held)) > len(set[int]().union(*held)) or sum(bool(run.manifest) for run in distinct) > 1:
            return [[run] for run in distinct]
    order = sorted(range(len(distinct)), key=lambda i: (not distinct[i].manifest, min(held[i], default=0)))
    return [[distinct[i] for i in order]]


_NODES = "The directories of all machines are put together: voirkit report NODE0 NODE1 ...; one by itself is shown as far as it goes."


def _ranks_of_node(run: Run, before: Sequence[Run], known: Mapping[str, Sequence[Origin]]) -> set[int]:
    """The ranks in the directory of one of a run's machines. Raises RunDirectoryError: it is of another run than those before it, or a rank
    is in two of them."""
    ranks, sizes, jobs = _ranks_sizes_jobs(known[run.path])
    if not ranks:
        raise RunDirectoryError("nothing that a rank of several has recorded is there.", where=run.where, next=_NODES)
    for other in before:
        theirs = _ranks_sizes_jobs(known[other.path])
        if sizes.isdisjoint(theirs[1]) or (jobs and theirs[2] and jobs.isdisjoint(theirs[2])) or (run.manifest and other.manifest):
            raise RunDirectoryError(f"its ranks are of another run than those in {other.where}.", where=run.where, next=_NODES)
        if twice := ranks & theirs[0]:
            raise RunDirectoryError(f"rank {min(twice)} is there and in {other.where}.", where=run.where, next=_NODES)
    return ranks


def _ranks_sizes_jobs(known: Sequence[Origin]) -> tuple[set[int], set[int], set[str]]:
    return {one.rank for one in known}, {one.world_size for one in known}, {one.job for one in known} - {""}


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
    named = [(summary, next((path for path in typed if os.path.realpath(path) == run.path), run.where)) for run, summary in summaries]
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


def report_parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit report",
        "voirkit report [--html[=FILE]] [--json] [--markdown] [--check] [--engine dask:ADDRESS] [RUN ...]",
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
    _add_engine(parser)
    parser.add_argument("--markdown", action="store_true", help="print it as Markdown, for the summary of a CI job or an issue")
    return parser


# what computes


def _add_engine(parser: ExtendedArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        metavar="dask:ADDRESS",
        help="compute what each rank did on the Dask cluster whose scheduler is at ADDRESS (default: here)",
    )


_ANSWERS_S = 10


@contextmanager
def _engine(chosen: str | None) -> Iterator[Executor | None]:
    """What computes the parts of runs; None: this process. Checked with distributed 2026.8. Raises CommandLineError: there is no such
    engine, or it is not there."""
    if chosen is None:
        yield None
        return
    where, (kind, _, address) = f"--engine {chosen}", chosen.partition(":")
    if kind != "dask" or not address:
        hint = "--engine dask:ADDRESS sends the work to a Dask cluster, as dask:tcp://10.0.0.1:8786; without --engine it is done here."
        raise CommandLineError("there is no such engine.", where=where, next=hint)
    try:
        from distributed import Client
    except ImportError:
        raise CommandLineError("dask.distributed is not installed.", where=where, next="pip install 'voirkit[dask]'") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)  # what matters of it is said in one line
    hint = "A cluster is started by: dask scheduler, and on each machine: dask worker ADDRESS"
    try:
        client = Client(address, timeout=_ANSWERS_S, set_as_default=False)
    except (OSError, ValueError) as exc:
        raise CommandLineError(f"no Dask scheduler answers there ({str(exc).partition(chr(10))[0]}).", where=where, next=hint) from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise CommandLineError("the Dask scheduler there has no workers.", where=where, next=hint)
        yield client.get_executor(pure=False)


# runs beside others


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
        executor = opened.enter_context(_engine(options.engine))
        for run in chain(*runs):
            run.executor = executor
        try:
            if asked:
                return _difference(asked, runs[0][0], runs[1][0], options)
            sides = [_side(side, typed) for side, typed in zip(runs, paths, strict=True)]
            return _summaries(sides[0], sides[1], options, required)
        finally:
            _warn([run for side in runs for run in side])


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
    from voirkit.analysis.document import estimates
    from voirkit.analysis.run_steps import read_steps
    from voirkit.report.comparison import Side

    groups = _groups(runs)
    names = {run.path: path for run, path in zip(runs, typed, strict=True)}
    failures = PartFailures()

    nothing: dict[tuple[str, ...], Estimate | None] = {}

    def intervals(group: Sequence[Run]) -> dict[tuple[str, ...], Estimate | None]:
        return estimates([rank for run in group for rank in read_steps(run)])

    sure = [failures.attempt("intervals", partial(intervals, group), nothing) for group in groups]
    runs[0].warnings += failures.lines()
    return Side([summary_of(*group) for group in groups], [names[group[0].path] for group in groups], [group[0] for group in groups], sure)


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
    from voirkit.report.comparison import (
        answer_section,
        comparison_page,
        differences_section,
        environments,
        figures,
        figures_of_instruments,
        figures_section,
        missed_by,
        said,
    )

    if not options.force:
        _check_comparable(first, second)
    failures = PartFailures()
    rows: list[Figure] = failures.attempt("figures", lambda: figures(first, second), [])
    rows += failures.attempt("figures of instruments", lambda: list(figures_of_instruments(first, second)), [])
    different: Pairs = failures.attempt("what else differs", lambda: said(first, second), {})
    environment: Pairs = failures.attempt("environment", lambda: environments(first, second), {})
    page = comparison_page(first, second) if options.html is not None else ""
    _check_there([*first.runs, *second.runs])
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
        with printing():
            print(json.dumps(finite({"runs": [side[0] if len(side) == 1 else side for side in paths], **document}), indent=1))
    else:
        sections = [answer_section(first, second, rows), figures_section(rows), differences_section({**different, **environment})]
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
    """Refuse what says nothing: other scripts, or runs of which one has not trained. Raises CommandLineError: they are not comparable."""
    known = [(name, _script(one)) for side in (first, second) for name, one in zip(side.names, side.summaries, strict=True)]
    scripts = {script: name for name, script in known if script}
    force = "--force compares them all the same."
    if len(scripts) > 1:
        (one, a), (other, b) = list(scripts.items())[:2]
        raise CommandLineError(f"they are runs of two scripts: {a} ran {one}, {b} ran {other}.", next=force)
    trained = {n: (s.get("steps") or {}).get("n") for side in (first, second) for n, s in zip(side.names, side.summaries, strict=True)}
    untrained = [name for name, n in trained.items() if not n]
    if 0 < len(untrained) < len(trained):  # runs that train nothing have other figures
        raise CommandLineError("no step of a training is recorded there.", where=untrained[0], next=force)


def _script(summary: Mapping[str, Any]) -> str:
    """The script or module that ran, without its folder; empty where that is not known."""
    words = [*map(str, summary.get("command") or ()), "", ""]
    return words[1] if words[0] == "-m" else os.path.basename(words[0])


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
    parser.add_argument("--force", action="store_true", help="compare runs of different scripts, or without training steps")
    _add_engine(parser)
    return parser
