"""The files of a run's trace at a moment, segments and what is at rest; whose they are; and the
records in segments, without DuckDB.

Each record is in exactly one file. ``trace/kind=<kind>/rank=<rank>/<host>-<n>.parquet`` and
``trace/processes/<host>-r<rank>-<n>.jsonl`` are at rest. While records are compacted there is a
folder with drafts, ``trace/settle-r<rank>.<word>.tmp``, and, from the moment when the drafts are
complete and count instead of the segments until they have their places, a journal,
``trace/settle-r<rank>.json``.
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
# What a journal may name. It says what is moved and removed, and a run directory may be somebody
# else's work: nothing outside of its own folder, and nothing but what compaction has written there.
_DRAFT = re.compile(r"settle-r\d+\.[^/]+\.tmp/[^/]+\.(parquet|jsonl)")
_PLACE = re.compile(r"(kind=[^/]+/rank=\d+/[^/]+\.parquet|processes/[^/]+\.jsonl)")
_REMOVED = re.compile(r"[^/]+\.(names|seg|dropped)")


class Journal(NamedTuple):
    """What is to be done with complete drafts. Paths are relative to the folder of the trace."""

    move: list[tuple[str, str]]  # (draft, its place)
    remove: list[str]  # files whose records are in the drafts


class Layout(NamedTuple):
    """The files of a trace."""

    spans: list[str]  # parquet files
    processes: list[str]  # JSON lines about the processes whose records are in those
    segments: list[Files]  # files of the processes whose records are in segments
    orphans: list[str]  # segments without names


def ranks_of(run: str) -> list[int]:
    """The ranks in the names of a trace's files, ascending. What a process learnt later may be
    another: its files keep their names. Raises OSError: the folder cannot be read."""
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
    """The journals among the names of files, with their ranks."""
    matches = ((name, _JOURNAL.fullmatch(name)) for name in names)
    return {name: int(match[1]) for name, match in matches if match}


def origins(run: str) -> list[Origin]:
    """The origins of the processes that wrote a trace's files, without reading what was recorded.
    Files that are damaged are left out."""
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

    rank: int  # its rank
    world_size: int  # of how many; 0: not known
    job: str  # a word that all ranks of one job share; empty: not known


def uncompacted_ranks(run: str) -> list[int]:
    """The ranks of which something is in segments, or was left behind by a process that was killed
    while compacting; ascending."""
    names = _listed(folder_of(run))
    ranks = {rank_of(name) for name in names if name.endswith(".names")}
    for name in names:
        match = re.match(r"settle-r(\d+)\.", name)
        if match:
            ranks.add(int(match[1]))
    return sorted(ranks)


def layout(run: str, ranks: Collection[int] | None = None) -> Layout:
    """The files of a run's trace as they are now, or those of some ranks. Raises OSError: the
    folder cannot be read."""
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
    """The files of records of a kind, of all ranks or of some."""
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
    """The path of the journal of a rank, if there is one."""
    return f"{folder}/settle-r{rank}.json"


def read_journal(path: str) -> Journal | None:
    """A journal; None if there is none, or it names other files than those of a compaction. It is
    never found in part."""
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
    """Counts of a process's records of a kind: enough to say what they cost it, without reading
    them."""

    n: int  # how many
    # how many of the edges of phases that are not copies (``COPIES``) come after ``COLD_NS`` of
    # something else
    cold: int
    looks_ns: int  # how long voirkit's own looks took
    readings: int  # how many are readings of the memory
    end_ns: int  # when the last one ended, on its host's clock

    def __add__(self, other: object) -> Tally:
        """That of both; of pieces that follow each other an edge between them may not be counted as
        cold."""
        if not isinstance(other, Tally):
            return NotImplemented
        n, cold, looks_ns, readings, _ = (a + b for a, b in zip(self, other, strict=True))
        return Tally(n, cold, looks_ns, readings, max(self.end_ns, other.end_ns))


# of the program's own work, after which nothing of voirkit is in the processor's caches
COLD_NS = 50_000
# the category of copies of tensors, which measure nearly all that they cost themselves (in C,
# within the host)
COPIES = "device"


def tally(piece: Piece, into: dict[int, dict[str, Tally]]) -> None:
    """Count the records of a piece, by the number of their process and their kind."""
    columns, names = piece.columns, piece.names
    if not len(columns["tid"]):
        return

    def flags(of_name: Callable[[Name], bool]) -> Array:
        """Which records have a name for which something holds."""
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
    """How many of a record's two edges come after ``COLD_NS`` of something else: 0 to 2; shape
    (n,). Records of batches lie within those of requests, and are apart."""
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


_LITTLE_BYTES = 64_000_000  # two million records, which take 120 MB as columns


class SegmentRecords:
    """Records of some processes; to be made only of what ``is_little``.

    Attributes:
        columns: Arrays of shape (n,): ``start_ns, duration_ns, value, name, args, process, tid``.
            ``name`` and ``process`` are indices.
        names: What records are of.
        owners: (rank, host, pid) of each process.
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
        # what is known of the processes
        self.described = [
            description(source, tallies.get(i)) for i, source in enumerate(pieces.sources)
        ]
        # what could not be read
        self.warnings = [*damage(run, pieces), *without_names(now.orphans)]

    def of_names(self, numbers: Iterable[int]) -> Array:
        """Indices of the records that have one of some names."""
        is_wanted = np.zeros(len(self.names) + 1, bool)
        is_wanted[list(numbers)] = True
        return np.flatnonzero(is_wanted[self.columns["name"]])

    def arguments(self, records: Array) -> tuple[list[str], Array]:
        """The arguments of some records: the distinct ones as JSON, ascending, and which of them
        each record has."""
        numbers, place = np.unique(self.columns["args"][records], return_inverse=True)
        texts = [
            strict(self._arguments[number]) if number in self._arguments else "{}"
            for number in numbers.tolist()
        ]
        distinct = sorted(set(texts))
        codes: Mapping[str, int] = {text: code for code, text in enumerate(distinct)}
        return distinct, np.array([codes[text] for text in texts], np.int64)[place]

    def values(self, records: Array) -> Array:
        """The own number of some records, -1 where they have none or it is a double."""
        is_whole = np.array([_has_whole_value(name) for name in self.names], bool)
        names, values = self.columns["name"][records], self.columns["value"][records]
        return np.where(is_whole[names], values, -1)


def _has_whole_value(name: Name) -> bool:
    return name.value_key not in (None, *DOUBLES) and name.kind != "counter"


def is_little(files: Iterable[Files]) -> bool:
    """True if the records of some processes may all be held in memory."""
    sizes = (os.path.getsize(path) for process in files for path in process.segments)
    return sum(sizes) < _LITTLE_BYTES


def clean(text: str | None) -> str | None:
    """A text that can be written as UTF-8: half a surrogate pair becomes its escape."""
    return None if text is None else _clean(text)


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def strict(arguments: bytes) -> str:
    """Arguments as strict JSON: what it lacks (nan, inf, half a surrogate pair) becomes a text, so
    that no reader fails."""
    try:
        text = arguments.decode()
        document = json.loads(text)
    except (ValueError, RecursionError):
        return "{}"
    if not isinstance(document, dict):
        return "{}"
    has_names = b"N" in arguments or b"I" in arguments  # of numbers that are not finite
    if not has_names and b"\\ud" not in arguments and b"{" not in arguments[1:]:
        return text
    document = {clean(key): _strict(value) for key, value in document.items()}
    return json.dumps(document, separators=(",", ":"))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"hex"}:
            return value["hex"]  # a number of thousands of digits
        return {clean(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return clean(value) if isinstance(value, str) else value


_SAME_CLOCK_NS = 2_000_000_000


class Process(NamedTuple):
    """A process of a run."""

    host: str
    rank: int
    pid: int
    ppid: int
    name: str  # the script's, or multiprocessing's name for a child
    argv: list[str]
    began_ns: int  # when it began to record, on the wall clock, in nanoseconds since 1970
    # what is to be added to its ``start_ns`` for the wall clock: the same for all processes of a
    # host, which have one clock
    offset_ns: int
    threads: dict[int, str]  # names of threads by native id
    dropped: dict[str, int]  # events that were not recorded, by ``category.name``
    world_size: int = 0  # of the group in which it has its rank; 1: of none, 0: not known


def described_processes(described: Iterable[dict[str, Any]], offset_ns: int) -> list[Process]:
    """The processes in the order in which they began, each once, though it may have been described
    several times."""
    unique = {row["stem"]: row for row in described}
    host_offsets_ns: dict[str, int] = {}
    processes = []
    for row in sorted(unique.values(), key=lambda row: row["time_ns"]):
        time_ns = row["time_ns"]
        own_offset_ns = time_ns - row["perf_counter_ns"] if time_ns else offset_ns
        # The wall clock is corrected now and then, the other is not: on a host the processes' order
        # is that of the other. One that differs by much is of another start of the system, or of
        # another machine of that name.
        host_offset_ns = host_offsets_ns.setdefault(row["host"], own_offset_ns)
        is_same_clock = abs(host_offset_ns - own_offset_ns) < _SAME_CLOCK_NS
        clock_offset_ns = host_offset_ns if is_same_clock else own_offset_ns
        facts = {**row, "began_ns": time_ns, "offset_ns": clock_offset_ns}
        processes.append(Process._make(facts[key] for key in Process._fields))
    return processes


def description(source: Source, tallies: Mapping[str, Tally] | None) -> dict[str, Any]:
    """The description of a process that a compacted trace has."""
    return {
        **source.process._asdict(),
        "threads": source.threads,
        "dropped": source.dropped,
        "records": dict(tallies or {}),
    }


def tallies_of(described: Iterable[Mapping[str, Any]]) -> list[tuple[int, str, int, str, Tally]]:
    """(rank, host, pid, kind, tally) of processes, each of which may have been described several
    times."""
    tallies: dict[tuple[int, str, int, str], Tally] = {}
    for row in described:
        for kind, tally in row["records"].items():
            key = (row["rank"], row["host"], row["pid"], kind)
            tallies[key] = tallies[key] + tally if key in tallies else tally
    return [(*key, tally) for key, tally in tallies.items()]


def _described(line: str) -> dict[str, Any] | None:
    """The description of a process from a line; None of one that is damaged."""
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
    """The descriptions of processes that the compaction has written; files that are damaged are
    named in ``warnings``."""
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
    """A line for a Parquet file that is cut short or none, as far as its end tells; otherwise
    nothing."""
    try:
        with open(path, "rb") as file:
            file.seek(-4, os.SEEK_END)
            whole = file.read() == b"PAR1"
    except OSError:
        whole = False
    return "" if whole else f"{path} cannot be read; what is in it is lost."


def damage(run: str, pieces: Pieces) -> list[str]:
    """A line for each file of which something could not be read."""
    unknown = {source.process.stem: source.unknown for source in pieces.sources if source.unknown}
    lines = [
        f"{folder_of(run)}/{stem}.names is damaged: {count(n)} lost." for stem, n in unknown.items()
    ]
    return lines + [f"{path} {fault}." for path, fault in pieces.damaged.items()]


def without_names(orphans: Iterable[str]) -> list[str]:
    """A line for segments without names."""
    n_lost = {path: records_in(path) for path in orphans}
    stems = {path.rpartition("-")[0] for path, n in n_lost.items() if n}
    if not stems:
        return []
    verb = " and others are" if len(stems) > 1 else " is"
    return [f"{min(stems)}.names{verb} missing: {count(sum(n_lost.values()))} lost."]


def count(events: int) -> str:
    """``1 event is``, ``2 events are``."""
    return "1 event is" if events == 1 else f"{events:,} events are"
