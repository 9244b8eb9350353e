"""Stacks in a report: a flame graph of each phase and process, to be looked into with a click and a search. It needs no network.

Without the page's script the whole of it is shown as a picture.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from voirkit.report.html import components
from voirkit.report.html.components import Html, colour, join, legend, section, table, text
from voirkit_instruments.stacks.show import said

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

MOST = 5000  # functions in the graph
DEEPEST = 200  # frames of a stack
_WIDE, _ROW, _LETTER, _LEAST = 1060.0, 18, 6.7, 1.5  # of the picture without a script: points
_KINDS = {"the program": "k-0", "torch": "k-1", "other packages": "k-4", "Python": "k-9"}
_TRAINS, _LOADS, _REST = "threads that train", "loader workers", "all other threads and processes"
_CHOICES = (_TRAINS, _LOADS, _REST)
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
        name: Number of what it is called.
        n: How many stacks it was on.
        kids: What it called.
    """

    __slots__ = ("kids", "n", "name")

    def __init__(self, name: int) -> None:
        self.name, self.n = name, 0
        self.kids: dict[int, Node] = {}


Name = tuple[str, str, str]  # of a function: what it is called, whose it is, and what it is called without its line
Names = dict[Name, int]


class Group(NamedTuple):
    """The stacks of a phase of a process; ``tree`` is its outermost node, which stands for the phase."""

    phase: str
    process: str
    tree: Node


def flame(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Of runs with --flame."""
    found = summary.get("flame")
    if not found or not found["phases"]:
        return None
    from voirkit_instruments.stacks.analyse import counts_of

    counts = counts_of(run)
    names: Names = {}
    groups = list(_groups(counts, names))
    if not groups:
        return None
    least = bounded(group.tree for group in groups)
    note = " ".join(f"{line[0].upper()}{line[1:]}." for line in said(found))
    note += f" Functions on less than {least} stacks are not drawn on their own." if least > 1 else ""
    heads = ("stacks in", "seen", "share", "lines of the program", "innermost functions")
    rows = [
        (phase, f"{row['samples']:,}", f"{row['share']:.1%}", *(_named(row.get(key) or {}) for key in ("lines", "functions")))
        for phase, row in found["phases"].items()
    ]
    return section(
        "flame",
        "Stacks",
        Html(f"<style>{_STYLE}</style>"),
        _choices(groups),
        legend(_KINDS),
        Html('<div id="flame-graph"></div>'),
        Html(f"<noscript>{_picture(groups, list(names))}</noscript>"),
        _data(groups, list(names), found["rate_hz"]),
        table(heads, rows, left=(0, 3, 4)),
        note=note,
    )


def _named(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{part:.0%}\u00a0{name}" for name, part in shares.items())


def _groups(counts: Sequence[Mapping[str, Any]], names: Names) -> Iterator[Group]:
    from voirkit_instruments.stacks.analyse_figures import process_of
    from voirkit_instruments.stacks.analyse_frames import Frame, label

    found: dict[tuple[str, str], Group] = {}
    for one in counts:
        frames = [Frame(*frame) for frame in one["frames"]]
        numbers = [names.setdefault((label(frame), kind_of(frame.file), label(frame, False)), len(names)) for frame in frames]
        for phase, process, thread, stack, n in one["rows"]:
            who = process_of(one, process, len(counts) > 1) + (f", thread {thread}" if thread else "")
            node = found.setdefault((phase, who), Group(phase, who, Node(-1))).tree
            node.n += n
            for frame in one["stacks"][stack][:DEEPEST]:
                name = numbers[frame]
                node = node.kids.setdefault(name, Node(name))
                node.n += n
    yield from sorted(found.values(), key=lambda group: -group.tree.n)


def kind_of(file: str) -> str:
    """Whose a function is, as a class of colours."""
    from voirkit_instruments.stacks.analyse_frames import is_program

    if is_program(file):
        return _KINDS["the program"]
    path = f"/{file}"
    if file.startswith("<"):
        return _KINDS["Python"]  # <frozen importlib._bootstrap>
    if "/torch/" in path or "/torchvision/" in path:
        return _KINDS["torch"]
    if "/site-packages/" in path or "/dist-packages/" in path or not path.endswith(".py"):
        return _KINDS["other packages"]
    return _KINDS["Python"] if "/lib/python3" in path else _KINDS["other packages"]


def bounded(trees: Iterator[Node], most: int = MOST) -> int:
    """Take the functions that were seen least out of trees, until there are few enough; the least that is left was on so many stacks."""
    left, seen = list(trees), []
    whole = list(left)
    while left:
        node = left.pop()
        left += node.kids.values()
        seen += [kid.n for kid in node.kids.values()]
    if len(seen) <= most:
        return 1
    least = sorted(seen, reverse=True)[most - 1] + 1
    while whole:
        node = whole.pop()
        node.kids = {name: kid for name, kid in node.kids.items() if kid.n >= least}
        whole += node.kids.values()
    return least


def _choice_of(process: str) -> str:
    last = process.rpartition("rank ")[2].partition(" ")[2] or process if process.startswith("rank ") else process
    if last == "main":
        return _TRAINS
    return _LOADS if last.startswith("worker ") and ", thread " not in last else _REST


def _choices(groups: Sequence[Group]) -> Html:
    there = [choice for choice in _CHOICES if any(_choice_of(group.process) == choice for group in groups)]
    processes = [*there, *dict.fromkeys(group.process for group in groups)]
    phases = dict.fromkeys(group.phase for group in groups)
    options = "".join(f"<option>{text(phase)}</option>" for phase in phases)
    whose = "".join(f"<option>{text(process)}</option>" for process in processes)
    return Html(
        '<div id="flame-choices" hidden><label>phase <select id="flame-phase"><option value="">all</option>'
        f'{options}</select></label><label>of <select id="flame-process">{whose}</select></label>'
        '<label>find <input id="flame-search" type="search" placeholder="function or file"></label>'
        '<label><input id="flame-lines" type="checkbox" checked> lines</label>'
        '<button id="flame-back" disabled>show all</button><span id="flame-told" class="note"></span></div>'
    )


def _data(groups: Sequence[Group], names: Sequence[Name], rate_hz: int) -> Html:
    choices: dict[str, list[str]] = {}
    for group in groups:
        for choice in dict.fromkeys((_choice_of(group.process), group.process)):
            choices.setdefault(choice, []).append(group.process)
    document = {
        "names": [name for name, _, _ in names],
        "kinds": [kind for _, kind, _ in names],
        "functions": {at: function for at, (name, _, function) in enumerate(names) if function != name},
        "period_s": 1 / rate_hz,
        "choices": choices,
        "groups": [
            {
                "phase": group.phase,
                "process": group.process,
                "kind": colour(group.phase, 9),
                "n": group.tree.n,
                "tree": [_nested(kid) for kid in group.tree.kids.values()],
            }
            for group in groups
        ],
    }
    # In a script no `<` may stand that could end it, or begin a comment.
    said = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    with open(os.path.join(os.path.dirname(os.path.abspath(components.__file__)), "flame.js"), encoding="utf-8") as file:
        script = file.read()
    return Html(f'<script type="application/json" id="flame-counts">{said}</script><script>{script}</script>')


def _nested(node: Node) -> list[Any]:
    return [node.name, node.n, [_nested(kid) for kid in node.kids.values()]]


def _picture(groups: Sequence[Group], names: Sequence[Name]) -> Html:
    """All phases of the threads that train, beside each other."""
    chosen = [group for group in groups if _choice_of(group.process) == _TRAINS] or list(groups)
    total = sum(group.tree.n for group in chosen)
    drawn: list[str] = []
    depth, x = 1, 0.0
    for group in chosen:
        left = [(group.tree, x, 0)]
        while left:
            node, at, y = left.pop()
            wide = _WIDE * node.n / total
            name, kind = names[node.name][:2] if node.name >= 0 else (group.phase, colour(group.phase, 9))
            drawn.append(_box(name, kind, at, y, wide))
            depth = max(depth, y + 1)
            for kid in sorted(node.kids.values(), key=lambda kid: -kid.n):
                if _WIDE * kid.n / total >= _LEAST:
                    left.append((kid, at, y + 1))
                at += _WIDE * kid.n / total
        x += _WIDE * group.tree.n / total
    size = f'viewBox="0 0 {_WIDE:.0f} {depth * _ROW}" width="100%"'
    return Html(f'<svg class="flame" {size} role="img" aria-label="flame graph">{join(map(Html, drawn))}</svg>')


def _box(name: str, kind: str, x: float, y: int, wide: float) -> str:
    letters = int((wide - 6) / _LETTER)
    label = ""
    if letters > 2:
        label = (
            f'<text x="{x + 4:.1f}" y="{(y + 1) * _ROW - 5.5}">{text(name if len(name) <= letters else name[: letters - 1] + "…")}</text>'
        )
    box = f'<rect x="{x:.1f}" y="{y * _ROW}" width="{max(wide - 0.6, 0.3):.1f}" height="{_ROW - 1}"/>'
    return f'<g class="{kind}"><title>{text(name)}</title>{box}{label}</g>'
