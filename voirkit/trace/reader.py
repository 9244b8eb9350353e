"""Segments as columns: what has been recorded into a folder, while it is recorded, after it, and after the processes were killed.

They are read a piece at a time, for what must not hold a whole recording in memory. Files are read, never mapped: a segment that is cut to
size at that moment would take the reader with it. What the lines and records are is said in ``layout``.
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

RECORD_TYPE = np.dtype([("start_ns", "<i8"), ("duration_ns", "<i8"), ("value", "<i8"), ("args", "<u4"), ("name", "<u4")])
MOST = 1 << 22  # records of a piece: 128 MiB raw, twice that as columns


_MOST_NAMES = 1 << 20  # numbers of a process's; many more than ``names`` gives
# Kinds become names of files and folders when a trace is compacted.
_KIND = re.compile(r"[\w.-]{1,64}")


class Name(NamedTuple):
    """What a code in the column ``name`` stands for."""

    kind: str  # ``span``, ``mark``, ``counter`` or ``meta``
    category: str
    name: str
    value_key: str | None  # what a record's number is; None if it says nothing. A counter's is a double.


class Process(NamedTuple):
    """A process that recorded, and its two clocks, read at the same moment."""

    pid: int
    ppid: int
    rank: int
    host: str
    name: str
    perf_counter_ns: int
    time_ns: int
    argv: list[str]
    stem: str  # what the names of its files begin with
    world_size: int = 0  # of the group in which it has its rank; 1: of none. 0: it was recorded by a voirkit that did not say.
    job: str = ""  # a word that all ranks of its job share; empty if there is none


class Files(NamedTuple):
    """The files of one process."""

    stem: str
    names: str
    segments: list[str]
    dropped: str | None


def files(folder: str, ranks: Collection[int] | None = None) -> list[Files]:
    """The files of each process in a run directory, or of those of some ranks; none if nothing was recorded."""
    where = layout.folder_of(folder)
    try:
        found = sorted(name for name in os.listdir(where) if ranks is None or rank_of(name) in ranks)
    except (FileNotFoundError, NotADirectoryError):
        return []
    segments: dict[str, list[str]] = {}
    for name in found:
        if name.endswith(".seg"):
            segments.setdefault(name.rpartition("-")[0], []).append(f"{where}/{name}")
    result = []
    for stem in sorted(name[: -len(".names")] for name in found if name.endswith(".names")):
        dropped = f"{where}/{stem}.dropped" if f"{stem}.dropped" in found else None
        result.append(Files(stem, f"{where}/{stem}.names", sorted(segments.get(stem, []), key=_number), dropped))
    return result


class Source(NamedTuple):
    """What the files of one process say beside its records."""

    process: Process  # if its names have no header, only what its files are called is known of it, and no clock
    threads: dict[int, str]  # names of threads by native id
    dropped: dict[str, int]  # records that were not written, by ``category.name``
    unknown: int = 0  # how many records were left out, as what they stand for is not known


class Piece(NamedTuple):
    """Some records."""

    columns: dict[str, Array]  # arrays of equal length: ``start_ns, duration_ns, value, name, args, process, tid``
    names: list[Name]  # what ``name`` counts
    arguments: dict[int, bytes]  # JSON of the arguments behind the numbers in ``args``; a number that is not there stands for none


class Pieces:
    """The records of some processes; to be iterated over once.

    Args:
        files: Those of the processes.
        most: How many records a piece may have.
    """

    def __init__(self, files: Sequence[Files], most: int = MOST) -> None:
        self._files, self._most = files, most
        self.sources: list[Source] = []  # what is known of each process by now; ``process`` in the pieces counts them
        self.read: dict[str, int] = {}  # where in each segment the last record ends that was read, in records, by path
        # what is wrong with segments, by path: they cannot be read, are none, or are shorter than when their process ended
        self.damaged: dict[str, str] = {}

    def __iter__(self) -> Iterator[Piece]:
        codes: dict[Name, int] = {}
        arguments: dict[int, bytes] = {}
        waiting: list[dict[str, Array]] = []
        count = base = 0
        for number, own in enumerate(self._files):
            # How far the records go is seen first: the lines that they need are there by then.
            extents = [self._extent(path) for path in own.segments]
            tables = Tables(own.names)
            self.damaged |= {path: _CUT_SHORT for path in own.segments if path not in self.damaged and _is_cut_short(path, tables.ends)}
            self.sources.append(_source(own, tables))
            name_of = _codes(tables.names, codes)
            last = max(tables.arguments, default=0)
            for path, extent in zip(own.segments, extents, strict=True):
                self.read[path], at, tid = 0, 0, -1
                while at < extent:
                    raw = _records(path, at, min(self._most - count, extent - at))
                    if not len(raw):
                        break  # it has been cut to size
                    if end := count_written(raw):
                        self.read[path] = at + end
                    elif len(raw) > layout.LARGEST_WINDOW // layout.RECORD_BYTES:
                        break  # records are written one behind the other: a file of any size may have none
                    at += len(raw)
                    part, tid = self._decoded(raw, tid, name_of)
                    part["process"] = np.full(len(part["tid"]), number, np.uint32)
                    for local in _numbers(part["args"], last):
                        if local in tables.arguments:
                            arguments[base + local] = tables.arguments[local]
                    part["args"] += base
                    waiting.append(part)
                    count += len(part["tid"])
                    if count >= self._most:
                        yield Piece(_joined(waiting), list(codes), arguments)
                        waiting, arguments, count = [], {}, 0
            base += last + 1
        if count:
            yield Piece(_joined(waiting), list(codes), arguments)

    def in_one(self) -> Piece:
        """All records, where it is known that they fit into memory."""
        found = [*self]
        return found[0] if found else Piece({key: np.zeros(0, np.int64) for key in _COLUMNS}, [], {})

    def _extent(self, path: str) -> int:
        """How many records a segment has room for; what is wrong with it is noted."""
        try:
            return _extent(path)
        except ValueError:
            self.damaged[path] = "is damaged; what is in it is lost"
        except OSError as exc:
            self.damaged[path] = f"cannot be read ({exc.strerror}); what is in it is missing"
        return 0

    def _decoded(self, raw: Array, tid: int, name_of: Array) -> tuple[dict[str, Array], int]:
        """The columns of records of one segment, which begin with those of a thread, and the thread of those behind them."""
        raw, tids, tid = by_thread(raw, tid)
        code = name_of[np.minimum(raw["name"], len(name_of) - 1)]
        kept = (tids >= 0) & (code >= 0)
        if not kept.all():
            self.sources[-1] = self.sources[-1]._replace(unknown=self.sources[-1].unknown + int(np.count_nonzero(~kept)))
            raw, tids, code = raw[kept], tids[kept], code[kept]
        columns = {key: raw[key] for key in ("start_ns", "duration_ns", "value")}
        return columns | {"name": code.astype(np.uint32), "args": raw["args"].astype(np.int64), "tid": tids}, tid


_CUT_SHORT = "is shorter than when its process ended; what it lacks is missing"
_COLUMNS = ("start_ns", "duration_ns", "value", "name", "args", "process", "tid")


def has_grown(path: str, read: int) -> bool:
    """Whether a segment has records behind those that have been read."""
    return bool(_records(path, read, layout.GRANULE // layout.RECORD_BYTES)["name"].any())


def records_in(path: str) -> int:
    """How many records a segment has; 0 if it is none."""
    try:
        return len(by_thread(_records(path, 0, _extent(path)), 0)[0])
    except ValueError:
        return 0


def _extent(path: str) -> int:
    """How many records a segment has room for. Raises ValueError: it is no segment; OSError: it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            header = file.read(layout.HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return 0  # it has been put to rest meanwhile
    if len(header) < layout.HEADER_BYTES or not any(header):
        return 0  # whoever made it was killed before it was begun
    if not header.startswith(layout.MAGIC):
        raise ValueError(path)
    return (size - layout.HEADER_BYTES) // layout.RECORD_BYTES


def _is_cut_short(path: str, ends: dict[str, int]) -> bool:
    """Whether a segment lacks something of what its process had written when it ended; asked when its lines have been read."""
    try:
        with open(path, "rb") as file:  # over a network stat may be a minute old, but for a file that is opened
            return os.fstat(file.fileno()).st_size < ends.get(str(_number(path)), 0)
    except OSError:
        return False


def _records(path: str, first: int, count: int) -> Array:
    try:
        with open(path, "rb", buffering=0) as file:
            return read_records(file, first, count)
    except FileNotFoundError:
        return np.empty(0, RECORD_TYPE)


def read_records(file: FileIO, first: int, count: int) -> Array:
    """Records of a segment, as many as there are; ``np.fromfile`` would take a read that was cut short for the end."""
    file.seek(layout.HEADER_BYTES + first * layout.RECORD_BYTES)
    raw = np.empty(count * layout.RECORD_BYTES, np.uint8)
    view, had = memoryview(raw.data), 0
    while had < len(raw) and (more := file.readinto(view[had:])):
        had += more
    return raw[: had - had % layout.RECORD_BYTES].view(RECORD_TYPE)


def count_written(records: Array) -> int:
    """How many records there are, up to the last that is written."""
    if len(records) and records["name"][-1]:
        return len(records)
    found = np.flatnonzero(records["name"])
    return int(found[-1]) + 1 if len(found) else 0


def by_thread(records: Array, tid: int) -> tuple[Array, Array, int]:
    """Records without those that name a thread, the thread of each, and that of the next."""
    if len(records) and records["name"][0] == layout.THREAD:
        records, tid = records[1:], int(records["value"][0])
    name = records["name"]
    markers = np.flatnonzero(name == layout.THREAD)
    if not len(markers) and name.all():
        return records, np.full(len(records), tid), tid
    owners: Array = np.concatenate(([tid], records["value"][markers]))
    tids = np.repeat(owners, np.diff(np.concatenate(([0], markers, [len(records)]))))
    kept = (name != layout.THREAD) & (name != 0)
    return records[kept], tids[kept], int(owners[-1])


class Tables:
    """The lines of a ``.names``.

    Args:
        wanted: Which arguments (JSON) are kept; all by default.
    """

    def __init__(self, path: str, wanted: Callable[[bytes], bool] | None = None) -> None:
        self.header: dict[str, Any] = {}
        self.names: dict[int, Name] = {}
        self.arguments: dict[int, bytes] = {}
        self.threads: dict[int, str] = {}
        self.ends: dict[str, int] = {}  # bytes of the segments, by number, of a process that has ended its recording
        self._group: dict[str, Any] = {}  # a rank that the process learnt after its first record
        self._path, self._wanted, self._at = path, wanted, 0
        self.more()

    def more(self) -> None:
        """Take in the lines that have come since the last time."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                file.seek(self._at)
                text = file.readall()
        except FileNotFoundError:
            return
        end = text.rfind(b"\n") + 1  # what has no line break behind it was not written whole
        self._at += end
        if end:
            self._take(text[:end].split(b"\n")[:-1])

    def _take(self, lines: list[bytes]) -> None:
        begin = f'{{"{layout.ARGUMENTS}":'.encode()
        others = []
        for line in lines:
            if line.startswith(begin):
                number, _, text = line[len(begin) : -1].partition(b',"arguments":')
                # Else the line is damaged.
                if number.isdigit() and len(number) < 11 and (self._wanted is None or self._wanted(text)):
                    self.arguments[int(number)] = text
            else:
                others.append(line)
        for data in _decoded(others):
            if layout.NAME in data:
                name = Name(*(data.get(key) for key in ("kind", "category", "name", "value")))  # type: ignore[arg-type] # seen below
                whole = all(type(part) is str for part in name[:3]) and type(name.value_key) in (str, type(None))
                if whole and _is_whole(data[layout.NAME], _MOST_NAMES) and _KIND.fullmatch(name.kind):
                    self.names[data[layout.NAME]] = name
            elif layout.THREAD_NAME in data:
                if _is_whole(data[layout.THREAD_NAME], 1 << 63):
                    self.threads[data[layout.THREAD_NAME]] = str(data.get("thread"))
            elif "pid" in data:
                self.header = {**data, **self._group}
            elif isinstance(ends := data.get(layout.ENDS), dict):
                self.ends = {number: end for number, end in ends.items() if isinstance(end, int)}
            elif layout.GROUP in data:
                self._group = {"rank": data[layout.GROUP], "world_size": data.get("world_size")}
                self.header.update(self._group)

    def process(self, stem: str) -> Process:
        header = self.header
        clocks = header.get("clocks")
        clocks = clocks if isinstance(clocks, dict) else {}
        world_size = header.get("world_size", 0)
        return Process(
            header.get("pid", 0), header.get("ppid", 0), header.get("rank", 0), header.get("host", ""), header.get("process", ""),
            clocks.get("perf_counter_ns", 0), clocks.get("time_ns", 0), header.get("argv", []), stem,
            world_size if isinstance(world_size, int) else 0, str(header.get("job", "")),
        )  # fmt: skip


def _is_whole(value: object, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _decoded(lines: list[bytes]) -> Iterator[dict[str, Any]]:
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


_ENDS = (1 << 63, 1 << 63, 1 << 31, 1 << 63, 1 << 63)  # of pid, parent's pid, rank and clocks, as tables of a trace hold them


def _source(own: Files, tables: Tables) -> Source:
    process = tables.process(own.stem)
    types = (int, int, int, str, str, int, int, list)
    whole = tables.header and all(map(isinstance, process, types))
    if not whole or not all(-1 << 31 <= number < end for number, end in zip((*process[:3], *process[5:7]), _ENDS, strict=True)):
        host, rank, pid = of_stem(own.stem)
        process = Process(pid, 0, rank, host, "", 0, 0, [], own.stem)
    dropped: dict[str, int] = {}
    for local, count in _dropped(own.dropped) if own.dropped is not None else ():
        found = tables.names.get(local)
        label = f"{found.category}.{found.name}" if found is not None else "(names beyond what is kept)"
        dropped[label] = dropped.get(label, 0) + count
    return Source(process, tables.threads, dropped)


@lru_cache(1 << 14)  # every process has several files, which are listed again and again
def of_stem(stem: str) -> tuple[str, int, int]:
    """(host, rank, pid) from the name of files; 0 where it has other parts."""
    host, _, pid = stem.rpartition("-")
    host, _, rank = host.rpartition("-r")
    pid = pid.partition(".")[0]
    return host or stem, int(rank) if rank.isdigit() else 0, int(pid) if pid.isdigit() else 0


def rank_of(file: str) -> int:
    """The rank in the name of a file that belongs to a process; 0 where there is none."""
    stem, _, kind = file.rpartition(".")
    return of_stem(stem.rpartition("-")[0] if kind == "seg" else stem)[1]


def _codes(names: dict[int, Name], codes: dict[Name, int]) -> Array:
    """The code of each number of a process's names; -1 where there is none."""
    found = np.full(max(names, default=0) + 2, -1, np.int64)  # the last is that of all numbers beyond
    for local, name in names.items():
        found[local] = codes.setdefault(name, len(codes))
    return found


def _numbers(args: Array, last: int) -> list[int]:
    """The numbers from 1 to the last that occur."""
    if last > len(args) << 8:  # of damaged lines; the table would be larger than memory
        return [int(number) for number in np.unique(args) if 1 <= number <= last]
    seen = np.zeros(last + 2, bool)
    seen[np.minimum(args, last + 1)] = True
    found: list[int] = np.flatnonzero(seen[1 : last + 1]).tolist()
    return [number + 1 for number in found]


def _joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    return parts[0] if len(parts) == 1 else {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _number(path: str) -> int:
    number = path.rpartition("-")[2][: -len(".seg")]
    return int(number) if number.isdigit() else 0
