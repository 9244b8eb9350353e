"""``--loader-sweep``: which number of loader workers is best."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, read_by, whole_number

INSTRUMENT = Instrument(
    "loader_sweep",
    group="try a change",
    options=(
        Option(
            "--loader-sweep",
            "run the script for STEPS steps with each of several numbers of loader workers, and"
            " report the best (default: 40)",
            type=whole_number("no number of steps to measure", " of at least 8", 8),
            const=40,
            metavar="STEPS",
        ),
        Option(
            "--loader-setting",
            type=read_by("voirkit_instruments.loader_sweep.record:parse_setting"),
        ),
    ),
    record="voirkit_instruments.loader_sweep.record:record",
    schema=__name__,
)
