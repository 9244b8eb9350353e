"""``--parameters``: norms, changes, gradients of each parameter at the optimizer's steps, written into the trace plane.

It only reads: no hook, no wrapper, no tensor of the program is changed. Steps are seen through the steps instrument (``StepEvents``).
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit_instruments.steps.events import BACKWARD, FORWARD, OPTIMIZER_STEP, ZERO_GRAD, StepEvents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.parameters.record_watch import Watch

EVERY = 50  # benchmarks/parameters.py: 4 % of Adam.step


class Parameters:
    """The watch of one run, once torch is there."""

    def __init__(self, ov: Overseer, every: int, of: Sequence[str]) -> None:
        self._ov, self._every, self._of = ov, every, of
        self._watch: Watch | None = None
        self._over = False
        events = ov.shared(StepEvents)
        events.subscribe(FORWARD, before=self._passed_on("called"))
        events.subscribe(BACKWARD, after=self._passed_on("walked"))
        events.subscribe(OPTIMIZER_STEP, self._passed_on("before_step"), self._passed_on("after_step"))
        events.subscribe(ZERO_GRAD, self._passed_on("before_zero_grad"), self._passed_on("after_zero_grad"))

    def _passed_on(self, what: str) -> Any:
        def pass_on(*passed: Any) -> None:
            watch = self._watch
            if watch is not None:
                getattr(watch, what)(*passed)

        return pass_on

    def torch_imported(self, torch: ModuleType) -> None:
        """torch is there."""
        if self._over:
            return
        try:
            from voirkit.trace import recorder
            from voirkit_instruments.parameters.record_watch import Watch

            self._watch = Watch(torch, recorder, self._every, self._ov.warn, self._of)
        except Exception as exc:  # a torch that is not like any known one
            self._ov.warn(f"parameters: nothing is recorded of them ({type(exc).__name__}: {exc}).")

    def end(self) -> None:
        """The program has ended."""
        self._over = True
        if self._watch is not None:
            self._watch.finish()
            self._watch = None


@instrument_definition
@once("--parameters")
def parameters(ov: Overseer, every: int = EVERY, *of: str) -> Iterator[Phase | PhaseWithPriority]:
    """Record what the parameters do at the optimizer's steps.

    Args:
        every: Steps between two looks at a parameter; 1: all at each step.
        of: What else is looked at: ``buffers`` of the models, ``state`` of the optimizers.
    """
    recording = Parameters(ov, every, of)
    when_imported("torch", recording.torch_imported)
    try:
        yield ov.phases.run_script(priority=1)
    finally:
        recording.end()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    return parameters(options["parameters"] or EVERY, *(options["parameters_of"] or ()))(ov)
