"""The HTML page of a comparison of two sides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from voirkit.analysis.first_difference import first_differences
from voirkit.analysis.run_steps import read_steps
from voirkit.phase_table import PHASES, shown_phases
from voirkit.report import duration, figure
from voirkit.report.comparison import (
    Side,
    Summary,
    different_facts,
    environments,
    figures,
    figures_of_instruments,
)
from voirkit.report.comparison_sections import answer_section, differences_section, figures_section
from voirkit.report.html import document, drawn_parts, picture
from voirkit.report.html.components import (
    Html,
    join,
    lines,
    paragraph,
    section,
    stacked,
    strong,
    text,
)
from voirkit.report.html.sections import compared_sections, section_html
from voirkit.report.overview import Part, instrument_parts

_COLUMNS = 240  # maximum number of columns in a picture of steps
_PICTURES = 4  # maximum number of runs of a side whose steps are drawn


def comparison_page(first: Side, second: Side) -> str:
    """Return the HTML page of a comparison. The sections of instruments compare the first run of
    each side."""
    summaries = first.summaries[0], second.summaries[0]
    instruments = {**instrument_parts(True), **instrument_parts(False)}
    parts: dict[str, Callable[[], Html | None]] = {
        "first": partial(_first, first, second),
        "figures": partial(_figures, first, second),
        "steps": partial(_steps, first, second),
        **{name: partial(_compared, part, *summaries) for name, part in instruments.items()},
        "different": partial(_different, first, second),
    }
    title = f"{' '.join(first.names)} and {' '.join(second.names)} · voirkit"
    return document(title, list(drawn_parts(parts)))


def _compared(part: Part, first: Summary, second: Summary) -> Html | None:
    return join(compared_sections(list(part(first)), list(part(second))), "\n") or None


def _first(first: Side, second: Side) -> Html:
    sides = (("first", first), ("second", second))
    title = [text(" ".join(side.names)) for _, side in sides]
    parts: list[object] = [Html(f"<h1>{title[0]} <span class='note'>and</span> {title[1]}</h1>")]
    bars = []
    for head, side in sides:
        for name, summary in zip(side.names, side.summaries, strict=True):
            verdict = summary.get("verdict") or {}
            command = " ".join(map(str, summary.get("command") or []))
            because = f": {verdict['because']}" if verdict else ""
            parts.append(
                paragraph(
                    strong(f"{head}  {name}"),
                    f"  {command}  ",
                    strong(verdict.get("kind", "")),
                    text(because, 1200),
                )
            )
            steps = summary.get("steps") or {}
            if steps.get("n"):
                typical = steps["time_s"]["median"]
                means = {
                    phase: steps["phases"][phase]["share"] * typical
                    for phase in shown_phases(steps["phases"])
                }
                bars.append(
                    (f"{head if len(side.names) == 1 else name}: a step", means, duration(typical))
                )
    parts.append(
        Html(f'<div class="big">{stacked(bars, duration, order=PHASES)}</div>') if bars else None
    )
    return Html(f'<section id="first">{join(parts, chr(10))}</section>')


def _figures(first: Side, second: Side) -> Html | None:
    rows = [*figures(first, second), *figures_of_instruments(first, second)]
    apart = []
    if first.directories and second.directories:
        apart = first_differences(first.directories[0], second.directories[0])
    answer = answer_section(first, second, rows, apart)
    section = figures_section(rows)
    return section_html(section._replace(blocks=[*answer.blocks[2:], *section.blocks]))


def _steps(first: Side, second: Side) -> Html | None:
    parts: list[object] = []
    for head, side in (("first", first), ("second", second)):
        for run, name in zip(side.runs[:_PICTURES], side.names, strict=False):
            ranks = [rank for rank in read_steps(run) if len(rank.steps.train)]
            if ranks:
                caption = f"{head} ({name}): time of a step"
                parts.append(picture(run, ranks[0], _COLUMNS, caption, group=f"time {len(parts)}"))
    losses = _losses(first, second)
    if losses:
        format_loss = partial(figure, digits=4)
        caption = "loss, over its values"
        parts.append(lines(losses, format_loss, caption=caption, low=None, kind=""))
    return section("steps", "Steps over time", *parts) if parts else None


def _losses(first: Side, second: Side) -> dict[str, list[tuple[float, float | None]]]:
    """Return a dict from ``first`` and ``second`` to the loss curve of the first run of that
    side."""
    curves = {}
    for head, side in (("first", first), ("second", second)):
        curve = (side.summaries[0].get("loss") or {}).get("curve") or []
        if len(curve) > 1:
            curves[head] = [(float(x), y) for x, y in curve]
    return curves


def _different(first: Side, second: Side) -> Html | None:
    return section_html(
        differences_section({**different_facts(first, second), **environments(first, second)})
    )
