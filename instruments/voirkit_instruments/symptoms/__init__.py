"""Always-on instrument that records signs of common causes of slow or wrong training, at next to no
cost."""

from __future__ import annotations

from voirkit.instrument import Instrument

INSTRUMENT = Instrument(
    "symptoms",
    record="voirkit_instruments.symptoms.record:record",
    parts={"symptoms": dict},
    schema=__name__,
    summarise="voirkit_instruments.symptoms.analyse:summarise",
    findings="voirkit_instruments.symptoms.rules:findings",
)
