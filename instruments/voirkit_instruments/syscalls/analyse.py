"""The system calls of a run: what its tracers wrote, counted; also of runs that were killed.

The counts of each rank are kept beside the log; a log that only was there to be counted is then removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from voirkit.runs.alive import has_settled
from voirkit.runs.directory import read_json, write_json
from voirkit.runs.lock import locked
from voirkit_instruments.syscalls import FOLDER
from voirkit_instruments.syscalls import analyse_counters as counters
from voirkit_instruments.syscalls.analyse_attribution import Attribution, Known
from voirkit_instruments.syscalls.analyse_figures import figures, merged
from voirkit_instruments.syscalls.analyse_kernel import RingError, RingLog
from voirkit_instruments.syscalls.analyse_operations import operations_of
from voirkit_instruments.syscalls.analyse_read import SyscallLogError, read_strace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

SCHEMA = 1
_KEPT = ("full", "files")  # modes whose logs are of use beyond the counts


def syscalls_of(run: Run) -> dict[str, Any] | None:
    """What the summary says of system calls; None if they were not recorded."""
    folder = os.path.join(run.path, FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    found = []
    for stem in [
        name.removesuffix(".json") for name in names if name.endswith(".json") and not name.endswith((".counts.json", ".ring.json"))
    ]:
        counts = _counted(run, folder, stem)
        if counts is not None:
            found.append(counts)
    return merged(found) if found else None


def is_by_strace(run: Run) -> bool:
    """Whether strace has traced a run: each system call stopped for it, so that all times with calls in them are far too long."""
    folder = os.path.join(run.path, FOLDER)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = [read_json(os.path.join(folder, name), SCHEMA) for name in names if name.endswith(".json")]
    return any(one is not None and one.get("tool") == "strace" for one in found)


def _counted(run: Run, folder: str, stem: str) -> dict[str, Any] | None:
    """The counts of a rank, which the first that asks for them makes: others of the same moment wait for it."""
    counts = os.path.join(folder, f"{stem}.counts.json")
    known = read_json(counts, SCHEMA)
    if known is not None:
        return known
    try:
        with locked(os.path.join(folder, f"{stem}.lock")):
            return read_json(counts, SCHEMA) or _count(run, folder, stem)
    except OSError:  # the folder can not be written to: nobody keeps or removes anything there
        return _count(run, folder, stem)


def _count(run: Run, folder: str, stem: str) -> dict[str, Any] | None:
    """Count what a tracer wrote, and keep the counts."""
    taken = read_json(os.path.join(folder, f"{stem}.json"), SCHEMA)
    if taken is None or not has_settled(taken, "tracer_pid"):
        return None
    try:
        document = _document(run, folder, stem, taken)
    except (SyscallLogError, RingError, OSError, KeyError, TypeError, ValueError) as exc:
        run.warnings.append(f"--syscalls: what {taken.get('tool')} wrote can not be counted ({exc}).".replace("\n", " "))
        return None
    document = {
        "schema": SCHEMA, **{key: taken.get(key) for key in ("tool", "mode")}, "trusted": taken.get("trusted"), "cut": taken.get("cut"),
        "cost": _cost(taken, document), **document,
    }  # fmt: skip
    try:
        write_json(os.path.join(folder, f"{stem}.counts.json"), document)
        if taken.get("ended") and taken.get("mode") not in _KEPT:
            _remove(folder, stem)
    except OSError:
        pass  # who opens the run next counts again
    return document


def _remove(folder: str, stem: str) -> None:
    """Remove what has been counted."""
    for name in os.listdir(folder):
        if name == f"{stem}.strace" or (name.startswith(f"{stem}.") and name.endswith((".ring", ".mapped"))):
            os.remove(os.path.join(folder, name))


def _document(run: Run, folder: str, stem: str, taken: Mapping[str, Any]) -> dict[str, Any]:
    if taken["tool"] == "counters":
        return counters.document(folder, stem)
    known = _known(run, taken)
    if taken["tool"] == "strace":
        return read_strace(os.path.join(folder, taken["log"]), known)[0]
    if not any(name.startswith(f"{stem}.") and name.endswith(".ring") for name in os.listdir(folder)):
        raise RingError("the counts that were kept are damaged, and what they were made of was removed")
    log = RingLog(os.path.join(folder, stem))
    document = figures(Attribution(known).add(log.events()), timed=True)
    if log.lost:
        document["lost"] = log.lost
    return document


def _known(run: Run, taken: Mapping[str, Any]) -> Known:
    return Known(
        pid=taken["pid"],
        threads={int(tid): name for tid, name in taken["threads"].items()},
        files={int(number): path for number, path in taken["files"].items()},
        own=frozenset(taken.get("own") or ()),
        own_folder=taken["run_dir"],
        operation=operations_of(run, taken["rank"], taken["host"], _clock(taken)),
        origin=_origin(run, taken),
    )


def _origin(run: Run, taken: Mapping[str, Any]) -> float:
    """The beginning of the run, the same for all its ranks, on the clock of a rank's log: the wall clock of strace, the kernel's own."""
    began_ns = (run.manifest.get("clocks") or {}).get("time_ns") or taken["began_time_ns"]
    run_0, wall_0 = taken["clocks"][0]
    return float(began_ns if taken["tool"] == "strace" else began_ns - wall_0 + run_0) * 1e-9


def _clock(taken: Mapping[str, Any]) -> Callable[[float], int]:
    """From a time of the log to nanoseconds on the run's clock; the wall clock, which may be corrected meanwhile, is stretched to fit."""
    if taken["tool"] != "strace":
        return lambda at: round(at * 1e9)
    (run_0, wall_0), (run_1, wall_1) = taken["clocks"][0], taken["clocks"][-1]
    stretch = (run_1 - run_0) / (wall_1 - wall_0) if wall_1 > wall_0 else 1.0
    return lambda at: run_0 + round((at * 1e9 - wall_0) * stretch)


def _cost(taken: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """What tracing cost: the tracer's time on a processor, and how much longer each call took the program."""
    if taken["tool"] == "counters":
        edges, edge_s = taken.get("edges", 0), taken.get("edge_s", 0.0)
        return {"tracer_s": None, "call_s": None, "edge_s": edge_s, "program_s": edge_s * edges, "events": edges}
    longer = max(taken.get("traced_call_s", 0.0) - taken["plain_call_s"], 0.0)
    n = (document.get("calls") or 0) + (document.get("markers") or 0) + (document.get("own") or {}).get("calls", 0)
    return {"tracer_s": taken.get("took_s"), "call_s": longer, "plain_call_s": taken["plain_call_s"], "program_s": longer * n, "events": n}


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``syscalls`` of a summary; see ``voirkit.instrument.Instrument``."""
    if not os.path.isdir(os.path.join(runs[0].path, FOLDER)):
        return None
    part = syscalls_of(runs[0])
    return {"syscalls": part} if part else None
