"""Two runs beside each other: what ``voirkit compare A B`` shows, in a terminal and as an HTML page. It measures nothing.

Figures have their ratio, and whether they differ by more than steps of one run do. ``+`` is what the second has more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from voirkit.analysis.run_steps import read_steps
from voirkit.report import duration
from voirkit.report.html.components import Html, join, lines, paragraph, section, stacked, strong, text
from voirkit.report.html.document import document, drawn_parts, picture
from voirkit.report.html.sections import compared_sections, section_html
from voirkit.report.overview import Part, instrument_parts
from voirkit.report.sections import (
    AnyCell,
    Block,
    Cell,
    Column,
    InText,
    OnPage,
    Section,
    Table,
    Text,
    figures_of,
    signed,
    written,
)
from voirkit.runs.summary import PARTS, PHASES, shown_phases

if TYPE_CHECKING:
    from rich.console import RenderableType

    from voirkit.runs.opened import Run


_COLUMNS = 240  # of a picture of steps

# Of a manifest: what may explain a difference, by the name that it is shown under.
ENVIRONMENT = {
    "command": "command", "voirkit options": "voirkit_options", "voirkit": "voirkit", "python": "python.version",
    "interpreter": "python.executable", "git revision": "git_revision", "host": "host", "platform": "platform",
    "processors": "cpus", "ranks": "world_size",
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A figure of two runs.

    Attributes:
        name: As it is shown.
        units: ``s``, ``share``, ``bytes``, ``items/s``, or empty for numbers.
        first, second: Its value; None where it is not known.
        spreads: p10 and p90 of each, where it has them.
        medians: What is held against the spreads, where that is not the value itself: of a rate, that of typical steps.
        better: ``higher``, ``lower``, or nothing where neither is.
    """

    name: str
    units: str
    first: float | None
    second: float | None
    spreads: tuple[tuple[float, float], tuple[float, float]] | None = None
    medians: tuple[float, float] | None = None
    better: str = ""

    @property
    def ratio(self) -> float | None:
        """The second over the first."""
        return self.second / self.first if self.first and self.second is not None else None

    @property
    def is_better(self) -> bool | None:
        """Whether the second is better; None where neither is, or one is not known."""
        if not self.better or self.first is None or self.second is None or self.first == self.second:
            return None
        return (self.second > self.first) is (self.better == "higher")

    @property
    def beyond(self) -> bool | None:
        """Whether each median lies outside of the other run's p10 .. p90; None where there is no spread."""
        if self.spreads is None or self.first is None or self.second is None:
            return None
        (low, high), (other_low, other_high) = self.spreads
        first, second = self.medians or (self.first, self.second)
        return not low <= second <= high and not other_low <= first <= other_high

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        spreads = None if self.spreads is None else [{"p10": low, "p90": high} for low, high in self.spreads]
        return {
            "name": self.name, "units": self.units, "first": self.first, "second": self.second, "ratio": self.ratio, "spreads": spreads,
            "beyond_spread": self.beyond,
        }  # fmt: skip


Summary = Mapping[str, Any]


def figures(first: Summary, second: Summary) -> list[Figure]:
    """What both summaries, or one of them, have."""
    found = [
        _one("run", "s", first, second, "duration_s"),
        *(_one(f"wall time: {part}", "s", first, second, "wall", "parts", part, "total_s") for part in PARTS),
        _one("steps", "", first, second, "steps", "n"),
        _spread("step", "s", first, second, "steps", "time_s"),
        _one("step, mean", "s", first, second, "steps", "mean_s"),
        *_phases(first, second),
        _one("checkpoints between steps", "s", first, second, "steps", "checkpoints_between", "total_s"),
        _one("checkpoints between steps, share", "share", first, second, "steps", "checkpoints_between", "share"),
        *_rates(first, second),
        _spread("evaluation batch", "s", first, second, "evaluation", "time_s"),
        _one("peak memory", "bytes", first, second, "memory", "peak"),
        _one("last loss", "", first, second, "loss", "last"),
        _one("loader workers", "", first, second, "steps", "loader", "workers"),
        _one("calls", "", first, second, "calls", "events"),
        _one("overhead", "share", first, second, "overhead", "share"),
    ]
    return [one for one in found if one.first is not None or one.second is not None]


def _phases(first: Summary, second: Summary) -> Iterator[Figure]:
    for phase in PHASES:
        if any(_at(one, "steps", "phases", phase, "total_s") for one in (first, second)):
            yield _one(f"{phase}, share", "share", first, second, "steps", "phases", phase, "share")
            yield _spread(f"{phase}, a step", "s", first, second, "steps", "phases", phase, "step_s")


def _rates(first: Summary, second: Summary) -> Iterator[Figure]:
    for name in dict.fromkeys([*(first.get("rates") or {}), *(second.get("rates") or {})]):
        units = _at(first, "rates", name, "units") or _at(second, "rates", name, "units") or ""
        typical = _spread(name, units, first, second, "rates", name)
        values = [_number(_at(one, "rates", name, "value")) for one in (first, second)]
        if None in values and typical.first is not None and typical.second is not None:
            yield typical  # one of the runs is of a version that knew the median alone: like is held against like
            continue
        medians = None if typical.first is None or typical.second is None else (typical.first, typical.second)
        yield replace(typical, first=values[0], second=values[1], medians=medians)


def _one(name: str, units: str, first: Summary, second: Summary, *path: str) -> Figure:
    return Figure(name, units, _number(_at(first, *path)), _number(_at(second, *path)))


def _spread(name: str, units: str, first: Summary, second: Summary, *path: str) -> Figure:
    ones = [one if isinstance(one := _at(summary, *path), Mapping) else {} for summary in (first, second)]
    medians = [_number(one.get("median")) for one in ones]
    spreads = [(one["p10"], one["p90"]) for one in ones if _number(one.get("p10")) is not None and _number(one.get("p90")) is not None]
    return Figure(name, units, medians[0], medians[1], (spreads[0], spreads[1]) if len(spreads) == 2 else None)


def _at(summary: Any, *path: str) -> Any:
    for key in path:
        summary = summary.get(key) if isinstance(summary, Mapping) else None
    return summary


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def environments(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What of two manifests is not the same."""
    pairs = {name: tuple(_at(one, *path.split(".")) for one in (first, second)) for name, path in ENVIRONMENT.items()}
    ones, others = first.get("packages"), second.get("packages")
    if ones and others:  # a run that was killed has none
        pairs.update({name: (ones.get(name), others.get(name)) for name in sorted({*ones, *others})})
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def said(first: Summary, second: Summary) -> dict[str, tuple[Any, Any]]:
    """Verdicts, alerts, checks that found something, how each ended: those that are not the same."""
    pairs = {
        "ended": tuple(one.get("ended") for one in (first, second)),
        "exit code": tuple(one.get("exit_code") for one in (first, second)),
        "verdict": tuple(_at(one, "verdict", "kind") for one in (first, second)),
        "alerts": tuple(sorted(alert["kind"] for alert in one.get("alerts") or ()) for one in (first, second)),
        "checks": tuple(sorted(check["name"] for check in one.get("checks") or () if check.get("found")) for one in (first, second)),
    }
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


# as sections


Pairs = Mapping[str, tuple[Any, Any]]

_SPREAD = "beyond: each median lies outside of the other run's p10 .. p90. How much runs of one script differ, two runs do not tell."


def figures_of_instruments(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of instruments' sections that both runs have."""
    for part in {**instrument_parts(True), **instrument_parts(False)}.values():
        ones, others = (dict(figures_of(part(summary))) for summary in (first, second))
        both = ((name, one, others[name]) for name, one in ones.items() if name in others)
        yield from (Figure(name, one.unit, one.value, other.value, better=one.better) for name, one, other in both)


def figures_section(figures: Sequence[Figure]) -> Section:
    """A row for each figure that is compared."""
    rows: list[Sequence[AnyCell]] = []
    for one in figures:
        more = "" if one.first is None or one.second is None else signed(one.second - one.first, one.units)
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}x"
        mood = "" if one.is_better is None or ratio == "1.00x" else "good" if one.is_better else "bad"
        spread: AnyCell = Cell("beyond", "strong") if one.beyond else "" if one.beyond is None else "within"
        rows.append((one.name, written(one.first, one.units), written(one.second, one.units), more, Cell(ratio, mood), spread))
    ratios = (Column("second - first", narrowest=100), Column("second / first", narrowest=60))
    heads: list[str | Column] = [Column("", left=True, cut=True), "first", "second", *ratios, "spread"]
    notes: list[Block] = [OnPage([Text("+ is what the second has more.", mood="note")])]
    notes += [Text(_SPREAD, mood="note")] if any(one.beyond is not None for one in figures) else []
    return Section("figures", "Figures", [Table(heads, rows, most=len(rows)), *notes])


def differences_section(different: Pairs) -> Section:
    """What else is not the same: verdicts, the environment."""
    rows = [(name, _in_words(first), _in_words(second)) for name, (first, second) in different.items()]
    lines = [Text(f"{first}  |  {second}", name) for name, first, second in rows]
    nothing = Text("Nothing that is known of both.")
    on_page = Table(("", "first", "second"), rows, left=(0, 1, 2)) if rows else nothing
    return Section("different", "What else differs", [OnPage([on_page]), InText(lines)])


def _in_words(value: Any) -> str:
    """What a manifest or a summary holds, in a line."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return "unknown" if value is None else str(value)


# in a terminal and on a page


def comparison_table(names: tuple[str, str], figures: Sequence[Figure], different: Pairs, width: int) -> RenderableType:
    """Two runs beside each other.

    Args:
        names: Of the runs, as the user typed them.
        figures: What is compared.
        different: Verdicts, environment: only what differs.
        width: Columns of the terminal.
    """
    from rich.console import Group
    from rich.text import Text as Line

    from voirkit.report.terminal import rendered_section

    named = zip(("first", "second"), names, strict=True)
    heads = [Line.assemble((f"{head:8}", "dim"), name, overflow="fold") for head, name in named]
    sections = (rendered_section(one, width) for one in (figures_section(figures), differences_section(different)))
    return Group(*heads, *(section for section in sections if section is not None))


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
    return document(f"{names[0]} and {names[1]} · voirkit", list(drawn_parts(parts)))


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
