"""Sections in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import table as tables
from rich import text as texts
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.padding import Padding

from voirkit.report.sections import (
    Amounts,
    AnyCell,
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Details,
    Figures,
    FlameGraph,
    Grid,
    Group,
    InText,
    OnPage,
    Section,
    Series,
    Stacked,
    Table,
    Text,
    Timeline,
    cell_text,
    columns_of,
    sparkline,
    written,
)
from voirkit.runs.step_phases import PHASES

PHASE_COLOURS = dict(zip(PHASES, ("red", "magenta", "green", "cyan", "blue", "bright_red", "yellow"), strict=True))
_PALETTE = ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue", "bright_yellow")
_MOODS = {"good": "bold green", "bad": "bold red", "warning": "bold yellow", "note": "dim"}
_STYLES = {**_MOODS, "strong": "bold", "dim": "dim"}
_INDENT = (0, 0, 0, 1)
_BAR = 24  # columns of the longest
_STACKED = 40
_POINTS = 48  # columns of a curve
_SHADES = " ░▒▓█"
_LEAST = 12  # columns that a column keeps which is cut


def rendered_section(section: Section, width: int = 100) -> RenderableType | None:
    """A section as rich prints it: its title in front, each block below; None if there is nothing in it.

    Args:
        section: Of an instrument.
        width: Columns of the terminal.
    """
    lines = list(_drawn(section.blocks, width))
    if not lines:
        return None
    if section.note:
        lines.append(_note(section.note))
    return Lines(texts.Text(section.title, style="bold"), *lines)


def _drawn(blocks: Iterable[Block], width: int) -> Iterator[RenderableType]:
    for block in blocks:
        yield from _lines(block, width)


def _note(text: str) -> RenderableType:
    return Padding(texts.Text(text, style="dim"), _INDENT)


def _lines(block: Block, width: int) -> Iterator[RenderableType]:
    if isinstance(block, Text):
        yield Padding(_text(block), _INDENT)
    elif isinstance(block, Figures):
        named = (texts.Text.assemble((f"{one.name}  ", "dim"), written(one.value, one.unit)) for one in block.figures)
        yield Padding(texts.Text("   ").join(named), _INDENT)
    elif isinstance(block, Table):
        yield from _table(block, width)
    elif isinstance(block, Bars):
        yield from _bars(block)
    elif isinstance(block, Stacked):
        yield from _stacked(block)
    elif isinstance(block, Series):
        for name, points in block.curves.items():
            known = [y for _, y in points if y is not None]
            if known:
                ends = f"{written(known[0], block.unit)} .. {written(known[-1], block.unit)}"
                yield texts.Text.assemble((f" {name}  ", "dim"), sparkline([y for _, y in points], _POINTS), f"  {ends}")
    elif isinstance(block, Timeline):
        yield from _timeline(block, width)
    elif isinstance(block, Group):
        inner = list(_drawn(block.blocks, width))
        if inner:
            yield Padding(texts.Text(block.title, style="bold"), _INDENT)
            yield from inner
            if block.note:
                yield _note(block.note)
    elif isinstance(block, (Grid, InText)):
        yield from _drawn(block.blocks, width)
    else:
        assert isinstance(block, (Amounts, Details, FlameGraph, OnPage))  # other reports show them


def _text(block: Text) -> texts.Text:
    label = (f"{block.label}  ", _MOODS.get(block.mood) or ("bold" if block.strong else "dim"))
    style = "" if block.label else _MOODS.get(block.mood) or ("bold" if block.strong else "")
    shown = texts.Text.assemble(
        *([label] if block.label else []), (block.text, style), *([(f"  {block.link}", "dim")] if block.link else [])
    )
    if block.one_line:
        shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def _table(block: Table, width: int) -> Iterator[RenderableType]:
    if not block.rows:
        return
    rows = block.rows[: block.most]
    columns = [(at, one) for at, one in columns_of(block) if width >= one.narrowest]
    bar = 20 if width >= 88 else 10
    widths = {at: max(len(one.head), *(_width(row[at], bar) for row in rows)) for at, one in columns}
    _shrink(widths, columns, width)
    drawn = tables.Table(box=None, padding=(0, 1), header_style="dim")
    for at, one in columns:
        drawn.add_column(one.head, justify="left" if one.left else "right", no_wrap=True, min_width=widths[at], max_width=widths[at])
    for row in rows:
        drawn.add_row(*(_cell(row[at], widths[at]) for at, _ in columns))
    if block.caption:
        yield _note(block.caption)
    yield drawn
    more = max(len(block.rows), block.total) - len(rows)
    if more:
        yield _note(f"{more:,} more rows: voirkit report {'--html' if len(block.rows) > len(rows) else '--json'}")


def _width(cell: AnyCell, bar: int) -> int:
    if isinstance(cell, Bar):
        return bar
    return texts.Text(cell_text(cell)).cell_len + (2 * cell.indent if isinstance(cell, Cell) else 0)


def _shrink(widths: dict[int, int], columns: Sequence[tuple[int, Column]], width: int) -> None:
    """Take from the columns that may be cut what the table is too wide by, from the widest first."""
    cut = [at for at, one in columns if one.cut]
    over = sum(widths.values()) + 2 * len(widths) - width
    while over > 0 and cut:
        at = max(cut, key=lambda at: widths[at])
        taken = min(over, max(widths[at] - _LEAST, 0))
        if not taken:
            return
        widths[at] -= taken
        over -= taken


def _cell(cell: AnyCell, width: int) -> texts.Text:
    if isinstance(cell, Bar):
        return texts.Text("█" * round(min(max(cell.share, 0.0), 1.0) * width), style=PHASE_COLOURS.get(cell.colour, "cyan"), justify="left")
    style, indent = (_STYLES.get(cell.style, ""), 2 * cell.indent) if isinstance(cell, Cell) else ("", 0)
    shown = texts.Text(" " * indent + cell_text(cell), style=style)
    if shown.cell_len > width and ", " in shown.plain[: width - 3]:  # of a list, whole items
        shown = texts.Text(shown.plain[: width - 3].rpartition(", ")[0] + ", …", style=style)
    shown.truncate(width, overflow="ellipsis")
    return shown


def _bars(block: Bars) -> Iterator[RenderableType]:
    largest = max((value for _, value, _ in block.rows), default=0.0) or 1.0
    width = max((texts.Text(label).cell_len for label, _, _ in block.rows), default=0)
    colours = _colours(block.colours)
    if block.caption:
        yield _note(block.caption)
    for at, (label, value, end) in enumerate(block.rows):
        colour = colours[block.colours[at]] if block.colours else "cyan"
        yield texts.Text.assemble(_padded(label, width), ("█" * round(value / largest * _BAR), colour), f" {end}")
    if block.colours:
        yield _legend(colours)


def _stacked(block: Stacked) -> Iterator[RenderableType]:
    parts = dict.fromkeys([*block.order, *(part for _, values, _ in block.rows for part in values)])
    colours = _colours([part for part in parts if any(values.get(part) for _, values, _ in block.rows)])
    largest = max((sum(values.values()) for _, values, _ in block.rows), default=0.0) if block.whole is None else block.whole
    width = max((texts.Text(label).cell_len for label, _, _ in block.rows), default=0)
    if not colours:
        return
    if block.caption:
        yield _note(block.caption)
    for label, values, end in block.rows:
        drawn, at, total = texts.Text(_padded(label, width)), 0, 0.0
        for part, colour in colours.items():
            total += values.get(part, 0.0)
            until = round(total / (largest or sum(values.values()) or 1.0) * _STACKED)
            drawn.append("█" * (until - at), style=colour)
            at = until
        yield drawn.append(f" {end}")
    yield _legend(colours, block.legend or {})


def _colours(names: Iterable[str]) -> dict[str, str]:
    return {name: PHASE_COLOURS.get(name, _PALETTE[at % len(_PALETTE)]) for at, name in enumerate(dict.fromkeys(names))}


def _legend(colours: dict[str, str], added: object = None) -> RenderableType:
    more = added if isinstance(added, dict) else {}
    words = [texts.Text.assemble(("■ ", colour), f"{name} {more.get(name, '')}".rstrip()) for name, colour in colours.items()]
    return Padding(texts.Text("  ").join(words), _INDENT)


def _padded(label: str, width: int) -> str:
    return f" {label}{' ' * (width - texts.Text(label).cell_len)}  "


def _timeline(block: Timeline, width: int) -> Iterator[RenderableType]:
    """As dark as there was much of it: by the square root, so that little is seen beside much."""
    n = max((len(values) for _, values in block.rows), default=0)
    most = block.whole or max((value for _, values in block.rows for value in values), default=0.0)
    if not n or not most:
        return
    label = max(texts.Text(name).cell_len for name, _ in block.rows)
    each = -(-n // max(width - label - 16, 10))  # values in a column
    if block.caption:
        yield _note(block.caption)
    for name, values in block.rows:
        means = [sum(values[at : at + each]) / len(values[at : at + each]) for at in range(0, len(values), each)]
        shades = "".join(_SHADES[0 if mean <= 0 else max(1, round(min(mean / most, 1.0) ** 0.5 * (len(_SHADES) - 1)))] for mean in means)
        end = written(sum(values) / (n if block.mean else 1), block.unit)
        yield texts.Text.assemble(_padded(name, label), (shades, "cyan"), f"  {end}")
    yield _note(
        f"{written(block.begin_s, 's')} .. {written(block.begin_s + n * block.bin_s, 's')}, {written(each * block.bin_s, 's')} a column"
    )
