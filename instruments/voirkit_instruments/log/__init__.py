"""``--log``: given values that go to the log stream."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names

INSTRUMENT = Instrument(
    "log",
    group="see a run",
    options=(
        Option(
            "--log", "log the given values of this key or pattern ('*_rate'); '+task' adds another key (repeatable)",
            metavar="PATTERN", repeatable=True,
        ),
    ),
    record="voirkit_instruments.log.record:record",
)  # fmt: skip
instrument_log = INSTRUMENT

__getattr__ = lazy_names(__name__, log="record")
