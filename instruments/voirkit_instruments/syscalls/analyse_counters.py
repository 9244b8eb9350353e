"""What processes counted of themselves (``--syscalls=counters``) as a document like those of tracers: only what reads and writes."""

from __future__ import annotations

from typing import Any

from voirkit_instruments.syscalls import record_counted as counted
from voirkit_instruments.syscalls.record_markers import OTHER, OWN


def document(folder: str, stem: str) -> dict[str, Any]:
    """The counters of a rank's processes.

    Args:
        folder: Where their files are.
        stem: What their names begin with.

    Returns:
        As ``figures``: calls of all kinds that read are ``read``, those that write ``write``; ``usage``: {phase: {column: number}}.
    """
    threads: dict[str, dict[str, dict[str, Any]]] = {}
    usage: dict[str, dict[str, float]] = {}
    entered: dict[str, dict[str, int]] = {}
    for path in counted.files(folder, stem):
        worker, phases = counted.read(path)
        main = path.endswith(f"/{stem}{counted.ENDING}")
        kind = "main" if main else f"worker {worker}" if worker >= 0 else "child"
        for name, row in phases.items():
            if name == OWN:
                continue
            phase = "worker" if worker >= 0 and name == OTHER else name
            _add(threads.setdefault(kind, {}).setdefault(phase, {}), row)
            times = entered.setdefault(kind, {})
            times[phase] = times.get(phase, 0) + row["entered"]
            sums = usage.setdefault(phase, dict.fromkeys(counted.COLUMNS, 0))
            for column, value in row.items():
                sums[column] += value
    phases_: dict[str, dict[str, Any]] = {}
    for rows in threads.values():
        for phase, calls in rows.items():
            for name, call in calls.items():
                known = phases_.setdefault(phase, {}).setdefault(name, {**call, "calls": 0, "bytes": 0})
                known["calls"] += call["calls"]
                known["bytes"] += call["bytes"]
    return {
        "entered": entered,
        "phases": phases_, "threads": threads, "usage": usage, "waits": [], "operations": {}, "files": [], "folders": [], "over_time": None,
        "totals": {phase: _total(phases_.get(phase, {}), row) for phase, row in usage.items()},
        "calls": sum(call["calls"] for calls in phases_.values() for call in calls.values()), "markers": 0, "uring": 0,
        "own": {"calls": 0, "seconds": None},
    }  # fmt: skip


def _add(calls: dict[str, Any], row: dict[str, int]) -> None:
    for name in ("read", "write"):
        if row[f"{name}_calls"]:
            call = calls.setdefault(name, {"calls": 0, "errors": None, "seconds": None, "bytes": 0})
            call["calls"] += row[f"{name}_calls"]
            call["bytes"] += row[f"{name}_bytes"]


def _total(calls: dict[str, Any], row: dict[str, float]) -> dict[str, Any]:
    sums = {key: sum(call[key] for call in calls.values()) for key in ("calls", "bytes")}
    none = {"calls": 0, "errors": None, "seconds": None, "bytes": 0}
    return {
        "entered": int(row["entered"]), "lasted_s": row["lasted_ns"] * 1e-9,
        "working": {**none, **sums, "seconds": row["system_us"] * 1e-6}, "waiting": none,
    }  # fmt: skip
