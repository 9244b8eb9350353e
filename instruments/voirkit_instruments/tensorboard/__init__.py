"""``--tensorboard``: rates, shares of phases, loss, memory and the verdict, in TensorBoard while the run goes on."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option

INSTRUMENT = Instrument(
    "tensorboard",
    group="see a run",
    options=(
        Option(
            "--tensorboard", "write rates, phases, loss and the verdict for TensorBoard, into a folder of DIR (default: the run directory)",
            type=str, metavar="DIR", const="",
        ),
    ),
    record="voirkit_instruments.tensorboard.record:record",
    folders=("tensorboard",),
)  # fmt: skip
