"""The Markdown report of a run, in GitHub's flavour, for CI summaries, issues and agents.

It measures nothing. ``_lines`` dispatches to one function for each type of block.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, singledispatch
from typing import Any

from voirkit.errors import left_out, reason, visible
from voirkit.report import sections
from voirkit.report.overview import Part, command_of, how_it_went, parts_of_report
from voirkit.report.sections import written

Summary = Mapping[str, Any]
_POINTS = 48  # maximum number of characters of a curve


def markdown(summary: Summary, run_dir: str | None = None) -> str:
    """Return the report of a run as Markdown.

    Args:
        summary: The summary, as ``voirkit report --json`` prints it. Parts that it lacks are left
            out.
        run_dir: The path of the run directory, as the user may type it.
    """
    texts = []
    parts: dict[str, Callable[[Summary], Iterator[str]]] = {"head": _head}
    parts |= {name: partial(_drawn_sections, part) for name, part in parts_of_report().items()}
    for name, part in parts.items():
        try:
            texts.append(_joined(part(summary)))
        except Exception as exc:
            # a summary of another version or a damaged one: the other parts are still shown
            texts.append(f"> {_escaped(left_out(name, reason(exc)))}")
    if run_dir is not None:
        texts.append(f"Run directory: {_code(run_dir)}")
    return _joined(texts) + "\n"


def in_markdown(title: str, parts: Iterable[sections.Section]) -> str:
    """Return sections as Markdown, below a heading ``title``."""
    texts = ["\n".join(_section(section)) for section in parts]
    return _joined([f"# {_escaped(title)}", *texts]) + "\n"


def _joined(texts: Iterable[str]) -> str:
    """Join the strings that are not empty, with an empty line between them."""
    return "\n\n".join(filter(None, texts))


def _head(summary: Summary) -> Iterator[str]:
    yield f"# {_code(command_of(summary))}"
    yield ", ".join(map(_escaped, how_it_went(summary)))


def _drawn_sections(part: Part, summary: Summary) -> Iterator[str]:
    yield from ("\n".join(_section(section)) for section in part(summary))


def _section(section: sections.Section) -> Iterator[str]:
    parts = _blocks(section.blocks)
    if parts:
        yield f"## {_escaped(section.title)}\n\n{parts}" if section.title else parts
        if section.note:
            yield f"\n*{_escaped(section.note)}*"


def _blocks(blocks: Iterable[sections.Block]) -> str:
    return _joined("\n".join(_lines(block)) for block in blocks)


@singledispatch
def _lines(block: sections.Block) -> Iterator[str]:
    """Yield the lines of a block; none for a block that only other reports show."""
    return iter(())


@_lines.register
def _(block: sections.Text) -> Iterator[str]:
    text = _escaped(block.text)
    if sections.is_link(block.link):
        text = f"[{text}]({block.link})"
    if block.mood == "warning":
        label = f"**{_escaped(block.label)}** " if block.label not in ("", "warning") else ""
        yield f"> {label}{text}"
    elif block.label:
        yield f"**{_escaped(block.label)}** {text}"
    elif block.strong:
        yield f"**{text}**"
    else:
        yield text


@_lines.register
def _(block: sections.Figures) -> Iterator[str]:
    if not block.figures:
        return
    heads = ["figure", "value"]
    rows = [[figure.name, written(figure.value, figure.unit)] for figure in block.figures]
    if any(figure.note for figure in block.figures):
        heads.append("")
        for row, figure in zip(rows, block.figures, strict=True):
            row.append(figure.note)
    yield from _table(heads, rows)


@_lines.register
def _(block: sections.Facts) -> Iterator[str]:
    for label, facts in block.lines:
        words = _escaped(" · ".join(sections.fact_text(*fact) for fact in facts))
        yield f"- **{_escaped(label)}:** {words}" if label else f"- {words}"


@_lines.register
def _(block: sections.Finding) -> Iterator[str]:
    yield f"### {_escaped(block.name)}\n\n{_escaped(block.because)}\n"
    for name, words in block.following():
        yield f"- **{name.capitalize()}:** {_escaped(words)}"


@_lines.register
def _(block: sections.Table) -> Iterator[str]:
    if not block.rows:
        return
    columns = _columns_with_text(block)
    rows = [[_cell(row[place]) for place, _ in columns] for row in block.rows[: block.most]]
    if block.caption:
        yield _escaped(block.caption)
        yield ""
    heads = [column.head for _, column in columns]
    left_columns = [number for number, (_, column) in enumerate(columns) if column.left]
    yield from _table(heads, rows, left_columns)
    more = max(len(block.rows), block.total) - len(rows)
    if more:
        yield ""
        yield f"{more:,} more rows"


def _columns_with_text(table: sections.Table) -> list[tuple[int, sections.Column]]:
    """Return the columns that contain text, and always the first, with their indices; columns of
    bars are left out."""
    columns = []
    for place, column in sections.columns_of(table):
        has_text = any(sections.cell_text(row[place]) for row in table.rows)
        if place == 0 or has_text:
            columns.append((place, column))
    return columns


@_lines.register
def _(block: sections.Bars) -> Iterator[str]:
    if block.rows:
        yield from _table((block.caption, ""), [(label, end) for label, _, end in block.rows])


@_lines.register
def _(block: sections.Stacked) -> Iterator[str]:
    if not block.rows:
        return
    parts = block.parts()
    rows = []
    for label, values, end in block.rows:
        amounts = [written(values[part], block.unit) if values.get(part) else "" for part in parts]
        rows.append((label, end, *amounts))
    yield from _table((block.caption, "", *parts), rows)


@_lines.register
def _(block: sections.Series) -> Iterator[str]:
    rows = []
    for name, points in block.curves.items():
        if points:
            values = [y for _, y in points]
            first, last = written(values[0], block.unit), written(values[-1], block.unit)
            rows.append((name, first, last, sections.sparkline(values, _POINTS)))
    if rows:
        yield from _table((block.caption, "first", "last", ""), rows)


@_lines.register
def _(block: sections.Timeline) -> Iterator[str]:
    if not block.rows:
        return
    rows = []
    for name, values in block.rows:
        n_values = (len(values) or 1) if block.mean else 1
        amount = written(sum(values) / n_values, block.unit)
        rows.append((name, sections.sparkline(values, _POINTS), amount))
    head = "mean" if block.mean else "in all"
    yield from _table((block.caption, "over time", head), rows, (0, 1))


@_lines.register
def _(block: sections.Group) -> Iterator[str]:
    inner = _blocks(block.blocks)
    if inner:
        note = f"*{_escaped(block.note)}*" if block.note else ""
        yield _joined([f"### {_escaped(block.title)}", inner, note])


@_lines.register
def _(block: sections.Details) -> Iterator[str]:
    inner = _blocks(block.blocks)
    if inner:
        title = html.escape(visible(block.title, in_line=True))
        yield f"<details><summary>{title}</summary>\n\n{inner}\n\n</details>"


@_lines.register(sections.Grid)
@_lines.register(sections.InText)
def _(block: sections.Grid | sections.InText) -> Iterator[str]:
    inner = _blocks(block.blocks)
    if inner:
        yield inner


def _cell(cell: sections.AnyCell) -> str:
    indent = "· " * cell.indent if isinstance(cell, sections.Cell) else ""
    return indent + sections.cell_text(cell)


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], left_columns: Sequence[int] = (0,)
) -> Iterator[str]:
    alignments = [" --- " if number in left_columns else " ---: " for number in range(len(heads))]
    yield "| " + " | ".join(map(_escaped, heads)) + " |"
    yield "|" + "|".join(alignments) + "|"
    for row in rows:
        yield "| " + " | ".join(map(_escaped, row)) + " |"


def _escaped(text: str) -> str:
    """Escape a text, so that GitHub finds no Markdown, links, mentions or issue numbers in it."""
    for mark in "\\`*_[]<>|#&~":
        text = text.replace(mark, f"\\{mark}")
    text = _ADDRESS.sub(r"\1\\\2", visible(" ".join(text.split())))
    return _CALLS.sub("\\g<0><!-- -->", text)


# GitHub also makes links of bare addresses, @names and #numbers. Escapes do not prevent links of
# @names and #numbers; an empty comment after the @ or # does.
_ADDRESS = re.compile(r"(\b(?:https?|ftp|mailto|xmpp)|\bwww)([:.])", re.IGNORECASE)
_CALLS = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)")


def _code(text: str) -> str:
    """Return a text as inline code, between enough backticks for those that it contains."""
    text = visible(" ".join(text.split()))
    longest_run = max(map(len, re.findall("`+", text)), default=0)
    ticks = "`" * (longest_run + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"
