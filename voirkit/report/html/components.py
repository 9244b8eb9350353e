"""The marks of an HTML report: text, tables, bars; pictures along an axis: heat maps, lines, columns.

Pure functions that give HTML; whatever comes in is escaped. Widths are shares of the room there is, so that a page needs no script to fit a
screen or a sheet.

No template engine: a mark is a function of a few lines, and ``Html`` lets mypy tell what is escaped from what is not. A table of 5,000 rows
took 246 ms by jinja2 3.1 with autoescape, 200 ms by ``table``, and the template was not shorter.
"""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from voirkit.report import duration, figure
from voirkit.runs.summary import PHASES
from voirkit.units import time_unit

LONGEST = 400  # characters of a text; of a longer one the middle is left out

# Those that have a colour of their own, the same as in the terminal; page.css says which.
COLOURS = frozenset((*PHASES, "fetch", "worker", "zero_grad", "checkpoint", "loss", "others"))
PALETTE = 14

# What a browser would not show, or show as something else: controls, halves of surrogate pairs, marks that turn the direction of writing.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


class Html(str):
    """HTML that is put into the page as it is. Every other string is escaped."""

    __slots__ = ()


def text(value: object, longest: int = LONGEST) -> Html:
    """A value as text: escaped, without what a browser would not show, not longer than so many characters; HTML as it is."""
    if isinstance(value, Html):
        return value
    said = str(value)
    if len(said) > longest:
        said = f"{said[: longest // 2]}…{said[-longest // 2 :]}"
    return Html(html.escape(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", said), quote=True))


def asset(name: str) -> str:
    """A file that a page holds: a style, a script."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), encoding="utf-8") as file:
        return file.read()


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts, one after the other."""
    return Html(between.join(text(part) for part in parts if part is not None))


def section(id: str, title: str, *parts: object, note: str = "") -> Html:
    """A part of the page: what ``PARTS`` functions give.

    Args:
        id: Of the section; unlike all others, and the beginning of all ids within.
        parts: HTML, or text that is escaped; None is left out.
        note: What it shows and what of it can be trusted, a sentence or two.
    """
    said = f'<p class="note">{text(note, 2000)}</p>' if note else ""
    return Html(f'<section id="{text(id)}"><h2>{text(title)}</h2>{said}{join(parts, chr(10))}</section>')


def paragraph(*parts: object, kind: str = "") -> Html:
    """A paragraph; ``kind`` is ``note`` (small), ``warning``, or nothing."""
    return Html(f'<p class="{kind}">{join(parts)}</p>' if kind else f"<p>{join(parts)}</p>")


def strong(value: object) -> Html:
    """Text that stands out."""
    return Html(f"<b>{text(value)}</b>")


def heading(title: str) -> Html:
    """A heading within a section."""
    return Html(f"<h3>{text(title)}</h3>")


def folded(title: str, *parts: object) -> Html:
    """What is there to be opened; a printed page shows it."""
    return Html(f"<details><summary>{text(title)}</summary>{join(parts)}</details>")


def tiles(figures: Sequence[tuple[str, str]]) -> Html:
    """Figures, each with its name below: (name, figure)."""
    made = "".join(f'<div class="tile"><b>{text(value)}</b><span>{text(name)}</span></div>' for name, value in figures)
    return Html(f'<div class="tiles">{made}</div>' if made else "")


def colour(name: str, place: int = 0) -> str:
    """The class of a colour: a phase's own, or the one at a place in the palette."""
    return f"k-{name}" if name in COLOURS else f"k-{place % PALETTE}"


def table(heads: Sequence[object], rows: Sequence[Sequence[object]], left_columns: Sequence[int] = (0,), caption: str = "") -> Html:
    """A table.

    Args:
        heads: Of the columns; a column in which no row has anything is left out.
        rows: Cells: text, which is escaped, or HTML.
        left_columns: Columns that are words; the others are numbers and stand to the right.
    """
    shown = [at for at in range(len(heads)) if not at or any(str(row[at]) for row in rows)]

    def cell(tag: str, column: int, value: object) -> str:
        return f"<{tag}>{text(value)}</{tag}>" if column in left_columns else f'<{tag} class="n">{text(value)}</{tag}>'

    head = "".join(cell("th", at, heads[at]) for at in shown)
    body = "".join("<tr>" + "".join(cell("td", at, row[at]) for at in shown) + "</tr>\n" for row in rows)
    said = f"<caption>{text(caption)}</caption>" if caption else ""
    return Html(f'<div class="wide"><table>{said}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>')


def bars(rows: Sequence[tuple[object, float, object]], colours: Sequence[str] = (), caption: str = "") -> Html:
    """A bar a row, from the left: (label, value, what is said at its end). All have one colour, or a class (``colour``) each."""
    most = max((value for _, value, _ in rows), default=0) or 1
    made = []
    for at, (label, value, said) in enumerate(rows):
        kind = colours[at] if colours else "k-0"
        filled = f'<i class="{kind}" style="width:{max(value, 0) / most:.2%}"></i>'
        made.append(_row(label, filled, said, f"{_plain(label)}: {_plain(said)}"))
    return _rows(made, caption)


def stacked(
    rows: Sequence[tuple[object, Mapping[str, float], object]],
    format_value: Callable[[float], str] = figure,
    whole: float | None = None,
    caption: str = "",
    order: Sequence[str] = (),
    figures: Mapping[str, str] | None = None,
    colours: Mapping[str, str] | None = None,
) -> Html:
    """A bar a row, of parts one behind the other, with a legend above.

    Args:
        rows: (label, {part: value}, what is said at the end).
        whole: What fills a row; if left out, the largest sum. With 0 each row fills its own, so that shares are compared.
        order: The parts in the order of their colours; if left out, as they first appear.
        figures: What the legend says of a part.
        colours: Classes by part, where several pictures are to have the same ones; only these parts are drawn.
    """
    parts = list(dict.fromkeys([*order, *(part for _, values, _ in rows for part in values)]))
    used = {part for _, values, _ in rows for part, value in values.items() if value > 0}
    if colours is None:
        colours = {part: colour(part, at) for at, part in enumerate(part for part in parts if part in used)}
    colours = {part: colours[part] for part in parts if part in used and part in colours}
    most = max((sum(values.values()) for _, values, _ in rows), default=0) if whole is None else whole
    made = []
    for label, values, said in rows:
        total = sum(values.values())
        room = most or total or 1
        cells = []
        for part in colours:
            value = values.get(part, 0)
            if value / room >= 0.0005:
                title = f"{part}: {format_value(value)}, {value / total:.1%}"
                cells.append(f'<i class="{colours[part]}" style="width:{value / room:.3%}" title="{text(title)}"></i>')
        described = ", ".join(f"{part} {format_value(values[part])}" for part in colours if values.get(part))
        made.append(_row(label, "".join(cells), said, f"{_plain(label)}: {described}"))
    return Html(_rows([legend(colours, figures), *made], caption))


def differences(rows: Sequence[tuple[object, float, object]], caption: str = "") -> Html:
    """A bar a row from the middle, to the right for more and to the left for less: (label, difference, what is said at its end)."""
    most = max((abs(value) for _, value, _ in rows), default=0) or 1
    made = []
    for label, value, said in rows:
        place = f"margin-left:{50 if value > 0 else 50 - 50 * abs(value) / most:.2f}%;width:{50 * abs(value) / most:.2f}%"
        filled = f'<i class="k-{1 if value > 0 else 2}" style="{place}"></i>'
        made.append(_row(label, filled, said, f"{_plain(label)}: {_plain(said)}"))
    return Html(_rows(made, caption).replace('<figure class="bars">', '<figure class="bars apart">', 1))


def legend(colours: Mapping[str, str], figures: Mapping[str, str] | None = None) -> Html:
    """Names beside their colours, and figures beside these; classes and figures by name."""
    figures = figures or {}
    made = (f'<span><i class="{kind}"></i>{text(name)} <b>{text(figures.get(name, ""))}</b></span>' for name, kind in colours.items())
    return Html(f'<p class="legend">{" ".join(made)}</p>')


def _plain(value: object) -> str:
    return html.unescape(re.sub("<[^>]*>", "", value)) if isinstance(value, Html) else str(value)


def _row(label: object, filled: str, end: object, described: str) -> str:
    return (
        f'<div class="row"><span class="label" title="{text(_plain(label))}">{text(label)}</span>'
        f'<span class="track" role="img" aria-label="{text(described)}">{filled}</span><span class="said">{text(end)}</span></div>'
    )


def _rows(rows: Sequence[str], caption: str) -> Html:
    said = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return Html(f'<figure class="bars">{said}{"".join(rows)}</figure>')


# pictures along an axis, as SVG that stretches with the page
#
# The texts stand beside the picture, in HTML, so that they keep their size when it stretches. Pictures of one ``group`` share an axis: the
# page's script zooms them together.
#
# No library of plots: uPlot 1.6 (51 kB in each page) draws on a canvas by a script: no picture where scripts are off; and it has no heat
# maps.


TIME = "time"  # the group of pictures over the seconds since the run began
HIGH = 1000  # units of a picture's height
_TICKS = 5
_END = 0.08  # of an axis: so near to its end half a label would not have room
_NEARLY = 1e-9

Points = Sequence[tuple[float, float | None]]
Format = Callable[[float], str]


def seconds(value: float) -> str:
    """A place on an axis of time."""
    return f"-{duration(-value)}" if value < 0 else duration(value) if value else "0 s"


def heat_map(
    rows: Sequence[tuple[object, Sequence[float]]],
    start: float,
    width: float,
    format_value: Format = figure,
    caption: str = "",
    whole: float | None = None,
    sums: bool = True,
) -> Html:
    """A row of cells for each name; the more the darker, by the logarithm, over all rows. At the end of a row stands its sum, or its mean.

    Args:
        rows: (label, values), all equally many.
        start: Where the first cell begins.
        width: How wide a cell is on the axis.
        whole: The colour goes by the share of it instead.
        sums: Whether the sum stands at the end, not the mean.
    """
    n = max((len(values) for _, values in rows), default=0)
    positive = [value for _, values in rows for value in values if value > 0]
    if not positive:
        return Html("")
    least, most = min(positive), max(positive)
    span = math.log(most) - math.log(least)
    made = []
    for label, values in rows:
        total = sum(values)
        cells = []
        for at, value in enumerate(values):
            if value > 0:
                opacity = min(value / whole, 1.0) if whole else 0.15 + 0.85 * ((math.log(value) - math.log(least)) / span if span else 1.0)
                x = start + at * width
                box = f'x="{_short(x)}" width="{_short(width * 1.02)}" height="1" opacity="{opacity:.2f}"'  # no gap between neighbours
                cells.append(f"<rect {box}><title>{text(f'{seconds(x)} .. {seconds(x + width)}: {format_value(value)}')}</title></rect>")
        said = format_value(total if sums else total / n)
        picture = _svg("".join(cells), (start, start + n * width), 1, TIME, f"{label}: {said}", "heat k-heat")
        name = f'<span class="label" title="{text(label)}">{text(label)}</span>'
        made.append(f'<div class="row">{name}{picture}<span class="said">{text(said)}</span></div>')
    labels = _ticks(start, start + n * width, "s", TIME)
    axis_row = f'<div class="row axis"><span class="label"></span>{labels}<span class="said"></span></div>'
    light, dark = text(format_value(least)), text(format_value(most))
    scale = "" if whole else f'<p class="legend">from {light} (light) to {dark} (dark) in each {text(seconds(width))}</p>'
    return Html(f'<figure class="bars heats">{_caption(caption)}{scale}{"".join(made)}{axis_row}</figure>')


def lines(
    series: Mapping[str, Points],
    format_value: Format = figure,
    unit: str = "",
    caption: str = "",
    group: str = "",
    low: float | None = 0.0,
    kind: str = "low",
    across: tuple[float, float] | None = None,
    logarithmic: bool = False,
) -> Html:
    """Curves over an axis. Where a value is None (it was not finite) the curve is broken, and marked.

    Args:
        series: Points by name, ascending along the axis.
        unit: Of the axis: ``s`` for seconds, else nothing.
        group: Of pictures that zoom together; none if empty.
        low: Where the scale begins; None: at the least value.
        kind: ``low`` (64 pixels high), ``small`` (54), or nothing (150).
        across: The ends of the axis; if left out, those of the points.
        logarithmic: Whether to draw by the logarithm, where no value is zero or less.
    """
    series = {name: [(x, y if y is None or math.isfinite(y) else None) for x, y in points] for name, points in series.items()}
    known = [y for points in series.values() for _, y in points if y is not None]
    places = [x for points in series.values() for x, _ in points]
    if not places:
        return Html("")
    logarithmic = logarithmic and bool(known) and min(known) > 0
    bottom = min(known, default=0.0) if low is None or logarithmic else min(low, min(known, default=0.0))
    top = max(known, default=1.0)
    if top <= bottom:
        top = bottom * 2 if logarithmic else bottom + (abs(bottom) or 1.0)
    start, end = across or (min(places), max(places))
    end = end if end > start else start + 1
    height = _scale(bottom, top, logarithmic)
    colours = {name: colour(name, at) for at, name in enumerate(series)}
    drawn = "".join(f'<path class="{colours[name]}" d="{_curve(points, height)}"/>' for name, points in series.items())
    drawn += "".join(_broken(points, (end - start) / 200) for points in series.values())
    middle = math.sqrt(bottom) * math.sqrt(top) if logarithmic else bottom / 2 + top / 2
    label = f"{caption or ', '.join(series)}: {format_value(bottom)} to {format_value(top)}"
    return Html(
        f'<figure class="plot {kind}">{_caption(caption)}{legend(colours) if len(series) > 1 else ""}'
        + _framed(drawn, (start, end), [format_value(top), format_value(middle), format_value(bottom)], group, label, unit)
        + "</figure>"
    )


def _scale(bottom: float, top: float, logarithmic: bool) -> Callable[[float], float]:
    """From a value to a height in the picture, which is counted from above."""
    if logarithmic:
        return lambda y: HIGH * (0.98 - 0.96 * (math.log(y) - math.log(bottom)) / (math.log(top) - math.log(bottom)))
    span = top / 4 - bottom / 4  # the difference of two numbers may be larger than any is
    return lambda y: HIGH * (0.98 - 0.96 * (y / 4 - bottom / 4) / span)


def _curve(points: Points, height: Callable[[float], float]) -> str:
    pieces: list[list[str]] = [[]]
    for x, y in points:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{_short(x)} {height(y):.0f}")
    # A point alone is a line of no length, of which the round ends are drawn.
    return "".join(f"M{'L'.join(piece)}{'h0' if len(piece) == 1 else ''}" for piece in pieces if piece)


def _broken(points: Points, width: float) -> str:
    """Where a value was not finite."""
    box = f'<rect class="k-bad" width="{_short(width)}" height="{HIGH // 12}"'
    return "".join(f'{box} x="{_short(x - width / 2)}">{_title("not finite")}</rect>' for x, y in points if y is None)


def columns(
    boxes: Sequence[tuple[float, float, Mapping[str, float], str]],
    peaks: Sequence[float] = (),
    bands: Sequence[tuple[float, float, str]] = (),
    edges: Sequence[tuple[float, str, str]] = (),
    caption: str = "",
    group: str = TIME,
    order: Sequence[str] = (),
) -> Html:
    """Columns of parts upon each other, each as wide as what it stands for lasted.

    The scale ends where nearly all columns do; one that goes on beyond is cut, and marked.

    Args:
        boxes: (start, end, {part: value}, what is said of it), ascending.
        peaks: For each column, the largest of what it is the mean of; drawn as a line.
        bands: Shaded: (start, end, what is said of it); they are evaluation.
        edges: Lines from top to bottom: (place, what is said of it, what it is).
        group: Of pictures that zoom together.
        order: The parts from bottom to top.
    """
    if not boxes:
        return Html("")
    start = min([boxes[0][0], *(band[0] for band in bands), *(edge[0] for edge in edges)])
    end = max([*(box[1] for box in boxes), *(band[1] for band in bands), *(edge[0] for edge in edges)])
    end = end if end > start else start + 1
    sums = [sum(box[2].values()) for box in boxes]
    top = _top(sums)
    parts = [part for part in order if any(box[2].get(part) for box in boxes)]
    colours = {part: colour(part, at) for at, part in enumerate(parts)}
    drawn = ""
    for a, b, said in bands:
        colours["evaluation"] = "k-band"
        drawn += f'<rect class="band" x="{_short(a)}" width="{_short(b - a)}" height="{HIGH}">{_title(said)}</rect>'
    drawn += "".join(f'<path class="filled {colours[part]}" d="{path}"/>' for part, path in _piled(boxes, parts, top).items())
    if any(peak > total * 1.01 for peak, total in zip(peaks, sums, strict=False)):
        ticks = (
            f"M{_short(a)} {HIGH * (1 - min(peak, top) / top):.0f}H{_short(b)}" for (a, b, _, _), peak in zip(boxes, peaks, strict=True)
        )
        drawn += f'<path class="k-dim" d="{"".join(ticks)}"/>'
        colours["the longest"] = "k-dim"
    # One for each column, not seen, to be pointed at; a mark at its top where it is cut.
    for (a, b, _, said), total in zip(boxes, sums, strict=True):
        box = f'x="{_short(a)}" width="{_short(b - a)}"'
        drawn += f'<rect class="k-bad" {box} height="{HIGH // 40}"/>' if total > top else ""
        drawn += f'<rect class="hit" {box} height="{HIGH}">{_title(said)}</rect>'
    width = _short((end - start) / 600)
    for x, said, what in edges:
        colours[what] = colour(what) if what in COLOURS else "k-dim"
        drawn += f'<rect class="{colours[what]}" x="{_short(x)}" width="{width}" height="{HIGH}">{_title(said)}</rect>'
    cut = sum(total > top for total in sums)
    beyond = f"; {cut:,} beyond the scale, at most {duration(max(sums))}" if cut else ""
    frame = _framed(drawn, (start, end), [duration(top), duration(top / 2), "0"], group, f"{caption}{beyond}", "s")
    return Html(f'<figure class="plot">{_caption(caption + beyond)}{legend(colours)}{frame}</figure>')


def _top(sums: Sequence[float]) -> float:
    """Where a scale ends: at the largest, or, if few are far beyond the others, above these."""
    ordered = sorted(sums)
    most, usual = ordered[-1], ordered[int(0.97 * (len(ordered) - 1))]
    return (most if most <= 3 * usual or not usual else 1.5 * usual) or 1.0


def _piled(boxes: Sequence[tuple[float, float, Mapping[str, float], str]], parts: Sequence[str], top: float) -> dict[str, str]:
    paths: dict[str, list[str]] = {part: [] for part in parts}
    for a, b, values, _ in boxes:
        base = 0.0
        for part in parts:
            value = values.get(part, 0.0)
            if value > 0 and base < top:
                low, high = (HIGH * (1 - min(y, top) / top) for y in (base, base + value))
                if round(low) > round(high):
                    paths[part].append(f"M{_short(a)} {low:.0f}H{_short(b)}V{high:.0f}H{_short(a)}Z")
            base += value
    return {part: "".join(path) for part, path in paths.items()}


def _title(words: str) -> str:
    return f"<title>{text(words)}</title>" if words else ""


def _caption(words: str) -> str:
    return f"<figcaption>{text(words)}</figcaption>" if words else ""


def _short(value: float) -> str:
    return f"{value:.7g}"


def _svg(content: str, across: tuple[float, float], height: float, group: str, label: str, kind: str = "") -> str:
    low, high = across
    named = f' data-group="{text(group)}"' if group else ""
    return (
        f'<svg class="{kind}" role="img" aria-label="{text(label)}" preserveAspectRatio="none"{named} '
        f'viewBox="{_short(low)} 0 {_short(high - low)} {_short(height)}">{content}</svg>'
    )


def _framed(content: str, across: tuple[float, float], scale: Sequence[str], group: str, label: str, unit: str) -> str:
    """A picture with its scale to the left and its axis below."""
    beside = "".join(f"<span>{text(one)}</span>" for one in scale)
    return (
        f'<div class="row"><span class="scale">{beside}</span>{_svg(content, across, HIGH, group, label)}</div>'
        f'<div class="row axis"><span class="scale"></span>{_ticks(*across, unit, group)}</div>'
    )


def _ticks(start: float, end: float, unit: str, group: str) -> str:
    """The labels of an axis, each below its place."""
    spans = []
    for place, label in ticks(start, end, unit):
        share = (place - start) / (end - start)
        # At the ends of the axis a label lies within it.
        shift = -100 if share > 1 - _END else 0 if share < _END else -50
        spans.append(f'<span style="left:{share:.2%};transform:translateX({shift}%)">{text(label)}</span>')
    named = f' data-group="{text(group)}" data-from="{_short(start)}" data-to="{_short(end)}"' if group else ""
    return f'<span class="ticks"{named} data-unit="{text(unit)}">{"".join(spans)}</span>'


def ticks(start: float, end: float, unit: str = "") -> list[tuple[float, str]]:
    """Round places on an axis, some five at most, with their labels, which say exactly these places. ``page.js`` does the same for a part
    of an axis.

    Args:
        unit: ``s`` for seconds; nothing for numbers. If both ends are whole so are the places.
    """
    if not end > start:
        return []
    factor, name = time_unit(max(abs(start), abs(end))) if unit == "s" else (1.0, "")
    low, high = start * factor, end * factor
    step = _round_step((high - low) / (_TICKS - 1))
    if not unit and start == int(start) and end == int(end):
        step = max(step, 1.0)
    decimals = max(-math.floor(math.log10(step) + _NEARLY), 0)
    numbers = range(math.ceil(low / step - _NEARLY), math.floor(high / step + _NEARLY) + 1)
    return [(number * step / factor, f"{number * step:,.{decimals}f} {name}".rstrip()) for number in numbers]


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((times * power for times in (1, 2, 5) if times * power >= least * (1 - _NEARLY)), 10 * power)
