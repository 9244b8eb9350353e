"""Two runs beside each other as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.analysis.comparison import Figure
from voirkit.plugins import installed_instruments
from voirkit.report.sections import figures_of, sections_of, written

Pairs = Mapping[str, tuple[Any, Any]]


def comparison_table(names: tuple[str, str], figures: Sequence[Figure], different: Pairs, width: int) -> RenderableType:
    """A row for each figure; then what else is not the same.

    Args:
        names: Of the runs, as the user typed them.
        figures: What is compared.
        different: Verdicts, environment: only what differs.
        width: Columns of the terminal.
    """
    table = Table(box=None, padding=(0, 1), header_style="dim")
    wide = width >= 76
    for name in ("", "first", "second", "second / first", *(["spread"] if wide else [])):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for one in figures:
        beyond = {True: "beyond", False: "within", None: ""}[one.beyond]
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}x" + ("" if wide or not one.beyond else " !")
        table.add_row(one.name, *(written(value, one.units) for value in (one.first, one.second)), ratio, *([beyond] if wide else []))
    return Group(*_heads(names), table, *_spread(figures, wide), *_different(different))


def _heads(names: tuple[str, str]) -> Iterator[Text]:
    for head, name in zip(("first", "second"), names, strict=True):
        yield Text.assemble((f"{head:8}", "dim"), name, overflow="fold")


def figures_of_instruments(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of instruments' sections that both runs have."""
    for instrument in installed_instruments():
        if instrument.sections:
            ones, others = (dict(figures_of(sections_of(instrument, summary))) for summary in (first, second))
            yield from (Figure(name, one.unit, one.value, others[name].value) for name, one in ones.items() if name in others)


def _spread(figures: Sequence[Figure], wide: bool) -> Iterator[Text]:
    if any(one.beyond is not None for one in figures):
        mark = "beyond" if wide else "!"
        yield Text(
            f"{mark}: each median lies outside of the other run's p10 .. p90. How much runs of one script differ, two runs do not tell.",
            style="dim",
        )


def _different(different: Pairs) -> Iterator[Text]:
    for name, (first, second) in different.items():
        yield Text.assemble((f"{name}  ", "dim"), f"{in_words(first)}  |  {in_words(second)}", overflow="fold")


def in_words(value: Any) -> str:
    """What a manifest or a summary holds, in a line."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return "unknown" if value is None else str(value)
