"""The account of a run's wall time from its steps, and from what its main thread did outside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voirkit.analysis.document import Rank
from voirkit.analysis.joined import on_the_clock
from voirkit.analysis.steps import ASIDE, Steps
from voirkit.runs.wall import Moments, account, without_steps


def wall_of(manifest: Mapping[str, Any], duration_s: float | None, ranks: Sequence[Rank], imported_s: float = 0.0) -> dict[str, Any] | None:
    """``wall`` of a summary: that of the first rank, and of all processes that train for themselves, on the clock of the script's own.

    Args:
        manifest: ``run.json``.
        duration_s: Of the run.
        ranks: What its ranks did.
        imported_s: What the script's own process spent on imports, where another one that it has started trains.

    Returns:
        None if it is not known when the run began. ``waits``: the script's own process neither trains nor evaluates.
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
        spent = {name: before * 1e-9 for name, (before, _) in steps.aside_ns.items()} if steps is not None else {}
        return without_steps(moments, duration_s, spent)
    ended = moments.begun + round(duration_s * 1e9)
    script_ended = min(moments.script_ended or ended, ended)
    waits = first is not None and bool(first.processes) and (manifest.get("host"), manifest.get("pid")) not in first.processes
    if waits:  # for what it has started: what comes behind the last step is the end of that
        last = max(int((table.start_ns + table.time_ns).max()) for table in (steps.train, steps.evaluation) if len(table))
        script_ended = min(script_ended, last)
    begun = min(int(table.start_ns.min()) for table in (steps.train, steps.evaluation) if len(table))
    parts = _parts_ns(steps)
    parts["startup"] = begun - moments.begun - sum(before for before, _ in steps.aside_ns.values())
    if not parts["import"]:
        parts["import"] = max(min(round(imported_s * 1e9), parts["startup"]), 0)
        parts["startup"] -= parts["import"]
    since = sum(after for _, after in steps.aside_ns.values()) + parts["training"] + parts["evaluation"]
    inside = sum(int(table.own_ns[:, list(ASIDE.values())].sum()) for table in (steps.train, steps.evaluation))
    parts["between"] = script_ended - begun - since - inside
    parts["exit"] = ended - script_ended
    found = account({name: spent * 1e-9 for name, spent in parts.items()}, duration_s, (moments.script - moments.begun) * 1e-9)
    return {**found, "waits": True} if waits else found


def _parts_ns(steps: Steps) -> dict[str, int]:
    """Training and evaluation without what is a part of its own, and those parts, wherever they lie."""
    found = {}
    for name, table in (("training", steps.train), ("evaluation", steps.evaluation)):
        found[name] = int(table.time_ns.sum() - table.own_ns[:, list(ASIDE.values())].sum())
    for name, column in ASIDE.items():
        inside = sum(int(table.own_ns[:, column].sum()) for table in (steps.train, steps.evaluation))
        found[name] = inside + sum(steps.aside_ns.get(name, (0, 0)))
    return found
