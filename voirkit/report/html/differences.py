"""What is more or less in the second of two runs, for the page that compares them. ``+`` is what the second has more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from voirkit.report.html.components import Html, differences, folded, paragraph, section, table

ROWS = 16  # of a picture
MOST = 60  # of a table

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def signed(value: float, shown: Callable[[float], str]) -> str:
    """A difference with its sign."""
    return f"{'+' if value > 0 else '-'}{shown(abs(value))}" if value else "0"


def compared_by_name(
    summaries: Pair, key: str, rows: str, title: str, of: str, shown: Callable[[float], str], named: Callable[[str], str]
) -> Html | None:
    """A section of the page of two runs, of what has a row for each name in both summaries.

    Args:
        summaries: Of both runs.
        key: Of the summary; ``rows`` are in it, by name.
        rows: The rows' key.
        title: The section's.
        of: The figure of a row that is compared.
        shown: How that figure is written.
        named: How a name is.
    """
    ones = [(summary.get(key) or {}).get(rows) or {} for summary in summaries]
    if not any(ones):
        return None
    if not all(ones):
        only = "first" if ones[0] else "second"
        return section(key, title, paragraph(f"Recorded in the {only} alone.", kind="note"))
    found = [(name, *((one.get(name) or {}).get(of, 0.0) for one in ones)) for name in dict.fromkeys([*ones[0], *ones[1]])]
    found.sort(key=lambda row: -abs(row[2] - row[1]))
    drawn = [(named(name), second - first, signed(second - first, shown)) for name, first, second in found[:ROWS] if first != second]
    cells = [(named(name), shown(first), shown(second), signed(second - first, shown)) for name, first, second in found[:MOST]]
    parts = [differences(drawn) if drawn else None, folded("as a table", table(("", "first", "second", "second - first"), cells))]
    return section(key, title, *parts, note="+ is what the second took more.")
