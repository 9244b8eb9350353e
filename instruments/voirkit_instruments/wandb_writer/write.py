"""Logs figures to W&B: into the script's own run, or into a run that voirkit begins. Checked with
wandb 0.31.

Only the script's process can log into the script's run; a run that voirkit begins belongs to the
writer process. A W&B run has one step counter, and W&B drops a row whose step is behind it. So
rows for the script's run are never committed here: W&B sends them with the script's next row, and
at the end of the run with the last one. The figures come from the process that reads the run
directory.
"""

from __future__ import annotations

import os
import sys

from voirkit_instruments.trackers import PREFIX, Tracker, track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


class Writer(Tracker):
    """Writes rows, with the number of steps as their axis."""

    _own_run: Any = None

    def write(self, step: int, figures: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Log the figures as a row, and put the strings into the W&B run's summary."""
        if self._own_run is None and self.program.get("has_run"):
            self.send({"step": step, "figures": figures, "texts": texts})
            return
        if self._own_run is None:
            import wandb

            settings = wandb.Settings(
                console="off", disable_git=True, disable_code=True, x_disable_stats=True
            )
            project = os.environ.get("WANDB_PROJECT") or "voirkit"
            self._own_run = wandb.init(
                project=project,
                name=os.path.basename(self.run_dir),
                job_type="voirkit",
                settings=settings,
            )
            self._own_run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
        self._own_run.log({f"{PREFIX}step": step, **figures})
        if texts:
            self._own_run.summary.update(texts)

    def end(self, step: int, report: str) -> None:
        """Finish the W&B run that voirkit began, with the report as its notes."""
        if self._own_run is not None:
            self._own_run.notes = report
            self._own_run.finish()


# code that runs in the program's process


class ScriptsRun:
    """The script's W&B run. Checked with wandb 0.31, whose ``log`` may be called from any
    thread."""

    def __init__(self) -> None:
        self._defined = ""  # id of the W&B run for which the step axis is defined; empty: none yet
        self._has_been = False
        self._texts: dict[str, str] = {}

    def state(self) -> dict[str, Any]:
        """Return ``has_run``: true if the script has, or has had, a W&B run."""
        self._has_been = self._has_been or self._run() is not None
        return {"has_run": self._has_been}

    def receive(self, message: Mapping[str, Any]) -> None:
        """Log a message of the writer process."""
        self._texts.update(message["texts"])
        run = self._run()
        if run is None:
            return  # the script has finished its W&B run
        texts = message["texts"]
        if self._defined != run.id:
            self._defined, texts = run.id, self._texts
            run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
        try:
            run.log({f"{PREFIX}step": message["step"], **message["figures"]}, commit=False)
            if texts:
                run.summary.update(texts)
        except sys.modules["wandb"].Error:
            pass  # the script has finished the W&B run meanwhile

    def _run(self) -> Any:
        return getattr(sys.modules.get("wandb"), "run", None)


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Log the run to W&B."""
    run = ScriptsRun()
    return track(ov, "wandb", state=run.state, receive_message=run.receive)
