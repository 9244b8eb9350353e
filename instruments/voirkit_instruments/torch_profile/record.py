"""``--torch-profile[=SKIP:WAIT:ACTIVE]``: torch's own profiler on a window of steps (docs/torch-profile.md).

It is switched where the steps instrument sees a step begin (``StepEvents``). What it recorded is joined with the phases after the run, in
another process. It is torch's profiler of the thread that trains, with autograd's threads; a program that uses it itself has it alone.
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit_instruments.steps.events import BACKWARD, BATCH_REQUESTED, OPTIMIZER_STEP, StepEvents
from voirkit_instruments.torch_profile.record_steps import DEFAULT, StepCounter, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.torch_profile.record_window import Recorded


class TorchProfile:
    """The profile of one run, once torch is there.

    Args:
        ov: The overseer.
        window: Which steps.
        memory: Whether what operators allocate is recorded.
    """

    def __init__(self, ov: Overseer, window: Window, memory: bool) -> None:
        self._ov, self._window, self._memory = ov, window, memory
        self._recorded: Recorded | None = None
        self._early: ModuleType | None = None
        self._over = False
        self._steps = steps = StepCounter(self._edge, self._pause)
        events = ov.shared(StepEvents)
        events.subscribe(BATCH_REQUESTED, steps.before_batch, steps.after_batch)
        events.subscribe(BACKWARD, after=steps.after_backward)
        events.subscribe(OPTIMIZER_STEP, after=steps.after_optimizer_step)

    def _edge(self, n: int) -> None:
        if self._recorded is not None:
            self._recorded.edge(n)

    def _pause(self) -> None:
        if self._recorded is not None:
            self._recorded.pause()

    def start(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._ov.run_dir is None:
            self._early = torch  # by a voirfile, most often; the run directory comes with the script
        if self._over or self._ov.run_dir is None:
            return
        try:
            from voirkit_instruments.torch_profile.record_window import Recorded

            self._recorded = Recorded(torch, self._ov.run_dir, self._window, self._memory, self._ov.options.trace_limit, self._ov.warn)
        except Exception as exc:  # a torch that is not like any known one
            self._ov.warn(f"--torch-profile: this torch cannot be profiled ({type(exc).__name__}: {exc}).\n  The run goes on without it.")
            self._over = True

    def script_loaded(self) -> None:
        """The script has been loaded: there is a run directory, or a warning has named why there is none."""
        if self._early is not None and self._recorded is None:
            self.start(self._early)

    def end(self) -> None:
        """The program has ended."""
        if self._recorded is not None:
            self._recorded.finish(self._steps.n)
            self._recorded = None
        elif not self._over and self._ov.run_dir is not None:
            self._ov.warn("--torch-profile: nothing was recorded: the script did not import torch.")
        self._over = True


@instrument_definition
@once("--torch-profile")
def torch_profile(ov: Overseer, window: Window = DEFAULT, memory: bool = False) -> Iterator[Phase | PhaseWithPriority]:
    """Run torch's profiler on a window of steps.

    Args:
        window: Which steps.
        memory: Whether to record what operators allocate; torch then tells on stderr, once, of memory that was there before.
    """
    profile = TorchProfile(ov, window, memory)
    when_imported("torch", profile.start)
    try:
        yield ov.phases.load_script(priority=1)
        profile.script_loaded()
        yield ov.phases.run_script(priority=1)
    finally:
        profile.end()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    return torch_profile(options["torch_profile"], ov.argparser.value(ov.options, "--memory-snapshot") is not None)(ov)
