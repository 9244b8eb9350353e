"""``--train-rate``, ``--loading-rate``, ``--compute-rate``: items per second while the run goes
on."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

RATES = {
    "--train-rate": "give train_rate (items/s, from step and batch) once a second",
    "--loading-rate": "give loading_rate (items/s that the given loader delivers) once a second",
    "--compute-rate": (
        "give compute_rate (items/s between compute_start and compute_end) once a second"
    ),
}

INSTRUMENT = Instrument(
    "rates",
    group="see a run",
    options=[Option(flag, text) for flag, text in RATES.items()],
    record="voirkit_instruments.rates.record:record",
)
instrument_rates = INSTRUMENT

__getattr__ = lazy_names(
    __name__, train_rate="record", loading_rate="record", compute_rate="record"
)
