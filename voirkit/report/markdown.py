"""A run as Markdown (GitHub's flavour): for the summaries of CI, for issues, and for agents. It measures nothing.

An instrument that has sections is written by them; of others the terminal's table is quoted.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voirkit.analysis.part_failures import left_out, reason
from voirkit.plugins import installed_instruments
from voirkit.report.figure import duration
from voirkit.report.phrases import exit_words, following, wall_line
from voirkit.report.sections import (
    Bars,
    Block,
    Details,
    Figures,
    Grid,
    Group,
    InText,
    Section,
    Series,
    Stacked,
    Table,
    Text,
    Timeline,
    cell_text,
    columns_of,
    sections_of,
    sparkline,
    written,
)
from voirkit.runs.step_phases import shown_phases
from voirkit.runs.summary import throughput

if TYPE_CHECKING:
    from voirkit.instrument import Instrument

Summary = Mapping[str, Any]
_WIDTH = 100  # columns of a quoted table
_POINTS = 48  # of a curve


def markdown(summary: Summary, run_dir: str | None = None) -> str:
    """The report of a run as Markdown.

    Args:
        summary: As ``voirkit report --json`` prints it; what it lacks is left out.
        run_dir: Where the run is recorded, as the user may type it.
    """
    parts = (_head, _verdict, _steps, _rates, *(_of(one) for one in installed_instruments()), _warnings)
    written = []
    for part in parts:
        try:
            written.append("\n".join(part(summary)))
        except Exception as exc:  # a summary of another version, or one that is damaged: the rest is shown
            written.append(f"> {_escaped(left_out(part.__name__.strip('_'), reason(exc)))}")
    if run_dir is not None:
        written.append(f"Run directory: `{run_dir}`")
    return "\n\n".join(text for text in written if text) + "\n"


def _head(summary: Summary) -> Iterator[str]:
    words = " ".join(summary.get("command") or ["(unknown command)"])
    yield f"# `{words}`"
    yield ""
    lasted = [duration(summary["duration_s"])] if summary.get("duration_s") is not None else []
    ended = [f"ended: {summary['ended']}"] if summary.get("ended") not in (None, "normal") else []
    yield ", ".join(map(_escaped, [*lasted, *exit_words(summary), *ended]))
    if summary.get("wall"):
        yield ""
        yield f"**Wall time:** {_escaped(wall_line(summary['wall']))}"


def _verdict(summary: Summary) -> Iterator[str]:
    verdict = summary.get("verdict")
    if not verdict:
        return
    yield f"## {verdict['kind']}"
    yield ""
    yield _escaped(verdict["because"])
    yield ""
    yield f"- **Next:** {_escaped(verdict['next'])}"
    for one in summary.get("advice") or ():
        if one["do"] not in verdict["next"]:
            yield f"- **Then:** {_escaped(str(following(one)))}"
    for alert in summary.get("alerts") or ():
        yield f"- **{alert['kind']}:** {_escaped(alert['because'])} {_escaped(alert['next'])}"


def _steps(summary: Summary) -> Iterator[str]:
    steps = summary.get("steps")
    if not steps or not steps["n"]:
        return
    yield f"## Steps ({steps['n']:,})"
    yield ""
    rows = []
    for phase in shown_phases(steps["phases"]):
        row = steps["phases"][phase]
        median = (row.get("step_s") or {}).get("median")
        rows.append((phase, f"{row['share']:.1%}", duration(row["total_s"]), "" if median is None else duration(median)))
    yield from _table(("phase", "share", "total", "a step"), rows)


def _rates(summary: Summary) -> Iterator[str]:
    rates = summary.get("rates") or {}
    if rates:
        rows = [(name, written(throughput(rate), rate["units"])) for name, rate in rates.items()]
        yield from _table(("rate", "value"), rows)


def _warnings(summary: Summary) -> Iterator[str]:
    for text in summary.get("warnings") or ():
        yield f"> {_escaped(str(text).splitlines()[0])}"


def _of(instrument: Instrument) -> Any:
    def part(summary: Summary) -> Iterator[str]:
        if instrument.sections:
            for section in sections_of(instrument, summary):
                yield from _section(section)
        elif instrument.table:
            quoted = _quoted(instrument, summary)
            if quoted:
                yield f"## {instrument.name.replace('_', ' ')}"
                yield from ("", "```text", quoted, "```")

    part.__name__ = instrument.name
    return part


def _quoted(instrument: Instrument, summary: Summary) -> str:
    """What the terminal's table shows of an instrument."""
    from rich.console import Console

    from voirkit.instrument import resolve

    file = io.StringIO()
    console = Console(file=file, width=_WIDTH, highlight=False)
    for _, part in resolve(instrument.table)(summary, _WIDTH):
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().replace("```", "'''").splitlines()).strip("\n")


def _section(section: Section) -> Iterator[str]:
    parts = _blocks(section.blocks)
    if parts:
        yield f"## {_escaped(section.title)}\n\n{parts}"
        if section.note:
            yield f"\n*{_escaped(section.note)}*"


def _blocks(blocks: Iterable[Block]) -> str:
    return "\n\n".join(filter(None, ("\n".join(_block(block)) for block in blocks)))


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Text):
        text = f"[{_escaped(block.text)}]({block.link})" if block.link else _escaped(block.text)
        yield f"**{_escaped(block.label)}** {text}" if block.label else f"**{text}**" if block.strong else text
    elif isinstance(block, Figures):
        yield from _table(("", "value"), [(one.name, written(one.value, one.unit)) for one in block.figures])
    elif isinstance(block, Table) and block.rows:
        columns = [(at, one) for at, one in columns_of(block) if not at or any(cell_text(row[at]) for row in block.rows)]
        rows: list[Sequence[str]] = [[cell_text(row[at]) for at, _ in columns] for row in block.rows[: block.most]]
        yield from [_escaped(block.caption), ""] if block.caption else []
        yield from _table([one.head for _, one in columns], rows, [at for at, (_, one) in enumerate(columns) if one.left])
        more = max(len(block.rows), block.total) - len(rows)
        yield from ["", f"{more:,} more rows"] if more else []
    elif isinstance(block, Bars) and block.rows:
        yield from _table((block.caption, ""), [(label, end) for label, _, end in block.rows])
    elif isinstance(block, Stacked) and block.rows:
        parts = list(dict.fromkeys([*block.order, *(part for _, values, _ in block.rows for part in values)]))
        rows = [
            (label, end, *(written(values[part], block.unit) if values.get(part) else "" for part in parts))
            for label, values, end in block.rows
        ]
        yield from _table((block.caption, "", *parts), rows)
    elif isinstance(block, Series):
        curves = [(name, [y for _, y in points]) for name, points in block.curves.items() if points]
        rows = [(name, *(written(values[at], block.unit) for at in (0, -1)), sparkline(values, _POINTS)) for name, values in curves]
        yield from _table((block.caption, "first", "last", ""), rows) if rows else ()
    elif isinstance(block, Timeline) and block.rows:
        rows = [
            (name, sparkline(values, _POINTS), written(sum(values) / (max(len(values), 1) if block.mean else 1), block.unit))
            for name, values in block.rows
        ]
        yield from _table((block.caption, "over time", "mean" if block.mean else "in all"), rows, (0, 1))
    elif isinstance(block, (Group, Grid, InText, Details)):
        inner = _blocks(block.blocks)
        if inner and isinstance(block, Group):
            inner = "\n\n".join(filter(None, (f"### {_escaped(block.title)}", inner, f"*{_escaped(block.note)}*" if block.note else "")))
        elif inner and isinstance(block, Details):
            inner = f"<details><summary>{_escaped(block.title)}</summary>\n\n{inner}\n\n</details>"
        yield from [inner] if inner else []


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Iterator[str]:
    yield "| " + " | ".join(map(_escaped, heads)) + " |"
    yield "|" + "|".join(" --- " if at in left else " ---: " for at in range(len(heads))) + "|"
    for row in rows:
        yield "| " + " | ".join(map(_escaped, row)) + " |"


def _escaped(text: str) -> str:
    """Text of a program's, such as a path, that must not become Markdown."""
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
