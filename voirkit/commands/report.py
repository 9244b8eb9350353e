"""``voirkit report [RUN]``: shows the summary of finished, running or killed runs."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, NamedTuple

from voirkit.analysis.summary import check_stream, summary_of
from voirkit.commands import printing
from voirkit.errors import CommandLineError, RunDirectoryError, tell
from voirkit.options import ExtendedArgumentParser
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
    answers = [
        name for name in ("html", "json", "markdown") if getattr(options, name) not in (None, False)
    ]
    if len(answers) > 1:
        raise CommandLineError(
            f"--{answers[0]} and --{answers[1]} are two answers; ask for one of them."
        )
    with ExitStack() as opened:
        executor = opened.enter_context(engine(options.engine))
        runs = [opened.enter_context(open_run(path)) for path in options.RUN or [LATEST]]
        for run in runs:
            run.executor = executor
        groups = group_directories(runs)
        summaries = [(group[0], _summary(group)) for group in groups]
        check_still_there(list(chain(*groups)))
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


def _summary(group: Sequence[Run]) -> dict[str, Any]:
    for run in group:
        check_stream(run)
    return summary_of(*group)


def check_still_there(runs: Sequence[Run]) -> None:
    """Raise RunDirectoryError if a directory no longer exists: the data read from it may be
    incomplete."""
    for run in runs:
        if not os.path.isdir(run.path):
            raise RunDirectoryError("it was removed while it was read.", where=run.where)


def print_warnings(runs: Sequence[Run], nodes: Sequence[Run] = ()) -> None:
    """Print what could not be read of runs. ``nodes`` are further directories of the same runs,
    without a manifest."""
    warnings: list[str] = []
    for run in runs:
        warnings += check_manifest(run.path, run.where)
    for run in (*runs, *nodes):
        warnings += run.warnings
    for warning in dict.fromkeys(warnings):
        tell(warning)


def _pages(summaries: Sequence[tuple[Run, dict[str, Any]]], file: str) -> None:
    """Write an HTML page for each run, and print the names of the files."""
    if file and len(summaries) > 1:
        hint = (
            "Leave FILE out, and each run gets its report.html; two beside each other: voirkit"
            " compare RUN RUN --html FILE."
        )
        raise CommandLineError(
            f"{len(summaries)} runs do not go into one file.", where=f"--html={file}", next=hint
        )
    fetched = next((run.where for run, _ in summaries if run.where != run.path), "")
    if fetched and not file:
        raise CommandLineError(
            "nothing is written there.",
            where=fetched,
            next="The page needs a name: voirkit report --html=FILE",
        )
    for run, summary in summaries:
        target = may_write(file or os.path.join(run.path, NAME))
        write(page(run, summary), target)
        if target != STDOUT:
            print(printable(target if file else os.path.relpath(target)))


def group_directories(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the directories, grouped by run.

    Several directories are one run if no rank is in two of them and at most one has a manifest.
    """
    distinct = list({run.path: run for run in runs}.values())
    if len(distinct) == 1:
        return [distinct]
    processes_by_path = {
        run.path: [process for process in origins(run.path) if process.world_size > 1]
        for run in distinct
    }
    if any(processes_by_path[run.path] and not run.manifest for run in distinct):
        ranks = [
            _ranks_of_node(run, distinct[:i], processes_by_path) for i, run in enumerate(distinct)
        ]
        _check_complete(ranks, chain(*processes_by_path.values()))
    else:
        ranks = [{process.rank for process in _processes(run)} for run in distinct]
        is_disjoint = sum(map(len, ranks)) == len(set[int]().union(*ranks))
        n_launched = sum(bool(run.manifest) for run in distinct)
        if not is_disjoint or n_launched > 1:
            return [[run] for run in distinct]
    order = sorted(
        range(len(distinct)), key=lambda i: (not distinct[i].manifest, min(ranks[i], default=0))
    )
    return [[distinct[i] for i in order]]


def _check_complete(ranks: Sequence[set[int]], processes: Iterable[Origin]) -> None:
    """Raise RunDirectoryError if some ranks are in none of the directories."""
    size = min(process.world_size for process in processes)
    missing = sorted(set(range(size)).difference(*ranks))
    if not missing:
        return
    listed = [str(rank) for rank in missing[:8]]
    if len(missing) > 8:
        listed.append("...")
    raise RunDirectoryError(
        f"of {size} ranks these are in none of the directories: {', '.join(listed)}.", next=_NODES
    )


_NODES = (
    "The directories of all machines are put together: voirkit report NODE0 NODE1 ...; one by"
    " itself is shown as far as it goes."
)


def _ranks_of_node(
    run: Run, before: Sequence[Run], processes_by_path: Mapping[str, Sequence[Origin]]
) -> set[int]:
    """Return the ranks in the directory of one of a run's machines.

    Raises:
        RunDirectoryError: The directory has no ranks of a distributed run, belongs to another run
            than the directories in ``before``, or has a rank that one of these has too.
    """
    node = _Node.of(processes_by_path[run.path])
    if not node.ranks:
        raise RunDirectoryError(
            "nothing that a rank of several has recorded is there.", where=run.where, next=_NODES
        )
    for other in before:
        other_node = _Node.of(processes_by_path[other.path])
        if not node.may_share_run_with(other_node) or (run.manifest and other.manifest):
            raise RunDirectoryError(
                f"its ranks are of another run than those in {other.where}.",
                where=run.where,
                next=_NODES,
            )
        if twice := node.ranks & other_node.ranks:
            raise RunDirectoryError(
                f"rank {min(twice)} is there and in {other.where}.", where=run.where, next=_NODES
            )
    return node.ranks


class _Node(NamedTuple):
    """The ranks that recorded into one directory."""

    ranks: set[int]
    world_sizes: set[int]
    jobs: set[str]

    @classmethod
    def of(cls, processes: Sequence[Origin]) -> _Node:
        return cls(
            {process.rank for process in processes},
            {process.world_size for process in processes},
            {process.job for process in processes if process.job},
        )

    def may_share_run_with(self, other: _Node) -> bool:
        if self.world_sizes.isdisjoint(other.world_sizes):
            return False
        return not self.jobs or not other.jobs or not self.jobs.isdisjoint(other.jobs)


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
    # if two of the given paths name the same directory, the title is the first path
    typed = {os.path.realpath(path): path for path in reversed(options.RUN or [LATEST])}
    titled = [(summary, typed.get(run.path, run.where)) for run, summary in summaries]
    if options.markdown:
        from voirkit.report.markdown import markdown

        print("\n".join(markdown(summary, title) for summary, title in titled), end="")
        return
    from rich.console import Console

    from voirkit.report.terminal import draw

    console = Console(file=sys.stdout, highlight=False)
    for i, (summary, title) in enumerate(titled):
        if i:
            console.print()
        draw(summary, console, title)


def report_parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit report",
        "voirkit report [--html[=FILE]] [--json] [--markdown] [--engine dask:ADDRESS] [RUN ...]",
        description=(
            "Shows what a run came to: verdict, breakdown of a step, rates. Of finished, running"
            " and killed runs. Several directories that hold the ranks of one run are put together;"
            " several runs are shown one after the other."
        ),
    )
    parser.add_argument("RUN", nargs="*", help="run directories (default: voirkit-runs/latest)")
    parser.add_argument(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="write all of it as one HTML page (default: report.html in RUN); - is stdout",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the whole summary as JSON; of several runs a list",
    )
    add_engine(parser)
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="print it as Markdown, for the summary of a CI job or an issue",
    )
    return parser


# ``--engine``: the place where the parts of a run are computed


def add_engine(parser: ExtendedArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        metavar="dask:ADDRESS",
        help=(
            "compute what each rank did on the Dask cluster whose scheduler is at ADDRESS (default:"
            " here)"
        ),
    )


_ANSWERS_S = 10


@contextmanager
def engine(name: str | None) -> Iterator[Executor | None]:
    """Provide the executor that computes the parts of runs; None means in this process.

    Checked with distributed 2026.8.

    Raises:
        CommandLineError: The engine is unknown, not installed, not reachable or has no workers.
    """
    if name is None:
        yield None
        return
    where = f"--engine {name}"
    kind, _, address = name.partition(":")
    if kind != "dask" or not address:
        hint = (
            "--engine dask:ADDRESS sends the work to a Dask cluster, as dask:tcp://10.0.0.1:8786;"
            " without --engine it is done here."
        )
        raise CommandLineError("there is no such engine.", where=where, next=hint)
    try:
        from distributed import Client
    except ImportError:
        raise CommandLineError(
            "dask.distributed is not installed.", where=where, next="pip install 'voirkit[dask]'"
        ) from None
    # a failure is reported below in one line: distributed need not log it too
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
    hint = "A cluster is started by: dask scheduler, and on each machine: dask worker ADDRESS"
    try:
        client = Client(address, timeout=_ANSWERS_S, set_as_default=False)
    except (OSError, ValueError) as exc:
        why = str(exc).partition("\n")[0]
        raise CommandLineError(
            f"no Dask scheduler answers there ({why}).", where=where, next=hint
        ) from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise CommandLineError(
                "the Dask scheduler there has no workers.", where=where, next=hint
            )
        yield client.get_executor(pure=False)
