"""All that is looked for, in the order of docs/checks.md."""

from __future__ import annotations

from voirkit.analysis.checks import held, losses, modes, numbers, schedule, zero_grad
from voirkit.analysis.checks.finding import Detector

DETECTORS: tuple[Detector, ...] = (
    zero_grad.MISSING,
    zero_grad.MISPLACED,
    held.FROZEN,
    held.FOREIGN,
    held.NEVER_UPDATED,
    held.NO_GRADIENT,
    modes.EVAL_WHILE_TRAINING,
    modes.TRAIN_WHILE_EVALUATING,
    losses.NOT_CONNECTED,
    losses.SOFTMAX,
    schedule.RATE_ZERO,
    schedule.SCHEDULER_FIRST,
    numbers.NOT_FINITE,
    numbers.SKIPPED_STEPS,
)
