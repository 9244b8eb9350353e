"""``torch_profile`` of a summary: recordings of torch's profiler, counted by phase and written once
into the trace of the run, also for runs that were killed.

The counts of a process are stored beside its recordings. torch's own file is kept, compressed.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.phases import Records
from voirkit.analysis.run_steps import records
from voirkit.analysis.steps import Table
from voirkit.analysis.verdict.evidence import LEAST, Evidence
from voirkit.phase_table import COMPUTE
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
# Without a loader, a step begins at the end of an optimizer step. This is the longest time from
# there to voirkit's callback.
_CLOSE_NS = 50_000
_FEW = 3  # minimum number of steps that were not profiled, to compare the profiled ones with
MARK = "voirkit.mark"

Document = Mapping[str, Any]


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``torch_profile`` of a summary; see ``voirkit.instrument.Instrument``."""
    run = runs[0]
    stems = record_stems(os.path.join(run.path, FOLDER))
    profiles = []
    for stem in stems:
        profile = read_json(f"{stem}.json", SCHEMA)
        if profile is not None:
            profiles.append(profile)
    if not profiles:
        return None
    count = partial(_count, run, ranks, cache(partial(records, run)))
    counts = [kept_counts(stem, SCHEMA, partial(count, stem)) for stem in stems]
    of_ranks = [of_rank for of_rank in counts if of_rank is not None]
    return {"torch_profile": _part(profiles, of_ranks)}


def _part(profiles: Sequence[Document], counts: Sequence[Document]) -> dict[str, Any]:
    """Return ``torch_profile`` of a summary, from the records of processes and the counts of
    ranks."""
    first = profiles[0]
    first_counts: Document = counts[0] if counts else {"steps": [], "files": []}
    sums = shorten(merge_figures(counts))
    for phase, row in sums["phases"].items():
        row["time_s"] = sum(of_rank["times"].get(phase, 0.0) for of_rank in counts)
    part = {key: first[key] for key in ("window", "memory", "torch")}
    part["steps"] = first_counts["steps"]
    part["ranks"] = [of_rank["rank"] for of_rank in counts]
    part |= sums
    part["file"] = _first(first_counts["files"])
    part["files"] = [file for of_rank in counts for file in of_rank["files"]]
    part["clock_error_s"] = max((of_rank["clock_error_s"] for of_rank in counts), default=None)
    part["slower"] = _first(of_rank["slower"] for of_rank in counts)
    part["left_out"] = sum(of_rank["left_out"] for of_rank in counts)
    part["why"] = _first(map(_why, profiles))
    return part


def _first(values: Iterable[Any]) -> Any:
    """Return the first value that is not empty; None if there is none."""
    return next((value for value in values if value), None)


def _has_ended(run: Run, record: Document) -> bool:
    if record["state"] == "ended":
        return True
    if not is_here(record["host"]):
        return True
    clocks = run.manifest.get("clocks") or {}
    return not is_alive(record["pid"], clocks.get("perf_counter_ns", 0), clocks.get("time_ns", 0))


def _why(record: Document) -> str | None:
    """Return the reason why a process has recorded no steps, or fewer than it was told to; None if
    no reason is known."""
    if record["state"] == "recording":
        return (
            "the run was killed in the window, or left python at once: torch keeps in memory what"
            " it records, and it is lost"
        )
    reason: str | None = record["why"]
    return reason


def _count(
    run: Run,
    ranks: Sequence[Rank],
    phases: Callable[[], Records],
    stem: str,
    record: Document,
) -> tuple[dict[str, Any], Sequence[str]] | None:
    """Count what one process recorded, and write it into the trace. None if the process still
    runs."""
    if not _has_ended(run, record):
        return None
    rank = next((rank for rank in ranks if rank.rank == record["rank"]), None)
    steps: list[int] = []
    parts = []
    files = []
    errors_ns = [0]
    n_left_out = 0
    times_s: dict[str, float] = {}
    for recording in record["recordings"]:
        path = file_beside(stem, recording["file"])
        if not os.path.exists(path) and os.path.exists(path + ".gz"):
            path += ".gz"
        try:
            events = Events(path)
            counts = _recording(run, record, recording, events, phases(), rank)
        except (OSError, ValueError, KeyError, TypeError) as exc:
            run.warnings.append(
                f"--torch-profile: {FOLDER}/{recording['file']} cannot be read ({exc})."
            )
            continue
        parts.append(counts.sums)
        errors_ns.append(counts.error_ns)
        for phase, duration_ns in counts.times_ns.items():
            times_s[phase] = times_s.get(phase, 0.0) + duration_ns / 1e9
        steps += range(*recording["steps"])
        n_left_out += events.left_out
        files.append(f"{FOLDER}/{_compressed(path)}")
    return {
        "schema": SCHEMA,
        "rank": record["rank"],
        "steps": steps,
        **merge_figures(parts),
        "files": files,
        "left_out": n_left_out,
        "clock_error_s": max(errors_ns) / 1e9,
        "slower": _slower(rank, record),
        "times": times_s,
    }, ()


class RecordingCounts(NamedTuple):
    """The counts of one recording."""

    sums: dict[str, Any]  # totals of the recording's operators and kernels
    error_ns: int  # largest error of the recording's times
    # Time in each phase between the first and the last instant for which operators are counted, so
    # that operator times divided by these times are true shares. Times of whole steps would not
    # fit, because profiling without a loader begins in the middle of a step.
    times_ns: dict[str, int]


def _recording(
    run: Run,
    record: Document,
    recording: Document,
    events: Events,
    phases: Records,
    rank: Rank | None,
) -> RecordingCounts:
    if MARK not in events.names:
        raise ValueError("it has no marks")
    is_mark = events.name == events.names.index(MARK)
    clock = find_clock(np.sort(events.start_ns[is_mark]), recording["marks"])
    start_ns = clock(events.start_ns)
    evaluation = _evaluation(rank)
    of_thread = _phases_of(phases, record, recording["tid"])
    attributed = AttributedEvents(events, start_ns, of_thread, evaluation)
    first_ns = recording["marks"][0][0]
    # operators are counted up to the end of the last complete step, if there is one
    end_ns = recording["edges"][-1] if recording["edges"] else recording["ended_ns"]
    in_steps = (start_ns >= first_ns) & (start_ns < end_ns) & ~is_mark
    in_trace = (events.category != MEMORY) & ~is_mark
    try:
        put_into_trace(run, record, recording, events, attributed, start_ns, in_trace)
    except OSError as exc:
        run.warnings.append(f"--torch-profile: operators are not in the trace ({exc}).")
    return RecordingCounts(
        figures(events, attributed, in_steps),
        clock.error_ns,
        of_thread.times_ns(first_ns, end_ns, evaluation),
    )


def _phases_of(phases: Records, record: Document, tid: int) -> PhasesOfThread:
    identity = record["rank"], record["host"], record["pid"]
    process = -1
    for number, (rank, host, pid) in enumerate(phases.processes):
        if (rank, host, pid) == identity:
            process = number
            break
    spans = np.flatnonzero((phases.process == process) & (phases.tid == tid))
    order = np.lexsort((-phases.duration_ns[spans], phases.start_ns[spans]))
    return PhasesOfThread(phases, spans[order])


def _evaluation(rank: Rank | None) -> list[tuple[int, int]]:
    """Return (start, end) of the steps that are not training."""
    if rank is None:
        return []
    table = rank.steps.evaluation
    return list(zip(table.start_ns.tolist(), table.end_ns.tolist(), strict=True))


def _inside(table: Table, record: Document) -> Any:
    """Return a mask of the recorded steps, shape (n,): steps that begin during a recording, except
    the step that begins at its end."""
    inside = np.zeros(len(table), dtype=bool)
    for recording in record["recordings"]:
        if recording["edges"]:
            first_ns = recording["began_ns"] - _CLOSE_NS
            end_ns = recording["edges"][-1] - _CLOSE_NS
            inside |= (table.start_ns >= first_ns) & (table.start_ns < end_ns)
    return inside


def _slower(rank: Rank | None, record: Document) -> float | None:
    """Return the factor by which forward, backward and optimizer take longer in the window than
    outside of it, from the medians of the steps."""
    if rank is None:
        return None
    table = rank.steps.train
    phases_ns = [table.phase_ns(phase) for phase in COMPUTE]
    work_ns = np.sum(phases_ns, axis=0)
    inside = _inside(table, record)
    outside = ~inside
    outside[:2] = False  # the first two steps of a run are slow
    if not inside.any() or outside.sum() < _FEW:
        return None
    return float(np.median(work_ns[inside]) / max(np.median(work_ns[outside]), 1))


def _compressed(path: str) -> str:
    """Compress a file. Return the name of the compressed file, or of the original if that fails."""
    name = os.path.basename(path)
    if path.endswith(".gz"):
        return name
    packed = path + ".gz"
    try:
        with open(path, "rb") as file, gzip.open(f"{packed}.tmp", "wb", compresslevel=3) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
        os.replace(f"{packed}.tmp", packed)
        os.unlink(path)
    except OSError:
        return name
    return f"{name}.gz"


def operators(profile: Document, phases: Sequence[str]) -> list[Evidence]:
    """Return the operator with the most own time in the phases as evidence, with its share of the
    time of all operators in them."""
    rows_by_phase = profile.get("phases") or {}
    seconds_by_name: dict[str, float] = {}
    for phase in phases:
        rows = (rows_by_phase.get(phase) or {}).get("operators") or {}
        for name, row in rows.items():
            seconds = max(row.get("self_device_s", 0.0), row.get("self_cpu_s", 0.0))
            seconds_by_name[name] = seconds_by_name.get(name, 0.0) + seconds
    total = sum(seconds_by_name.values())
    named = {name: s for name, s in seconds_by_name.items() if not name.startswith("(")}
    if not total or not named:
        return []
    name, seconds = max(named.items(), key=lambda item: item[1])
    return [Evidence(name, seconds / total)] if seconds >= LEAST * total else []
