"""``summary.json``'s key ``parameters``: a row for each parameter, and what is out of the ordinary."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from voirkit_instruments.parameters.analyse import (
    CHANGED,
    GRAD_INF,
    GRAD_NAN,
    GRAD_NONE,
    INF,
    KIND,
    NAN,
    Parameter,
    first_not_finite,
    parameters_of,
)  # fmt: skip

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

_POINTS = 24  # of a curve


def parameters_summary(run: Run) -> dict[str, Any] | None:
    """The key of a run; None if nothing of parameters was recorded. Layers are those of the first rank that has any."""
    cursor = run.connection().execute(f"SELECT count(*) FROM (SELECT 1 FROM spans WHERE kind = '{KIND}' LIMIT 1)")
    if not (cursor.fetchone() or (0,))[0]:
        return None
    found = summarised(parameters_of(run))
    return None if found is None else {**found, **others_of(run)}


def others_of(run: Run) -> dict[str, dict[str, dict[str, float | None]]]:
    """``buffers`` and ``state`` of the first rank, if ``--parameters-of`` asked for them: norms at first and last, by name."""
    query = f"""
        SELECT category, name, coalesce(arg_min(coalesce(number, 'nan'), start_ns), 'nan'), arg_max(coalesce(number, 'nan'), start_ns)
        FROM spans WHERE kind = '{KIND}' AND category IN ('buffer_norm', 'state_norm')
            AND rank = (SELECT min(rank) FROM spans WHERE kind = '{KIND}')
        GROUP BY category, name ORDER BY min(start_ns), name"""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for batch in run.fetch(query):
        for category, name, first, last in batch:
            key = "buffers" if category == "buffer_norm" else "state"
            found.setdefault(key, {})[name] = {"first": _json(first), "last": _json(last)}
    return found


def summarised(parameters: Sequence[Parameter]) -> dict[str, Any] | None:
    """The key from the parameters of a run."""
    if not parameters:
        return None
    lowest = min(parameter.rank for parameter in parameters)
    own = [parameter for parameter in parameters if parameter.rank == lowest]
    optimizers = {id(p.optimizer): p.optimizer for p in own}.values()
    broken = first_not_finite(own)
    layers = [_layer(parameter) for parameter in own]
    return {
        "every": max(one.every for one in optimizers),
        "optimizers": [{"optimizer": one.number, "class": one.kind, "steps": one.steps} for one in optimizers],
        "ranks": len({parameter.rank for parameter in parameters}),
        "layers": layers,
        "not_finite": None if broken is None else {"step": broken[0], "name": broken[1].name, "what": broken[2]},
        "frozen": [p.name for p in own if _is_frozen(p)],
        "never_changed": [p.name for p in own if p.ever_changed is False and not _is_frozen(p)],
        "never_gradient": [p.name for p in own if p.ever_gradient is False and not _is_frozen(p)],
        "not_watched": {p.name: p.seen[-1]["not_watched"] for p in own if p.seen and "not_watched" in p.seen[-1]},
    }


def _is_frozen(parameter: Parameter) -> bool:
    """It never required gradients."""
    return bool(parameter.seen) and not any(kind["requires_grad"] for kind in parameter.seen)


def _layer(parameter: Parameter) -> dict[str, Any]:
    seen: Mapping[str, Any] = parameter.seen[-1] if parameter.seen else {}
    shape = [int(size) for size in seen.get("shape", "").split(",") if size]
    ratios = parameter.update_ratios()
    return {
        "name": parameter.name, "shape": shape, "elements": math.prod(shape), "dtype": seen.get("dtype"), "device": seen.get("device"),
        "requires_grad": seen.get("requires_grad"), "model": seen.get("model"), "optimizer": seen.get("optimizer"),
        "group": seen.get("group"), "alias": seen.get("alias"),
        "steps": parameter.optimizer.steps,
        "looks": len(parameter.update_norms) or len(parameter.digests),
        "norm": _ends(parameter.norms), "grad_norm": _spread(parameter.grad_norms), "update_ratio": _spread(ratios),
        "changed_steps": parameter.steps_with(CHANGED), "ever_changed": parameter.ever_changed,
        "none_gradient_steps": parameter.steps_with(GRAD_NONE), "ever_gradient": parameter.ever_gradient,
        "nan_step": parameter.first(NAN), "inf_step": parameter.first(INF),
        "grad_nan_step": parameter.first(GRAD_NAN), "grad_inf_step": parameter.first(GRAD_INF),
        "became": [{key: value for key, value in kind.items() if value != before.get(key)}
                   for before, kind in zip(parameter.seen, parameter.seen[1:], strict=False)],
        "curves": {"norm": _curve(parameter.norms), "grad_norm": _curve(parameter.grad_norms), "update_ratio": _curve(ratios)},
    }  # fmt: skip


def _ends(points: Sequence[tuple[int, float]]) -> dict[str, float | None] | None:
    return {"first": _json(points[0][1]), "last": _json(points[-1][1])} if points else None


def _spread(points: Sequence[tuple[int, float]]) -> dict[str, float | int | None] | None:
    """Of the finite ones; ``n`` counts all."""
    if not points:
        return None
    finite = [value for _, value in points if math.isfinite(value)]
    middle, most = (statistics.median(finite), max(finite)) if finite else (None, None)
    return {"median": middle, "max": most, "last": _json(points[-1][1]), "n": len(points)}


def _curve(points: Sequence[tuple[int, float]]) -> list[list[float | int | None]]:
    """(step, figure) of at most some points, as far apart as can be; null is NaN or Inf."""
    most = len(points) - 1
    chosen = points if most < _POINTS else [points[round(at * most / (_POINTS - 1))] for at in range(_POINTS)]
    return [[n, _json(value)] for n, value in chosen]


def peaks_of(run: Run, most: int) -> dict[str, dict[str, list[list[float | int | None]]]]:
    """Curves of the first rank's parameters by name: finer than the summary's, so that no peak is lost; empty if it has no trace of them.

    Args:
        run: The run.
        most: Points of a curve; of more looks, the largest of each neighbourhood.
    """
    parameters = parameters_of(run)
    lowest = min((parameter.rank for parameter in parameters), default=0)
    return {
        one.name: {
            "norm": _peaks(one.norms, most),
            "grad_norm": _peaks(one.grad_norms, most),
            "update_ratio": _peaks(one.update_ratios(), most),
        }
        for one in parameters
        if one.rank == lowest
    }


def _peaks(points: Sequence[tuple[int, float]], most: int) -> list[list[float | int | None]]:
    edges = [round(at * len(points) / most) for at in range(most + 1)] if len(points) > most else range(len(points) + 1)
    chosen = [max(points[a:b], key=lambda point: point[1] if math.isfinite(point[1]) else math.inf) for a, b in pairwise(edges)]
    return [[n, _json(value)] for n, value in chosen]


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``parameters`` of a summary; see ``voirkit.instrument.Instrument``."""
    run, own = runs[0], summary.get("parameters")
    kinds = run.connection().execute(f"SELECT 1 FROM spans WHERE kind = '{KIND}' LIMIT 1").fetchone()
    if kinds is None or (own is not None and own["ranks"] == run.manifest.get("world_size", 1)):
        return None  # a run of one rank has worked it out at its end
    return {"parameters": parameters_summary(run)}
