"""``--log``: given values that go to the log stream."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "log",
    options=(
        Option(
            "--log", "log the given values of that key, or of all that match ('*_rate'); '+task' goes along; may be repeated",
            metavar="PATTERN", repeatable=True,
        ),
    ),
    record="voirkit_instruments.log.record:record",
)  # fmt: skip
instrument_log = INSTRUMENT

__getattr__ = lazy_names(__name__, log="record")
