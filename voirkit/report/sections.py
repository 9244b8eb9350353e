"""What an instrument shows: sections of blocks, which each report draws in its own way.

``Instrument.sections`` names a function ``(part, summary) -> Iterable[Section]``; ``part`` is the instrument's own key of the summary. The
terminal, the HTML page, Markdown and ``voirkit compare`` draw every block; an instrument draws nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from voirkit.instrument import resolve
from voirkit.report.figure import duration, figure, size

if TYPE_CHECKING:
    from voirkit.instrument import Instrument


class Text(NamedTuple):
    """A sentence or two; ``strong`` for what the section says first, ``mood`` for ``good`` or ``bad`` news."""

    text: str
    strong: bool = False
    mood: str = ""


class Figure(NamedTuple):
    """A number with its unit (``s``, ``share``, ``bytes``, ``items/s`` ...); two runs are compared by their figures.

    ``better`` is ``higher``, ``lower``, or nothing where neither is.
    """

    name: str
    value: float
    unit: str = ""
    better: str = ""


class Figures(NamedTuple):
    """Numbers that stand for the whole section."""

    figures: Sequence[Figure]


class Table(NamedTuple):
    """Rows of cells that are written out; ``left`` are the columns of words. A terminal shows ``most`` rows."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)
    most: int = 12


class Bars(NamedTuple):
    """A bar a row: (label, value, what is said at its end)."""

    rows: Sequence[tuple[str, float, str]]
    caption: str = ""


class Series(NamedTuple):
    """Curves: (x, y) points by name; ``unit`` is that of y."""

    curves: Mapping[str, Sequence[tuple[float, float]]]
    caption: str = ""
    unit: str = ""


class Details(NamedTuple):
    """Blocks that a page folds away and a terminal leaves out."""

    title: str
    blocks: Sequence[Block]


Block: TypeAlias = "Text | Figures | Table | Bars | Series | Details"


class Section(NamedTuple):
    """A part of every report.

    Attributes:
        key: Unlike that of all other sections; letters, digits and dashes.
        title: Its heading.
        blocks: From top to bottom.
        note: What it shows, and what of it can be trusted.
        least: How many of its lines stay where a terminal's table is cut.
    """

    key: str
    title: str
    blocks: Sequence[Block]
    note: str = ""
    least: int = 6


def sections_of(instrument: Instrument, summary: Mapping[str, Any]) -> Iterator[Section]:
    """The sections of an instrument for a summary; none where it has recorded nothing."""
    part = next((summary[key] for key in instrument.parts if summary.get(key)), None)
    if part is not None and instrument.sections:
        yield from resolve(instrument.sections)(part, summary)


def figures_of(sections: Iterable[Section]) -> Iterator[tuple[str, Figure]]:
    """(name with its section's title, figure) of all figures."""
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Figures):
                yield from ((f"{section.title}: {one.name}", one) for one in block.figures)


def written(value: float | None, unit: str) -> str:
    """A figure with its unit, as people read it."""
    if value is None:
        return "unknown"
    if unit == "s":
        return duration(value)
    if unit == "share":
        return f"{value:.1%}"
    return size(value) if unit == "bytes" else f"{figure(value)} {unit}".rstrip()
