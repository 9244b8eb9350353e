"""``--display``: everything that is given, on stderr."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "display",
    options=(Option("--display", "print everything that is given, one event a line, on stderr"),),
    record="voirkit_instruments.display.record:record",
)
instrument_display = INSTRUMENT

__getattr__ = lazy_names(__name__, display="record")
