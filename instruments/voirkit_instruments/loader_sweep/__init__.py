"""``--loader-sweep``: which number of loader workers is best."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option
from voirkit_instruments import flag_values

INSTRUMENT = Instrument(
    "loader_sweep",
    options=(
        Option(
            "--loader-sweep", "run the script for some steps (40) with one number of loader workers after the other, and say which is best",
            type=flag_values.steps, const=40, metavar="STEPS",
        ),
        Option("--loader-setting", type=flag_values.setting),
    ),
    record="voirkit_instruments.loader_sweep.record:record",
)  # fmt: skip
