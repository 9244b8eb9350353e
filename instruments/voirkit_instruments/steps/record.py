"""Always on (``--no-steps`` switches it off): what each step of the training spends its time on, written into the trace plane as phases.

It only records; what a step is, its shares, rates and the verdict are computed from the phases afterwards. Until the program imports
torch nothing is done but to wait for that, and a program that never does pays nothing. The same is done in the processes that the program
starts, which may train as well; not in those that load data.
"""

from __future__ import annotations

import time
from _thread import get_ident  # threading is imported where the program imports it

from voirkit.imports import when_imported
from voirkit.processes import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.processes.children import ChildProcess
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.steps.record_spans import Recording
    from voirkit_instruments.steps.record_torch import TorchPatches


_BEGIN = "voirkit_instruments.steps.record:begin_in_child"
TASKS = ("eval", "evaluate", "evaluation", "val", "valid", "validate", "validation", "test")


class GivenEvaluation:
    """Records each step that is given with one of ``TASKS`` as evaluation (``voirkit.iterate("eval", ...)``).

    Must never raise: the script gives in the middle of its work.

    Args:
        recording: Where it is recorded.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._name = recording.phase("given", "evaluation")
        self._begun: dict[tuple[object, int], int] = {}

    def on_event(self, event: dict[str, Any]) -> None:
        """Take in a given event."""
        wrap = event.get("$wrap")
        if wrap is None or wrap.get("name") != "step" or event.get("task") not in TASKS:
            return
        key = (wrap["id"], get_ident())
        if wrap["step"] == "begin":
            self._begun[key] = time.perf_counter_ns()
            return
        began = self._begun.pop(key, None)
        if began is not None:
            self._recording.recorder.span(self._name, began, time.perf_counter_ns())


class Steps:
    """The patches of one run in one process, once torch is there.

    Args:
        ov: The overseer, or what stands for it in a process that the program has started.
        recorder: The trace plane's recorder; ``voirkit.trace.recorder`` unless a test brings its own.
    """

    def __init__(self, ov: Overseer | ChildProcess, recorder: Any = None) -> None:
        self._ov = ov
        self.warnings: list[str] = []
        self._recorder = recorder
        self._torch: TorchPatches | None = None
        self._evaluation: GivenEvaluation | None = None
        self._over = False

    def warn(self, text: str) -> None:
        """Tell the user, once in all processes that are started from here on."""
        self.warnings.append(text)
        self._ov.warn(text)

    def start(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._over:
            return
        began = time.perf_counter_ns()
        try:
            from voirkit_instruments.loader_numbers import LoaderNumbers
            from voirkit_instruments.steps.events import StepEvents
            from voirkit_instruments.steps.record_spans import Recording
            from voirkit_instruments.steps.record_torch import TorchPatches

            if self._recorder is None:
                from voirkit.trace import recorder

                self._recorder = recorder
            recording = Recording(self._recorder, torch, self.warn, self._ov.shared(LoaderNumbers))
            self._torch = TorchPatches(recording, self.warn, self._ov.shared(StepEvents))
            self._torch.install()
            self._recorder.timed(0, time.perf_counter_ns() - began, "start")
        except Exception as exc:  # a torch that is not like any known one
            self.warn(f"steps: nothing is recorded of torch ({type(exc).__name__}: {exc}).")

    def listen(self, given: Any) -> None:
        """The program gives something: what it gives with the task of evaluating is evaluation.

        Args:
            given: The stream of all that is given.
        """
        given.subscribe(self._take_in)

    def _take_in(self, event: dict[str, Any]) -> None:
        if "$wrap" not in event or self._torch is None or self._over:
            return
        if self._evaluation is None:
            self._evaluation = GivenEvaluation(self._torch.recording)
        self._evaluation.on_event(event)

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


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Record the phases of the training's steps."""
    recorder: Any = None
    if options["no_steps"]:
        from voirkit_instruments.steps.events import NoRecorder, StepEvents

        if not ov.shared(StepEvents):
            return
        recorder = NoRecorder()
    steps = Steps(ov, recorder)
    when_imported("torch", steps.start)
    if recorder is None:
        _watch(steps)
        ov.when_given(steps.listen)
    completed = False
    try:
        yield ov.phases.run_script
        completed = True
    finally:
        inherit.unwatch(_BEGIN)
        steps.end(completed)


# in processes that multiprocessing starts anew

_here: Steps | None = None


def _watch(steps: Steps) -> None:
    global _here
    _here = steps
    inherit.watch(_BEGIN, offered)


def offered() -> dict[str, Any] | None:
    """What a process needs that is started anew from here; one that loads data needs nothing, and pays nothing."""
    from voirkit_instruments.loader_numbers import is_starting_worker

    return None if _here is None or is_starting_worker() else {"warnings": _here.warnings}


def begin_in_child(offer: dict[str, Any]) -> None:
    """In such a process: record as the parent does, once it has torch."""
    from voirkit.processes.children import this_process

    if _here is None:
        steps = Steps(this_process(offer["warnings"]))
        _watch(steps)
        when_imported("torch", steps.start)
