"""Pictures along an axis, as SVG that stretches with the page: heat maps, lines, columns. Pure functions.

The texts stand beside the picture, in HTML, so that they keep their size when it stretches. Pictures of one ``group`` share an axis: the
page's script zooms them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from voirkit.report.html_marks import Html, text

ACROSS = 1000  # units of a picture's width


def heat_map(
    rows: Sequence[tuple[object, Sequence[float]]],
    begin: float,
    width: float,
    shown: Callable[[float], str],
    axis: Callable[[float], str],
    caption: str,
    group: str = "time",
) -> Html:
    """See ``html_marks.heat``."""
    n = max((len(values) for _, values in rows), default=0)
    most = max((value for _, values in rows for value in values), default=0)
    if not n or most <= 0:
        return Html("")
    least = min(value for _, values in rows for value in values if value > 0)
    span = math.log(most / least) or 1.0
    end = begin + n * width
    made = []
    for label, values in rows:
        cells = []
        for at, value in enumerate(values):
            if value > 0:
                dark = 0.12 + 0.88 * (math.log(value / least) / span if most > least else 1.0)
                x = (begin + at * width, width)
                title = f"{axis(x[0])} .. {axis(x[0] + width)}: {shown(value)}"
                cells.append(
                    f'<rect x="{_short(x[0])}" width="{_short(width)}" height="1" opacity="{dark:.2f}"><title>{text(title)}</title></rect>'
                )
        total = sum(values)
        made.append(
            f'<div class="row"><span class="label">{text(label)}</span>'
            + _svg("".join(cells), (begin, end), 1, group, f"{label}: {shown(total)} in all", "heat k-heat")
            + f'<span class="said">{text(shown(total))}</span></div>'
        )
    said = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    scale = f'<p class="legend">light to dark: {text(shown(least))} to {text(shown(most))} in {text(axis(width))}, by the logarithm</p>'
    return Html(f'<figure class="bars heats">{said}{scale}{"".join(made)}{_axis(begin, end, axis, group)}</figure>')


def _short(value: float) -> str:
    return f"{value:.6g}"


def _svg(content: str, across: tuple[float, float], height: float, group: str, label: str, kind: str) -> str:
    low, high = across
    return (
        f'<svg class="{kind}" role="img" aria-label="{text(label)}" preserveAspectRatio="none" data-group="{text(group)}" '
        f'viewBox="{_short(low)} 0 {_short(high - low)} {_short(height)}">{content}</svg>'
    )


def _axis(begin: float, end: float, shown: Callable[[float], str], group: str) -> str:
    return (
        f'<div class="row axis"><span class="label"></span><span class="ticks" data-group="{text(group)}">'
        f"<span>{text(shown(begin))}</span><span>{text(shown((begin + end) / 2))}</span><span>{text(shown(end))}</span></span>"
        '<span class="said"></span></div>'
    )
