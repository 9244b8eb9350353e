"""Overhead of voirkit in a run, in all its processes: ``overhead`` of the summary.

The main process of a run measures the time inside of voirkit's own functions. The rest cannot be
measured there, and is estimated here from the records of each process: entering and leaving patched
functions, the data that voirkit evicts from CPU caches, and all overhead in workers and in
processes that ended before they could report it (``os._exit``, a signal).

The estimate takes each record as a number of patched calls of a function that does nothing. Such a
call is timed on this machine when the run is read. The number for each kind of record comes from
benchmarks/printed_overhead.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voirkit.runs.summary import overhead

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

# The cost of one record of each kind to the process that writes it. The unit is a patched call of
# a function that does nothing (0.18 us on a quiet machine). A phase surrounds code of the program,
# which evicts voirkit's code and data from the CPU caches: each begin or end of a phase after
# ``COLD_NS`` of the program's own time costs "cold" in addition. Records of loaders follow one
# another directly.
# The cost of a record of --checks or --parameters includes the look-ups at each of its calls.
# A reading of --memory-snapshot reads a file of the kernel.
CALLS = {
    "phase": 3.0,
    "cold": 38.0,
    "loader": 7.0,
    "call": 18.0,
    "batch": 3.0,
    "symptom": 45.0,
    "check": 180.0,
    "parameter": 290.0,
    "span": 4.0,
    "reading": 60.0,
}
# Workers run at the same time, usually two on the hardware threads of one core: the same code takes
# twice as long.
_WORKERS_SLOWER = 2.0
_ROUNDS, _TIMES = 7, 200


def overhead_of(runs: Sequence[Run], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``overhead`` of a summary.

    Args:
        runs: The run, or the directories of its ranks.
        summary: The summary so far: what the run itself measured, its ``duration_s`` and
            ``processors``.

    Returns:
        ``overhead``. It is unchanged (or None, if the summary has none) if the estimates were added
        before, or if the duration of the run is not known.
    """
    document = summary.get("overhead")
    duration_s = summary.get("duration_s")
    if duration_s is None or (document is not None and "patches" in document.get("parts", {})):
        return None if document is None else dict(document)
    # The estimates are CPU time, all other values are wall time. So the estimates are increased by
    # the share of time that the processes waited for a processor.
    processors = summary.get("processors") or {}
    waiting = processors["waited_s"] / processors["own_s"] if processors.get("own_s") else 0.0
    call_s = _call_s() * (1 + waiting)
    leader = (runs[0].manifest.get("rank", 0), runs[0].manifest.get("pid"))
    seconds: dict[str, float] = dict.fromkeys(("patches", "workers"), 0.0)
    # records that the run's main process (``leader``) writes after the run do not count
    events, ranks = int((document or {}).get("events", 0)), set()
    for run in runs:
        for rank, _, pid, kind, (n, cold, looks_ns, readings, _) in run.tallies():
            ranks.add(rank)
            calls = CALLS.get(kind, 0.0) * n + CALLS["cold"] * cold + CALLS["reading"] * readings
            cost_s = calls * call_s
            if (rank, pid) == leader:
                seconds["patches"] += cost_s
                if document is None:
                    events += n
                    seconds["instruments"] = seconds.get("instruments", 0.0) + looks_ns / 1e9
            else:
                events += n
                seconds["workers"] += cost_s * _WORKERS_SLOWER + looks_ns / 1e9
    parts = (document or {}).get("parts") or {}
    measured = {name: float(part["seconds"]) for name, part in parts.items()}
    if document is not None:
        seconds["patches"] = max(seconds["patches"] - measured.get("recording", 0.0), 0.0)
    return overhead(events, duration_s * max(len(ranks), 1), measured, seconds)


def _call_s() -> float:
    """Return the additional seconds of a patched call of a function that does nothing, compared
    with a plain call, including its record."""
    from voirkit.trace.recorder import engine

    now, trial = time.perf_counter_ns, engine.trial

    def enter(*_: object) -> int:
        return now()

    def leave(begin_ns: int, _: object) -> None:
        trial(1, begin_ns, now())

    def plain(value: object) -> object:
        return value

    def patched(value: object) -> object:
        begin_ns = 0
        try:
            begin_ns = enter(value)
            return value
        finally:
            leave(begin_ns, value)

    def took(function: Any) -> int:
        begin_ns = now()
        for _ in range(_TIMES):
            function(None)
        return now() - begin_ns

    patched_ns = min(took(patched) for _ in range(_ROUNDS))
    plain_ns = min(took(plain) for _ in range(_ROUNDS))
    return max(patched_ns - plain_ns, 0) / _TIMES / 1e9
