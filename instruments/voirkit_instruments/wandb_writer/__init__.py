"""``--wandb``: logs rates, shares of phases, loss, memory and the verdict into the script's W&B
run, or into a new one if the script has none."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option

INSTRUMENT = Instrument(
    "wandb",
    group="see a run",
    options=(
        Option(
            "--wandb",
            "log rates, phases, loss and the verdict to Weights & Biases, into the script's run"
            " where it has one",
        ),
    ),
    record="voirkit_instruments.wandb_writer.write:record",
)
