"""Exports as JSON trace events: Chrome's format (``chrome``) and DFTracer's dialect (``pfw``).

``chrome`` is read by chrome://tracing, Perfetto, speedscope and other tools. It is one strict JSON
object with all events, sorted. Times are microseconds since the first event, with nanoseconds after
the decimal point: readers use 64-bit floating-point numbers, which cannot hold nanoseconds since
1970. ``otherData`` has the time of the first event. The format has one stack for each thread. If a
span overlaps another without being nested in it (coroutines and generators that take turns, work of
a device), Perfetto 52 does not draw it, and counts an error. Such a span is moved to an extra
thread, shown next to its own.

``pfw`` is DFTracer's trace: one object per line between ``[`` and ``]``, without commas, in a gzip
file for each process. DFAnalyzer (0.0.9 with dftracer-utils 0.0.12, 0.0.9.post61 with
0.0.14.post8), dftracer_validate and Perfetto all read it. Times are whole microseconds, ``ts`` on
the wall clock. Start and end of a span are rounded down, so that nested spans stay nested and sums
are right on average. The format has neither instants nor counters: a mark is an event that lasts
0 µs, a counter is left out. The spans that voirkit records of torch's steps have the same names as
annotations of a script. If the script has such annotations, voirkit's spans are left out, since
everything would count twice.

SQL makes the text of the events: DuckDB writes a million of them in half a second, Python in three.
Every string in an event passes through ``to_json``, so that every line is strict JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from array import array
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import duckdb

from voirkit.export import Format, process_table
from voirkit.export.spans import (
    ARROW,
    ARROW_AT,
    ARROWS,
    IS_MOMENT,
    LOADER,
    event_names,
    overlapping,
    workers,
)
from voirkit.report.output import STDOUT, text
from voirkit.runs.parquet import quoted
from voirkit.runs.trace_files import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Extent, Run
    from voirkit.runs.selection import Selection

_LINES_AT_ONCE = 10_000
VERSION = 20003  # the version number in the traces of DFTracer 2.2.0

_KEY = "to_json(value_key)::VARCHAR"
# A number as JSON: infinite ones become strings; nan is already recorded as null.
_NUMBER = (
    "CASE WHEN number IS NULL THEN 'null' WHEN isfinite(number) THEN number::VARCHAR ELSE"
    " to_json(number::VARCHAR)::VARCHAR END"
)
_OWN_NUMBER = f"concat({_KEY}, ':', CASE WHEN value IS NULL THEN {_NUMBER} ELSE value::VARCHAR END)"
_MERGED = f"json_merge_patch(args, concat('{{', {_OWN_NUMBER}, '}}'))::VARCHAR"

# The arguments of an event in the table `events`, its own number included, as JSON members without
# the braces of the object; null without arguments. The number replaces an argument of the same
# name, since readers treat a repeated key in different ways.
ARGUMENTS = f"""CASE
    WHEN value_key IS NULL THEN args[2:-2]
    WHEN args IS NULL THEN {_OWN_NUMBER}
    WHEN contains(args, concat({_KEY}, ':')) THEN ({_MERGED})[2:-2]
    ELSE concat(args[2:-2], ',', {_OWN_NUMBER})
END"""


def dumps(value: object) -> str:
    """Return a value as strict JSON without spaces. Raises ValueError if it holds nan or inf."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """Return a text's hash of 16 hexadecimal digits, as DFTracer has for hosts and commands."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


# the format ``chrome``

_FIRST_EXTRA = 1 << 22  # Linux never uses this thread id or a higher one
# The suffix for the name of an extra thread: the kind of the events on it. It is empty for events
# that stay on their own thread.
_SUFFIX = (
    "CASE WHEN kind IN ('span', 'phase', 'loader', 'mark', 'meta', 'counter') THEN '' ELSE kind END"
)

# SQL that writes a number of nanoseconds as microseconds, with three decimals unless all are zero.
_US = (
    "{0} // 1000, CASE WHEN {0} % 1000 = 0 THEN '' ELSE concat('.', lpad(({0} % 1000)::VARCHAR, 3,"
    " '0')) END"
)
_WHO = f"',\"pid\":', shown_pid, ',\"tid\":', shown_tid, ',\"ts\":', {_US.format('since_ns')}"
# Readers add start and duration as floating-point numbers. The sum must not be later than the start
# of the next event: otherwise speedscope 1.25 takes the next event to be nested in this one, and
# then fails to close it.
_START, _END = "(since_ns / 1000)", "((since_ns + duration_ns) / 1000)"
_DURATION = f"""CASE
    WHEN {_START} + duration_ns / 1000 = {_END} THEN concat({_US.format("duration_ns")})
    WHEN {_START} + ({_END} - {_START}) <= {_END} THEN ({_END} - {_START})::VARCHAR
    ELSE nextafter({_END} - {_START}, 0::DOUBLE)::VARCHAR END"""
_NAME = "'{\"name\":', to_json(shown_name), ',\"cat\":', to_json(category)"
_LINES = {
    "counter": (
        f"""concat({_NAME}, {_WHO}, ',"ph":"C","args":{{', to_json(value_key), ':',
        CASE WHEN isfinite(number) THEN number::VARCHAR ELSE 'null' END, '}}}}')"""
    ),
    "mark": f"""concat({_NAME}, {_WHO}, ',"ph":"i","s":"t","args":{{', arguments, '}}}}')""",
    "meta": f"""concat({_NAME}, {_WHO}, ',"ph":"i","s":"t","args":{{', arguments, '}}}}')""",
}
_SPAN = (
    f"""concat({_NAME}, {_WHO}, ',"dur":', {_DURATION}, ',"ph":"X","args":{{', arguments, '}}}}')"""
)
# Arrows that connect the spans with the same argument `flow`, in the order of their starts.
_ARROW = f"""concat('{{"name":"flow","cat":"flow","id":', arrow, ',"ph":"',
    CASE WHEN turn = 1 THEN 's' WHEN turn = turns THEN 'f","bp":"e' ELSE 't' END,
    '"', {_WHO}, '}}')"""


def write_chrome(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a ``chrome`` trace to one file, compressed with gzip if its name ends in ``.gz``."""
    extents = run.extents(selection)
    extra = _find_extra_threads(run, selection, run.connection())
    first_ns = min((extent.first_ns for extent in extents), default=0)
    with text(target) as write:
        header = dumps(_describe_run(run, first_ns))
        write(f'{{"displayTimeUnit":"ns","otherData":{header},"traceEvents":[\n')
        metadata = list(_chrome_metadata(extents, extra, workers(run)))
        write(",\n".join(metadata))
        separator = ",\n" if metadata else ""
        for batch in run.fetch(_chrome_query(run, selection, extents, first_ns)):
            write(separator)
            write(",\n".join([line for (line,) in batch]))
            separator = ",\n"
        write("\n]}\n")
    return [target]


def _describe_run(run: Run, first_ns: int) -> dict[str, Any]:
    """Return the header of the trace.

    Its ``first_event_ns`` is the time of the first event in nanoseconds since 1970, as a string.
    All times of the trace are relative to it.
    """
    keys = ("voirkit", "command", "host", "started", "git_revision", "world_size")
    facts = {key: value for key, value in run.manifest.items() if key in keys}
    return {"run": run.name, **facts, "first_event_ns": str(first_ns)}


def _unique_pids(extents: list[Extent]) -> list[int]:
    """Return a unique process id for each process; the real ids of several hosts may be equal."""
    used: set[int] = set()
    last = max((extent.process.pid for extent in extents), default=0)
    pids = []
    for extent in extents:
        pid = extent.process.pid
        if pid in used:
            last += 1
            pid = last
        used.add(pid)
        pids.append(pid)
    return pids


class _ExtraThread(NamedTuple):
    """An artificial thread for spans that are drawn next to a real thread."""

    host: str
    rank: int
    pid: int
    tid: int  # id of the real thread
    suffix: str  # appended to the real thread's name
    shown_tid: int


def _chrome_metadata(
    extents: list[Extent],
    extra_threads: list[_ExtraThread],
    workers: dict[tuple[str, int, int], str],
) -> Iterator[str]:
    indices = sorted(
        range(len(extents)), key=lambda i: (extents[i].process.rank, extents[i].first_ns)
    )
    pids = _unique_pids(extents)
    for sort_index, i in enumerate(indices):
        process = extents[i].process
        key = (process.host, process.rank, process.pid)
        pid = pids[i]
        label = f"{workers.get(key, process.name)} (rank {process.rank}, {process.host})"
        yield _metadata_line("process_name", pid, 0, name=label)
        yield _metadata_line("process_sort_index", pid, 0, sort_index=sort_index)
        for tid, name in process.threads.items():
            yield _metadata_line("thread_name", pid, tid, name=name)
            is_other = int(tid != process.pid)
            yield _metadata_line("thread_sort_index", pid, tid, sort_index=is_other)
        for extra in extra_threads:
            if (extra.host, extra.rank, extra.pid) == key:
                name = process.threads.get(extra.tid, f"thread {extra.tid}")
                shown_tid = extra.shown_tid
                yield _metadata_line("thread_name", pid, shown_tid, name=f"{name}: {extra.suffix}")
                is_other = int(extra.tid != extra.pid)
                yield _metadata_line("thread_sort_index", pid, shown_tid, sort_index=is_other)


def _metadata_line(kind: str, pid: int, tid: int, **arguments: object) -> str:
    return dumps({"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": arguments})


def _chrome_query(run: Run, selection: Selection, extents: list[Extent], first_ns: int) -> str:
    """Return an SQL query for the lines of the events, without commas between them.

    They are sorted by start; if two events begin at the same time, the longer is first.
    """
    rows = []
    for extent, shown_pid in zip(extents, _unique_pids(extents), strict=True):
        process = extent.process
        rows.append([process.host, process.rank, process.pid, shown_pid])
    process_table(run, "chrome_pids", "shown_pid BIGINT", rows)
    columns = (
        f"*, wall_ns - {first_ns} AS since_ns, coalesce({ARGUMENTS}, '') AS arguments,"
        f" {_shown_name()} AS shown_name"
    )
    events = (
        f"SELECT {columns} FROM ({run.events(selection)}) JOIN chrome_pids USING (host, rank, pid)"
    )
    events = _with_shown_tid(events)
    cases = " ".join(f"WHEN '{kind}' THEN {line}" for kind, line in _LINES.items())
    line = (
        f"CASE WHEN {IS_MOMENT} THEN {_LINES['mark']} ELSE CASE kind {cases} ELSE {_SPAN} END END"
    )
    flow = "json_extract_string(args, '$.flow')"
    flows = (
        f"SELECT *, {flow} AS flow FROM ({events}) WHERE contains(args, '\"flow\":') AND kind NOT"
        " IN ('counter', 'mark', 'meta')"
    )
    arrow_columns = f"* REPLACE ({ARROW_AT} AS since_ns), {ARROW} AS flow"
    flows += f" UNION ALL SELECT {arrow_columns} FROM ({events}) WHERE {ARROWS}"
    counts = "row_number() OVER w AS turn, count(*) OVER (PARTITION BY flow) AS turns, "
    counts += (
        "min(pid) OVER (PARTITION BY flow) < max(pid) OVER (PARTITION BY flow) AS leads_elsewhere, "
    )
    # Perfetto draws an arrow only if its id is a number
    counts += "dense_rank() OVER (ORDER BY flow) AS arrow"
    turns = f"SELECT *, {counts} FROM ({flows}) WINDOW w AS (PARTITION BY flow ORDER BY since_ns)"
    order = "since_ns, duration_ns, shown_pid, shown_tid, kind"
    return (
        f"SELECT line FROM (SELECT {line} AS line, 0 AS place, {order} FROM ({events}) "
        f"UNION ALL SELECT {_ARROW}, 1, {order} FROM ({turns}) "
        f"WHERE turns > 1 AND (kind <> '{LOADER}' OR leads_elsewhere)) "
        "ORDER BY since_ns, duration_ns DESC, place, shown_pid, shown_tid, kind"
    )


def _shown_name() -> str:
    """Return an SQL expression for the shown name of an event; the script's spans keep theirs."""
    cases = " ".join(
        f"WHEN ({quoted(category)}, {quoted(name)}) THEN {quoted(label)}"
        for (category, name), label in event_names().items()
    )
    if not cases:
        return "name"
    return f"CASE WHEN kind = 'span' THEN name ELSE CASE (category, name) {cases} ELSE name END END"


def _find_extra_threads(
    run: Run, selection: Selection, connection: duckdb.DuckDBPyConnection
) -> list[_ExtraThread]:
    """Find the spans to draw next to their thread, and return the extra threads for them.

    Creates the tables that ``_with_shown_tid`` uses.
    """
    events = f"SELECT *, {_SUFFIX} AS suffix FROM ({run.events(selection)})"
    connection.execute(
        "CREATE OR REPLACE TABLE chrome_threads AS SELECT row_number() OVER (ORDER BY host, rank,"
        " pid, tid, suffix) AS thread, * FROM (SELECT DISTINCT host, rank, pid, tid, suffix FROM"
        f" ({events}))"
    )
    lanes = array("q")
    last = None
    query = (
        f"SELECT thread, wall_ns, wall_ns + duration_ns FROM ({events}) JOIN chrome_threads USING"
        " (host, rank, pid, tid, suffix) WHERE kind NOT IN ('mark', 'meta', 'counter') ORDER BY"
        " thread, wall_ns, duration_ns DESC"
    )
    spans: Iterator[tuple[int, int, int]] = (row for batch in run.fetch(query) for row in batch)
    for lane in overlapping(spans):
        if lane != last:  # spans with the same times share a lane (an extra thread)
            lanes.extend(lane)
        last = lane
    _store(connection, lanes)
    rows = connection.execute(f"""CREATE OR REPLACE TABLE chrome_beside AS
        SELECT *, {_FIRST_EXTRA} - 1 + row_number() OVER (ORDER BY thread, lane) AS shown_tid FROM (
            SELECT thread, lane FROM chrome_lanes
            UNION SELECT thread, 0 FROM chrome_threads WHERE suffix <> '');
        SELECT host, rank, pid, tid,
            concat(suffix, CASE WHEN lane > 0 THEN concat(' overlapping ', lane) END), shown_tid
        FROM chrome_beside JOIN chrome_threads USING (thread) ORDER BY shown_tid""").fetchall()
    return [
        _ExtraThread(host, rank, pid, tid, suffix.strip(), shown_tid)
        for host, rank, pid, tid, suffix, shown_tid in rows
    ]


def _with_shown_tid(events: str) -> str:
    """Return a query that adds to each event the thread in which it is drawn, ``shown_tid``."""
    return f"""SELECT e.*, coalesce(shown_tid, e.tid) AS shown_tid
        FROM (SELECT *, {_SUFFIX} AS suffix FROM ({events})) e
        JOIN chrome_threads USING (host, rank, pid, tid, suffix)
        LEFT JOIN chrome_lanes l ON (l.thread, l.wall_ns, l.duration_ns)
            = (chrome_threads.thread, e.wall_ns, e.duration_ns)
        LEFT JOIN chrome_beside b
            ON (b.thread, b.lane) = (chrome_threads.thread, coalesce(l.lane, 0))"""


def _store(connection: duckdb.DuckDBPyConnection, lanes: array[int]) -> None:
    """Store the rows (thread, start, end, lane) in the table ``chrome_lanes``."""
    import numpy as np

    columns = np.frombuffer(lanes, np.int64).reshape(-1, 4)
    table = {
        "thread": columns[:, 0],
        "wall_ns": columns[:, 1],
        "duration_ns": columns[:, 2] - columns[:, 1],
        "lane": columns[:, 3],
    }
    connection.register(
        "found_lanes", {key: np.ascontiguousarray(column) for key, column in table.items()}
    )
    connection.execute("CREATE OR REPLACE TABLE chrome_lanes AS SELECT * FROM found_lanes")
    connection.unregister("found_lanes")


# the format ``pfw``, DFTracer's


def write_pfw(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a ``pfw`` file for each process into a folder.

    If the target is stdout, or its name ends in ``.pfw`` or ``.pfw.gz``, write all processes there.
    """
    files = _pfw_files(run, run.extents(selection), target)
    processes = [
        (extent.process, number)
        for number, extents in enumerate(files.values())
        for extent in extents
    ]
    rows = (row for batch in run.fetch(_pfw_query(run, selection, processes)) for row in batch)
    rows_by_file = groupby(rows, itemgetter(0))
    ahead = next(rows_by_file, None)  # the next file that has rows: its number, its rows
    for number, (path, extents) in enumerate(files.items()):
        with text(path) as write:
            write("[\n")
            for extent in extents:
                write(_pfw_head(run, extent))
            if ahead is not None and ahead[0] == number:
                numbered_rows = enumerate(ahead[1], 1)
                while part := list(islice(numbered_rows, _LINES_AT_ONCE)):
                    write("".join([f'{{"id":{i},{line}\n' for i, (_, line) in part]))
                ahead = next(rows_by_file, None)
            for extent in extents:
                write(_pfw_end(extent))
            write("]\n")
    return list(files)


def _pfw_files(run: Run, extents: list[Extent], target: str) -> dict[str, list[Extent]]:
    """Return the paths of the files, each with the processes whose events it gets."""
    if target == STDOUT or target.endswith((".pfw", ".pfw.gz")):
        return {target: extents}
    if not extents:
        return {os.path.join(target, f"{run.name}.pfw.gz"): []}
    return {os.path.join(target, f"{stem(extent.process)}.pfw.gz"): [extent] for extent in extents}


def stem(process: Process) -> str:
    """Return the name of a process's file, without its suffix."""
    host = "".join(c if c.isalnum() or c in "._-" else "_" for c in process.host)
    return f"{host}-r{process.rank}-{process.pid}"


# An argument of an event is renamed if the format itself has an argument of that name, since
# readers treat a repeated key in different ways.
_ARGUMENTS = "replace(arguments, '\"hhash\":', '\"_hhash\":')"
_OF_METADATA = f"""replace(replace({_ARGUMENTS}, '"name":', '"_name":'), '"value":', '"_value":')"""
# SQL for the line of an event, without its id, and for the line of a metadata event.
_PFW_EVENT = f"""concat(
    '"name":', to_json(name), ',"cat":', to_json(category),
    ',"pid":', pid, ',"tid":', tid, ',"ts":', wall_ns // 1000,
    ',"dur":', (wall_ns + duration_ns) // 1000 - wall_ns // 1000,
    ',"ph":"X","args":{{"hhash":"', hhash, '"', ',' || {_ARGUMENTS}, '}}}}')"""
_PFW_METADATA = f"""concat(
    '"name":"CM","cat":"dftracer","pid":', pid, ',"tid":', tid,
    ',"ph":"M","args":{{"hhash":"', hhash, '","name":', to_json(name),
    ',"value":"', wall_ns // 1000, '"', ',' || {_OF_METADATA}, '}}}}')"""


def _pfw_query(run: Run, selection: Selection, processes: list[tuple[Process, int]]) -> str:
    """Return an SQL query for (file number, line without its id), sorted by file and time."""
    rows = [
        [process.host, process.rank, process.pid, file, digest(process.host)]
        for process, file in processes
    ]
    process_table(run, "pfw_places", "file INTEGER, hhash VARCHAR", rows)
    left_out = ["counter", "parameter"]
    annotations = "SELECT 1 FROM spans WHERE kind IN ('span', 'meta') LIMIT 1"
    if run.connection().execute(annotations).fetchall():
        left_out += ["phase", "device", "loader"]
    kinds = ", ".join(f"'{kind}'" for kind in left_out)
    return (
        f"SELECT file, CASE WHEN kind = 'meta' THEN {_PFW_METADATA} ELSE {_PFW_EVENT} END FROM"
        f" (SELECT *, {ARGUMENTS} AS arguments FROM ({run.events(selection)}) JOIN pfw_places USING"
        f" (host, rank, pid) WHERE kind NOT IN ({kinds})) ORDER BY file, wall_ns, duration_ns DESC,"
        " tid, kind"
    )


def _pfw_record(
    process: Process,
    name: str,
    arguments: Mapping[str, Any],
    tid: int | None = None,
    **more: Any,
) -> str:
    """Return a line of the format's own metadata or of its start and end events."""
    record = {
        "name": name,
        "cat": "dftracer",
        "pid": process.pid,
        "tid": process.pid if tid is None else tid,
        **more,
        "args": {"hhash": digest(process.host), **arguments},
    }
    return f"{dumps(record)}\n"


def _pfw_head(run: Run, extent: Extent) -> str:
    """Return the first lines of a process: its metadata and its start event."""
    process = extent.process
    command = " ".join(process.argv)
    executable = process.argv[0] if process.argv else process.name
    cwd = str(run.manifest.get("cwd", ""))
    label = f"{process.name} (rank {process.rank})"
    metadata: list[tuple[str, int | None, dict[str, str]]] = [
        ("HH", None, {"name": process.host, "value": digest(process.host)})
    ]
    for content in dict.fromkeys((command, executable, cwd)):
        if content:
            metadata.append(("SH", None, {"name": content, "value": digest(content)}))
    metadata.append(("CM", None, {"name": "time_metric", "value": "US"}))
    metadata.append(("process_name", None, {"name": label}))
    for tid, thread_name in process.threads.items():
        metadata.append(("thread_name", tid, {"name": thread_name}))
    lines = [
        _pfw_record(process, name, arguments, tid, ph="M") for name, tid, arguments in metadata
    ]
    start = {
        "ppid": process.ppid,
        "version": VERSION,
        "date": time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(process.began_ns / 1e9)),
        "cmd_hash": digest(command),
        "exec_hash": digest(executable),
        "cwd": digest(cwd),
    }
    start_us = extent.first_ns // 1000
    lines.append(_pfw_record(process, "start", start, ts=start_us, dur=0, ph="X"))
    return "".join(lines)


def _pfw_end(extent: Extent) -> str:
    """Return the last line of a process: its end event."""
    arguments = {"num_events": extent.events}
    end_us = extent.last_ns // 1000
    return _pfw_record(extent.process, "end", arguments, ts=end_us, dur=0, ph="X")


CHROME = Format("chrome", ".json", True, write_chrome)
PFW = Format("pfw", "", True, write_pfw)
