"""A flame graph on the HTML page, to be looked into with a click and a search. It needs no network.

Without the page's script the whole of it is shown as a picture. A page has one: its script finds it by its ids.

d3-flame-graph 5 is not used: with d3, which it needs, it is 294 kB in each page (``flame.js`` is 5 kB), and it has neither phases and
processes to choose among, nor functions without their lines, nor a picture without a script.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from voirkit.report.html.components import Html, asset, colour, join, legend, paragraph, text
from voirkit.report.sections import FlameGraph, StackCount, StackFrame

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
        children: What it called.
    """

    __slots__ = ("children", "n", "name")

    def __init__(self, name: int) -> None:
        self.name, self.n = name, 0
        self.children: dict[int, Node] = {}

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


def bounded(trees: Sequence[Node], most: int = MOST) -> int:
    """Take the functions that were seen least out of trees, until there are few enough; the least that is left was on so many stacks."""
    nodes = list(trees)
    for node in nodes:  # grows as it goes
        nodes += node.children.values()
    seen = sorted((node.n for node in nodes[len(trees) :]), reverse=True)
    if len(seen) <= most:
        return 1
    least = seen[most - 1] + 1
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
