"""``--verify``: checks that a script gives the events that a benchmark harness needs."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "verify",
    group="CI",
    options=(
        Option(
            "--verify",
            "check that loss, step+batch, use_cuda and others are given; exit with code 3 if one of"
            " these three is missing",
        ),
    ),
    record="voirkit_instruments.verify.record:record",
    schema=__name__,
)
instrument_verify = INSTRUMENT

__getattr__ = lazy_names(__name__, verify="record")
