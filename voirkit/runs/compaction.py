"""Compacts what was recorded: segments become sorted Parquet files, and are removed.

At every moment each record is to be read exactly once, from its segment or from Parquet, whoever is
killed and whoever reads meanwhile: see ``trace_files``. Records of a process that is alive, or ran
on another host, are left alone, unless it has said that these were all.

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
    """What ``compact`` did."""

    events: int  # how many records were compacted
    # the processes (stems of their files) that were left alone: they are alive, on another host, or
    # cannot be read whole
    left: list[str]


def compact(
    run: str,
    rank: int | None = None,
    ended: Collection[int] = (),
    connection: duckdb.DuckDBPyConnection | None = None,
) -> Compacted:
    """Compact the records of processes that have ended. May be called again, at any time, by
    several at once.

    Args:
        rank: Only those of this rank.
        ended: Ids of living processes of this host that record no more.
        connection: Of ``parquet.connect``; does the work if that is little, since making another
            takes 15 ms.

    Raises:
        OSError, duckdb.Error: The disk is full, the folder cannot be written to. Nothing is lost,
        and another call goes on.
    """
    folder = folder_of(run)
    if not os.path.isdir(folder):
        return Compacted(0, [])
    events, left = 0, []
    for one in uncompacted_ranks(run) if rank is None else [rank]:
        with locked(f"{folder}/settle-r{one}.lock"):
            _clear_up(folder, one)
            own = layout(run, {one}).segments
            resting = [files for files in own if _has_ended(files, ended)]
            others = [files for files in own if files not in resting]
            while resting:
                count, refused = _compact_processes(folder, one, resting, bool(others), connection)
                events += count
                others += [files for files in resting if files.stem in refused]
                resting = (
                    [files for files in resting if files.stem not in refused] if refused else []
                )
            left += [files.stem for files in others]
    return Compacted(events, left)


def _has_ended(files: Files, ended: Collection[int]) -> bool:
    """Whether the process that wrote these files is gone for certain, or has said that it records
    no more."""
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


_LONGEST = 1 << 16  # bytes of a last line: the lengths of thousands of segments


def _ends(names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first line of a process's names, and the last if it is whole; empty where they cannot be
    read."""
    try:
        with open(names, "rb") as file:
            first = file.readline()
            file.seek(max(os.fstat(file.fileno()).st_size - _LONGEST, 0))
            lines = file.read().split(b"\n")
        found = [json.loads(line) for line in (first, b"{}" if lines[-1] else lines[-2])]
    except (OSError, ValueError, IndexError, RecursionError):
        return {}, {}
    return found[0] if isinstance(found[0], dict) else {}, (
        found[1] if isinstance(found[1], dict) else {}
    )


def _compact_processes(
    folder: str,
    rank: int,
    resting: list[Files],
    keep_names: bool,
    connection: duckdb.DuckDBPyConnection | None,
) -> tuple[int, set[str]]:
    """Compact the records of some processes. Returns how many; or, if nothing could be done, the
    stems of those that are in the way."""
    draft = tempfile.mkdtemp(prefix=f"settle-r{rank}.", suffix=".tmp", dir=folder)
    try:
        # mkdtemp's are for its maker alone; others may have to move its files
        os.chmod(draft, os.stat(folder).st_mode & 0o777)
        # What does not fit into memory lies beside the trace meanwhile, where there is room for it.
        with (
            connection.cursor()
            if connection is not None and is_little(resting)
            else connect(f"{draft}/duckdb")
        ) as cursor:
            pieces = Pieces(resting)
            written: list[tuple[str, str]] = []

            def path_of(kind: str, number: int) -> str:
                written.append((f"{draft}/{kind}-{number}.parquet", kind))
                return written[-1][0]

            described = parquet.write(cursor, pieces, path_of)
        refused = {
            files.stem
            for files, source in zip(resting, pieces.sources, strict=True)
            if source.unknown
        }
        refused |= {
            files.stem for files in resting if not set(pieces.damaged).isdisjoint(files.segments)
        }
        refused |= {
            files.stem
            for files in resting
            if any(has_grown(path, pieces.read[path]) for path in files.segments)
        }
        if refused:
            shutil.rmtree(draft)
            return 0, refused
        host = of_stem(resting[0].stem)[0]
        move = _places(folder, rank, host, written)
        with open(f"{draft}/processes.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in described)
        number = _free(f"{folder}/processes", f"{host}-r{rank}-")
        move.append(
            (f"{draft}/processes.jsonl", f"{folder}/processes/{host}-r{rank}-{number}.jsonl")
        )
        remove = [
            path
            for files in resting
            for path in (*files.segments, files.dropped, files.names)
            if path is not None
        ]
        # forked children that are alive may still look there for what a number of their parent's
        # stands for
        if keep_names:
            remove = [path for path in remove if not path.endswith(".names")]
        for path, _ in move:
            _sync(path)
        _write_journal(folder, rank, move, remove)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _clear_up(folder, rank)
    return sum(tally.n for one in described for tally in one["records"].values()), set()


def _places(
    folder: str, rank: int, host: str, written: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The place of each draft."""
    first: dict[str, int] = {}
    move = []
    for path, kind in written:
        place = f"{folder}/kind={kind}/rank={rank}"
        number = first.setdefault(kind, _free(place, f"{host}-"))
        first[kind] += 1
        move.append((path, f"{place}/{host}-{number}.parquet"))
    return move


def _free(folder: str, begin: str) -> int:
    """The first number behind those that are taken."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    taken = [name[len(begin) :].partition(".")[0] for name in names if name.startswith(begin)]
    return max((int(number) for number in taken if number.isdigit()), default=-1) + 1


def _write_journal(folder: str, rank: int, move: list[tuple[str, str]], remove: list[str]) -> None:
    """From here on the drafts count."""
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
    """Do what a journal says, as far as it has not been done, and remove what was left behind by
    who was killed before there was one."""
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
    """Have a file on the disk before something else says that it is there."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def main(words: list[str]) -> int:
    """The command: compact, and say what is left. Returns the exit code."""
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
