"""A run as Markdown (GitHub's flavour): for the summaries of CI, for issues, and for agents. It measures nothing."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from voirkit.errors import left_out, reason, visible
from voirkit.report import sections
from voirkit.report.overview import Part, command_of, how_it_went, parts_of_report
from voirkit.report.sections import written

Summary = Mapping[str, Any]
_POINTS = 48  # of a curve


def markdown(summary: Summary, run_dir: str | None = None) -> str:
    """The report of a run as Markdown.

    Args:
        summary: As ``voirkit report --json`` prints it; what it lacks is left out.
        run_dir: Where the run is recorded, as the user may type it.
    """
    texts = []
    parts: dict[str, Callable[[Summary], Iterator[str]]] = {"head": _head}
    parts |= {name: partial(_drawn_sections, part) for name, part in parts_of_report().items()}
    for name, part in parts.items():
        try:
            texts.append("\n\n".join(filter(None, part(summary))))
        except Exception as exc:  # a summary of another version, or one that is damaged: the rest is shown
            texts.append(f"> {_escaped(left_out(name, reason(exc)))}")
    if run_dir is not None:
        texts.append(f"Run directory: {_code(run_dir)}")
    return "\n\n".join(filter(None, texts)) + "\n"


def in_markdown(title: str, parts: Iterable[sections.Section]) -> str:
    """Sections below a heading."""
    return "\n\n".join(filter(None, [f"# {_escaped(title)}", *("\n".join(_section(one)) for one in parts)])) + "\n"


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
    return "\n\n".join(filter(None, ("\n".join(_block(block)) for block in blocks)))


def _block(block: sections.Block) -> Iterator[str]:
    if isinstance(block, sections.Text):
        text = f"[{_escaped(block.text)}]({block.link})" if sections.is_link(block.link) else _escaped(block.text)
        if block.mood == "warning":
            yield f"> {f'**{_escaped(block.label)}** ' if block.label not in ('', 'warning') else ''}{text}"
        else:
            yield f"**{_escaped(block.label)}** {text}" if block.label else f"**{text}**" if block.strong else text
    elif isinstance(block, sections.Figures) and block.figures:
        heads = ("figure", "value", *([""] if any(one.note for one in block.figures) else []))
        yield from _table(heads, [(one.name, written(one.value, one.unit), one.note)[: len(heads)] for one in block.figures])
    elif isinstance(block, sections.Facts):
        for label, facts in block.lines:
            words = _escaped(" · ".join(sections.fact_text(*fact) for fact in facts))
            yield f"- **{_escaped(label)}:** {words}" if label else f"- {words}"
    elif isinstance(block, sections.Finding):
        yield f"### {_escaped(block.name)}\n\n{_escaped(block.because)}\n"
        yield from (f"- **{name.capitalize()}:** {_escaped(words)}" for name, words in block.following())
    elif isinstance(block, sections.Table) and block.rows:
        columns = [(at, one) for at, one in sections.columns_of(block) if not at or any(sections.cell_text(row[at]) for row in block.rows)]
        rows: list[Sequence[str]] = [[_cell(row[at]) for at, _ in columns] for row in block.rows[: block.most]]
        yield from [_escaped(block.caption), ""] if block.caption else []
        yield from _table([one.head for _, one in columns], rows, [at for at, (_, one) in enumerate(columns) if one.left])
        more = max(len(block.rows), block.total) - len(rows)
        yield from ["", f"{more:,} more rows"] if more else []
    elif isinstance(block, sections.Bars) and block.rows:
        yield from _table((block.caption, ""), [(label, end) for label, _, end in block.rows])
    elif isinstance(block, sections.Stacked) and block.rows:
        parts = block.parts()
        rows = [
            (label, end, *(written(values[part], block.unit) if values.get(part) else "" for part in parts))
            for label, values, end in block.rows
        ]
        yield from _table((block.caption, "", *parts), rows)
    elif isinstance(block, sections.Series):
        curves = [(name, [y for _, y in points]) for name, points in block.curves.items() if points]
        rows = [
            (name, *(written(values[at], block.unit) for at in (0, -1)), sections.sparkline(values, _POINTS)) for name, values in curves
        ]
        yield from _table((block.caption, "first", "last", ""), rows) if rows else ()
    elif isinstance(block, sections.Timeline) and block.rows:
        rows = [
            (name, sections.sparkline(values, _POINTS), written(sum(values) / ((len(values) or 1) if block.mean else 1), block.unit))
            for name, values in block.rows
        ]
        yield from _table((block.caption, "over time", "mean" if block.mean else "in all"), rows, (0, 1))
    elif isinstance(block, (sections.Group, sections.Grid, sections.InText, sections.Details)):
        inner = _blocks(block.blocks)
        if inner and isinstance(block, sections.Group):
            inner = "\n\n".join(filter(None, (f"### {_escaped(block.title)}", inner, f"*{_escaped(block.note)}*" if block.note else "")))
        elif inner and isinstance(block, sections.Details):
            inner = f"<details><summary>{html.escape(visible(block.title, in_line=True))}</summary>\n\n{inner}\n\n</details>"
        yield from [inner] if inner else []


def _cell(cell: sections.AnyCell) -> str:
    return ("· " * cell.indent if isinstance(cell, sections.Cell) else "") + sections.cell_text(cell)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left_columns: Sequence[int] = (0,)) -> Iterator[str]:
    yield "| " + " | ".join(map(_escaped, heads)) + " |"
    yield "|" + "|".join(" --- " if at in left_columns else " ---: " for at in range(len(heads))) + "|"
    for row in rows:
        yield "| " + " | ".join(map(_escaped, row)) + " |"


def _escaped(text: str) -> str:
    """Text of a program's, such as a path, that must not become Markdown, nor a link, nor call for somebody on GitHub."""
    for mark in "\\`*_[]<>|#&~":
        text = text.replace(mark, f"\\{mark}")
    text = _ADDRESS.sub(r"\1\\\2", visible(" ".join(text.split())))
    return _CALLS.sub("\\g<0><!-- -->", text)


# Without brackets too GitHub makes links of addresses; and of @names and #numbers, whatever they are escaped with, unless they are apart.
_ADDRESS = re.compile(r"(\b(?:https?|ftp|mailto|xmpp)|\bwww)([:.])", re.IGNORECASE)
_CALLS = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)")


def _code(text: str) -> str:
    """Text between as many backticks as it takes."""
    text = visible(" ".join(text.split()))
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"
