"""Names of the phases of a training step.

``voirkit/phase_table.py`` says what each phase is; it imports modules that a run does not load.
"""

from __future__ import annotations

WAIT = "wait"
TRANSFER = "transfer"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"
OTHER = "other"
