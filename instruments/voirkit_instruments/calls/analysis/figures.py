"""``calls`` of a summary, from what the calls of all ranks come to together (docs/calls.md)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from voirkit_instruments.calls.analysis.partial import GROUPS, Function, Partial

MOST = 50  # functions that a summary names
_S = 1e9


def figures(partial: Partial) -> dict[str, Any]:
    """The functions that were called, those with most time of their own first.

    Returns:
        ``functions`` and ``events`` (how many), ``errors``, ``self_s``, ``by_function`` (at most 50), ``by_phase``, ``by_rank``,
        ``by_step``: calls in a step of training, and the functions (``varying``) that are not called equally often in all of them.
    """
    ordered = sorted(partial.functions.items(), key=lambda item: (-item[1].self_ns, item[0]))
    by_phase = {phase: _phase(partial, phase) for phase in GROUPS}
    return {
        "functions": len(ordered),
        "events": sum(one.n for _, one in ordered),
        "errors": sum(one.errors for _, one in ordered),
        "self_s": sum(one.self_ns for _, one in ordered) / _S,
        "by_function": {".".join(name): _function(one) for name, one in ordered[:MOST]},
        "by_phase": {phase: row for phase, row in by_phase.items() if row["n"]},
        "by_rank": [{"rank": rank, "n": n, "errors": e, "self_s": ns / _S} for rank, (n, e, ns) in sorted(partial.ranks.items())],
        "by_step": _by_step(partial, ordered),
    }


def _function(one: Function) -> dict[str, Any]:
    return {
        "n": one.n, "total_s": one.total_ns / _S, "self_s": one.self_ns / _S, "mean_s": one.all_ns / one.n / _S if one.n else 0.0,
        "max_s": one.most_ns / _S, "errors": one.errors, "a_step": counts(one.a_step),
        "phases": {phase: {"n": n, "self_s": ns / _S} for phase, (n, ns) in one.phases.items()},
    }  # fmt: skip


def _phase(partial: Partial, phase: str) -> dict[str, Any]:
    rows = [one.phases.get(phase, (0, 0)) for one in partial.functions.values()]
    return {"n": sum(n for n, _ in rows), "self_s": sum(ns for _, ns in rows) / _S}


def _by_step(partial: Partial, ordered: list[tuple[tuple[str, str], Function]]) -> dict[str, Any] | None:
    found = counts(partial.a_step)
    if found is None:
        return None
    varying = [".".join(name) for name, one in ordered if len(one.a_step) > 1]
    return {"steps": sum(partial.a_step.values()), "calls": found, "varying": varying[:MOST]}


def counts(numbers: Counter[int]) -> dict[str, int] | None:
    """Median, least and most of counted numbers; None of none."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    reached = np.cumsum([numbers[number] for number in ordered])
    median = ordered[int(np.searchsorted(reached, (reached[-1] + 1) // 2))]
    return {"median": median, "min": ordered[0], "max": ordered[-1]}
