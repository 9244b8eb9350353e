"""Logs metrics and tags to MLflow, with MLflow's client. Checked with mlflow 3.17.

Each metric is logged with its step, which does not change the metrics that the script logs. A
process of its own does the logging. The program's process only looks up the script's active MLflow
run.
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

_LONGEST_TAG = 5000  # characters; the smallest limit of MLflow's stores


class Writer(Tracker):
    """Writes metrics and tags to the script's MLflow run. If the script has none, writes to a run
    that it creates after the first training step."""

    every_s = 5.0  # not more often: each write is a database transaction, or a request to a server
    _client: Any = None
    _uri: str | None = None
    _run_id = ""

    def write(self, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Log the numbers of a step as metrics, and the strings as tags."""
        from mlflow.entities import Metric, RunTag

        run_id, now_ms = self._run(), int(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, step) for name, value in figures.items()]
        tags = [RunTag(name.replace("/", "."), text[:_LONGEST_TAG]) for name, text in texts.items()]
        self._client.log_batch(run_id, metrics=metrics, tags=tags)

    def _run(self) -> str:
        # One retry only: by default MLflow repeats an unanswered request seven times, for minutes,
        # and the end of the run waits for this process.
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
        """End the MLflow run that this writer created, if any, with the report as description."""
        if self._run_id and not self.program.get("run"):
            self._client.set_tag(self._run_id, "mlflow.note.content", report)
            self._client.set_terminated(self._run_id)


# functions that run in the program's process


class ActiveRun:
    """Finds the script's active MLflow run, in whichever thread it was started.
    ``mlflow.active_run()`` (checked with 3.17) returns only the run of the calling thread."""

    def __init__(self) -> None:
        self._known: dict[str, str] | None = None

    def state(self) -> dict[str, Any]:
        """Return ``run``: the ``id`` and the tracking URI (``uri``) of the active run, or of the
        last one; None if there was none."""
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
    """Log to MLflow while the script runs (``--mlflow``)."""
    return track(ov, "mlflow", state=ActiveRun().state)
