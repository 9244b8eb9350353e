"""Records what each training step spends its time on, and the loss (always on; ``--no-steps``
switches it off)."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option

STEPS = Instrument(
    "steps",
    group="output",
    options=(Option("--no-steps", "do not record training steps: no phases, rates and verdict"),),
    record="voirkit_instruments.steps.record:record",
    always=True,
    parts={"compilations": dict},
    schema=__name__,
    summarise="voirkit_instruments.steps.show:summarise",
    summarised_from=("mark",),
    sections="voirkit_instruments.steps.show:sections",
    event_names={"voirkit.look": "voirkit reads values"},
    evidence={"recompilation": "voirkit_instruments.steps.show:recompilations"},
)
LOSS = Instrument(
    "loss",
    record="voirkit_instruments.steps.record:record_loss",
    parts={"loss": dict},
    schema=__name__,
    findings="voirkit_instruments.steps.loss_rules:findings",
)
