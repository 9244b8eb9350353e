"""Recorder of ``--torch-profile[=SKIP:WAIT:ACTIVE]``: torch's own profiler on a window of steps
(docs/torch-profile.md).

The profiler is switched on and off where the steps instrument reports the start of a step
(``StepEvents``). After the run, another process joins its output with the phases. It profiles the
training thread and autograd's threads. If the program itself uses torch's profiler, the program's
profiler takes precedence.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit.phases import Phase, PhaseWithPriority
from voirkit.probes.around import ABSENT
from voirkit_instruments.steps.events import BACKWARD, BATCH_REQUESTED, OPTIMIZER_STEP, StepEvents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.torch_profile.record_window import Recorded

MOST_ACTIVE = 1000
_FORM = "give SKIP:WAIT:ACTIVE, such as 5:0:3: steps to leave out, to wait, and to record"


class Window:
    """The steps to profile: ``skip`` steps are left out; then, ``repeat`` times, ``wait`` steps are
    left out and ``active`` steps are recorded."""

    def __init__(self, skip: int, wait: int, active: int, repeat: int = 1) -> None:
        self.skip = skip
        self.wait = wait
        self.active = active
        self.repeat = repeat

    def __repr__(self) -> str:
        return ":".join(map(str, self.document().values()))

    def __contains__(self, n: int) -> bool:
        """True if step ``n``, counted from 0, is recorded."""
        cycle, step_of_cycle = divmod(n - self.skip, self.wait + self.active)
        return 0 <= cycle < self.repeat and step_of_cycle >= self.wait

    @property
    def first(self) -> int:
        """Number of the first step that is recorded."""
        return self.skip + self.wait

    @property
    def total(self) -> int:
        """Number of steps that are recorded in all."""
        return self.active * self.repeat

    @property
    def end(self) -> int:
        """Number of the first step after the last recorded one."""
        return self.skip + (self.wait + self.active) * self.repeat

    def document(self) -> dict[str, int]:
        """Return the window in the form that the summary has."""
        return dict(vars(self))


DEFAULT = Window(5, 0, 3)


def parse_window(text: str) -> Window:
    """Return the window of steps that an option's text describes. Raises ValueError: the text has
    another form, or records no or too many steps."""
    parts = text.split(":")
    if not 3 <= len(parts) <= 4 or not all(map(_is_number, parts)):
        raise ValueError(f"{text!r} is no window of steps; {_FORM}.")
    skip, wait, active, repeat = (*map(int, parts), 1)[:4]
    if not 0 < active * repeat <= MOST_ACTIVE:
        raise ValueError(
            f"{text!r} records {active * repeat} steps; the third number must be 1 to"
            f" {MOST_ACTIVE}."
        )
    return Window(skip, wait, active, repeat)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= 1_000_000_000


class StepCounter:
    """Counter of the steps of the training thread.

    A step begins where a loader is asked for a batch after a backward pass or optimizer step. In a
    thread without a loader, it begins after each step of the optimizer that stepped first.

    Args:
        edge: Called where a step begins or may begin, with the number of steps before it.
        pause: Called where a loader has no more batches.
    """

    def __init__(self, edge: Callable[[int], None], pause: Callable[[], None]) -> None:
        self._edge = edge
        self._pause = pause
        self._trained = False
        self._requested = False
        self._stepped = False
        self._leader: Any = None
        # id of the training thread; while it is None (unknown), the main thread counts instead
        self._thread: int | None = None
        self.n = 0  # number of completed steps

    def _is_training_thread(self) -> bool:
        if self._thread is None:
            return threading.current_thread() is threading.main_thread()
        return threading.get_ident() == self._thread

    def before_batch(self, *_: object) -> None:
        """Count a step if the last batch was trained on. Called before a loader is asked for a
        batch."""
        if self._is_training_thread():
            self._requested = True
            if self._trained:
                self._trained = False
                self.n += 1
            self._edge(self.n)

    def after_batch(self, _: object, batch: object = ABSENT) -> None:
        """Report a pause if the loader has no more batches. Called after a loader was asked for a
        batch."""
        if batch is ABSENT and self._is_training_thread():
            self._pause()

    def after_backward(self, *_: object) -> None:
        """Note that a backward pass took place."""
        if self._thread is None:
            self._thread = threading.get_ident()
        self._trained = True

    def after_optimizer_step(self, optimizer: object) -> None:
        """Note an optimizer step; without a loader, count it as a step if the optimizer is the
        first that stepped."""
        if self._thread is None:
            self._thread = threading.get_ident()
        if self._leader is None:
            self._leader = weakref.ref(optimizer)
        self._trained = True
        if self._leader() is not optimizer:
            return
        requested, self._requested = self._requested, False
        if not requested and self._is_training_thread():
            self._trained = False
            self.n += self._stepped
            self._edge(self.n)
        self._stepped = True


class TorchProfile:
    """The profile of one run."""

    def __init__(self, ov: Overseer, window: Window, memory: bool) -> None:
        self._ov = ov
        self._window = window
        self._memory = memory
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
        """Prepare the recording, if there is a run directory. Called once torch has been
        imported."""
        if self._ov.run_dir is None:
            # torch was probably imported by a voirfile. The run directory is created when the
            # script is loaded; ``script_loaded`` then calls this method again.
            self._early = torch
        if self._over or self._ov.run_dir is None:
            return
        try:
            from voirkit_instruments.torch_profile.record_window import Recorded

            self._recorded = Recorded(
                torch,
                self._ov.run_dir,
                self._window,
                self._memory,
                self._ov.options.trace_limit,
                self._ov.warn,
            )
        except Exception as exc:  # a torch version with different internals
            self._ov.warn(
                f"--torch-profile: this torch cannot be profiled ({type(exc).__name__}: {exc}).\n "
                " The run goes on without it."
            )
            self._over = True

    def script_loaded(self) -> None:
        """Prepare the recording if torch was imported early. Once the script is loaded, there is a
        run directory, or a warning has given the reason why not."""
        if self._early is not None and self._recorded is None:
            self.start(self._early)

    def end(self) -> None:
        """End the recording. Called when the program has ended."""
        if self._recorded is not None:
            self._recorded.finish(self._steps.n)
            self._recorded = None
        elif not self._over and self._ov.run_dir is not None:
            self._ov.warn("--torch-profile: nothing was recorded: the script did not import torch.")
        self._over = True


@instrument_definition
@once("--torch-profile")
def torch_profile(
    ov: Overseer, window: Window = DEFAULT, memory: bool = False
) -> Iterator[Phase | PhaseWithPriority]:
    """Run torch's profiler on a window of steps.

    Args:
        window: The steps to profile.
        memory: True to record the memory that operators allocate. torch then warns on stderr, once,
            about memory that was allocated before.
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
    memory = ov.argparser.value(ov.options, "--memory-snapshot") is not None
    return torch_profile(options["torch_profile"], memory)(ov)
