"""Parameters in a report: the norm of each, of its gradient and of its updates over the steps, small pictures side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.html.components import Html, folded, join, said, section, table, text
from voirkit.report.html.plots import lines
from voirkit_instruments.parameters.show import facts, number

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_OPEN = 12  # parameters whose pictures are seen at once
_MOST = 120  # that have pictures
_ROWS = 400  # of the table
_RATIO = 50  # beyond it a curve is drawn by the logarithm
_POINTS = 120  # of a curve
_RECORDS = 2_000_000  # of which curves are made anew
_CURVES = {"norm": "norm", "grad_norm": "gradient", "update_ratio": "update / norm"}


def parameters(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Of runs with --parameters."""
    found = summary.get("parameters")
    if not found or not found.get("layers"):
        return None
    layers = found["layers"]
    finer = _finer(run)
    drawn = [made for layer in layers[:_MOST] if (made := _layer(layer, finer.get(layer["name"]) or layer["curves"]))]
    parts: list[Any] = [said(line) for line in facts(found)]
    if drawn:
        parts += [join(drawn[:_OPEN]), folded(f"{len(drawn) - _OPEN} more", *drawn[_OPEN:]) if len(drawn) > _OPEN else None]
    more = f" (the first {_ROWS} of {len(layers)})" if len(layers) > _ROWS else ""
    cells = [_cells(layer) for layer in layers[:_ROWS]]
    heads = ("parameter", "shape", "norm", "grad norm", "at most", "update/norm", "at most", "changed in")
    parts.append(folded(f"the same as a table{more}", table(heads, cells)))
    note = "Over the steps of the optimizer; a scale of which one end is more than 50 times the other is logarithmic. Red: not finite."
    note += f" Of more than {_POINTS} looks, the largest of each neighbourhood."
    if len(layers) > _MOST:
        note += f" The first {_MOST} of {len(layers)} parameters; voirkit report --json has all."
    return section("parameters", "Parameters", *parts, note=note)


def _finer(run: Run) -> Mapping[str, Any]:
    """Curves from the trace; none where that would take long, or it is not there."""
    connection = run.connection()
    (records,) = connection.execute("SELECT count(*) FROM spans WHERE kind = 'parameter'").fetchall()[0]
    if not 0 < records <= _RECORDS:
        return {}
    from voirkit_instruments.parameters.analyse import peaks_of

    return peaks_of(run, _POINTS)


def _layer(layer: Mapping[str, Any], curves: Mapping[str, Any]) -> Html | None:
    made = []
    for at, (key, name) in enumerate(_CURVES.items()):
        curve = curves.get(key) or []
        if len(curve) < 2:
            continue
        known = [value for _, value in curve if value]
        by_logarithm = bool(known) and len(known) == len(curve) and min(known) > 0 and max(known) > _RATIO * min(known)
        caption = f"{name}{' (log)' if by_logarithm else ''}: {number(curve[0][1])} → {number(curve[-1][1])}"
        points = [(float(x), y) for x, y in curve]
        picture = lines({name: points}, number, _step, caption, "optimizer steps", kind="small", logarithmic=by_logarithm)
        made.append(Html(f'<div class="series-{at}">{picture}</div>'))
    if not made:
        return None
    shape = "x".join(map(str, layer["shape"])) or "1"
    head = f'<h3>{text(layer["name"])} <span class="note">{text(shape)}</span></h3>'
    return Html(f'<div class="layer">{head}<div class="small">{join(made)}</div></div>')


def _step(x: float) -> str:
    return f"{x:,.0f}"


def _cells(layer: Mapping[str, Any]) -> tuple[str, ...]:
    norm, gradient, ratio = layer["norm"], layer["grad_norm"], layer["update_ratio"]
    return (
        layer["name"],
        "x".join(map(str, layer["shape"])) or "1",
        "" if norm is None else f"{number(norm['first'])} → {number(norm['last'])}",
        "none" if layer["ever_gradient"] is False else "" if gradient is None else number(gradient["median"]),
        "" if gradient is None else number(gradient["max"]),
        "" if ratio is None else number(ratio["median"]),
        "" if ratio is None else number(ratio["max"]),
        f"{layer['changed_steps'] / layer['steps']:.0%} of steps" if layer["steps"] else "",
    )
