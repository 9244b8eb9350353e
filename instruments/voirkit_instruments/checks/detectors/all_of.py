"""All that is looked for, in the order of docs/checks.md."""

from __future__ import annotations

from voirkit_instruments.checks.detectors import (
    augmentation,
    graphs,
    held,
    losses,
    modes,
    numbers,
    order,
    ranks,
    samples,
    schedule,
    zero_grad,
)
from voirkit_instruments.checks.detectors.finding import Detector

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
    losses.BROADCAST,
    schedule.RATE_ZERO,
    schedule.SCHEDULER_FIRST,
    schedule.TOO_OFTEN,
    graphs.KEPT,
    graphs.DEAD,
    numbers.NOT_FINITE,
    numbers.SKIPPED_STEPS,
    augmentation.SAME,
    samples.MISSED,
    samples.TWICE,
    order.NOT_SHUFFLED,
    order.SAME_ORDER,
    ranks.SAME_DATA,
    ranks.DIVERGE,
)
