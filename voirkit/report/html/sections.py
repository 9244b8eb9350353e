"""Sections on the HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from voirkit.report.html import components as marks
from voirkit.report.html.components import Html
from voirkit.report.html.plots import lines
from voirkit.report.sections import Bars, Block, Details, Figures, Section, Series, Table, Text, written


def section_html(section: Section) -> Html:
    """A section as HTML; all text is escaped."""
    return marks.section(section.key, section.title, *(part for block in section.blocks for part in _parts(block)), note=section.note)


def _parts(block: Block) -> Iterator[Html]:
    if isinstance(block, Text):
        yield marks.paragraph(marks.strong(block.text) if block.strong else block.text, kind="warning" if block.mood == "bad" else "")
    elif isinstance(block, Figures):
        yield marks.table(("", "value"), [(one.name, written(one.value, one.unit)) for one in block.figures])
    elif isinstance(block, Table):
        yield marks.table(block.heads, block.rows, left=block.left)
    elif isinstance(block, Bars):
        yield marks.bars(block.rows, caption=block.caption)
    elif isinstance(block, Series):
        curves = {name: list(points) for name, points in block.curves.items() if len(points) > 1}
        if curves:
            yield lines(
                curves, shown=partial(written, unit=block.unit), caption=block.caption, low=None, kind="", axis=lambda x: f"{x:,.4g}"
            )
    elif isinstance(block, Details):
        yield marks.folded(block.title, *(part for inner in block.blocks for part in _parts(inner)))
