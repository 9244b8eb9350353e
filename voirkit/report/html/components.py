"""The marks of an HTML report: text, tables, bars, stacked bars, heat maps. Pure functions that give HTML; whatever comes in is escaped.

Widths are shares of the room there is, so that a page needs no script to fit a screen or a sheet. Times over an axis: ``plots``.

No template engine: a mark is a function of a few lines, and ``Html`` lets mypy tell what is escaped from what is not. A table of 5,000 rows
took 246 ms by jinja2 3.1 with autoescape, 200 ms by ``table``, and the template was not shorter.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from voirkit.report.figure import figure

LONGEST = 400  # characters of a text; of a longer one the middle is left out

# Those that have a colour of their own, the same as in the terminal; page.css says which.
COLOURS = frozenset(
    (
        "wait",
        "transfer",
        "forward",
        "backward",
        "optimizer",
        "other",
        "fetch",
        "worker",
        "zero_grad",
        "checkpoint",
        "communication",
        "loss",
        "others",
    )
)
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


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts, one after the other."""
    return Html(between.join(text(part) for part in parts if part is not None))


def section(id: str, title: str, *parts: object, note: str = "") -> Html:
    """A part of the page: what ``PARTS`` functions give.

    Args:
        id: Of the section; unlike all others, and the beginning of all ids within.
        title: Its heading.
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
        caption: What it shows.
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
        format_value: How a value is written.
        whole: What fills a row; if left out, the largest sum. With 0 each row fills its own, so that shares are compared.
        caption: What it shows.
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
