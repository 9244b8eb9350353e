"""``--dash``: a live view of the run."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "dash",
    group="see a run",
    options=(
        Option(
            "--dash",
            "show a live view of steps, rates, progress and given values; the key q closes it",
        ),
    ),
    record="voirkit_instruments.dash.record:record",
)
instrument_dash = INSTRUMENT

__getattr__ = lazy_names(__name__, dash="record")
