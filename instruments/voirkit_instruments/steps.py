"""Always on (``--no-steps`` switches it off): what each step of the training spends its time on, written into the trace plane as phases.

It only records; what a step is, its shares, rates and the verdict are computed from the phases afterwards. Until the program imports
torch nothing is done but to wait for that, and a program that never does pays nothing.
"""

from __future__ import annotations

import sys

from voirkit.imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase
    from voirkit_instruments.steps_torch import TorchPatches


class Steps:
    """The patches of one run, once torch is there.

    Args:
        ov: The overseer.
        recorder: The trace plane's recorder; ``voirkit.trace.recorder`` unless a test brings its own.
    """

    def __init__(self, ov: Overseer, recorder: Any = None) -> None:
        self._ov = ov
        self._recorder = recorder
        self._torch: TorchPatches | None = None
        self._over = False

    def begin(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._over:
            return
        try:
            from voirkit_instruments.loader_numbers import numbers_of
            from voirkit_instruments.steps_heard import heard_of
            from voirkit_instruments.steps_record import Recording
            from voirkit_instruments.steps_torch import TorchPatches

            if self._recorder is None:
                from voirkit.trace import recorder

                self._recorder = recorder
            recording = Recording(self._recorder, torch, self._ov.warn, numbers_of(self._ov))
            self._torch = TorchPatches(recording, self._ov.warn, heard_of(self._ov))
            self._torch.put()
        except Exception as exc:  # a torch that is not like any known one
            self._ov.warn(f"steps: nothing is recorded of torch ({type(exc).__name__}: {exc}).")

    def end(self, completed: bool = True) -> None:
        """The program has ended: put torch back as it was, and tell what was done to it.

        Args:
            completed: Whether it came to its own end: no exception, no exit.
        """
        self._over = True
        if self._torch is None:
            return
        hot = self._torch.recording.hot
        device = hot.device
        self._torch.remove(completed)
        self._recorder.timed(hot.spans, hot.own_ns)
        table = self._torch.patches.table
        self._ov.summary.setdefault("patches", []).extend({"name": name, "why_not": why or None} for name, why in table.items())
        lost = device.finish() if device is not None else 0
        if lost:
            self._ov.summary["dropped"]["device times"] = lost


def instrument_steps(ov: Overseer) -> Iterator[Phase]:
    """Record the phases of the training's steps."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--no-steps", action="store_true", dest="--no-steps", help="do not record what training steps spend their time on"
    )
    yield ov.phases.parse_args
    recorder: Any = None
    if getattr(ov.options, "--no-steps"):
        heard = sys.modules.get("voirkit_instruments.steps_heard")
        if heard is None or not heard.heard_of(ov):
            return
        recorder = heard.NoRecorder()
    steps = Steps(ov, recorder)
    when_imported("torch", steps.begin)
    completed = False
    try:
        yield ov.phases.run_script
        completed = True
    finally:
        steps.end(completed)
