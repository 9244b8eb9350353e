"""Sections on the HTML page, and on the page of two runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from voirkit.report import sections
from voirkit.report.html import components as marks
from voirkit.report.html.components import PALETTE, TIME, Html, asset, colour, heat_map, join, legend, lines, paragraph, text
from voirkit.report.sections import FlameGraph, StackCount, StackFrame, written

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_LONGEST = 4000  # characters of a text
_DRAWN = 16  # differences in a picture
_ROWS = 60  # of their table
_CLASSES = {"strong": "strong", "dim": "note", "note": "note", "good": "good", "bad": "bad", "warning": "warn"}


def section_html(section: sections.Section, run: Run | None = None) -> Html | None:
    """A section as HTML; all text is escaped. None if there is nothing in it.

    Args:
        run: The opened run, for what must be read of its records; without it that is left out.
    """
    parts = list(_Drawing(run).parts(section.blocks))
    if not parts:
        return None
    return marks.section(section.key, section.title, *parts, note=section.note) if section.title else join(parts, "\n")


class _Drawing:
    """The blocks of a section: a name has one colour in all of them."""

    def __init__(self, run: Run | None) -> None:
        self.run, self._is_small = run, False
        self._colours: dict[str, str] = {}

    def parts(self, blocks: Iterable[sections.Block]) -> Iterator[Html]:
        for block in blocks:
            yield from (part for part in self._block(block) if part)

    def _block(self, block: sections.Block) -> Iterator[Html]:
        if isinstance(block, sections.Text):
            yield _text(block)
        elif isinstance(block, sections.Figures):
            tiles = [(f"{one.name}{', ' if one.note else ''}{one.note}", written(one.value, one.unit)) for one in block.figures]
            yield marks.tiles(tiles)
        elif isinstance(block, sections.Facts):
            named = ((f"{label}: " if label else "", name, value) for label, facts in block.lines for name, value in facts)
            yield marks.tiles([(label + name.replace(" {}", "").replace("{} ", ""), value) for label, name, value in named])
        elif isinstance(block, sections.Finding):
            yield _finding(block)
        elif isinstance(block, sections.Table):
            if block.rows:
                yield _table(block)
        elif isinstance(block, sections.Bars):
            classes = self._classes(block.colours)
            yield marks.legend(classes) if classes else Html("")
            yield marks.bars(block.rows, [classes[name] for name in block.colours], block.caption) if block.rows else Html("")
        elif isinstance(block, sections.Stacked):
            yield self._stacked(block)
        elif isinstance(block, sections.Series):
            yield self._series(block)
        elif isinstance(block, sections.Timeline):
            shown = partial(written, unit=block.unit)
            yield heat_map(block.rows, block.begin_s, block.bin_s, shown, caption=block.caption, whole=block.whole, sums=not block.mean)
        elif isinstance(block, sections.FlameGraph):
            yield flame_graph(block)
        elif isinstance(block, sections.Group):
            parts = list(self.parts(block.blocks))
            if parts:
                yield join([marks.heading(block.title), marks.paragraph(block.note, kind="note") if block.note else None, *parts])
        elif isinstance(block, sections.Grid):
            outer, self._is_small = self._is_small, True
            parts = list(self.parts(block.blocks))
            self._is_small = outer
            yield Html(f'<div class="small{" two" if block.wide else ""}">{join(parts)}</div>') if parts else Html("")
        elif isinstance(block, sections.Details):
            parts = list(self.parts(block.blocks))
            yield marks.folded(block.title, *parts) if parts else Html("")
        elif isinstance(block, sections.OnPage):
            if not callable(block.blocks):
                yield from self.parts(block.blocks)
            elif self.run is not None:
                yield from self.parts(block.blocks(self.run))
        else:
            assert isinstance(block, (sections.Amounts, sections.InText))  # other reports show them

    def _stacked(self, block: sections.Stacked) -> Html:
        if not block.rows:
            return Html("")
        shown, parts = partial(written, unit=block.unit), block.parts()
        drawn = marks.stacked(block.rows, shown, block.whole, block.caption, parts, block.legend, self._classes(parts))
        return Html(f'<div class="big">{drawn}</div>') if block.high else drawn

    def _series(self, block: sections.Series) -> Html:
        curves = {name: points for name, points in block.curves.items() if len(points) > 1}
        if not curves:
            return Html("")
        unit = "s" if block.axis.partition(" ")[0] == "s" else ""
        caption = f"{block.caption}, over {block.axis}" if block.axis and not unit else block.caption
        return lines(
            curves, partial(written, unit=block.unit), unit, caption, TIME if block.axis == "s" else block.axis,
            0.0 if block.from_zero else None, "small" if self._is_small else "low" if block.low else "", block.across, block.logarithmic,
        )  # fmt: skip

    def _classes(self, names: Sequence[str]) -> dict[str, str]:
        """The classes of names: those they have; for a new one a class that none has, or, if all are taken, none of these names."""
        for name in dict.fromkeys(names):
            if name not in self._colours:
                own = colour(name, -1)
                beside = {self._colours.get(other) for other in names}
                free = [one for one in map(partial(colour, ""), range(PALETTE)) if one not in beside] or [own]
                taken = set(self._colours.values())
                is_own = name in marks.COLOURS
                self._colours[name] = own if is_own else next((one for one in free if one not in taken), free[0])
        return {name: self._colours[name] for name in dict.fromkeys(names)}


def _text(block: sections.Text) -> Html:
    text = marks.text(block.text, _LONGEST)
    if sections.is_link(block.link):
        text = Html(f'<a href="{marks.text(block.link)}">{text or marks.text(block.link)}</a>')
    if block.mood == "warning":
        return marks.paragraph(marks.strong(f"{block.label} ") if block.label else None, text, kind="warning")
    if block.label:
        kind = _CLASSES[block.mood or ("strong" if block.strong else "dim")]
        return marks.paragraph(Html(f'<span class="{kind}">{marks.text(block.label)}</span> '), text)
    if block.strong:
        return marks.paragraph(Html(f'<span class="strong {_CLASSES.get(block.mood, "")}">{text}</span>'))
    return marks.paragraph(text, kind="note" if block.mood == "note" else "warning" if block.mood in ("bad", "warning") else "")


def _finding(block: sections.Finding) -> Html:
    lines = [marks.paragraph(marks.strong(f"{name} "), marks.text(words, _LONGEST)) for name, words in block.following()]
    kind = {"bad": "verdict", "good": "verdict calm", "warning": "alert"}[block.mood]
    because = marks.paragraph(marks.text(block.because, _LONGEST))
    return Html(f'<div class="{kind}"><span class="kind">{marks.text(block.name)}</span>{because}{join(lines)}</div>')


def _table(block: sections.Table) -> Html:
    columns = sections.columns_of(block)
    left = [place for place, (_, one) in enumerate(columns) if one.left]
    rows = [[_cell(row[at]) for at, _ in columns] for row in block.rows]
    drawn = marks.table([one.head for _, one in columns], rows, left, block.caption)
    more = block.total - len(block.rows)
    return join([drawn, marks.paragraph(f"{more:,} more rows: voirkit report --json", kind="note") if more > 0 else None])


def _cell(cell: sections.AnyCell) -> Html:
    if isinstance(cell, sections.Bar):
        kind = colour(cell.colour) if cell.colour else "k-0"
        filled = f'<i class="{kind}" style="width:{min(max(cell.share, 0.0), 1.0):.2%}"></i>'
        title = f' title="{marks.text(cell.title)}"' if cell.title else ""
        return Html(f'<span class="track"{title}>{filled}</span>')
    if isinstance(cell, sections.Lines):
        return Html("<br>".join(marks.text(line) for line in cell.lines))
    if isinstance(cell, sections.Cell):
        indent = f' style="padding-left:{int(cell.indent)}em"' if cell.indent else ""
        return Html(f'<span class="{_CLASSES.get(cell.style, "")}"{indent}>{marks.text(cell.text)}</span>')
    return marks.text(cell)


def compared_sections(first: Sequence[sections.Section], second: Sequence[sections.Section]) -> Iterator[Html]:
    """The sections of the page of two runs: what is more or less in the second, of those sections that have ``Amounts``."""
    ones, others = ({section.key: section for section in sections} for sections in (first, second))
    for key in dict.fromkeys([*ones, *others]):
        one, other = ones.get(key), others.get(key)
        section = one or other
        amounts = [{block.title: block for block in _amounts(side)} for side in (one, other)]
        if section is None or not any(amounts):
            continue
        if not all(amounts):
            only = marks.paragraph(f"Recorded in the {'first' if amounts[0] else 'second'} alone.", kind="note")
            yield marks.section(key, section.title, only)
            continue
        parts = [part for title in amounts[0] if title in amounts[1] for part in _differences(amounts[0][title], amounts[1][title])]
        note = "+ is what the second has more."
        if one and other and one.measured_by != other.measured_by:
            note += f" They were measured by {one.measured_by} and by {other.measured_by}: the figures cannot be compared as they are."
        yield marks.section(key, section.title, *parts, note=note)


def _amounts(section: sections.Section | None) -> Iterator[sections.Amounts]:
    yield from (block for block in sections.blocks_within(section.blocks if section else ()) if isinstance(block, sections.Amounts))


def _differences(one: sections.Amounts, other: sections.Amounts) -> Iterator[Html]:
    shown = partial(written, unit=one.unit)
    pairs = [(name, one.values.get(name, 0.0), other.values.get(name, 0.0)) for name in dict.fromkeys([*one.values, *other.values])]
    pairs = [pair for pair in pairs if pair[1] != pair[2]]
    if not pairs:
        return
    pairs.sort(key=lambda row: -abs(row[2] - row[1]))
    drawn = [(name, second - first, sections.signed(second - first, one.unit)) for name, first, second in pairs[:_DRAWN]]
    yield marks.differences(drawn, f"{one.title}: the largest differences")
    cells = [(name, shown(first), shown(second), sections.signed(second - first, one.unit)) for name, first, second in pairs[:_ROWS]]
    title = f"{one.title} as a table" + (f" (the first {_ROWS} of {len(pairs)})" if len(pairs) > _ROWS else "")
    yield marks.folded(title, marks.table(("", "first", "second", "second - first"), cells))


# A flame graph, to be looked into with a click and a search. Without the page's script the whole of it is shown as a picture. A page has
# one: its script finds it by its ids.
#
# d3-flame-graph 5 is not used: with d3, which it needs, it is 294 kB in each page (``flame.js`` is 5 kB), and it has neither phases and
# processes to choose among, nor functions without their lines, nor a picture without a script.

MOST = 5000  # functions in the graph
DEEPEST = 200  # frames of a stack
_WIDE, _ROW, _LETTER, _LEAST = 1060.0, 18, 6.7, 1.5  # of the picture without a script: points
_COLOURS = (0, 1, 4, 9)  # of owners, told apart from those of phases
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
    """A function, called from what is above it.

    Attributes:
        name: The number of its frame; -1 for a phase.
        n: How many stacks it was on.
    """

    __slots__ = ("children", "n", "name")

    def __init__(self, name: int) -> None:
        self.name, self.n = name, 0
        self.children: dict[int, Node] = {}  # what it called

    def nested(self) -> list[Any]:
        """As ``flame.js`` reads it."""
        return [self.name, self.n, [child.nested() for child in self.children.values()]]


class _Tree(NamedTuple):
    """The stacks of a phase of a process; ``top`` stands for the phase."""

    phase: str
    process: str
    role: str
    top: Node


def flame_graph(block: FlameGraph) -> Html:
    """The graph with what can be chosen in it; nothing without stacks."""
    numbers: dict[StackFrame, int] = {}
    trees = _trees(block.counts, numbers)
    if not trees:
        return Html("")
    least = bounded([tree.top for tree in trees])
    classes = {owner: colour("", _COLOURS[at % len(_COLOURS)]) for at, owner in enumerate(block.owners)}
    frames, roles = list(numbers), [role for role in block.roles if any(tree.role == role for tree in trees)]
    cut = paragraph(f"Functions on less than {least} stacks are not drawn on their own.", kind="note") if least > 1 else None
    drawn = [
        Html(f"<style>{_STYLE}</style>"), _choices(trees, roles), legend(classes), Html('<div id="flame-graph"></div>'),
        Html(f"<noscript>{_picture(trees, frames, classes, roles)}</noscript>"), _data(trees, frames, classes, block.period_s), cut,
    ]  # fmt: skip
    return join(drawn, "\n")


def _trees(counts: Iterator[StackCount] | Any, numbers: dict[StackFrame, int]) -> list[_Tree]:
    found: dict[tuple[str, str], _Tree] = {}
    for one in counts:
        node = found.setdefault((one.phase, one.process), _Tree(one.phase, one.process, one.role, Node(-1))).top
        node.n += one.n
        for frame in one.frames[:DEEPEST]:
            number = numbers.setdefault(frame, len(numbers))
            node = node.children.setdefault(number, Node(number))
            node.n += one.n
    return sorted(found.values(), key=lambda tree: -tree.top.n)


def bounded(trees: Sequence[Node]) -> int:
    """Take the functions that were seen least out of trees, until there are few enough; the least that is left was on so many stacks."""
    nodes = list(trees)
    for node in nodes:  # grows as it goes
        nodes += node.children.values()
    seen = sorted((node.n for node in nodes[len(trees) :]), reverse=True)
    if len(seen) <= MOST:
        return 1
    least = seen[MOST - 1] + 1
    for node in nodes:
        node.children = {name: child for name, child in node.children.items() if child.n >= least}
    return least


def _choices(trees: Sequence[_Tree], roles: Sequence[str]) -> Html:
    phases, processes = (
        "".join(f"<option>{text(name)}</option>" for name in dict.fromkeys(names))
        for names in ((tree.phase for tree in trees), [*roles, *(tree.process for tree in trees)])
    )
    return Html(
        '<div id="flame-choices" hidden><label>phase <select id="flame-phase"><option value="">all</option>'
        f'{phases}</select></label><label>of <select id="flame-process">{processes}</select></label>'
        '<label>find <input id="flame-search" type="search" placeholder="function or file"></label>'
        '<label><input id="flame-lines" type="checkbox" checked> lines</label>'
        '<button id="flame-back" disabled>show all</button><span id="flame-told" class="note"></span></div>'
    )


def _data(trees: Sequence[_Tree], frames: Sequence[StackFrame], classes: Mapping[str, str], period_s: float) -> Html:
    choices: dict[str, list[str]] = {}
    for tree in trees:
        for choice in dict.fromkeys((tree.role, tree.process)):
            choices.setdefault(choice, []).append(tree.process)
    document = {
        "names": [frame.name for frame in frames],
        "kinds": [classes.get(frame.owner, "k-9") for frame in frames],
        "functions": {at: frame.function for at, frame in enumerate(frames) if frame.function != frame.name},
        "period_s": period_s,
        "choices": choices,
        "groups": [
            {
                "phase": tree.phase, "process": tree.process, "kind": colour(tree.phase, 9), "n": tree.top.n,
                "tree": [child.nested() for child in tree.top.children.values()],
            }
            for tree in trees
        ],
    }  # fmt: skip
    # In a script no `<` may stand that could end it, or begin a comment.
    written = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    return Html(f'<script type="application/json" id="flame-counts">{written}</script><script>{asset("flame.js")}</script>')


def _picture(trees: Sequence[_Tree], frames: Sequence[StackFrame], classes: Mapping[str, str], roles: Sequence[str]) -> Html:
    """All phases of the processes that are shown first, beside each other."""
    chosen = [tree for tree in trees if roles and tree.role == roles[0]] or list(trees)
    total = sum(tree.top.n for tree in chosen)
    drawn: list[Html] = []
    depth, x = 1, 0.0
    for tree in chosen:
        left = [(tree.top, x, 0)]
        while left:
            node, at, y = left.pop()
            frame = frames[node.name] if node.name >= 0 else None
            name, kind = (frame.name, classes.get(frame.owner, "k-9")) if frame else (tree.phase, colour(tree.phase, 9))
            drawn.append(_box(name, kind, at, y, _WIDE * node.n / total))
            depth = max(depth, y + 1)
            for child in sorted(node.children.values(), key=lambda child: -child.n):
                if _WIDE * child.n / total >= _LEAST:
                    left.append((child, at, y + 1))
                at += _WIDE * child.n / total
        x += _WIDE * tree.top.n / total
    size = f'viewBox="0 0 {_WIDE:.0f} {depth * _ROW}" width="100%"'
    return Html(f'<svg class="flame" {size} role="img" aria-label="flame graph">{join(drawn)}</svg>')


def _box(name: str, kind: str, x: float, y: int, width: float) -> Html:
    letters = int((width - 6) / _LETTER)
    label = ""
    if letters > 2:
        shown = name if len(name) <= letters else name[: letters - 1] + "…"
        label = f'<text x="{x + 4:.1f}" y="{(y + 1) * _ROW - 5.5}">{text(shown)}</text>'
    box = f'<rect x="{x:.1f}" y="{y * _ROW}" width="{max(width - 0.6, 0.3):.1f}" height="{_ROW - 1}"/>'
    return Html(f'<g class="{kind}"><title>{text(name)}</title>{box}{label}</g>')
