"""``--options``: the arguments that the script parses with argparse."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "options",
    group="see a run",
    options=(Option("--options", "give the arguments that the script parses with argparse, as options"),),
    record="voirkit_instruments.options.record:record",
)
instrument_argparse = INSTRUMENT

__getattr__ = lazy_names(__name__, options="record")
