"""Report sections as HTML, for the page of a run and the page of a comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, singledispatchmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from voirkit.report import sections
from voirkit.report.html import components as marks
from voirkit.report.html.components import (
    PALETTE,
    TIME,
    Html,
    asset,
    colour,
    heat_map,
    join,
    legend,
    lines,
    paragraph,
    text,
)
from voirkit.report.sections import FlameGraph, StackCount, StackFrame, written

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_LONGEST = 4000  # maximum number of characters of a text
_DIFFERENCES = 16  # maximum number of bars in a chart of differences
_ROWS = 60  # maximum number of rows in a table of differences
_CLASSES = {
    "strong": "strong",
    "dim": "note",
    "note": "note",
    "good": "good",
    "bad": "bad",
    "warning": "warn",
}


def section_html(section: sections.Section, run: Run | None = None) -> Html | None:
    """Return a section as HTML, with all text escaped; None if it is empty.

    Args:
        run: The opened run, for blocks that read its records; without it these are left out.
    """
    parts = list(_Drawing(run).parts(section.blocks))
    if not parts:
        return None
    return (
        marks.section(section.key, section.title, *parts, note=section.note)
        if section.title
        else join(parts, "\n")
    )


class _Drawing:
    """Draws the blocks of a section; a name has the same colour in all of them."""

    def __init__(self, run: Run | None) -> None:
        self.run = run
        self._is_small = False
        self._colours: dict[str, str] = {}

    def parts(self, blocks: Iterable[sections.Block]) -> Iterator[Html]:
        for block in blocks:
            yield from (part for part in self._draw(block) if part)

    @singledispatchmethod
    def _draw(self, block: sections.Block) -> Iterator[Html]:
        """Yield the HTML of a block; the caller drops empty strings."""
        assert isinstance(block, (sections.Amounts, sections.InText))  # shown in other reports only
        return iter(())

    @_draw.register
    def _(self, block: sections.Text) -> Iterator[Html]:
        yield _text(block)

    @_draw.register
    def _(self, block: sections.Figures) -> Iterator[Html]:
        tiles = []
        for figure in block.figures:
            name = f"{figure.name}, {figure.note}" if figure.note else figure.name
            tiles.append((name, written(figure.value, figure.unit)))
        yield marks.tiles(tiles)

    @_draw.register
    def _(self, block: sections.Facts) -> Iterator[Html]:
        tiles = []
        for label, facts in block.lines:
            for name, value in facts:
                words = name.replace(" {}", "").replace("{} ", "")
                tiles.append((f"{label}: {words}" if label else words, value))
        yield marks.tiles(tiles)

    @_draw.register
    def _(self, block: sections.Finding) -> Iterator[Html]:
        yield _finding(block)

    @_draw.register
    def _(self, block: sections.Table) -> Iterator[Html]:
        if block.rows:
            yield _table(block)

    @_draw.register
    def _(self, block: sections.Bars) -> Iterator[Html]:
        classes = self._classes(block.colours)
        if classes:
            yield marks.legend(classes)
        if block.rows:
            colours = [classes[name] for name in block.colours]
            yield marks.bars(block.rows, colours, block.caption)

    @_draw.register
    def _(self, block: sections.Stacked) -> Iterator[Html]:
        if not block.rows:
            return
        parts = block.parts()
        bars = marks.stacked(
            block.rows,
            partial(written, unit=block.unit),
            block.whole,
            block.caption,
            parts,
            block.legend,
            self._classes(parts),
        )
        yield Html(f'<div class="big">{bars}</div>') if block.high else bars

    @_draw.register
    def _(self, block: sections.Series) -> Iterator[Html]:
        curves = {name: points for name, points in block.curves.items() if len(points) > 1}
        if not curves:
            return
        unit = "s" if block.axis.partition(" ")[0] == "s" else ""
        caption = block.caption
        if block.axis and not unit:
            caption = f"{caption}, over {block.axis}"
        size = "low" if block.low else ""
        yield lines(
            curves,
            partial(written, unit=block.unit),
            unit,
            caption,
            TIME if block.axis == "s" else block.axis,
            0.0 if block.from_zero else None,
            "small" if self._is_small else size,
            block.across,
            block.logarithmic,
        )

    @_draw.register
    def _(self, block: sections.Timeline) -> Iterator[Html]:
        yield heat_map(
            block.rows,
            block.begin_s,
            block.bin_s,
            partial(written, unit=block.unit),
            caption=block.caption,
            whole=block.whole,
            sums=not block.mean,
        )

    @_draw.register
    def _(self, block: sections.FlameGraph) -> Iterator[Html]:
        yield flame_graph(block)

    @_draw.register
    def _(self, block: sections.Group) -> Iterator[Html]:
        parts = list(self.parts(block.blocks))
        if parts:
            note = marks.paragraph(block.note, kind="note") if block.note else None
            yield join([marks.heading(block.title), note, *parts])

    @_draw.register
    def _(self, block: sections.Grid) -> Iterator[Html]:
        is_small_outside = self._is_small
        self._is_small = True
        parts = list(self.parts(block.blocks))
        self._is_small = is_small_outside
        if parts:
            kind = "small two" if block.wide else "small"
            yield Html(f'<div class="{kind}">{join(parts)}</div>')

    @_draw.register
    def _(self, block: sections.Details) -> Iterator[Html]:
        parts = list(self.parts(block.blocks))
        if parts:
            yield marks.folded(block.title, *parts)

    @_draw.register
    def _(self, block: sections.OnPage) -> Iterator[Html]:
        if not callable(block.blocks):
            yield from self.parts(block.blocks)
        elif self.run is not None:
            yield from self.parts(block.blocks(self.run))

    def _classes(self, names: Sequence[str]) -> dict[str, str]:
        """Return the CSS class of each name. A name keeps its class; a new name gets an unused one,
        or, if all are used, one that none of ``names`` has."""
        distinct_names = dict.fromkeys(names)
        for name in distinct_names:
            if name not in self._colours:
                self._colours[name] = self._new_class(name, names)
        return {name: self._colours[name] for name in distinct_names}

    def _new_class(self, name: str, names: Sequence[str]) -> str:
        """Return a CSS class for a new name, if possible one that none of ``names`` has."""
        default = colour(name, -1)
        if name in marks.COLOURS:
            return default
        beside_it = {self._colours.get(other) for other in names}
        palette = [colour("", place) for place in range(PALETTE)]
        free = [kind for kind in palette if kind not in beside_it] or [default]
        used_anywhere = set(self._colours.values())
        return next((kind for kind in free if kind not in used_anywhere), free[0])


def _text(block: sections.Text) -> Html:
    text = marks.text(block.text, _LONGEST)
    if sections.is_link(block.link):
        address = marks.text(block.link)
        text = Html(f'<a href="{address}">{text or address}</a>')
    if block.mood == "warning":
        label = marks.strong(f"{block.label} ") if block.label else None
        return marks.paragraph(label, text, kind="warning")
    if block.label:
        kind = _CLASSES[block.mood or ("strong" if block.strong else "dim")]
        label = Html(f'<span class="{kind}">{marks.text(block.label)}</span> ')
        return marks.paragraph(label, text)
    if block.strong:
        kind = _CLASSES.get(block.mood, "")
        return marks.paragraph(Html(f'<span class="strong {kind}">{text}</span>'))
    return marks.paragraph(text, kind={"note": "note", "bad": "warning"}.get(block.mood, ""))


def _finding(block: sections.Finding) -> Html:
    following = [
        marks.paragraph(marks.strong(f"{name} "), marks.text(words, _LONGEST))
        for name, words in block.following()
    ]
    kind = {"bad": "verdict", "good": "verdict calm", "warning": "alert"}[block.mood]
    name = f'<span class="kind">{marks.text(block.name)}</span>'
    because = marks.paragraph(marks.text(block.because, _LONGEST))
    return Html(f'<div class="{kind}">{name}{because}{join(following)}</div>')


def _table(block: sections.Table) -> Html:
    columns = sections.columns_of(block)
    heads = [column.head for _, column in columns]
    left_columns = [number for number, (_, column) in enumerate(columns) if column.left]
    rows = [[_cell(row[place]) for place, _ in columns] for row in block.rows]
    parts = [marks.table(heads, rows, left_columns, block.caption)]
    more = block.total - len(block.rows)
    if more > 0:
        words = f"{more:,} more rows: voirkit report --json"
        parts.append(marks.paragraph(words, kind="note"))
    return join(parts)


def _cell(cell: sections.AnyCell) -> Html:
    if isinstance(cell, sections.Bar):
        kind = colour(cell.colour) if cell.colour else "k-0"
        share = min(max(cell.share, 0.0), 1.0)
        filled = f'<i class="{kind}" style="width:{share:.2%}"></i>'
        title = f' title="{marks.text(cell.title)}"' if cell.title else ""
        return Html(f'<span class="track"{title}>{filled}</span>')
    if isinstance(cell, sections.Lines):
        return Html("<br>".join(marks.text(line) for line in cell.lines))
    if isinstance(cell, sections.Cell):
        kind = _CLASSES.get(cell.style, "")
        indent = f' style="padding-left:{int(cell.indent)}em"' if cell.indent else ""
        return Html(f'<span class="{kind}"{indent}>{marks.text(cell.text)}</span>')
    return marks.text(cell)


def compared_sections(
    first: Sequence[sections.Section], second: Sequence[sections.Section]
) -> Iterator[Html]:
    """Yield those sections of two runs that have ``Amounts``, for the page of a comparison. Each
    shows what is more or less in the second run."""
    first_by_key = {section.key: section for section in first}
    second_by_key = {section.key: section for section in second}
    for key in dict.fromkeys([*first_by_key, *second_by_key]):
        pair = first_by_key.get(key), second_by_key.get(key)
        section = pair[0] or pair[1]
        amounts, other_amounts = (_amounts(side) for side in pair)
        if section is None or not (amounts or other_amounts):
            continue
        if amounts and other_amounts:
            parts: list[Html] = []
            for title, of_first in amounts.items():
                if title in other_amounts:
                    parts += _differences(of_first, other_amounts[title])
            yield marks.section(key, section.title, *parts, note=_comparison_note(*pair))
        else:
            side = "first" if amounts else "second"
            only = marks.paragraph(f"Recorded in the {side} alone.", kind="note")
            yield marks.section(key, section.title, only)


def _comparison_note(first: sections.Section | None, second: sections.Section | None) -> str:
    note = "+ is what the second has more."
    if first and second and first.measured_by != second.measured_by:
        note += (
            f" They were measured by {first.measured_by} and by {second.measured_by}: the figures"
            " cannot be compared as they are."
        )
    return note


def _amounts(section: sections.Section | None) -> dict[str, sections.Amounts]:
    """Return a dict from title to each ``Amounts`` of a section."""
    blocks = sections.blocks_within(section.blocks if section else ())
    return {block.title: block for block in blocks if isinstance(block, sections.Amounts)}


def _differences(first: sections.Amounts, second: sections.Amounts) -> Iterator[Html]:
    differing = []
    for name in dict.fromkeys([*first.values, *second.values]):
        value, other_value = first.values.get(name, 0.0), second.values.get(name, 0.0)
        if value != other_value:
            differing.append((name, value, other_value, other_value - value))
    if not differing:
        return
    differing.sort(key=lambda row: -abs(row[-1]))
    unit = first.unit
    bars = [
        (name, difference, sections.signed(difference, unit))
        for name, _, _, difference in differing[:_DIFFERENCES]
    ]
    yield marks.differences(bars, f"{first.title}: the largest differences")
    cells = [
        (name, written(value, unit), written(other, unit), sections.signed(difference, unit))
        for name, value, other, difference in differing[:_ROWS]
    ]
    title = f"{first.title} as a table"
    if len(differing) > _ROWS:
        title += f" (the first {_ROWS} of {len(differing)})"
    yield marks.folded(title, marks.table(("", "first", "second", "second - first"), cells))


# An interactive flame graph (click to zoom, search). Without the page's script the whole graph is
# shown as a picture. A page can have only one, since the script finds it by its ids.
#
# d3-flame-graph 5 is not used. With d3, which it needs, it adds 294 kB to each page (``flame.js``
# has 5 kB). It has no choice of phases and processes, cannot merge the lines of a function, and
# shows nothing without a script.

MOST = 5000  # maximum number of functions in the graph
DEEPEST = 200  # maximum number of frames of a stack
# The picture without a script, in points: its width, the height of a row, the width of a letter,
# and the minimum width of a box.
_WIDE, _ROW, _LETTER, _LEAST = 1060.0, 18, 6.7, 1.5
# palette numbers of the colours for owners of functions; they differ from the colours of phases
_COLOURS = (0, 1, 4, 9)
_STYLE = """
#flame-graph { overflow: hidden; min-height: 60px; } #flame-graph svg, .flame { display: block; }
#flame-graph g { cursor: pointer; } #flame-graph rect, .flame rect { fill: var(--c); fill-opacity: .38; }
#flame-graph g:hover rect { fill-opacity: .7; } #flame-graph .faint { opacity: .55; }
#flame-graph .hit rect { fill: var(--bad); fill-opacity: .75; }
#flame-graph text, .flame text { font: 11px ui-monospace, Menlo, Consolas, monospace; fill: var(--ink); pointer-events: none; }
#flame-choices { display: flex; flex-wrap: wrap; gap: 6px 12px; align-items: center; font-size: 13.5px; margin: 8px 0; }
#flame-choices[hidden] { display: none; } #flame-choices select, #flame-choices input { font: inherit; max-width: 16em; }
"""


class Node:
    """A node of a flame graph: a function, called by its parent node.

    Attributes:
        name: The number of its frame; -1 for the root, which stands for a phase.
        n: The number of stacks that contain it.
        children: The functions that it called, by the number of their frame.
    """

    __slots__ = ("children", "n", "name")

    def __init__(self, name: int) -> None:
        self.name = name
        self.n = 0
        self.children: dict[int, Node] = {}

    def nested(self) -> list[Any]:
        """Return the node and all nodes below it as nested lists of name, n and children, as
        ``flame.js`` reads them."""
        return [self.name, self.n, [child.nested() for child in self.children.values()]]


class _Tree(NamedTuple):
    """The stacks of one process in one phase, merged into a tree; its root ``top`` stands for the
    phase."""

    phase: str
    process: str
    role: str
    top: Node


def flame_graph(block: FlameGraph) -> Html:
    """Return a flame graph with its controls; empty without stacks."""
    numbers: dict[StackFrame, int] = {}
    trees = _trees(block.counts, numbers)
    if not trees:
        return Html("")
    least = bounded([tree.top for tree in trees])
    classes = {
        owner: colour("", _COLOURS[place % len(_COLOURS)])
        for place, owner in enumerate(block.owners)
    }
    frames = list(numbers)
    tree_roles = {tree.role for tree in trees}
    roles = [role for role in block.roles if role in tree_roles]
    cut_note = None
    if least > 1:
        words = f"Functions on less than {least} stacks are not drawn on their own."
        cut_note = paragraph(words, kind="note")
    parts = [
        Html(f"<style>{_STYLE}</style>"),
        _choices(trees, roles),
        legend(classes),
        Html('<div id="flame-graph"></div>'),
        Html(f"<noscript>{_picture(trees, frames, classes, roles)}</noscript>"),
        _data(trees, frames, classes, block.period_s),
        cut_note,
    ]
    return join(parts, "\n")


def _trees(counts: Iterable[StackCount], numbers: dict[StackFrame, int]) -> list[_Tree]:
    """Return the trees of all phases and processes, the largest first. Frames that are not in
    ``numbers`` are added to it."""
    trees: dict[tuple[str, str], _Tree] = {}
    for count in counts:
        new_tree = _Tree(count.phase, count.process, count.role, Node(-1))
        node = trees.setdefault((count.phase, count.process), new_tree).top
        node.n += count.n
        for frame in count.frames[:DEEPEST]:
            number = numbers.setdefault(frame, len(numbers))
            node = node.children.setdefault(number, Node(number))
            node.n += count.n
    return sorted(trees.values(), key=lambda tree: -tree.top.n)


def bounded(trees: Sequence[Node]) -> int:
    """Remove the functions with the fewest stacks from the trees, so that at most ``MOST`` remain.
    Returns the smallest number of stacks that a remaining function may have."""
    nodes = list(trees)
    for node in nodes:  # the list grows during the loop
        nodes += node.children.values()
    functions = nodes[len(trees) :]
    if len(functions) <= MOST:
        return 1
    counts = sorted((node.n for node in functions), reverse=True)
    least = counts[MOST - 1] + 1
    for node in nodes:
        node.children = {name: child for name, child in node.children.items() if child.n >= least}
    return least


def _choices(trees: Sequence[_Tree], roles: Sequence[str]) -> Html:
    phases = _options(tree.phase for tree in trees)
    processes = _options([*roles, *(tree.process for tree in trees)])
    return Html(
        '<div id="flame-choices" hidden><label>phase <select id="flame-phase"><option'
        f' value="">all</option>{phases}</select></label><label>of <select'
        f' id="flame-process">{processes}</select></label><label>find <input id="flame-search"'
        ' type="search" placeholder="function or file"></label><label><input id="flame-lines"'
        ' type="checkbox" checked> lines</label><button id="flame-back" disabled>show'
        ' all</button><span id="flame-told" class="note"></span></div>'
    )


def _options(names: Iterable[str]) -> str:
    return "".join(f"<option>{text(name)}</option>" for name in dict.fromkeys(names))


def _data(
    trees: Sequence[_Tree],
    frames: Sequence[StackFrame],
    classes: Mapping[str, str],
    period_s: float,
) -> Html:
    choices: dict[str, list[str]] = {}
    for tree in trees:
        for choice in dict.fromkeys((tree.role, tree.process)):
            choices.setdefault(choice, []).append(tree.process)
    functions = {
        number: frame.function
        for number, frame in enumerate(frames)
        if frame.function != frame.name
    }
    document = {
        "names": [frame.name for frame in frames],
        "kinds": [classes.get(frame.owner, "k-9") for frame in frames],
        "functions": functions,
        "period_s": period_s,
        "choices": choices,
        "groups": [_group(tree) for tree in trees],
    }
    # A `<` in the text could end the script element or begin a comment.
    json_text = json.dumps(document, separators=(",", ":"))
    json_text = json_text.replace("<", "\\u003c").replace("\u2028", "\\u2028")
    counts = f'<script type="application/json" id="flame-counts">{json_text}</script>'
    return Html(f"{counts}<script>{asset('flame.js')}</script>")


def _group(tree: _Tree) -> dict[str, Any]:
    """Return a tree in the form that ``flame.js`` reads."""
    return {
        "phase": tree.phase,
        "process": tree.process,
        "kind": colour(tree.phase, 9),
        "n": tree.top.n,
        "tree": [child.nested() for child in tree.top.children.values()],
    }


def _picture(
    trees: Sequence[_Tree],
    frames: Sequence[StackFrame],
    classes: Mapping[str, str],
    roles: Sequence[str],
) -> Html:
    """Return the picture for pages without a script: all phases of the processes with the first
    role, side by side."""
    first_trees = [tree for tree in trees if roles and tree.role == roles[0]] or list(trees)
    total = sum(tree.top.n for tree in first_trees)
    boxes: list[Html] = []
    depth = 1
    tree_x = 0.0
    for tree in first_trees:
        pending = [(tree.top, tree_x, 0)]
        while pending:
            node, x, y = pending.pop()
            if node.name >= 0:
                frame = frames[node.name]
                name, kind = frame.name, classes.get(frame.owner, "k-9")
            else:
                name, kind = tree.phase, colour(tree.phase, 9)
            boxes.append(_box(name, kind, x, y, _WIDE * node.n / total))
            depth = max(depth, y + 1)
            for child in sorted(node.children.values(), key=lambda child: -child.n):
                width = _WIDE * child.n / total
                if width >= _LEAST:
                    pending.append((child, x, y + 1))
                x += width
        tree_x += _WIDE * tree.top.n / total
    size = f'viewBox="0 0 {_WIDE:.0f} {depth * _ROW}" width="100%"'
    return Html(
        f'<svg class="flame" {size} role="img" aria-label="flame graph">{join(boxes)}</svg>'
    )


def _box(name: str, kind: str, x: float, y: int, width: float) -> Html:
    letters = int((width - 6) / _LETTER)
    label = ""
    if letters > 2:
        short_name = name if len(name) <= letters else name[: letters - 1] + "…"
        label = f'<text x="{x + 4:.1f}" y="{(y + 1) * _ROW - 5.5}">{text(short_name)}</text>'
    box = (
        f'<rect x="{x:.1f}" y="{y * _ROW}" width="{max(width - 0.6, 0.3):.1f}"'
        f' height="{_ROW - 1}"/>'
    )
    return Html(f'<g class="{kind}"><title>{text(name)}</title>{box}{label}</g>')
