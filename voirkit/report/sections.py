"""What an instrument shows: sections of blocks, which each report draws in its own way.

``Instrument.sections`` names a function ``(part, summary) -> Iterable[Section]``; ``part`` is the
instrument's own key of the summary. The terminal, the HTML page, Markdown and ``voirkit compare``
draw every block; an instrument draws nothing itself. ``docs/architecture.md`` says which block
serves what.

A section that has nothing to draw in a report is left out of it. Text is written as it is: each
report escapes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from voirkit.instrument import Instrument, resolve
from voirkit.report import duration, figure, size

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


_LEVELS = "▁▂▃▄▅▆▇█"


class Text(NamedTuple):
    """A sentence or a few, on a line of its own: ``Text("33 calls of 10 functions · 10 a step",
    "calls")``.

    Attributes:
        text: What it reports.
        label: What stands before it, dim or in the colour of its mood: ``calls  33 calls ...``.
        strong: Whether it is what the section reports first. With a label the label is bold.
        mood: ``good``, ``bad``, ``warning``, or ``note`` for what is small or dim.
        link: An address to which it leads.
        one_line: Whether a terminal cuts it at the end of the line, for long lists of names.
    """

    text: str
    label: str = ""
    strong: bool = False
    mood: str = ""
    link: str = ""
    one_line: bool = False


class Figure(NamedTuple):
    """A number with its unit (``s``, ``share``, ``bytes``, ``items/s`` ...): ``Figure("time of a
    batch", 0.02, "s", "lower")``.

    ``better`` is ``higher``, ``lower``, or nothing where neither is: ``voirkit compare`` colours
    the ratio by it. ``note`` says more of it, and is not compared.
    """

    name: str
    value: float
    unit: str = ""
    better: str = ""
    note: str = ""


class Figures(NamedTuple):
    """Numbers that stand for the whole section. ``voirkit compare`` has a row for each figure that
    both runs have, in all its reports."""

    figures: Sequence[Figure]


class Facts(NamedTuple):
    """Short facts, a line of them for each label: ``Facts([("memory", [("peak", "2.3 GB"), ("{}
    read", "1 MB")])])``.

    A fact is (name, value), written ``peak 2.3 GB``, or as the name says by ``{}``: ``1 MB read``.
    They are not compared.
    """

    lines: Sequence[tuple[str, Sequence[tuple[str, str]]]]


class Finding(NamedTuple):
    """What was found, why, and what to do about it: ``Finding("zero-grad", "step 3: gradients add
    up.", "Call zero_grad().")``.

    Attributes:
        name: What it is called, in the colour of its mood.
        because: By what it was found.
        next: What to do about it.
        then: What else to do.
        mood: ``bad``, ``warning``, or ``good`` where nothing is wrong.
    """

    name: str
    because: str
    next: str = ""
    then: Sequence[str] = ()
    mood: str = "bad"

    def following(self) -> list[tuple[str, str]]:
        """What to do, each with the word before it: ``next``, then ``then``."""
        actions = [("next", self.next)]
        actions += [("then", words) for words in self.then]
        return [action for action in actions if action[1]]


class Amounts(NamedTuple):
    """A number for each name: ``Amounts("time of its own", {"F.relu": 0.2, "nn.Linear": 1.5},
    "s")``.

    Reports of one run leave it out; the page of two runs draws the largest differences, and has a
    table of all.
    """

    title: str
    values: Mapping[str, float]
    unit: str = ""


class Column(NamedTuple):
    """The head of a column of a table: ``Column("function", left=True, cut=True)``,
    ``Column("mean", narrowest=66)``.

    Attributes:
        head: What stands above it.
        left: Whether it holds words; numbers stand to the right.
        narrowest: The width of the narrowest terminal that shows it. A page and Markdown show every
            column.
        cut: Whether a terminal cuts its cells where there is no room: after an item, if they are
            lists with commas.
    """

    head: str
    left: bool = False
    narrowest: int = 0
    cut: bool = False


class Cell(NamedTuple):
    """A cell of a table that is more than text: ``Cell("collate", "dim", indent=1)``.

    Attributes:
        text: What it holds.
        style: ``strong``, ``dim``, ``good``, ``bad`` or ``warning``.
        indent: By how much it belongs to the row above.
    """

    text: str
    style: str = ""
    indent: int = 0


class Lines(NamedTuple):
    """A cell of several texts: below each other on a page, with commas elsewhere."""

    lines: Sequence[str]


class Bar(NamedTuple):
    """A cell with a bar: ``Bar(0.4, "wait")`` fills two fifths of the column, in the colour of that
    phase.

    ``title`` is what a pointer over it shows.
    """

    share: float
    colour: str = ""
    title: str = ""


AnyCell: TypeAlias = "str | Cell | Lines | Bar"


class Table(NamedTuple):
    """Rows of cells: ``Table(("phase", Column("share", narrowest=40)), [("wait", "40%")])``.

    Columns in which no row has anything are left out, but for the first.

    Attributes:
        heads: Of the columns; a text is ``Column(text)``, to the left if its place is in ``left``.
        rows: Cells as they are shown: a table is not compared (``Figures``, ``Amounts``).
        left: Places of columns of words.
        most: How many rows a terminal and Markdown show; a page shows all.
        total: How many rows there are, where the section itself has not all.
        caption: What it shows.
    """

    heads: Sequence[str | Column]
    rows: Sequence[Sequence[AnyCell]]
    left: Sequence[int] = (0,)
    most: int = 12
    total: int = 0
    caption: str = ""


class Bars(NamedTuple):
    """A bar a row: ``Bars([("decode", 0.8, "800 ms"), ("crop", 0.2, "200 ms")], "time of a
    sample")``.

    Attributes:
        rows: (label, value, what stands at its end).
        caption: What it shows.
        colours: Of each row, the name of its colour: a phase, or any word, which then has the same
            colour in the whole section.
    """

    rows: Sequence[tuple[str, float, str]]
    caption: str = ""
    colours: Sequence[str] = ()


class Stacked(NamedTuple):
    """A bar a row, of parts one behind the other: ``Stacked([("rank 0", {"wait": 0.1, "forward":
    0.3}, "400 ms")], "s")``.

    Attributes:
        rows: (label, {part: value}, what stands at its end).
        unit: Of the values.
        caption: What it shows.
        order: The parts from left to right; as they first appear if left out.
        whole: What fills a row; the largest sum if left out. With 0 each row fills its own, so that
            shares are compared.
        legend: What the legend adds to the name of a part.
        high: Whether it is what a reader should see first.
    """

    rows: Sequence[tuple[str, Mapping[str, float], str]]
    unit: str = ""
    caption: str = ""
    order: Sequence[str] = ()
    whole: float | None = None
    legend: Mapping[str, str] | None = None
    high: bool = False

    def parts(self) -> list[str]:
        """The parts that have a value in any row, from left to right."""
        parts = dict.fromkeys(
            [*self.order, *(part for _, values, _ in self.rows for part in values)]
        )
        return [part for part in parts if any(values.get(part) for _, values, _ in self.rows)]


Point: TypeAlias = tuple[float, "float | None"]


class Series(NamedTuple):
    """Curves: ``Series({"loss": [(0, 2.3), (10, 1.9)]}, "loss", axis="step")``. A value that was
    not finite is None, and is marked.

    Attributes:
        curves: (x, y) points by name, ascending.
        caption: What it shows.
        unit: Of y.
        axis: What x counts, in words. ``s`` is seconds since the run began, ``s since ...`` are
            others; on a page curves of one axis are zoomed together.
        from_zero: Whether the scale begins at zero; otherwise at the least value.
        low: Whether it is drawn low, since it only adds to what stands above.
        logarithmic: Whether it is drawn by the logarithm, where no value is zero or less.
        across: The ends of the axis; those of the points if left out.
    """

    curves: Mapping[str, Sequence[Point]]
    caption: str = ""
    unit: str = ""
    axis: str = ""
    from_zero: bool = False
    low: bool = False
    logarithmic: bool = False
    across: tuple[float, float] | None = None


class Timeline(NamedTuple):
    """How much of something there was at each time, a row for each name: ``Timeline([("worker 0",
    [0.2, 0.9])], 0.0, 1.5, "share")``.

    Attributes:
        rows: (label, values), all equally many.
        begin_s: Where the first value begins, in seconds since the run began.
        bin_s: How long the time of a value is.
        unit: Of the values.
        caption: What it shows.
        whole: What the darkest colour stands for; otherwise the largest value, by the logarithm.
        mean: Whether the mean stands at the end of a row; otherwise the sum.
    """

    rows: Sequence[tuple[str, Sequence[float]]]
    begin_s: float
    bin_s: float
    unit: str = ""
    caption: str = ""
    whole: float | None = None
    mean: bool = False


class StackFrame(NamedTuple):
    """A function on a stack: its name with the line, without it, and whose it is, which is its
    colour (``torch``)."""

    name: str
    function: str
    owner: str


class StackCount(NamedTuple):
    """How often a stack was seen: in which phase, of which process or thread, and of which kind
    that is (``loader workers``)."""

    phase: str
    process: str
    role: str
    frames: Sequence[StackFrame]
    n: int


class FlameGraph(NamedTuple):
    """Stacks as a flame graph that a page can look into: ``FlameGraph(counts, 0.01, ["the program",
    "torch"], ["threads that train"])``.

    A page alone draws it. It is the largest of all blocks: give it in ``OnPage`` by a function.

    Attributes:
        counts: The stacks, with their outermost function first.
        period_s: What time a stack stands for.
        owners: The owners of functions, in the order of the legend.
        roles: The kinds of processes, that which is shown first in front.
    """

    counts: Iterable[StackCount]
    period_s: float
    owners: Sequence[str]
    roles: Sequence[str]


class Group(NamedTuple):
    """Blocks below a heading of their own: ``Group("Over time", [Timeline(...)], note="...")``."""

    title: str
    blocks: Sequence[Block]
    note: str = ""


class Grid(NamedTuple):
    """Blocks beside each other on a page, drawn small; below each other elsewhere. ``wide``: two in
    a row, for bars with labels."""

    blocks: Sequence[Block]
    wide: bool = False


class Details(NamedTuple):
    """Blocks that a page and Markdown fold away and a terminal leaves out: ``Details("all 40
    operators", [Table(...)])``."""

    title: str
    blocks: Sequence[Block]


class OnPage(NamedTuple):
    """Blocks that a page alone shows.

    ``blocks`` may be a function ``(run) -> Iterable[Block]`` for what must be read of the run's
    records: ``OnPage(lambda run: [Timeline(...)])``. It is called when a page is drawn.
    """

    blocks: Sequence[Block] | Callable[[Run], Iterable[Block]]


class InText(NamedTuple):
    """Blocks that a terminal and Markdown show, where a page has pictures of the same."""

    blocks: Sequence[Block]


Block: TypeAlias = (
    "Text | Figures | Facts | Finding | Amounts | Table | Bars | Stacked | Series | Timeline |"
    " FlameGraph | Group | Grid | Details | OnPage | InText"
)


class Section(NamedTuple):
    """A part of every report.

    Attributes:
        key: Unlike that of all other sections; letters, digits and dashes.
        title: Its heading; without one it is not set apart.
        blocks: From top to bottom.
        note: What it shows, and what of it can be trusted.
        least: How many of its lines stay where a terminal's table is cut.
        fixed: Whether a terminal cuts none of them, however little room there is: for what is
            wrong, in few lines.
        measured_by: What its figures depend on (a tool). The page of two runs notes where it is not
            the same.
    """

    key: str
    title: str
    blocks: Sequence[Block]
    note: str = ""
    least: int = 6
    fixed: bool = False
    measured_by: str = ""


def sections_of(instrument: Instrument, summary: Mapping[str, Any]) -> Iterator[Section]:
    """The sections of an instrument for a summary; none where it has recorded nothing."""
    part = next((summary[key] for key in instrument.parts if summary.get(key)), None)
    if part is not None and instrument.sections:
        yield from resolve(instrument.sections)(part, summary)


_STORED = {
    block.__name__: block
    for block in (
        Text,
        Figure,
        Figures,
        Facts,
        Finding,
        Amounts,
        Column,
        Cell,
        Lines,
        Bar,
        Table,
        Bars,
        Stacked,
        Series,
        Timeline,
        Group,
        Grid,
        Details,
        OnPage,
        InText,
    )
}


def stored_sections(summary: Mapping[str, Any]) -> Iterator[Section]:
    """The sections that instruments of voirfiles have put into a summary (``ov.section``); one that
    is damaged says so."""
    counts: dict[str, int] = {}
    for stored in summary.get("sections") or ():
        title = str(stored["title"])
        counts[title] = counts.get(title, 0) + 1
        try:
            blocks = [
                Text(block) if isinstance(block, str) else _from_json(block)
                for block in stored["blocks"]
            ]
        except (KeyError, TypeError, ValueError) as exc:
            blocks = [Text(f"it cannot be shown ({type(exc).__name__}: {exc}).", mood="warning")]
        # Two runs are compared by keys.
        key = f"own-{re.sub('[^A-Za-z0-9]+', '-', title)}-{counts[title]}"
        yield Section(key, title, blocks, str(stored["note"]))


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "block" not in value:
        return {key: _from_json(item) for key, item in value.items()}
    if value["block"] == "dict":
        return {str(key): _from_json(item) for key, item in value["items"]}
    fields = {key: _from_json(field) for key, field in value.items() if key != "block"}
    if "indent" in fields:
        fields["indent"] = min(max(int(fields["indent"]), 0), 20)
    if value["block"] == "Figure":
        fields["value"] = math.nan if fields["value"] is None else float(fields["value"])
    return _STORED[value["block"]](**fields)


def begin_ns(run: Run, otherwise: int) -> int:
    """The start of a run, on the clock of its spans: zero of an axis of seconds."""
    clocks = run.manifest.get("clocks")
    start_ns = clocks.get("perf_counter_ns") if isinstance(clocks, dict) else None
    return start_ns if isinstance(start_ns, int) else otherwise


def blocks_within(blocks: Iterable[Block]) -> Iterator[Block]:
    """Blocks and those inside them, without what must be read of the run."""
    for block in blocks:
        yield block
        if isinstance(block, (Group, Grid, Details, OnPage, InText)) and not callable(block.blocks):
            yield from blocks_within(block.blocks)


def figures_of(sections: Iterable[Section]) -> Iterator[tuple[str, Figure]]:
    """(name with its section's title, figure) of all figures."""
    for section in sections:
        for block in blocks_within(section.blocks):
            if isinstance(block, Figures):
                for row in block.figures:
                    yield f"{section.title}: {row.name}", row


def columns_of(table: Table) -> list[tuple[int, Column]]:
    """The columns of a table that are not empty, with their places."""
    columns = []
    for place, head in enumerate(table.heads):
        column = head if isinstance(head, Column) else Column(head, place in table.left)
        if place == 0 or any(not _is_empty(row[place]) for row in table.rows):
            columns.append((place, column))
    return columns


def _is_empty(cell: AnyCell) -> bool:
    return not isinstance(cell, Bar) and not cell_text(cell)


def is_link(address: str) -> bool:
    """Whether this is an address that a page may lead to: of the web, nothing that a browser would
    execute, and no spaces or brackets."""
    return re.fullmatch(r"https?://[\w.~/?#&=%:@,;+!$*'-]+", address) is not None


def cell_text(cell: AnyCell) -> str:
    """A cell as text; nothing for a bar."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Lines):
        return ", ".join(cell.lines)
    if isinstance(cell, Bar) or cell is None:
        return ""
    return str(cell.text if isinstance(cell, Cell) else cell)


def fact_text(name: str, value: str) -> str:
    """A fact in words: see ``Facts``."""
    return name.replace("{}", value) if "{}" in name else f"{name} {value}"


def sparkline(values: Sequence[float | None], most: int = 0) -> str:
    """A curve of a line's height, from the smallest to the largest; ``!`` where a value is not
    finite. At most so many characters."""
    if most and len(values) > most:
        values = [values[i * len(values) // most] for i in range(most)]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    step = (high - low) / (len(_LEVELS) - 1) or 1.0
    curve = ""
    for value in values:
        if value is None or not math.isfinite(value):
            curve += "!"
        else:
            curve += _LEVELS[round((value - low) / step)]
    return curve


def written(value: float | None, unit: str) -> str:
    """A figure with its unit, as people read it."""
    if value is None:
        return "unknown"
    if unit == "s":
        return duration(value)
    if unit == "share":
        return f"{value:.1%}"
    if unit in ("bytes", "bytes/s"):
        return size(value) + unit.removeprefix("bytes")
    return f"{figure(value)} {unit}".rstrip()


def signed(value: float, unit: str) -> str:
    """A difference with its sign."""
    return f"{'+' if value > 0 else '-'}{written(abs(value), unit)}" if value else "0"
