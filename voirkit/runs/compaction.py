"""Compacts the trace of a run: replaces segments, the files that processes record into, by Parquet.

The Parquet files are sorted. At every moment a reader finds each record exactly once, in its
segment or in Parquet, even if a compacting process is killed: see ``trace_files``. Compaction skips
the records of a process that is alive or ran on another host, unless the process has written that
its recording is complete.

    python -m voirkit.runs.compaction RUN [--rank RANK] [--ended PID]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import duckdb

from voirkit.runs import parquet
from voirkit.runs.directory import no_link
from voirkit.runs.other_processes import is_alive, is_here, locked
from voirkit.runs.parquet import connect
from voirkit.runs.trace_files import (
    is_little,
    journal_path,
    layout,
    read_journal,
    uncompacted_ranks,
)
from voirkit.trace.layout import ENDS, folder_of
from voirkit.trace.reader import Files, Pieces, has_grown, of_stem


class Compacted(NamedTuple):
    """The result of ``compact``."""

    events: int  # number of records that were compacted
    # file name stems of the skipped processes: they are alive, ran on another host, or their files
    # cannot be read completely
    skipped: list[str]


def compact(
    run: str,
    rank: int | None = None,
    ended: Collection[int] = (),
    connection: duckdb.DuckDBPyConnection | None = None,
) -> Compacted:
    """Compact the records of processes that have ended. May be called repeatedly, at any time, and
    by several processes at once.

    Args:
        rank: Compact only the records of this rank; None for all ranks.
        ended: Ids of processes on this host that are alive but have finished recording.
        connection: A connection from ``parquet.connect``. It is used if there are few records,
            since opening another connection takes 15 ms.

    Raises:
        OSError, duckdb.Error: The disk is full, or the folder is not writable. No record is lost,
        and a later call continues the work.
    """
    folder = folder_of(run)
    if not os.path.isdir(folder):
        return Compacted(0, [])
    events = 0
    skipped = []
    for uncompacted_rank in uncompacted_ranks(run) if rank is None else [rank]:
        with locked(f"{folder}/settle-r{uncompacted_rank}.lock"):
            _clear_up(folder, uncompacted_rank)
            segments = layout(run, {uncompacted_rank}).segments
            resting = [files for files in segments if _has_ended(files, ended)]
            while resting:
                keep_names = len(resting) < len(segments)
                count, refused = _compact_processes(
                    folder, uncompacted_rank, resting, keep_names, connection
                )
                events += count
                if not refused:
                    break
                resting = [files for files in resting if files.stem not in refused]
            skipped += [files.stem for files in segments if files not in resting]
    return Compacted(events, skipped)


def _has_ended(files: Files, ended: Collection[int]) -> bool:
    """True if the process that wrote these files is certainly gone, is in ``ended``, or has written
    that its recording is complete."""
    header, last = _ends(files.names)
    if ENDS in last:
        return True
    host, pid = header.get("host"), header.get("pid")
    clocks = header.get("clocks")
    if not is_here(host) or not isinstance(pid, int) or not isinstance(clocks, dict):
        return False
    perf_ns, time_ns = clocks.get("perf_counter_ns", 0), clocks.get("time_ns", 0)
    if not isinstance(perf_ns, int) or not isinstance(time_ns, int):
        return False
    return pid in ended or not is_alive(pid, perf_ns, time_ns)


# maximum length of the last line in bytes; the line has the sizes of up to thousands of segments
_LONGEST = 1 << 16


def _ends(names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first and the last line of a ``.names`` file, parsed. Both are empty dictionaries
    if the file cannot be read; the last one also if it is incomplete."""
    try:
        with open(names, "rb") as file:
            first = file.readline()
            file.seek(max(os.fstat(file.fileno()).st_size - _LONGEST, 0))
            lines = file.read().split(b"\n")
        header = json.loads(first)
        last = json.loads(b"{}" if lines[-1] else lines[-2])
    except (OSError, ValueError, IndexError, RecursionError):
        return {}, {}
    return header if isinstance(header, dict) else {}, last if isinstance(last, dict) else {}


def _compact_processes(
    folder: str,
    rank: int,
    resting: list[Files],
    keep_names: bool,
    connection: duckdb.DuckDBPyConnection | None,
) -> tuple[int, set[str]]:
    """Compact the records of some processes of one rank.

    Args:
        resting: The files of the processes to compact; all of them have ended, or have finished
            recording.
        keep_names: Whether to keep the ``.names`` files, because other processes of the rank may
            still read them.

    Returns:
        (number of records, stems of the processes whose files cannot be compacted). If there are
        any such processes, nothing is compacted and the number is 0.
    """
    draft = tempfile.mkdtemp(prefix=f"settle-r{rank}.", suffix=".tmp", dir=folder)
    try:
        # mkdtemp gives access only to the user of this process, but a process of another user may
        # have to move the files
        os.chmod(draft, os.stat(folder).st_mode & 0o777)
        # DuckDB spills data that does not fit into memory to a folder in ``draft``, since the disk
        # of the trace has room.
        shared = connection if connection is not None and is_little(resting) else None
        with connect(f"{draft}/duckdb") if shared is None else shared.cursor() as cursor:
            pieces = Pieces(resting)
            drafts: list[tuple[str, str]] = []

            def path_of(kind: str, number: int) -> str:
                path = f"{draft}/{kind}-{number}.parquet"
                drafts.append((path, kind))
                return path

            described = parquet.write(cursor, pieces, path_of)
        refused = _stems_in_the_way(resting, pieces)
        if refused:
            shutil.rmtree(draft)
            return 0, refused
        host = of_stem(resting[0].stem)[0]
        move = _places(folder, rank, host, drafts)
        descriptions = f"{draft}/processes.jsonl"
        with open(descriptions, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(process) + "\n" for process in described)
        number = _free(f"{folder}/processes", f"{host}-r{rank}-")
        move.append((descriptions, f"{folder}/processes/{host}-r{rank}-{number}.jsonl"))
        remove = []
        for files in resting:
            remove += files.segments
            if files.dropped is not None:
                remove.append(files.dropped)
            # keep_names: forked children that are alive may still look up ids of their parent in
            # the ``.names`` file
            if not keep_names:
                remove.append(files.names)
        for path, _ in move:
            _sync(path)
        _write_journal(folder, rank, move, remove)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _clear_up(folder, rank)
    return sum(tally.n for process in described for tally in process["records"].values()), set()


def _stems_in_the_way(resting: list[Files], pieces: Pieces) -> set[str]:
    """Return the stems of the processes whose records cannot all be read, or whose files still
    grow."""
    refused = set()
    for files, source in zip(resting, pieces.sources, strict=True):
        is_damaged = not set(pieces.damaged).isdisjoint(files.segments)
        grows = any(has_grown(path, pieces.read[path]) for path in files.segments)
        if source.unknown or is_damaged or grows:
            refused.add(files.stem)
    return refused


def _places(
    folder: str, rank: int, host: str, drafts: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return (draft, final path) of each Parquet draft in ``drafts``, a list of (path, kind)."""
    first: dict[str, int] = {}
    move = []
    for path, kind in drafts:
        place = f"{folder}/kind={kind}/rank={rank}"
        number = first.setdefault(kind, _free(place, f"{host}-"))
        first[kind] += 1
        move.append((path, f"{place}/{host}-{number}.parquet"))
    return move


def _free(folder: str, prefix: str) -> int:
    """Return the lowest number greater than all those in the names of the folder's files that begin
    with the prefix."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    suffixes = [name[len(prefix) :].partition(".")[0] for name in names if name.startswith(prefix)]
    return max((int(number) for number in suffixes if number.isdigit()), default=-1) + 1


def _write_journal(folder: str, rank: int, move: list[tuple[str, str]], remove: list[str]) -> None:
    """Write the journal of a rank. From this moment readers use the drafts instead of the
    segments."""
    journal = {
        "move": [
            [os.path.relpath(draft, folder), os.path.relpath(place, folder)]
            for draft, place in move
        ],
        "remove": [os.path.relpath(path, folder) for path in remove],
    }
    path = journal_path(folder, rank)
    with open(f"{path}.tmp", "w", encoding="utf-8", opener=no_link) as file:
        json.dump(journal, file)
    _sync(f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def _clear_up(folder: str, rank: int) -> None:
    """Complete the moves and removals that a rank's journal lists. Then delete the drafts left
    behind by a compaction that was killed before it wrote its journal."""
    path = journal_path(folder, rank)
    journal = read_journal(path)
    if journal is not None:
        for draft, place in journal.move:
            if os.path.exists(f"{folder}/{draft}"):
                os.makedirs(os.path.dirname(f"{folder}/{place}"), exist_ok=True)
                os.replace(f"{folder}/{draft}", f"{folder}/{place}")
        for name in journal.remove:
            if os.path.exists(f"{folder}/{name}"):
                os.unlink(f"{folder}/{name}")
        os.unlink(path)
    for name in os.listdir(folder):
        if name.startswith(f"settle-r{rank}.") and name.endswith(".tmp"):
            if os.path.isdir(f"{folder}/{name}"):
                shutil.rmtree(f"{folder}/{name}")
            else:
                os.unlink(f"{folder}/{name}")


def _sync(path: str) -> None:
    """Flush a file to the disk, so that a journal never refers to a file that is not there."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def main(words: list[str]) -> int:
    """Run the command and return its exit code: 1, with a message, if the trace could not be
    compacted and stays in segments."""
    import argparse

    from voirkit.errors import tell

    parser = argparse.ArgumentParser(
        "python -m voirkit.runs.compaction", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("RUN", help="a run directory")
    parser.add_argument("--rank", type=int, help="only the records of this rank")
    parser.add_argument(
        "--ended",
        type=int,
        action="append",
        default=[],
        metavar="PID",
        help="this process records no more, though it is alive",
    )
    options = parser.parse_args(words)
    try:
        compact(options.RUN, options.rank, options.ended)
    except (OSError, duckdb.Error) as exc:
        tell(
            f"{options.RUN}: the trace stays in segments, which can be read as well:"
            f" {str(exc).partition(chr(10))[0]}"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
