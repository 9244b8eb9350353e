"""The summary of a run (``summary.json``) from all that its directory holds; also of runs that
could not write one."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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


# What only the run itself could tell; null or empty where it could not.
_KNOWN = ("schema", "voirkit", "command", "exit_code", "duration_s", "world_size", "ended")
_EMPTY = {key: value for key, value in empty("").items() if key not in _KNOWN} | {
    "verdict": None,
    "overhead": None,
}


def summary_of(run: Run, *others: Run) -> dict[str, Any]:
    """The summary of an opened run, its steps computed from what was recorded.

    What the run itself wrote is kept; what it could not (it was killed, it goes on, it was one of
    several ranks) is filled in.

    Args:
        run: The run; of several directories that of the first rank.
        others: The directories of its other ranks, if they did not share one.

    Returns:
        The document. A part that cannot be computed keeps what the run itself wrote of it, and has
        a line in ``warnings``.
    """
    runs = (run, *others)
    failures = PartFailures()
    summary = _own(run, failures)
    summary["world_size"] = failures.attempt(
        "ranks", lambda: _world_size(runs, summary), summary["world_size"]
    )
    ranks: list[Rank] = failures.attempt(
        "steps", lambda: [rank for one in runs for rank in read_steps(one)], []
    )
    renewed = "steps" not in failures and bool(ranks or not summary.get("steps"))
    if renewed:
        computed: dict[str, Any] = failures.attempt(
            "steps", lambda: step_figures(ranks, summary, Moments(run.manifest).begun), {}
        )
        summary.update(computed)
        counted = bool((summary.get("steps") or {}).get("n"))
        summary["recorded_work"] = (
            None if counted else failures.attempt("what was seen", lambda: seen_of(runs), None)
        )
        if ranks or not summary.get("wall"):
            summary["wall"] = failures.attempt(
                "wall time", lambda: _wall(run, ranks, summary), summary.get("wall")
            )
    for instrument in installed_instruments():
        if instrument.summarise:
            part: Mapping[str, Any] = failures.attempt(
                instrument.name.replace("_", " "),
                partial(_part, instrument, runs, ranks, summary),
                {},
            )
            summary.update(part)
    summary["goodput"] = failures.attempt("goodput", lambda: _goodput(run, ranks, summary), None)
    summary["overhead"] = failures.attempt(
        "overhead", lambda: overhead_of(runs, summary), summary.get("overhead")
    )
    findings = findings_of(summary, failures)
    if "steps" in failures:
        if not summary.get("steps"):
            summary.update(verdict=dict(_STEPS_FAILED), advice=[])
    elif renewed:  # after the parts: what they found goes into it
        nothing: tuple[dict[str, Any] | None, list[dict[str, Any]]] = (None, [])
        summary["verdict"], summary["advice"] = failures.attempt(
            "verdict",
            lambda: conclusions(summary, _facts(ranks), partial(_of_rank, runs, summary), findings),
            nothing,
        )
    summary["findings"] = [finding.document() for finding in findings]
    summary["alerts"] = alerts_of(findings)
    lost: dict[str, int] = failures.attempt("dropped records", lambda: _dropped(runs), {})
    known = summary["dropped"]  # a process that could not write its count has it here alone
    summary["dropped"] = {**known, **{name: max(n, known.get(name, 0)) for name, n in lost.items()}}
    lines: list[str] = failures.attempt("ranks", lambda: _not_recorded(run, ranks, summary), [])
    run.warnings += [*lines, *failures.lines()]
    said = [warning for one in runs for warning in one.warnings]
    summary["warnings"] = [
        *summary["warnings"],
        *(w for w in dict.fromkeys(said) if w not in summary["warnings"]),
    ]
    named: dict[str, Any] = rename_sources(summary, run.manifest.get("source_names") or {})
    return named


# Of what is recorded, what is counted in a run that has no steps.
_SEEN = {
    ("dataloader", "iter"): "loader_iterators",
    ("dataloader", "fetch"): "batches",
    ("compute", "forward"): "model_calls",
    ("compute", "backward"): "backward_passes",
    ("compute", "step"): "optimizer_steps",
}


def seen_of(runs: Sequence[Run]) -> dict[str, Any] | None:
    """``seen`` of a summary: how many batches, model calls, backward passes and optimizer steps
    were recorded, in all processes and threads, and how long they took; None if there was nothing
    of it."""
    seen: dict[str, dict[str, Any]] = {}
    for run in runs:
        recorded = records(run)
        numbers = np.bincount(recorded.name, minlength=len(recorded.names))
        times = np.bincount(
            recorded.name, weights=recorded.duration_ns, minlength=len(recorded.names)
        )
        for name, n, time_ns in zip(recorded.names, numbers.tolist(), times.tolist(), strict=True):
            if n and name in _SEEN:
                total = seen.setdefault(_SEEN[name], {"n": 0, "total_s": 0.0})
                total["n"] += n
                total["total_s"] += time_ns * 1e-9
    return {name: seen[name] for name in _SEEN.values() if name in seen} or None


def _wall(run: Run, ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    imported = ((summary.get("wall") or {}).get("parts") or {}).get("import") or {}
    return wall_of(run.manifest, summary["duration_s"], ranks, imported.get("total_s", 0.0))


def wall_of(
    manifest: Mapping[str, Any],
    duration_s: float | None,
    ranks: Sequence[Rank],
    imported_s: float = 0.0,
) -> dict[str, Any] | None:
    """``wall`` of a summary: that of the first rank, and of all processes that train for
    themselves, on the clock of the script's own.

    Args:
        duration_s: Of the run.
        imported_s: What the script's own process spent on imports, where another one that it has
            started trains and the manifest does not say it.

    Returns:
        None if it is not known when the run began. ``waits``: the script's own process neither
        trains nor evaluates.
    """
    moments = Moments(manifest)
    if moments.begun is None or moments.script is None or not duration_s:
        return None
    first = next((rank for rank in ranks if rank.host == manifest.get("host", rank.host)), None)
    alone = [rank for rank in ranks if rank.alone]
    if first is not None and alone:
        first = on_the_clock([*([] if first.alone else [first]), *alone])
    steps = None if first is None else first.steps
    if steps is None or not (len(steps.train) or len(steps.evaluation)):
        spent = (
            {name: before * 1e-9 for name, (before, _) in steps.aside_ns.items()}
            if steps is not None
            else {}
        )
        return without_steps(moments, duration_s, spent)
    ended = moments.begun + round(duration_s * 1e9)
    script_ended = min(moments.script_ended or ended, ended)
    attempts = [*(one["begun_ns"] for one in manifest.get("attempts") or ()), moments.begun]
    waits = (
        first is not None
        and bool(first.processes)
        and (manifest.get("host"), manifest.get("pid")) not in first.processes
    )
    if waits:  # for what it has started: what comes behind the last step is the end of that
        last = max(
            int(table.end_ns.max()) for table in (steps.train, steps.evaluation) if len(table)
        )
        script_ended = min(script_ended, last)
    begun = min(
        int(table.start_ns.min()) for table in (steps.train, steps.evaluation) if len(table)
    )
    parts = _parts_ns(steps)
    parts["startup"] = begun - attempts[0] - sum(before for before, _ in steps.aside_ns.values())
    script = manifest.get("host"), manifest.get("pid")
    if not parts["import"] or (
        len(attempts) == 1 and first is not None and first.processes[:1] not in ((), (script,))
    ):
        imported_s = imported_s if moments.imported_s is None else moments.imported_s
        imported = max(min(round(imported_s * 1e9), parts["startup"]), 0)
        parts["import"] += imported
        parts["startup"] -= imported
    since = (
        sum(after for _, after in steps.aside_ns.values()) + parts["training"] + parts["evaluation"]
    )
    since += steps.workers_in_evaluation_ns
    inside = sum(
        int(table.own_ns[:, list(ASIDE.values())].sum())
        for table in (steps.train, steps.evaluation)
    )
    parts["restart"] = _restarting_ns(steps, attempts)
    parts["between"] = script_ended - begun - since - inside - parts["restart"]
    parts["exit"] = ended - script_ended
    before_script_s = (moments.script - moments.begun) * 1e-9 if len(attempts) == 1 else None
    wall = account(
        {name: spent * 1e-9 for name, spent in parts.items()},
        (ended - attempts[0]) * 1e-9,
        before_script_s,
    )
    return {**wall, "waits": True} if waits else wall


# What a job that was restarted spent its time on, from the beginning of its first attempt to the
# end of its last.
GOODPUT = (
    "training",
    "wait",
    "communication",
    "checkpoint",
    "evaluation",
    "start",
    "hang",
    "lost",
    "restart",
    "other",
)


class Attempt(NamedTuple):
    """One attempt of a job: its first rank, in nanoseconds of the host's clock."""

    begun: int  # when it began
    # when the last of it was recorded or it was last seen to hang, or, of the last attempt, when it
    # was over
    ended: int
    saved: Sequence[tuple[int, int]]  # (start, end) of checkpoints that were written, by any rank
    # (start, end) of checkpoints that the first rank wrote or read, ascending
    saving: Sequence[tuple[int, int]]


def _goodput(run: Run, ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    manifest, moments = run.manifest, Moments(run.manifest)
    earlier, host = manifest.get("attempts"), manifest.get("host")
    first = next((rank for rank in ranks if rank.host == host and not rank.alone), None)
    if not earlier or first is None or moments.begun is None or not summary["duration_s"]:
        return None
    query = (
        "SELECT pid, name, start_ns, start_ns + duration_ns FROM spans WHERE category ="
        " 'checkpoint' AND kind = 'phase' AND host = ?"
    )
    checkpoints = run.connection().execute(f"{query} ORDER BY 4", [host]).fetchall()
    saved = [(start, end) for _, name, start, end in checkpoints if name == "capture"]
    lasts = dict(
        run.connection()
        .execute(
            "SELECT pid, max(start_ns + duration_ns) FROM spans WHERE host = ? GROUP BY pid", [host]
        )
        .fetchall()
    )
    ended = moments.begun + round(summary["duration_s"] * 1e9)
    offset = run.offset_ns()
    found = [one.details for one in evidence(summary, "hang")]
    hung = [(one["since_time_ns"] - offset, one["until_time_ns"] - offset) for one in found]
    attempts: list[Attempt] = []
    for pid, begun in [
        (manifest["pid"], moments.begun),
        *((one["pid"], one["begun_ns"]) for one in reversed(earlier)),
    ]:
        saving = [(start, end) for own, _, start, end in checkpoints if own == pid]
        following = attempts[0].begun if attempts else ended
        seen = [min(until, following) for since, until in hung if begun <= since < following]
        last = max(lasts.get(pid, begun), begun, *seen) if attempts else ended
        attempts.insert(0, Attempt(begun, last if last > begun else following, saved, saving))
    return goodput_of(attempts, first.steps, hung)


def goodput_of(
    attempts: Sequence[Attempt], steps: Steps, hung: Sequence[tuple[int, int]] = ()
) -> dict[str, Any]:
    """``goodput`` of a summary: what all attempts of a job spent their time on. Parts are
    exclusive, and sum to ``total_s``.

    Args:
        steps: Of the first rank, in all attempts.
        hung: (start, end) of what was found to be a hang.

    What a failed attempt did since its last checkpoint, or since its first step where it wrote
    none, is lost, unless the job hung.
    """
    spent = dict.fromkeys(GOODPUT, 0)
    hangs: list[tuple[int, int]] = []
    for since, until in sorted(hung):
        since = max(since, hangs[-1][1]) if hangs else since
        hangs.append((since, max(_until(steps, since, until), since)))

    def of_hangs(start: int, end: int) -> int:
        return sum(max(min(until, end) - max(since, start), 0) for since, until in hangs)

    rows = []
    for attempt, following in zip(attempts, (*attempts[1:], None), strict=True):
        tables = [
            table.chosen((table.start_ns >= attempt.begun) & (table.start_ns < attempt.ended))
            for table in (steps.train, steps.evaluation)
        ]
        first = min(
            (int(table.start_ns.min()) for table in tables if len(table)), default=attempt.ended
        )
        begun, saved = max(
            (one for one in attempt.saved if first <= one[1] <= attempt.ended),
            key=lambda one: one[1],
            default=(first, first),
        )
        kept_until = attempt.ended if following is None else saved
        saved_in = [
            (start, min(end, kept_until)) for start, end in attempt.saving if start < kept_until
        ]
        saving = sum(end - start - of_hangs(start, end) for start, end in saved_in)
        early = sum(
            end - start - of_hangs(start, end) for start, end in attempt.saving if end <= first
        )
        # A step around that checkpoint is lost where it works after it: without a loader steps
        # begin behind the optimizer's.
        again = [
            (t.start_ns >= saved)
            | (t.start_ns + t.time_ns - saved > np.maximum(begun - t.start_ns, 0))
            for t in tables
        ]
        kept = [
            t if following is None else t.chosen(~one) for t, one in zip(tables, again, strict=True)
        ]
        train, evaluation = (_without(table, hangs) for table in kept)
        lost = attempt.ended - kept_until - of_hangs(kept_until, attempt.ended)
        hang, restart = (
            of_hangs(attempt.begun, attempt.ended),
            0 if following is None else max(following.begun - attempt.ended, 0),
        )
        compiling = int(train.own_ns[:, [COMPILE, IMPORT]].sum())
        elsewhere = int(train.own_ns[:, [WAIT, COMMUNICATION, CHECKPOINT]].sum())
        own = {
            "training": int(train.time_ns.sum()) - elsewhere - compiling,
            "wait": int(train.phase_ns("wait").sum()),
            "communication": int(train.phase_ns("communication").sum()),
            "checkpoint": saving,
            "evaluation": int(evaluation.time_ns.sum() - evaluation.own_ns[:, CHECKPOINT].sum()),
            "start": first - attempt.begun - of_hangs(attempt.begun, first) - early + compiling,
            "hang": hang,
            "lost": lost,
            "restart": restart,
        }
        for name, ns in own.items():
            spent[name] += ns
        rows.append(
            {
                "lasted_s": (attempt.ended - attempt.begun) * 1e-9,
                "steps": len(tables[0]),
                "steps_lost": len(tables[0]) - len(train),
                "hang_s": hang * 1e-9,
                "lost_s": lost * 1e-9,
                "restart_s": restart * 1e-9,
            }
        )
    total = attempts[-1].ended - attempts[0].begun
    spent["other"] = max(total - sum(spent.values()), 0)
    parts = {
        name: {"total_s": ns * 1e-9, "share": ns / total if total else 0.0}
        for name, ns in spent.items()
        if ns
    }
    return {
        "attempts": len(rows),
        "total_s": total * 1e-9,
        "steps_lost": sum(row["steps_lost"] for row in rows),
        "parts": parts,
        "by_attempt": rows,
    }


def _until(steps: Steps, since: int, until: int) -> int:
    """The end of a hang, which is noticed a little later: in a step it is no longer than what took
    longest in it."""
    for table in (steps.train, steps.evaluation):
        for row in np.flatnonzero(_around(table, since)):
            until = min(
                until,
                since + int(table.own_ns[row].max()),
                int(table.start_ns[row] + table.time_ns[row]),
            )
    return until


def _around(table: Table, at_ns: int) -> Array:
    return (table.start_ns <= at_ns) & (at_ns < table.start_ns + table.time_ns)


def _without(table: Table, hung: Sequence[tuple[int, int]]) -> Table:
    """Steps without the time in which the job hung: it is in what took longest of a step, for
    nothing else went on."""
    # copies, and a hang may be longer than 32 bits hold
    own, time = table.own_ns.astype(np.int64), table.time_ns.astype(np.int64)
    for since, until in hung:
        around = np.flatnonzero(_around(table, since))
        own[around, own[around].argmax(axis=1)] -= until - since
        time[around] -= until - since
    return replace(table, time_ns=time, own_ns=own)


def _restarting_ns(steps: Steps, attempts: Sequence[int]) -> int:
    """From the last step before each further attempt of a job, or the beginning of the attempt
    before, to its beginning."""
    tables = (steps.train, steps.evaluation)
    start, end = (
        np.concatenate([getattr(table, key) for table in tables]) for key in ("start_ns", "end_ns")
    )
    lasts = [(before, at, end[start < at]) for before, at in pairwise(attempts)]
    return sum(
        at - max(before, min(int(ends.max()), at)) for before, at, ends in lasts if len(ends)
    )


def _parts_ns(steps: Steps) -> dict[str, int]:
    """Training and evaluation without what is a part of its own, and those parts, wherever they
    lie."""
    parts_ns = {}
    for name, table in (("training", steps.train), ("evaluation", steps.evaluation)):
        parts_ns[name] = int(table.time_ns.sum() - table.own_ns[:, list(ASIDE.values())].sum())
    for name, column in ASIDE.items():
        inside = sum(
            int(table.own_ns[:, column].sum()) for table in (steps.train, steps.evaluation)
        )
        parts_ns[name] = inside + sum(steps.aside_ns.get(name, (0, 0)))
    parts_ns[WORKERS] = steps.workers_in_evaluation_ns + sum(steps.aside_ns.get(WORKERS, (0, 0)))
    parts_ns["evaluation"] -= steps.workers_in_evaluation_ns
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
    """``steps``, ``rates``, ``evaluation``, ``ranks`` of a summary; rates given by hand (eval_rate)
    are kept.

    Args:
        begun_ns: When the run began, on the clock of its host.
    """
    made = figures(ranks)
    for row in made["steps"].get("uncounted", ()):
        first_ns = row.pop("first_ns")
        row["first_s"] = None if begun_ns is None else (first_ns - begun_ns) * 1e-9
    made["rates"] = {**(summary.get("rates") or {}), **made["rates"]}
    facts = _facts(ranks)
    if "workers" in facts:
        length, batch_size = facts.get("length"), facts.get("batch_size")
        samples = length * batch_size if length and batch_size else None
        made["steps"]["loader"] = {
            key: facts.get(key) for key in ("workers", "dataset", "batch_size", "sampler")
        } | {"samples": samples}
    if "updates" in facts:
        made["steps"]["updates"] = facts["updates"]
    return made


def _world_size(runs: Sequence[Run], summary: Mapping[str, Any]) -> int:
    """How many ranks there were: as launchers said when the run began, or as the program's
    processes learnt later."""
    return max(
        summary.get("world_size") or 1,
        *(process.world_size for run in runs for process in run.processes()),
        1,
    )


def _not_recorded(run: Run, ranks: Sequence[Rank], summary: Mapping[str, Any]) -> list[str]:
    forked = {
        (one.host, one.pid)
        for one in run.processes()
        if one.name.startswith("Fork") and not one.name.startswith("ForkServer")
    }
    return list(not_recorded(run.manifest, ranks, summary["world_size"], forked))


_EACH = "All of it in each rank: torchrun -m voirkit SCRIPT"


def not_recorded(
    manifest: Mapping[str, Any],
    ranks: Sequence[Rank],
    world_size: int,
    forked: Collection[tuple[str, int]],
) -> Iterator[str]:
    """What is not known of processes that the program started itself and that trained: a line each,
    with what to type.

    Of a run whose ranks no launcher started outside of it.

    Args:
        world_size: How many ranks there were, as its processes were told.
        forked: (host, pid) of the processes that were forked: they are looked at as the one that
            forked them was.
    """
    if manifest.get("world_size", 1) > 1:
        return
    trained = [rank for rank in ranks if len(rank.steps.train)]
    known = {rank.rank for rank in trained if not rank.alone}
    if world_size > 1 and known and len(known) < world_size:
        yield (
            f"{world_size} ranks train, of which {len(known)} {'is' if len(known) == 1 else 'are'}"
            f" recorded here. {_EACH}"
        )
    own = (manifest.get("host"), manifest.get("pid"))
    others = [
        process
        for rank in trained
        for process in rank.processes
        if process != own and process not in forked
    ]
    words = {str(word).partition("=")[0] for word in manifest.get("voirkit_options") or ()}
    only_here = [instrument for instrument in installed_instruments() if not instrument.in_children]
    flags = [
        option.flag
        for instrument in only_here
        for option in instrument.options
        if option.flag in words
    ]
    if others and flags:
        started = f"the processes that the script started ({len(others)} that train)"
        yield f"{', '.join(flags)}: not in {started}; their steps are recorded. {_EACH}"


def _facts(ranks: Sequence[Rank]) -> Mapping[str, Any]:
    return max(ranks, key=lambda r: len(r.steps.train)).facts if ranks else {}


def _part(
    instrument: Instrument, runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What an instrument adds to the summary; nothing where it has recorded nothing, or what the
    run itself wrote stands."""
    if instrument.summarised_from and not any(
        _has(run, one) for run in runs for one in instrument.summarised_from
    ):
        return {}
    part = resolve(instrument.summarise)(runs, ranks, summary)
    return {} if part is None else {key: part[key] for key in instrument.parts if key in part}


def _of_rank(runs: Sequence[Run], summary: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """A summary in which what a verdict rests on is of one rank alone, where instruments can tell
    it apart."""
    known = [
        one
        for one in installed_instruments()
        if one.of_rank and summary.get(next(iter(one.parts))) is not None
    ]
    return {**summary, **{next(iter(one.parts)): resolve(one.of_rank)(runs, rank) for one in known}}


def _has(run: Run, what: str) -> bool:
    """Whether a run has records of a kind, or a folder."""
    return (
        os.path.isdir(os.path.join(run.path, what))
        if what.endswith("/")
        else bool(run.recorded(what))
    )


def _own(run: Run, failures: PartFailures) -> dict[str, Any]:
    """What the run wrote of itself, or what can be told of it without."""
    own, manifest = run.summary, run.manifest
    if own is not None and own.get("schema") != SCHEMA:
        run.warnings.append(
            f"{run.where}/summary.json has schema {own.get('schema')!r}, this voirkit knows"
            f" {SCHEMA}: it is made anew."
        )
        own = None
    kinds = {
        **{key: list if isinstance(nothing, list) else dict for key, nothing in _EMPTY.items()},
        **parts_of_summary(),
    }
    if own is not None and (
        strange := [
            key for key, kind in kinds.items() if not isinstance(own.get(key), (kind, type(None)))
        ]
    ):
        run.warnings.append(
            f"{run.where}/summary.json is not like any that voirkit writes"
            f" ({', '.join(strange[:3])}): it is made anew."
        )
        own = None
    summary = {
        "schema": SCHEMA,
        "voirkit": manifest.get("voirkit"),
        "command": manifest.get("command", []),
        "exit_code": manifest.get("exit_code"),
        "duration_s": None,
        "world_size": manifest.get("world_size", 1),
        **_EMPTY,
        **dict.fromkeys(parts_of_summary()),
        **(own or {}),
    }
    if own is None or summary.get("ended") == "running":
        summary["ended"] = "running" if run.is_live else _ended(manifest)
        summary["duration_s"] = failures.attempt("duration", lambda: _duration(run), None)
    for key, nothing in (("dropped", {}), ("warnings", []), ("given", {})):
        summary[key] = summary.get(key) or nothing
    return summary


def _ended(manifest: Mapping[str, Any]) -> str:
    ended = str(manifest.get("ended", "running"))
    return "killed" if ended == "running" else ended


def _duration(run: Run) -> float | None:
    """From the start of the run to the end of the last thing that was recorded; seconds."""
    begun = Moments(run.manifest).begun
    ends = [
        tally.end_ns
        for _, host, _, _, tally in run.tallies()
        if host == run.manifest.get("host", host)
    ]
    return None if begun is None or not ends else max((max(ends) - begun) / 1e9, 0.0)


def _dropped(runs: Sequence[Run]) -> dict[str, int]:
    """Of the records of all processes; what a run's own process drops besides (log lines, values of
    probes) it says itself."""
    dropped: dict[str, int] = {}
    for process in [process for run in runs for process in run.processes()]:
        for name, n in process.dropped.items():
            dropped[name] = dropped.get(name, 0) + n
    return dropped


def check_stream(run: Run) -> None:
    """Look whether the log stream can be read; what cannot is said in the run's warnings, with file
    and line."""
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
                    # the last line of a run that was killed may be torn
                    if not _is_object(line) and line.endswith("\n"):
                        run.warnings.append(
                            f"stream/{name}:{number}: this line is no JSON object; it is left out."
                        )
        except OSError as exc:  # a folder in its place, no right to read it
            run.warnings.append(f"stream/{name} cannot be read: {exc.strerror}.")


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
