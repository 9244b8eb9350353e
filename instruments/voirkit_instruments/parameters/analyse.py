"""The parameters of a run, read from the trace: their facts, and their norms, digests and flags by
step; summarised for summary.json, and shown as a table and as curves."""

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
from voirkit.report.sections import (
    Block,
    Column,
    Details,
    Grid,
    Group,
    InText,
    OnPage,
    Section,
    Series,
    Table,
    Text,
    sparkline,
)
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
)

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank

_FIGURES = {"norm": "norms", "grad_norm": "grad_norms", "update_norm": "update_norms"}

# flags and the strings that describe them, in the order in which such values arise in a step
_NOT_FINITE = (
    (GRAD_NAN, "NaN in the gradient"),
    (GRAD_INF, "Inf in the gradient"),
    (NAN, "NaN in the data"),
    (INF, "Inf in the data"),
)

Points = list[tuple[int, float]]


@dataclass
class Optimizer:
    """An optimizer of one process of the run."""

    rank: int
    host: str
    pid: int
    number: int  # number of the optimizer in its process
    kind: str  # name of the optimizer's class
    every: int  # each parameter is read once in this many steps
    steps: int = 0  # number of steps of the optimizer


@dataclass
class Parameter:
    """A parameter, as read in the steps of one optimizer. Steps are counted from 0.

    The optimizer holds the parameter if ``facts[-1]["optimizer"]`` is not None. Otherwise no
    optimizer holds it, and it is only read in this one's steps."""

    rank: int
    name: str
    optimizer: Optimizer
    # the parameter's facts (shape, dtype ...) from step ``n`` on; a new entry for each change
    facts: list[dict[str, Any]] = field(default_factory=list)
    # (step, value), NaN as ``nan``; a value read at the end of the run has step ``optimizer.steps``
    norms: Points = field(default_factory=list)
    grad_norms: Points = field(default_factory=list)
    update_norms: Points = field(default_factory=list)
    # (step, digest, kind of digest)
    digests: list[tuple[int, int, str]] = field(default_factory=list)
    # (step, flags): what is known of this step, and of all steps before the next entry
    states: list[tuple[int, int]] = field(default_factory=list)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first step, the step after the last, flags) for successive steps with the same
        flags."""
        if not self.states:
            return
        last_step, last_flags = self.states[-1]
        for (n, flags), (end, _) in pairwise(self.states):
            yield n, end, flags
        yield last_step, max(self.optimizer.steps, last_step + 1), last_flags

    def steps_with(self, flag: int) -> int:
        """Count the steps in which a flag is known to be set."""
        return sum(end - n for n, end, flags in self.spans() if flags & flag)

    def first(self, flag: int) -> int | None:
        """Return the first step in which a flag is set; None if it never is."""
        return next((n for n, flags in self.states if flags & flag), None)

    @property
    def ever_changed(self) -> bool | None:
        """True if the data ever changed, in a step or otherwise; False if it was seen not to
        change; None if neither was recorded."""
        digests = {(digest, kind) for _, digest, kind in self.digests}
        if len(digests) > 1 or any(flags & CHANGED for _, flags in self.states):
            return True
        if len(self.digests) > 1 or any(flags & SAME for _, flags in self.states):
            return False
        return None

    @property
    def ever_gradient(self) -> bool | None:
        """True if the parameter ever had a gradient; None if that is not known."""
        return any(not flags & GRAD_NONE for _, flags in self.states) if self.states else None

    def update_ratios(self) -> Points:
        """Return for each step the 2-norm of the update divided by the 2-norm of the data before
        it."""
        norms = dict(self.norms)
        return [(n, update / norms[n]) for n, update in self.update_norms if norms.get(n)]


def parameters_of(run: Run) -> list[Parameter]:
    """Return the parameters of a run, in the order in which the optimizers hold them."""
    columns = "rank, host, pid, start_ns, category, name, value, number, args"
    table = _ParameterTable()
    steps = (
        f"SELECT {columns} FROM spans WHERE kind = '{KIND}' AND category = 'step' ORDER BY start_ns"
    )
    for batch in run.fetch(steps):
        for rank, host, pid, start_ns, _, _, n, _, text in batch:
            table.add_step((rank, host, pid), start_ns, n, json.loads(text))
    figures = (
        f"SELECT {columns} FROM spans WHERE kind = '{KIND}' "
        "AND category IN ('seen', 'state', 'digest', 'norm', 'grad_norm', 'update_norm') "
        "ORDER BY start_ns, (category = 'seen') DESC"
    )
    for batch in run.fetch(figures):
        for rank, host, pid, start_ns, category, name, value, number, text in batch:
            process = rank, host, pid
            if category == "seen":
                table.add_facts(process, name, json.loads(text))
                continue
            for parameter, n in table.find(process, name, start_ns):
                _add_record(parameter, n, category, value, number, text)
    table.add_unwatched()
    parameters = table.held_parameters()
    _tell_models_apart(table.parameters.values())
    return sorted(parameters, key=_order)


_Process = tuple[int, str, int]  # (rank, host, pid)


class _ParameterTable:
    """The optimizers and parameters of a run, built up from their records.

    The facts of a parameter (shape, dtype ...) are recorded before its first values. They belong
    to the optimizer that they name. If they name none, they belong to the optimizer in whose step
    the next values are recorded.
    """

    def __init__(self) -> None:
        # by process, name of the parameter, and number of the optimizer
        self.parameters: dict[tuple[_Process, str, int], Parameter] = {}
        self._optimizers: dict[tuple[_Process, int], Optimizer] = {}
        # by process and start_ns: the optimizer and the number of the step
        self._steps: dict[tuple[_Process, int], tuple[Optimizer, int]] = {}
        # by process and name of the parameter: all facts, and those not yet put into a
        # ``Parameter``
        self._facts: dict[tuple[_Process, str], list[dict[str, Any]]] = {}
        self._new_facts: dict[tuple[_Process, str], list[dict[str, Any]]] = {}

    def add_step(self, process: _Process, start_ns: int, n: int, args: Mapping[str, Any]) -> None:
        key = process, args["optimizer"]
        optimizer = self._optimizers.get(key)
        if optimizer is None:
            optimizer = Optimizer(*process, args["optimizer"], args["class"], args["every"])
            self._optimizers[key] = optimizer
        optimizer.steps = max(optimizer.steps, n + 1)
        self._steps[process, start_ns] = optimizer, n

    def add_facts(self, process: _Process, name: str, facts: dict[str, Any]) -> None:
        self._facts.setdefault((process, name), []).append(facts)
        self._new_facts.setdefault((process, name), []).append(facts)

    def find(self, process: _Process, name: str, start_ns: int) -> Iterator[tuple[Parameter, int]]:
        """Yield each parameter that a record belongs to, and the number of the step: one parameter
        for the step that began at ``start_ns``, or, at the end, one for each optimizer."""
        step = self._steps.get((process, start_ns))
        for optimizer, n in [step] if step else self._at_end(process, name):
            parameter = self._parameter(process, name, optimizer)
            new_facts = self._new_facts.get((process, name), [])
            for facts in [*new_facts]:
                if facts["optimizer"] in (None, optimizer.number):
                    new_facts.remove(facts)
                    parameter.facts.append({"n": n, **facts})
            yield parameter, n

    def _parameter(self, process: _Process, name: str, optimizer: Optimizer) -> Parameter:
        key = process, name, optimizer.number
        parameter = self.parameters.get(key)
        if parameter is None:
            parameter = self.parameters[key] = Parameter(process[0], name, optimizer)
        return parameter

    def _at_end(self, process: _Process, name: str) -> list[tuple[Optimizer, int]]:
        """Return each optimizer in whose steps a parameter was read, with the number after its last
        step: a record that is in no step was written at the end of the run."""
        return [
            (optimizer, optimizer.steps)
            for (of_process, number), optimizer in self._optimizers.items()
            if of_process == process and (process, name, number) in self.parameters
        ]

    def add_unwatched(self) -> None:
        """Add the parameters that have facts but no values, since their data cannot be read."""
        watched = {(process, name) for process, name, _ in self.parameters}
        first_optimizers: dict[_Process, Optimizer] = {}
        for (process, _), optimizer in self._optimizers.items():
            first_optimizers.setdefault(process, optimizer)
        for (process, name), all_facts in self._new_facts.items():
            if all_facts and (process, name) not in watched and process in first_optimizers:
                parameter = self._parameter(process, name, first_optimizers[process])
                parameter.facts += [{"n": 0, **facts} for facts in all_facts]

    def held_parameters(self) -> list[Parameter]:
        """Return the parameters without duplicates in the steps of an optimizer that does not hold
        them. Before its own optimizer makes its first step, a parameter is read in the steps of
        another one."""
        parameters = []
        for (process, name, number), parameter in self.parameters.items():
            all_facts = self._facts.get((process, name), ())
            holders = {facts["optimizer"] for facts in all_facts} - {None}
            if not holders or number in holders:
                parameters.append(parameter)
        return parameters


def _tell_models_apart(parameters: Collection[Parameter]) -> None:
    """Rename each parameter to its path in its model, after the label of the model if the process
    has several models.

    The names in the records do not suffice: when a record was written, not all models may have been
    known.
    """
    by_process: dict[_Process, list[Mapping[str, Any]]] = {}
    for parameter in parameters:
        by_process.setdefault(_process_of(parameter), []).extend(parameter.facts)
    labels = {process: _labels(all_facts) for process, all_facts in by_process.items()}
    for parameter in parameters:
        for facts in parameter.facts:
            model = model_of(facts)
            if model is None:
                continue
            label = labels[_process_of(parameter)][model.number]
            parameter.name = prefixed(label, facts["path"])
            if "alias" in facts:
                facts["alias"] = prefixed(label, facts["alias"])


def _process_of(parameter: Parameter) -> _Process:
    optimizer = parameter.optimizer
    return optimizer.rank, optimizer.host, optimizer.pid


def _labels(all_facts: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return a dict from the number of each model in some facts to the label that distinguishes
    it."""
    models = {}
    for facts in all_facts:
        model = model_of(facts)
        if model is not None:
            models[model.number] = model
    return model_labels([models[number] for number in sorted(models)])


def _order(parameter: Parameter) -> tuple[int, int, bool, int, int, str]:
    """Return the sort key of a parameter: parameters are in the order in which the optimizer holds
    them; parameters that no optimizer holds follow, by name."""
    facts = parameter.facts[-1] if parameter.facts else {}
    return (
        parameter.rank,
        parameter.optimizer.number,
        facts.get("optimizer") is None,
        facts.get("group", 0),
        facts.get("at", 0),
        parameter.name,
    )


def _add_record(
    parameter: Parameter,
    n: int,
    category: str,
    value: int | None,
    number: float | None,
    text: str | None,
) -> None:
    if category == "state" and value is not None:
        states = parameter.states
        if states and states[-1][0] == n:  # another record of the same step: join their flags
            states[-1] = (n, states[-1][1] | value)
        else:
            states.append((n, value))
    elif category == "digest" and value is not None:
        parameter.digests.append((n, value, json.loads(text or "{}").get("of", "")))
    elif category in _FIGURES:
        points = getattr(parameter, _FIGURES[category])
        points.append((n, math.nan if number is None else number))


def first_not_finite(parameters: Sequence[Parameter]) -> tuple[int, Parameter, str] | None:
    """Return (step, parameter, words) of the first NaN or Inf of a run; None if all was finite.

    Within a step, the gradient comes before the data, which the step computes from it. Of several
    parameters the last in their order is taken, since the backward pass reaches it first.
    """
    first: tuple[int, int, int] | None = None
    result = None
    for place, parameter in enumerate(parameters):
        for priority, (flag, words) in enumerate(_NOT_FINITE):
            n = parameter.first(flag)
            if n is not None and (first is None or (n, priority, -place) < first):
                first = n, priority, -place
                result = n, parameter, words
    return result


_POINTS = 24  # maximum number of points of a curve in the summary


def _summarise_buffers_and_state(
    run: Run, parameters: Sequence[Parameter]
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return ``buffers`` and ``state`` of the first rank, as far as ``--parameters-of`` recorded
    them: for each name, the first and the last norm."""
    figure_or_nan = "coalesce(number, 'nan')"
    query = f"""
        SELECT category, name, any_value(args),
            coalesce(arg_min({figure_or_nan}, start_ns), 'nan'),
            coalesce(arg_max({figure_or_nan}, start_ns), 'nan')
        FROM spans WHERE kind = '{KIND}' AND category IN ('buffer_norm', 'state_norm')
            AND rank = (SELECT min(rank) FROM spans WHERE kind = '{KIND}')
        GROUP BY category, name ORDER BY min(start_ns), name"""
    rows = []
    for batch in run.fetch(query):
        for category, name, text, first, last in batch:
            rows.append((category, name, json.loads(text or "{}"), first, last))
    all_facts = [facts for parameter in _of_first_rank(parameters) for facts in parameter.facts]
    labels = _labels([*all_facts, *(facts for _, _, facts, _, _ in rows)])
    parts: dict[str, dict[str, dict[str, float | None]]] = {}
    for category, name, facts, first, last in rows:
        model = model_of(facts)
        full_name = name if model is None else prefixed(labels[model.number], facts["path"])
        part = parts.setdefault("buffers" if category == "buffer_norm" else "state", {})
        part[full_name] = {"first": _json(first), "last": _json(last)}
    return parts


def _of_first_rank(parameters: Sequence[Parameter]) -> list[Parameter]:
    lowest = min((parameter.rank for parameter in parameters), default=0)
    return [parameter for parameter in parameters if parameter.rank == lowest]


def _summarise_parameters(all_parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the summary of a run's parameters, at least one. ``layers`` has the parameters of the
    first rank."""
    parameters = _of_first_rank(all_parameters)
    by_identity = {id(parameter.optimizer): parameter.optimizer for parameter in parameters}
    optimizers = by_identity.values()
    optimizer_rows = [
        {"optimizer": optimizer.number, "class": optimizer.kind, "steps": optimizer.steps}
        for optimizer in optimizers
    ]
    ranks = {parameter.rank for parameter in all_parameters}
    layers = [_layer(parameter) for parameter in parameters]
    return {
        "every": max(optimizer.every for optimizer in optimizers),
        "optimizers": optimizer_rows,
        "ranks": len(ranks),
        "layers": layers,
        "not_finite": _not_finite_row(parameters),
        **_names_by_finding(parameters),
        "not_watched": _not_watched(parameters),
    }


def _names_by_finding(parameters: Sequence[Parameter]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {"frozen": [], "never_changed": [], "never_gradient": []}
    for parameter in parameters:
        if _is_frozen(parameter):
            names["frozen"].append(parameter.name)
            continue
        if parameter.ever_changed is False:
            names["never_changed"].append(parameter.name)
        if parameter.ever_gradient is False:
            names["never_gradient"].append(parameter.name)
    return names


def _not_finite_row(parameters: Sequence[Parameter]) -> dict[str, Any] | None:
    first = first_not_finite(parameters)
    if first is None:
        return None
    step, parameter, words = first
    return {"step": step, "name": parameter.name, "what": words}


def _not_watched(parameters: Iterable[Parameter]) -> dict[str, str]:
    """Return a dict from the name of each parameter that cannot be read to the reason."""
    reasons = {}
    for parameter in parameters:
        if parameter.facts and "not_watched" in parameter.facts[-1]:
            reasons[parameter.name] = parameter.facts[-1]["not_watched"]
    return reasons


def _is_frozen(parameter: Parameter) -> bool:
    """True if the parameter never required gradients."""
    return bool(parameter.facts) and not any(facts["requires_grad"] for facts in parameter.facts)


_LAYER_FACTS = ("dtype", "device", "requires_grad", "model", "optimizer", "group", "alias")
_FIRST_STEPS = {
    "nan_step": NAN,
    "inf_step": INF,
    "grad_nan_step": GRAD_NAN,
    "grad_inf_step": GRAD_INF,
}


def _layer(parameter: Parameter) -> dict[str, Any]:
    facts: Mapping[str, Any] = parameter.facts[-1] if parameter.facts else {}
    shape = [int(size) for size in facts.get("shape", "").split(",") if size]
    layer = {"name": parameter.name, "shape": shape, "elements": math.prod(shape)}
    layer |= {key: facts.get(key) for key in _LAYER_FACTS}
    layer |= _layer_figures(parameter)
    layer |= {key: parameter.first(flag) for key, flag in _FIRST_STEPS.items()}
    layer["became"] = [_changes(before, after) for before, after in pairwise(parameter.facts)]
    layer["curves"] = {
        "norm": _curve(parameter.norms),
        "grad_norm": _curve(parameter.grad_norms),
        "update_ratio": _curve(parameter.update_ratios()),
    }
    return layer


def _layer_figures(parameter: Parameter) -> dict[str, Any]:
    n_looks = len(parameter.update_norms) or len(parameter.digests)
    return {
        "steps": parameter.optimizer.steps,
        "looks": n_looks,
        "norm": _ends(parameter.norms),
        "grad_norm": _spread(parameter.grad_norms),
        "update_ratio": _spread(parameter.update_ratios()),
        "changed_steps": parameter.steps_with(CHANGED),
        "ever_changed": parameter.ever_changed,
        "none_gradient_steps": parameter.steps_with(GRAD_NONE),
        "ever_gradient": parameter.ever_gradient,
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in after.items() if value != before.get(key)}


def _ends(points: Sequence[tuple[int, float]]) -> dict[str, float | None] | None:
    if not points:
        return None
    (_, first), (_, last) = points[0], points[-1]
    return {"first": _json(first), "last": _json(last)}


def _spread(points: Sequence[tuple[int, float]]) -> dict[str, float | int | None] | None:
    """Return the median and the maximum of the finite values, the last value, and ``n``, the
    number of all values."""
    if not points:
        return None
    finite = [value for _, value in points if math.isfinite(value)]
    _, last = points[-1]
    return {
        "median": statistics.median(finite) if finite else None,
        "max": max(finite, default=None),
        "last": _json(last),
        "n": len(points),
    }


def _curve(points: Sequence[tuple[int, float]]) -> list[list[float | int | None]]:
    """Return (step, value) of at most ``_POINTS`` evenly spaced points; None for NaN and Inf."""
    last = len(points) - 1
    if last >= _POINTS:
        points = [points[round(i * last / (_POINTS - 1))] for i in range(_POINTS)]
    return [[n, _json(value)] for n, value in points]


def peaks(points: Sequence[tuple[int, float]], most: int) -> list[list[float | int | None]]:
    """Return (step, value) of at most ``most`` points; None for NaN and Inf. If there are more
    points, the largest of each group of neighbours is kept, so that no peak is lost."""

    def height(point: tuple[int, float]) -> float:
        return point[1] if math.isfinite(point[1]) else math.inf

    if len(points) > most:
        edges = [round(i * len(points) / most) for i in range(most + 1)]
        points = [max(points[start:end], key=height) for start, end in pairwise(edges)]
    return [[n, _json(value)] for n, value in points]


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the part ``parameters`` of the summary; see ``voirkit.instrument.Instrument``."""
    run, recorded = runs[0], summary.get("parameters")
    if recorded is not None and recorded["ranks"] == run.manifest.get("world_size", 1):
        return None  # computed already: a run of one rank does so when it ends
    parameters = parameters_of(run)
    if not parameters:
        return None
    part = _summarise_parameters(parameters)
    return {"parameters": {**part, **_summarise_buffers_and_state(run, parameters)}}


# the section of the report

_MOST = 40  # maximum number of rows in a terminal; summary.json has all
_ROWS = 400  # maximum number of rows on an HTML page
# maximum number of parameters with curves on a page: visible at once, in all
_OPEN, _PICTURES = 12, 120
_RATIO = 50  # the scale is logarithmic if the largest value is over 50 times the smallest
_FINER_POINTS = 120  # maximum number of points of a curve on a page
_RECORDS = 2_000_000  # with more records, the curves on a page are those of the summary
_NAMED = 6
_CURVES = {"norm": "norm", "grad_norm": "gradient", "update_ratio": "update / norm"}
_NOTE = (
    f"Over the steps of the optimizer; a scale of which one end is more than {_RATIO} times the"
    f" other is logarithmic. Red: not finite. Of more than {_FINER_POINTS} looks, the largest of"
    " each neighbourhood."
)
_HEADS = (
    Column("parameter", left=True, cut=True),
    Column("shape", narrowest=96),
    Column("norm", narrowest=44),
    Column("grad norm", narrowest=58),
    Column("at most", narrowest=124),
    Column("update/norm"),
    Column("at most", narrowest=132),
    Column("its course", left=True, narrowest=108),
    Column("changed", narrowest=72),
)

Layer = Mapping[str, Any]


def sections(parameters: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    layers: Sequence[Layer] = parameters.get("layers") or ()
    if not layers:
        return
    rows = [_cells(layer) for layer in layers[:_ROWS]]
    title, note = "the same as a table", _NOTE
    if len(layers) > _ROWS:
        title += f" (the first {_ROWS} of {len(layers)})"
    if len(layers) > _PICTURES:
        note += (
            f" The first {_PICTURES} of {len(layers)} parameters; voirkit report --json has all."
        )
    table = Table(_HEADS, rows, most=_MOST, total=len(layers))
    page_table = Table(_HEADS, rows, total=len(layers))
    on_page: list[Block] = [Details(title, [page_table]), Text(note, mood="note")]
    blocks = [
        *_facts(parameters),
        InText([table]),
        OnPage(partial(_pictures, layers)),
        OnPage(on_page),
    ]
    yield Section("parameters", "Parameters", blocks)


def _cells(layer: Layer) -> tuple[str, ...]:
    norm, gradient, ratio = layer["norm"], layer["grad_norm"], layer["update_ratio"]
    norms = usual_gradient = most_gradient = usual_ratio = most_ratio = changed = ""
    if norm is not None:
        norms = f"{_number(norm['first'])} -> {_number(norm['last'])}"
    if gradient is not None:
        usual_gradient = _number(gradient["median"])
        most_gradient = _number(gradient["max"])
    if layer["ever_gradient"] is False:
        usual_gradient = "none"
    if ratio is not None:
        usual_ratio = _number(ratio["median"])
        most_ratio = _number(ratio["max"])
    if layer["steps"]:
        changed = f"{layer['changed_steps'] / layer['steps']:.0%}"
    course = sparkline([value for _, value in layer["curves"]["update_ratio"]])
    return (
        layer["name"],
        _shape(layer),
        norms,
        usual_gradient,
        most_gradient,
        usual_ratio,
        most_ratio,
        course,
        changed,
    )


def _shape(layer: Layer) -> str:
    return "x".join(map(str, layer["shape"])) or "1"


def _number(value: float | None) -> str:
    """Return the text of a value; None stands for a value that is not finite."""
    if value is None:
        return "not finite"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else figure(value)


def _facts(parameters: Mapping[str, Any]) -> Iterator[Block]:
    """Yield lines on the number of parameters, their optimizers, and each problem: NaN or Inf,
    parameters that are frozen, never changed, never had a gradient, changed their type or cannot be
    read."""
    optimizers = parameters["optimizers"]
    steps = ", ".join(f"{row['class']} {row['steps']:,} steps" for row in optimizers)
    n = len(parameters["layers"])
    yield Text(
        f"{n:,} parameters   {steps}   each recorded in full every {parameters['every']} steps",
        "parameters",
    )
    not_finite = parameters["not_finite"]
    if not_finite is not None:
        yield Text(
            f"{not_finite['what']} of {not_finite['name']} first, in step {not_finite['step']}",
            "not finite",
            strong=True,
            mood="bad",
        )
    if parameters["frozen"]:
        yield Text(_list_names(parameters["frozen"]), "frozen")
    for key, label in (
        ("never_changed", "never changed"),
        ("never_gradient", "never had a gradient"),
    ):
        if parameters[key]:
            yield _warning(_list_names(parameters[key]), label)
    for layer in parameters["layers"]:
        for change in layer["became"]:
            facts = ", ".join(f"{key} {value}" for key, value in change.items() if key != "n")
            step = change.get("n", 0)
            yield _warning(f"{layer['name']}: {facts} in step {step}", "changed its kind")
    not_watched = parameters["not_watched"]
    if not_watched:
        name, reason = next(iter(not_watched.items()))
        yield _warning(f"{len(not_watched)} parameters: {name}: {reason}", "not watched")


def _warning(text: str, label: str) -> Text:
    return Text(text, label, strong=True, mood="warning")


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# curves of each parameter, side by side


def _pictures(layers: Sequence[Layer], run: Run) -> list[Block]:
    finer = _finer_curves(run)
    pictures = []
    for layer in layers[:_PICTURES]:
        picture = _picture(layer, finer.get(layer["name"]) or layer["curves"])
        if picture is not None:
            pictures.append(picture)
    if len(pictures) <= _OPEN:
        return pictures
    folded = Details(f"{len(pictures) - _OPEN} more", pictures[_OPEN:])
    return [*pictures[:_OPEN], folded]


def _finer_curves(run: Run) -> Mapping[str, Any]:
    """Return the curves of the first rank's parameters by name, computed from the trace; empty if
    the trace is missing or has more than ``_RECORDS`` records."""
    cursor = run.connection().execute("SELECT count(*) FROM spans WHERE kind = 'parameter'")
    ((n_records,),) = cursor.fetchall()
    parameters = parameters_of(run) if 0 < n_records <= _RECORDS else []
    return {
        parameter.name: {
            "norm": peaks(parameter.norms, _FINER_POINTS),
            "grad_norm": peaks(parameter.grad_norms, _FINER_POINTS),
            "update_ratio": peaks(parameter.update_ratios(), _FINER_POINTS),
        }
        for parameter in _of_first_rank(parameters)
    }


def _picture(layer: Layer, curves: Mapping[str, Any]) -> Block | None:
    series: list[Block] = []
    for key, name in _CURVES.items():
        curve = curves.get(key) or []
        if len(curve) < 2:
            continue
        is_wide = _is_wide([value for _, value in curve])
        title = f"{name} (log)" if is_wide else name
        caption = f"{title}: {_number(curve[0][1])} → {_number(curve[-1][1])}"
        points = [(float(x), y) for x, y in curve]
        series.append(Series({name: points}, caption, axis="optimizer steps", logarithmic=is_wide))
    return Group(f"{layer['name']}  {_shape(layer)}", [Grid(series)]) if series else None


def _is_wide(values: Sequence[float | None]) -> bool:
    """True if a curve gets a logarithmic scale: all its values are positive, and the largest is
    more than ``_RATIO`` times the smallest."""
    positive = [value for value in values if value]
    if len(positive) < len(values) or min(positive) <= 0:
        return False
    return max(positive) > _RATIO * min(positive)
