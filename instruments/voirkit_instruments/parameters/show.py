"""The part of a run's table that says what the parameters did: norms, gradients, updates. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.figure import figure

MOST = 40  # rows; all of them are in summary.json
_BARS = "▁▂▃▄▅▆▇█"


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    parameters = summary.get("parameters")
    if parameters and parameters.get("layers"):
        yield 6, parameter_part(parameters, width)


def parameter_part(parameters: Mapping[str, Any], width: int) -> RenderableType:
    """A row for each parameter: norm at first and last, median gradient norm, median update ratio and its course, steps that changed it.

    Args:
        parameters: The key ``parameters`` of a summary.
        width: Columns of the terminal.
    """
    layers = parameters["layers"]
    heads = (
        ("parameter", 0),
        ("shape", 96),
        ("norm", 44),
        ("grad norm", 58),
        ("update/norm", 0),
        ("its course", 108),
        ("changed", 72),
    )
    shown = [at for at, (_, least) in enumerate(heads) if width >= least]
    cells = [_cells(layer) for layer in layers[:MOST]]
    widths = [max(len(row[at]) for row in [tuple(head for head, _ in heads), *cells]) for at in range(len(heads))]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for at in shown:
        room = max(width - sum(widths[other] for other in shown[1:]) - 2 * len(shown), 12) if not at else None
        justify: Any = "left" if at in (0, 5) else "right"
        table.add_column(heads[at][0], no_wrap=True, overflow="ellipsis", justify=justify, max_width=room)
    for row in cells:
        table.add_row(*(Text(row[at]) for at in shown))
    return Group(*facts(parameters), table, *_more(layers))


def _cells(layer: Mapping[str, Any]) -> tuple[str, ...]:
    norm, gradient, ratio = layer["norm"], layer["grad_norm"], layer["update_ratio"]
    return (
        layer["name"],
        "x".join(map(str, layer["shape"])) or "1",
        "" if norm is None else f"{number(norm['first'])} -> {number(norm['last'])}",
        "none" if layer["ever_gradient"] is False else "" if gradient is None else number(gradient["median"]),
        "" if ratio is None else number(ratio["median"]),
        sparkline([value for _, value in layer["curves"]["update_ratio"]]),
        f"{layer['changed_steps'] / layer['steps']:.0%}" if layer["steps"] else "",
    )


def number(value: float | None) -> str:
    """A figure of which JSON has null if it was not finite."""
    if value is None:
        return "not finite"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else figure(value)


def sparkline(values: Sequence[float | None]) -> str:
    """A curve of a line's height: from the smallest to the largest; ``!`` where it is NaN or Inf."""
    finite = [value for value in values if value is not None]
    if not finite:
        return "!" * len(values)
    low, high = min(finite), max(finite)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join("!" if value is None else _BARS[round((value - low) / step)] for value in values)


def facts(parameters: Mapping[str, Any]) -> Iterator[Text]:
    """How many there are and who steps them; what is not as it should be; a line each."""
    steps = ", ".join(f"{one['class']} {one['steps']:,} steps" for one in parameters["optimizers"])
    said = f"{len(parameters['layers']):,} parameters   {steps}   each looked at every {parameters['every']} steps"
    yield Text.assemble(("parameters  ", "dim"), said)
    broken = parameters["not_finite"]
    if broken is not None:
        yield Text.assemble(("not finite  ", "bold red"), f"{broken['what']} of {broken['name']} first, in step {broken['step']}")
    for key, words in (("frozen", "frozen  "), ("never_changed", "never changed  "), ("never_gradient", "never had a gradient  ")):
        names = parameters[key]
        if names:
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            yield Text.assemble((words, "dim" if key == "frozen" else "bold yellow"), ", ".join(names[:6]) + more)
    for layer in parameters["layers"]:
        for change in layer["became"]:
            what = ", ".join(f"{key} {value}" for key, value in change.items() if key != "n")
            yield Text.assemble(("changed its kind  ", "bold yellow"), f"{layer['name']}: {what} in step {change.get('n', 0)}")
    if parameters["not_watched"]:
        name, why = next(iter(parameters["not_watched"].items()))
        yield Text.assemble(("not watched  ", "bold yellow"), f"{len(parameters['not_watched'])} parameters: {name}: {why}")


def _more(layers: Sequence[Any]) -> Iterator[Text]:
    if len(layers) > MOST:
        yield Text(f" {len(layers) - MOST} more parameters: voirkit report --json", style="dim")
