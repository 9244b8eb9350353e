"""Sums over what torch's profiler recorded: operators by phase, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.torch_profile.analyse_attribute import NAMES, Attributed
from voirkit_instruments.torch_profile.analyse_events import ANNOTATION, KERNEL, MEMORY, OPERATOR, RUNTIME, Events

MOST = 40  # operators of a phase, and kernels, that have a row of their own
OTHERS = "(others)"
_SUMS = ("calls", "cpu_s", "device_s", "self_cpu_s", "self_device_s", "bytes", "freed")

Row = dict[str, Any]


def figures(events: Events, found: Attributed, chosen: Array) -> dict[str, Any]:
    """The sums of the chosen events.

    Args:
        events: Of a recording.
        found: Their places.
        chosen: Whether each counts; shape (n,).
    """
    on_host = np.isin(events.category, (OPERATOR, ANNOTATION, RUNTIME)) & chosen
    taken = (events.category == MEMORY) & chosen & (events.device < 0)
    holder = np.maximum(found.parent, 0)
    has_holder = taken & (found.parent >= 0)
    parts = {
        "calls": (on_host, np.ones(len(chosen)), None),
        "cpu_s": (on_host, events.duration_ns / 1e9, None),
        "device_s": (on_host, found.device_ns / 1e9, None),
        "self_cpu_s": (on_host, found.self_ns / 1e9, None),
        "self_device_s": (on_host, found.self_device_ns / 1e9, None),
        "bytes": (has_holder, np.maximum(events.bytes, 0), holder),
        "freed": (has_holder, np.maximum(-events.bytes, 0), holder),
    }
    n = len(events.names)
    phases: dict[str, dict[str, Row]] = {}
    for number, phase in enumerate(NAMES):
        sums = {}
        for key, (which, amounts, at) in parts.items():
            which = np.flatnonzero(which & (found.phase == number))
            names = events.name[which if at is None else at[which]]
            sums[key] = np.bincount(names, weights=amounts[which], minlength=n)
        rows = {events.names[i]: {key: _plain(key, sums[key][i]) for key in _SUMS} for i in np.flatnonzero(sums["calls"]).tolist()}
        if rows:
            phases[phase] = rows
    kernels: dict[str, Row] = {}
    which = np.flatnonzero((events.category == KERNEL) & chosen)
    for name, phase, lasted in zip(
        events.name[which].tolist(), found.phase[which].tolist(), events.duration_ns[which].tolist(), strict=True
    ):
        row = kernels.setdefault(events.names[name], {"calls": 0, "device_s": 0.0, "phases": {}})
        row["calls"] += 1
        row["device_s"] += lasted / 1e9
        row["phases"][NAMES[phase]] = row["phases"].get(NAMES[phase], 0.0) + lasted / 1e9
    return {"phases": {phase: {"operators": rows} for phase, rows in phases.items()}, "kernels": kernels}


def _plain(key: str, value: float) -> float | int:
    return float(value) if key.endswith("_s") else int(value)


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of several recordings or ranks."""
    phases: dict[str, dict[str, dict[str, Row]]] = {}
    kernels: dict[str, Row] = {}
    for part in parts:
        for phase, found in part["phases"].items():
            rows = phases.setdefault(phase, {"operators": {}})["operators"]
            for name, row in found["operators"].items():
                _add(rows.setdefault(name, dict.fromkeys(row, 0)), row)
        for name, row in part["kernels"].items():
            kernel = kernels.setdefault(name, {"calls": 0, "device_s": 0.0, "phases": {}})
            kernel["calls"] += row["calls"]
            kernel["device_s"] += row["device_s"]
            _add(kernel["phases"], row["phases"])
    return {"phases": {phase: phases[phase] for phase in NAMES if phase in phases}, "kernels": kernels}


def _add(into: dict[str, Any], row: Mapping[str, Any]) -> None:
    for key, value in row.items():
        into[key] = into.get(key, 0) + value


def shortened(document: dict[str, Any]) -> dict[str, Any]:
    """The same with the rows that matter, those that take most time first; what is left out is summed in one."""
    for found in document["phases"].values():
        rows = sorted(found["operators"].items(), key=lambda item: -max(item[1]["self_cpu_s"], item[1]["self_device_s"]))
        kept = dict(rows[:MOST])
        for _, row in rows[MOST:]:
            _add(kept.setdefault(OTHERS, {}), row)
        found.update(
            operators=kept, **{key: sum(row[key] for _, row in rows) for key in ("calls", "self_cpu_s", "self_device_s", "bytes", "freed")}
        )
    kernels = sorted(document["kernels"].items(), key=lambda item: -item[1]["device_s"])
    document["kernels"] = dict(kernels[:MOST])
    for _, row in kernels[MOST:]:
        rest = document["kernels"].setdefault(OTHERS, {"calls": 0, "device_s": 0.0, "phases": {}})
        rest["calls"] += row["calls"]
        rest["device_s"] += row["device_s"]
        _add(rest["phases"], row["phases"])
    return document
