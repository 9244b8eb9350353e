"""A run directory, opened: what ran, and its trace as tables for DuckDB. Finished, killed and running ones are read alike.

What can be read is given; what is damaged or missing is in ``warnings``, once.
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from voirkit.errors import RunDirectoryError, VoirkitError
from voirkit.runs import directory
from voirkit.runs.directory import LATEST, find
from voirkit.runs.other_processes import goes_on
from voirkit.runs.selection import EVERYTHING, Selection
from voirkit.runs.trace_files import Process, SegmentRecords, is_little, layout

if TYPE_CHECKING:  # loaded when the tables are asked for: the end of a run does without
    import duckdb

BATCH = 10_000  # rows that are python objects at a time

# (kind, category, name, start_ns on the wall clock since 1970, duration_ns, rank, host, pid, tid, arguments)
Row = tuple[str, str, str, int, int, int, str, int, int, dict[str, Any]]


class Extent(NamedTuple):
    """What of a process is in a selection.

    Attributes:
        events: How many events.
        first_ns: When the first began, on the wall clock.
        last_ns: When the last one ended.
    """

    process: Process
    events: int
    first_ns: int
    last_ns: int


def open_run(path: str | os.PathLike[str] = LATEST) -> Run:
    """Open a run directory.

    What a finished or killed run has left in segments is put to rest first, if the folder can be written to; one that still runs is
    read as it is at this moment.

    Raises:
        RunDirectoryError: There is none at that path.
    """
    return Run(os.fspath(path))


class Run:
    """An opened run directory; a context manager.

    Args:
        path: The directory.
        ended: Ids of living processes of this host that record into it no more.
        compacts: Whether what has ended is compacted before it is read. If not, small runs are read without DuckDB where that is possible.

    Attributes:
        path: Its absolute path, links resolved.
        manifest: ``run.json``; empty if there is none, as of a script that recorded without voirkit's runner.
        summary: ``summary.json``, or None: the run goes on, or was killed.
        is_live: Whether it still runs.
        warnings: What could not be read.
    """

    def __init__(self, path: str, ended: Collection[int] = (), *, compacts: bool = True) -> None:
        self.path = find(path)
        self._ended, self._compacts = ended, compacts
        self.warnings: list[str] = []
        self.manifest = self._json(directory.MANIFEST) or {}
        self.summary = self._json(directory.SUMMARY)
        self.is_live = goes_on(self.manifest)
        self._closed = False
        self._folder = ""  # of temporary files
        self._segments: SegmentRecords | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._kept: list[duckdb.DuckDBPyConnection] = []
        self._processes: list[Process] = []
        self._chosen: dict[Any, str] = {}  # queries of selections

    @property
    def name(self) -> str:
        """The directory's name."""
        return os.path.basename(self.path)

    def close(self) -> None:
        """Free what it holds."""
        for connection in (*self._kept, *([] if self._connection is None else [self._connection])):
            connection.close()
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
        found = directory.read_document(path)
        if isinstance(found, dict):
            return found
        if os.path.exists(path):
            self.warnings.append(f"{path} cannot be read; it is damaged.")
        return None

    # the trace

    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB with the table ``spans`` (columns: ``voirkit.runs.parquet``) and ``events``, the same with ``wall_ns``: a cursor.

        Raises:
            ValueError: The run has been closed.
            VoirkitError: The trace cannot be read, or there is no room for what is still in segments.
        """
        if self._closed:
            raise ValueError(f"the run {self.path} has been closed")
        if self._connection is None:
            self._connection = self._open()
        return self._connection.cursor()

    def _open(self) -> duckdb.DuckDBPyConnection:
        from voirkit.runs.parquet import connect, no_room, open_trace

        self._make_folder()
        connection = connect(os.path.join(self._folder, "duckdb"))
        if self._compacts and not self.is_live:
            self._compact(connection)
        try:
            opened = open_trace(self.path, connection, os.path.join(self._folder, "segments"), self._offset_ns())
        except OSError as exc:
            connection.close()
            if str(exc.filename).startswith(self._folder):
                raise no_room(exc, os.path.dirname(self._folder)) from None
            raise self._unreadable(exc) from None
        self.warnings += [warning for warning in opened.warnings if warning not in self.warnings]
        self._processes = opened.processes
        return connection

    def _make_folder(self) -> None:
        import tempfile

        from voirkit.runs.parquet import no_room

        try:
            self._folder = tempfile.mkdtemp(prefix="voirkit-")
        except OSError as exc:
            raise no_room(exc, os.path.dirname(exc.filename or "") or "$TMPDIR") from None
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def _unreadable(self, exc: OSError) -> RunDirectoryError:
        return RunDirectoryError(f"its trace cannot be read: {exc.strerror or exc}.", where=str(exc.filename or self.path))

    def segments(self) -> SegmentRecords | None:
        """The records as arrays, of a run that is not compacted, if all of them fit into memory; None if they are to be read as tables.

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
                self.warnings += self._segments.warnings
        return self._segments

    def _from_segments(self) -> SegmentRecords | None:
        now = layout(self.path)
        if now.spans or now.processes or not is_little(now.segments):
            return None
        found = SegmentRecords(self.path, now, self._offset_ns())
        after = layout(self.path)
        return None if after.spans or after.processes else found  # else some of the files may have gone before they were read

    def recorded(self, kind: str) -> list[tuple[int, str, int]]:
        """(rank, host, pid) of the processes that have records of a kind, ascending."""
        segments = self.segments()
        if segments is not None:
            return segments.recorded(kind)
        return self.connection().execute("SELECT DISTINCT rank, host, pid FROM spans WHERE kind = ? ORDER BY ALL", [kind]).fetchall()

    def _offset_ns(self) -> int:
        clocks = self.manifest.get("clocks")
        if not isinstance(clocks, dict) or not all(isinstance(clocks.get(key), int) for key in ("time_ns", "perf_counter_ns")):
            return 0
        return int(clocks["time_ns"] - clocks["perf_counter_ns"])

    def _compact(self, connection: duckdb.DuckDBPyConnection) -> None:
        import duckdb

        from voirkit.runs import compaction

        try:
            compaction.compact(self.path, ended=self._ended, connection=connection)
        except (OSError, duckdb.Error):
            pass  # the folder cannot be written to, the disk is full: it is read as it is

    def trace(self) -> duckdb.DuckDBPyRelation:
        """All that was recorded, as a relation of DuckDB with the columns of ``voirkit.runs.parquet``."""
        self._kept.append(self.connection())  # duckdb 1.4 closes a cursor that nobody holds, with the relations made from it
        return self._kept[-1].table("spans")

    def processes(self) -> list[Process]:
        """The processes that recorded, in the order in which they began."""
        segments = self.segments()
        if segments is not None:
            return list(segments.processes)
        self.connection()
        return list(self._processes)

    def threads(self) -> dict[tuple[str, int, int, int], str]:
        """Names of threads by (host, rank, pid, tid)."""
        return {(one.host, one.rank, one.pid, tid): name for one in self.processes() for tid, name in one.threads.items()}

    def events(self, selection: Selection = EVERYTHING) -> str:
        """A query for the selected events: the columns of ``spans``, and ``wall_ns``, the start on the wall clock. Not sorted.

        Raises:
            CommandLineError: The run has no such steps or ranks.
        """
        from voirkit.runs.selection import chosen_events

        known = self._chosen.get(selection)
        if known is None:
            known = chosen_events(self.connection(), selection, f"chosen_times_{len(self._chosen)}")
            self._chosen[selection] = known
        return known

    def extents(self, selection: Selection = EVERYTHING) -> list[Extent]:
        """The processes that have events in a selection, in the order of hosts, ranks and starts.

        Raises:
            CommandLineError: The run has no such steps or ranks.
        """
        found = self.connection().execute(
            f"SELECT host, rank, pid, count(*), min(wall_ns), max(wall_ns + duration_ns) FROM ({self.events(selection)}) GROUP BY ALL"
        )  # fmt: skip
        counted = {(host, rank, pid): rest for host, rank, pid, *rest in found.fetchall()}
        ordered = sorted(self.processes(), key=lambda one: (one.host, one.rank, one.began_ns))
        unique = {(one.host, one.rank, one.pid): one for one in reversed(ordered)}
        known = [Extent(unique[key], *counted.pop(key)) for key in reversed(unique) if key in counted]
        # of those that are left nothing is known but their events
        return known + [Extent(Process(*key, 0, "", [], rest[1], 0, {}, {}), *rest) for key, rest in sorted(counted.items())]

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
        return RunDirectoryError("its trace cannot be read; it is damaged.", where=self.path, next=str(exc).partition("\n")[0])

    def rows(self, selection: Selection = EVERYTHING) -> Iterator[list[Row]]:
        """Batches of the selected events, sorted by start.

        Yields:
            Lists of (kind, category, name, start_ns, duration_ns, rank, host, pid, tid, arguments): ``start_ns`` on the wall clock,
            nanoseconds since 1970; in the arguments, an event's own number under the key of its name (``value`` for a counter without).

        Raises:
            CommandLineError: The run has no such steps or ranks.
        """
        columns = "kind, category, name, wall_ns, duration_ns, rank, host, pid, tid, args, value_key, value, number"
        parse = _Parse()
        for batch in self.fetch(
            f"SELECT {columns} FROM ({self.events(selection)}) ORDER BY wall_ns, duration_ns DESC, rank, host, pid, tid, kind"
        ):
            yield [(*row[:9], parse(row[9], row[10], row[11], row[12])) for row in batch]


class _Parse:
    """Arguments from JSON. The same text comes many times in a row; every event has a dictionary of its own."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}

    def __call__(self, text: str | None, key: str | None, value: int | None, number: float | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if text is not None:
            known = self._known.get(text)
            if known is None:
                if len(self._known) > 1000:
                    self._known.clear()
                known = self._known[text] = json.loads(text)
            found = dict(known)
        if value is not None and key is not None:
            found[key] = value
        elif number is not None:
            found[key or "value"] = number
        return found
