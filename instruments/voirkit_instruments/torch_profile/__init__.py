"""The ``--torch-profile`` instrument: torch's operators and kernels in a window of steps."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names, read_by

FOLDER = "torch_profile"  # subfolder of the run directory

INSTRUMENT = Instrument(
    "torch_profile",
    group="look deeper",
    options=(
        Option(
            "--torch-profile",
            "record operators and kernels with torch's profiler in a window of steps "
            "(default: 5:0:3, which skips 5 steps and records 3)",
            type=read_by("voirkit_instruments.torch_profile.record:parse_window"),
            const="5:0:3",
            metavar="SKIP:WAIT:ACTIVE",
        ),
    ),
    record="voirkit_instruments.torch_profile.record:record",
    in_children=False,
    parts={"torch_profile": dict},
    schema=__name__,
    summarise="voirkit_instruments.torch_profile.analyse:summarise",
    summarised_from=(f"{FOLDER}/",),
    evidence={"operator": "voirkit_instruments.torch_profile.analyse:operators"},
    sections="voirkit_instruments.torch_profile.show:sections",
    folders=(FOLDER,),
    priority=1,  # before the steps instrument, which reports the steps to this one
)

__getattr__ = lazy_names(__name__, torch_profile="record")
