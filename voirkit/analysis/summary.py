"""Computes the summary of a run (``summary.json``) from its run directory, also for runs that could
not write one."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from voirkit import phase_names
from voirkit.analysis.document import Rank, figures
from voirkit.analysis.nesting import Array
from voirkit.analysis.overhead import overhead_of
from voirkit.analysis.rank_processes import on_the_clock
from voirkit.analysis.run_steps import read_steps, records
from voirkit.analysis.steps import (
    ASIDE,
    CHECKPOINT,
    COMMUNICATION,
    COMPILE,
    IMPORT,
    WAIT,
    WORKERS,
    Steps,
    Table,
)
from voirkit.analysis.verdict.diagnosis import conclusions
from voirkit.analysis.verdict.evidence import evidence
from voirkit.errors import PartFailures
from voirkit.findings import alerts_of, findings_of
from voirkit.instrument import Instrument, resolve
from voirkit.plugins import installed_instruments, parts_of_summary
from voirkit.runs.source_names import rename_sources
from voirkit.runs.summary import SCHEMA, Moments, account, empty, without_steps

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


# ``_FROM_THE_RUN``: keys that ``_initial_summary`` sets itself. ``_EMPTY``: all other keys, with
# the null or empty values that they have if the run did not write them.
_FROM_THE_RUN = ("schema", "voirkit", "command", "exit_code", "duration_s", "world_size", "ended")
_EMPTY = {key: value for key, value in empty("").items() if key not in _FROM_THE_RUN} | {
    "verdict": None,
    "overhead": None,
}


def summary_of(run: Run, *other_runs: Run) -> dict[str, Any]:
    """Return the summary of an opened run, with its steps computed from the records.

    Parts that the run itself wrote are kept. Parts that it could not write (it was killed, is still
    running, or was one of several ranks) are filled in.

    Args:
        run: The run; if its ranks have directories of their own, the one of the first rank.
        other_runs: The directories of the other ranks, if they did not share one.

    Returns:
        The content of ``summary.json``. A part that cannot be computed stays as the run wrote it,
        and ``warnings`` has a line about it.
    """
    runs = (run, *other_runs)
    failures = PartFailures()
    attempt = failures.attempt
    summary = _initial_summary(run, failures)
    summary["world_size"] = attempt(
        "ranks", lambda: _world_size(runs, summary), summary["world_size"]
    )
    ranks: list[Rank] = attempt(
        "steps", lambda: list(chain.from_iterable(map(read_steps, runs))), []
    )
    is_renewed = "steps" not in failures and bool(ranks or not summary.get("steps"))
    if is_renewed:
        _renew_steps(summary, runs, ranks, failures)
    for instrument in installed_instruments():
        if instrument.summarise:
            name = instrument.name.replace("_", " ")
            summarise = partial(_part, instrument, runs, ranks, summary)
            part: Mapping[str, Any] = attempt(name, summarise, {})
            summary.update(part)
    summary["goodput"] = attempt("goodput", lambda: _goodput(run, ranks, summary), None)
    summary["overhead"] = attempt(
        "overhead", lambda: overhead_of(runs, summary), summary.get("overhead")
    )
    findings = findings_of(summary, failures)
    if "steps" in failures:
        if not summary.get("steps"):
            summary.update(verdict=dict(_STEPS_FAILED), advice=[])
    elif is_renewed:  # after the parts of the instruments, which the verdict uses
        of_rank = partial(_of_rank, runs, summary)
        nothing: tuple[dict[str, Any] | None, list[dict[str, Any]]] = (None, [])
        summary["verdict"], summary["advice"] = attempt(
            "verdict", lambda: conclusions(summary, _facts(ranks), of_rank, findings), nothing
        )
    summary["findings"] = [finding.document() for finding in findings]
    summary["alerts"] = alerts_of(findings)
    dropped: dict[str, int] = attempt("dropped records", lambda: _dropped(runs), {})
    # for a process that could not report its counts, they are taken from its records
    counts = summary["dropped"]
    summary["dropped"] = counts | {name: max(n, counts.get(name, 0)) for name, n in dropped.items()}
    run.warnings += attempt("ranks", lambda: _not_recorded(run, ranks, summary), [])
    run.warnings += failures.lines()
    warnings = chain.from_iterable(each.warnings for each in runs)
    new = [warning for warning in dict.fromkeys(warnings) if warning not in summary["warnings"]]
    summary["warnings"] = [*summary["warnings"], *new]
    renamed: dict[str, Any] = rename_sources(summary, run.manifest.get("source_names") or {})
    return renamed


def _renew_steps(
    summary: dict[str, Any], runs: Sequence[Run], ranks: Sequence[Rank], failures: PartFailures
) -> None:
    """Add the values for the steps, the recorded work and the wall time to a summary."""
    run, attempt = runs[0], failures.attempt
    document: dict[str, Any] = attempt(
        "steps", lambda: step_figures(ranks, summary, Moments(run.manifest).begun), {}
    )
    summary.update(document)
    summary["recorded_work"] = None
    if not (summary.get("steps") or {}).get("n"):
        summary["recorded_work"] = attempt("what was seen", lambda: _recorded_work(runs), None)
    if ranks or not summary.get("wall"):
        wall = summary.get("wall")
        summary["wall"] = attempt("wall time", lambda: _wall(run, ranks, summary), wall)


# A mapping from the (category, name) of a record to a key of ``recorded_work``: the counts of
# records in the summary of a run without steps.
_WORK = {
    ("dataloader", "iter"): "loader_iterators",
    ("dataloader", "fetch"): "batches",
    ("compute", "forward"): "model_calls",
    ("compute", "backward"): "backward_passes",
    ("compute", "step"): "optimizer_steps",
}


def _recorded_work(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return ``recorded_work`` of a summary: the number and the total time of recorded batches,
    model calls, backward passes and optimizer steps, in all processes and threads. None if there
    were none."""
    work: dict[str, dict[str, Any]] = {name: {"n": 0, "total_s": 0.0} for name in _WORK.values()}
    for run in runs:
        spans = records(run)
        n_names = len(spans.names)
        counts = np.bincount(spans.name, minlength=n_names).tolist()
        times_ns = np.bincount(spans.name, spans.duration_ns, n_names).tolist()
        for name, n, time_ns in zip(spans.names, counts, times_ns, strict=True):
            if name in _WORK:
                total = work[_WORK[name]]
                total["n"] += n
                total["total_s"] += time_ns * 1e-9
    return {name: total for name, total in work.items() if total["n"]} or None


def _wall(run: Run, ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    imported = ((summary.get("wall") or {}).get("parts") or {}).get("import") or {}
    return wall_of(run.manifest, summary["duration_s"], ranks, imported.get("total_s", 0.0))


def wall_of(
    manifest: Mapping[str, Any],
    duration_s: float | None,
    ranks: Sequence[Rank],
    imported_s: float = 0.0,
) -> dict[str, Any] | None:
    """Return ``wall`` of a summary: the parts of the run's wall time, for the first rank and all
    processes that train outside of a group, on the clock of the script's own process.

    Args:
        manifest: The manifest of the run.
        duration_s: The duration of the run.
        ranks: The ranks of the run.
        imported_s: The time that the script's own process spent on imports. It is used if a process
            that it started trains, or no imports are recorded otherwise, and the manifest does not
            have that time.

    Returns:
        ``wall``, with ``waits`` if the script's own process neither trains nor evaluates. None if
        the start of the run is not known.
    """
    moments = Moments(manifest)
    if moments.begun is None or moments.script is None or not duration_s:
        return None
    first = _first_on_the_clock(manifest, ranks)
    if first is None or not any(map(len, first.steps.tables)):
        aside_ns = {} if first is None else first.steps.aside_ns
        early_s = {name: before_ns * 1e-9 for name, (before_ns, _) in aside_ns.items()}
        return without_steps(moments, duration_s, early_s)
    steps = first.steps
    end_ns = moments.begun + round(duration_s * 1e9)
    script_end_ns = min(moments.script_ended or end_ns, end_ns)
    starts_ns = [attempt["begun_ns"] for attempt in manifest.get("attempts") or ()]
    starts_ns.append(moments.begun)
    script = manifest.get("host"), manifest.get("pid")
    waits = bool(first.processes) and script not in first.processes
    if waits:  # the script's own process waits for its children, which exit after the last step
        step_ends_ns = [int(table.end_ns.max()) for table in steps.tables if len(table)]
        script_end_ns = min(script_end_ns, max(step_ends_ns))
    parts_ns = _parts_ns(steps)
    before_ns = sum(before_ns for before_ns, _ in steps.aside_ns.values())
    since_ns = sum(since_ns for _, since_ns in steps.aside_ns.values())
    parts_ns["startup"] = steps.first_ns - starts_ns[0] - before_ns
    is_another = first.processes[:1] not in ((), (script,))
    if not parts_ns["import"] or (len(starts_ns) == 1 and is_another):
        imported_s = imported_s if moments.imported_s is None else moments.imported_s
        imported_ns = max(min(round(imported_s * 1e9), parts_ns["startup"]), 0)
        parts_ns["import"] += imported_ns
        parts_ns["startup"] -= imported_ns
    in_steps_ns = sum(int(table.time_ns.sum()) for table in steps.tables)
    parts_ns["restart"] = _restarting_ns(steps, starts_ns)
    since_first_ns = script_end_ns - steps.first_ns
    parts_ns["between"] = since_first_ns - since_ns - in_steps_ns - parts_ns["restart"]
    parts_ns["exit"] = end_ns - script_end_ns
    before_script_s = (moments.script - moments.begun) * 1e-9 if len(starts_ns) == 1 else None
    parts_s = {name: part_ns * 1e-9 for name, part_ns in parts_ns.items()}
    wall = account(parts_s, (end_ns - starts_ns[0]) * 1e-9, before_script_s)
    return {**wall, "waits": True} if waits else wall


def _first_on_the_clock(manifest: Mapping[str, Any], ranks: Sequence[Rank]) -> Rank | None:
    """Return the first rank on the host of the run's main process, joined with all processes that
    train outside of a group; None if that host has no rank."""
    first = next((rank for rank in ranks if rank.host == manifest.get("host", rank.host)), None)
    standalone = [rank for rank in ranks if rank.alone]
    if first is None or not standalone:
        return first
    return on_the_clock(standalone if first.alone else [first, *standalone])


# Names for the parts of a restarted job's time, from the start of its first attempt to the end of
# its last attempt.
GOODPUT = (
    "training",
    phase_names.WAIT,
    phase_names.COMMUNICATION,
    "checkpoint",
    "evaluation",
    "start",
    "hang",
    "lost",
    "restart",
    "other",
)


class Attempt(NamedTuple):
    """One attempt of a restarted job; times of its first rank, in nanoseconds of the host's
    clock."""

    begin_ns: int
    # end of the last record, or of a hang after it; for the last attempt, the end of the run
    end_ns: int
    # (start, end) of checkpoints that any rank wrote
    checkpoints_ns: Sequence[tuple[int, int]]
    # (start, end) of checkpoints that the first rank wrote or read, ascending
    own_checkpoints_ns: Sequence[tuple[int, int]]


def _goodput(run: Run, ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    manifest, begin_ns = run.manifest, Moments(run.manifest).begun
    earlier, host = manifest.get("attempts"), manifest.get("host")
    first = next((rank for rank in ranks if rank.host == host and not rank.alone), None)
    if not earlier or first is None or begin_ns is None or not summary["duration_s"]:
        return None
    execute = run.connection().execute
    query = (
        "SELECT pid, name, start_ns, start_ns + duration_ns FROM spans WHERE category ="
        " 'checkpoint' AND kind = 'phase' AND host = ? ORDER BY 4"
    )
    checkpoints = execute(query, [host]).fetchall()
    saved = [(start, end) for _, name, start, end in checkpoints if name == "capture"]
    query = "SELECT pid, max(start_ns + duration_ns) FROM spans WHERE host = ? GROUP BY pid"
    last_record_ns = dict(execute(query, [host]).fetchall())
    offset_ns = run.offset_ns()
    hangs = [
        (hang.details["since_time_ns"] - offset_ns, hang.details["until_time_ns"] - offset_ns)
        for hang in evidence(summary, "hang")
    ]
    begins = [(attempt["pid"], attempt["begun_ns"]) for attempt in earlier]
    begins.append((manifest["pid"], begin_ns))
    attempts: list[Attempt] = []
    next_ns = begin_ns + round(summary["duration_s"] * 1e9)
    for pid, begin_ns in reversed(begins):
        own_checkpoints = [(start, end) for owner, _, start, end in checkpoints if owner == pid]
        end_ns = next_ns
        if attempts:
            hung_until_ns = [
                min(end, next_ns) for start, end in hangs if begin_ns <= start < next_ns
            ]
            end_ns = max(last_record_ns.get(pid, begin_ns), begin_ns, *hung_until_ns)
        if end_ns <= begin_ns:
            end_ns = next_ns
        attempts.insert(0, Attempt(begin_ns, end_ns, saved, own_checkpoints))
        next_ns = begin_ns
    return goodput_of(attempts, first.steps, hangs)


def goodput_of(
    attempts: Sequence[Attempt], steps: Steps, hung: Sequence[tuple[int, int]] = ()
) -> dict[str, Any]:
    """Return ``goodput`` of a summary: the time of all attempts of a job in parts, which do not
    overlap and add up to ``total_s``.

    The time of a failed attempt after its last checkpoint is lost, except the time of hangs. If it
    wrote no checkpoint, the time after the start of its first step is lost.

    Args:
        attempts: The attempts, in order of time.
        steps: The steps of the first rank, in all attempts.
        hung: (start, end) of the hangs that were found.
    """
    hangs: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(hung):
        start_ns = max(start_ns, hangs[-1][1]) if hangs else start_ns
        hangs.append((start_ns, max(_hang_end(steps, start_ns, end_ns), start_ns)))
    rows = []
    parts_ns = dict.fromkeys(GOODPUT, 0)
    for attempt, following in zip(attempts, (*attempts[1:], None), strict=True):
        in_attempt = [
            table.chosen((table.start_ns >= attempt.begin_ns) & (table.start_ns < attempt.end_ns))
            for table in steps.tables
        ]
        own_ns, n_kept = _attempt_times(attempt, following, in_attempt, hangs)
        for name, part_ns in own_ns.items():
            parts_ns[name] += part_ns
        n_steps = len(in_attempt[0])
        row = {
            "lasted_s": (attempt.end_ns - attempt.begin_ns) * 1e-9,
            "steps": n_steps,
            "steps_lost": n_steps - n_kept,
        }
        rows.append(
            row | {f"{name}_s": own_ns[name] * 1e-9 for name in ("hang", "lost", "restart")}
        )
    total_ns = attempts[-1].end_ns - attempts[0].begin_ns
    parts_ns["other"] = max(total_ns - sum(parts_ns.values()), 0)
    parts = {
        name: {"total_s": part_ns * 1e-9, "share": part_ns / total_ns if total_ns else 0.0}
        for name, part_ns in parts_ns.items()
        if part_ns
    }
    return {
        "attempts": len(rows),
        "total_s": total_ns * 1e-9,
        "steps_lost": sum(row["steps_lost"] for row in rows),
        "parts": parts,
        "by_attempt": rows,
    }


def _attempt_times(
    attempt: Attempt,
    following: Attempt | None,
    tables: Sequence[Table],
    hangs: Sequence[tuple[int, int]],
) -> tuple[dict[str, int], int]:
    """Return the time of an attempt in each part of the goodput, and the number of its training
    steps that are not lost.

    Args:
        attempt: The attempt.
        following: The next attempt; None for the last attempt, which loses nothing.
        tables: The training steps and the evaluation steps that began in the attempt.
        hangs: (start, end) of all hangs, ascending.
    """

    def without_hangs(start_ns: int, end_ns: int) -> int:
        overlaps = (min(until, end_ns) - max(since, start_ns) for since, until in hangs)
        return end_ns - start_ns - sum(max(overlap, 0) for overlap in overlaps)

    begin_ns, end_ns = attempt.begin_ns, attempt.end_ns
    first_ns = min((int(t.start_ns.min()) for t in tables if len(t)), default=end_ns)
    kept_until_ns = end_ns
    if following:
        checkpoints = [c for c in attempt.checkpoints_ns if first_ns <= c[1] <= end_ns]
        saved = max(checkpoints, key=itemgetter(1), default=(first_ns, first_ns))
        kept_until_ns = saved[1]
        tables = [_saved_steps(table, *saved) for table in tables]
    train, evaluation = (_without_hangs(table, hangs) for table in tables)
    saving_ns = sum(
        without_hangs(start_ns, min(end, kept_until_ns))
        for start_ns, end in attempt.own_checkpoints_ns
        if start_ns < kept_until_ns
    )
    loading_ns = sum(
        without_hangs(start_ns, end)
        for start_ns, end in attempt.own_checkpoints_ns
        if end <= first_ns
    )
    columns_ns = train.own_ns.sum(axis=0).tolist()
    compiling_ns = columns_ns[COMPILE] + columns_ns[IMPORT]
    working_ns = int(train.time_ns.sum()) - compiling_ns - columns_ns[CHECKPOINT]
    wait_ns, communication_ns = columns_ns[WAIT], columns_ns[COMMUNICATION]
    evaluating_ns = evaluation.time_ns.sum() - evaluation.own_ns[:, CHECKPOINT].sum()
    times_ns = {
        "training": working_ns - wait_ns - communication_ns,
        phase_names.WAIT: wait_ns,
        phase_names.COMMUNICATION: communication_ns,
        "checkpoint": saving_ns,
        "evaluation": int(evaluating_ns),
        "start": without_hangs(begin_ns, first_ns) - loading_ns + compiling_ns,
        "hang": end_ns - begin_ns - without_hangs(begin_ns, end_ns),
        "lost": without_hangs(kept_until_ns, end_ns),
    }
    times_ns["restart"] = max(following.begin_ns - end_ns, 0) if following else 0
    return times_ns, len(train)


def _saved_steps(table: Table, checkpoint_ns: int, saved_ns: int) -> Table:
    """Return the steps whose results a checkpoint contains.

    A step that lasts from before the checkpoint to after it is lost if more of its time is after
    the checkpoint. Such steps occur without a loader, where a step starts at the end of the last
    optimizer step.

    Args:
        table: The steps.
        checkpoint_ns: The start of the checkpoint.
        saved_ns: The end of the checkpoint.
    """
    after_ns = table.start_ns + table.time_ns - saved_ns
    before_ns = np.maximum(checkpoint_ns - table.start_ns, 0)
    return table.chosen((table.start_ns < saved_ns) & (after_ns <= before_ns))


def _hang_end(steps: Steps, start_ns: int, end_ns: int) -> int:
    """Return the corrected end of a hang, which is noticed a little late: a hang within a step is
    no longer than the longest phase of that step."""
    for table in steps.tables:
        for row in np.flatnonzero(_is_in_step(table, start_ns)):
            longest_ns = int(table.own_ns[row].max())
            step_end_ns = int(table.start_ns[row] + table.time_ns[row])
            end_ns = min(end_ns, start_ns + longest_ns, step_end_ns)
    return end_ns


def _is_in_step(table: Table, instant_ns: int) -> Array:
    return (table.start_ns <= instant_ns) & (instant_ns < table.start_ns + table.time_ns)


def _without_hangs(table: Table, hangs: Sequence[tuple[int, int]]) -> Table:
    """Return the steps without the time of hangs, which is subtracted from the longest phase of a
    step: that phase was in progress during the hang."""
    # copies with 64 bits: the duration of a hang may not fit into 32
    own_ns, time_ns = table.own_ns.astype(np.int64), table.time_ns.astype(np.int64)
    for start_ns, end_ns in hangs:
        rows = np.flatnonzero(_is_in_step(table, start_ns))
        own_ns[rows, own_ns[rows].argmax(axis=1)] -= end_ns - start_ns
        time_ns[rows] -= end_ns - start_ns
    return replace(table, time_ns=time_ns, own_ns=own_ns)


def _restarting_ns(steps: Steps, begins_ns: Sequence[int]) -> int:
    """Return the total time of a job's restarts: for each attempt but the first, the time from the
    end of the last step before it, or from the start of the attempt before it, to its start."""
    start_ns = np.concatenate([table.start_ns for table in steps.tables])
    end_ns = np.concatenate([table.end_ns for table in steps.tables])
    restarting_ns = 0
    for before_ns, begin_ns in pairwise(begins_ns):
        ends_ns = end_ns[start_ns < begin_ns]
        if len(ends_ns):
            last_ns = min(int(ends_ns.max()), begin_ns)
            restarting_ns += begin_ns - max(before_ns, last_ns)
    return restarting_ns


def _parts_ns(steps: Steps) -> dict[str, int]:
    """Return the time of training and of evaluation without the phases in ``ASIDE``, and the time
    of each of these phases and of ``WORKERS``, in steps and elsewhere."""
    parts_ns = {}
    for name, table in zip(("training", "evaluation"), steps.tables, strict=True):
        aside_ns = table.own_ns[:, list(ASIDE.values())]
        parts_ns[name] = int(table.time_ns.sum() - aside_ns.sum())
    for name, column in ASIDE.items():
        parts_ns[name] = steps.phase_time_ns(column) + sum(steps.aside_ns.get(name, (0, 0)))
    in_evaluation_ns = steps.workers_in_evaluation_ns
    parts_ns[WORKERS] = in_evaluation_ns + sum(steps.aside_ns.get(WORKERS, (0, 0)))
    parts_ns["evaluation"] -= in_evaluation_ns
    return parts_ns


_STEPS_FAILED = {
    "kind": "unknown",
    "because": (
        "The training steps could not be computed from what was recorded; the warning says why."
    ),
    "next": (
        "Report it with the run directory: it is an error of voirkit, or the records are damaged."
    ),
    "evidence": {},
}


def step_figures(
    ranks: Sequence[Rank], summary: Mapping[str, Any], begun_ns: int | None = None
) -> dict[str, Any]:
    """Return ``steps``, ``rates``, ``evaluation`` and ``ranks`` of a summary. Rates that the script
    gave itself (eval_rate) are kept.

    Args:
        ranks: The ranks of the run.
        summary: The summary so far.
        begun_ns: The start of the run, on the clock of its host; None if it is not known.
    """
    document = figures(ranks)
    for row in document["steps"].get("uncounted", ()):
        first_ns = row.pop("first_ns")
        row["first_s"] = None if begun_ns is None else (first_ns - begun_ns) * 1e-9
    document["rates"] = {**(summary.get("rates") or {}), **document["rates"]}
    facts = _facts(ranks)
    if "workers" in facts:
        loader = {key: facts.get(key) for key in ("workers", "dataset", "batch_size", "sampler")}
        length, batch_size = facts.get("length"), loader["batch_size"]
        loader["samples"] = length * batch_size if length and batch_size else None
        document["steps"]["loader"] = loader
    if "updates" in facts:
        document["steps"]["updates"] = facts["updates"]
    return document


def _world_size(runs: Sequence[Run], summary: Mapping[str, Any]) -> int:
    """Return the number of ranks: the largest that the launcher set at the start of the run, or
    that a process of the program learnt later."""
    sizes = [process.world_size for run in runs for process in run.processes()]
    return max(summary.get("world_size") or 1, *sizes, 1)


def _not_recorded(run: Run, ranks: Sequence[Rank], summary: Mapping[str, Any]) -> list[str]:
    forked = {
        (process.host, process.pid)
        for process in run.processes()
        if process.name.startswith("Fork") and not process.name.startswith("ForkServer")
    }
    return list(not_recorded(run.manifest, ranks, summary["world_size"], forked))


_IN_EACH_RANK = "All of it in each rank: torchrun -m voirkit SCRIPT"


def not_recorded(
    manifest: Mapping[str, Any],
    ranks: Sequence[Rank],
    world_size: int,
    forked: Collection[tuple[str, int]],
) -> Iterator[str]:
    """Yield warnings about data that is not recorded of training processes that the program started
    itself, each with the command that records it.

    Yields nothing if a launcher started the ranks of the run.

    Args:
        manifest: The manifest of the run.
        ranks: The ranks of the run.
        world_size: The number of ranks that the processes know of.
        forked: (host, pid) of processes that were forked, which are recorded as completely as the
            process that forked them.
    """
    if manifest.get("world_size", 1) > 1:
        return
    trained = [rank for rank in ranks if len(rank.steps.train)]
    n_recorded = len({rank.rank for rank in trained if not rank.alone})
    if 0 < n_recorded < world_size:
        are = "is" if n_recorded == 1 else "are"
        yield (
            f"{world_size} ranks train, of which {n_recorded} {are} recorded here. {_IN_EACH_RANK}"
        )
    script = (manifest.get("host"), manifest.get("pid"))
    processes = chain.from_iterable(rank.processes for rank in trained)
    n_started = sum(process != script and process not in forked for process in processes)
    words = {str(word).partition("=")[0] for word in manifest.get("voirkit_options") or ()}
    only_here = [instrument for instrument in installed_instruments() if not instrument.in_children]
    options = chain.from_iterable(instrument.options for instrument in only_here)
    flags = [option.flag for option in options if option.flag in words]
    if n_started and flags:
        started = f"the processes that the script started ({n_started} that train)"
        yield f"{', '.join(flags)}: not in {started}; their steps are recorded. {_IN_EACH_RANK}"


def _facts(ranks: Sequence[Rank]) -> Mapping[str, Any]:
    return max(ranks, key=lambda rank: len(rank.steps.train)).facts if ranks else {}


def _part(
    instrument: Instrument, runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the part that an instrument adds to the summary; empty if the instrument has recorded
    nothing, or if the part stays as the run itself wrote it."""
    kinds = instrument.summarised_from
    if kinds and not any(_has(run, kind) for run in runs for kind in kinds):
        return {}
    part = resolve(instrument.summarise)(runs, ranks, summary)
    return {} if part is None else {key: part[key] for key in instrument.parts if key in part}


def _of_rank(runs: Sequence[Run], summary: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the summary with parts replaced by those of one rank alone, for all instruments that
    can compute their part for one rank. The verdict on that rank uses it."""
    figures_of_rank = {}
    for instrument in installed_instruments():
        part = next(iter(instrument.parts), "")
        if instrument.of_rank and summary.get(part) is not None:
            figures_of_rank[part] = resolve(instrument.of_rank)(runs, rank)
    return {**summary, **figures_of_rank}


def _has(run: Run, kind: str) -> bool:
    """True if a run has records of a kind. A ``kind`` that ends in a slash is a folder instead:
    True if it exists."""
    if kind.endswith("/"):
        return os.path.isdir(os.path.join(run.path, kind))
    return bool(run.recorded(kind))


def _initial_summary(run: Run, failures: PartFailures) -> dict[str, Any]:
    """Return the summary that the run wrote, with missing keys filled in from the manifest and the
    records."""
    manifest, document = run.manifest, _written_summary(run)
    summary = {
        "schema": SCHEMA,
        "voirkit": manifest.get("voirkit"),
        "command": manifest.get("command", []),
        "exit_code": manifest.get("exit_code"),
        "duration_s": None,
        "world_size": manifest.get("world_size", 1),
        **_EMPTY,
        **dict.fromkeys(parts_of_summary()),
    }
    summary.update(document or {})
    if document is None or summary.get("ended") == "running":
        summary["ended"] = "running" if run.is_live else _ended(manifest)
        summary["duration_s"] = failures.attempt("duration", lambda: _duration(run), None)
    for key, nothing in (("dropped", {}), ("warnings", []), ("given", {})):
        summary[key] = summary.get(key) or nothing
    return summary


def _written_summary(run: Run) -> Mapping[str, Any] | None:
    """Return the summary that the run wrote. None if there is none; None with a warning if its
    schema or the types of its parts are not those of this voirkit."""
    document = run.summary
    if document is None:
        return None
    path = f"{run.where}/summary.json"
    if document.get("schema") != SCHEMA:
        run.warnings.append(
            f"{path} has schema {document.get('schema')!r}, this voirkit knows {SCHEMA}: it is made"
            " anew."
        )
        return None
    kinds: dict[str, type] = {}
    for key, nothing in _EMPTY.items():
        kinds[key] = list if isinstance(nothing, list) else dict
    kinds |= parts_of_summary()
    strange = [
        key for key, kind in kinds.items() if not isinstance(document.get(key), (kind, type(None)))
    ]
    if strange:
        run.warnings.append(
            f"{path} is not like any that voirkit writes ({', '.join(strange[:3])}): it is made"
            " anew."
        )
        return None
    return document


def _ended(manifest: Mapping[str, Any]) -> str:
    ended = str(manifest.get("ended", "running"))
    return "killed" if ended == "running" else ended


def _duration(run: Run) -> float | None:
    """Return the seconds from the start of the run to the end of its last record."""
    manifest = run.manifest
    begin_ns = Moments(manifest).begun
    ends_ns = [
        tally.end_ns for _, host, _, _, tally in run.tallies() if host == manifest.get("host", host)
    ]
    if begin_ns is None or not ends_ns:
        return None
    return max((max(ends_ns) - begin_ns) / 1e9, 0.0)


def _dropped(runs: Sequence[Run]) -> dict[str, int]:
    """Return a dict from name to the number of dropped records of all processes. Other dropped data
    (log lines, values of probes) is reported by the run's own process."""
    dropped: Counter[str] = Counter()
    for run in runs:
        for process in run.processes():
            dropped.update(process.dropped)
    return dict(dropped)


def check_stream(run: Run) -> None:
    """Check that the log stream can be read. Lines and files that cannot be read are reported in
    the run's warnings, with file and line."""
    folder = os.path.join(run.path, "stream")
    try:
        names = sorted(os.listdir(folder)) if os.path.lexists(folder) else []
    except OSError as exc:
        names = []
        run.warnings.append(f"stream cannot be read: {exc.strerror}.")
    for name in names:
        if not name.endswith(".jsonl"):
            continue
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    # no warning for a last line without newline: the run may have been killed
                    if not _is_object(line) and line.endswith("\n"):
                        run.warnings.append(
                            f"stream/{name}:{number}: this line is no JSON object; it is left out."
                        )
        except OSError as exc:  # a folder of that name, or no permission
            run.warnings.append(f"stream/{name} cannot be read: {exc.strerror}.")


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
