"""Logs into the script's own W&B run, which no other process can do; a run of voirkit's own is another process's.

A run has one counter of steps, and a row whose step is behind it is dropped by W&B. So what is logged here is never committed: it is sent
along with the script's next row, and at the end of the run with its last. The figures come from the process that reads the run directory.
"""

from __future__ import annotations

import sys

from voirkit_instruments.trackers import PREFIX, track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


class ScriptsRun:
    """The script's W&B run. Checked with wandb 0.31, whose ``log`` may be called from any thread."""

    def __init__(self) -> None:
        self._defined = ""  # the run whose axis is defined
        self._has_been = False
        self._texts: dict[str, str] = {}

    def state(self) -> dict[str, Any]:
        """Whether the script has, or has had, a run."""
        self._has_been = self._has_been or self._run() is not None
        return {"has_run": self._has_been}

    def receive(self, message: Mapping[str, Any]) -> None:
        """Log what the process that reads the run has sent."""
        self._texts.update(message["texts"])
        run = self._run()
        if run is None:
            return  # it has been finished, and can take no more
        texts = message["texts"]
        if self._defined != run.id:
            self._defined, texts = run.id, self._texts
            run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
        try:
            run.log({f"{PREFIX}step": message["step"], **message["figures"]}, commit=False)
            if texts:
                run.summary.update(texts)
        except sys.modules["wandb"].Error:
            pass  # the script has finished it meanwhile

    def _run(self) -> Any:
        return getattr(sys.modules.get("wandb"), "run", None)


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Log as the option asks."""
    run = ScriptsRun()
    return track(ov, "wandb", state=run.state, receive_message=run.receive)
