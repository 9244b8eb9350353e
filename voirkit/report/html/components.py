"""The components of an HTML report: text, tables and bars, and pictures along an axis (heat maps,
lines, columns).

They are pure functions that return HTML and escape all text. Widths are percentages of the
available width, so that a page fits a screen or a sheet of paper without a script.

There is no template engine: a component is a function of a few lines, and by the type ``Html`` mypy
distinguishes escaped text from other text. A table of 5,000 rows took 246 ms with jinja2 3.1 and
autoescape, 200 ms with ``table``, and the template was not shorter.
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

LONGEST = 400  # maximum number of characters of a text; the middle of a longer text is left out

# Names with a colour of their own: phases as in voirkit.phase_table, other names as in page.css.
_PHASE_COLOURS = {phase.name: phase.page_colours for phase in TABLE if phase.page_colours}
COLOURS = frozenset((*_PHASE_COLOURS, "fetch", "worker", "others"))
PALETTE = 14

# Characters that a browser does not show, or that change how it shows other characters: control
# characters, single surrogates, marks of the writing direction.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)


class Html(str):
    """A string of HTML, which is put into the page unchanged. All other strings are escaped."""

    __slots__ = ()


def text(value: object, longest: int = LONGEST) -> Html:
    """Return a value as escaped text of at most about ``longest`` characters. Characters that a
    browser would not show are replaced. ``Html`` is returned unchanged."""
    if isinstance(value, Html):
        return value
    words = str(value)
    if len(words) > longest:
        words = f"{words[: longest // 2]}…{words[-longest // 2 :]}"
    return Html(html.escape(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", words), quote=True))


def asset(name: str) -> str:
    """Return the text of a style sheet or script in this folder."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def page_style() -> str:
    """Return the style sheet of a page, with the colours of the phases."""
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
    """Join parts; None is left out, and all but ``Html`` is escaped."""
    return Html(between.join(text(part) for part in parts if part is not None))


def section(id: str, title: str, *parts: object, note: str = "") -> Html:
    """Return a section of the page, with a heading.

    Args:
        id: The id of the section, unique in the page; all ids inside the section begin with it.
        parts: HTML, or text that is escaped; None is left out.
        note: A sentence or two about what the section shows and how far it can be trusted.
    """
    below_title = f'<p class="note">{text(note, 2000)}</p>' if note else ""
    content = join(parts, "\n")
    return Html(f'<section id="{text(id)}"><h2>{text(title)}</h2>{below_title}{content}</section>')


def paragraph(*parts: object, kind: str = "") -> Html:
    """Return a paragraph; ``kind`` is ``note`` (small), ``warning``, or empty."""
    return Html(f'<p class="{kind}">{join(parts)}</p>' if kind else f"<p>{join(parts)}</p>")


def strong(value: object) -> Html:
    """Return a value as bold text."""
    return Html(f"<b>{text(value)}</b>")


def heading(title: str) -> Html:
    """Return a heading within a section."""
    return Html(f"<h3>{text(title)}</h3>")


def folded(title: str, *parts: object) -> Html:
    """Return parts that are hidden until the user clicks on the title; a printed page shows
    them."""
    return Html(f"<details><summary>{text(title)}</summary>{join(parts)}</details>")


def tiles(figures: Sequence[tuple[str, str]]) -> Html:
    """Return values, given as (name, text of the value), as tiles with the name below the value."""
    content = "".join(
        f'<div class="tile"><b>{text(value)}</b><span>{text(name)}</span></div>'
        for name, value in figures
    )
    return Html(f'<div class="tiles">{content}</div>' if content else "")


def colour(name: str, place: int = 0) -> str:
    """Return the CSS class of a colour: that of a name in ``COLOURS``, otherwise number ``place``
    of the palette."""
    return f"k-{name}" if name in COLOURS else f"k-{place % PALETTE}"


def table(
    heads: Sequence[object],
    rows: Sequence[Sequence[object]],
    left_columns: Sequence[int] = (0,),
    caption: str = "",
) -> Html:
    """Return a table.

    Args:
        heads: The heads of the columns. A column whose cells are all empty is left out, except the
            first.
        rows: The cells: text, which is escaped, or HTML.
        left_columns: The indices of left-aligned columns, which hold words. The others hold numbers
            and are right-aligned.
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
    """Return a bar chart with one row for each (label, value, text at the end of the bar).

    Args:
        colours: A CSS class (see ``colour``) for each row; if empty, all bars have the same colour.
    """
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
    """Return a stacked bar chart: one horizontal bar a row, with a legend above.

    Args:
        rows: (label, {part: value}, text at the end).
        whole: The value that fills the full width; by default the largest sum of a row. With 0 each
            row fills the width, so that shares are compared.
        order: The parts in the order of their colours; by default as they first appear.
        figures: A text for the legend, by part.
        colours: CSS classes by part, for pictures that share colours. Only these parts are drawn.
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
    """Return the parts that are positive in at least one row, those in ``order`` first."""
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
    """Return the parts of a bar as HTML. The value ``whole`` fills the width; with 0 the bar's own
    sum does."""
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
    """Return a chart of differences, one row for each (label, difference, text at the end). Bars
    start in the middle: positive ones go to the right, negative ones to the left."""
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
    """Return a legend: each name with its colour and a text.

    Args:
        colours: CSS classes, by name.
        figures: Texts shown after the names, by name.
    """
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


# Pictures along an axis, as SVG that stretches with the page
#
# Labels are HTML beside the picture, so that they keep their size when the picture is stretched.
# Pictures of one ``group`` share an axis: the page's script zooms them together.
#
# No plotting library is used. uPlot 1.6 (51 kB in each page) draws on a canvas by script, so there
# would be no picture where scripts are disabled, and it has no heat maps.


TIME = "time"  # the group of pictures over the seconds since the run began
HIGH = 1000  # height of a picture in units of its SVG coordinates
_TICKS = 5  # approximate maximum number of ticks on an axis
_END = 0.08  # fraction of an axis; this near to an end, half of a label would lie outside the axis
_NEARLY = 1e-9

Points = Sequence[tuple[float, float | None]]
Box = tuple[float, float, Mapping[str, float], str]
Format = Callable[[float], str]


def seconds(value: float) -> str:
    """Return a position on a time axis as text."""
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
    """Return a heat map over time: a row of cells for each label, with the sum or mean at its end.
    A cell's darkness is the logarithm of its value, on one scale for all rows.

    Args:
        rows: (label, values), with equally many values each.
        start: The start of the first cell, in seconds.
        width: The duration that a cell covers, in seconds.
        whole: If given, a cell's darkness is its value as a share of this instead.
        sums: Whether the sum is shown at the end of a row; otherwise the mean.
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
    """Return a function from a value to the opacity of its cell."""
    if whole:
        return lambda value: min(value / whole, 1.0)
    log_least = math.log(least)
    span = math.log(most) - log_least
    if not span:
        return lambda value: 1.0
    return lambda value: 0.15 + 0.85 * ((math.log(value) - log_least) / span)


def _heat_cell(x: float, width: float, opacity: float, value: str) -> str:
    title = text(f"{seconds(x)} .. {seconds(x + width)}: {value}")
    box = f'x="{_short(x)}" width="{_short(width * 1.02)}"'  # no gaps between neighbouring cells
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
    """Return curves over an axis. A value that is not finite, or None, interrupts the curve and is
    marked.

    Args:
        series: Points (x, y) by name, with ascending x.
        format_value: Turns a value of y into text.
        unit: The unit of the axis: ``s`` for seconds, otherwise empty.
        group: Pictures of one group are zoomed together; empty for no group.
        low: The lower end of the scale; with None it is the smallest value.
        kind: ``low`` (64 pixels high), ``small`` (54), or empty (150).
        across: The ends of the axis; by default those of the points.
        logarithmic: Whether to use a logarithmic scale, if all values are positive.
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
    """Return the points with None in place of values that are not finite."""
    return [(x, y if y is None or math.isfinite(y) else None) for x, y in points]


def _ends(places: Sequence[float]) -> tuple[float, float]:
    return min(places), max(places)


def _scale(bottom: float, top: float, logarithmic: bool) -> Callable[[float], float]:
    """Return a function from a value to its y coordinate in the picture, counted from the top."""
    if logarithmic:
        log_bottom = math.log(bottom)
        log_span = math.log(top) - log_bottom
        return lambda y: HIGH * (0.98 - 0.96 * (math.log(y) - log_bottom) / log_span)
    span = top / 4 - bottom / 4  # a quarter of the difference, since the full one may overflow
    return lambda y: HIGH * (0.98 - 0.96 * (y / 4 - bottom / 4) / span)


def _curve(points: Points, height: Callable[[float], float]) -> str:
    pieces: list[list[str]] = [[]]
    for x, y in points:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{_short(x)} {height(y):.0f}")
    # A single point is a line of length 0, of which only the round caps are visible.
    return "".join(
        f"M{'L'.join(piece)}{'h0' if len(piece) == 1 else ''}" for piece in pieces if piece
    )


def _broken(points: Points, width: float) -> str:
    """Return marks at the points whose value was not finite."""
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
    """Return stacked columns over time; a column is as wide as the time that it covers.

    If few columns are much higher than the others, the scale ends below them, and they are cut and
    marked.

    Args:
        boxes: The columns, ascending: (start, end, {part: value}, title).
        peaks: For each column, the largest of the values of which it is the mean; drawn as a line.
        bands: Shaded intervals of evaluation: (start, end, title).
        edges: Vertical lines: (position, title, name in the legend).
        group: Pictures of one group are zoomed together.
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
    # Each column gets an invisible box with its tooltip; a cut column also gets a mark at the top.
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
    """Return a rectangle over the full height of the picture."""
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
    """Return the upper end of a scale: the largest sum. If that is more than three times the 97th
    percentile, it is 1.5 times this percentile."""
    ordered = sorted(sums)
    most, usual = ordered[-1], ordered[int(0.97 * (len(ordered) - 1))]
    if usual and most > 3 * usual:
        return 1.5 * usual or 1.0
    return most or 1.0


def _piled(boxes: Sequence[Box], parts: Sequence[str], top: float) -> dict[str, str]:
    """Return the SVG path of each part: its boxes, stacked on those of the parts before it."""
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
    """Return a picture with its scale to the left and its axis below."""
    numbers = "".join(f"<span>{text(number)}</span>" for number in scale)
    picture = _svg(content, across, HIGH, group, label)
    axis = _ticks(*across, unit, group)
    return (
        f'<div class="row"><span class="scale">{numbers}</span>{picture}</div>'
        f'<div class="row axis"><span class="scale"></span>{axis}</div>'
    )


def _ticks(start: float, end: float, unit: str, group: str) -> str:
    """Return the labels of an axis, each below its position."""
    spans = []
    for place, label in ticks(start, end, unit):
        share = (place - start) / (end - start)
        shift = -50
        # Labels near the ends are shifted so that they stay within the axis.
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
    """Return about five round positions on an axis with their labels. A label states its position
    exactly. ``page.js`` does the same for a zoomed axis.

    Args:
        unit: ``s`` for seconds, empty for numbers. For numbers, if both ends are integers, so are
            the positions.
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
    """Return the smallest number of the form 1, 2 or 5 times a power of ten that is at least
    ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    for factor in (1, 2, 5):
        if factor * power >= least * (1 - _NEARLY):
            return factor * power
    return 10 * power
