"""Logs to a W&B run of voirkit's own, or has the figures logged where the script's run is. Checked with wandb 0.31."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from voirkit_instruments.trackers import PREFIX, Tracker


class Writer(Tracker):
    """Rows, with the number of steps as their axis."""

    _own: Any = None

    def write(self, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Log a row, and texts into the run's summary."""
        if self._own is None and self.program.get("has_run"):
            self.send({"step": step, "figures": figures, "texts": texts})
            return
        if self._own is None:
            import wandb

            settings = wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_stats=True)
            project = os.environ.get("WANDB_PROJECT") or "voirkit"
            self._own = wandb.init(project=project, name=os.path.basename(self.run_dir), job_type="voirkit", settings=settings)
            self._own.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
        self._own.log({f"{PREFIX}step": step, **figures})
        if texts:
            self._own.summary.update(texts)

    def end(self, step: int, report: str) -> None:
        """Finish a run of its own, with the report as its notes."""
        if self._own is not None:
            self._own.notes = report
            self._own.finish()
