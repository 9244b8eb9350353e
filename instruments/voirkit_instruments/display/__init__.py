"""``--display``: everything that is given, on stderr."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "display",
    group="see a run",
    options=(Option("--display", "print all given values on stderr, one event a line"),),
    record="voirkit_instruments.display.record:record",
)
instrument_display = INSTRUMENT

__getattr__ = lazy_names(__name__, display="record")
