"""From the key ``json`` of the summary to a section of every report."""

from __future__ import annotations

from voirkit.report.sections import Bars, Figure, Figures, Section, Table, written


def sections(part, summary):
    """How much time, and the slowest calls."""
    slowest = part["slowest"]
    rows = [
        (written(one["at_s"], "s"), written(one["took_s"], "s"), f"{one['bytes']:,}")
        for one in slowest
    ]
    yield Section(
        "json",
        "json.dumps",
        [
            Figures([
                Figure("calls", part["calls"]),
                Figure("time", part["total_s"], "s", better="lower"),
                Figure("written", part["bytes"], "bytes"),
            ]),
            Table(("at", "took", "bytes"), rows),
            Bars([(f"at {written(one['at_s'], 's')}", one["took_s"], written(one["took_s"], "s")) for one in slowest], "the slowest calls"),
        ],
        note="Calls below the limit of --json-time are not counted.",
    )  # fmt: skip
