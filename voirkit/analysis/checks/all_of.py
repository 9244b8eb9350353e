"""All that is looked for, in the order of docs/checks.md."""

from __future__ import annotations

from voirkit.analysis.checks import augmentation, order, ranks, samples, zero_grad
from voirkit.analysis.checks.finding import Detector

DETECTORS: tuple[Detector, ...] = (
    zero_grad.MISSING,
    zero_grad.MISPLACED,
    augmentation.SAME,
    samples.MISSED,
    samples.TWICE,
    order.NOT_SHUFFLED,
    order.SAME_ORDER,
    ranks.SAME_DATA,
    ranks.DIVERGE,
)
