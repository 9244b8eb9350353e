"""The files of a run's trace at a moment, segments and what is at rest; whose they are; and the records in segments, without DuckDB.

Each record is in exactly one file. ``trace/kind=<kind>/rank=<rank>/<host>-<n>.parquet`` and ``trace/processes/<host>-r<rank>-<n>.jsonl``
are at rest. While records are put to rest there is a folder with drafts, ``trace/settle-r<rank>.<word>.tmp``, and, from the moment when the
drafts are complete and count instead of the segments until they have their places, a journal, ``trace/settle-r<rank>.json``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from voirkit.trace.layout import BATCH_KIND, DOUBLES, folder_of
from voirkit.trace.reader import Array, Files, Name, Piece, Pieces, Source, files, rank_of, records_in

_JOURNAL = re.compile(r"settle-r(\d+)\.json")
# What a journal may name. It says what is moved and removed, and a run directory may be somebody else's work: nothing outside of its own
# folder, and nothing but what compaction has written there.
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
    """The ranks in the names of a trace's files, ascending. What a process learnt later may be another: its files keep their names. Raises
    OSError: the folder cannot be read."""
    folder = folder_of(run)
    names = _listed(folder)
    found = {rank_of(name) for name in (*names, *_listed(f"{folder}/processes")) if name.endswith((".names", ".seg", ".jsonl"))}
    found |= {int(journal[1]) for name in names if (journal := _JOURNAL.fullmatch(name))}
    of_kinds = {rank.removeprefix("rank=") for name in names if name.startswith("kind=") for rank in _listed(f"{folder}/{name}")}
    return sorted(found | {int(rank) for rank in of_kinds if rank.isdigit()})


def origins(run: str) -> list[Origin]:
    """Whose a trace's files are, without reading what was recorded. Files that are damaged are left out."""
    folder, found = folder_of(run), []
    for path in [*(own.names for own in files(run)), *(f"{folder}/processes/{name}" for name in _listed(f"{folder}/processes"))]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in [file.readline()] if path.endswith(".names") else file:
                    one = json.loads(line)
                    found.append(Origin(int(one["rank"]), int(one.get("world_size", 0)), str(one.get("job", "")).strip("/")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return found


class Origin(NamedTuple):
    """Of what a process was a part when it began to record."""

    rank: int  # its rank
    world_size: int  # of how many; 0: not known
    job: str  # a word that all ranks of one job share; empty: not known


def uncompacted_ranks(run: str) -> list[int]:
    """The ranks of which something is in segments, or was left behind by who was killed while compacting; ascending."""
    names = _listed(folder_of(run))
    begun = {int(found[1]) for name in names if (found := re.match(r"settle-r(\d+)\.", name))}
    return sorted(begun | {rank_of(name) for name in names if name.endswith(".names")})


def layout(run: str, ranks: Collection[int] | None = None) -> Layout:
    """The files of a run's trace as they are now, or those of some ranks. Raises OSError: the folder cannot be read."""
    folder = folder_of(run)
    names = _listed(folder)

    def is_chosen(rank: int) -> bool:
        return ranks is None or rank in ranks

    own = [name for name in names if (found := _JOURNAL.fullmatch(name)) and is_chosen(int(found[1]))]
    journals = [journal for name in own if (journal := read_journal(f"{folder}/{name}")) is not None]
    gone = {f"{folder}/{path}" for journal in journals for path in journal.remove}
    at_rest = {f"{folder}/{place}" for journal in journals for _, place in journal.move}
    drafts = [f"{folder}/{draft}" for journal in journals for draft, place in journal.move if not os.path.exists(f"{folder}/{place}")]
    for kind in names:
        if kind.startswith("kind="):
            for rank in _listed(f"{folder}/{kind}") if ranks is None else [f"rank={rank}" for rank in ranks]:
                at_rest.update(f"{folder}/{kind}/{rank}/{name}" for name in _listed(f"{folder}/{kind}/{rank}"))
    at_rest.update(f"{folder}/processes/{name}" for name in _listed(f"{folder}/processes") if is_chosen(rank_of(name)))
    everything = sorted([path for path in at_rest if os.path.exists(path)] + [path for path in drafts if os.path.exists(path)])
    segments = [_without(own, gone) for own in files(run, ranks)]
    named = {path for own in segments for path in own.segments}
    unnamed = [name for name in names if name.endswith(".seg") and f"{folder}/{name}" not in named | gone]
    return Layout(
        [path for path in everything if path.endswith(".parquet")],
        [path for path in everything if path.endswith(".jsonl")],
        [own for own in segments if own.names not in gone],
        [f"{folder}/{name}" for name in unnamed if is_chosen(rank_of(name))],
    )


def _without(own: Files, gone: set[str]) -> Files:
    return own._replace(segments=[path for path in own.segments if path not in gone], dropped=None if own.dropped in gone else own.dropped)


def journal_path(folder: str, rank: int) -> str:
    """Where the journal of a rank is, if there is one."""
    return f"{folder}/settle-r{rank}.json"


def read_journal(path: str) -> Journal | None:
    """A journal; None if there is none, or it names other files than those of a compaction. It is never found in part."""
    try:
        with open(path, encoding="utf-8") as file:
            found: Any = json.load(file)
        journal = Journal([(str(draft), str(place)) for draft, place in found["move"]], [str(path) for path in found["remove"]])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    drafts = all(_DRAFT.fullmatch(draft) and _PLACE.fullmatch(place) for draft, place in journal.move)
    return journal if drafts and all(map(_REMOVED.fullmatch, journal.remove)) else None


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


class Tally(NamedTuple):
    """What there is of a process's records of a kind: enough to say what they cost it, without reading them."""

    n: int  # how many
    cold: int  # how many of the edges of phases that are no copies (``COPIES``) come after ``COLD_NS`` of something else
    looks_ns: int  # how long voirkit's own looks took
    readings: int  # how many are readings of the memory
    end_ns: int  # when the last one ended, on its host's clock

    def __add__(self, other: object) -> Tally:
        """That of both; of pieces that follow each other an edge between them may not be counted as cold."""
        if not isinstance(other, Tally):
            return NotImplemented
        n, cold, looks_ns, readings, _ = (a + b for a, b in zip(self, other, strict=True))
        return Tally(n, cold, looks_ns, readings, max(self.end_ns, other.end_ns))


COLD_NS = 50_000  # of the program's own work, after which nothing of voirkit is in the processor's caches
COPIES = "device"  # the category of copies of tensors, which measure nearly all that they cost themselves (in C, within the host)


def tally(piece: Piece, into: dict[int, dict[str, Tally]]) -> None:
    """Count the records of a piece, by the number of their process and their kind."""
    columns, names = piece.columns, piece.names
    if not len(columns["tid"]):
        return
    kinds = sorted({_clean(name.kind) for name in names})
    processes = int(columns["process"].max()) + 1
    cell = columns["process"] * len(kinds) + np.array([kinds.index(_clean(name.kind)) for name in names], np.int64)[columns["name"]]

    def counts(chosen: Array | slice = slice(None), weights: Array | None = None) -> Array:
        return np.bincount(cell[chosen], weights, processes * len(kinds)).astype(np.int64)

    def records_of(category: str, **also: str) -> Array:
        wanted = [name.category == category and all(getattr(name, key) == value for key, value in also.items()) for name in names]
        return np.flatnonzero(np.array(wanted, bool)[columns["name"]])

    phases, looks = (
        np.flatnonzero(np.array([name.kind == "phase" and name.category != COPIES for name in names], bool)[columns["name"]]),
        records_of("voirkit", name="look"),
    )
    last = np.zeros(processes * len(kinds), np.int64)
    np.maximum.at(last, cell, columns["start_ns"] + columns["duration_ns"])
    is_batch = np.array([name.kind == BATCH_KIND for name in names], bool)[columns["name"]]
    cold, looked = counts(phases, _cold_edges(columns, is_batch)[phases]), counts(looks, columns["duration_ns"][looks])
    rows = np.stack([counts(), cold, looked, counts(records_of("memory", kind="counter")), last], axis=1)
    for i, (n, *rest) in enumerate(rows.tolist()):
        if n:
            of_process, kind, found = into.setdefault(i // len(kinds), {}), kinds[i % len(kinds)], Tally(n, *rest)
            of_process[kind] = of_process[kind] + found if kind in of_process else found


def _cold_edges(columns: Mapping[str, Array], is_batch: Array) -> Array:
    """How many of a record's two edges come after ``COLD_NS`` of something else: 0 to 2; shape (n,). Records of batches lie within those of
    requests, and are apart."""
    start, duration, tid, process = (columns[key] for key in ("start_ns", "duration_ns", "tid", "process"))
    end = start + duration
    order = np.lexsort((end, is_batch, tid, process))
    follows = (np.diff(tid[order]) == 0) & (np.diff(process[order]) == 0) & ~np.diff(is_batch[order])
    since = np.zeros(len(end), np.int64)
    since[order[1:][follows]] = (start[order[1:]] - end[order[:-1]])[follows]
    edges: Array = (duration > COLD_NS).astype(np.int64) + (since > COLD_NS)
    return edges


_LITTLE_BYTES = 64_000_000  # two million records, which take 120 MB as columns


class SegmentRecords:
    """Records of some processes; to be made only of what ``is_little``.

    Attributes:
        columns: Arrays of shape (n,): ``start_ns, duration_ns, value, name, args, process, tid``. ``name`` and ``process`` are indices.
        names: What records are of.
        owners: (rank, host, pid) of each process.
    """

    def __init__(self, run: str, now: Layout) -> None:
        pieces = Pieces(now.segments, most=_LITTLE_BYTES)
        piece = pieces.in_one()
        self.columns, self._arguments = piece.columns, piece.arguments
        self.names = [Name(_clean(name.kind), _clean(name.category), _clean(name.name), name.value_key) for name in piece.names]
        self.owners = [(source.process.rank, _clean(source.process.host), source.process.pid) for source in pieces.sources]
        tallies: dict[int, dict[str, Tally]] = {}
        tally(piece, tallies)
        self.described = [description(source, tallies.get(i)) for i, source in enumerate(pieces.sources)]  # what is known of the processes
        self.warnings = [*damage(run, pieces), *without_names(now.orphans)]  # what could not be read

    def of_names(self, chosen: Iterable[int]) -> Array:
        """Indices of the records that have one of some names."""
        wanted = np.zeros(len(self.names) + 1, bool)
        wanted[list(chosen)] = True
        return np.flatnonzero(wanted[self.columns["name"]])

    def arguments(self, records: Array) -> tuple[list[str], Array]:
        """The arguments of some records: the distinct ones as JSON, ascending, and which of them each record has."""
        numbers, place = np.unique(self.columns["args"][records], return_inverse=True)
        texts = [strict(self._arguments[number]) if number in self._arguments else "{}" for number in numbers.tolist()]
        distinct = sorted(set(texts))
        codes: Mapping[str, int] = {text: code for code, text in enumerate(distinct)}
        return distinct, np.array([codes[text] for text in texts], np.int64)[place]

    def values(self, records: Array) -> Array:
        """The own number of some records, -1 where they have none or it is a double."""
        whole = np.array([name.value_key not in (None, *DOUBLES) and name.kind != "counter" for name in self.names], bool)
        return np.where(whole[self.columns["name"][records]], self.columns["value"][records], -1)


def is_little(files: Iterable[Files]) -> bool:
    """Whether the records of some processes may all be held in memory."""
    return sum(os.path.getsize(path) for own in files for path in own.segments) < _LITTLE_BYTES


def clean(text: str | None) -> str | None:
    """A text that can be written as UTF-8: half a surrogate pair becomes its escape."""
    return None if text is None else _clean(text)


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def strict(arguments: bytes) -> str:
    """Arguments as strict JSON: what it lacks (nan, inf, half a surrogate pair) becomes a text, so that no reader fails."""
    try:
        text = arguments.decode()
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "{}"
    if not isinstance(found, dict):
        return "{}"
    if b"N" not in arguments and b"I" not in arguments and b"\\ud" not in arguments and b"{" not in arguments[1:]:
        return text
    return json.dumps({clean(key): _strict(value) for key, value in found.items()}, separators=(",", ":"))


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
    offset_ns: int  # what is to be added to its ``start_ns`` for the wall clock: the same for all processes of a host, which have one clock
    threads: dict[int, str]  # names of threads by native id
    dropped: dict[str, int]  # events that were not recorded, by ``category.name``
    world_size: int = 0  # of the group in which it has its rank; 1: of none, 0: not known


def described_processes(described: Iterable[dict[str, Any]], offset_ns: int) -> list[Process]:
    """The processes in the order in which they began, each once, though it may have been described several times."""
    unique = {one["stem"]: one for one in described}
    first: dict[str, int] = {}
    found = []
    for one in sorted(unique.values(), key=lambda one: one["time_ns"]):
        offset = one["time_ns"] - one["perf_counter_ns"] if one["time_ns"] else offset_ns
        # The wall clock is corrected now and then, the other is not: on a host the processes' order is that of the other. One that differs
        # by much is of another start of the system, or of another machine of that name.
        if abs(first.setdefault(one["host"], offset) - offset) < _SAME_CLOCK_NS:
            offset = first[one["host"]]
        who = (one["host"], one["rank"], one["pid"], one["ppid"], one["name"], one["argv"])
        found.append(Process(*who, one["time_ns"], offset, one["threads"], one["dropped"], one["world_size"]))
    return found


def description(source: Source, tallies: Mapping[str, Tally] | None) -> dict[str, Any]:
    """What is kept of a process."""
    return {**source.process._asdict(), "threads": source.threads, "dropped": source.dropped, "records": dict(tallies or {})}


def tallies_of(described: Iterable[Mapping[str, Any]]) -> list[tuple[int, str, int, str, Tally]]:
    """(rank, host, pid, kind, what there is of it) of processes, each of which may have been described several times."""
    found: dict[tuple[int, str, int, str], Tally] = {}
    for one in described:
        for kind, tally in one["records"].items():
            key = (one["rank"], one["host"], one["pid"], kind)
            found[key] = found[key] + tally if key in found else tally
    return [(*key, tally) for key, tally in found.items()]


def _described(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
        threads = {int(tid): str(name) for tid, name in found["threads"].items()}
        numbers = {key: int(found[key]) for key in ("rank", "pid", "ppid", "perf_counter_ns", "time_ns")}
        return {
            **found,
            **numbers,
            "threads": threads,
            "argv": list(found["argv"]),
            "dropped": dict(found["dropped"]),
            "stem": str(found["stem"]),
            "world_size": int(found.get("world_size", 0)),
            **({"records": {str(kind): Tally(*map(int, row)) for kind, row in found["records"].items()}} if "records" in found else {}),
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def read_descriptions(paths: Iterable[str], warnings: list[str]) -> list[dict[str, Any]]:
    """What the compaction has kept of processes; files that are damaged are named in ``warnings``."""
    found: list[dict[str, Any]] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            lines = [""]
        described = [one for line in lines if (one := _described(line)) is not None]
        if len(described) < len(lines):
            warnings.append(f"{path} is damaged: names of processes and threads are missing.")
        found += described
    return found


def truncation_warning(path: str) -> str:
    """A line for a Parquet file that is cut short or none, as far as its end tells; else nothing."""
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
    lines = [f"{folder_of(run)}/{stem}.names is damaged: {count(n)} lost." for stem, n in unknown.items()]
    return lines + [f"{path} {fault}." for path, fault in pieces.damaged.items()]


def without_names(orphans: Iterable[str]) -> list[str]:
    """A line for segments without names."""
    lost = {path: records_in(path) for path in orphans}
    missing = sorted({f"{path.rpartition('-')[0]}.names" for path, records in lost.items() if records})
    if not missing:
        return []
    return [f"{missing[0]}{' and others are' if len(missing) > 1 else ' is'} missing: {count(sum(lost.values()))} lost."]


def count(events: int) -> str:
    """``1 event is``, ``2 events are``."""
    return "1 event is" if events == 1 else f"{events:,} events are"
