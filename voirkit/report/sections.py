"""Report sections of instruments: blocks of content, which each report draws in its own way.

``Instrument.sections`` names a function ``(part, summary) -> Iterable[Section]``, in which ``part``
is the value of the instrument's own key in the summary. The terminal, the HTML page, Markdown and
``voirkit compare`` draw the blocks; an instrument draws nothing itself. ``docs/architecture.md``
says which block is for which purpose.

A report leaves out sections that have nothing to draw in it. Blocks contain plain text, which each
report escapes.
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
    """A paragraph of one or a few sentences: ``Text("33 calls of 10 functions · 10 a step",
    "calls")``.

    Attributes:
        text: The sentences.
        label: A word before the text, dim or in the colour of the mood: ``calls  33 calls ...``.
        strong: Whether the text is bold, as the main statement of the section. If there is a label,
            the label is bold instead.
        mood: ``good``, ``bad``, ``warning``, or ``note`` for small or dim text.
        link: A web address that the text links to.
        one_line: Whether a terminal truncates the text to one line, for long lists of names.
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

    ``better`` is ``higher``, ``lower``, or empty if neither is better; ``voirkit compare`` colours
    the ratio by it. ``note`` is an additional remark, which is not compared.
    """

    name: str
    value: float
    unit: str = ""
    better: str = ""
    note: str = ""


class Figures(NamedTuple):
    """The main numbers of a section. All reports of ``voirkit compare`` have a row for each figure
    that both runs have."""

    figures: Sequence[Figure]


class Facts(NamedTuple):
    """Lines of short facts, each line with a label: ``Facts([("memory", [("peak", "2.3 GB"), ("{}
    read", "1 MB")])])``.

    A fact is (name, value), shown as ``peak 2.3 GB``. If the name contains ``{}``, the value
    replaces it: ``1 MB read``. Facts are not compared.
    """

    lines: Sequence[tuple[str, Sequence[tuple[str, str]]]]


class Finding(NamedTuple):
    """A finding, the evidence for it, and what to do about it: ``Finding("zero-grad", "step 3:
    gradients add up.", "Call zero_grad().")``.

    Attributes:
        name: The name of the finding, drawn in the colour of the mood.
        because: The evidence.
        next: The action to take.
        then: Further actions.
        mood: ``bad``, ``warning``, or ``good`` if nothing is wrong.
    """

    name: str
    because: str
    next: str = ""
    then: Sequence[str] = ()
    mood: str = "bad"

    def following(self) -> list[tuple[str, str]]:
        """Return the actions to take, each with the word in front of it: ``next``, then
        ``then``."""
        actions = [("next", self.next)]
        actions += [("then", words) for words in self.then]
        return [action for action in actions if action[1]]


class Amounts(NamedTuple):
    """A number for each name, to be compared between runs: ``Amounts("time of its own", {"F.relu":
    0.2, "nn.Linear": 1.5}, "s")``.

    Reports of one run leave it out. The page of a comparison draws the largest differences and has
    a table of all.
    """

    title: str
    values: Mapping[str, float]
    unit: str = ""


class Column(NamedTuple):
    """The description of a table's column: ``Column("function", left=True, cut=True)``,
    ``Column("mean", narrowest=66)``.

    Attributes:
        head: The heading.
        left: Whether the column holds words and is left-aligned. Numbers are right-aligned.
        narrowest: The width of the narrowest terminal that shows the column. An HTML page and
            Markdown show all columns.
        cut: Whether a terminal may truncate the cells. Lists with commas are cut after an item.
    """

    head: str
    left: bool = False
    narrowest: int = 0
    cut: bool = False


class Cell(NamedTuple):
    """A table cell with style or indentation: ``Cell("collate", "dim", indent=1)``.

    Attributes:
        text: The content.
        style: ``strong``, ``dim``, ``good``, ``bad`` or ``warning``; empty for plain text.
        indent: The level of indentation, for a row that is part of the row above.
    """

    text: str
    style: str = ""
    indent: int = 0


class Lines(NamedTuple):
    """A table cell with several strings: on separate lines on an HTML page, separated by commas
    elsewhere."""

    lines: Sequence[str]


class Bar(NamedTuple):
    """A table cell with a bar: ``Bar(0.4, "wait")`` fills two fifths of the column, in the colour
    of the phase ``wait``.

    ``title`` is the tooltip.
    """

    share: float
    colour: str = ""
    title: str = ""


AnyCell: TypeAlias = "str | Cell | Lines | Bar"


class Table(NamedTuple):
    """Rows of cells: ``Table(("phase", Column("share", narrowest=40)), [("wait", "40%")])``.

    Columns in which all cells are empty are left out, except the first.

    Attributes:
        heads: The columns; a string stands for a ``Column`` with this heading.
        rows: The cells, as they are shown. Tables are not compared; ``Figures`` and ``Amounts``
            are.
        left: The indices of columns of words, for those whose head is a string.
        most: The maximum number of rows in a terminal and in Markdown. An HTML page shows all.
        total: The number of all rows, if ``rows`` has only some of them.
        caption: The caption.
    """

    heads: Sequence[str | Column]
    rows: Sequence[Sequence[AnyCell]]
    left: Sequence[int] = (0,)
    most: int = 12
    total: int = 0
    caption: str = ""


class Bars(NamedTuple):
    """A bar chart with one bar a row: ``Bars([("decode", 0.8, "800 ms"), ("crop", 0.2, "200 ms")],
    "time of a sample")``.

    Attributes:
        rows: (label, value, text at the end of the bar).
        caption: The caption.
        colours: The name of the colour of each row: a phase, or any other word, which has the same
            colour in the whole section.
    """

    rows: Sequence[tuple[str, float, str]]
    caption: str = ""
    colours: Sequence[str] = ()


class Stacked(NamedTuple):
    """A stacked bar chart with one bar a row: ``Stacked([("rank 0", {"wait": 0.1, "forward": 0.3},
    "400 ms")], "s")``.

    Attributes:
        rows: (label, {part: value}, text at the end of the bar).
        unit: The unit of the values.
        caption: The caption.
        order: The parts from left to right; by default as they first appear.
        whole: The value that fills the full width; by default the largest sum of a row. With 0 each
            row fills the width, so that shares are compared.
        legend: A text after the part's name in the legend, by part.
        high: Whether the bars are drawn large, since a reader should see them first.
    """

    rows: Sequence[tuple[str, Mapping[str, float], str]]
    unit: str = ""
    caption: str = ""
    order: Sequence[str] = ()
    whole: float | None = None
    legend: Mapping[str, str] | None = None
    high: bool = False

    def parts(self) -> list[str]:
        """Return the parts that have a value other than 0 in some row, from left to right."""
        parts = dict.fromkeys(
            [*self.order, *(part for _, values, _ in self.rows for part in values)]
        )
        return [part for part in parts if any(values.get(part) for _, values, _ in self.rows)]


Point: TypeAlias = tuple[float, "float | None"]


class Series(NamedTuple):
    """Curves: ``Series({"loss": [(0, 2.3), (10, 1.9)]}, "loss", axis="step")``. A value that was
    not finite is given as None, and is marked.

    Attributes:
        curves: Points (x, y) by name, with ascending x.
        caption: The caption.
        unit: The unit of y.
        axis: The meaning of x. ``s`` means seconds since the run began; seconds since another time
            are ``s since ...``. On an HTML page, curves with the same axis are zoomed together.
        from_zero: Whether the scale begins at zero; otherwise at the smallest value.
        low: Whether the picture has a small height, since it only supplements the block above.
        logarithmic: Whether the scale is logarithmic, if all values are positive.
        across: The ends of the axis; by default those of the points.
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
    """A heat map over time, with a row for each label: ``Timeline([("worker 0", [0.2, 0.9])], 0.0,
    1.5, "share")``.

    Attributes:
        rows: (label, values), with equally many values each.
        begin_s: The start of the first value, in seconds since the run began.
        bin_s: The duration that each value covers, in seconds.
        unit: The unit of the values.
        caption: The caption.
        whole: The value that has the darkest colour. By default it is the largest value, and an
            HTML page uses a logarithmic scale.
        mean: Whether the mean is shown at the end of a row; otherwise the sum.
    """

    rows: Sequence[tuple[str, Sequence[float]]]
    begin_s: float
    bin_s: float
    unit: str = ""
    caption: str = ""
    whole: float | None = None
    mean: bool = False


class StackFrame(NamedTuple):
    """A stack frame: ``name`` is the function with its line, ``function`` without, and ``owner``
    (such as ``torch``) determines the colour."""

    name: str
    function: str
    owner: str


class StackCount(NamedTuple):
    """The number ``n`` of samples with a certain stack, phase, and process or thread. ``role`` is
    the kind of that process or thread, such as ``loader workers``."""

    phase: str
    process: str
    role: str
    frames: Sequence[StackFrame]
    n: int


class FlameGraph(NamedTuple):
    """An interactive flame graph: ``FlameGraph(counts, 0.01, ["the program", "torch"], ["threads
    that train"])``.

    Only the HTML page draws it. It is the largest of all blocks, so put it into an ``OnPage`` with
    a function.

    Attributes:
        counts: The stacks, with the outermost function first.
        period_s: The time that one sample stands for, in seconds.
        owners: The owners of functions, in the order of the legend.
        roles: The kinds of processes and threads; the first one is shown at the beginning.
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
    """Blocks that an HTML page draws small and side by side; other reports draw them below each
    other. ``wide``: only two a row, for bars with labels."""

    blocks: Sequence[Block]
    wide: bool = False


class Details(NamedTuple):
    """Blocks that are collapsed on an HTML page and in Markdown, and left out in a terminal:
    ``Details("all 40 operators", [Table(...)])``."""

    title: str
    blocks: Sequence[Block]


class OnPage(NamedTuple):
    """Blocks that only the HTML page shows.

    ``blocks`` may be a function ``(run) -> Iterable[Block]``, for blocks that need the run's
    records: ``OnPage(lambda run: [Timeline(...)])``. It is called when the page is drawn.
    """

    blocks: Sequence[Block] | Callable[[Run], Iterable[Block]]


class InText(NamedTuple):
    """Blocks that only a terminal and Markdown show, because an HTML page has pictures instead."""

    blocks: Sequence[Block]


Block: TypeAlias = (
    "Text | Figures | Facts | Finding | Amounts | Table | Bars | Stacked | Series | Timeline |"
    " FlameGraph | Group | Grid | Details | OnPage | InText"
)


class Section(NamedTuple):
    """A section of a report.

    Attributes:
        key: A unique name of letters, digits and dashes.
        title: The heading; a section without one has no visible boundary.
        blocks: The content from top to bottom.
        note: What the section shows, and how far it can be trusted.
        least: The number of lines to keep if the report in the terminal must be shortened.
        fixed: Whether a terminal never shortens the section: for errors, in few lines.
        measured_by: The tool that measured the figures. The page of a comparison notes if it
            differs between the runs.
    """

    key: str
    title: str
    blocks: Sequence[Block]
    note: str = ""
    least: int = 6
    fixed: bool = False
    measured_by: str = ""


def sections_of(instrument: Instrument, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the sections of an instrument for a summary; none if it has recorded nothing."""
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
    """Yield the sections that instruments of voirfiles have added to a summary (``ov.section``). A
    damaged section contains an error message."""
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
        # The key contains title and number, since a comparison of two runs matches their sections
        # by key.
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
    """Return the start of a run in ns on the clock of its spans, which is zero on time axes; if it
    is unknown, return ``otherwise``."""
    clocks = run.manifest.get("clocks")
    start_ns = clocks.get("perf_counter_ns") if isinstance(clocks, dict) else None
    return start_ns if isinstance(start_ns, int) else otherwise


def blocks_within(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield each block, followed by all blocks that are nested in it.

    If ``blocks`` of an ``OnPage`` is a function, it is not called, and its blocks are left out.
    """
    for block in blocks:
        yield block
        if isinstance(block, (Group, Grid, Details, OnPage, InText)) and not callable(block.blocks):
            yield from blocks_within(block.blocks)


def figures_of(sections: Iterable[Section]) -> Iterator[tuple[str, Figure]]:
    """Yield all figures of sections, each with its name preceded by the section's title."""
    for section in sections:
        for block in blocks_within(section.blocks):
            if isinstance(block, Figures):
                for row in block.figures:
                    yield f"{section.title}: {row.name}", row


def columns_of(table: Table) -> list[tuple[int, Column]]:
    """Return the columns of a table that are not empty, and always the first, with their
    indices."""
    columns = []
    for place, head in enumerate(table.heads):
        column = head if isinstance(head, Column) else Column(head, place in table.left)
        if place == 0 or any(not _is_empty(row[place]) for row in table.rows):
            columns.append((place, column))
    return columns


def _is_empty(cell: AnyCell) -> bool:
    return not isinstance(cell, Bar) and not cell_text(cell)


def is_link(address: str) -> bool:
    """True if a page may link to this address: it is on the web (http or https), a browser would
    not execute it, and it has no spaces or brackets."""
    return re.fullmatch(r"https?://[\w.~/?#&=%:@,;+!$*'-]+", address) is not None


def cell_text(cell: AnyCell) -> str:
    """Return the text of a cell; empty for a bar."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Lines):
        return ", ".join(cell.lines)
    if isinstance(cell, Bar) or cell is None:
        return ""
    return str(cell.text if isinstance(cell, Cell) else cell)


def fact_text(name: str, value: str) -> str:
    """Return a fact as text, as described in ``Facts``."""
    return name.replace("{}", value) if "{}" in name else f"{name} {value}"


def sparkline(values: Sequence[float | None], most: int = 0) -> str:
    """Return values as a curve of block characters in one line, scaled from the smallest to the
    largest value.

    ``!`` stands for a value that is not finite. ``most`` is the maximum number of characters; 0
    means no limit.
    """
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
    """Return a value with its unit as text for people; ``unknown`` for None."""
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
    """Return a difference with its sign and unit as text."""
    return f"{'+' if value > 0 else '-'}{written(abs(value), unit)}" if value else "0"
