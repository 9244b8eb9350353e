"""The report of a run in a terminal: all sections from top to bottom, shortened to about one screen
at the end of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any

from rich import table as tables
from rich import text as texts
from rich.console import Console, RenderableType
from rich.console import Group as Parts
from rich.padding import Padding
from rich.segment import Segment, SegmentLines
from rich.style import Style

from voirkit.errors import left_out, reason, visible
from voirkit.phase_table import TABLE
from voirkit.report import sections
from voirkit.report.overview import BREAKDOWN, Part, command_of, how_it_went, parts_of_report
from voirkit.report.sections import written

LINES = 40  # maximum number of lines at the end of a run
# A part that should keep at least this many lines (``least``) is left out entirely if fewer than
# ``_ROWS - 1`` of its lines would remain.
_ROWS = 4
_COLOURS = {phase.name: phase.terminal_colour for phase in TABLE if phase.terminal_colour}
_PALETTE = ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue", "bright_yellow")
_MOODS = {"good": "bold green", "bad": "bold red", "warning": "bold yellow", "note": "dim"}
_STYLES = {**_MOODS, "strong": "bold", "dim": "dim"}
_INDENT = (0, 0, 0, 1)
_BAR = 20  # width of the longest bar; in a table it may shrink to half of that
_STACKED = 40  # width of a stacked bar
_POINTS = 48  # width of a curve
_SHADES = " ░▒▓█"
_SENTENCES = ("because", "next", "warnings")  # keys of strings that may have several lines
_LEAST = 12  # minimum width of a table column that may be cut
_MORE = Segment(" …", Style(dim=True))


Summary = Mapping[str, Any]
Lines = list[list[Segment]]


def draw(
    summary: Summary, console: Console, run_dir: str | None = None, lines: int | None = None
) -> None:
    """Print the report of a run on a console.

    Args:
        summary: The content of ``summary.json``. Parts that it lacks are left out.
        console: The console to print on.
        run_dir: The path of the run directory, as the user may type it.
        lines: The maximum number of lines. If the report is longer, parts are shortened, and a line
            says how to see everything. None means no limit.
    """
    run_dir = run_dir and visible(run_dir, in_line=True)
    parts = [*_parts(_visible(summary), run_dir, console)]
    if lines is not None and sum(len(part.lines) for part in parts) > lines:
        command = f"voirkit report {run_dir}" if run_dir else "voirkit report"
        hint = rendered(console, texts.Text.assemble(("all of it  ", "dim"), command))
        cut_parts = _cut(parts, lines - len(hint) - 1, console.width)
        missing = rendered(console, _left_out(parts, cut_parts))
        pieces = [*cut_parts, missing, hint]
    else:
        pieces = [part.lines for part in parts]
    for piece in pieces:
        console.print(SegmentLines(piece, new_lines=True), end="")


def _visible(value: Any, has_lines: bool = False) -> Any:
    """Return a summary whose strings have no line breaks; further lines of sentences are indented
    instead. So no text of the program can look like a line of the report."""
    if isinstance(value, str):
        return _indented(visible(value)) if has_lines else visible(value, in_line=True)
    if isinstance(value, Mapping):
        return {_visible(key): _visible(item, key in _SENTENCES) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_visible(item, has_lines) for item in value]
    return value


def _indented(text: str) -> str:
    """Indent all lines of a text but the first; lines that are indented already stay."""
    return re.sub("\n(?!  )", "\n  ", text)


def rendered(console: Console, part: RenderableType) -> Lines:
    """Return the lines of a part without trailing blanks. Escape sequences in its text, which rich
    does not remove, are made visible."""
    lines = console.render_lines(part, pad=False)
    return [_trimmed([_visible_segment(segment) for segment in line]) for line in lines]


def _visible_segment(segment: Segment) -> Segment:
    return segment if segment.control else segment._replace(text=visible(segment.text))


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Return a line without trailing blanks, since it may be copied or written to a file."""
    while line and not line[-1].text.strip():
        line = line[:-1]
    if not line:
        return []
    last = line[-1]
    return [*line[:-1], last._replace(text=last.text.rstrip())]


@dataclass
class DrawnPart:
    """A part of a report as lines, with how it may be shortened."""

    name: str  # name of the part in the list of parts that were left out
    lines: Lines
    least: int  # number of lines that the part should keep
    fixed: int = 0  # number of lines of the part that are never cut
    headings: frozenset[int] = frozenset()  # indices of lines that are only headings


def _cut(parts: Sequence[DrawnPart], most: int, width: int) -> list[Lines]:
    """Return the lines that remain of each part if the report is shortened to ``most`` lines.

    A shortened part never ends with a heading; it ends with an ellipsis if there is room. If the
    lines that are never cut need more than half of ``most``, it is raised to twice their number.
    """
    most = max(most, 2 * sum(part.fixed for part in parts))
    cut_parts = [list(part.lines) for part in parts]
    while sum(map(len, cut_parts)) > most:
        number = _next_to_cut(parts, cut_parts)
        if number is None:
            break
        _cut_last_line(parts[number], cut_parts[number])
    for part, lines in zip(parts, cut_parts, strict=True):
        if lines and len(lines) < len(part.lines):
            _mark_as_cut(part, lines, width)
    return cut_parts


def _cut_last_line(part: DrawnPart, lines: Lines) -> None:
    """Remove the last line of a part, and lines that make no sense without it, such as a
    heading."""
    lines.pop()
    while len(lines) > part.fixed and len(lines) - 1 in part.headings:
        lines.pop()
    # a table of which only very few rows would remain is left out entirely
    if part.least >= _ROWS and len(lines) < max(_ROWS - 1, part.fixed):
        lines.clear()


def _mark_as_cut(part: DrawnPart, lines: Lines, width: int) -> None:
    """Put an ellipsis at the end of a shortened part."""
    if Segment.get_line_length(lines[-1]) + _MORE.cell_length <= width:
        lines[-1] = [*lines[-1], _MORE]
    elif len(lines) > max(part.fixed, 1):  # replace the whole line rather than truncate a number
        lines[-1] = [_MORE]


def _next_to_cut(parts: Sequence[DrawnPart], cut_parts: Sequence[Lines]) -> int | None:
    """Return the index of the part that loses a line next; None if no part can lose any.

    This is the part that exceeds its ``least`` most. If none does, it is the longest part other
    than the table of phases, and finally the longest of all.
    """
    lengths = [len(lines) for lines in cut_parts]
    cuttable = [number for number, part in enumerate(parts) if lengths[number] > part.fixed]
    above = [number for number in cuttable if lengths[number] > parts[number].least]
    if above:
        return max(above, key=lambda number: lengths[number] - parts[number].least)
    small = [number for number in cuttable if parts[number].least < BREAKDOWN]
    return max(small or cuttable, key=lengths.__getitem__, default=None)


def _left_out(parts: Sequence[DrawnPart], cut_parts: Sequence[Lines]) -> RenderableType:
    """Return a line with the names of the parts that were left out or shortened."""
    missing: dict[str, None] = {}
    for part, lines in zip(parts, cut_parts, strict=True):
        if len(lines) < len(part.lines):
            missing[f"part of {part.name}" if lines else part.name] = None
    return texts.Text.assemble(
        ("left out  ", "dim"), ", ".join(missing), no_wrap=True, overflow="ellipsis"
    )


def _parts(summary: Summary, run_dir: str | None, console: Console) -> Iterator[DrawnPart]:
    """Yield the parts from top to bottom. A part that fails is replaced by a line with the
    error."""
    parts: dict[str, Drawing] = {"command": _head}
    parts |= {name: partial(_drawn_sections, part) for name, part in parts_of_report().items()}
    parts["run directory"] = partial(_directory, run_dir)
    for name, part in parts.items():
        try:
            drawn_parts = [*part(name, summary, console)]
        except Exception as exc:  # a summary of another version, or one that is damaged
            line = texts.Text.assemble(("warning  ", "bold yellow"), left_out(name, reason(exc)))
            drawn_parts = [DrawnPart(name, rendered(console, line), least=1)]
        yield from drawn_parts


Drawing = Callable[[str, Summary, Console], Iterator[DrawnPart]]


def _head(name: str, summary: Summary, console: Console) -> Iterator[DrawnPart]:
    words = texts.Text.assemble(
        (command_of(summary), "bold"), (f"   {', '.join(how_it_went(summary))}", "dim")
    )
    yield DrawnPart(name, rendered(console, words), least=1)


def _directory(
    run_dir: str | None, name: str, summary: Summary, console: Console
) -> Iterator[DrawnPart]:
    if run_dir is None:
        return
    words = texts.Text.assemble(("run directory  ", "dim"), run_dir, overflow="fold")
    yield DrawnPart(name, rendered(console, words), least=1)
    if (summary.get("steps") or {}).get("n"):
        command = f"voirkit export {run_dir} --format chrome"
        words = texts.Text.assemble(("see it as a timeline  ", "dim"), command, overflow="fold")
        yield DrawnPart("the timeline", rendered(console, words), least=0)


def _drawn_sections(
    part: Part, name: str, summary: Summary, console: Console
) -> Iterator[DrawnPart]:
    for section in part(summary):
        lines: Lines = []
        headings: set[int] = set()
        for piece in _pieces(section, console.width):
            piece_lines = rendered(console, piece)
            n_headings = _count_headings(piece, len(piece_lines))
            headings.update(range(len(lines), len(lines) + n_headings))
            lines += piece_lines
        if lines:
            fixed = len(lines) if section.fixed else 0
            yield DrawnPart(section.title or name, lines, section.least, fixed, frozenset(headings))


def _count_headings(piece: RenderableType, n_lines: int) -> int:
    """Return the number of lines at the start of a piece that are only headings."""
    inner = piece.renderable if isinstance(piece, Padding) else piece
    if isinstance(inner, _Heading):
        return n_lines
    return 1 if isinstance(inner, tables.Table) else 0


def draw_sections(parts: Iterable[sections.Section], console: Console) -> None:
    """Print sections in full."""
    for section in parts:
        renderable = rendered_section(section, console.width)
        if renderable is not None:
            console.print(SegmentLines(rendered(console, renderable), new_lines=True), end="")


def rendered_section(section: sections.Section, width: int = 100) -> RenderableType | None:
    """Return a section as a rich object for a terminal of ``width`` columns: its title, then its
    blocks. None if the section is empty."""
    pieces = _pieces(section, width)
    return Parts(*pieces) if pieces else None


def _pieces(section: sections.Section, width: int) -> list[RenderableType]:
    """Return the rich objects of a section, from top to bottom; empty if it has only a title."""
    pieces = list(_pieces_of_blocks(section.blocks, width))
    if not pieces:
        return []
    if section.title:
        pieces.insert(0, _Heading(section.title, style="bold"))
    if section.note:
        pieces.append(_note(section.note))
    return pieces


class _Heading(texts.Text):
    """A text that is only the heading of the lines below it."""


def _pieces_of_blocks(blocks: Iterable[sections.Block], width: int) -> Iterator[RenderableType]:
    for block in blocks:
        yield from _pieces_of_block(block, width)


def _note(text: str) -> RenderableType:
    return Padding(texts.Text(text, style="dim"), _INDENT)


def _caption(text: str) -> RenderableType:
    return Padding(_Heading(text, style="dim"), _INDENT)


@singledispatch
def _pieces_of_block(block: sections.Block, width: int) -> Iterator[RenderableType]:
    """Yield the rich objects of a block for a terminal of ``width`` columns."""
    # these blocks are shown by other reports only
    assert isinstance(
        block, (sections.Amounts, sections.Details, sections.FlameGraph, sections.OnPage)
    )
    return iter(())


@_pieces_of_block.register
def _(block: sections.Text, width: int) -> Iterator[RenderableType]:
    strength = "bold" if block.strong else ""
    text_style = _MOODS.get(block.mood) or strength
    words: list[tuple[str, str]] = []
    if block.label:
        words.append((f"{block.label}  ", text_style or "dim"))
        text_style = ""
    words.append((block.text, text_style))
    if block.link:
        words.append((f"  {block.link}", "dim"))
    text = texts.Text.assemble(*words)
    if block.one_line:
        text.no_wrap = True
        text.overflow = "ellipsis"
    yield text if block.label else Padding(text, _INDENT)


@_pieces_of_block.register
def _(block: sections.Figures, width: int) -> Iterator[RenderableType]:
    """Draw the figures in one line, or one a line if any of them has a note."""
    rows = []
    for figure in block.figures:
        value, _, unit = written(figure.value, figure.unit).partition(" ")
        rows.append((figure.name, value, unit, figure.note))
    if any(figure.note for figure in block.figures):
        name_width = max(len(name) for name, *_ in rows)
        value_width = max(len(value) for _, value, *_ in rows)
        for name, value, unit, note in rows:
            yield texts.Text.assemble(
                (f"{name:{name_width}}  ", "dim"),
                f"{value:>{value_width}} {unit}",
                (f"   {note}" if note else "", "dim"),
            )
    elif rows:
        figures = (
            texts.Text.assemble((f"{name}  ", "dim"), f"{value} {unit}".rstrip())
            for name, value, unit, _ in rows
        )
        yield Padding(texts.Text("   ").join(figures), _INDENT)


@_pieces_of_block.register
def _(block: sections.Facts, width: int) -> Iterator[RenderableType]:
    for label, facts in block.lines:
        words = " · ".join(sections.fact_text(*fact) for fact in facts)
        yield texts.Text.assemble((f"{label}  " if label else "", "dim"), words)


@_pieces_of_block.register
def _(block: sections.Finding, width: int) -> Iterator[RenderableType]:
    because = texts.Text.assemble((f"{block.name}  ", _MOODS[block.mood]), block.because)
    following = (
        texts.Text.assemble((f"{name}  ", "bold"), words) for name, words in block.following()
    )
    yield Padding(Parts(because, *following), (0, 0, 0, 2))


@_pieces_of_block.register
def _(block: sections.Table, width: int) -> Iterator[RenderableType]:
    if not block.rows:
        return
    rows = block.rows[: block.most]
    columns = {
        place: column for place, column in sections.columns_of(block) if width >= column.narrowest
    }
    if block.caption:
        yield _caption(block.caption)
    yield _rich_table(columns, rows, width)
    more = max(len(block.rows), block.total) - len(rows)
    if more:
        option = "--html" if len(block.rows) > len(rows) else "--json"
        yield _note(f"{more:,} more rows: voirkit report {option}")


def _rich_table(
    columns: Mapping[int, sections.Column],
    rows: Sequence[Sequence[sections.AnyCell]],
    width: int,
) -> tables.Table:
    """Return a table for a terminal of ``width`` columns; ``columns`` are those to show, by their
    index in the rows."""
    widths = {}
    for place, column in columns.items():
        widths[place] = max(len(column.head), *(_width(row[place]) for row in rows))
    bars = [place for place in columns if any(isinstance(row[place], sections.Bar) for row in rows)]
    _shrink(widths, bars, width, _BAR // 2)
    _shrink(widths, [place for place, column in columns.items() if column.cut], width, _LEAST)
    table = tables.Table(box=None, padding=(0, 1), header_style="dim")
    for place, column in columns.items():
        table.add_column(
            texts.Text(column.head),
            justify="left" if column.left else "right",
            no_wrap=True,
            min_width=widths[place],
            max_width=widths[place],
        )
    for row in rows:
        table.add_row(*(_cell(row[place], widths[place]) for place in columns))
    return table


def _width(cell: sections.AnyCell) -> int:
    if isinstance(cell, sections.Bar):
        return _BAR
    return _cell_indent(cell) + texts.Text(sections.cell_text(cell)).cell_len


def _cell_indent(cell: sections.AnyCell) -> int:
    return 2 * cell.indent if isinstance(cell, sections.Cell) else 0


def _shrink(widths: dict[int, int], places: Sequence[int], width: int, least: int) -> None:
    """Reduce the widths of the columns at ``places``, always the widest first, until the table has
    ``width`` columns or all of them have ``least``."""
    excess = sum(widths.values()) + 2 * len(widths) - width
    while excess > 0:
        wide = [place for place in places if widths[place] > least]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
        excess -= 1


def _cell(cell: sections.AnyCell, width: int) -> texts.Text:
    if isinstance(cell, sections.Bar):
        share = min(max(cell.share, 0.0), 1.0)
        style = _COLOURS.get(cell.colour, "cyan")
        return texts.Text("█" * round(share * width), style=style, justify="left")
    style = _STYLES.get(cell.style, "") if isinstance(cell, sections.Cell) else ""
    text = texts.Text(" " * _cell_indent(cell) + sections.cell_text(cell), style=style)
    items = text.plain[: max(width - 3, 0)].rpartition(", ")[0]
    if text.cell_len > width and len(items) > width / 2:  # cut a list after a whole item
        text = texts.Text(f"{items}, …", style=style)
    text.truncate(width, overflow="ellipsis")
    return text


@_pieces_of_block.register
def _(block: sections.Bars, width: int) -> Iterator[RenderableType]:
    largest = max((value for _, value, _ in block.rows), default=0.0) or 1.0
    label_width = _widest(label for label, _, _ in block.rows)
    colours = _colours(block.colours)
    if block.caption:
        yield _caption(block.caption)
    for number, (label, value, end) in enumerate(block.rows):
        colour = colours[block.colours[number]] if block.colours else "cyan"
        bar = "█" * round(value / largest * _BAR)
        yield texts.Text.assemble(_padded(label, label_width), (bar, colour), f" {end}")
    if block.colours:
        yield _legend(colours, {})


@_pieces_of_block.register
def _(block: sections.Stacked, width: int) -> Iterator[RenderableType]:
    colours = _colours(block.parts())
    if not colours:
        return
    whole = block.whole
    if whole is None:
        whole = max((sum(values.values()) for _, values, _ in block.rows), default=0.0)
    label_width = _widest(label for label, _, _ in block.rows)
    if block.caption:
        yield _caption(block.caption)
    for label, values, end in block.rows:
        row = texts.Text(_padded(label, label_width))
        row_whole = whole or sum(values.values()) or 1.0
        column, total = 0, 0.0
        for part, colour in colours.items():
            total += values.get(part, 0.0)
            end_column = round(total / row_whole * _STACKED)
            row.append("█" * (end_column - column), style=colour)
            column = end_column
        yield row.append(f" {end}")
    yield _legend(colours, block.legend or {})


def _colours(names: Iterable[str]) -> dict[str, str]:
    return {
        name: _COLOURS.get(name, _PALETTE[number % len(_PALETTE)])
        for number, name in enumerate(dict.fromkeys(names))
    }


def _legend(colours: Mapping[str, str], figures: Mapping[str, str]) -> RenderableType:
    entries = [
        texts.Text.assemble(("■ ", colour), f"{name} {figures.get(name, '')}".rstrip())
        for name, colour in colours.items()
    ]
    return Padding(texts.Text("  ").join(entries), _INDENT)


def _widest(labels: Iterable[str]) -> int:
    return max((texts.Text(label).cell_len for label in labels), default=0)


def _padded(label: str, width: int) -> str:
    return f" {label}{' ' * (width - texts.Text(label).cell_len)}  "


@_pieces_of_block.register
def _(block: sections.Series, width: int) -> Iterator[RenderableType]:
    for name, points in block.curves.items():
        values = [y for _, y in points]
        finite = [value for value in values if value is not None]
        if finite:
            first, last = written(finite[0], block.unit), written(finite[-1], block.unit)
            curve = sections.sparkline(values, _POINTS)
            yield texts.Text.assemble((f" {name}  ", "dim"), curve, f"  {first} .. {last}")


@_pieces_of_block.register
def _(block: sections.Timeline, width: int) -> Iterator[RenderableType]:
    """Draw each row as characters whose shade is darker for larger values."""
    n = max((len(values) for _, values in block.rows), default=0)
    most = block.whole or _largest(block)
    if not n or not most:
        return
    label_width = _widest(name for name, _ in block.rows)
    per_column = -(-n // max(width - label_width - 16, 10))  # number of values in a column
    if block.caption:
        yield _caption(block.caption)
    for name, values in block.rows:
        columns = (
            values[start : start + per_column] for start in range(0, len(values), per_column)
        )
        shades = "".join(_shade(sum(column) / len(column), most) for column in columns)
        amount = written(sum(values) / (n if block.mean else 1), block.unit)
        yield texts.Text.assemble(_padded(name, label_width), (shades, "cyan"), f"  {amount}")
    start = written(block.begin_s, "s")
    end = written(block.begin_s + n * block.bin_s, "s")
    yield _note(f"{start} .. {end}, {written(per_column * block.bin_s, 's')} a column")


def _largest(block: sections.Timeline) -> float:
    return max((value for _, values in block.rows for value in values), default=0.0)


def _shade(value: float, most: float) -> str:
    """Return the shade character of a value. It depends on the square root of the value, so that
    small values are visible beside large ones."""
    if value <= 0:
        return _SHADES[0]
    darkness = min(value / most, 1.0) ** 0.5
    return _SHADES[max(1, round(darkness * (len(_SHADES) - 1)))]


@_pieces_of_block.register
def _(block: sections.Group, width: int) -> Iterator[RenderableType]:
    inner = list(_pieces_of_blocks(block.blocks, width))
    if inner:
        yield Padding(_Heading(block.title, style="bold"), _INDENT)
        yield from inner
        if block.note:
            yield _note(block.note)


@_pieces_of_block.register(sections.Grid)
@_pieces_of_block.register(sections.InText)
def _(block: sections.Grid | sections.InText, width: int) -> Iterator[RenderableType]:
    yield from _pieces_of_blocks(block.blocks, width)
