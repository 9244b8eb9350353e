"""`--dash`: a live view of the run, below the script's output in a terminal, or as a line a second on any other standard error.

Never touches the script's streams, and imports what draws only when the flag is on.
Steps, rates and progress are read from the trace like any other reader does it, so that nothing is added to what a step costs.
"""

from __future__ import annotations

import os
import sys
import time

from voirkit.imports import when_imported
from voirkit.runner.recording import RECORDER
from voirkit.runs.ranks import rank_and_world_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.live.picture import Picture
    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer

EVERY_S = 1.0
MOST = 1 << 10  # records that are read at a time: about 150 steps


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
        # What reads the trace is loaded by the thread that imports torch: one that imports beside it could meet a fork.
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
            self._picture = self._make_picture()
        return self._picture

    def _make_picture(self) -> Picture | None:
        from voirkit.live.picture import Picture
        from voirkit.live.steps import devices

        picture = Picture()
        self._steps.fill(picture)
        picture.devices = list(devices(self._steps.window.counters, self._rank))
        if picture.workers:
            picture.worker_shares = self._workers.sample()
        return picture if picture.steps is not None or picture.progress or picture.devices else None


def dash(ov: Overseer) -> Iterator[Phase | PhaseWithPriority]:
    """Show what the last steps spend their time on, and the last value, units and count of every given key, while the script runs.

    Time by phase, rates, the epoch's progress, loader workers and what the run is bound by are there without any probe: they are from what
    the steps instrument records.

    Keys that begin with ``$`` or ``#`` are left out. ``progress=(i, n)``, or ``progress=i, total=n`` with an optional ``descr``, is a bar.
    ``task`` groups the rows, ``units`` follows the numbers of the same event. Of tensors with one element the number is shown (read from an
    accelerator at most once a redraw, without waiting for it), of all else the type and shape.

    In a terminal the view takes its lowest rows and the script's output goes on above it, as it would without; ``input()`` and pdb work.
    The last values stay below the output. The key q ends the view, and the run goes on; a script that waits for input gets what is typed.
    A script that draws on the whole screen (curses) disturbs the view and is disturbed by it.
    With several ranks only rank 0 shows a view.

    For ``ov.require(dash)`` in a voirfile, or ``--dash``.
    """
    yield ov.phases.parse_args
    if os.environ.get("RANK", "0") != "0":
        return
    from voirkit_instruments.dash.board import Board
    from voirkit_instruments.dash.show import view_for

    board, steps = Board(), OwnSteps(ov)
    ov.given.subscribe(board.update)
    # Last of those that wait for the load, so that what they find wrong is printed on a terminal as it was.
    yield ov.phases.load_script(priority=-1000)
    view = view_for(board, ov.script or "voirkit", ov.warn, steps.picture)
    view.start()
    try:
        # First of those that wait for the end of the script: what they print comes after the view.
        yield ov.phases.run_script(priority=1000, throw=False)
        if ov.phases.run_script.exception is None:
            flush()
    finally:
        view.stop()
    # Last of all: what is given at the end of the streams is among the values that stay.
    yield ov.phases.finalize(priority=-1000, throw=False)
    view.finish()


def flush() -> None:
    """Write out what the script has printed: its place is above the values that stay. (After an exception python keeps it back.)"""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # none, gone or closed: python will say so at its end, as always
            continue


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase | PhaseWithPriority]:
    """As the option asks."""
    return dash(ov)
