"""Always on where a script trains with several ranks: what they exchange, and which of them holds the others up."""

from __future__ import annotations

from voirkit.instrument import Instrument

INSTRUMENT = Instrument(
    "ranks",
    parts={"collectives": dict},
    summarise="voirkit_instruments.ranks.analyse:summarise",
    summarised_from=("collective",),
    sections="voirkit_instruments.ranks.show:sections",
    evidence={"late rank": "voirkit_instruments.ranks.analyse:late_rank"},
)
