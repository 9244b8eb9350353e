"""Export of the records of ``--calls --parameters`` as a TrainCheck trace."""

from __future__ import annotations

from voirkit.instrument import Instrument

INSTRUMENT = Instrument(
    "traincheck",
    exports={
        "traincheck": (
            "voirkit_instruments.traincheck.export",
            (
                "TrainCheck's trace, for traincheck-infer and traincheck-check (of runs with"
                " --calls --parameters)"
            ),
        ),
    },
)
