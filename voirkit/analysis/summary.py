"""The summary of a run (DESIGN 3.8) from all that its directory holds; also of runs that could not write one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voirkit.analysis.checks.of_run import checks_of
from voirkit.analysis.creep import memory_creep, monitored
from voirkit.analysis.document import Rank, figures
from voirkit.analysis.of_run import of_run
from voirkit.analysis.pipeline.of_run import loader_of
from voirkit.analysis.verdict import verdict
from voirkit.runs.alerts import alerts
from voirkit.runs.directory import FLAME_FOLDER, NATIVE_FOLDER, SYSCALLS_FOLDER, TORCH_PROFILE_FOLDER

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

SCHEMA = 1
# What only the run itself could tell; null or empty where it could not.
_EMPTY: dict[str, Any] = {
    "rates": {}, "steps": None, "loader": None, "loss": None, "given": {}, "probes": [], "syscalls": None, "calls": None,
    "flame": None, "parameters": None, "native": None, "torch_profile": None, "checks": None, "evaluation": None, "ranks": [],
    "verdict": None, "alerts": [], "memory": None, "processors": None, "monitor": None, "overhead": None, "dropped": {}, "warnings": [],
    "what_if": None,
}  # fmt: skip


def summary_of(run: Run, *others: Run) -> dict[str, Any]:
    """The summary of an opened run, its steps computed from what was recorded.

    What the run itself wrote is kept; what it could not (it was killed, it goes on, it was one of several ranks) is filled in.

    Args:
        run: The run; of several directories that of the first rank.
        others: The directories of its other ranks, if they did not share one.

    Raises:
        RunDirectoryError: What was recorded is damaged where that could not be seen before.
    """
    import duckdb

    try:
        return _summary_of(run, others)
    except duckdb.Error as exc:
        raise run.damaged(exc) from None


def _summary_of(run: Run, others: Sequence[Run]) -> dict[str, Any]:
    found = _own(run)
    ranks = [rank for one in (run, *others) for rank in of_run(one)]
    found["loader"] = _loader((run, *others), ranks, found)
    if ranks or not found.get("steps"):
        found.update(computed(ranks, found))
    found["checks"] = checks_of((run, *others), ranks) or found["checks"]
    if found.get("monitor") is None:
        found["monitor"] = monitored(run)
    found["calls"] = _calls((run, *others), found.get("calls"))
    found["parameters"] = _parameters(run, found.get("parameters"))
    if os.path.isdir(os.path.join(run.path, NATIVE_FOLDER)):
        from voirkit.analysis.native import native_of  # 10 ms that few runs need

        found["native"] = native_of(run) or found["native"]
    if os.path.isdir(os.path.join(run.path, SYSCALLS_FOLDER)):
        from voirkit.analysis.syscalls.of_run import syscalls_of

        found["syscalls"] = syscalls_of(run) or found["syscalls"]
    if os.path.isdir(os.path.join(run.path, FLAME_FOLDER)):
        from voirkit.analysis.flame.of_run import flame_of

        found["flame"] = flame_of(run) or found["flame"]
    if os.path.isdir(os.path.join(run.path, TORCH_PROFILE_FOLDER)):
        from voirkit.analysis.torch_profile.of_run import torch_profile_of

        found["torch_profile"] = torch_profile_of(run, ranks) or found["torch_profile"]
    creep = memory_creep(run)
    found["alerts"] = [*alerts(found), *([creep] if creep else [])]
    if run.summary is None and not run.is_live:
        found["dropped"] = _dropped(run)
    for other in others:
        for name, n in _dropped(other).items():
            found["dropped"][name] = found["dropped"].get(name, 0) + n
    said = [warning for one in (run, *others) for warning in one.warnings]
    found["warnings"] = [*found["warnings"], *(w for w in dict.fromkeys(said) if w not in found["warnings"])]
    return found


def computed(ranks: Sequence[Rank], found: Mapping[str, Any]) -> dict[str, Any]:
    """``steps``, ``rates``, ``evaluation``, ``ranks``, ``verdict`` of a summary; rates given by hand (eval_rate) are kept."""
    made = figures(ranks)
    facts = dict(max(ranks, key=lambda r: len(r.steps.train)).facts) if ranks else {}
    made["rates"] = {**(found.get("rates") or {}), **made["rates"]}
    if "workers" in facts:
        made["steps"]["loader"] = {key: facts.get(key) for key in ("workers", "dataset", "batch_size")}
    made["verdict"] = verdict(made, {**facts, "loader": found.get("loader")})
    return made


def _loader(runs: Sequence[Run], ranks: Sequence[Rank], found: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the loaders did. A run of one rank has worked it out at its end, and keeps it without its trace."""
    own = found.get("loader")
    if own and own.get("operations") and found.get("world_size") == 1 and len(runs) == 1:
        return dict(own)
    training = dict.fromkeys(number for rank in ranks for number in rank.facts.get("loaders", ()))
    try:
        return loader_of(runs, list(training))
    except (LookupError, TypeError, ValueError) as exc:  # records that are not like any known ones; all else is still true
        runs[0].warnings.append(f"the loaders' records can not be worked out ({type(exc).__name__}: {exc}).")
        return None


def _parameters(run: Run, own: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the parameters did. A run of one rank has worked it out at its end."""
    kinds = run.connection().execute("SELECT 1 FROM spans WHERE kind = 'parameter' LIMIT 1").fetchone()
    if kinds is None or (own is not None and own["ranks"] == run.manifest.get("world_size", 1)):
        return None if own is None else dict(own)
    from voirkit.analysis.parameters import parameters_summary  # few runs need it

    return parameters_summary(run)


def _calls(runs: Sequence[Run], own: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What was called, beside what the run itself knows of it (``skipped``). A run of one rank has worked it out at its end."""
    if own is not None and "by_function" in own and len(runs) == 1 and len(own.get("by_rank") or ()) == 1 == _ranks_that_called(runs[0]):
        return dict(own)
    if not any(map(_ranks_that_called, runs)):
        return None if own is None else dict(own)
    from voirkit.analysis.calls.of_run import calls_of  # few runs need it

    return {**(own or {}), **(calls_of(runs) or {})}


def _ranks_that_called(run: Run) -> int:
    (found,) = run.connection().execute("SELECT count(DISTINCT rank) FROM spans WHERE kind = 'call'").fetchall()[0]
    return int(found)


def _own(run: Run) -> dict[str, Any]:
    """What the run wrote of itself, or what can be told of it without."""
    own, manifest = run.summary, run.manifest
    if own is not None and own.get("schema") != SCHEMA:
        run.warnings.append(f"{run.path}/summary.json has schema {own.get('schema')!r}, this voirkit knows {SCHEMA}: it is made anew.")
        own = None
    if own is not None and (strange := [key for key, empty in _EMPTY.items() if not _is_like(own.get(key), key, empty)]):
        run.warnings.append(f"{run.path}/summary.json is not like any that voirkit writes ({', '.join(strange[:3])}): it is made anew.")
        own = None
    found = {
        "schema": SCHEMA, "voirkit": manifest.get("voirkit"), "command": manifest.get("command", []),
        "exit_code": manifest.get("exit_code"), "duration_s": None, "world_size": manifest.get("world_size", 1), **_EMPTY, **(own or {}),
    }  # fmt: skip
    if own is None or found.get("ended") == "running":
        found["ended"] = "running" if run.is_live else _ended(manifest)
        found["duration_s"] = _duration(run)
    for key, empty in (("dropped", {}), ("warnings", []), ("given", {})):
        found[key] = found.get(key) or empty
    return found


def _is_like(value: object, key: str, empty: object) -> bool:
    """Whether a part of a summary is what it should be: a list, an object, or null."""
    return value is None or isinstance(value, list if isinstance(empty, list) or key == "checks" else dict)


def _ended(manifest: Mapping[str, Any]) -> str:
    ended = str(manifest.get("ended", "running"))
    return "killed" if ended == "running" else ended


def _duration(run: Run) -> float | None:
    """From the start of the run to the end of the last thing that was recorded; seconds."""
    begun = (run.manifest.get("clocks") or {}).get("perf_counter_ns")
    last = run.connection().execute("SELECT max(start_ns + duration_ns) FROM spans").fetchone()
    if begun is None or last is None or last[0] is None:
        return None
    return max(float(last[0] - begun) / 1e9, 0.0)


def _dropped(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for process in run.processes():
        for name, n in process.dropped.items():
            found[name] = found.get(name, 0) + n
    return found


def check_stream(run: Run) -> None:
    """Look whether the log stream can be read; what can not is said in the run's warnings, with file and line."""
    folder = os.path.join(run.path, "stream")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if not name.endswith(".jsonl"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not _is_object(line) and line.endswith("\n"):  # the last line of a run that was killed may be torn
                    run.warnings.append(f"stream/{name}:{number}: this line is no JSON object; it is left out.")


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
