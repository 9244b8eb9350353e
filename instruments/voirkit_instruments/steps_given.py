"""Evaluation as the script gives it: steps that are wrapped with the task of evaluating (``voirkit.iterate("eval", ...)``).

Must never raise: the script gives in the middle of its work.
"""

from __future__ import annotations

import time
from threading import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.steps_record import Recording

TASKS = ("eval", "evaluate", "evaluation", "val", "valid", "validate", "validation", "test")


class GivenEvaluation:
    """Records each step that is given with one of ``TASKS`` as evaluation.

    Args:
        recording: Where it is recorded.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._name = recording.phase("given", "evaluation")
        self._begun: dict[tuple[object, int], int] = {}

    def on_event(self, event: dict[str, Any]) -> None:
        """Take in a given event."""
        wrap = event.get("$wrap")
        if wrap is None or wrap.get("name") != "step" or event.get("task") not in TASKS:
            return
        key = (wrap["id"], get_ident())
        if wrap["step"] == "begin":
            self._begun[key] = time.perf_counter_ns()
            return
        began = self._begun.pop(key, None)
        if began is not None:
            self._recording.recorder.span(self._name, began, time.perf_counter_ns())
