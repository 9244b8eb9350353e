"""``--what-if``: runs the script in pairs, with and without a change, and reports the gain."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, read_by, whole_number

_PAIRS = whole_number(
    "no number of pairs",
    " of at least 5: with fewer, chance alone is on one side too often",
    5,
    1000,
)

INSTRUMENT = Instrument(
    "what_if",
    group="try a change",
    options=(
        Option(
            "--what-if",
            "run the script with and without a change, in pairs, and report the gain:"
            " workers=0,2,4, checkpoint-async ... (--what-if list prints all); with --stop N each"
            " run ends after N optimizer steps",
            type=read_by("voirkit_instruments.what_if.record_changes:parse_change"),
            metavar="NAME[=ARG]",
            repeatable=True,
            answers=("list",),
        ),
        Option("--pairs", "with --what-if: number of pairs (default: 5)", type=_PAIRS, metavar="N"),
        Option("--what-if-setting", type=str),
    ),
    record="voirkit_instruments.what_if.record:record",
    parts={"what_if": dict},
    schema=__name__,
    findings="voirkit_instruments.what_if.rules:findings",
    sections="voirkit_instruments.what_if.show:sections",
    leads=True,
    # starts after the steps instrument, so that the patches of --what-if enclose those of the steps
    # instrument
    priority=-1000,
)
