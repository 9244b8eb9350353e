"""Two runs as one HTML page: what ``voirkit compare A B --html FILE`` writes. ``+`` is what the second has more. It measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

from voirkit.analysis.comparison import environments, figures, said
from voirkit.analysis.of_run import of_run
from voirkit.analysis.syscalls.read import Difference, difference
from voirkit.report.call_rows import short
from voirkit.report.comparison_table import in_words, value_of
from voirkit.report.figure import duration, size
from voirkit.report.html import document, failed
from voirkit.report.html_marks import Html, differences, folded, join, paragraph, section, stacked, strong, table, text
from voirkit.report.html_plots import lines
from voirkit.report.html_steps import picture
from voirkit.runs.step_phases import PHASES, shown_phases

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_ROWS = 16  # of a picture
_MOST = 60  # of a table
_COLUMNS = 240

Summary = Mapping[str, Any]
Pair = tuple[Summary, Summary]


def comparison_page(runs: tuple[Run, Run], names: tuple[str, str], summaries: Pair) -> str:
    """The page of two runs.

    Args:
        runs: The opened runs.
        names: Of the runs, as the user typed them.
        summaries: Of DESIGN 3.8.
    """
    parts: dict[str, Callable[[], Html | None]] = {
        "first": partial(_first, names, summaries),
        "figures": partial(_figures, runs, summaries),
        "steps": partial(_steps, runs, names, summaries),
        "syscalls": partial(_syscalls, summaries),
        "loader": partial(_by_name, summaries, "loader", "operations", "Loader operations", "total_s", duration, str),
        "calls": partial(_by_name, summaries, "calls", "by_function", "Calls", "self_s", duration, short),
        "different": partial(_different, runs, summaries),
    }
    return document(f"{names[0]} and {names[1]} · voirkit", [part for part in starmap(_drawn, parts.items()) if part])


def _drawn(name: str, part: Callable[[], Html | None]) -> Html | None:
    try:
        return part()
    except Exception as exc:  # a summary of another version, a damaged file
        return failed(name, exc)


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


def _figures(runs: tuple[Run, Run], summaries: Pair) -> Html:
    rows = []
    found = figures(*summaries)
    for one in found:
        more = "" if one.first is None or one.second is None else signed(one.second - one.first, partial(value_of, units=one.units))
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}x"
        beyond = {True: strong("beyond"), False: "within", None: ""}[one.beyond]
        rows.append((one.name, value_of(one.first, one.units), value_of(one.second, one.units), more, ratio, beyond))
    note = "+ is what the second has more."
    if any(one.beyond is not None for one in found):
        note += " beyond: each median lies outside of the other run's p10 .. p90. How much runs of one script differ, two runs do not tell."
    heads = ("", "first", "second", "second - first", "second / first", "spread")
    return section("figures", "Figures", table(heads, rows), note=note)


def signed(value: float, shown: Callable[[float], str]) -> str:
    """A difference with its sign."""
    return f"{'+' if value > 0 else '-'}{shown(abs(value))}" if value else "0"


def _steps(runs: tuple[Run, Run], names: tuple[str, str], summaries: Pair) -> Html | None:
    parts: list[object] = []
    for at, (run, name) in enumerate(zip(runs, names, strict=True)):
        ranks = [rank for rank in of_run(run) if len(rank.steps.train)]
        if ranks:
            caption = f"{('first', 'second')[at]} ({name}): time of a step"
            parts.append(picture(run, ranks[0], _COLUMNS, caption, group=f"time {at}"))
    curves = [(head, (one.get("loss") or {}).get("curve") or []) for head, one in zip(("first", "second"), summaries, strict=True)]
    known = {head: [(float(x), y) for x, y in curve] for head, curve in curves if len(curve) > 1}
    if known:
        parts.append(lines(known, shown=lambda y: f"{y:.4g}", caption="loss", low=None, kind="", axis=lambda x: f"{x:,.0f}"))
    return section("steps", "Steps over time", *parts) if parts else None


def _syscalls(summaries: Pair) -> Html | None:
    ones = [summary.get("syscalls") or {} for summary in summaries]
    if not all(one.get("phases") for one in ones):
        return None
    rows = difference(*ones)
    changed = [row for row in rows if row.more_calls or row.bytes[0] != row.bytes[1]]
    parts: list[object] = []
    parts += [
        _largest(rows, "calls: the largest differences", lambda row: float(row.more_calls), lambda n: f"{n:,.0f}"),
        _largest(rows, "time: the largest differences", lambda row: row.more_seconds or 0.0, duration),
    ]
    sums = [sum(row.calls[at] for row in rows) for at in (0, 1)]
    cells: list[tuple[object, ...]] = [_of_call(row) for row in changed[:_MOST]]
    cells.append((strong("all"), "", f"{sums[0]:,}", f"{sums[1]:,}", f"{sums[1] - sums[0]:+,}", "", ""))
    heads = ("phase", "syscall", "first", "second", "calls", "time", "bytes")
    parts.append(folded(f"{min(len(changed), _MOST)} of {len(changed)} that differ", table(heads, cells, left=(0, 1))))
    note = "+ is what the second has more."
    if ones[0].get("tool") != ones[1].get("tool"):
        note += f" They were taken by {ones[0].get('tool')} and by {ones[1].get('tool')}: times are not alike."
    return section("syscalls", "System calls", *parts, note=note)


def _largest(rows: Sequence[Difference], caption: str, more: Callable[[Difference], float], shown: Callable[[float], str]) -> Html | None:
    largest = sorted((row for row in rows if more(row)), key=lambda row: -abs(more(row)))[:_ROWS]
    drawn = [(f"{row.phase} · {row.name}", more(row), signed(more(row), shown)) for row in largest]
    return differences(drawn, caption) if drawn else None


def _of_call(row: Difference) -> tuple[object, ...]:
    time = "" if not row.more_seconds else signed(row.more_seconds, duration)
    moved = row.bytes[1] - row.bytes[0]
    return row.phase, row.name, f"{row.calls[0]:,}", f"{row.calls[1]:,}", f"{row.more_calls:+,}", time, signed(moved, size) if moved else ""


def _by_name(
    summaries: Pair, key: str, rows: str, title: str, of: str, shown: Callable[[float], str], named: Callable[[str], str]
) -> Html | None:
    """What has a row for each name in both summaries."""
    ones = [(summary.get(key) or {}).get(rows) or {} for summary in summaries]
    if not any(ones):
        return None
    if not all(ones):
        only = "first" if ones[0] else "second"
        return section(key, title, paragraph(f"Recorded in the {only} alone.", kind="note"))
    found = [(name, *((one.get(name) or {}).get(of, 0.0) for one in ones)) for name in dict.fromkeys([*ones[0], *ones[1]])]
    found.sort(key=lambda row: -abs(row[2] - row[1]))
    drawn = [(named(name), second - first, signed(second - first, shown)) for name, first, second in found[:_ROWS] if first != second]
    cells = [(named(name), shown(first), shown(second), signed(second - first, shown)) for name, first, second in found[:_MOST]]
    parts = [differences(drawn) if drawn else None, folded("as a table", table(("", "first", "second", "second - first"), cells))]
    return section(key, title, *parts, note="+ is what the second took more.")


def _different(runs: tuple[Run, Run], summaries: Pair) -> Html:
    pairs = {**said(*summaries), **environments(runs[0].manifest, runs[1].manifest)}
    rows = [(name, in_words(first), in_words(second)) for name, (first, second) in pairs.items()]
    if not rows:
        return section("different", "What else differs", paragraph("Nothing that is known of both."))
    return section("different", "What else differs", table(("", "first", "second"), rows, left=(0, 1, 2)))
