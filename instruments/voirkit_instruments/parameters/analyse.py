"""The parameters of a run, one by one: what they are, their figures by step, what was true of each step; as a table and as curves."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from voirkit.report import figure
from voirkit.report.sections import Block, Column, Details, Grid, Group, InText, OnPage, Section, Series, Table, Text, sparkline
from voirkit.runs.opened import Run
from voirkit_instruments.parameters.record_plan import (
    CHANGED,
    GRAD_INF,
    GRAD_NAN,
    GRAD_NONE,
    INF,
    KIND,
    NAN,
    SAME,
    model_labels,
    model_of,
    prefixed,
)  # fmt: skip

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank

_FIGURES = {"norm": "norms", "grad_norm": "grad_norms", "update_norm": "update_norms"}

Points = list[tuple[int, float]]


@dataclass
class Optimizer:
    """An optimizer of a process."""

    rank: int
    host: str
    pid: int
    number: int  # in the process
    kind: str  # its class's name
    every: int  # steps between two looks at a parameter
    steps: int = 0  # how many it has made


@dataclass
class Parameter:
    """A parameter in the steps of one optimizer. Steps are counted from 0; a figure that is NaN is ``nan``. The optimizer is the one in
    whose steps it was looked at; it is one of its own if ``seen[-1]["optimizer"]`` is not None."""

    rank: int
    name: str
    optimizer: Optimizer
    seen: list[dict[str, Any]] = field(default_factory=list)  # what it was (shape, dtype ...), with the n of the step; several: it changed
    norms: Points = field(default_factory=list)  # (step, figure); the last may be that of the end, whose step is optimizer.steps
    grad_norms: Points = field(default_factory=list)
    update_norms: Points = field(default_factory=list)
    digests: list[tuple[int, int, str]] = field(default_factory=list)  # (step, digest, what kind of digest)
    states: list[tuple[int, int]] = field(default_factory=list)  # (step, flags): true of that step, as far as known until the next

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """(first step, the one behind the last, flags) of steps of which the same is known."""
        ends = [n for n, _ in self.states[1:]] + [max(self.optimizer.steps, self.states[-1][0] + 1)] if self.states else []
        for (n, flags), end in zip(self.states, ends, strict=True):
            yield n, end, flags

    def steps_with(self, flag: int) -> int:
        """Of how many steps a flag is true, as far as is known."""
        return sum(end - n for n, end, flags in self.spans() if flags & flag)

    def first(self, flag: int) -> int | None:
        """The first step of which a flag is true."""
        return next((n for n, flags in self.states if flags & flag), None)

    @property
    def ever_changed(self) -> bool | None:
        """Whether a step or anything else has changed its data; None: nothing says so, and nothing says that it was not."""
        if any(flags & CHANGED for _, flags in self.states) or len({(digest, of) for _, digest, of in self.digests}) > 1:
            return True
        return False if len(self.digests) > 1 or any(flags & SAME for _, flags in self.states) else None

    @property
    def ever_gradient(self) -> bool | None:
        """Whether it ever had a gradient; None: it is not known."""
        return any(not flags & GRAD_NONE for _, flags in self.states) if self.states else None

    def update_ratios(self) -> Points:
        """2-norm of the update over that of the data before it, by step."""
        norms = dict(self.norms)
        return [(n, update / norms[n]) for n, update in self.update_norms if norms.get(n)]


def parameters_of(run: Run) -> list[Parameter]:
    """The parameters of a run, in the order in which the optimizers hold them."""
    columns = "rank, host, pid, start_ns, category, name, value, number, args"
    optimizers: dict[tuple[int, str, int, int], Optimizer] = {}
    at: dict[tuple[int, str, int, int], tuple[Optimizer, int]] = {}  # by process and time: which step
    steps = f"SELECT {columns} FROM spans WHERE kind = '{KIND}' AND category = 'step' ORDER BY start_ns"
    for batch in run.fetch(steps):
        for rank, host, pid, start_ns, _, _, n, _, text in batch:
            said = json.loads(text)
            key = (rank, host, pid, said["optimizer"])
            one = optimizers.get(key)
            if one is None:
                one = optimizers[key] = Optimizer(rank, host, pid, said["optimizer"], said["class"], said["every"])
            one.steps = max(one.steps, n + 1)
            at[rank, host, pid, start_ns] = (one, n)
    found: dict[tuple[int, str, int, str, int], Parameter] = {}
    met: dict[tuple[int, str, int, str], list[dict[str, Any]]] = {}
    known: dict[tuple[Any, ...], list[dict[str, Any]]] = {}  # all that was seen of each
    rest = (
        f"SELECT {columns} FROM spans WHERE kind = '{KIND}' "
        "AND category IN ('seen', 'state', 'digest', 'norm', 'grad_norm', 'update_norm') "
        "ORDER BY start_ns, (category = 'seen') DESC"
    )
    for batch in run.fetch(rest):
        for rank, host, pid, start_ns, category, name, value, number, text in batch:
            who = (rank, host, pid, name)
            if category == "seen":
                met.setdefault(who, []).append(json.loads(text))
                known.setdefault(who, []).append(met[who][-1])
                continue
            step = at.get((rank, host, pid, start_ns))
            for one, n in [step] if step else _at_end(optimizers.values(), found, who):
                key_of = (*who, one.number)
                parameter = found.get(key_of)
                if parameter is None:
                    parameter = found[key_of] = Parameter(rank, name, one)
                for kind in [kind for kind in met.get(who, ()) if kind["optimizer"] in (None, one.number)]:
                    met[who].remove(kind)
                    parameter.seen.append({"n": n, **kind})
                _add(parameter, n, category, value, number, text)
    for (rank, host, pid, name), kinds in met.items():
        if not kinds or any((rank, host, pid, name) == key[:4] for key in found):
            continue  # else nothing is known but that it is there: it cannot be watched
        of = next((o for (r, h, p, _), o in optimizers.items() if (r, h, p) == (rank, host, pid)), None)
        if of is not None:
            found.setdefault((rank, host, pid, name, of.number), Parameter(rank, name, of)).seen += [{"n": 0, **kind} for kind in kinds]
    held = {who: numbers for who, kinds in known.items() if (numbers := {kind["optimizer"] for kind in kinds} - {None})}
    _tell_models_apart(found.values())
    # One that no optimizer seemed to have until its own made its first step is that one's.
    return sorted((one for (*who, number), one in found.items() if number in held.get(tuple(who), {number})), key=_order)


def _tell_models_apart(parameters: Collection[Parameter]) -> None:
    """Name parameters as they are called in their model, and where a process has several models by the model first.

    A record is written when not all models may have been called yet.
    """
    processes: dict[tuple[int, str, int], list[Mapping[str, Any]]] = {}
    for parameter in parameters:
        optimizer = parameter.optimizer
        processes.setdefault((optimizer.rank, optimizer.host, optimizer.pid), []).extend(parameter.seen)
    labels = {process: _labels(facts) for process, facts in processes.items()}
    for parameter in parameters:
        optimizer = parameter.optimizer
        for facts in parameter.seen:
            model = model_of(facts)
            if model is None:
                continue
            label = labels[optimizer.rank, optimizer.host, optimizer.pid][model.number]
            parameter.name = prefixed(label, facts["path"])
            if "alias" in facts:
                facts["alias"] = prefixed(label, facts["alias"])


def _labels(all_facts: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """What tells the models apart that some records have facts of, by their numbers."""
    models = {model.number: model for facts in all_facts if (model := model_of(facts)) is not None}
    return model_labels([models[number] for number in sorted(models)])


def _order(parameter: Parameter) -> tuple[int, int, bool, int, int, str]:
    """As the optimizers hold them; those that none holds, which have no place, by name behind them."""
    seen = parameter.seen[-1] if parameter.seen else {}
    place = (seen.get("group", 0), seen.get("at", 0))
    return parameter.rank, parameter.optimizer.number, seen.get("optimizer") is None, *place, parameter.name


def _at_end(optimizers: Any, seen_in: Any, who: tuple[int, str, int, str]) -> list[tuple[Optimizer, int]]:
    """The steps behind the last of the optimizers that a parameter was seen in: what comes in no step comes at the end."""
    return [(one, one.steps) for one in optimizers if (one.rank, one.host, one.pid) == who[:3] and (*who, one.number) in seen_in]


def _add(parameter: Parameter, n: int, category: str, value: int | None, number: float | None, text: str | None) -> None:
    if category == "state" and value is not None:
        states = parameter.states
        if states and states[-1][0] == n:  # more has become known of the step since
            states[-1] = (n, states[-1][1] | value)
        else:
            states.append((n, value))
    elif category == "digest" and value is not None:
        parameter.digests.append((n, value, json.loads(text or "{}").get("of", "")))
    elif category in _FIGURES:
        getattr(parameter, _FIGURES[category]).append((n, math.nan if number is None else number))


def first_not_finite(parameters: Sequence[Parameter]) -> tuple[int, Parameter, str] | None:
    """(step, parameter, what) where NaN or Inf was seen first: in data before gradients are computed from it, else in a gradient.

    A step's own gradient comes before the data that the step has made of it; of several the last in the order of parameters is taken: the
    backward comes to it first.
    """
    words = ((GRAD_NAN, "NaN in the gradient"), (GRAD_INF, "Inf in the gradient"), (NAN, "NaN in the data"), (INF, "Inf in the data"))
    seen = [
        (n, at, -place, parameter, word)
        for place, parameter in enumerate(parameters)
        for at, (flag, word) in enumerate(words)
        if (n := parameter.first(flag)) is not None
    ]
    if not seen:
        return None
    n, _, _, parameter, word = min(seen, key=lambda one: one[:3])
    return n, parameter, word


_POINTS = 24  # of a curve


def _others(run: Run, parameters: Sequence[Parameter]) -> dict[str, dict[str, dict[str, float | None]]]:
    """``buffers`` and ``state`` of the first rank, if ``--parameters-of`` asked for them: norms at first and last, by name."""
    lowest = min(parameter.rank for parameter in parameters)
    known = [facts for parameter in parameters if parameter.rank == lowest for facts in parameter.seen]
    query = f"""
        SELECT category, name, any_value(args),
            coalesce(arg_min(coalesce(number, 'nan'), start_ns), 'nan'), coalesce(arg_max(coalesce(number, 'nan'), start_ns), 'nan')
        FROM spans WHERE kind = '{KIND}' AND category IN ('buffer_norm', 'state_norm')
            AND rank = (SELECT min(rank) FROM spans WHERE kind = '{KIND}')
        GROUP BY category, name ORDER BY min(start_ns), name"""
    rows = [(*row[:2], json.loads(row[2] or "{}"), *row[3:]) for batch in run.fetch(query) for row in batch]
    labels = _labels([*known, *(facts for _, _, facts, _, _ in rows)])
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for category, name, facts, first, last in rows:
        model = model_of(facts)
        full = name if model is None else prefixed(labels[model.number], facts["path"])
        key = "buffers" if category == "buffer_norm" else "state"
        found.setdefault(key, {})[full] = {"first": _json(first), "last": _json(last)}
    return found


def _of_parameters(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """What is said of the parameters of a run, of which there are some; layers are those of the first rank."""
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


def peaks(points: Sequence[tuple[int, float]], most: int) -> list[list[float | int | None]]:
    """(step, figure) of at most some points; of more, the largest of each neighbourhood, so that no peak is lost."""
    edges = [round(at * len(points) / most) for at in range(most + 1)] if len(points) > most else range(len(points) + 1)
    chosen = [max(points[a:b], key=lambda point: point[1] if math.isfinite(point[1]) else math.inf) for a, b in pairwise(edges)]
    return [[n, _json(value)] for n, value in chosen]


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``parameters`` of a summary; see ``voirkit.instrument.Instrument``."""
    run, own = runs[0], summary.get("parameters")
    if own is not None and own["ranks"] == run.manifest.get("world_size", 1):
        return None  # a run of one rank has worked it out at its end
    parameters = parameters_of(run)
    return {"parameters": {**_of_parameters(parameters), **_others(run, parameters)}} if parameters else None


# how it is shown

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
