"""Lists the files of a run's trace, segments and compacted ones, and reads segments without DuckDB.

Compacted files are ``trace/kind=<kind>/rank=<rank>/<host>-<n>.parquet`` with records, and
``trace/processes/<host>-r<rank>-<n>.jsonl`` with descriptions of processes. A reader must count
each record exactly once, even during a compaction:

- A compaction writes drafts into a folder ``trace/settle-r<rank>.<word>.tmp``.
- When the drafts are complete, it writes a journal, ``trace/settle-r<rank>.json``. From then on the
  drafts count, and the segments do not.
- It moves the drafts to their final paths, removes the segments, and deletes the journal.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from voirkit.trace.layout import BATCH_KIND, DOUBLES, folder_of
from voirkit.trace.reader import (
    Array,
    Files,
    Name,
    Piece,
    Pieces,
    Source,
    files,
    rank_of,
    records_in,
)

_JOURNAL = re.compile(r"settle-r(\d+)\.json")
# The paths that a journal may contain. A journal tells which files to move and remove, and the run
# directory may come from another user. So only files that a compaction handles are allowed, and
# none outside of the trace's folder.
_DRAFT = re.compile(r"settle-r\d+\.[^/]+\.tmp/[^/]+\.(parquet|jsonl)")
_PLACE = re.compile(r"(kind=[^/]+/rank=\d+/[^/]+\.parquet|processes/[^/]+\.jsonl)")
_REMOVED = re.compile(r"[^/]+\.(names|seg|dropped)")


class Journal(NamedTuple):
    """The file operations that complete a compaction. Paths are relative to the trace's folder."""

    move: list[tuple[str, str]]  # (draft, final path)
    remove: list[str]  # files of processes whose records are in the drafts


class Layout(NamedTuple):
    """The files of a trace, as they are at one moment."""

    spans: list[str]  # Parquet files with records
    processes: list[str]  # JSON-lines files that describe the processes of these records
    segments: list[Files]  # files of each process that has records in segments
    orphans: list[str]  # segments without a ``.names`` file


def ranks_of(run: str) -> list[int]:
    """Return the ranks in the names of a trace's files, ascending. A process that learns its rank
    late keeps its file names, so its real rank may differ. Raises OSError: the folder cannot be
    read."""
    folder = folder_of(run)
    names = _listed(folder)
    ranks = {
        rank_of(name)
        for name in (*names, *_listed(f"{folder}/processes"))
        if name.endswith((".names", ".seg", ".jsonl"))
    }
    ranks.update(_journals_in(names).values())
    for name in names:
        if name.startswith("kind="):
            rank_names = (rank.removeprefix("rank=") for rank in _listed(f"{folder}/{name}"))
            ranks.update(int(rank) for rank in rank_names if rank.isdigit())
    return sorted(ranks)


def _journals_in(names: Iterable[str]) -> dict[str, int]:
    """Return the journals among file names, with the rank of each."""
    matches = ((name, _JOURNAL.fullmatch(name)) for name in names)
    return {name: int(match[1]) for name, match in matches if match}


def origins(run: str) -> list[Origin]:
    """Return the origins of the processes that wrote a trace, without reading records. Damaged
    files are skipped."""
    folder = folder_of(run)
    paths = [process.names for process in files(run)]
    paths += [f"{folder}/processes/{name}" for name in _listed(f"{folder}/processes")]
    collected = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in [file.readline()] if path.endswith(".names") else file:
                    collected.append(_origin(json.loads(line)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return collected


def _origin(process: Any) -> Origin:
    job = str(process.get("job", "")).strip("/")
    return Origin(int(process["rank"]), int(process.get("world_size", 0)), job)


class Origin(NamedTuple):
    """The rank and job of a process when it began to record."""

    rank: int
    world_size: int  # 0 if not known
    job: str  # a text that all ranks of one job share, and no other job; empty if not known


def uncompacted_ranks(run: str) -> list[int]:
    """Return the ranks, ascending, that have records in segments or files left behind by a process
    that was killed while compacting."""
    names = _listed(folder_of(run))
    ranks = {rank_of(name) for name in names if name.endswith(".names")}
    for name in names:
        match = re.match(r"settle-r(\d+)\.", name)
        if match:
            ranks.add(int(match[1]))
    return sorted(ranks)


def layout(run: str, ranks: Collection[int] | None = None) -> Layout:
    """Return the current files of a run's trace.

    Args:
        ranks: Only files of these ranks; None for all.

    Raises:
        OSError: The folder cannot be read.
    """
    folder = folder_of(run)
    names = _listed(folder)

    def is_wanted(rank: int) -> bool:
        return ranks is None or rank in ranks

    removed: set[str] = set()
    compacted: set[str] = set()
    drafts: list[str] = []
    for name, rank in _journals_in(names).items():
        journal = read_journal(f"{folder}/{name}") if is_wanted(rank) else None
        if journal is not None:
            removed.update(f"{folder}/{path}" for path in journal.remove)
            for draft, place in journal.move:
                compacted.add(f"{folder}/{place}")
                if not os.path.exists(f"{folder}/{place}"):
                    drafts.append(f"{folder}/{draft}")
    for name in names:
        if name.startswith("kind="):
            compacted.update(_files_of_kind(f"{folder}/{name}", ranks))
    for name in _listed(f"{folder}/processes"):
        if is_wanted(rank_of(name)):
            compacted.add(f"{folder}/processes/{name}")
    existing = sorted(filter(os.path.exists, (*compacted, *drafts)))
    processes = [_without(process, removed) for process in files(run, ranks)]
    not_orphans = removed.union(*(process.segments for process in processes))
    segments = {f"{folder}/{name}" for name in names if name.endswith(".seg")}
    unnamed = sorted(segments - not_orphans)
    spans = [path for path in existing if path.endswith(".parquet")]
    descriptions = [path for path in existing if path.endswith(".jsonl")]
    return Layout(
        spans,
        descriptions,
        [process for process in processes if process.names not in removed],
        [path for path in unnamed if is_wanted(rank_of(path))],
    )


def _files_of_kind(folder: str, ranks: Collection[int] | None) -> list[str]:
    """Return the paths of the Parquet files in the folder of one kind of records. ``ranks``: only
    files of these ranks; None for all."""
    rank_names = _listed(folder) if ranks is None else [f"rank={rank}" for rank in ranks]
    paths = []
    for rank_name in rank_names:
        paths += [f"{folder}/{rank_name}/{name}" for name in _listed(f"{folder}/{rank_name}")]
    return paths


def _without(process: Files, removed: set[str]) -> Files:
    return process._replace(
        segments=[path for path in process.segments if path not in removed],
        dropped=None if process.dropped in removed else process.dropped,
    )


def journal_path(folder: str, rank: int) -> str:
    """Return the path at which the journal of a rank is written."""
    return f"{folder}/settle-r{rank}.json"


def read_journal(path: str) -> Journal | None:
    """Read a journal. None if there is no journal, it is damaged, or it names files that no
    compaction handles. A journal is written atomically, so it is never half written."""
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
        move = [(str(draft), str(place)) for draft, place in document["move"]]
        remove = [str(path) for path in document["remove"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    moves_drafts = all(_DRAFT.fullmatch(draft) and _PLACE.fullmatch(place) for draft, place in move)
    removes_segments = all(map(_REMOVED.fullmatch, remove))
    return Journal(move, remove) if moves_drafts and removes_segments else None


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


class Tally(NamedTuple):
    """Counts of one process's records of one kind. They suffice to estimate the overhead of the
    records without reading them."""

    n: int  # number of records
    # number of starts and ends of phases, other than copies (``COPIES``), before which the program
    # itself ran for more than ``COLD_NS``
    cold: int
    looks_ns: int  # total duration of the spans in which voirkit itself inspected the program
    readings: int  # number of readings of memory use
    end_ns: int  # end of the last record, on the host's clock

    def __add__(self, other: object) -> Tally:
        """Return the sum of two tallies. If the records come from consecutive pieces, a cold start
        at the boundary between the pieces may be missed."""
        if not isinstance(other, Tally):
            return NotImplemented
        n, cold, looks_ns, readings, _ = (a + b for a, b in zip(self, other, strict=True))
        return Tally(n, cold, looks_ns, readings, max(self.end_ns, other.end_ns))


# After the program's own code has run for this long, voirkit's code and data are no longer in the
# CPU's caches.
COLD_NS = 50_000
# Category of the spans of tensor copies. These spans are timed in C, on the host, and include
# nearly all of their own overhead.
COPIES = "device"


def tally(piece: Piece, into: dict[int, dict[str, Tally]]) -> None:
    """Count the records of a piece, and add the counts to ``into``: tallies by the index of the
    process and the kind of record."""
    columns, names = piece.columns, piece.names
    if not len(columns["tid"]):
        return

    def flags(of_name: Callable[[Name], bool]) -> Array:
        """Return an array that is True for each record whose name fulfils ``of_name``."""
        return np.array([of_name(name) for name in names], bool)[columns["name"]]

    kinds = sorted({_clean(name.kind) for name in names})
    kind_of = np.array([kinds.index(_clean(name.kind)) for name in names], np.int64)
    cell = columns["process"] * len(kinds) + kind_of[columns["name"]]
    n_cells = (int(columns["process"].max()) + 1) * len(kinds)

    def sums(records: Array, weights: Array) -> Array:
        return np.bincount(cell[records], weights[records], n_cells).astype(np.int64)

    is_phase = flags(lambda name: name.kind == "phase" and name.category != COPIES)
    is_look = flags(lambda name: name.category == "voirkit" and name.name == "look")
    is_reading = flags(lambda name: name.category == "memory" and name.kind == "counter")
    cold_edges = _cold_edges(columns, flags(lambda name: name.kind == BATCH_KIND))
    last = np.zeros(n_cells, np.int64)
    np.maximum.at(last, cell, columns["start_ns"] + columns["duration_ns"])
    counts = [
        np.bincount(cell, minlength=n_cells),
        sums(is_phase, cold_edges),
        sums(is_look, columns["duration_ns"]),
        np.bincount(cell[is_reading], minlength=n_cells),
        last,
    ]
    for i, row in enumerate(np.stack(counts, axis=1).tolist()):
        tally = Tally(*row)
        if tally.n:
            process, kind = divmod(i, len(kinds))
            of_process = into.setdefault(process, {})
            before = of_process.get(kinds[kind])
            of_process[kinds[kind]] = tally if before is None else before + tally


def _cold_edges(columns: Mapping[str, Array], is_batch: Array) -> Array:
    """Return, for each record, at how many of its start and end the program itself had run for more
    than ``COLD_NS`` since voirkit's code last ran: 0 to 2; shape (n,).

    Records of batches lie within spans of batch requests, so the two groups are compared only with
    records of their own group.
    """
    start, duration, tid, process = (
        columns[key] for key in ("start_ns", "duration_ns", "tid", "process")
    )
    end = start + duration
    order = np.lexsort((end, is_batch, tid, process))
    is_same_thread = (np.diff(tid[order]) == 0) & (np.diff(process[order]) == 0)
    follows = np.flatnonzero(is_same_thread & ~np.diff(is_batch[order]))
    later, earlier = order[follows + 1], order[follows]
    since = np.zeros(len(end), np.int64)
    since[later] = start[later] - end[earlier]
    edges: Array = (duration > COLD_NS).astype(np.int64) + (since > COLD_NS)
    return edges


_LITTLE_BYTES = 64_000_000  # two million records, which take 120 MB of memory as columns


class SegmentRecords:
    """All records in the segments of a trace, in memory. Use it only if ``is_little`` is true.

    Attributes:
        columns: Arrays of shape (n,): ``start_ns, duration_ns, value, name, args, process, tid``.
            ``name`` is an index into ``names``, ``process`` into ``owners``.
        names: The distinct names of records.
        owners: (rank, host, pid) of each process.
        described: The description of each process.
        warnings: Messages about files that could not be read completely.
    """

    def __init__(self, run: str, now: Layout) -> None:
        pieces = Pieces(now.segments, most=_LITTLE_BYTES)
        piece = pieces.in_one()
        self.columns, self._arguments = piece.columns, piece.arguments
        self.names = [
            Name(_clean(name.kind), _clean(name.category), _clean(name.name), name.value_key)
            for name in piece.names
        ]
        self.owners = [
            (source.process.rank, _clean(source.process.host), source.process.pid)
            for source in pieces.sources
        ]
        tallies: dict[int, dict[str, Tally]] = {}
        tally(piece, tallies)
        self.described = [
            description(source, tallies.get(i)) for i, source in enumerate(pieces.sources)
        ]
        self.warnings = [*damage(run, pieces), *without_names(now.orphans)]

    def of_names(self, numbers: Iterable[int]) -> Array:
        """Return the indices of the records whose name is one of those given, by index into
        ``names``."""
        is_wanted = np.zeros(len(self.names) + 1, bool)
        is_wanted[list(numbers)] = True
        return np.flatnonzero(is_wanted[self.columns["name"]])

    def arguments(self, records: Array) -> tuple[list[str], Array]:
        """Return the arguments of some records.

        Args:
            records: Indices of the records; shape (n,).

        Returns:
            (distinct arguments as JSON texts, ascending; index into them for each record, shape
            (n,)).
        """
        numbers, place = np.unique(self.columns["args"][records], return_inverse=True)
        texts = [
            strict(self._arguments[number]) if number in self._arguments else "{}"
            for number in numbers.tolist()
        ]
        distinct = sorted(set(texts))
        codes: Mapping[str, int] = {text: code for code, text in enumerate(distinct)}
        return distinct, np.array([codes[text] for text in texts], np.int64)[place]

    def values(self, records: Array) -> Array:
        """Return the records' own integers; -1 for a record that has no number, or a double."""
        is_whole = np.array([_has_whole_value(name) for name in self.names], bool)
        names, values = self.columns["name"][records], self.columns["value"][records]
        return np.where(is_whole[names], values, -1)


def _has_whole_value(name: Name) -> bool:
    return name.value_key not in (None, *DOUBLES) and name.kind != "counter"


def is_little(files: Iterable[Files]) -> bool:
    """True if the segments of some processes are small enough to hold all records in memory."""
    sizes = (os.path.getsize(path) for process in files for path in process.segments)
    return sum(sizes) < _LITTLE_BYTES


def clean(text: str | None) -> str | None:
    """Return a text that can be encoded as UTF-8: lone surrogates become escape sequences."""
    return None if text is None else _clean(text)


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def strict(arguments: bytes) -> str:
    """Return arguments as strict JSON, which every reader accepts. Non-finite numbers and lone
    surrogates become text; arguments that cannot be parsed become ``{}``."""
    try:
        text = arguments.decode()
        document = json.loads(text)
    except (ValueError, RecursionError):
        return "{}"
    if not isinstance(document, dict):
        return "{}"
    has_names = b"N" in arguments or b"I" in arguments  # maybe NaN or Infinity
    if not has_names and b"\\ud" not in arguments and b"{" not in arguments[1:]:
        return text
    document = {clean(key): _strict(value) for key, value in document.items()}
    return json.dumps(document, separators=(",", ":"))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"hex"}:
            return value["hex"]  # an integer of thousands of digits, which was written in hex
        return {clean(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return clean(value) if isinstance(value, str) else value


_SAME_CLOCK_NS = 2_000_000_000


class Process(NamedTuple):
    """A process that recorded into a run."""

    host: str
    rank: int
    pid: int
    ppid: int
    name: str  # the name of the script, or of a multiprocessing child
    argv: list[str]
    began_ns: int  # time at which it began to record, on the wall clock, nanoseconds since 1970
    # offset from ``start_ns`` of its records to the wall clock; the same for all processes of a
    # host, since they share one clock
    offset_ns: int
    threads: dict[int, str]  # names of threads by native id
    dropped: dict[str, int]  # numbers of events that were not recorded, by ``category.name``
    world_size: int = 0  # number of ranks in its group; 1 without a group, 0 if not known


def described_processes(described: Iterable[dict[str, Any]], offset_ns: int) -> list[Process]:
    """Return processes by start time, from their descriptions. A process with several descriptions
    is returned once.

    Args:
        described: The descriptions, from ``read_descriptions`` or segments.
        offset_ns: The offset to the wall clock of a process whose description lacks the clocks.
    """
    unique = {row["stem"]: row for row in described}
    host_offsets_ns: dict[str, int] = {}
    processes = []
    for row in sorted(unique.values(), key=lambda row: row["time_ns"]):
        time_ns = row["time_ns"]
        own_offset_ns = time_ns - row["perf_counter_ns"] if time_ns else offset_ns
        # The wall clock is corrected from time to time, perf_counter_ns is not. So all processes of
        # a host use the offset of the first process. A process whose own offset differs from that
        # by ``_SAME_CLOCK_NS`` or more ran after a reboot, or on another machine of the same name,
        # and keeps its own offset.
        host_offset_ns = host_offsets_ns.setdefault(row["host"], own_offset_ns)
        is_same_clock = abs(host_offset_ns - own_offset_ns) < _SAME_CLOCK_NS
        clock_offset_ns = host_offset_ns if is_same_clock else own_offset_ns
        facts = {**row, "began_ns": time_ns, "offset_ns": clock_offset_ns}
        processes.append(Process._make(facts[key] for key in Process._fields))
    return processes


def description(source: Source, tallies: Mapping[str, Tally] | None) -> dict[str, Any]:
    """Return the description of a process, as stored in a compacted trace.

    Args:
        source: The metadata of the process.
        tallies: The counts of its records by kind; None without records.
    """
    return {
        **source.process._asdict(),
        "threads": source.threads,
        "dropped": source.dropped,
        "records": dict(tallies or {}),
    }


def tallies_of(described: Iterable[Mapping[str, Any]]) -> list[tuple[int, str, int, str, Tally]]:
    """Return (rank, host, pid, kind, tally) of processes, from their descriptions. The tallies of a
    process with several descriptions are added up."""
    tallies: dict[tuple[int, str, int, str], Tally] = {}
    for row in described:
        for kind, tally in row["records"].items():
            key = (row["rank"], row["host"], row["pid"], kind)
            tallies[key] = tallies[key] + tally if key in tallies else tally
    return [(*key, tally) for key, tally in tallies.items()]


def _described(line: str) -> dict[str, Any] | None:
    """Parse a line that describes a process; None if the line is damaged."""
    try:
        row = json.loads(line)
        parsed = dict(row)
        for key in ("rank", "pid", "ppid", "perf_counter_ns", "time_ns"):
            parsed[key] = int(row[key])
        parsed["threads"] = {int(tid): str(name) for tid, name in row["threads"].items()}
        parsed["argv"] = list(row["argv"])
        parsed["dropped"] = dict(row["dropped"])
        parsed["stem"] = str(row["stem"])
        parsed["world_size"] = int(row.get("world_size", 0))
        if "records" in row:
            tallies = row["records"].items()
            parsed["records"] = {str(kind): Tally(*map(int, counts)) for kind, counts in tallies}
        return parsed
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def read_descriptions(paths: Iterable[str], warnings: list[str]) -> list[dict[str, Any]]:
    """Read the descriptions of processes that compaction has written. A message about each damaged
    file is appended to ``warnings``."""
    every_row: list[dict[str, Any]] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            lines = [""]
        rows = [row for row in map(_described, lines) if row is not None]
        if len(rows) < len(lines):
            warnings.append(f"{path} is damaged: names of processes and threads are missing.")
        every_row += rows
    return every_row


def truncation_warning(path: str) -> str:
    """Return a warning about a Parquet file if it does not end as Parquet files do, because it is
    truncated or not a Parquet file; otherwise empty."""
    try:
        with open(path, "rb") as file:
            file.seek(-4, os.SEEK_END)
            whole = file.read() == b"PAR1"
    except OSError:
        whole = False
    return "" if whole else f"{path} cannot be read; what is in it is lost."


def damage(run: str, pieces: Pieces) -> list[str]:
    """Return a warning for each file of segments that could not be read completely."""
    unknown = {source.process.stem: source.unknown for source in pieces.sources if source.unknown}
    lines = [
        f"{folder_of(run)}/{stem}.names is damaged: {count(n)} lost." for stem, n in unknown.items()
    ]
    return lines + [f"{path} {fault}." for path, fault in pieces.damaged.items()]


def without_names(orphans: Iterable[str]) -> list[str]:
    """Return a warning, at most one, about records lost because the ``.names`` file of their
    segments is missing."""
    n_lost = {path: records_in(path) for path in orphans}
    stems = {path.rpartition("-")[0] for path, n in n_lost.items() if n}
    if not stems:
        return []
    verb = " and others are" if len(stems) > 1 else " is"
    return [f"{min(stems)}.names{verb} missing: {count(sum(n_lost.values()))} lost."]


def count(events: int) -> str:
    """Return the beginning of a sentence about events: ``1 event is``, ``2 events are``."""
    return "1 event is" if events == 1 else f"{events:,} events are"
