"""Pictures along an axis, as SVG that stretches with the page: heat maps, lines, columns. Pure functions.

The texts stand beside the picture, in HTML, so that they keep their size when it stretches. Pictures of one ``group`` share an axis: the
page's script zooms them together.

No library of plots: uPlot 1.6 (51 kB in each page) draws on a canvas by a script: no picture where scripts are off; and it
has no heat maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from voirkit.report.figure import duration, figure
from voirkit.report.html.components import COLOURS, Html, colour, legend, text

TIME = "time"  # the group of pictures over the seconds since the run began
HIGH = 1000  # units of a picture's height
_TICKS = 5

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
        format_value: How a value is written.
        caption: What it shows.
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
    ticks = _ticks(start, start + n * width, seconds, TIME)
    axis_row = f'<div class="row axis"><span class="label"></span>{ticks}<span class="said"></span></div>'
    light, dark = text(format_value(least)), text(format_value(most))
    scale = "" if whole else f'<p class="legend">from {light} (light) to {dark} (dark) in each {text(seconds(width))}</p>'
    return Html(f'<figure class="bars heats">{_caption(caption)}{scale}{"".join(made)}{axis_row}</figure>')


def lines(
    series: Mapping[str, Points],
    format_value: Format = figure,
    axis: Format = figure,
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
        format_value: How a value is written.
        axis: How a place on the axis is written.
        caption: What it shows.
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
        + _framed(drawn, (start, end), [format_value(top), format_value(middle), format_value(bottom)], group, label, axis)
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
        caption: What it shows.
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
    frame = _framed(drawn, (start, end), [duration(top), duration(top / 2), "0"], group, f"{caption}{beyond}", seconds)
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


def _framed(content: str, across: tuple[float, float], scale: Sequence[str], group: str, label: str, axis: Format) -> str:
    """A picture with its scale to the left and its axis below."""
    beside = "".join(f"<span>{text(one)}</span>" for one in scale)
    return (
        f'<div class="row"><span class="scale">{beside}</span>{_svg(content, across, HIGH, group, label)}</div>'
        f'<div class="row axis"><span class="scale"></span>{_ticks(*across, axis, group)}</div>'
    )


def _ticks(start: float, end: float, format_value: Format, group: str) -> str:
    places = [start + (end - start) * at / (_TICKS - 1) for at in range(_TICKS)]
    named = f' data-group="{text(group)}"' if group else ""
    units = ' data-units="s"' if format_value is seconds else ""
    return f'<span class="ticks"{named}{units}>' + "".join(f"<span>{text(format_value(place))}</span>" for place in places) + "</span>"
