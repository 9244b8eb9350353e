"""What torch's profiler recorded of a run: counted by phase, and put into its trace, once; also of runs that were killed.

The counts of a process are kept beside what it recorded; torch's own file is kept, compressed.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.phases import Records
from voirkit.analysis.run_steps import records
from voirkit.analysis.steps import Table
from voirkit.analysis.verdict.evidence import LEAST, Evidence
from voirkit.runs.directory import file_beside, kept_counts, read_json, record_stems
from voirkit.runs.opened import Run
from voirkit.runs.other_processes import is_alive, is_here
from voirkit_instruments.torch_profile import FOLDER
from voirkit_instruments.torch_profile.analyse_operators import (
    MEMORY,
    AttributedEvents,
    Events,
    PhasesOfThread,
    figures,
    find_clock,
    merge_figures,
    put_into_trace,
    shorten,
)

SCHEMA = 1
_CLOSE_NS = 50_000  # between the end of an optimizer's step, where a step without a loader begins, and voirkit's seeing it
_FEW = 3  # steps outside of the window that a comparison needs
MARK = "voirkit.mark"


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``torch_profile`` of a summary; see ``voirkit.instrument.Instrument``."""
    run = runs[0]
    stems = record_stems(os.path.join(run.path, FOLDER))
    taken = [one for stem in stems if (one := read_json(f"{stem}.json", SCHEMA)) is not None]
    if not taken:
        return None
    count = partial(_count, run, ranks, cache(partial(records, run)))
    found = [one for stem in stems if (one := kept_counts(stem, SCHEMA, partial(count, stem))) is not None]
    first, figures_ = taken[0], shorten(merge_figures(found))
    for phase, row in figures_["phases"].items():
        row["time_s"] = sum(one["times"].get(phase, 0.0) for one in found)
    part = {
        "window": first["window"], "memory": first["memory"], "torch": first["torch"],
        "steps": found[0]["steps"] if found else [], "ranks": [one["rank"] for one in found],
        **figures_,
        "file": found[0]["files"][0] if found and found[0]["files"] else None,
        "files": [file for one in found for file in one["files"]],
        "clock_error_s": max((one["clock_error_s"] for one in found), default=None),
        "slower": next((one["slower"] for one in found if one["slower"]), None),
        "left_out": sum(one["left_out"] for one in found), "why": next(filter(None, map(_why, taken)), None),
    }  # fmt: skip
    return {"torch_profile": part}


def _has_ended(run: Run, record: Mapping[str, Any]) -> bool:
    clocks = run.manifest.get("clocks") or {}
    return record["state"] == "ended" or not (
        is_here(record["host"]) and is_alive(record["pid"], clocks.get("perf_counter_ns", 0), clocks.get("time_ns", 0))
    )


def _why(record: Mapping[str, Any]) -> str | None:
    killed = "the run was killed in the window, or left python at once: torch keeps in memory what it records, and it is lost"
    return killed if record["state"] == "recording" else record["why"]


def _count(
    run: Run, ranks: Sequence[Rank], phases: Callable[[], Records], stem: str, record: Mapping[str, Any]
) -> tuple[dict[str, Any], Sequence[str]] | None:
    """Count what one process recorded, and put it into the trace."""
    if not _has_ended(run, record):
        return None
    rank = next((one for one in ranks if one.rank == record["rank"]), None)
    steps: list[int] = []
    parts, files, errors, left_out, times = [], [], [0], 0, dict[str, float]()
    for recording in record["recordings"]:
        path = file_beside(stem, recording["file"])
        if not os.path.exists(path) and os.path.exists(path + ".gz"):
            path += ".gz"
        try:
            events = Events(path)
            counted = _recording(run, record, recording, events, phases(), rank)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            run.warnings.append(f"--torch-profile: {FOLDER}/{recording['file']} cannot be read ({exc}).")
            continue
        parts.append(counted.sums)
        errors.append(counted.error_ns)
        for phase, spent in counted.times_ns.items():
            times[phase] = times.get(phase, 0.0) + spent / 1e9
        steps += range(*recording["steps"])
        left_out += events.left_out
        files.append(f"{FOLDER}/{_compressed(path)}")
    return {
        "schema": SCHEMA, "rank": record["rank"], "steps": steps, **merge_figures(parts), "files": files, "left_out": left_out,
        "clock_error_s": max(errors) / 1e9, "slower": _slower(rank, record), "times": times,
    }, ()  # fmt: skip


class RecordingCounts(NamedTuple):
    """A recording, counted."""

    sums: dict[str, Any]  # of its operators and kernels
    error_ns: int  # by how much its times may be wrong
    # how long each phase lasted between the first and the last instant that operators are counted of: not that of whole steps, whose edges
    # are others without a loader (profiling begins in the middle of one), so that shares of it are shares
    times_ns: dict[str, int]


def _recording(
    run: Run, record: Mapping[str, Any], recording: Mapping[str, Any], events: Events, phases: Records, rank: Rank | None
) -> RecordingCounts:
    if MARK not in events.names:
        raise ValueError("it has no marks")
    is_mark = events.name == events.names.index(MARK)
    to_run = find_clock(np.sort(events.start_ns[is_mark]), recording["marks"])
    start_ns = to_run(events.start_ns)
    own = _phases_of(phases, record, recording["tid"])
    found = AttributedEvents(events, start_ns, own, _evaluation(rank))
    begin = recording["marks"][0][0]
    end = recording["edges"][-1] if recording["edges"] else recording["ended_ns"]  # what is cut off in the middle of a step does not count
    in_steps = (start_ns >= begin) & (start_ns < end) & ~is_mark
    try:
        put_into_trace(run, record, recording, events, found, start_ns, (events.category != MEMORY) & ~is_mark)
    except OSError as exc:
        run.warnings.append(f"--torch-profile: operators are not in the trace ({exc}).")
    return RecordingCounts(figures(events, found, in_steps), to_run.error_ns, own.times_ns(begin, end, _evaluation(rank)))


def _phases_of(phases: Records, record: Mapping[str, Any], tid: int) -> PhasesOfThread:
    who = record["rank"], record["host"], record["pid"]
    process = next((i for i, (rank, host, pid) in enumerate(phases.processes) if (rank, host, pid) == who), -1)
    own = np.flatnonzero((phases.process == process) & (phases.tid == tid))
    return PhasesOfThread(phases, own[np.lexsort((-phases.duration_ns[own], phases.start_ns[own]))])


def _evaluation(rank: Rank | None) -> list[tuple[int, int]]:
    """When steps that are no training ran."""
    if rank is None:
        return []
    table = rank.steps.evaluation
    return list(zip(table.start_ns.tolist(), (table.start_ns + table.time_ns).tolist(), strict=True))


def _inside(table: Table, record: Mapping[str, Any]) -> Any:
    """Which steps were recorded, as booleans of shape (n,): those that begin in a recording, but for the one that begins at its end."""
    inside = np.zeros(len(table), dtype=bool)
    for recording in record["recordings"]:
        if recording["edges"]:
            begin, end = recording["began_ns"] - _CLOSE_NS, recording["edges"][-1] - _CLOSE_NS
            inside |= (table.start_ns >= begin) & (table.start_ns < end)
    return inside


def _slower(rank: Rank | None, record: Mapping[str, Any]) -> float | None:
    """How many times longer forward, backward and optimizer last in the window than outside of it, at the median of the steps."""
    if rank is None:
        return None
    table = rank.steps.train
    work = np.sum([table.phase_ns(phase) for phase in ("forward", "backward", "optimizer")], axis=0)
    inside = _inside(table, record)
    outside = ~inside
    outside[:2] = False  # the first steps are slow
    if not inside.any() or outside.sum() < _FEW:
        return None
    return float(np.median(work[inside]) / max(np.median(work[outside]), 1))


def _compressed(path: str) -> str:
    if path.endswith(".gz"):
        return os.path.basename(path)
    try:
        with open(path, "rb") as file, gzip.open(path + ".gz.tmp", "wb", compresslevel=3) as into:
            shutil.copyfileobj(file, into, 1 << 20)
        os.replace(path + ".gz.tmp", path + ".gz")
        os.unlink(path)
    except OSError:
        return os.path.basename(path)
    return os.path.basename(path) + ".gz"


def operators(profile: Mapping[str, Any], phases: Sequence[str]) -> list[Evidence]:
    """The one that takes most of the phases by itself, and its share of their operators' time."""
    spent: dict[str, float] = {}
    for phase in phases:
        for name, row in (((profile.get("phases") or {}).get(phase) or {}).get("operators") or {}).items():
            spent[name] = spent.get(name, 0.0) + max(row.get("self_device_s", 0.0), row.get("self_cpu_s", 0.0))
    total = sum(spent.values())
    name, seconds = max(((name, s) for name, s in spent.items() if not name.startswith("(")), key=lambda item: item[1], default=("", 0.0))
    return [Evidence(name, seconds / total)] if total and seconds >= LEAST * total else []
