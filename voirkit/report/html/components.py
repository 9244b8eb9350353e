"""The marks of an HTML report: text, tables, bars; pictures along an axis: heat maps, lines,
columns.

Pure functions that give HTML; whatever comes in is escaped. Widths are shares of the room there is,
so that a page needs no script to fit a screen or a sheet.

No template engine: a mark is a function of a few lines, and ``Html`` lets mypy tell what is escaped
from what is not. A table of 5,000 rows took 246 ms by jinja2 3.1 with autoescape, 200 ms by
``table``, and the template was not shorter.
"""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from voirkit.phase_table import TABLE
from voirkit.report import duration, figure
from voirkit.units import time_unit

LONGEST = 400  # characters of a text; of a longer one the middle is left out

# Those that have a colour of their own: phases as in voirkit.phase_table, the others as in page.css.
_PHASE_COLOURS = {phase.name: phase.page_colours for phase in TABLE if phase.page_colours}
COLOURS = frozenset((*_PHASE_COLOURS, "fetch", "worker", "others"))
PALETTE = 14

# What a browser would not show, or show as something else: controls, halves of surrogate pairs,
# marks that turn the direction of writing.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)


class Html(str):
    """HTML that is put into the page as it is. Every other string is escaped."""

    __slots__ = ()


def text(value: object, longest: int = LONGEST) -> Html:
    """A value as text: escaped, without what a browser would not show, not longer than so many
    characters; HTML as it is."""
    if isinstance(value, Html):
        return value
    words = str(value)
    if len(words) > longest:
        words = f"{words[: longest // 2]}…{words[-longest // 2 :]}"
    return Html(html.escape(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", words), quote=True))


def asset(name: str) -> str:
    """A file that a page holds: a style, a script."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def page_style() -> str:
    """The style of a page, with the colours of the phases."""
    light, dark, classes = [], [], []
    for name, (light_colour, dark_colour) in _PHASE_COLOURS.items():
        light.append(f"--{name}: {light_colour};")
        dark.append(f"--{name}: {dark_colour};")
        classes.append(f".k-{name} {{ --c: var(--{name}); }}")
    style = asset("page.css")
    style = style.replace("/* light colours of phases */", " ".join(light))
    style = style.replace("/* dark colours of phases */", " ".join(dark))
    return style.replace("/* classes of phases */", "\n".join(classes))


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
    below_title = f'<p class="note">{text(note, 2000)}</p>' if note else ""
    content = join(parts, "\n")
    return Html(f'<section id="{text(id)}"><h2>{text(title)}</h2>{below_title}{content}</section>')


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
    """Parts that a click opens; a printed page shows them."""
    return Html(f"<details><summary>{text(title)}</summary>{join(parts)}</details>")


def tiles(figures: Sequence[tuple[str, str]]) -> Html:
    """Figures, each with its name below: (name, figure)."""
    content = "".join(
        f'<div class="tile"><b>{text(value)}</b><span>{text(name)}</span></div>'
        for name, value in figures
    )
    return Html(f'<div class="tiles">{content}</div>' if content else "")


def colour(name: str, place: int = 0) -> str:
    """The class of a colour: a phase's own, or the one at a place in the palette."""
    return f"k-{name}" if name in COLOURS else f"k-{place % PALETTE}"


def table(
    heads: Sequence[object],
    rows: Sequence[Sequence[object]],
    left_columns: Sequence[int] = (0,),
    caption: str = "",
) -> Html:
    """A table.

    Args:
        heads: Of the columns; a column in which no row has anything is left out.
        rows: Cells: text, which is escaped, or HTML.
        left_columns: Columns that are words; the others are numbers and stand to the right.
    """
    filled = [
        column
        for column in range(len(heads))
        if column == 0 or any(str(row[column]) for row in rows)
    ]
    opening = {
        tag: [f"<{tag}>" if column in left_columns else f'<{tag} class="n">' for column in filled]
        for tag in ("th", "td")
    }

    def table_row(tag: str, values: Sequence[object]) -> str:
        cells = (
            f"{opened}{text(values[column])}</{tag}>"
            for opened, column in zip(opening[tag], filled, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head = table_row("th", heads)
    body = "".join(f"{table_row('td', row)}\n" for row in rows)
    words = f"<caption>{text(caption)}</caption>" if caption else ""
    content = f"{words}<thead>{head}</thead>\n<tbody>{body}</tbody>"
    return Html(f'<div class="wide"><table>{content}</table></div>')


def bars(
    rows: Sequence[tuple[object, float, object]], colours: Sequence[str] = (), caption: str = ""
) -> Html:
    """A bar a row, from the left: (label, value, text at its end). All have one colour, or a class
    (``colour``) each."""
    most = max((value for _, value, _ in rows), default=0) or 1
    drawn_rows = []
    for number, (label, value, end) in enumerate(rows):
        kind = colours[number] if colours else "k-0"
        filled = f'<i class="{kind}" style="width:{max(value, 0) / most:.2%}"></i>'
        drawn_rows.append(_row(label, filled, end, f"{_plain(label)}: {_plain(end)}"))
    return _rows(drawn_rows, caption)


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
        rows: (label, {part: value}, text at the end).
        whole: What fills a row; if left out, the largest sum. With 0 each row fills its own, so
            that shares are compared.
        order: The parts in the order of their colours; if left out, as they first appear.
        figures: What the legend says of a part.
        colours: Classes by part, where several pictures are to have the same ones; only these parts
            are drawn.
    """
    parts = _positive_parts([values for _, values, _ in rows], order)
    if colours is None:
        colours = {part: colour(part, place) for place, part in enumerate(parts)}
    colours = {part: colours[part] for part in parts if part in colours}
    if whole is None:
        whole = max((sum(values.values()) for _, values, _ in rows), default=0)
    drawn_rows = []
    for label, values, end in rows:
        described = ", ".join(
            f"{part} {format_value(values[part])}" for part in colours if values.get(part)
        )
        bar = _stacked_bar(values, colours, whole, format_value)
        drawn_rows.append(_row(label, bar, end, f"{_plain(label)}: {described}"))
    return Html(_rows([legend(colours, figures), *drawn_rows], caption))


def _positive_parts(rows: Sequence[Mapping[str, float]], order: Sequence[str]) -> list[str]:
    """The parts that are more than zero in any row: those of the order first."""
    parts = dict.fromkeys(order)
    positive = set()
    for values in rows:
        for part, value in values.items():
            parts.setdefault(part)
            if value > 0:
                positive.add(part)
    return [part for part in parts if part in positive]


def _stacked_bar(
    values: Mapping[str, float], colours: Mapping[str, str], whole: float, format_value: Format
) -> str:
    """The parts of a bar; ``whole`` fills the row, or if 0 the bar does."""
    total = sum(values.values())
    row_whole = whole or total or 1
    cells = []
    for part, kind in colours.items():
        value = values.get(part, 0)
        share = value / row_whole
        if share >= 0.0005:
            title = text(f"{part}: {format_value(value)}, {value / total:.1%}")
            cells.append(f'<i class="{kind}" style="width:{share:.3%}" title="{title}"></i>')
    return "".join(cells)


def differences(rows: Sequence[tuple[object, float, object]], caption: str = "") -> Html:
    """A bar a row from the middle, to the right for more and to the left for less: (label,
    difference, text at its end)."""
    most = max((abs(value) for _, value, _ in rows), default=0) or 1
    drawn_rows = []
    for label, value, end in rows:
        width = 50 * abs(value) / most
        margin, kind = (50, 1) if value > 0 else (50 - width, 2)
        place = f"margin-left:{margin:.2f}%;width:{width:.2f}%"
        filled = f'<i class="k-{kind}" style="{place}"></i>'
        drawn_rows.append(_row(label, filled, end, f"{_plain(label)}: {_plain(end)}"))
    figure = _rows(drawn_rows, caption)
    return Html(figure.replace('<figure class="bars">', '<figure class="bars apart">', 1))


def legend(colours: Mapping[str, str], figures: Mapping[str, str] | None = None) -> Html:
    """Names beside their colours, and figures beside these; classes and figures by name."""
    figures = figures or {}
    entries = (
        f'<span><i class="{kind}"></i>{text(name)} <b>{text(figures.get(name, ""))}</b></span>'
        for name, kind in colours.items()
    )
    return Html(f'<p class="legend">{" ".join(entries)}</p>')


def _plain(value: object) -> str:
    return html.unescape(re.sub("<[^>]*>", "", value)) if isinstance(value, Html) else str(value)


def _row(label: object, filled: str, end: object, described: str) -> str:
    return (
        '<div class="row"><span class="label"'
        f' title="{text(_plain(label))}">{text(label)}</span><span class="track" role="img"'
        f' aria-label="{text(described)}">{filled}</span><span'
        f' class="said">{text(end)}</span></div>'
    )


def _rows(rows: Sequence[str], caption: str) -> Html:
    return Html(f'<figure class="bars">{_caption(caption)}{"".join(rows)}</figure>')


# pictures along an axis, as SVG that stretches with the page
#
# The texts stand beside the picture, in HTML, so that they keep their size when it stretches.
# Pictures of one ``group`` share an axis: the page's script zooms them together.
#
# No library of plots: uPlot 1.6 (51 kB in each page) draws on a canvas by a script: no picture
# where scripts are off; and it has no heat maps.


TIME = "time"  # the group of pictures over the seconds since the run began
HIGH = 1000  # units of a picture's height
_TICKS = 5
_END = 0.08  # of an axis: so near to its end half a label would not have room
_NEARLY = 1e-9

Points = Sequence[tuple[float, float | None]]
Box = tuple[float, float, Mapping[str, float], str]
Format = Callable[[float], str]


def seconds(value: float) -> str:
    """A place on an axis of time."""
    if value < 0:
        return f"-{duration(-value)}"
    return duration(value) if value else "0 s"


def heat_map(
    rows: Sequence[tuple[object, Sequence[float]]],
    start: float,
    width: float,
    format_value: Format = figure,
    caption: str = "",
    whole: float | None = None,
    sums: bool = True,
) -> Html:
    """A row of cells for each name; the more the darker, by the logarithm, over all rows. At the
    end of a row stands its sum, or its mean.

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
    opacity = _opacity(least, most, whole)
    across = start, start + n * width
    drawn_rows = []
    for label, values in rows:
        cells = [
            _heat_cell(start + number * width, width, opacity(value), format_value(value))
            for number, value in enumerate(values)
            if value > 0
        ]
        end = format_value(sum(values) if sums else sum(values) / n)
        picture = _svg("".join(cells), across, 1, TIME, f"{label}: {end}", "heat k-heat")
        name = f'<span class="label" title="{text(label)}">{text(label)}</span>'
        drawn_rows.append(
            f'<div class="row">{name}{picture}<span class="said">{text(end)}</span></div>'
        )
    labels = _ticks(*across, "s", TIME)
    axis_row = (
        f'<div class="row axis"><span class="label"></span>{labels}<span class="said"></span></div>'
    )
    scale = ""
    if not whole:
        light, dark = text(format_value(least)), text(format_value(most))
        cell_width = text(seconds(width))
        scale = f'<p class="legend">from {light} (light) to {dark} (dark) in each {cell_width}</p>'
    content = f"{_caption(caption)}{scale}{''.join(drawn_rows)}{axis_row}"
    return Html(f'<figure class="bars heats">{content}</figure>')


def _opacity(least: float, most: float, whole: float | None) -> Callable[[float], float]:
    """From a value to the opacity of its cell."""
    if whole:
        return lambda value: min(value / whole, 1.0)
    log_least = math.log(least)
    span = math.log(most) - log_least
    if not span:
        return lambda value: 1.0
    return lambda value: 0.15 + 0.85 * ((math.log(value) - log_least) / span)


def _heat_cell(x: float, width: float, opacity: float, value: str) -> str:
    title = text(f"{seconds(x)} .. {seconds(x + width)}: {value}")
    box = f'x="{_short(x)}" width="{_short(width * 1.02)}"'  # no gap between neighbours
    return f'<rect {box} height="1" opacity="{opacity:.2f}"><title>{title}</title></rect>'


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
    """Curves over an axis. Where a value is None (it was not finite) the curve is broken, and
    marked.

    Args:
        series: Points by name, ascending along the axis.
        unit: Of the axis: ``s`` for seconds, else nothing.
        group: Of pictures that zoom together; none if empty.
        low: Where the scale begins; None: at the least value.
        kind: ``low`` (64 pixels high), ``small`` (54), or nothing (150).
        across: The ends of the axis; if left out, those of the points.
        logarithmic: Whether to draw by the logarithm, where no value is zero or less.
    """
    series = {name: _without_infinite(points) for name, points in series.items()}
    every_point = [point for points in series.values() for point in points]
    if not every_point:
        return Html("")
    values = [y for _, y in every_point if y is not None]
    logarithmic = logarithmic and bool(values) and min(values) > 0
    bottom = min(values, default=0.0)
    if low is not None and not logarithmic:
        bottom = min(low, bottom)
    top = max(values, default=1.0)
    if top <= bottom:
        top = bottom * 2 if logarithmic else bottom + (abs(bottom) or 1.0)
    start, end = across or _ends([x for x, _ in every_point])
    end = end if end > start else start + 1
    height = _scale(bottom, top, logarithmic)
    colours = {name: colour(name, place) for place, name in enumerate(series)}
    content = "".join(
        f'<path class="{colours[name]}" d="{_curve(points, height)}"/>'
        for name, points in series.items()
    )
    content += "".join(_broken(points, (end - start) / 200) for points in series.values())
    middle = math.sqrt(bottom) * math.sqrt(top) if logarithmic else bottom / 2 + top / 2
    scale = [format_value(top), format_value(middle), format_value(bottom)]
    label = f"{caption or ', '.join(series)}: {format_value(bottom)} to {format_value(top)}"
    frame = _framed(content, (start, end), scale, group, label, unit)
    names = legend(colours) if len(series) > 1 else ""
    return Html(f'<figure class="plot {kind}">{_caption(caption)}{names}{frame}</figure>')


def _without_infinite(points: Points) -> list[tuple[float, float | None]]:
    """Points with None in place of what is not finite."""
    return [(x, y if y is None or math.isfinite(y) else None) for x, y in points]


def _ends(places: Sequence[float]) -> tuple[float, float]:
    return min(places), max(places)


def _scale(bottom: float, top: float, logarithmic: bool) -> Callable[[float], float]:
    """From a value to a height in the picture, which is counted from above."""
    if logarithmic:
        log_bottom = math.log(bottom)
        log_span = math.log(top) - log_bottom
        return lambda y: HIGH * (0.98 - 0.96 * (math.log(y) - log_bottom) / log_span)
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
    return "".join(
        f"M{'L'.join(piece)}{'h0' if len(piece) == 1 else ''}" for piece in pieces if piece
    )


def _broken(points: Points, width: float) -> str:
    """Marks where a value was not finite."""
    box = f'<rect class="k-bad" width="{_short(width)}" height="{HIGH // 12}"'
    return "".join(
        f'{box} x="{_short(x - width / 2)}">{_title("not finite")}</rect>'
        for x, y in points
        if y is None
    )


def columns(
    boxes: Sequence[Box],
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
        boxes: (start, end, {part: value}, title), ascending.
        peaks: For each column, the largest of what it is the mean of; drawn as a line.
        bands: Shaded: (start, end, title); they are evaluation.
        edges: Lines from top to bottom: (place, title, name in the legend).
        group: Of pictures that zoom together.
        order: The parts from bottom to top.
    """
    if not boxes:
        return Html("")
    edge_places = [edge[0] for edge in edges]
    start = min([boxes[0][0], *(band[0] for band in bands), *edge_places])
    end = max([*(box[1] for box in boxes), *(band[1] for band in bands), *edge_places])
    end = end if end > start else start + 1
    sums = [sum(values.values()) for _, _, values, _ in boxes]
    top = _top(sums)
    parts = [part for part in order if any(values.get(part) for _, _, values, _ in boxes)]
    colours = {part: colour(part, place) for place, part in enumerate(parts)}
    content = "".join(
        _box(band_start, band_end, "band", title) for band_start, band_end, title in bands
    )
    if bands:
        colours["evaluation"] = "k-band"
    for part, path in _piled(boxes, parts, top).items():
        content += f'<path class="filled {colours[part]}" d="{path}"/>'
    if any(peak > total * 1.01 for peak, total in zip(peaks, sums, strict=False)):
        content += f'<path class="k-dim" d="{_peak_lines(boxes, peaks, top)}"/>'
        colours["the longest"] = "k-dim"
    # One for each column, not seen, to be pointed at; a mark at its top where it is cut.
    for (box_start, box_end, _, title), total in zip(boxes, sums, strict=True):
        if total > top:
            place = f'x="{_short(box_start)}" width="{_short(box_end - box_start)}"'
            content += f'<rect class="k-bad" {place} height="{HIGH // 40}"/>'
        content += _box(box_start, box_end, "hit", title)
    width = _short((end - start) / 600)
    for x, title, name in edges:
        colours[name] = colour(name) if name in COLOURS else "k-dim"
        content += (
            f'<rect class="{colours[name]}" x="{_short(x)}" width="{width}"'
            f' height="{HIGH}">{_title(title)}</rect>'
        )
    n_cut = sum(total > top for total in sums)
    if n_cut:
        caption += f"; {n_cut:,} beyond the scale, at most {duration(max(sums))}"
    scale = [duration(top), duration(top / 2), "0"]
    frame = _framed(content, (start, end), scale, group, caption, "s")
    return Html(f'<figure class="plot">{_caption(caption)}{legend(colours)}{frame}</figure>')


def _box(start: float, end: float, kind: str, title: str) -> str:
    """A rectangle from top to bottom."""
    return (
        f'<rect class="{kind}" x="{_short(start)}" width="{_short(end - start)}"'
        f' height="{HIGH}">{_title(title)}</rect>'
    )


def _peak_lines(boxes: Sequence[Box], peaks: Sequence[float], top: float) -> str:
    pieces = []
    for (start, end, _, _), peak in zip(boxes, peaks, strict=True):
        y = HIGH * (1 - min(peak, top) / top)
        pieces.append(f"M{_short(start)} {y:.0f}H{_short(end)}")
    return "".join(pieces)


def _top(sums: Sequence[float]) -> float:
    """The end of a scale: at the largest, or, if few are far beyond the others, above these."""
    ordered = sorted(sums)
    most, usual = ordered[-1], ordered[int(0.97 * (len(ordered) - 1))]
    if usual and most > 3 * usual:
        return 1.5 * usual or 1.0
    return most or 1.0


def _piled(boxes: Sequence[Box], parts: Sequence[str], top: float) -> dict[str, str]:
    """The path of each part: its boxes upon those of the parts before it."""
    paths: dict[str, list[str]] = {part: [] for part in parts}
    for start, end, values, _ in boxes:
        base = 0.0
        for part in parts:
            value = values.get(part, 0.0)
            if value > 0 and base < top:
                low = HIGH * (1 - min(base, top) / top)
                high = HIGH * (1 - min(base + value, top) / top)
                if round(low) > round(high):
                    x, end_x = _short(start), _short(end)
                    paths[part].append(f"M{x} {low:.0f}H{end_x}V{high:.0f}H{x}Z")
            base += value
    return {part: "".join(path) for part, path in paths.items()}


def _title(words: str) -> str:
    return f"<title>{text(words)}</title>" if words else ""


def _caption(words: str) -> str:
    return f"<figcaption>{text(words)}</figcaption>" if words else ""


def _short(value: float) -> str:
    return f"{value:.7g}"


def _svg(
    content: str, across: tuple[float, float], height: float, group: str, label: str, kind: str = ""
) -> str:
    low, high = across
    group_attribute = f' data-group="{text(group)}"' if group else ""
    view_box = f"{_short(low)} 0 {_short(high - low)} {_short(height)}"
    return (
        f'<svg class="{kind}" role="img" aria-label="{text(label)}"'
        f' preserveAspectRatio="none"{group_attribute} viewBox="{view_box}">{content}</svg>'
    )


def _framed(
    content: str,
    across: tuple[float, float],
    scale: Sequence[str],
    group: str,
    label: str,
    unit: str,
) -> str:
    """A picture with its scale to the left and its axis below."""
    numbers = "".join(f"<span>{text(number)}</span>" for number in scale)
    picture = _svg(content, across, HIGH, group, label)
    axis = _ticks(*across, unit, group)
    return (
        f'<div class="row"><span class="scale">{numbers}</span>{picture}</div>'
        f'<div class="row axis"><span class="scale"></span>{axis}</div>'
    )


def _ticks(start: float, end: float, unit: str, group: str) -> str:
    """The labels of an axis, each below its place."""
    spans = []
    for place, label in ticks(start, end, unit):
        share = (place - start) / (end - start)
        shift = -50
        # At the ends of the axis a label lies within it.
        if share > 1 - _END:
            shift = -100
        elif share < _END:
            shift = 0
        spans.append(
            f'<span style="left:{share:.2%};transform:translateX({shift}%)">{text(label)}</span>'
        )
    ends = ""
    if group:
        ends = f' data-group="{text(group)}" data-from="{_short(start)}" data-to="{_short(end)}"'
    return f'<span class="ticks"{ends} data-unit="{text(unit)}">{"".join(spans)}</span>'


def ticks(start: float, end: float, unit: str = "") -> list[tuple[float, str]]:
    """Round places on an axis, some five at most, with their labels, which say exactly these
    places. ``page.js`` does the same for a part of an axis.

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
    return [
        (number * step / factor, f"{number * step:,.{decimals}f} {name}".rstrip())
        for number in numbers
    ]


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no less."""
    power = 10.0 ** math.floor(math.log10(least))
    for factor in (1, 2, 5):
        if factor * power >= least * (1 - _NEARLY):
            return factor * power
    return 10 * power
