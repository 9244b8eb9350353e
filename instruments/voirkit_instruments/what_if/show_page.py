"""What a change would win, on a run's page: the ceiling, the pairs, the verdict, whether the results were equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration
from voirkit.report.html_marks import Html, bars, paragraph, section, strong, table
from voirkit_instruments.what_if.show import ceiling, name_of, sentences

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


def what_if(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """The part, of the run of ``--what-if``."""
    found = summary.get("what_if")
    if not found:
        return None
    said = list(sentences(found))
    pairs = found["pairs"]
    drawn = []
    if pairs:
        rows: list[tuple[object, float, object]] = []
        for at, pair in enumerate(pairs, 1):
            rows.append((f"{at} plain", pair["plain_s"], duration(pair["plain_s"])))
            rows.append((f"{at} changed", pair["changed_s"], f"{duration(pair['changed_s'])}, {pair['ratio']:.3f} times as long"))
        drawn.append(bars(rows, ["k-0", "k-1"] * len(pairs), "Time of the work of each run, in pairs"))
        cells = [(at, duration(pair["plain_s"]), duration(pair["changed_s"]), f"{pair['ratio']:.3f}") for at, pair in enumerate(pairs, 1)]
        drawn.append(table(("pair", "plain", "changed", "ratio"), cells))
    return section(
        "what-if",
        f"What if: {name_of(found)}",
        paragraph(strong(said[0])),
        *(paragraph(line) for line in said[1:]),
        *drawn,
        note=ceiling(found),
    )
