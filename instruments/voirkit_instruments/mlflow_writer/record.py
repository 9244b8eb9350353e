"""Has the run's figures logged to MLflow by another process; of MLflow in this one only the script's active run is looked up."""

from __future__ import annotations

import sys

from voirkit_instruments.trackers import track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


class ActiveRun:
    """The script's active run, in whichever thread it was started. Checked with mlflow 3.17: ``mlflow.active_run()`` knows the caller's."""

    def __init__(self) -> None:
        self._known: dict[str, str] | None = None

    def state(self) -> dict[str, Any]:
        """Its id and the address of its server, or those of the last one; nothing if there was none."""
        stack = getattr(sys.modules.get("mlflow.tracking.fluent"), "_active_run_stack", None)
        if stack is not None:
            by_thread = stack.get_all_thread_values() if hasattr(stack, "get_all_thread_values") else {0: stack}
            active = [run for runs in list(by_thread.values()) for run in runs]
            if active and (self._known is None or self._known["id"] != active[-1].info.run_id):
                self._known = {"id": active[-1].info.run_id, "uri": str(sys.modules["mlflow"].get_tracking_uri())}
        return {"run": self._known}


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Log as the option asks."""
    return track(ov, "mlflow", state=ActiveRun().state)
