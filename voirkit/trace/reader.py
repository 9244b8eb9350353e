"""Segments as columns: what has been recorded into a folder, while it is recorded, after it, and after the processes were killed.

Files are read, never mapped: a segment that is cut to size at that moment would take the reader with it.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from voirkit.trace import layout

Array = npt.NDArray[Any]

_RECORD = np.dtype([("start_ns", "<i8"), ("duration_ns", "<i8"), ("value", "<i8"), ("args", "<u4"), ("name", "<u4")])
_TYPES = {
    "start_ns": np.int64, "duration_ns": np.int64, "name": np.uint32, "args": np.uint32, "value": np.int64, "process": np.uint32,
    "pid": np.int64, "tid": np.int64, "rank": np.int32,
}  # fmt: skip


class Name(NamedTuple):
    """What a code in the column ``name`` stands for.

    Attributes:
        kind: ``span``, ``mark``, ``counter`` or ``meta``.
        value_key: What a record's number is; None if it says nothing. A counter's is a double.
    """

    kind: str
    category: str
    name: str
    value_key: str | None


class Process(NamedTuple):
    """A process that recorded, and its two clocks, read at the same moment.

    Attributes:
        stem: What the names of its files begin with.
        world_size: Of the group in which it has its rank; 1: of none. 0: it was recorded by a voirkit that did not say.
    """

    pid: int
    ppid: int
    rank: int
    host: str
    name: str
    perf_counter_ns: int
    time_ns: int
    argv: list[str]
    stem: str
    world_size: int = 0


class Files(NamedTuple):
    """The files of one process."""

    stem: str
    names: str
    segments: list[str]
    dropped: str | None


class Columns(dict[str, Array]):
    """Records as arrays of equal length: ``start_ns, duration_ns, name, args, value, process, pid, tid, rank``; in the order of the files.

    Attributes:
        names: What ``name`` counts.
        arguments: What ``args`` counts; the first is empty.
        processes: What ``process`` counts.
        threads: Names of threads by (pid, tid).
        thread_names: The same by (process, tid), which are told apart when hosts share process ids.
        dropped: Records that were not written, by ``category.name``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[Name] = []
        self.arguments: list[dict[str, Any]] = [{}]
        self.processes: list[Process] = []
        self.threads: dict[tuple[int, int], str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.dropped: dict[str, int] = {}

    @property
    def rows(self) -> int:
        """How many records there are."""
        return len(self["start_ns"])


def files(folder: str) -> list[Files]:
    """The files of each process in a run directory; none if nothing was recorded."""
    where = layout.folder_of(folder)
    try:
        found = sorted(os.listdir(where))
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


def read(folder: str, names: Collection[str] | None = None) -> Columns:
    """All records of a run.

    Args:
        folder: The run directory.
        names: Only records of these names.

    Returns:
        The columns. Codes are the same over all processes.
    """
    columns = Columns()
    codes: dict[Name, int] = {}
    argument_codes: dict[bytes, int] = {b"{}": 0}
    parts = []
    for number, own in enumerate(files(folder)):
        # Records first: the lines that they need are there by then.
        records = [record for path in own.segments if (record := _records(path)) is not None]
        tables = _Tables(own.names)
        columns.processes.append(tables.process(own.stem))
        for tid, thread in tables.threads.items():
            columns.threads[columns.processes[-1].pid, tid] = columns.thread_names[number, tid] = thread
        name_of = np.zeros(max(tables.names, default=0) + 1, np.uint32)
        for local, name in tables.names.items():
            code = codes.setdefault(name, len(codes))
            name_of[local] = code
        known = sorted(tables.arguments)
        argument_of = np.zeros(len(known) + 1, np.uint32)
        for place, local in enumerate(known):
            text = tables.arguments[local]
            code = argument_codes.setdefault(text, len(argument_codes))
            if code == len(columns.arguments):
                columns.arguments.append(_arguments(text))
            argument_of[place + 1] = code
        if own.dropped is not None:
            for local, count in _dropped(own.dropped):
                found = tables.names.get(local)
                label = f"{found.category}.{found.name}" if found is not None else "(names beyond what is kept)"
                columns.dropped[label] = columns.dropped.get(label, 0) + count
        keep = None
        if names is not None:
            keep = np.zeros(len(name_of), bool)
            for local, name in tables.names.items():
                keep[local] = name.name in names
        parts += [_Part(number, record, name_of, np.array(known, np.uint32), argument_of, keep) for record in records]
    columns.names = list(codes)
    _fill(columns, parts)
    return columns


class _Part(NamedTuple):
    """Records of one segment, and what its process's numbers are."""

    process: int
    records: Array
    name_of: Array
    known: Array  # numbers of arguments, sorted
    argument_of: Array  # the code of each, after that of none
    keep: Array | None


def _records(path: str) -> Array | None:
    """A segment's records as far as they are written, with those that say whose the next are; None if it is none."""
    try:
        with open(path, "rb", buffering=0) as file:
            header = file.read(layout.HEADER_BYTES)
            if len(header) < layout.HEADER_BYTES or not header.startswith(layout.MAGIC):
                return None  # killed before it was begun
            raw = _rest(file)
    except FileNotFoundError:
        return None  # it has been put to rest meanwhile
    records = raw[: len(raw) - len(raw) % layout.RECORD_BYTES].view(_RECORD)
    return records[: _written(records)]


def _rest(file: io.FileIO) -> Array:
    """What follows in a file, as far as it goes now; ``np.fromfile`` takes a read that was cut short for the end."""
    raw = np.empty(max(os.fstat(file.fileno()).st_size - layout.HEADER_BYTES, 0), np.uint8)
    view, had = memoryview(raw.data), 0
    while had < len(raw) and (more := file.readinto(view[had:])):
        had += more
    return raw[:had]


def _written(records: Array) -> int:
    """How many records there are, up to the last that is written."""
    end = len(records)
    while end:
        begin = max(end - (layout.GRANULE // layout.RECORD_BYTES), 0)
        found = np.flatnonzero(records["name"][begin:end])
        if len(found):
            return begin + int(found[-1]) + 1
        end = begin
    return 0


def _fill(columns: Columns, parts: list[_Part]) -> None:
    """Put the parts one after the other."""
    chosen = [_chosen(part) for part in parts]
    total = sum(sum(end - begin for begin, end, _ in runs) if mask is None else int(mask.sum()) for mask, runs in chosen)
    for key, kind in _TYPES.items():
        columns[key] = np.empty(total, kind)
    at = 0
    for part, (mask, runs) in zip(parts, chosen, strict=True):
        process = columns.processes[part.process]
        for begin, end, tid in runs:
            records = part.records[begin:end]
            if mask is not None:
                records = records[mask[begin:end]]
            to = slice(at, at + len(records))
            at = to.stop
            for key in ("start_ns", "duration_ns", "value"):
                columns[key][to] = records[key]
            np.take(part.name_of, records["name"], out=columns["name"][to], mode="clip")
            columns["args"][to] = _argument_codes(part, records["args"])
            columns["process"][to] = part.process
            columns["pid"][to] = process.pid
            columns["rank"][to] = process.rank
            columns["tid"][to] = tid


def _chosen(part: _Part) -> tuple[Array | None, list[tuple[int, int, int]]]:
    """Which records are wanted (None: all of the runs), and the runs of one thread's records: begin, end, native id."""
    name = part.records["name"]
    markers = np.flatnonzero(name == layout.THREAD)
    tids = part.records["value"][markers].tolist()
    places = markers.tolist()
    runs = [(place + 1, end, tid) for place, end, tid in zip(places, [*places, len(name)][1:], tids, strict=True)]
    if part.keep is None and not (name == 0).any():
        return None, runs
    mask = (name != 0) & (name != layout.THREAD)
    if len(places):
        mask[: places[0]] = False
    if part.keep is not None:
        mask &= part.keep[np.minimum(name, len(part.keep) - 1)]
    return mask, runs


def _argument_codes(part: _Part, args: Array) -> Array:
    if not len(part.known) or not args.any():
        return np.zeros(len(args), np.uint32)
    last = int(part.known[-1])
    if last <= 4 * len(part.known) + 1024:  # nearly all numbers are there
        table = np.zeros(last + 2, np.uint32)
        table[part.known] = part.argument_of[1:]
        return table[np.minimum(args, last + 1)]
    place = np.minimum(np.searchsorted(part.known, args), len(part.known) - 1)
    return np.where(part.known[place] == args, part.argument_of[place + 1], 0).astype(np.uint32)


class _Tables:
    """The lines of a ``.names``.

    Args:
        path: The file.
        wanted: Which arguments (JSON) are kept; all by default.
    """

    def __init__(self, path: str, wanted: Callable[[bytes], bool] | None = None) -> None:
        self.header: dict[str, Any] = {}
        self.names: dict[int, Name] = {}
        self.arguments: dict[int, bytes] = {}
        self.threads: dict[int, str] = {}
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
                if number.isdigit() and (self._wanted is None or self._wanted(text)):  # if it is no number, the line is damaged
                    self.arguments[int(number)] = text
            else:
                others.append(line)
        for data in _decoded(others):
            if layout.NAME in data:
                name = Name(*(data.get(key) for key in ("kind", "category", "name", "value")))  # type: ignore[arg-type] # seen below
                if type(data[layout.NAME]) is int and all(type(part) is str for part in name[:3]):
                    self.names[data[layout.NAME]] = name
            elif layout.THREAD_NAME in data:
                self.threads[data[layout.THREAD_NAME]] = str(data.get("thread"))
            elif "pid" in data:
                self.header = {**data, **self._group}
            elif layout.GROUP in data:
                self._group = {"rank": data[layout.GROUP], "world_size": data.get("world_size")}
                self.header.update(self._group)

    def process(self, stem: str) -> Process:
        header = self.header
        clocks = header.get("clocks", {})
        world_size = header.get("world_size", 0)
        return Process(
            header.get("pid", 0), header.get("ppid", 0), header.get("rank", 0), header.get("host", ""), header.get("process", ""),
            clocks.get("perf_counter_ns", 0), clocks.get("time_ns", 0), header.get("argv", []), stem,
            world_size if isinstance(world_size, int) else 0,
        )  # fmt: skip


def _decoded(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            yield data


def _arguments(text: bytes) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    for key, value in data.items():
        if isinstance(value, dict):
            data[key] = int(value["hex"], 16)
    return data


def _dropped(path: str) -> list[tuple[int, int]]:
    try:
        counts = np.fromfile(path, "<u8")
    except FileNotFoundError:
        return []
    return [(int(number), int(counts[number])) for number in np.flatnonzero(counts)]


def _number(path: str) -> int:
    number = path.rpartition("-")[2][: -len(".seg")]
    return int(number) if number.isdigit() else 0
