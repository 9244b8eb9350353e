"""``--loader-sweep``: which number of loader workers is best."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option
from voirkit_instruments import flag_values

INSTRUMENT = Instrument(
    "loader_sweep",
    group="try a change",
    options=(
        Option(
            "--loader-sweep",
            "run the script for STEPS steps with each of several numbers of loader workers, and report the best (default: 40)",
            type=flag_values.steps, const=40, metavar="STEPS",
        ),
        Option("--loader-setting", type=flag_values.setting),
    ),
    record="voirkit_instruments.loader_sweep.record:record",
)  # fmt: skip
