"""Sections in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import table as tables
from rich import text as texts
from rich.console import Group, RenderableType
from rich.padding import Padding

from voirkit.report.sections import Bars, Block, Details, Figures, Section, Series, Table, Text, written

_INDENT = (0, 0, 0, 2)
_BAR = 24  # columns of the longest
_STYLES = {"good": "bold green", "bad": "bold red", "": "bold"}
_LEVELS = "▁▂▃▄▅▆▇█"
_POINTS = 48  # columns of a curve


def rendered_section(section: Section) -> RenderableType:
    """A section as rich prints it: its title in front, each block below."""
    lines: list[RenderableType] = [texts.Text(section.title, style="bold")]
    for block in section.blocks:
        lines += _lines(block)
    if section.note:
        lines.append(Padding(texts.Text(section.note, style="dim"), _INDENT))
    return Group(*lines)


def _lines(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Text):
        yield Padding(texts.Text(block.text, style=_STYLES[block.mood] if block.strong else ""), _INDENT)
    elif isinstance(block, Figures):
        named = (texts.Text.assemble((f"{one.name}  ", "dim"), written(one.value, one.unit)) for one in block.figures)
        yield Padding(texts.Text("   ").join(named), _INDENT)
    elif isinstance(block, Table):
        drawn = tables.Table(box=None, padding=(0, 1), header_style="dim")
        for at, head in enumerate(block.heads):
            drawn.add_column(head, justify="left" if at in block.left else "right", no_wrap=True)
        for row in block.rows[: block.most]:
            drawn.add_row(*row)
        yield drawn
        if len(block.rows) > block.most:
            yield Padding(texts.Text(f"{len(block.rows) - block.most} more rows: voirkit report --html", style="dim"), _INDENT)
    elif isinstance(block, Bars):
        largest = max((value for _, value, _ in block.rows), default=0.0) or 1.0
        width = max((len(label) for label, _, _ in block.rows), default=0)
        for label, value, end in block.rows:
            yield texts.Text.assemble(f"  {label:<{width}}  ", ("█" * round(value / largest * _BAR), "cyan"), f" {end}")
    elif isinstance(block, Series):
        for name, points in block.curves.items():
            if points:
                values = [y for _, y in points]
                ends = f"{written(values[0], block.unit)} .. {written(values[-1], block.unit)}"
                yield texts.Text.assemble((f"  {name}  ", "dim"), _sparkline(values), f"  {ends}")
    elif isinstance(block, Details):
        return


def _sparkline(values: list[float]) -> str:
    if len(values) > _POINTS:
        values = [values[i * len(values) // _POINTS] for i in range(_POINTS)]
    low, high = min(values), max(values)
    return "".join(_LEVELS[round((value - low) / (high - low) * (len(_LEVELS) - 1)) if high > low else 0] for value in values)
