"""A run's summary as a person reads it in a terminal: each section from top to bottom, cut to a screen at the end of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich import table as tables
from rich import text as texts
from rich.console import Console, RenderableType
from rich.console import Group as Parts
from rich.padding import Padding
from rich.segment import Segment, SegmentLines
from rich.style import Style

from voirkit.errors import left_out, reason, visible
from voirkit.report import sections
from voirkit.report.overview import BREAKDOWN, Part, command_of, how_it_went, parts_of_report
from voirkit.report.sections import written
from voirkit.runs.summary import PHASES

LINES = 40  # the most at the end of a run
_ROWS = 4  # lines that a table keeps; of fewer than that less one it is left out
_COLOURS = dict(zip(PHASES, ("red", "magenta", "green", "cyan", "blue", "bright_red", "yellow"), strict=True))
_PALETTE = ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue", "bright_yellow")
_MOODS = {"good": "bold green", "bad": "bold red", "warning": "bold yellow", "note": "dim"}
_STYLES = {**_MOODS, "strong": "bold", "dim": "dim"}
_INDENT = (0, 0, 0, 1)
_BAR = 20  # columns of the longest, half of it where there is little room
_STACKED = 40
_POINTS = 48  # columns of a curve
_SHADES = " ░▒▓█"
_SENTENCES = ("because", "next", "warnings")  # keys of texts that may have several lines
_LEAST = 12  # columns that a column keeps which is cut
_MORE = Segment(" …", Style(dim=True))


Summary = Mapping[str, Any]
Lines = list[list[Segment]]


def draw(summary: Summary, console: Console, run_dir: str | None = None, lines: int | None = None) -> None:
    """Draw a summary on a console.

    Args:
        summary: What ``summary.json`` holds; what it lacks is left out.
        console: Where to.
        run_dir: Where the run is recorded, as the user may type it.
        lines: The most lines; the parts that are too long for it are cut, and it is said how to see the rest. No bound if left out.
    """
    run_dir = run_dir and visible(run_dir, in_line=True)
    parts = [*_parts(_visible(summary), run_dir, console)]
    if lines is not None and sum(len(part.lines) for part in parts) > lines:
        everything = texts.Text.assemble(("all of it  ", "dim"), f"voirkit report {run_dir}" if run_dir else "voirkit report")
        hint = rendered(console, everything)
        kept = _cut(parts, lines - len(hint) - 1, console.width)
        missing = rendered(console, _left_out(parts, kept))
        shown = [*kept, missing, hint]
    else:
        shown = [part.lines for part in parts]
    for drawn in shown:
        console.print(SegmentLines(drawn, new_lines=True), end="")


def _visible(value: Any, has_lines: bool = False) -> Any:
    """A summary, each text of which stays within its line; lines of sentences are indented: no name looks like a line of the report."""
    if isinstance(value, str):
        return _indented(visible(value)) if has_lines else visible(value, in_line=True)
    if isinstance(value, Mapping):
        return {_visible(key): _visible(one, key in _SENTENCES) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_visible(one, has_lines) for one in value]
    return value


def _indented(text: str) -> str:
    """A text whose further lines are indented; those that are keep their indentation."""
    return re.sub("\n(?!  )", "\n  ", text)


def rendered(console: Console, part: RenderableType) -> Lines:
    """The lines of a part, without the blanks at their ends, and without what a terminal would obey: rich lets escape sequences pass."""
    lines = console.render_lines(part, pad=False)
    return [_trimmed([one if one.control else one._replace(text=visible(one.text)) for one in line]) for line in lines]


def _trimmed(line: list[Segment]) -> list[Segment]:
    """A line without the blanks at its end: it may be read in a file, or copied."""
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], line[-1]._replace(text=line[-1].text.rstrip())] if line else []


@dataclass
class DrawnPart:
    """Lines of a report that belong together."""

    name: str  # what it is called where it is left out
    lines: Lines
    least: int  # how many of its lines it should keep
    fixed: int = 0  # how many of its lines are never cut
    headings: frozenset[int] = frozenset()  # the lines that only say what is below them


def _cut(parts: Sequence[DrawnPart], most: int, width: int) -> list[Lines]:
    """The lines that parts keep of at most so many in all. What is left of a part ends with an ellipsis, where that has room, and with no
    heading. What is never cut takes half of the lines at most: where it needs more, there are more lines."""
    most = max(most, 2 * sum(part.fixed for part in parts))
    kept = [list(part.lines) for part in parts]
    while sum(map(len, kept)) > most:
        longest = _next_to_cut(parts, kept)
        if longest is None:
            break
        part, lines = parts[longest], kept[longest]
        lines.pop()
        while len(lines) > part.fixed and len(lines) - 1 in part.headings:
            lines.pop()
        if part.least >= _ROWS and len(lines) < max(_ROWS - 1, part.fixed):  # a few rows of a table tell nothing
            lines.clear()
    for part, lines in zip(parts, kept, strict=True):
        if lines and len(lines) < len(part.lines):
            if Segment.get_line_length(lines[-1]) + _MORE.cell_length <= width:
                lines[-1] = [*lines[-1], _MORE]
            elif len(lines) > max(part.fixed, 1):  # no number is cut for it
                lines[-1] = [_MORE]
    return kept


def _next_to_cut(parts: Sequence[DrawnPart], kept: Sequence[Lines]) -> int | None:
    """The place of the part that loses its next line: the one that is furthest above its least, then the longest but the breakdown, then
    the longest of all; None if none can lose any."""
    cuttable = [at for at, part in enumerate(parts) if len(kept[at]) > part.fixed]
    above = [at for at in cuttable if len(kept[at]) > parts[at].least]
    if above:
        return max(above, key=lambda at: len(kept[at]) - parts[at].least)
    small = [at for at in cuttable if parts[at].least < BREAKDOWN]
    return max(small or cuttable, key=lambda at: len(kept[at]), default=None)


def _left_out(parts: Sequence[DrawnPart], kept: Sequence[Lines]) -> RenderableType:
    """The names of what was cut, in one line."""
    missing: dict[str, None] = {}
    for part, lines in zip(parts, kept, strict=True):
        if len(lines) < len(part.lines):
            missing[f"part of {part.name}" if lines else part.name] = None
    return texts.Text.assemble(("left out  ", "dim"), ", ".join(missing), no_wrap=True, overflow="ellipsis")


def _parts(summary: Summary, run_dir: str | None, console: Console) -> Iterator[DrawnPart]:
    """The parts from top to bottom; one that fails is a line."""
    drawing: dict[str, Drawing] = {name: partial(_drawn_sections, part) for name, part in parts_of_report().items()}
    parts: dict[str, Drawing] = {"command": _head, **drawing, "run directory": partial(_directory, run_dir)}
    for name, part in parts.items():
        try:
            made = [*part(name, summary, console)]
        except Exception as exc:  # a summary of another version, or one that is damaged
            line = texts.Text.assemble(("warning  ", "bold yellow"), left_out(name, reason(exc)))
            made = [DrawnPart(name, rendered(console, line), least=1)]
        yield from made


Drawing = Callable[[str, Summary, Console], Iterator[DrawnPart]]


def _head(name: str, summary: Summary, console: Console) -> Iterator[DrawnPart]:
    words = texts.Text.assemble((command_of(summary), "bold"), (f"   {', '.join(how_it_went(summary))}", "dim"))
    yield DrawnPart(name, rendered(console, words), least=1)


def _directory(run_dir: str | None, name: str, summary: Summary, console: Console) -> Iterator[DrawnPart]:
    if run_dir is None:
        return
    words = texts.Text.assemble(("run directory  ", "dim"), run_dir, overflow="fold")
    yield DrawnPart(name, rendered(console, words), least=1)
    if (summary.get("steps") or {}).get("n"):
        command = f"voirkit export {run_dir} --format chrome"
        words = texts.Text.assemble(("see it as a timeline  ", "dim"), command, overflow="fold")
        yield DrawnPart("the timeline", rendered(console, words), least=0)


def _drawn_sections(part: Part, name: str, summary: Summary, console: Console) -> Iterator[DrawnPart]:
    for section in part(summary):
        lines: Lines = []
        headings: set[int] = set()
        for piece in _pieces(section, console.width):
            drawn = rendered(console, piece)
            headings.update(range(len(lines), len(lines) + _count_headings(piece, len(drawn))))
            lines += drawn
        if lines:
            fixed = len(lines) if section.fixed else 0
            yield DrawnPart(section.title or name, lines, section.least, fixed, frozenset(headings))


def _count_headings(piece: RenderableType, n_lines: int) -> int:
    """How many of the first lines of a piece only say what is below them."""
    inner = piece.renderable if isinstance(piece, Padding) else piece
    if isinstance(inner, _Heading):
        return n_lines
    return 1 if isinstance(inner, tables.Table) else 0


def draw_sections(parts: Iterable[sections.Section], console: Console) -> None:
    """Print sections whole."""
    for section in parts:
        drawn = rendered_section(section, console.width)
        if drawn is not None:
            console.print(SegmentLines(rendered(console, drawn), new_lines=True), end="")


def rendered_section(section: sections.Section, width: int = 100) -> RenderableType | None:
    """A section as rich prints it in so many columns: its title in front, each block below; None if there is nothing in it."""
    pieces = _pieces(section, width)
    return Parts(*pieces) if pieces else None


def _pieces(section: sections.Section, width: int) -> list[RenderableType]:
    """What a section is drawn of, from top to bottom; nothing if it has nothing but a title."""
    pieces = list(_drawn(section.blocks, width))
    if not pieces:
        return []
    if section.note:
        pieces.append(_note(section.note))
    return [_Heading(section.title, style="bold"), *pieces] if section.title else pieces


class _Heading(texts.Text):
    """Text that only says what is below it."""


def _drawn(blocks: Iterable[sections.Block], width: int) -> Iterator[RenderableType]:
    for block in blocks:
        yield from _lines(block, width)


def _note(text: str) -> RenderableType:
    return Padding(texts.Text(text, style="dim"), _INDENT)


def _caption(text: str) -> RenderableType:
    return Padding(_Heading(text, style="dim"), _INDENT)


def _lines(block: sections.Block, width: int) -> Iterator[RenderableType]:
    if isinstance(block, sections.Text):
        yield _text(block) if block.label else Padding(_text(block), _INDENT)
    elif isinstance(block, sections.Figures):
        yield from _figures(block)
    elif isinstance(block, sections.Facts):
        for label, facts in block.lines:
            words = " · ".join(sections.fact_text(*fact) for fact in facts)
            yield texts.Text.assemble((f"{label}  " if label else "", "dim"), words)
    elif isinstance(block, sections.Finding):
        because = texts.Text.assemble((f"{block.name}  ", _MOODS[block.mood]), block.because)
        following = (texts.Text.assemble((f"{name}  ", "bold"), words) for name, words in block.following())
        yield Padding(Parts(because, *following), (0, 0, 0, 2))
    elif isinstance(block, sections.Table):
        yield from _table(block, width)
    elif isinstance(block, sections.Bars):
        yield from _bars(block)
    elif isinstance(block, sections.Stacked):
        yield from _stacked(block)
    elif isinstance(block, sections.Series):
        for name, points in block.curves.items():
            known = [y for _, y in points if y is not None]
            if known:
                ends = f"{written(known[0], block.unit)} .. {written(known[-1], block.unit)}"
                yield texts.Text.assemble((f" {name}  ", "dim"), sections.sparkline([y for _, y in points], _POINTS), f"  {ends}")
    elif isinstance(block, sections.Timeline):
        yield from _timeline(block, width)
    elif isinstance(block, sections.Group):
        inner = list(_drawn(block.blocks, width))
        if inner:
            yield Padding(_Heading(block.title, style="bold"), _INDENT)
            yield from inner
            if block.note:
                yield _note(block.note)
    elif isinstance(block, (sections.Grid, sections.InText)):
        yield from _drawn(block.blocks, width)
    else:
        assert isinstance(block, (sections.Amounts, sections.Details, sections.FlameGraph, sections.OnPage))  # other reports show them


def _figures(block: sections.Figures) -> Iterator[RenderableType]:
    """In a line; below each other if more is to be said of one."""
    shown = [(one.name, *written(one.value, one.unit).partition(" ")[::2], one.note) for one in block.figures]
    if any(note for *_, note in shown):
        names, values = (max(len(row[at]) for row in shown) for at in (0, 1))
        for name, value, unit, note in shown:
            yield texts.Text.assemble((f"{name:{names}}  ", "dim"), f"{value:>{values}} {unit}", (f"   {note}" if note else "", "dim"))
    elif shown:
        named = (texts.Text.assemble((f"{name}  ", "dim"), f"{value} {unit}".rstrip()) for name, value, unit, _ in shown)
        yield Padding(texts.Text("   ").join(named), _INDENT)


def _text(block: sections.Text) -> texts.Text:
    label = (f"{block.label}  ", _MOODS.get(block.mood) or ("bold" if block.strong else "dim"))
    style = "" if block.label else _MOODS.get(block.mood) or ("bold" if block.strong else "")
    shown = texts.Text.assemble(
        *([label] if block.label else []), (block.text, style), *([(f"  {block.link}", "dim")] if block.link else [])
    )
    if block.one_line:
        shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def _table(block: sections.Table, width: int) -> Iterator[RenderableType]:
    if not block.rows:
        return
    rows = block.rows[: block.most]
    columns = [(at, one) for at, one in sections.columns_of(block) if width >= one.narrowest]
    widths = {at: max(len(one.head), *(_width(row[at]) for row in rows)) for at, one in columns}
    bars = [at for at, _ in columns if any(isinstance(row[at], sections.Bar) for row in rows)]
    _shrink(widths, bars, width, _BAR // 2)
    _shrink(widths, [at for at, one in columns if one.cut], width, _LEAST)
    drawn = tables.Table(box=None, padding=(0, 1), header_style="dim")
    for at, one in columns:
        drawn.add_column(
            texts.Text(one.head), justify="left" if one.left else "right", no_wrap=True, min_width=widths[at], max_width=widths[at]
        )
    for row in rows:
        drawn.add_row(*(_cell(row[at], widths[at]) for at, _ in columns))
    if block.caption:
        yield _caption(block.caption)
    yield drawn
    more = max(len(block.rows), block.total) - len(rows)
    if more:
        yield _note(f"{more:,} more rows: voirkit report {'--html' if len(block.rows) > len(rows) else '--json'}")


def _width(cell: sections.AnyCell) -> int:
    if isinstance(cell, sections.Bar):
        return _BAR
    return texts.Text(sections.cell_text(cell)).cell_len + (2 * cell.indent if isinstance(cell, sections.Cell) else 0)


def _shrink(widths: dict[int, int], chosen: Sequence[int], width: int, least: int) -> None:
    """Take from the chosen columns what the table is too wide by, always from the widest."""
    over = sum(widths.values()) + 2 * len(widths) - width
    while over > 0 and (left := [at for at in chosen if widths[at] > least]):
        widths[max(left, key=widths.__getitem__)] -= 1
        over -= 1


def _cell(cell: sections.AnyCell, width: int) -> texts.Text:
    if isinstance(cell, sections.Bar):
        return texts.Text("█" * round(min(max(cell.share, 0.0), 1.0) * width), style=_COLOURS.get(cell.colour, "cyan"), justify="left")
    style, indent = (_STYLES.get(cell.style, ""), 2 * cell.indent) if isinstance(cell, sections.Cell) else ("", 0)
    shown = texts.Text(" " * indent + sections.cell_text(cell), style=style)
    items = shown.plain[: max(width - 3, 0)].rpartition(", ")[0]
    if shown.cell_len > width and len(items) > width / 2:  # of a list, whole items
        shown = texts.Text(f"{items}, …", style=style)
    shown.truncate(width, overflow="ellipsis")
    return shown


def _bars(block: sections.Bars) -> Iterator[RenderableType]:
    largest = max((value for _, value, _ in block.rows), default=0.0) or 1.0
    width = max((texts.Text(label).cell_len for label, _, _ in block.rows), default=0)
    colours = _colours(block.colours)
    if block.caption:
        yield _caption(block.caption)
    for at, (label, value, end) in enumerate(block.rows):
        colour = colours[block.colours[at]] if block.colours else "cyan"
        yield texts.Text.assemble(_padded(label, width), ("█" * round(value / largest * _BAR), colour), f" {end}")
    if block.colours:
        yield _legend(colours)


def _stacked(block: sections.Stacked) -> Iterator[RenderableType]:
    colours = _colours(block.parts())
    largest = max((sum(values.values()) for _, values, _ in block.rows), default=0.0) if block.whole is None else block.whole
    width = max((texts.Text(label).cell_len for label, _, _ in block.rows), default=0)
    if not colours:
        return
    if block.caption:
        yield _caption(block.caption)
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
    return {name: _COLOURS.get(name, _PALETTE[at % len(_PALETTE)]) for at, name in enumerate(dict.fromkeys(names))}


def _legend(colours: dict[str, str], added: object = None) -> RenderableType:
    more = added if isinstance(added, dict) else {}
    words = [texts.Text.assemble(("■ ", colour), f"{name} {more.get(name, '')}".rstrip()) for name, colour in colours.items()]
    return Padding(texts.Text("  ").join(words), _INDENT)


def _padded(label: str, width: int) -> str:
    return f" {label}{' ' * (width - texts.Text(label).cell_len)}  "


def _timeline(block: sections.Timeline, width: int) -> Iterator[RenderableType]:
    """As dark as there was much of it: by the square root, so that little is seen beside much."""
    n = max((len(values) for _, values in block.rows), default=0)
    most = block.whole or max((value for _, values in block.rows for value in values), default=0.0)
    if not n or not most:
        return
    label = max(texts.Text(name).cell_len for name, _ in block.rows)
    each = -(-n // max(width - label - 16, 10))  # values in a column
    if block.caption:
        yield _caption(block.caption)
    for name, values in block.rows:
        means = [sum(values[at : at + each]) / len(values[at : at + each]) for at in range(0, len(values), each)]
        shades = "".join(_SHADES[0 if mean <= 0 else max(1, round(min(mean / most, 1.0) ** 0.5 * (len(_SHADES) - 1)))] for mean in means)
        end = written(sum(values) / (n if block.mean else 1), block.unit)
        yield texts.Text.assemble(_padded(name, label), (shades, "cyan"), f"  {end}")
    yield _note(
        f"{written(block.begin_s, 's')} .. {written(block.begin_s + n * block.bin_s, 's')}, {written(each * block.bin_s, 's')} a column"
    )
