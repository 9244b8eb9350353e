"""The figures of ``summary.json`` that come from steps: steps, phases, rates, evaluation, ranks (DESIGN 3.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.steps import LOSS, PARTS, PHASES, REST, WAIT, DeviceTable, Steps, Table

_NS = 1e-9


@dataclass(frozen=True)
class Rank:
    """What one rank did.

    Attributes:
        rank: Its number.
        host: Where it ran.
        steps: Its steps.
        facts: What else is known of it and of use to a verdict: ``workers``, ``dataset``, ``batch_size``, ``cpus`` of its training
            loader and host.
    """

    rank: int
    host: str
    steps: Steps
    facts: Mapping[str, Any] = field(default_factory=dict)


def figures(ranks: Sequence[Rank]) -> dict[str, Any]:
    """``steps``, ``rates``, ``evaluation`` and ``ranks`` of a summary.

    Ranks train in step: of several, ``steps.n`` is that of one, a step's items are those of all, its time that of the slowest, and
    the phases are summed over all, so that their shares are those of an average rank. Checkpoints between the steps are those of the
    rank that spends most on them: the others wait for it.
    """
    trained = [r for r in ranks if len(r.steps.train)]
    devices = [r.steps.device for r in trained if r.steps.device is not None]
    on_device = bool(trained) and len(devices) == len(trained)
    tables = [d.table for d in devices] if on_device else [r.steps.train for r in trained]
    evaluations = [r.steps.evaluation for r in ranks if len(r.steps.evaluation)]
    evaluated = [t.time_ns for t in evaluations]
    steps = _steps(tables, all(r.steps.wait_known for r in trained))
    if on_device:
        steps.update(_device(devices, [r.steps.train for r in trained]))
    saver = max((r.steps for r in trained), key=lambda one: one.saving_between_ns, default=None)
    if saver and saver.saving_between_ns:  # a share of the steps and these together
        steps["checkpoints_between"] = _part(saver.saving_between_ns, saver.saving_between_ns + int(saver.train.time_ns.sum()))
    return {
        "steps": steps,
        "rates": _rates(tables),
        "evaluation": {"n": max(map(len, evaluated)), "time_s": spread(np.concatenate(evaluated) * _NS)} if evaluated else None,
        "ranks": [_rank(r, table) for r, table in zip(trained, tables, strict=True)] if len(trained) > 1 else [],
    }


def spread(values: Array) -> dict[str, float] | None:
    """Median and the tenth and ninetieth percentile; None of nothing."""
    if not len(values):
        return None
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    return {"median": float(middle), "p10": float(low), "p90": float(high)}


def _steps(tables: Sequence[Table], wait_known: bool) -> dict[str, Any]:
    n = max((len(t) for t in tables), default=0)
    counted = [t.items[t.items >= 0] for t in tables]
    items = sum(int(c.sum()) for c in counted) if any(map(len, counted)) or not n else None
    time = _slowest([t.time_ns for t in tables])
    found: dict[str, Any] = {"n": n, "items": items, "time_s": spread(time * _NS), "phases": phases(tables)}
    if n and not wait_known:
        found["wait_known"] = False
    return found


def _device(devices: Sequence[DeviceTable], host: Sequence[Table]) -> dict[str, Any]:
    """``device``: when the GPU had nothing to do (``idle``), or was given too little (``launching``); and the host's own times."""
    total = sum(int(d.table.time_ns.sum()) for d in devices)
    idle = sum(int(d.table.own_ns[:, [WAIT, *range(LOSS, REST + 1)]].sum()) for d in devices)
    launching = sum(int(d.launching_ns.sum()) for d in devices)
    return {
        "time_of": "device",
        "device": {"idle": _part(idle, total), "launching": _part(launching, total)},
        "host_time_s": spread(_slowest([t.time_ns for t in host]) * _NS),
        "host_phases": {name: {k: v[k] for k in ("share", "total_s")} for name, v in phases(host).items()},
    }


def phases(tables: Sequence[Table]) -> dict[str, Any]:
    """Share, total and spread by phase over the steps of all tables; ``other`` with its parts."""
    total = sum(int(t.time_ns.sum()) for t in tables)
    found: dict[str, Any] = {}
    for phase in PHASES:
        values = np.concatenate([t.phase_ns(phase) for t in tables]) if tables else np.zeros(0)
        found[phase] = {**_part(int(values.sum()), total), "step_s": spread(values * _NS)}
    parts = {}
    for i, part in enumerate(PARTS[:-1]):
        spent = sum(int(t.own_ns[:, LOSS + i].sum()) for t in tables)
        if spent:
            parts[part] = _part(spent, total)
    found["other"]["parts"] = parts
    return found


def _part(spent: int, total: int) -> dict[str, float]:
    return {"share": spent / total if total else 0.0, "total_s": spent * _NS}


def _rates(tables: Sequence[Table]) -> dict[str, Any]:
    """Items per second by step: over the step, over its wait, over what is not wait."""
    if not tables:
        return {}
    n = min(len(t) for t in tables)
    known = np.all([t.items[:n] >= 0 for t in tables], axis=0)
    items = sum(t.items[:n] for t in tables)
    over = {
        "train_rate": _slowest([t.time_ns for t in tables]),
        "loading_rate": _slowest([t.phase_ns("wait") for t in tables]),
        "compute_rate": _slowest([t.time_ns - t.phase_ns("wait") for t in tables]),
    }
    found = {}
    for name, time in over.items():
        counted = known & (time > 0)
        values = items[counted] / (time[counted] * _NS)
        if len(values):
            found[name] = {**(spread(values) or {}), "n": len(values), "units": "items/s"}
    return found


def _slowest(times: Sequence[Array]) -> Array:
    """By step, the time of the rank that took longest; as many steps as all ranks have."""
    if not times:
        return np.zeros(0)
    n = min(map(len, times))
    return np.max([t[:n] for t in times], axis=0)


def _rank(rank: Rank, table: Table) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "steps": len(table),
        "time_s": spread(table.time_ns * _NS),
        "phases": {name: {k: v[k] for k in ("share", "total_s")} for name, v in phases([table]).items()},
    }
