"""``voirkit report [RUN]``: the summary of finished, running and killed runs alike."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from voirkit.analysis.summary import check_stream, summary_of
from voirkit.commands import printing
from voirkit.errors import EXIT_CHECK_FAILED, CommandLineError, RunDirectoryError, tell, visible
from voirkit.instrument import resolve
from voirkit.options import ExtendedArgumentParser
from voirkit.plugins import installed_instruments
from voirkit.report.html import NAME, may_write, page, with_file, write
from voirkit.report.output import STDOUT, printable
from voirkit.runs.directory import LATEST, check_manifest, finite
from voirkit.runs.opened import Run, open_run
from voirkit.runs.trace_files import Origin, Process, origins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Executor


def report(argv: Sequence[str]) -> int:
    """Show a run's summary."""
    options = report_parser().parse_args(with_file(argv))
    asked = [name for name in ("html", "json", "markdown", "check") if getattr(options, name) not in (None, False)]
    if len(asked) > 1:
        raise CommandLineError(f"--{asked[0]} and --{asked[1]} are two answers; ask for one of them.")
    with ExitStack() as opened:
        executor = opened.enter_context(engine(options.engine))
        runs = [opened.enter_context(open_run(path)) for path in options.RUN or [LATEST]]
        for run in runs:
            run.executor = executor
        if options.check:
            with printing():
                return _check(runs)
        groups = group_directories(runs)
        summaries = []
        for group in groups:
            for run in group:
                check_stream(run)
            summaries.append((group[0], summary_of(*group)))
        check_still_there([run for group in groups for run in group])
        if options.html is not None:
            with printing():
                _pages(summaries, options.html)
        for group in groups:
            print_warnings(group[:1], group[1:])
        if options.html is not None:
            return 0
    with printing():
        _show(summaries, options)
    return 0


def check_still_there(runs: Sequence[Run]) -> None:
    """What was read of a directory that has vanished is not known to be all of it. Raises RunDirectoryError: one is there no more."""
    for run in runs:
        if not os.path.isdir(run.path):
            raise RunDirectoryError("it was removed while it was read.", where=run.where)


def print_warnings(runs: Sequence[Run], nodes: Sequence[Run] = ()) -> None:
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


def group_directories(runs: Sequence[Run]) -> list[list[Run]]:
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
    add_engine(parser)
    parser.add_argument("--markdown", action="store_true", help="print it as Markdown, for the summary of a CI job or an issue")
    return parser


# what computes


def add_engine(parser: ExtendedArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        metavar="dask:ADDRESS",
        help="compute what each rank did on the Dask cluster whose scheduler is at ADDRESS (default: here)",
    )


_ANSWERS_S = 10


@contextmanager
def engine(chosen: str | None) -> Iterator[Executor | None]:
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
