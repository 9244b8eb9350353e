"""DFTracer's trace: one object a line between ``[`` and ``]``, without commas, in a gzip file for each process.

This is the dialect that DFAnalyzer (0.0.9 with dftracer-utils 0.0.12, 0.0.9.post61 with 0.0.14.post8), dftracer_validate and Perfetto all
read. Times are whole microseconds, ``ts`` on the wall clock. A span lasts from the microsecond in which it began to that in which it ended,
so that spans that lie in one another still do, and sums are right on average.

The dialect has neither instants nor counters: a mark is an event that lasts 0 µs, a counter is left out. What voirkit records of torch's
steps by itself has the names of annotations: it is left out of a run whose script has annotations of its own, where all would count twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from voirkit.export.values import ARGUMENTS, digest, dumps
from voirkit.report.output import STDOUT, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.runs.opened import Extent, Run
    from voirkit.runs.processes import Process
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "pfw", "", True
VERSION = 20003  # what DFTracer 2.2.0 calls itself in its traces


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a file for each process into a folder; everything into one file if the target's name ends in ``.pfw`` or ``.pfw.gz``."""
    extents = run.extents(selection)
    if target == STDOUT or target.endswith((".pfw", ".pfw.gz")):
        files = {target: extents}
    else:
        files = {os.path.join(target, f"{stem(one.process)}.pfw.gz"): [one] for one in extents}
        if not files:
            files = {os.path.join(target, f"{run.name}.pfw.gz"): []}
    places = [(one.process, n) for n, group in enumerate(files.values()) for one in group]
    lines = Lines(run.fetch(_query(run, selection, places)))
    for n, (path, group) in enumerate(files.items()):
        with text(path) as put:
            put("[\n")
            for one in group:
                put(_head(run, one))
            count = 0
            for batch in lines.of(n):
                put("".join([f'{{"id":{i},{line}\n' for i, line in enumerate(batch, count + 1)]))
                count += len(batch)
            for one in group:
                put(_tail(one))
            put("]\n")
    return list(files)


def stem(process: Process) -> str:
    """What a file of a process is called, without its suffix."""
    host = "".join(c if c.isalnum() or c in "._-" else "_" for c in process.host)
    return f"{host}-r{process.rank}-{process.pid}"


class Lines:
    """Lines for several files, from one query that is sorted by file.

    Args:
        batches: Of (number of the file, line).
    """

    def __init__(self, batches: Iterator[list[tuple[Any, ...]]]) -> None:
        self._batches = batches
        self._batch: list[tuple[Any, ...]] = []

    def of(self, file: int) -> Iterator[list[str]]:
        """Batches of lines of a file; files are asked for in order."""
        while self._batch or (more := next(self._batches, [])):
            batch = self._batch or more
            end = len(batch) if batch[-1][0] == file else next(i for i, (other, _) in enumerate(batch) if other != file)
            self._batch = batch[end:]
            if end:
                yield [line for _, line in batch[:end]]
            if self._batch:
                return


# Arguments that are called like one of the format's own get another name: a key that stands twice means different things to readers.
_ARGUMENTS = "replace(arguments, '\"hhash\":', '\"_hhash\":')"
_OF_METADATA = f"""replace(replace({_ARGUMENTS}, '"name":', '"_name":'), '"value":', '"_value":')"""
# A line of an event without its id, and of one that is metadata.
_EVENT = f"""concat(
    '"name":', to_json(name), ',"cat":', to_json(category), ',"pid":', pid, ',"tid":', tid, ',"ts":', wall_ns // 1000,
    ',"dur":', (wall_ns + duration_ns) // 1000 - wall_ns // 1000,
    ',"ph":"X","args":{{"hhash":"', hhash, '"', ',' || {_ARGUMENTS}, '}}}}')"""
_METADATA = f"""concat(
    '"name":"CM","cat":"dftracer","pid":', pid, ',"tid":', tid, ',"ph":"M","args":{{"hhash":"', hhash, '","name":', to_json(name),
    ',"value":"', wall_ns // 1000, '"', ',' || {_OF_METADATA}, '}}}}')"""


def _query(run: Run, selection: Selection, places: list[tuple[Process, int]]) -> str:
    """(number of the file, line without its id), sorted."""
    connection = run.connection()
    connection.execute("CREATE OR REPLACE TABLE pfw_places (host VARCHAR, rank INTEGER, pid BIGINT, file INTEGER, hhash VARCHAR)")
    if places:
        rows = [[one.host, one.rank, one.pid, file, digest(one.host)] for one, file in places]
        connection.executemany("INSERT INTO pfw_places VALUES (?, ?, ?, ?, ?)", rows)
    left_out = ["counter", "parameter"]
    if connection.execute("SELECT 1 FROM spans WHERE kind IN ('span', 'meta') LIMIT 1").fetchall():
        left_out += ["phase", "device", "loader"]
    kinds = ", ".join(f"'{kind}'" for kind in left_out)
    return (
        f"SELECT file, CASE WHEN kind = 'meta' THEN {_METADATA} ELSE {_EVENT} END FROM ("
        f"SELECT *, {ARGUMENTS} AS arguments FROM ({run.events(selection)}) JOIN pfw_places USING (host, rank, pid) "
        f"WHERE kind NOT IN ({kinds})"
        f") ORDER BY file, wall_ns, duration_ns DESC, tid, kind"
    )


def _record(process: Process, name: str, tid: int | None = None, **more: Any) -> str:
    """A line of the format's own bookkeeping."""
    arguments = {"hhash": digest(process.host), **more.pop("args")}
    return (
        dumps({"name": name, "cat": "dftracer", "pid": process.pid, "tid": process.pid if tid is None else tid, **more, "args": arguments})
        + "\n"
    )


def _head(run: Run, extent: Extent) -> str:
    process = extent.process
    command = " ".join(process.argv)
    texts = [command, process.argv[0] if process.argv else process.name, str(run.manifest.get("cwd", ""))]
    began = time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(process.began_ns / 1e9))
    hashes = dict(zip(("cmd_hash", "exec_hash", "cwd"), map(digest, texts), strict=True))
    lines = [_record(process, "HH", ph="M", args={"name": process.host, "value": digest(process.host)})]
    lines += [_record(process, "SH", ph="M", args={"name": one, "value": digest(one)}) for one in dict.fromkeys(texts) if one]
    lines += [_record(process, "CM", ph="M", args={"name": "time_metric", "value": "US"})]
    lines += [_record(process, "process_name", ph="M", args={"name": f"{process.name} (rank {process.rank})"})]
    lines += [_record(process, "thread_name", tid, ph="M", args={"name": name}) for tid, name in process.threads.items()]
    more = {"ppid": process.ppid, "version": VERSION, "date": began, **hashes}
    lines += [_record(process, "start", ts=extent.first_ns // 1000, dur=0, ph="X", args=more)]
    return "".join(lines)


def _tail(extent: Extent) -> str:
    return _record(extent.process, "end", ts=extent.last_ns // 1000, dur=0, ph="X", args={"num_events": extent.events})
