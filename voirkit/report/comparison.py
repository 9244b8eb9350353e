"""Two runs beside each other, as sections: their figures, and what else is not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from voirkit.analysis.comparison import Figure
from voirkit.report.overview import instrument_parts
from voirkit.report.sections import AnyCell, Block, Cell, Column, InText, OnPage, Section, Table, Text, figures_of, signed, written

Pairs = Mapping[str, tuple[Any, Any]]

_SPREAD = "beyond: each median lies outside of the other run's p10 .. p90. How much runs of one script differ, two runs do not tell."


def figures_of_instruments(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of instruments' sections that both runs have."""
    for part in {**instrument_parts(True), **instrument_parts(False)}.values():
        ones, others = (dict(figures_of(part(summary))) for summary in (first, second))
        yield from (Figure(name, one.unit, one.value, others[name].value) for name, one in ones.items() if name in others)


def figures_section(figures: Sequence[Figure]) -> Section:
    """A row for each figure that is compared."""
    rows: list[Sequence[AnyCell]] = []
    for one in figures:
        more = "" if one.first is None or one.second is None else signed(one.second - one.first, one.units)
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}x"
        spread: AnyCell = Cell("beyond", "strong") if one.beyond else "" if one.beyond is None else "within"
        rows.append((one.name, written(one.first, one.units), written(one.second, one.units), more, ratio, spread))
    ratios = (Column("second - first", narrowest=100), Column("second / first", narrowest=60))
    heads: list[str | Column] = [Column("", left=True, cut=True), "first", "second", *ratios, "spread"]
    notes: list[Block] = [OnPage([Text("+ is what the second has more.", mood="note")])]
    notes += [Text(_SPREAD, mood="note")] if any(one.beyond is not None for one in figures) else []
    return Section("figures", "Figures", [Table(heads, rows, most=len(rows)), *notes])


def differences_section(different: Pairs) -> Section:
    """What else is not the same: verdicts, the environment."""
    rows = [(name, _in_words(first), _in_words(second)) for name, (first, second) in different.items()]
    lines = [Text(f"{first}  |  {second}", name) for name, first, second in rows]
    nothing = Text("Nothing that is known of both.")
    on_page = Table(("", "first", "second"), rows, left=(0, 1, 2)) if rows else nothing
    return Section("different", "What else differs", [OnPage([on_page]), InText(lines)])


def _in_words(value: Any) -> str:
    """What a manifest or a summary holds, in a line."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return "unknown" if value is None else str(value)
