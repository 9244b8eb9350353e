"""The list of the built-in instruments, in the order in which reports show them. The package's
entry point names it.

Every run loads this module and the declarations that it imports, but none of the code that records,
analyses or shows.
"""

from __future__ import annotations

from voirkit_instruments import (
    calls,
    checks,
    dash,
    display,
    early_stop,
    github_summary,
    hangs,
    loader,
    log,
    memory,
    mlflow_writer,
    monitor,
    options,
    otlp_writer,
    parameters,
    ranks,
    rates,
    resources,
    stacks,
    steps,
    symptoms,
    syscalls,
    tensorboard_writer,
    torch_profile,
    traincheck,
    verify,
    wandb_writer,
    what_if,
)

INSTRUMENTS = [
    hangs.INSTRUMENT,
    what_if.INSTRUMENT,
    checks.INSTRUMENT,
    ranks.INSTRUMENT,
    loader.INSTRUMENT,
    stacks.NATIVE,
    stacks.FLAME,
    calls.INSTRUMENT,
    syscalls.INSTRUMENT,
    torch_profile.INSTRUMENT,
    memory.INSTRUMENT,
    parameters.INSTRUMENT,
    monitor.INSTRUMENT,
    otlp_writer.INSTRUMENT,
    tensorboard_writer.INSTRUMENT,
    mlflow_writer.INSTRUMENT,
    wandb_writer.INSTRUMENT,
    traincheck.INSTRUMENT,
    dash.INSTRUMENT,
    display.INSTRUMENT,
    early_stop.INSTRUMENT,
    github_summary.INSTRUMENT,
    log.INSTRUMENT,
    options.INSTRUMENT,
    rates.INSTRUMENT,
    verify.INSTRUMENT,
    steps.LOSS,
    resources.INSTRUMENT,
    symptoms.INSTRUMENT,
    steps.STEPS,  # last: it sends its events to the instruments above
]
