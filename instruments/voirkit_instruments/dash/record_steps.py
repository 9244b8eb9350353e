"""Steps, rates and progress of this run for the live view, from what the steps instrument has written to the trace.

Reads the files like any other reader, so that nothing is added to what a step costs. Does nothing until something is recorded.
"""

from __future__ import annotations

import os
import time

from voirkit.imports import when_imported
from voirkit.runner.recording import RECORDER
from voirkit.runs.ranks import rank_and_world_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.live.picture import Picture
    from voirkit.runner.overseer import Overseer

EVERY_S = 1.0
MOST = 1 << 10  # records that are looked at at a time: about 150 steps


class OwnSteps:
    """What this process has recorded of its steps; of several ranks what all have: one alone takes waiting for another for its own work.

    Args:
        ov: The overseer of the run.
    """

    def __init__(self, ov: Overseer) -> None:
        self._ov = ov
        self._rank, self._ranks = rank_and_world_size()
        self._steps: Any = None
        self._workers: Any = None
        self._picture: Picture | None = None
        self._next_s = 0.0
        # What looks at the trace is loaded by the thread that imports torch: one that imports beside it could meet a fork.
        when_imported(RECORDER, self._load)

    def _load(self, _: object) -> None:
        if self._ov.run_dir is None:
            return
        from voirkit.live.steps import LiveSteps
        from voirkit.live.workers import Workers

        self._workers = Workers(os.getpid())
        self._steps = LiveSteps(self._ov.run_dir, MOST, os.getpid() if self._ranks == 1 else None)

    def picture(self) -> Picture | None:
        """The steps as they are now, or were a second ago at most; None as long as there are none."""
        if self._steps is None or time.monotonic() < self._next_s:
            return self._picture
        self._next_s = time.monotonic() + EVERY_S
        if self._steps.update(os.cpu_count()):
            self._picture = self._made()
        return self._picture

    def _made(self) -> Picture | None:
        from voirkit.live.picture import Picture
        from voirkit.live.steps import devices

        picture = Picture()
        self._steps.fill(picture)
        picture.devices = list(devices(self._steps.window.counters, self._rank))
        if picture.workers:
            picture.worker_shares = self._workers.sample()
        return picture if picture.steps is not None or picture.progress or picture.devices else None
