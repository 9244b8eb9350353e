"""A run directory, opened: what ran, and its trace as tables for DuckDB. Finished, killed and
running ones are read alike.

What can be read is given; what is damaged or missing is in ``warnings``, once.
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from voirkit.errors import EngineError, RunDirectoryError, VoirkitError
from voirkit.runs import directory
from voirkit.runs.directory import LATEST, fetch, find, is_url
from voirkit.runs.manifest import machine
from voirkit.runs.other_processes import goes_on
from voirkit.runs.selection import EVERYTHING, Selection
from voirkit.runs.trace_files import (
    COLD_NS,
    COPIES,
    Process,
    SegmentRecords,
    Tally,
    described_processes,
    is_little,
    layout,
    ranks_of,
    read_descriptions,
    tallies_of,
    truncation_warning,
    uncompacted_ranks,
    without_names,
)
from voirkit.trace.layout import BATCH_KIND
from voirkit.trace.reader import of_stem

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import duckdb  # loaded when the tables are requested: the end of a run does without

BATCH = 10_000  # rows that are python objects at a time

# (kind, category, name, start_ns on the wall clock since 1970, duration_ns, rank, host, pid, tid,
# arguments)
Row = tuple[str, str, str, int, int, int, str, int, int, dict[str, Any]]


Documents = tuple[dict[str, Any], "dict[str, Any] | None"]  # run.json, summary.json
T = TypeVar("T")


class Extent(NamedTuple):
    """What of a process is in a selection."""

    process: Process
    events: int  # how many events
    first_ns: int  # when the first began, on the wall clock
    last_ns: int  # when the last one ended


class Description(NamedTuple):
    """What is known of processes."""

    processes: list[dict[str, Any]]  # descriptions, in no order
    tallies: list[tuple[int, str, int, str, Tally]]  # (rank, host, pid, kind, what there is of it)


_RANKS_AT_ONCE = 32  # as many are read together at most: opening DuckDB (15 ms) is paid for once
_RECORDS_AT_ONCE = 500_000  # some 0.4 GB while steps are found in them
_TASKS = 32  # as many at least for an executor, if there are so many ranks
_TALLIES = (  # as trace_files.tally has them
    f"SELECT rank, host, pid, kind, count(*), coalesce(sum((duration_ns > {COLD_NS})::INT +"
    f" coalesce((start_ns - before_ns > {COLD_NS})::INT, 0)) FILTER (kind = 'phase' AND category <>"
    f" '{COPIES}'), 0)::BIGINT, coalesce(sum(duration_ns) FILTER (category = 'voirkit' AND name ="
    " 'look'), 0)::BIGINT, count(*) FILTER (kind = 'counter' AND category = 'memory'),"
    " max(start_ns + duration_ns) FROM (SELECT *, lag(start_ns + duration_ns) OVER (PARTITION BY"
    f" rank, host, pid, tid, kind = '{BATCH_KIND}' ORDER BY start_ns + duration_ns) AS before_ns"
    " FROM spans) GROUP BY rank, host, pid, kind"
)


def open_run(path: str | os.PathLike[str] = LATEST) -> Run:
    """Open a run directory, or one on object storage (``s3://bucket/run``), which is fetched.

    What a finished or killed run has left in segments is compacted first, if the folder can be
    written to; one that still runs is read as it is at this moment.

    Raises:
        RunDirectoryError: There is none at that path.
    """
    return Run(os.fspath(path))


class Run:
    """An opened run directory; a context manager.

    Args:
        path: The directory.
        ended: Ids of living processes of this host that record into it no more.
        compacts: Whether what has ended is compacted before it is read. If not, small runs are read
            without DuckDB where that is possible.
        ranks: Only what these have recorded; all by default.
        documents: The manifest and the summary, if they have been read.

    Attributes:
        path: Its absolute path, links resolved; of a run on object storage that of a copy, which
            goes when it is closed.
        where: What users call it: that path, or the address that it was fetched from.
        executor: What computes the parts of a run of many ranks (``map_ranks``); this process, if
            it is None.
        manifest: ``run.json``; empty if there is none, as of a script that recorded without
            voirkit's runner.
        summary: ``summary.json``, or None: the run goes on, or was killed.
        is_live: Whether it still runs.
        warnings: What could not be read.
    """

    def __init__(
        self,
        path: str,
        ended: Collection[int] = (),
        *,
        compacts: bool = True,
        ranks: Collection[int] | None = None,
        documents: Documents | None = None,
    ) -> None:
        self._folder = ""  # of temporary files
        if is_url(path):
            self._make_folder()
            try:
                self.path, self.where = find(fetch(path, self._folder)), path
            except BaseException:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
        else:
            self.path = self.where = find(path)
        self._ended, self._compacts, self.ranks = ended, compacts, ranks
        self.executor: Executor | None = None
        self.warnings: list[str] = []
        self.manifest, self.summary = documents or (
            self._json(directory.MANIFEST) or {},
            self._json(directory.SUMMARY),
        )
        self.is_live = goes_on(self.manifest)
        self._closed = False
        self._segments: SegmentRecords | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._kept: list[duckdb.DuckDBPyConnection] = []
        self._has_views = False
        self._opened: list[dict[str, Any]] = []  # of the processes whose records are in the tables
        self._described: Description | None = None
        self._processes: list[Process] | None = None
        self._chosen: dict[Any, str] = {}  # queries of selections

    @property
    def name(self) -> str:
        """The directory's name."""
        return os.path.basename(self.path)

    def close(self) -> None:
        """Free what it holds."""
        for connection in self._kept:
            connection.close()
        if self._connection is not None:
            self._connection.close()
        self._kept, self._connection = [], None
        self._closed = True
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _json(self, name: str) -> dict[str, Any] | None:
        path = os.path.join(self.path, name)
        document = directory.read_object(path)
        if document is not None:
            return document
        if os.path.exists(path):
            self.warn([f"{path} cannot be read; it is damaged."])
        return None

    # the trace

    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB with the table ``spans`` (columns: ``voirkit.runs.parquet``) and ``events``, the
        same with ``wall_ns``: a cursor.

        Raises:
            ValueError: The run has been closed.
            VoirkitError: The trace cannot be read, or there is no room for what is still in
                segments.
        """
        if self._closed:
            raise ValueError(f"the run {self.path} has been closed")
        if not self._has_views:
            self._compact()
            self._open(self.database())
            self._has_views = True
        return self.database().cursor()

    def database(self) -> duckdb.DuckDBPyConnection:
        """DuckDB without tables.

        Raises:
            VoirkitError: There is no room for temporary files.
        """
        if self._connection is None:
            from voirkit.runs.parquet import connect

            if not self._folder:
                self._make_folder()
            self._connection = connect(os.path.join(self._folder, "duckdb"))
        return self._connection

    def _open(self, connection: duckdb.DuckDBPyConnection) -> None:
        from voirkit.runs.parquet import no_room, open_trace

        try:
            opened = open_trace(
                self.path,
                connection,
                os.path.join(self._folder, "segments"),
                self.offset_ns(),
                self.ranks,
            )
        except OSError as exc:
            if str(exc.filename).startswith(self._folder):
                raise no_room(exc, os.path.dirname(self._folder)) from None
            raise self._unreadable(exc) from None
        self.warn(opened.warnings)
        self._opened = opened.described

    def warn(self, lines: Iterable[str]) -> None:
        """Add to the warnings what is not among them."""
        lines = [line.replace(self.path, self.where) for line in lines]
        self.warnings += [
            line for line in dict.fromkeys(lines) if line and line not in self.warnings
        ]

    def _make_folder(self) -> None:
        import tempfile

        from voirkit.runs.parquet import no_room

        try:
            self._folder = tempfile.mkdtemp(prefix="voirkit-")
        except OSError as exc:
            raise no_room(exc, os.path.dirname(exc.filename or "") or "$TMPDIR") from None
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def _unreadable(self, exc: OSError) -> RunDirectoryError:
        return RunDirectoryError(
            f"its trace cannot be read: {exc.strerror or exc}.",
            where=str(exc.filename or self.path),
        )

    def segments(self) -> SegmentRecords | None:
        """The records as arrays, of a run that is not compacted, if all of them fit into memory;
        None if they are to be read as tables.

        Raises:
            RunDirectoryError: The trace cannot be read.
        """
        if self._segments is None and not self._compacts:
            try:
                self._segments = self._from_segments()
            except FileNotFoundError:
                pass  # somebody else compacts it at this moment
            except OSError as exc:
                raise self._unreadable(exc) from None
            if self._segments is None:
                self._compacts = True
            else:
                self.warn(self._segments.warnings)
        return self._segments

    def _from_segments(self) -> SegmentRecords | None:
        now = layout(self.path, self.ranks)
        if now.spans or now.processes or not is_little(now.segments):
            return None
        records = SegmentRecords(self.path, now)
        after = layout(self.path, self.ranks)
        # else some of the files may have gone before they were read
        return None if after.spans or after.processes else records

    # what its processes did, rank by rank

    def map_ranks(
        self, function: Callable[[Run], T], of: Collection[int] | None = None, records: int = 0
    ) -> list[T]:
        """What a function makes of the run opened with some of its ranks at a time, for all of
        them, ascending.

        Args:
            function: Of a module, if there is an executor. It reads the files of those ranks, and
                returns what can be pickled.
            records: How many the function reads of all ranks together, if it may be many.
        """
        every = [] if self.ranks is not None else ranks_of(self.path)
        ranks = every if of is None else [rank for rank in every if rank in of]
        size = _RANKS_AT_ONCE
        if records:
            size = min(size, max(_RECORDS_AT_ONCE * len(every) // records, 1))
        if len(every) == len(ranks) <= (size if self.executor is None else 1):
            return [function(self)]
        if self.executor is not None:
            size = max(1, min(size, len(ranks) // _TASKS))
        groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        summary = {"memory": (self.summary or {}).get("memory")}
        documents = (self.manifest, summary)
        call = partial(
            _call_with_ranks, function, self.path, tuple(self._ended), self._compacts, documents
        )
        executor = self.executor
        parts = map(call, groups) if executor is None else self._executed(executor, call, groups)
        results = []
        for result, warnings in parts:
            self.warn(warnings)
            if isinstance(result, Exception):
                raise result
            results.append(result)
        return results

    def _executed(
        self, executor: Executor, call: Callable[[list[int]], T], groups: list[list[int]]
    ) -> Iterator[T]:
        try:
            yield from executor.map(call, groups)
        except EngineError:
            raise
        except Exception as exc:  # what the function itself raises is a result
            why = f"{type(exc).__name__}: {exc}".partition("\n")[0]
            hint = (
                "Each worker needs the voirkit that is installed here, and the run directory at the"
                " same path."
            )
            raise EngineError(
                f"what was to compute the parts of the run has failed ({why}).",
                where=self.path,
                next=hint,
            ) from None

    def _description(self) -> Description:
        """What is known of the processes, rank by rank; read once."""
        if self._described is None:
            parts = self.map_ranks(_describe)
            processes = [process for part in parts for process in part.processes]
            tallies = [row for part in parts for row in part.tallies]
            self._described = Description(processes, tallies)
        return self._described

    def read_only(self, ranks: Collection[int]) -> None:
        """Open none but the files of some ranks, if all of these have recorded something; to be
        called before the tables are opened."""
        stems = {row["stem"]: row["rank"] for row in self._description().processes}
        if set(ranks) <= set(stems.values()):
            self.ranks = sorted({of_stem(stem)[1] for stem, rank in stems.items() if rank in ranks})

    def describe(self) -> Description:
        """What is known of the processes that are read here; of those that are compacted without
        opening what they recorded."""
        segments = self.segments()
        if segments is not None:
            return Description(segments.described, tallies_of(segments.described))
        self._compact()
        now = layout(self.path, self.ranks)
        lines: list[str] = []
        described = read_descriptions(now.processes, lines)
        if now.segments:
            self.connection()
            described = self._opened
        self.warn([*lines, *without_names(now.orphans), *map(truncation_warning, now.spans)])
        # of an older voirkit, or damaged
        if lines or not all("records" in row for row in described):
            rows = self.connection().execute(_TALLIES).fetchall()
            return Description(
                described,
                [(rank, host, pid, kind, Tally(*row)) for rank, host, pid, kind, *row in rows],
            )
        return Description(described, tallies_of(described))

    def tallies(self) -> list[tuple[int, str, int, str, Tally]]:
        """(rank, host, pid, kind, what there is of it), ascending."""
        return sorted(self._description().tallies)

    def recorded(self, kind: str) -> list[tuple[int, str, int]]:
        """(rank, host, pid) of the processes that have records of a kind, ascending."""
        return [(rank, host, pid) for rank, host, pid, of, _ in self.tallies() if of == kind]

    def offset_ns(self) -> int:
        """From the clock of what is recorded to the wall clock."""
        clocks = self.manifest.get("clocks")
        if not isinstance(clocks, dict) or not all(
            isinstance(clocks.get(key), int) for key in ("time_ns", "perf_counter_ns")
        ):
            return 0
        return int(clocks["time_ns"] - clocks["perf_counter_ns"])

    def _compact(self) -> None:
        waiting = uncompacted_ranks(self.path) if self._compacts and not self.is_live else []
        waiting = [rank for rank in waiting if self.ranks is None or rank in self.ranks]
        if not waiting:
            return
        import duckdb

        from voirkit.runs import compaction

        try:
            for rank in waiting:
                compaction.compact(self.path, rank, self._ended, self.database())
        except (OSError, duckdb.Error):
            pass  # the folder cannot be written to, the disk is full: it is read as it is

    def trace(self) -> duckdb.DuckDBPyRelation:
        """All that was recorded, as a relation of DuckDB with the columns of
        ``voirkit.runs.parquet``."""
        # duckdb 1.4 closes a cursor that nobody holds, with the relations made from it
        self._kept.append(self.connection())
        return self._kept[-1].table("spans")

    def processes(self) -> list[Process]:
        """The processes that recorded, in the order in which they began."""
        if self._processes is None:
            self._processes = described_processes(self._description().processes, self.offset_ns())
        return list(self._processes)

    def threads(self) -> dict[tuple[str, int, int, int], str]:
        """Names of threads by (host, rank, pid, tid)."""
        return {
            (process.host, process.rank, process.pid, tid): name
            for process in self.processes()
            for tid, name in process.threads.items()
        }

    def events(self, selection: Selection = EVERYTHING) -> str:
        """A query for the selected events: the columns of ``spans``, and ``wall_ns``, the start on
        the wall clock. Not sorted.

        Raises:
            CommandLineError: The run has no such steps or ranks.
        """
        from voirkit.runs.selection import chosen_events

        query = self._chosen.get(selection)
        if query is None:
            query = chosen_events(self.connection(), selection, f"chosen_times_{len(self._chosen)}")
            self._chosen[selection] = query
        return query

    def extents(self, selection: Selection = EVERYTHING) -> list[Extent]:
        """The processes that have events in a selection, in the order of hosts, ranks and starts.

        Raises:
            CommandLineError: The run has no such steps or ranks.
        """
        rows = self.connection().execute(
            "SELECT host, rank, pid, count(*), min(wall_ns), max(wall_ns + duration_ns) FROM"
            f" ({self.events(selection)}) GROUP BY ALL"
        )
        counts = {(host, rank, pid): figures for host, rank, pid, *figures in rows.fetchall()}
        extents = []
        for process in sorted(self.processes(), key=lambda p: (p.host, p.rank, p.began_ns)):
            figures = counts.pop((process.host, process.rank, process.pid), None)
            if figures is not None:
                extents.append(Extent(process, *figures))
        # of those that are left nothing is known but their events
        for key, figures in sorted(counts.items()):
            process = Process(*key, 0, "", [], figures[1], 0, {}, {})
            extents.append(Extent(process, *figures))
        return extents

    def fetch(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """Batches of a query's rows.

        Raises:
            RunDirectoryError: The trace is damaged where it could not be seen before.
        """
        import duckdb

        try:
            cursor = self.connection().execute(query)
            while batch := cursor.fetchmany(BATCH):
                yield batch
        except duckdb.Error as exc:
            raise self.damaged(exc) from None

    def damaged(self, exc: Exception) -> VoirkitError:
        """The error for a trace that DuckDB cannot read, or has no room for."""
        from voirkit.runs.parquet import no_room, system_error

        full = system_error(exc, self._folder)
        if full is not None:
            return no_room(full, os.path.dirname(self._folder))
        return RunDirectoryError(
            "its trace cannot be read; it is damaged.",
            where=self.where,
            next=str(exc).partition("\n")[0],
        )

    def rows(self, selection: Selection = EVERYTHING) -> Iterator[list[Row]]:
        """Batches of the selected events, sorted by start.

        Yields:
            Lists of (kind, category, name, start_ns, duration_ns, rank, host, pid, tid, arguments):
            ``start_ns`` on the wall clock, nanoseconds since 1970; in the arguments, an event's own
            number under the key of its name (``value`` for a counter without).

        Raises:
            CommandLineError: The run has no such steps or ranks.
        """
        columns = (
            "kind, category, name, wall_ns, duration_ns, rank, host, pid, tid, args, value_key,"
            " value, number"
        )
        parse = _Parse()
        query = (
            f"SELECT {columns} FROM ({self.events(selection)}) ORDER BY wall_ns, duration_ns DESC,"
            " rank, host, pid, tid, kind"
        )
        for batch in self.fetch(query):
            yield [(*row[:9], parse(*row[9:])) for row in batch]


class _Parse:
    """Arguments from JSON. The same text comes many times in a row; every event has a dictionary of
    its own."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}

    def __call__(
        self, text: str | None, key: str | None, value: int | None, number: float | None
    ) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if text is not None:
            parsed = self._known.get(text)
            if parsed is None:
                if len(self._known) > 1000:
                    self._known.clear()
                parsed = self._known[text] = json.loads(text)
            arguments = dict(parsed)
        if value is not None and key is not None:
            arguments[key] = value
        elif number is not None:
            arguments[key or "value"] = number
        return arguments


def _describe(run: Run) -> Description:
    return run.describe()


def _call_with_ranks(
    function: Callable[[Run], T],
    path: str,
    ended: Collection[int],
    compacts: bool,
    documents: Documents,
    ranks: Collection[int],
) -> tuple[T | Exception, list[str]]:
    """What a function makes of some ranks of a run, or raises, and what could not be read; in any
    process that sees its files."""
    try:
        part = Run(path, ended, compacts=compacts, ranks=ranks, documents=documents)
    except RunDirectoryError as exc:
        raise EngineError(
            exc.what, where=f"{exc.where} (on {machine()[0]})", next=exc.next
        ) from None
    with part:
        try:
            return function(part), part.warnings
        except Exception as exc:  # here it would be a failure of the engine's
            return exc, part.warnings
