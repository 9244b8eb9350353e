"""``--stop`` and ``--stop-after``: end the script early."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, duration, lazy_names, whole_number

INSTRUMENT = Instrument(
    "early_stop",
    group="try a change",
    options=(
        Option(
            "--stop",
            "stop the script after N values of the rate (train_rate, if none is asked for)",
            type=whole_number("not a number of rates", " of at least 1", 1),
            metavar="N",
        ),
        Option(
            "--stop-after",
            "stop the script after this time: 30s, 5m, 1.5h, 250ms",
            type=duration,
            metavar="TIME",
        ),
    ),
    record="voirkit_instruments.early_stop.record:record",
)
instrument_early_stop = INSTRUMENT

__getattr__ = lazy_names(__name__, early_stop="record")
