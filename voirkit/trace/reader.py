"""Reads segments, the files that processes record into, and returns their records as columns.

Segments can be read while they are written, afterwards, and after their process was killed. They
are read piece by piece, so that a whole recording need not fit into memory. Files are read, never
mapped: truncating a mapped segment would kill the reader. ``layout`` describes the file formats.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from io import FileIO
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from voirkit.trace import layout

Array = npt.NDArray[Any]

RECORD_TYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("value", "<i8"),
        ("args", "<u4"),
        ("name", "<u4"),
    ]
)
MOST = 1 << 22  # maximum number of records in a piece: 128 MiB raw, twice that as columns


_MOST_NAMES = 1 << 20  # limit for name ids in a file; far more than ``names`` assigns
# Kinds become names of files and folders when a trace is compacted, so others are rejected.
_KIND = re.compile(r"[\w.-]{1,64}")


class Name(NamedTuple):
    """The name that a code in the column ``name`` stands for."""

    kind: str  # ``span``, ``mark``, ``counter`` or ``meta``
    category: str
    name: str
    # key that says what the record's own number means; None if records of this name have no number.
    # The number of a counter is a double.
    value_key: str | None


class Process(NamedTuple):
    """A process that recorded, as its header describes it."""

    pid: int
    ppid: int
    rank: int
    host: str
    name: str
    perf_counter_ns: int  # this and time_ns are read at the same moment, when recording begins
    time_ns: int
    argv: list[str]
    stem: str  # common first part of the names of its files
    # number of ranks in its group; 1 without a group, 0 if recorded by an older voirkit that did
    # not store it
    world_size: int = 0
    job: str = ""  # a text that all ranks of its job share; empty if not known


class Files(NamedTuple):
    """The files of one process."""

    stem: str  # common first part of the file names, without the folder
    names: str  # path of the ``.names`` file
    segments: list[str]  # paths of the segments, by ascending number
    dropped: str | None  # path of the ``.dropped`` file, if there is one


def files(folder: str, ranks: Collection[int] | None = None) -> list[Files]:
    """Return the files of each process that recorded into a run directory, sorted by stem; empty
    without a recording.

    Args:
        folder: The run directory.
        ranks: Only files with one of these ranks in their names; None for all.
    """
    where = layout.folder_of(folder)
    try:
        listed = os.listdir(where)
    except (FileNotFoundError, NotADirectoryError):
        return []
    if ranks is not None:
        listed = [name for name in listed if rank_of(name) in ranks]
    segments: dict[str, list[str]] = {}
    stems = []
    for name in sorted(listed):
        if name.endswith(".seg"):
            stem = name.rpartition("-")[0]
            segments.setdefault(stem, []).append(f"{where}/{name}")
        elif name.endswith(".names"):
            stems.append(name.removesuffix(".names"))
    result = []
    for stem in sorted(stems):
        dropped = f"{where}/{stem}.dropped" if f"{stem}.dropped" in listed else None
        in_order = sorted(segments.get(stem, []), key=_segment_number)
        result.append(Files(stem, f"{where}/{stem}.names", in_order, dropped))
    return result


class Source(NamedTuple):
    """The metadata of one process: what its files contain apart from records."""

    # derived from the file name, with clocks of 0, if ``.names`` has no valid header
    process: Process
    threads: dict[int, str]  # names of threads by native id
    dropped: dict[str, int]  # numbers of records that were not written, by ``category.name``
    unknown: int = 0  # number of skipped records, whose name or thread is not known


class Piece(NamedTuple):
    """A part of the records of some processes, as columns."""

    # arrays of equal length: ``start_ns, duration_ns, value, name, args, process, tid``
    columns: dict[str, Array]
    names: list[Name]  # the names of records; the column ``name`` has indices into this list
    # JSON of the arguments, by the id in the column ``args``; a missing id means no arguments
    arguments: dict[int, bytes]


class Pieces:
    """An iterable over the records of some processes, in pieces. Iterate over it only once.

    Args:
        files: The files of the processes.
        most: The maximum number of records in a piece.
    """

    def __init__(self, files: Sequence[Files], most: int = MOST) -> None:
        self._files = files
        self._most = most
        # metadata of the processes read so far; the column ``process`` has indices into this list
        self.sources: list[Source] = []
        # number of records up to the last one read in each segment, by path
        self.read: dict[str, int] = {}
        # fault of each damaged file, by path: the file cannot be read, is not a segment, or is
        # shorter than when its process ended
        self.damaged: dict[str, str] = {}

    def __iter__(self) -> Iterator[Piece]:
        codes: dict[Name, int] = {}
        arguments: dict[int, bytes] = {}
        waiting: list[dict[str, Array]] = []
        count = base = 0
        for number, process_files in enumerate(self._files):
            # Get the sizes of segments first and the names second: a record's name is always
            # written before the record, so the names of all records within these sizes are then in
            # the file.
            extents = [self._extent_of(path) for path in process_files.segments]
            tables = Tables(process_files.names)
            self._note_cut_short(process_files.segments, tables)
            self.sources.append(_source(process_files, tables))
            name_of = _codes(tables.names, codes)
            last = max(tables.arguments, default=0)
            for path, extent in zip(process_files.segments, extents, strict=True):
                self.read[path] = 0
                first = 0
                tid = -1
                while first < extent:
                    raw = _records(path, first, min(self._most - count, extent - first))
                    if not len(raw):
                        break  # the process has truncated the segment to its used size
                    if n_written := count_written(raw):
                        self.read[path] = first + n_written
                    elif len(raw) > layout.LARGEST_WINDOW // layout.RECORD_BYTES:
                        # ``raw`` is longer than any window, and has no records. Since records are
                        # written one after the other, the rest of the file, of whatever size, has
                        # none.
                        break
                    first += len(raw)
                    part, tid = self._columns_of(raw, tid, name_of)
                    part["process"] = np.full(len(part["tid"]), number, np.uint32)
                    for local in _numbers(part["args"], last):
                        if local in tables.arguments:
                            arguments[base + local] = tables.arguments[local]
                    part["args"] += base
                    waiting.append(part)
                    count += len(part["tid"])
                    if count >= self._most:
                        yield Piece(_concatenate(waiting), list(codes), arguments)
                        waiting, arguments, count = [], {}, 0
            base += last + 1
        if count:
            yield Piece(_concatenate(waiting), list(codes), arguments)

    def in_one(self) -> Piece:
        """Return all records as one piece. The caller must know that they fit into memory, and that
        ``most`` is large enough."""
        pieces: list[Piece] = list(self)
        if pieces:
            return pieces[0]
        return Piece({key: np.zeros(0, np.int64) for key in _COLUMNS}, [], {})

    def _note_cut_short(self, segments: Sequence[str], tables: Tables) -> None:
        for path in segments:
            if path not in self.damaged and _is_cut_short(path, tables.ends):
                self.damaged[path] = _CUT_SHORT

    def _extent_of(self, path: str) -> int:
        """Return the number of records that a segment has room for. If it cannot be read, return 0
        and store the reason in ``damaged``."""
        try:
            return _extent(path)
        except ValueError:
            self.damaged[path] = "is damaged; what is in it is lost"
        except OSError as exc:
            self.damaged[path] = f"cannot be read ({exc.strerror}); what is in it is missing"
        return 0

    def _columns_of(self, raw: Array, tid: int, name_of: Array) -> tuple[dict[str, Array], int]:
        """Convert raw records of one segment to columns, without those whose name or thread is not
        known.

        Args:
            raw: Consecutive records, of type ``RECORD_TYPE``.
            tid: The thread of the first record, unless a record names another; -1 if not known.
            name_of: The code of each name id of the process; -1 for an unknown id.

        Returns:
            (columns, thread of the records that follow).
        """
        raw, tids, tid = by_thread(raw, tid)
        code = name_of[np.minimum(raw["name"], len(name_of) - 1)]
        is_known = (tids >= 0) & (code >= 0)
        if not is_known.all():
            source = self.sources[-1]
            unknown = source.unknown + int(np.count_nonzero(~is_known))
            self.sources[-1] = source._replace(unknown=unknown)
            raw, tids, code = raw[is_known], tids[is_known], code[is_known]
        columns = {
            "start_ns": raw["start_ns"],
            "duration_ns": raw["duration_ns"],
            "value": raw["value"],
            "name": code.astype(np.uint32),
            "args": raw["args"].astype(np.int64),
            "tid": tids,
        }
        return columns, tid


_CUT_SHORT = "is shorter than when its process ended; what it lacks is missing"
_COLUMNS = ("start_ns", "duration_ns", "value", "name", "args", "process", "tid")


def has_grown(path: str, read: int) -> bool:
    """True if a segment has records beyond the first ``read`` ones."""
    records = _records(path, read, layout.GRANULE // layout.RECORD_BYTES)
    return bool(records["name"].any())


def records_in(path: str) -> int:
    """Count the records of a segment; 0 if the file is not a segment."""
    try:
        return len(by_thread(_records(path, 0, _extent(path)), 0)[0])
    except ValueError:
        return 0


def _extent(path: str) -> int:
    """Return the number of records that a segment has room for. Raises ValueError: it is not a
    segment; OSError: it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            header = file.read(layout.HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return 0  # compaction has removed the segment in the meantime
    if len(header) < layout.HEADER_BYTES or not any(header):
        return 0  # the process was killed before it wrote the header
    if not header.startswith(layout.MAGIC):
        raise ValueError(path)
    return (size - layout.HEADER_BYTES) // layout.RECORD_BYTES


def _is_cut_short(path: str, ends: dict[str, int]) -> bool:
    """True if a segment is shorter than when its process ended.

    Args:
        ends: The size of each segment in bytes, by number, that the process wrote at its end.
    """
    try:
        # open the file: on network file systems, stat by path may return values a minute old
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return False
    return size < ends.get(str(_segment_number(path)), 0)


def _records(path: str, first: int, count: int) -> Array:
    try:
        with open(path, "rb", buffering=0) as file:
            return read_records(file, first, count)
    except FileNotFoundError:
        return np.empty(0, RECORD_TYPE)


def read_records(file: FileIO, first: int, count: int) -> Array:
    """Read up to ``count`` records of a segment, from the index ``first`` on. Unlike
    ``np.fromfile``, this does not take a partial read for the end of the file."""
    file.seek(layout.HEADER_BYTES + first * layout.RECORD_BYTES)
    raw = np.empty(count * layout.RECORD_BYTES, np.uint8)
    view = memoryview(raw.data)
    n_bytes = 0
    while n_bytes < len(raw):
        more = file.readinto(view[n_bytes:])
        if not more:
            break
        n_bytes += more
    whole_bytes = n_bytes - n_bytes % layout.RECORD_BYTES
    return raw[:whole_bytes].view(RECORD_TYPE)


def count_written(records: Array) -> int:
    """Return the number of records up to the last one that has been written."""
    if len(records) and records["name"][-1]:
        return len(records)
    indices = np.flatnonzero(records["name"])
    return int(indices[-1]) + 1 if len(indices) else 0


def by_thread(records: Array, tid: int) -> tuple[Array, Array, int]:
    """Assign records of a segment to threads.

    Args:
        records: Consecutive records, some of which name the thread of those that follow.
        tid: The thread of the first record, unless a record names another.

    Returns:
        (records without those that name a thread, thread of each record, thread of the records that
        follow).
    """
    if len(records) and records["name"][0] == layout.THREAD:
        tid = int(records["value"][0])
        records = records[1:]
    name = records["name"]
    markers = np.flatnonzero(name == layout.THREAD)
    if not len(markers) and name.all():
        return records, np.full(len(records), tid), tid
    owners: Array = np.concatenate(([tid], records["value"][markers]))
    borders = np.concatenate(([0], markers, [len(records)]))
    tids = np.repeat(owners, np.diff(borders))
    is_record = (name != layout.THREAD) & (name != 0)
    return records[is_record], tids[is_record], int(owners[-1])


class Tables:
    """The parsed contents of a ``.names`` file, which may still grow.

    Args:
        path: The file.
        is_kept: Called with the JSON of arguments; returns whether to keep them. All are kept by
            default.
    """

    def __init__(self, path: str, is_kept: Callable[[bytes], bool] | None = None) -> None:
        self.header: dict[str, Any] = {}
        self.names: dict[int, Name] = {}
        self.arguments: dict[int, bytes] = {}
        self.threads: dict[int, str] = {}
        # size of each segment in bytes, by number; empty until the process ends its recording
        self.ends: dict[str, int] = {}
        # rank and world size, if the process learned them after its first record
        self._group: dict[str, Any] = {}
        self._path = path
        self._is_kept = is_kept
        self._position = 0
        self.more()

    def more(self) -> None:
        """Read the lines added to the file since the last call."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                file.seek(self._position)
                text = file.readall()
        except FileNotFoundError:
            return
        end = text.rfind(b"\n") + 1  # a last line without line break is not complete yet
        self._position += end
        if end:
            self._add_lines(text[:end].split(b"\n")[:-1])

    def _add_lines(self, lines: list[bytes]) -> None:
        prefix = f'{{"{layout.ARGUMENTS}":'.encode()
        other_lines = []
        for line in lines:
            if not line.startswith(prefix):
                other_lines.append(line)
                continue
            number, _, text = line[len(prefix) : -1].partition(b',"arguments":')
            if not number.isdigit() or len(number) > 10:
                continue  # the line is damaged
            if self._is_kept is None or self._is_kept(text):
                self.arguments[int(number)] = text
        for data in _decode(other_lines):
            self._add(data)

    def _add(self, data: dict[str, Any]) -> None:
        if layout.NAME in data:
            name = _read_name(data)
            if name is not None:
                self.names[data[layout.NAME]] = name
        elif layout.THREAD_NAME in data:
            tid = data[layout.THREAD_NAME]
            if _is_number_below(tid, 1 << 63):
                self.threads[tid] = str(data.get("thread"))
        elif "pid" in data:
            self.header = {**data, **self._group}
        elif isinstance(data.get(layout.ENDS), dict):
            ends = data[layout.ENDS]
            self.ends = {number: end for number, end in ends.items() if isinstance(end, int)}
        elif layout.GROUP in data:
            self._group = {"rank": data[layout.GROUP], "world_size": data.get("world_size")}
            self.header.update(self._group)

    def process(self, stem: str) -> Process:
        header = self.header
        clocks = header.get("clocks")
        if not isinstance(clocks, dict):
            clocks = {}
        world_size = header.get("world_size", 0)
        return Process(
            header.get("pid", 0),
            header.get("ppid", 0),
            header.get("rank", 0),
            header.get("host", ""),
            header.get("process", ""),
            clocks.get("perf_counter_ns", 0),
            clocks.get("time_ns", 0),
            header.get("argv", []),
            stem,
            world_size if isinstance(world_size, int) else 0,
            str(header.get("job", "")),
        )


def _read_name(data: dict[str, Any]) -> Name | None:
    """Return the name in a parsed line of a ``.names`` file; None if the line is damaged."""
    kind = data.get("kind")
    category = data.get("category")
    name = data.get("name")
    value_key = data.get("value")
    if type(kind) is not str or type(category) is not str or type(name) is not str:
        return None
    if value_key is not None and type(value_key) is not str:
        return None
    if not _is_number_below(data[layout.NAME], _MOST_NAMES) or not _KIND.fullmatch(kind):
        return None
    return Name(kind, category, name, value_key)


def _is_number_below(value: object, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _decode(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            yield data


def _dropped(path: str) -> list[tuple[int, int]]:
    try:
        counts = np.fromfile(path, "<u8", _MOST_NAMES)
    except FileNotFoundError:
        return []
    return [(int(number), int(counts[number])) for number in np.flatnonzero(counts)]


# upper bounds, exclusive, of pid, parent's pid, rank and the two clocks in the columns of a trace
_ENDS = (1 << 63, 1 << 63, 1 << 31, 1 << 63, 1 << 63)
_TYPES = (int, int, int, str, str, int, int, list)


def _source(files: Files, tables: Tables) -> Source:
    process = tables.process(files.stem)
    if not tables.header or not _is_whole(process):
        host, rank, pid = of_stem(files.stem)
        process = Process(pid, 0, rank, host, "", 0, 0, [], files.stem)
    counts = [] if files.dropped is None else _dropped(files.dropped)
    dropped: dict[str, int] = {}
    for local, count in counts:
        name = tables.names.get(local)
        if name is None:
            label = "(names beyond what is kept)"
        else:
            label = f"{name.category}.{name.name}"
        dropped[label] = dropped.get(label, 0) + count
    return Source(process, tables.threads, dropped)


def _is_whole(process: Process) -> bool:
    """True if the values from a header have the types and ranges of the columns of a trace."""
    if not all(map(isinstance, process, _TYPES)):
        return False
    numbers = (*process[:3], process.perf_counter_ns, process.time_ns)
    return all(-1 << 31 <= number < end for number, end in zip(numbers, _ENDS, strict=True))


@lru_cache(1 << 14)  # each process has several files, and they are listed many times
def of_stem(stem: str) -> tuple[str, int, int]:
    """Return (host, rank, pid) from a stem ``<host>-r<rank>-<pid>``; 0 for a number that is
    malformed."""
    host, _, pid = stem.rpartition("-")
    host, _, rank = host.rpartition("-r")
    pid = pid.partition(".")[0]
    return host or stem, int(rank) if rank.isdigit() else 0, int(pid) if pid.isdigit() else 0


def rank_of(file: str) -> int:
    """Return the rank in the name of a file of a process; 0 if the name has no rank."""
    stem, _, kind = file.rpartition(".")
    return of_stem(stem.rpartition("-")[0] if kind == "seg" else stem)[1]


def _codes(names: dict[int, Name], codes: dict[Name, int]) -> Array:
    """Return the code of each name id of a process, as an array indexed by name id.

    Args:
        names: The names of the process by name id.
        codes: The codes of names over all processes; new names are added.

    Returns:
        Array of the codes; -1 for an unknown id. The last element, -1, stands for all larger ids.
    """
    code_of = np.full(max(names, default=0) + 2, -1, np.int64)
    for local, name in names.items():
        code_of[local] = codes.setdefault(name, len(codes))
    return code_of


def _numbers(args: Array, last: int) -> list[int]:
    """Return the distinct ids of arguments that occur in ``args``, from 1 to ``last``,
    ascending."""
    # damaged lines can make ``last`` huge: a table of that length might not fit into memory
    if last > len(args) << 8:
        return [int(number) for number in np.unique(args) if 1 <= number <= last]
    occurs = np.zeros(last + 2, bool)
    occurs[np.minimum(args, last + 1)] = True
    indices: list[int] = np.flatnonzero(occurs[1 : last + 1]).tolist()
    return [index + 1 for index in indices]


def _concatenate(parts: list[dict[str, Array]]) -> dict[str, Array]:
    if len(parts) == 1:
        return parts[0]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _segment_number(path: str) -> int:
    number = path.rpartition("-")[2][: -len(".seg")]
    return int(number) if number.isdigit() else 0
