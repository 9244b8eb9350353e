"""The parameters of a run as a table, and their norms, gradients and updates over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from voirkit.report import figure
from voirkit.report.sections import Block, Column, Details, Grid, Group, InText, OnPage, Section, Series, Table, Text, sparkline
from voirkit.runs.opened import Run
from voirkit_instruments.parameters.analyse import parameters_of, peaks

_MOST = 40  # rows of a terminal; all of them are in summary.json
_ROWS = 400  # of a page
_OPEN, _DRAWN = 12, 120  # parameters whose pictures are seen at once; that have pictures
_RATIO = 50  # beyond it a curve is drawn by the logarithm
_FINER_POINTS = 120  # of a page's curve
_RECORDS = 2_000_000  # of which curves are made again from the trace
_NAMED = 6
_CURVES = {"norm": "norm", "grad_norm": "gradient", "update_ratio": "update / norm"}
_NOTE = (
    f"Over the steps of the optimizer; a scale of which one end is more than {_RATIO} times the other is logarithmic. Red: not finite. "
    f"Of more than {_FINER_POINTS} looks, the largest of each neighbourhood."
)
_HEADS = (
    Column("parameter", left=True, cut=True), Column("shape", narrowest=96), Column("norm", narrowest=44),
    Column("grad norm", narrowest=58), Column("at most", narrowest=124), Column("update/norm"), Column("at most", narrowest=132),
    Column("its course", left=True, narrowest=108), Column("changed", narrowest=72),
)  # fmt: skip

Layer = Mapping[str, Any]


def sections(parameters: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    layers: Sequence[Layer] = parameters.get("layers") or ()
    if not layers:
        return
    cells = [_cells(layer) for layer in layers[:_ROWS]]
    title = "the same as a table" + (f" (the first {_ROWS} of {len(layers)})" if len(layers) > _ROWS else "")
    blocks = [
        *_facts(parameters), InText([Table(_HEADS, cells, most=_MOST, total=len(layers))]), OnPage(partial(_pictures, layers)),
        OnPage([Details(title, [Table(_HEADS, cells, total=len(layers))])]),
    ]  # fmt: skip
    more = f" The first {_DRAWN} of {len(layers)} parameters; voirkit report --json has all." if len(layers) > _DRAWN else ""
    yield Section("parameters", "Parameters", [*blocks, OnPage([Text(_NOTE + more, mood="note")])])


def _cells(layer: Layer) -> tuple[str, ...]:
    norm, gradient, ratio = layer["norm"], layer["grad_norm"], layer["update_ratio"]
    return (
        layer["name"],
        _shape(layer),
        "" if norm is None else f"{_number(norm['first'])} -> {_number(norm['last'])}",
        "none" if layer["ever_gradient"] is False else "" if gradient is None else _number(gradient["median"]),
        "" if gradient is None else _number(gradient["max"]),
        "" if ratio is None else _number(ratio["median"]),
        "" if ratio is None else _number(ratio["max"]),
        sparkline([value for _, value in layer["curves"]["update_ratio"]]),
        f"{layer['changed_steps'] / layer['steps']:.0%}" if layer["steps"] else "",
    )


def _shape(layer: Layer) -> str:
    return "x".join(map(str, layer["shape"])) or "1"


def _number(value: float | None) -> str:
    """A figure of which JSON has null if it was not finite."""
    if value is None:
        return "not finite"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else figure(value)


def _facts(parameters: Mapping[str, Any]) -> Iterator[Block]:
    """How many there are and who steps them; what is not as it should be; a line each."""
    steps = ", ".join(f"{one['class']} {one['steps']:,} steps" for one in parameters["optimizers"])
    n = len(parameters["layers"])
    yield Text(f"{n:,} parameters   {steps}   each recorded in full every {parameters['every']} steps", "parameters")
    broken = parameters["not_finite"]
    if broken is not None:
        yield Text(f"{broken['what']} of {broken['name']} first, in step {broken['step']}", "not finite", strong=True, mood="bad")
    for key, label in (("frozen", "frozen"), ("never_changed", "never changed"), ("never_gradient", "never had a gradient")):
        names = parameters[key]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            is_news = key != "frozen"
            yield Text(", ".join(names[:_NAMED]) + more, label, strong=is_news, mood="warning" if is_news else "")
    for layer in parameters["layers"]:
        for change in layer["became"]:
            what = ", ".join(f"{key} {value}" for key, value in change.items() if key != "n")
            yield Text(f"{layer['name']}: {what} in step {change.get('n', 0)}", "changed its kind", strong=True, mood="warning")
    if parameters["not_watched"]:
        name, why = next(iter(parameters["not_watched"].items()))
        yield Text(f"{len(parameters['not_watched'])} parameters: {name}: {why}", "not watched", strong=True, mood="warning")


# small pictures side by side


def _pictures(layers: Sequence[Layer], run: Run) -> list[Block]:
    finer = _finer_curves(run)
    drawn = [group for layer in layers[:_DRAWN] if (group := _picture(layer, finer.get(layer["name"]) or layer["curves"]))]
    return [*drawn[:_OPEN], *([Details(f"{len(drawn) - _OPEN} more", drawn[_OPEN:])] if len(drawn) > _OPEN else [])]


def _finer_curves(run: Run) -> Mapping[str, Any]:
    """Curves of the first rank's parameters by name, from the trace; none where that would take long, or it is not there."""
    (records,) = run.connection().execute("SELECT count(*) FROM spans WHERE kind = 'parameter'").fetchall()[0]
    parameters = parameters_of(run) if 0 < records <= _RECORDS else []
    lowest = min((parameter.rank for parameter in parameters), default=0)
    own = {one.name: {"norm": one.norms, "grad_norm": one.grad_norms, "update_ratio": one.update_ratios()}
           for one in parameters if one.rank == lowest}  # fmt: skip
    return {name: {key: peaks(points, _FINER_POINTS) for key, points in curves.items()} for name, curves in own.items()}


def _picture(layer: Layer, curves: Mapping[str, Any]) -> Block | None:
    series: list[Block] = []
    for key, name in _CURVES.items():
        curve = curves.get(key) or []
        if len(curve) < 2:
            continue
        positive = [value for _, value in curve if value]
        is_wide = len(positive) == len(curve) and min(positive) > 0 and max(positive) > _RATIO * min(positive)
        caption = f"{name}{' (log)' if is_wide else ''}: {_number(curve[0][1])} → {_number(curve[-1][1])}"
        points = [(float(x), y) for x, y in curve]
        series.append(Series({name: points}, caption, axis="optimizer steps", logarithmic=is_wide))
    return Group(f"{layer['name']}  {_shape(layer)}", [Grid(series)]) if series else None
