"""``--mlflow``: logs rates, shares of phases, loss, memory and the verdict to the script's MLflow
run, or to a new run if the script has none."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option

INSTRUMENT = Instrument(
    "mlflow",
    group="see a run",
    options=(
        Option(
            "--mlflow",
            "log rates, phases, loss and the verdict to MLflow, into the script's run where it"
            " has one",
        ),
    ),
    record="voirkit_instruments.mlflow_writer.write:record",
)
