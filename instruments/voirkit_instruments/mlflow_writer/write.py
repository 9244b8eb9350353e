"""Logs to MLflow with its client: metrics have a step each, so that those of the script are as they were. Checked with mlflow 3.17."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from voirkit_instruments.trackers import Tracker

_LONGEST_TAG = 5000  # characters, of MLflow's stores the least


class Writer(Tracker):
    """Metrics and tags of the script's run, else of one of its own, which is made when the first step has been trained."""

    every_s = 5.0  # each is a transaction of a database, or a request
    _client: Any = None
    _uri: str | None = None
    _own = ""

    def write(self, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Log a batch of metrics, and tags."""
        from mlflow.entities import Metric, RunTag

        run_id, now_ms = self._run(), int(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, step) for name, value in figures.items()]
        tags = [RunTag(name.replace("/", "."), text[:_LONGEST_TAG]) for name, text in texts.items()]
        self._client.log_batch(run_id, metrics=metrics, tags=tags)

    def _run(self) -> str:
        from mlflow import MlflowClient

        theirs = self.program.get("run")
        uri = theirs["uri"] if theirs else None
        if self._client is None or uri != self._uri:
            self._client, self._uri = MlflowClient(uri), uri
        if theirs:
            return str(theirs["id"])
        if not self._own:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            self._own = self._client.create_run(experiment, run_name=os.path.basename(self.run_dir)).info.run_id
        return self._own

    def end(self, step: int, report: str) -> None:
        """End a run of its own, with the report as its description."""
        if self._own and not self.program.get("run"):
            self._client.set_tag(self._own, "mlflow.note.content", report)
            self._client.set_terminated(self._own)
