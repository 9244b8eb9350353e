"""Logs to MLflow with its client: metrics have a step each, so that those of the script are as they
were. Checked with mlflow 3.17.

Another process does it; of MLflow in the program's own only the script's active run is looked up.
"""

from __future__ import annotations

import os
import sys
import time

from voirkit_instruments.trackers import Tracker, track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

_LONGEST_TAG = 5000  # characters, of MLflow's stores the least


class Writer(Tracker):
    """Metrics and tags of the script's run, else of one of its own, which is made when the first
    step has been trained."""

    every_s = 5.0  # each is a transaction of a database, or a request
    _client: Any = None
    _uri: str | None = None
    _run_id = ""

    def write(self, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Log a batch of metrics, and tags."""
        from mlflow.entities import Metric, RunTag

        run_id, now_ms = self._run(), int(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, step) for name, value in figures.items()]
        tags = [RunTag(name.replace("/", "."), text[:_LONGEST_TAG]) for name, text in texts.items()]
        self._client.log_batch(run_id, metrics=metrics, tags=tags)

    def _run(self) -> str:
        # MLflow asks a server that does not answer seven times, for minutes; the end of the run
        # waits for this process.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        from mlflow import MlflowClient

        theirs = self.program.get("run")
        uri = theirs["uri"] if theirs else None
        if self._client is None or uri != self._uri:
            self._client, self._uri = MlflowClient(uri), uri
        if theirs:
            return str(theirs["id"])
        if not self._run_id:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
            known_experiment = self._client.get_experiment_by_name(name)
            experiment = (
                known_experiment.experiment_id
                if known_experiment
                else self._client.create_experiment(name)
            )
            name = os.path.basename(self.run_dir)
            self._run_id = self._client.create_run(experiment, run_name=name).info.run_id
        return self._run_id

    def end(self, step: int, report: str) -> None:
        """End a run of its own, with the report as its description."""
        if self._run_id and not self.program.get("run"):
            self._client.set_tag(self._run_id, "mlflow.note.content", report)
            self._client.set_terminated(self._run_id)


# in the program's process


class ActiveRun:
    """The script's active run, in whichever thread it was started. Checked with mlflow 3.17:
    ``mlflow.active_run()`` knows the caller's."""

    def __init__(self) -> None:
        self._known: dict[str, str] | None = None

    def state(self) -> dict[str, Any]:
        """Its id and the address of its server, or those of the last one; nothing if there was
        none."""
        stack = getattr(sys.modules.get("mlflow.tracking.fluent"), "_active_run_stack", None)
        if stack is not None:
            by_thread = (
                stack.get_all_thread_values()
                if hasattr(stack, "get_all_thread_values")
                else {0: stack}
            )
            active = [run for runs in list(by_thread.values()) for run in runs]
            if active and (self._known is None or self._known["id"] != active[-1].info.run_id):
                self._known = {
                    "id": active[-1].info.run_id,
                    "uri": str(sys.modules["mlflow"].get_tracking_uri()),
                }
        return {"run": self._known}


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Log as the option asks."""
    return track(ov, "mlflow", state=ActiveRun().state)
