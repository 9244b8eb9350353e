"""Sections on the HTML page, and on the page of two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from voirkit.report import sections
from voirkit.report.html import components as marks
from voirkit.report.html.components import PALETTE, TIME, Html, colour, heat_map, join, lines, seconds
from voirkit.report.sections import written

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_LONGEST = 4000  # characters of a text
_DRAWN = 16  # differences in a picture
_ROWS = 60  # of their table
_CLASSES = {"strong": "strong", "dim": "note", "note": "note", "good": "good", "bad": "bad", "warning": "warn"}


def section_html(section: sections.Section, run: Run | None = None) -> Html | None:
    """A section as HTML; all text is escaped. None if there is nothing in it.

    Args:
        section: Of an instrument.
        run: The opened run, for what must be read of its records; without it that is left out.
    """
    parts = list(_Drawing(run).parts(section.blocks))
    if not parts:
        return None
    return marks.section(section.key, section.title, *parts, note=section.note) if section.title else join(parts, "\n")


class _Drawing:
    """The blocks of a section: a name has one colour in all of them."""

    def __init__(self, run: Run | None) -> None:
        self.run, self._is_small = run, False
        self._colours: dict[str, str] = {}

    def parts(self, blocks: Iterable[sections.Block]) -> Iterator[Html]:
        for block in blocks:
            yield from (part for part in self._block(block) if part)

    def _block(self, block: sections.Block) -> Iterator[Html]:
        if isinstance(block, sections.Text):
            yield _text(block)
        elif isinstance(block, sections.Figures):
            tiles = [(f"{one.name}{', ' if one.note else ''}{one.note}", written(one.value, one.unit)) for one in block.figures]
            yield marks.tiles(tiles)
        elif isinstance(block, sections.Facts):
            named = ((f"{label}: " if label else "", name, value) for label, facts in block.lines for name, value in facts)
            yield marks.tiles([(label + name.replace(" {}", "").replace("{} ", ""), value) for label, name, value in named])
        elif isinstance(block, sections.Finding):
            yield _finding(block)
        elif isinstance(block, sections.Table):
            if block.rows:
                yield _table(block)
        elif isinstance(block, sections.Bars):
            classes = self._classes(block.colours)
            yield marks.legend(classes) if classes else Html("")
            yield marks.bars(block.rows, [classes[name] for name in block.colours], block.caption) if block.rows else Html("")
        elif isinstance(block, sections.Stacked):
            yield self._stacked(block)
        elif isinstance(block, sections.Series):
            yield self._series(block)
        elif isinstance(block, sections.Timeline):
            shown = partial(written, unit=block.unit)
            yield heat_map(block.rows, block.begin_s, block.bin_s, shown, caption=block.caption, whole=block.whole, sums=not block.mean)
        elif isinstance(block, sections.FlameGraph):
            from voirkit.report.html.flame import flame_graph

            yield flame_graph(block)
        elif isinstance(block, sections.Group):
            parts = list(self.parts(block.blocks))
            if parts:
                yield join([marks.heading(block.title), marks.paragraph(block.note, kind="note") if block.note else None, *parts])
        elif isinstance(block, sections.Grid):
            outer, self._is_small = self._is_small, True
            parts = list(self.parts(block.blocks))
            self._is_small = outer
            yield Html(f'<div class="small{" two" if block.wide else ""}">{join(parts)}</div>') if parts else Html("")
        elif isinstance(block, sections.Details):
            parts = list(self.parts(block.blocks))
            yield marks.folded(block.title, *parts) if parts else Html("")
        elif isinstance(block, sections.OnPage):
            if not callable(block.blocks):
                yield from self.parts(block.blocks)
            elif self.run is not None:
                yield from self.parts(block.blocks(self.run))
        else:
            assert isinstance(block, (sections.Amounts, sections.InText))  # other reports show them

    def _stacked(self, block: sections.Stacked) -> Html:
        if not block.rows:
            return Html("")
        shown, parts = partial(written, unit=block.unit), block.parts()
        drawn = marks.stacked(block.rows, shown, block.whole, block.caption, parts, block.legend, self._classes(parts))
        return Html(f'<div class="big">{drawn}</div>') if block.high else drawn

    def _series(self, block: sections.Series) -> Html:
        curves = {name: points for name, points in block.curves.items() if len(points) > 1}
        if not curves:
            return Html("")
        axis = seconds if block.axis == "s" else "{:,.4g}".format
        return lines(
            curves, partial(written, unit=block.unit), axis, block.caption, TIME if block.axis == "s" else block.axis,
            0.0 if block.from_zero else None, "small" if self._is_small else "low" if block.low else "", block.across, block.logarithmic,
        )  # fmt: skip

    def _classes(self, names: Sequence[str]) -> dict[str, str]:
        """The classes of names: those they have; for a new one a class that none has, or, if all are taken, none of these names."""
        for name in dict.fromkeys(names):
            if name not in self._colours:
                own = colour(name, -1)
                beside = {self._colours.get(other) for other in names}
                free = [one for one in map(partial(colour, ""), range(PALETTE)) if one not in beside] or [own]
                taken = set(self._colours.values())
                is_own = name in marks.COLOURS
                self._colours[name] = own if is_own else next((one for one in free if one not in taken), free[0])
        return {name: self._colours[name] for name in dict.fromkeys(names)}


def _text(block: sections.Text) -> Html:
    text = marks.text(block.text, _LONGEST)
    if block.link:
        text = Html(f'<a href="{marks.text(block.link)}">{text or marks.text(block.link)}</a>')
    if block.mood == "warning":
        return marks.paragraph(marks.strong(f"{block.label} ") if block.label else None, text, kind="warning")
    if block.label:
        kind = _CLASSES[block.mood or ("strong" if block.strong else "dim")]
        return marks.paragraph(Html(f'<span class="{kind}">{marks.text(block.label)}</span> '), text)
    if block.strong:
        return marks.paragraph(Html(f'<span class="strong {_CLASSES.get(block.mood, "")}">{text}</span>'))
    return marks.paragraph(text, kind="note" if block.mood == "note" else "warning" if block.mood in ("bad", "warning") else "")


def _finding(block: sections.Finding) -> Html:
    lines = [marks.paragraph(marks.strong(f"{name} "), marks.text(words, _LONGEST)) for name, words in block.following()]
    kind = {"bad": "verdict", "good": "verdict calm", "warning": "alert"}[block.mood]
    because = marks.paragraph(marks.text(block.because, _LONGEST))
    return Html(f'<div class="{kind}"><span class="kind">{marks.text(block.name)}</span>{because}{join(lines)}</div>')


def _table(block: sections.Table) -> Html:
    columns = sections.columns_of(block)
    left = [place for place, (_, one) in enumerate(columns) if one.left]
    rows = [[_cell(row[at]) for at, _ in columns] for row in block.rows]
    drawn = marks.table([one.head for _, one in columns], rows, left, block.caption)
    more = block.total - len(block.rows)
    return join([drawn, marks.paragraph(f"{more:,} more rows: voirkit report --json", kind="note") if more > 0 else None])


def _cell(cell: sections.AnyCell) -> Html:
    if isinstance(cell, sections.Bar):
        kind = colour(cell.colour) if cell.colour else "k-0"
        filled = f'<i class="{kind}" style="width:{min(max(cell.share, 0.0), 1.0):.2%}"></i>'
        title = f' title="{marks.text(cell.title)}"' if cell.title else ""
        return Html(f'<span class="track"{title}>{filled}</span>')
    if isinstance(cell, sections.Lines):
        return Html("<br>".join(marks.text(line) for line in cell.lines))
    if isinstance(cell, sections.Cell):
        indent = f' style="padding-left:{cell.indent}em"' if cell.indent else ""
        return Html(f'<span class="{_CLASSES.get(cell.style, "")}"{indent}>{marks.text(cell.text)}</span>')
    return marks.text(cell)


def compared_sections(first: Sequence[sections.Section], second: Sequence[sections.Section]) -> Iterator[Html]:
    """The sections of the page of two runs: what is more or less in the second, of those sections that have ``Amounts``."""
    ones, others = ({section.key: section for section in sections} for sections in (first, second))
    for key in dict.fromkeys([*ones, *others]):
        one, other = ones.get(key), others.get(key)
        section = one or other
        amounts = [{block.title: block for block in _amounts(side)} for side in (one, other)]
        if section is None or not any(amounts):
            continue
        if not all(amounts):
            only = marks.paragraph(f"Recorded in the {'first' if amounts[0] else 'second'} alone.", kind="note")
            yield marks.section(key, section.title, only)
            continue
        parts = [part for title in amounts[0] if title in amounts[1] for part in _differences(amounts[0][title], amounts[1][title])]
        note = "+ is what the second has more."
        if one and other and one.measured_by != other.measured_by:
            note += f" They were measured by {one.measured_by} and by {other.measured_by}: the figures cannot be compared as they are."
        yield marks.section(key, section.title, *parts, note=note)


def _amounts(section: sections.Section | None) -> Iterator[sections.Amounts]:
    yield from (block for block in sections.blocks_within(section.blocks if section else ()) if isinstance(block, sections.Amounts))


def _differences(one: sections.Amounts, other: sections.Amounts) -> Iterator[Html]:
    shown = partial(written, unit=one.unit)
    pairs = [(name, one.values.get(name, 0.0), other.values.get(name, 0.0)) for name in dict.fromkeys([*one.values, *other.values])]
    pairs = [pair for pair in pairs if pair[1] != pair[2]]
    if not pairs:
        return
    pairs.sort(key=lambda row: -abs(row[2] - row[1]))
    drawn = [(name, second - first, sections.signed(second - first, one.unit)) for name, first, second in pairs[:_DRAWN]]
    yield marks.differences(drawn, f"{one.title}: the largest differences")
    cells = [(name, shown(first), shown(second), sections.signed(second - first, one.unit)) for name, first, second in pairs[:_ROWS]]
    title = f"{one.title} as a table" + (f" (the first {_ROWS} of {len(pairs)})" if len(pairs) > _ROWS else "")
    yield marks.folded(title, marks.table(("", "first", "second", "second - first"), cells))
