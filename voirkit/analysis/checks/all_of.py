"""All that is looked for, in the order of docs/checks.md."""

from __future__ import annotations

from voirkit.analysis.checks import zero_grad
from voirkit.analysis.checks.finding import Detector

DETECTORS: tuple[Detector, ...] = (
    zero_grad.MISSING,
    zero_grad.MISPLACED,
)
