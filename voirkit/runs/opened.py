"""Opens a run directory for reading: its manifest, its summary, and its trace as DuckDB tables.

Finished, killed and running runs are read in the same way. Everything that is readable is returned;
each damaged or missing part is named once in ``warnings``.
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

    import duckdb  # imported only when tables are requested; the end of a run does not need it

BATCH = 10_000  # number of rows to fetch at a time, which bounds the Python objects in memory

# (kind, category, name, start_ns on the wall clock since 1970, duration_ns, rank, host, pid, tid,
# arguments)
Row = tuple[str, str, str, int, int, int, str, int, int, dict[str, Any]]


Documents = tuple[dict[str, Any], "dict[str, Any] | None"]  # contents of run.json, summary.json
T = TypeVar("T")


class Extent(NamedTuple):
    """The number and the time range of one process's events in a selection."""

    process: Process
    events: int  # number of events
    first_ns: int  # earliest start of an event, on the wall clock, nanoseconds since 1970
    last_ns: int  # latest end of an event, on the same clock


class Description(NamedTuple):
    """The metadata of processes, and the counts of their records."""

    processes: list[dict[str, Any]]  # one description per process, in no order
    tallies: list[tuple[int, str, int, str, Tally]]  # (rank, host, pid, kind, counts of records)


_RANKS_AT_ONCE = 32  # maximum number of ranks per DuckDB connection, which takes 15 ms to open
# approximate maximum of records per group of ranks; finding steps in so many takes 0.4 GB of memory
_RECORDS_AT_ONCE = 500_000
_TASKS = 32  # minimum number of tasks for an executor, if there are enough ranks
_TALLIES = (  # computes the same counts as trace_files.tally
    f"SELECT rank, host, pid, kind, count(*), coalesce(sum((duration_ns > {COLD_NS})::INT +"
    f" coalesce((start_ns - before_ns > {COLD_NS})::INT, 0)) FILTER (kind = 'phase' AND category <>"
    f" '{COPIES}'), 0)::BIGINT, coalesce(sum(duration_ns) FILTER (category = 'voirkit' AND name ="
    " 'look'), 0)::BIGINT, count(*) FILTER (kind = 'counter' AND category = 'memory'),"
    " max(start_ns + duration_ns) FROM (SELECT *, lag(start_ns + duration_ns) OVER (PARTITION BY"
    f" rank, host, pid, tid, kind = '{BATCH_KIND}' ORDER BY start_ns + duration_ns) AS before_ns"
    " FROM spans) GROUP BY rank, host, pid, kind"
)


def open_run(path: str | os.PathLike[str] = LATEST) -> Run:
    """Open a run directory. A directory on object storage (``s3://bucket/run``) is fetched first.

    Segments left by a finished or killed run are compacted first, if the folder is writable. A run
    that is still in progress is read as it is at this moment.

    Raises:
        RunDirectoryError: There is no run directory at that path.
    """
    return Run(os.fspath(path))


class Run:
    """An opened run directory; a context manager.

    Args:
        path: The directory, or the address of a run on object storage.
        ended: Ids of processes on this host that are alive but no longer record into this run.
        compacts: Whether to compact the segments of a run that has ended before reading it. If
            not, a small run is read without DuckDB where possible.
        ranks: Read only the records of these ranks; None for all.
        documents: The manifest and the summary, if the caller has already read them.

    Attributes:
        path: The absolute path, links resolved. For a run on object storage, the path of the local
            copy, which is deleted when the run is closed.
        where: The name shown to users: ``path``, or the address that the run was fetched from.
        executor: Runs the tasks of ``map_ranks`` for runs with many ranks; if None, they are
            computed in this process.
        manifest: The contents of ``run.json``; empty if there is no such file.
        summary: The contents of ``summary.json``; None if the run is in progress or was killed.
        is_live: Whether the run is still in progress.
        warnings: Messages about parts of the run that could not be read.
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
        self._folder = ""  # path of a folder for temporary files; empty until it is needed
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
        # descriptions of the processes whose records are in the tables
        self._opened: list[dict[str, Any]] = []
        self._described: Description | None = None
        self._processes: list[Process] | None = None
        self._chosen: dict[Any, str] = {}  # SQL query for the events of each selection

    @property
    def name(self) -> str:
        """The last component of the directory's path."""
        return os.path.basename(self.path)

    def close(self) -> None:
        """Close the connections to DuckDB and delete temporary files."""
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

    # reading the trace

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Return a DuckDB cursor with the views ``spans`` and ``events``.

        The columns of ``spans`` are in ``voirkit.runs.parquet.COLUMNS``. ``events`` has the column
        ``wall_ns`` in addition.

        Raises:
            ValueError: The run has been closed.
            VoirkitError: The trace cannot be read, or there is no disk space for a temporary copy
                of the segments.
        """
        if self._closed:
            raise ValueError(f"the run {self.path} has been closed")
        if not self._has_views:
            self._compact()
            self._open(self.database())
            self._has_views = True
        return self.database().cursor()

    def database(self) -> duckdb.DuckDBPyConnection:
        """Return the run's connection to DuckDB, without creating any tables.

        Raises:
            VoirkitError: There is no disk space for temporary files.
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
        """Add lines to ``warnings``, except those that it already contains."""
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
        """Return the records as arrays, if the run is not compacted and all records fit into
        memory. None if they must be read as tables, through ``connection``.

        Raises:
            RunDirectoryError: The trace cannot be read.
        """
        if self._segments is None and not self._compacts:
            try:
                self._segments = self._from_segments()
            except FileNotFoundError:
                pass  # another process is compacting the run at this moment
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
        # None if compaction took place meanwhile: segments may have been deleted before being read
        return None if after.spans or after.processes else records

    # groups of ranks, and the processes and records in them

    def map_ranks(
        self, function: Callable[[Run], T], of: Collection[int] | None = None, records: int = 0
    ) -> list[T]:
        """Call a function once per group of ranks, and return the results.

        Each call gets a ``Run`` that reads only the ranks of its group. The groups are in ascending
        order of ranks.

        Args:
            function: With an executor, a module-level function whose result can be pickled.
            of: The ranks to read; None for all.
            records: The approximate number of records that the function reads over all ranks, if
                it may be large. It limits the size of the groups.
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
        except Exception as exc:
            # a failure of the executor, which can raise anything; exceptions of the function itself
            # are returned as results
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
        """Return the description of the processes of all ranks. It is read once, and cached."""
        if self._described is None:
            parts = self.map_ranks(_describe)
            processes = [process for part in parts for process in part.processes]
            tallies = [row for part in parts for row in part.tallies]
            self._described = Description(processes, tallies)
        return self._described

    def read_only(self, ranks: Collection[int]) -> None:
        """Restrict the run to the files of some ranks, if each of them has recorded something. Must
        be called before the tables are opened."""
        stems = {row["stem"]: row["rank"] for row in self._description().processes}
        if set(ranks) <= set(stems.values()):
            self.ranks = sorted({of_stem(stem)[1] for stem, rank in stems.items() if rank in ranks})

    def describe(self) -> Description:
        """Return the description of the processes in ``ranks``. For compacted processes, their
        records are not opened."""
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
        # Count the records of the run if descriptions lack the counts, because they are damaged or
        # were written by an older voirkit.
        if lines or not all("records" in row for row in described):
            rows = self.connection().execute(_TALLIES).fetchall()
            return Description(
                described,
                [(rank, host, pid, kind, Tally(*row)) for rank, host, pid, kind, *row in rows],
            )
        return Description(described, tallies_of(described))

    def tallies(self) -> list[tuple[int, str, int, str, Tally]]:
        """Return (rank, host, pid, kind, counts of the records) for each process and kind of
        records, ascending."""
        return sorted(self._description().tallies)

    def recorded(self, kind: str) -> list[tuple[int, str, int]]:
        """Return (rank, host, pid) of the processes that have records of a kind, ascending."""
        return [(rank, host, pid) for rank, host, pid, of, _ in self.tallies() if of == kind]

    def offset_ns(self) -> int:
        """Return the offset in nanoseconds that turns a time of ``time.perf_counter_ns``, as in
        records, into wall-clock time. 0 if the manifest lacks the clocks."""
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
            pass  # the folder is read-only or the disk full: the run is read without compaction

    def trace(self) -> duckdb.DuckDBPyRelation:
        """Return all records, as a DuckDB relation with the columns of
        ``voirkit.runs.parquet.COLUMNS``."""
        # Keep the cursor: duckdb 1.4 closes a cursor without references, and with it all relations
        # made from the cursor.
        self._kept.append(self.connection())
        return self._kept[-1].table("spans")

    def processes(self) -> list[Process]:
        """Return the processes that recorded, in the order of their start times."""
        if self._processes is None:
            self._processes = described_processes(self._description().processes, self.offset_ns())
        return list(self._processes)

    def threads(self) -> dict[tuple[str, int, int, int], str]:
        """Return the names of threads by (host, rank, pid, tid)."""
        return {
            (process.host, process.rank, process.pid, tid): name
            for process in self.processes()
            for tid, name in process.threads.items()
        }

    def events(self, selection: Selection = EVERYTHING) -> str:
        """Return the SQL query for the selected events, unsorted. Its columns are those of
        ``spans``, and ``wall_ns``: the start on the wall clock.

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
        """Return the extents of the processes that have events in a selection. They are sorted by
        host, rank and start time of the process; processes without a description come last.

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
        # the remaining processes have events, but no description
        for key, figures in sorted(counts.items()):
            process = Process(*key, 0, "", [], figures[1], 0, {}, {})
            extents.append(Extent(process, *figures))
        return extents

    def fetch(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query, in lists of up to ``BATCH`` rows.

        Raises:
            RunDirectoryError: The trace is damaged in a place that was not read before.
        """
        import duckdb

        try:
            cursor = self.connection().execute(query)
            while batch := cursor.fetchmany(BATCH):
                yield batch
        except duckdb.Error as exc:
            raise self.damaged(exc) from None

    def damaged(self, exc: Exception) -> VoirkitError:
        """Return the error to raise for an exception of DuckDB: the trace cannot be read, or there
        is no disk space for temporary files."""
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
        """Yield the selected events in lists of up to ``BATCH``, sorted by start.

        Yields:
            Lists of (kind, category, name, start_ns, duration_ns, rank, host, pid, tid, arguments).
            ``start_ns`` is on the wall clock, in nanoseconds since 1970. The arguments include the
            event's own number, under the key that its name has for the number (``value`` for a
            counter without a key).

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
    """Parser of the arguments of events. Parsed JSON texts are cached, since the same text often
    repeats; each call returns a new dictionary."""

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
    """Call a function with a ``Run`` that reads only some ranks. May be executed in any process
    that can read the files of the run.

    Returns:
        (result of the function or the exception that it raised, warnings of the ``Run``).
    """
    try:
        part = Run(path, ended, compacts=compacts, ranks=ranks, documents=documents)
    except RunDirectoryError as exc:
        raise EngineError(
            exc.what, where=f"{exc.where} (on {machine()[0]})", next=exc.next
        ) from None
    with part:
        try:
            return function(part), part.warnings
        except Exception as exc:  # returned: if raised, it would look like a failed executor
            return exc, part.warnings
