"""Trace events in JSON: the format of chrome://tracing, Perfetto, speedscope and others, and DFTracer's dialect of it.

``chrome`` is one strict JSON object with all events, sorted. Times are microseconds since the first event, with nanoseconds behind the
point: the 64-bit floating-point numbers of readers can hold no nanoseconds since 1970. ``otherData`` says when the first event was. The
format has one stack a thread: of a span that overlaps another without lying in it (coroutines and generators that take turns, work of a
device) Perfetto 52 draws nothing, and counts it as an error. Such a span gets a thread of its own, beside the one that it was in.

``pfw`` is DFTracer's trace: one object a line between ``[`` and ``]``, without commas, in a gzip file for each process. DFAnalyzer (0.0.9
with dftracer-utils 0.0.12, 0.0.9.post61 with 0.0.14.post8), dftracer_validate and Perfetto all read it. Times are whole microseconds,
``ts`` on the wall clock. A span lasts from the microsecond in which it began to that in which it ended, so that spans that lie in one
another still do, and sums are right on average. There are neither instants nor counters: a mark is an event that lasts 0 µs, a counter is
left out. What voirkit records of torch's steps by itself has the names of annotations: it is left out of a run whose script has annotations
of its own, where all would count twice.

The text of events is made by SQL: DuckDB writes a million of them in half a second, python in three. Every text in it passes through
``to_json``, so that every line is strict JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from array import array
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import duckdb

from voirkit.export import Format, process_table
from voirkit.export.spans import ARROW, ARROW_AT, ARROWS, IS_MOMENT, LOADER, event_names, overlapping, workers
from voirkit.report.output import STDOUT, text
from voirkit.runs.parquet import quoted
from voirkit.runs.trace_files import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Extent, Run
    from voirkit.runs.selection import Selection

_LINES_AT_ONCE = 10_000
VERSION = 20003  # what DFTracer 2.2.0 calls itself in its traces

_KEY = "to_json(value_key)::VARCHAR"
# nan becomes null where it is recorded
_NUMBER = "CASE WHEN number IS NULL THEN 'null' WHEN isfinite(number) THEN number::VARCHAR ELSE to_json(number::VARCHAR)::VARCHAR END"
_OWN = f"concat({_KEY}, ':', CASE WHEN value IS NULL THEN {_NUMBER} ELSE value::VARCHAR END)"
_MERGED = f"json_merge_patch(args, concat('{{', {_OWN}, '}}'))::VARCHAR"

# The arguments of an event of the table `events`, its own number among them, as the inside of an object: no braces; null if there are none.
# An argument that has the same name is replaced, since a key that stands twice means different things to different readers.
ARGUMENTS = f"""CASE
    WHEN value_key IS NULL THEN args[2:-2]
    WHEN args IS NULL THEN {_OWN}
    WHEN contains(args, concat({_KEY}, ':')) THEN ({_MERGED})[2:-2]
    ELSE concat(args[2:-2], ',', {_OWN})
END"""


def dumps(value: object) -> str:
    """Strict JSON without spaces. Raises ValueError: it holds nan or inf."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """16 hexadecimal digits that stand for a text, as DFTracer has them for hosts and commands."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


# chrome

_FIRST_EXTRA = 1 << 22  # Linux gives no thread this number, nor a higher one
_WHAT = "CASE WHEN kind IN ('span', 'phase', 'loader', 'mark', 'meta', 'counter') THEN '' ELSE kind END"

# Microseconds of a number of nanoseconds.
_US = "{0} // 1000, CASE WHEN {0} % 1000 = 0 THEN '' ELSE concat('.', lpad(({0} % 1000)::VARCHAR, 3, '0')) END"
_WHO = f"',\"pid\":', shown_pid, ',\"tid\":', shown_tid, ',\"ts\":', {_US.format('since_ns')}"
# Readers add floating-point numbers: of start and duration the sum must not lie behind the time with which the next event begins, or
# speedscope 1.25 takes that one to lie in this one, which it then never closes.
_START, _END = "(since_ns / 1000)", "((since_ns + duration_ns) / 1000)"
_DURATION = f"""CASE WHEN {_START} + duration_ns / 1000 = {_END} THEN concat({_US.format("duration_ns")})
    WHEN {_START} + ({_END} - {_START}) <= {_END} THEN ({_END} - {_START})::VARCHAR
    ELSE nextafter({_END} - {_START}, 0::DOUBLE)::VARCHAR END"""
_NAME = "'{\"name\":', to_json(shown_name), ',\"cat\":', to_json(category)"
_LINES = {
    "counter": f"""concat({_NAME}, {_WHO}, ',"ph":"C","args":{{', to_json(value_key), ':',
        CASE WHEN isfinite(number) THEN number::VARCHAR ELSE 'null' END, '}}}}')""",
    "mark": f"""concat({_NAME}, {_WHO}, ',"ph":"i","s":"t","args":{{', arguments, '}}}}')""",
    "meta": f"""concat({_NAME}, {_WHO}, ',"ph":"i","s":"t","args":{{', arguments, '}}}}')""",
}
_SPAN = f"""concat({_NAME}, {_WHO}, ',"dur":', {_DURATION}, ',"ph":"X","args":{{', arguments, '}}}}')"""
# Arrows between the spans that have the same argument `flow`, in the order of their starts.
_ARROW = f"""concat('{{"name":"flow","cat":"flow","id":', arrow, ',"ph":"',
    CASE WHEN turn = 1 THEN 's' WHEN turn = turns THEN 'f","bp":"e' ELSE 't' END, '"', {_WHO}, '}}')"""


def write_chrome(run: Run, selection: Selection, target: str) -> list[str]:
    """Write one file; compressed with gzip if its name ends in ``.gz``."""
    extents = run.extents(selection)
    extra = _find_extra_threads(run, selection, run.connection())
    first_ns = min((one.first_ns for one in extents), default=0)
    with text(target) as put:
        put(f'{{"displayTimeUnit":"ns","otherData":{dumps(_about(run, first_ns))},"traceEvents":[\n')
        head = list(_chrome_metadata(extents, extra, workers(run)))
        put(",\n".join(head))
        between = ",\n" if head else ""
        for batch in run.fetch(_chrome_query(run, selection, extents, first_ns)):
            put(between)
            put(",\n".join([line for (line,) in batch]))
            between = ",\n"
        put("\n]}\n")
    return [target]


def _about(run: Run, first_ns: int) -> dict[str, Any]:
    """What the whole trace is: ``first_event_ns`` is where its times begin, in nanoseconds since 1970, as a text."""
    keys = ("voirkit", "command", "host", "started", "git_revision", "world_size")
    about = {key: value for key, value in run.manifest.items() if key in keys}
    return {"run": run.name, **about, "first_event_ns": str(first_ns)}


def _shown_pids(extents: list[Extent]) -> list[int]:
    """The process ids as the format has them: unique, which those of several hosts need not be."""
    taken: set[int] = set()
    last = max((one.process.pid for one in extents), default=0)
    shown = []
    for one in extents:
        pid = one.process.pid
        if pid in taken:
            pid = last = last + 1
        taken.add(pid)
        shown.append(pid)
    return shown


def _chrome_metadata(
    extents: list[Extent], extra: list[tuple[str, int, int, int, str, int]], workers: dict[tuple[str, int, int], str]
) -> Iterator[str]:
    ordered = sorted(range(len(extents)), key=lambda i: (extents[i].process.rank, extents[i].first_ns))
    shown = _shown_pids(extents)
    for place, i in enumerate(ordered):
        process = extents[i].process
        called = workers.get((process.host, process.rank, process.pid), process.name)
        label = f"{called} (rank {process.rank}, {process.host})"
        yield _metadata_line("process_name", shown[i], 0, name=label)
        yield _metadata_line("process_sort_index", shown[i], 0, sort_index=place)
        for tid, name in process.threads.items():
            yield _metadata_line("thread_name", shown[i], tid, name=name)
            yield _metadata_line("thread_sort_index", shown[i], tid, sort_index=0 if tid == process.pid else 1)
        for host, rank, pid, tid, what, made_up in extra:
            if (host, rank, pid) == (process.host, process.rank, process.pid):
                yield _metadata_line("thread_name", shown[i], made_up, name=f"{process.threads.get(tid, f'thread {tid}')}: {what}")
                yield _metadata_line("thread_sort_index", shown[i], made_up, sort_index=0 if tid == pid else 1)


def _metadata_line(what: str, pid: int, tid: int, **arguments: object) -> str:
    return dumps({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": arguments})


def _chrome_query(run: Run, selection: Selection, extents: list[Extent], first_ns: int) -> str:
    """Lines without the commas between them, sorted by time; of two events that begin at once the longer is first."""
    shown = zip(extents, _shown_pids(extents), strict=True)
    who = [[one.process.host, one.process.rank, one.process.pid, pid] for one, pid in shown]
    process_table(run, "chrome_pids", "shown_pid BIGINT", who)
    columns = f"*, wall_ns - {first_ns} AS since_ns, coalesce({ARGUMENTS}, '') AS arguments, {_shown_name()} AS shown_name"
    events = f"SELECT {columns} FROM ({run.events(selection)}) JOIN chrome_pids USING (host, rank, pid)"
    events = _with_shown_tid(events)
    cases = " ".join(f"WHEN '{kind}' THEN {line}" for kind, line in _LINES.items())
    line = f"CASE WHEN {IS_MOMENT} THEN {_LINES['mark']} ELSE CASE kind {cases} ELSE {_SPAN} END END"
    flow = "json_extract_string(args, '$.flow')"
    flows = f"SELECT *, {flow} AS flow FROM ({events}) WHERE contains(args, '\"flow\":') AND kind NOT IN ('counter', 'mark', 'meta')"
    at = f"* REPLACE ({ARROW_AT} AS since_ns), {ARROW} AS flow"
    flows += f" UNION ALL SELECT {at} FROM ({events}) WHERE {ARROWS}"
    counted = "row_number() OVER w AS turn, count(*) OVER (PARTITION BY flow) AS turns, "
    counted += "min(pid) OVER (PARTITION BY flow) < max(pid) OVER (PARTITION BY flow) AS leads_elsewhere, "
    counted += "dense_rank() OVER (ORDER BY flow) AS arrow"  # of an id that is no number Perfetto draws no arrow
    turns = f"SELECT *, {counted} FROM ({flows}) WINDOW w AS (PARTITION BY flow ORDER BY since_ns)"
    order = "since_ns, duration_ns, shown_pid, shown_tid, kind"
    return (
        f"SELECT line FROM (SELECT {line} AS line, 0 AS place, {order} FROM ({events}) "
        f"UNION ALL SELECT {_ARROW}, 1, {order} FROM ({turns}) "
        f"WHERE turns > 1 AND (kind <> '{LOADER}' OR leads_elsewhere)) "
        "ORDER BY since_ns, duration_ns DESC, place, shown_pid, shown_tid, kind"
    )


def _shown_name() -> str:
    """What an event is called; those of the script keep their names."""
    names = " ".join(f"WHEN ({quoted(category)}, {quoted(name)}) THEN {quoted(shown)}" for (category, name), shown in event_names().items())
    return f"CASE WHEN kind = 'span' THEN name ELSE CASE (category, name) {names} ELSE name END END" if names else "name"


def _find_extra_threads(run: Run, selection: Selection, connection: duckdb.DuckDBPyConnection) -> list[tuple[str, int, int, int, str, int]]:
    """Find what is to be drawn beside its thread, for ``_with_shown_tid``. Returns for each thread that is made up, (host, rank, pid, tid)
    of the real one, what to add to its name, and the number of the new one."""
    events = f"SELECT *, {_WHAT} AS what FROM ({run.events(selection)})"
    connection.execute(
        "CREATE OR REPLACE TABLE chrome_threads AS SELECT row_number() OVER (ORDER BY host, rank, pid, tid, what) AS thread, * "
        f"FROM (SELECT DISTINCT host, rank, pid, tid, what FROM ({events}))"
    )
    lanes = array("q")
    last = None
    query = (
        f"SELECT thread, wall_ns, wall_ns + duration_ns FROM ({events}) JOIN chrome_threads USING (host, rank, pid, tid, what) "
        "WHERE kind NOT IN ('mark', 'meta', 'counter') ORDER BY thread, wall_ns, duration_ns DESC"
    )
    spans: Iterator[tuple[int, int, int]] = (row for batch in run.fetch(query) for row in batch)
    for found in overlapping(spans):
        if found != last:  # spans of the same times are in the same lane
            lanes.extend(found)
        last = found
    _store(connection, lanes)
    made_up = connection.execute(
        f"""CREATE OR REPLACE TABLE chrome_beside AS
        SELECT *, {_FIRST_EXTRA} - 1 + row_number() OVER (ORDER BY thread, lane) AS shown_tid FROM (
            SELECT thread, lane FROM chrome_lanes UNION SELECT thread, 0 FROM chrome_threads WHERE what <> '');
        SELECT host, rank, pid, tid, concat(what, CASE WHEN lane > 0 THEN concat(' overlapping ', lane) END), shown_tid
        FROM chrome_beside JOIN chrome_threads USING (thread) ORDER BY shown_tid"""
    ).fetchall()
    return [(host, rank, pid, tid, what.strip(), shown) for host, rank, pid, tid, what, shown in made_up]


def _with_shown_tid(events: str) -> str:
    """A query for these events with the thread that they are drawn in, ``shown_tid``."""
    return f"""SELECT e.*, coalesce(shown_tid, e.tid) AS shown_tid FROM (SELECT *, {_WHAT} AS what FROM ({events})) e
        JOIN chrome_threads USING (host, rank, pid, tid, what)
        LEFT JOIN chrome_lanes l ON (l.thread, l.wall_ns, l.duration_ns) = (chrome_threads.thread, e.wall_ns, e.duration_ns)
        LEFT JOIN chrome_beside b ON (b.thread, b.lane) = (chrome_threads.thread, coalesce(l.lane, 0))"""


def _store(connection: duckdb.DuckDBPyConnection, lanes: array[int]) -> None:
    """Put (thread, start, end, lane) into a table."""
    import numpy as np

    columns = np.frombuffer(lanes, np.int64).reshape(-1, 4)
    table = {"thread": columns[:, 0], "wall_ns": columns[:, 1], "duration_ns": columns[:, 2] - columns[:, 1], "lane": columns[:, 3]}
    connection.register("found_lanes", {key: np.ascontiguousarray(column) for key, column in table.items()})
    connection.execute("CREATE OR REPLACE TABLE chrome_lanes AS SELECT * FROM found_lanes")
    connection.unregister("found_lanes")


# DFTracer's


def write_pfw(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a file for each process into a folder; everything into one file if the target's name ends in ``.pfw`` or ``.pfw.gz``."""
    extents = run.extents(selection)
    if target == STDOUT or target.endswith((".pfw", ".pfw.gz")):
        files = {target: extents}
    else:
        files = {os.path.join(target, f"{stem(one.process)}.pfw.gz"): [one] for one in extents}
        if not files:
            files = {os.path.join(target, f"{run.name}.pfw.gz"): []}
    places = [(one.process, n) for n, group in enumerate(files.values()) for one in group]
    rows = (row for batch in run.fetch(_pfw_query(run, selection, places)) for row in batch)
    by_file = groupby(rows, itemgetter(0))
    ahead = next(by_file, None)  # the number of a file, and its rows
    for n, (path, group) in enumerate(files.items()):
        with text(path) as put:
            put("[\n")
            for one in group:
                put(_pfw_head(run, one))
            if ahead is not None and ahead[0] == n:
                numbered = enumerate(ahead[1], 1)
                while part := list(islice(numbered, _LINES_AT_ONCE)):
                    put("".join([f'{{"id":{i},{line}\n' for i, (_, line) in part]))
                ahead = next(by_file, None)
            for one in group:
                put(_pfw_record(one.process, "end", ts=one.last_ns // 1000, dur=0, ph="X", args={"num_events": one.events}))
            put("]\n")
    return list(files)


def stem(process: Process) -> str:
    """What a file of a process is called, without its suffix."""
    host = "".join(c if c.isalnum() or c in "._-" else "_" for c in process.host)
    return f"{host}-r{process.rank}-{process.pid}"


# Arguments that are called like one of the format's own get another name: a key that stands twice means different things to readers.
_ARGUMENTS = "replace(arguments, '\"hhash\":', '\"_hhash\":')"
_OF_METADATA = f"""replace(replace({_ARGUMENTS}, '"name":', '"_name":'), '"value":', '"_value":')"""
# A line of an event without its id, and of one that is metadata.
_PFW_EVENT = f"""concat(
    '"name":', to_json(name), ',"cat":', to_json(category), ',"pid":', pid, ',"tid":', tid, ',"ts":', wall_ns // 1000,
    ',"dur":', (wall_ns + duration_ns) // 1000 - wall_ns // 1000,
    ',"ph":"X","args":{{"hhash":"', hhash, '"', ',' || {_ARGUMENTS}, '}}}}')"""
_PFW_METADATA = f"""concat(
    '"name":"CM","cat":"dftracer","pid":', pid, ',"tid":', tid, ',"ph":"M","args":{{"hhash":"', hhash, '","name":', to_json(name),
    ',"value":"', wall_ns // 1000, '"', ',' || {_OF_METADATA}, '}}}}')"""


def _pfw_query(run: Run, selection: Selection, places: list[tuple[Process, int]]) -> str:
    """(number of the file, line without its id), sorted."""
    rows = [[one.host, one.rank, one.pid, file, digest(one.host)] for one, file in places]
    process_table(run, "pfw_places", "file INTEGER, hhash VARCHAR", rows)
    left_out = ["counter", "parameter"]
    if run.connection().execute("SELECT 1 FROM spans WHERE kind IN ('span', 'meta') LIMIT 1").fetchall():
        left_out += ["phase", "device", "loader"]
    kinds = ", ".join(f"'{kind}'" for kind in left_out)
    return (
        f"SELECT file, CASE WHEN kind = 'meta' THEN {_PFW_METADATA} ELSE {_PFW_EVENT} END FROM ("
        f"SELECT *, {ARGUMENTS} AS arguments FROM ({run.events(selection)}) JOIN pfw_places USING (host, rank, pid) "
        f"WHERE kind NOT IN ({kinds})"
        f") ORDER BY file, wall_ns, duration_ns DESC, tid, kind"
    )


def _pfw_record(process: Process, name: str, tid: int | None = None, **more: Any) -> str:
    """A line of the format's own bookkeeping."""
    arguments = {"hhash": digest(process.host), **more.pop("args")}
    thread = process.pid if tid is None else tid
    return dumps({"name": name, "cat": "dftracer", "pid": process.pid, "tid": thread, **more, "args": arguments}) + "\n"


def _pfw_head(run: Run, extent: Extent) -> str:
    process = extent.process
    command = " ".join(process.argv)
    texts = [command, process.argv[0] if process.argv else process.name, str(run.manifest.get("cwd", ""))]
    began = time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(process.began_ns / 1e9))
    hashes = dict(zip(("cmd_hash", "exec_hash", "cwd"), map(digest, texts), strict=True))
    lines = [_pfw_record(process, "HH", ph="M", args={"name": process.host, "value": digest(process.host)})]
    lines += [_pfw_record(process, "SH", ph="M", args={"name": one, "value": digest(one)}) for one in dict.fromkeys(texts) if one]
    lines += [_pfw_record(process, "CM", ph="M", args={"name": "time_metric", "value": "US"})]
    lines += [_pfw_record(process, "process_name", ph="M", args={"name": f"{process.name} (rank {process.rank})"})]
    lines += [_pfw_record(process, "thread_name", tid, ph="M", args={"name": name}) for tid, name in process.threads.items()]
    more = {"ppid": process.ppid, "version": VERSION, "date": began, **hashes}
    lines += [_pfw_record(process, "start", ts=extent.first_ns // 1000, dur=0, ph="X", args=more)]
    return "".join(lines)


CHROME = Format("chrome", ".json", True, write_chrome)
PFW = Format("pfw", "", True, write_pfw)
