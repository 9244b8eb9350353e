"""The processes of a run: their names, clocks and threads, and what of their records could not be kept or read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from voirkit.trace.layout import folder_of
from voirkit.trace.reader import Pieces, Source, records_in

_SAME_CLOCK_NS = 2_000_000_000


class Process(NamedTuple):
    """A process of a run.

    Attributes:
        name: The script's, or multiprocessing's name for a child.
        began_ns: When it began to record, on the wall clock, in nanoseconds since 1970.
        offset_ns: What is to be added to its ``start_ns`` for the wall clock: the same for all processes of a host, which have one clock.
        threads: Names of threads by native id.
        dropped: Events that were not recorded, by ``category.name``.
        world_size: Of the group in which it has its rank; 1: of none, 0: not known.
    """

    host: str
    rank: int
    pid: int
    ppid: int
    name: str
    argv: list[str]
    began_ns: int
    offset_ns: int
    threads: dict[int, str]
    dropped: dict[str, int]
    world_size: int = 0


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


def description(source: Source) -> dict[str, Any]:
    """What is kept of a process."""
    return {**source.process._asdict(), "threads": source.threads, "dropped": source.dropped}


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
        }
    except (ValueError, TypeError, KeyError, AttributeError):
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
