"""Two runs as one HTML page: what ``voirkit compare A B --html FILE`` writes. ``+`` is what the second has more. It measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

from voirkit.analysis.comparison import environments, figures, said
from voirkit.analysis.run_steps import read_steps
from voirkit.report.comparison import differences_section, figures_of_instruments, figures_section
from voirkit.report.figure import duration
from voirkit.report.html.components import Html, join, paragraph, section, stacked, strong, text
from voirkit.report.html.document import document, failed
from voirkit.report.html.plots import lines
from voirkit.report.html.sections import compared_sections, section_html
from voirkit.report.html.steps import picture
from voirkit.report.overview import Part, instrument_parts
from voirkit.runs.summary import PHASES, shown_phases

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_COLUMNS = 240

Summary = Mapping[str, Any]
Pair = tuple[Summary, Summary]


def comparison_page(runs: tuple[Run, Run], names: tuple[str, str], summaries: Pair) -> str:
    """The page of two runs.

    Args:
        runs: The opened runs.
        names: Of the runs, as the user typed them.
        summaries: Of the two runs, as ``voirkit.analysis.summary.summary_of`` gives them.
    """
    shown = {**instrument_parts(True), **instrument_parts(False)}
    parts: dict[str, Callable[[], Html | None]] = {
        "first": partial(_first, names, summaries),
        "figures": partial(_figures, summaries),
        "steps": partial(_steps, runs, names, summaries),
        **{name: partial(_compared, part, summaries) for name, part in shown.items()},
        "different": partial(_different, runs, summaries),
    }
    return document(f"{names[0]} and {names[1]} · voirkit", [part for part in starmap(_drawn, parts.items()) if part])


def _drawn(name: str, part: Callable[[], Html | None]) -> Html | None:
    try:
        return part()
    except Exception as exc:  # a summary of another version, a damaged file
        return failed(name, exc)


def _compared(part: Part, summaries: Pair) -> Html | None:
    first, second = (list(part(summary)) for summary in summaries)
    return join(compared_sections(first, second), "\n") or None


def _first(names: tuple[str, str], summaries: Pair) -> Html:
    parts: list[object] = [Html(f"<h1>{text(names[0])} <span class='note'>and</span> {text(names[1])}</h1>")]
    for head, name, summary in zip(("first", "second"), names, summaries, strict=True):
        verdict = summary.get("verdict") or {}
        command = " ".join(map(str, summary.get("command") or []))
        because = f": {verdict['because']}" if verdict else ""
        parts.append(paragraph(strong(f"{head}  {name}"), f"  {command}  ", strong(verdict.get("kind", "")), text(because, 1200)))
    bars = []
    for head, summary in zip(("first", "second"), summaries, strict=True):
        steps = summary.get("steps") or {}
        if steps.get("n"):
            median = steps["time_s"]["median"]
            means = {phase: steps["phases"][phase]["share"] * median for phase in shown_phases(steps["phases"])}
            bars.append((f"{head}: a step", means, duration(median)))
    parts.append(Html(f'<div class="big">{stacked(bars, duration, order=PHASES)}</div>') if bars else None)
    return Html(f'<section id="first">{join(parts, chr(10))}</section>')


def _figures(summaries: Pair) -> Html | None:
    return section_html(figures_section([*figures(*summaries), *figures_of_instruments(*summaries)]))


def _steps(runs: tuple[Run, Run], names: tuple[str, str], summaries: Pair) -> Html | None:
    parts: list[object] = []
    for at, (run, name) in enumerate(zip(runs, names, strict=True)):
        ranks = [rank for rank in read_steps(run) if len(rank.steps.train)]
        if ranks:
            caption = f"{('first', 'second')[at]} ({name}): time of a step"
            parts.append(picture(run, ranks[0], _COLUMNS, caption, group=f"time {at}"))
    curves = [(head, (one.get("loss") or {}).get("curve") or []) for head, one in zip(("first", "second"), summaries, strict=True)]
    known = {head: [(float(x), y) for x, y in curve] for head, curve in curves if len(curve) > 1}
    if known:
        parts.append(lines(known, format_value=lambda y: f"{y:.4g}", caption="loss", low=None, kind="", axis=lambda x: f"{x:,.0f}"))
    return section("steps", "Steps over time", *parts) if parts else None


def _different(runs: tuple[Run, Run], summaries: Pair) -> Html | None:
    return section_html(differences_section({**said(*summaries), **environments(runs[0].manifest, runs[1].manifest)}))
