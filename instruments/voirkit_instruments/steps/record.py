"""Always on (``--no-steps`` switches it off): what each step of the training spends its time on, written into the trace plane as phases;
and the loss from first to last, for the summary.

It only records; what a step is, its shares, rates and the verdict are computed from the phases afterwards. Until the program imports
torch nothing is done but to wait for that, and a program that never does pays nothing. The same is done in the processes that the program
starts, which may train as well; not in those that load data.

The loss is the given ``loss``, or, if none is given, what ``backward`` is called on: a curve in a bounded number of points, and where it is
no number. It keeps no graph alive and never waits for a device while the script runs: what lies on one is read at the end, and only for the
curve.
"""

from __future__ import annotations

import time
from _thread import get_ident  # threading is imported where the program imports it

from voirkit.imports import when_imported
from voirkit.processes import inherit
from voirkit.processes.children import UnrecordedProcesses
from voirkit_instruments.values import may_be_read, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.processes.children import ChildProcess
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.steps.record_torch import TorchPatches


_BEGIN = "voirkit_instruments.steps.record:begin_in_child"
TASKS = ("eval", "evaluate", "evaluation", "val", "valid", "validate", "validation", "test")


class Steps:
    """The patches of one run in one process, once torch is there.

    Args:
        ov: The overseer, or what stands for it in a process that the program has started.
        recorder: The trace plane's recorder; ``voirkit.trace.recorder`` unless a test brings its own.
    """

    def __init__(self, ov: Overseer | ChildProcess, recorder: Any = None) -> None:
        self._ov = ov
        self._recorder = recorder
        self._torch: TorchPatches | None = None
        self._evaluations: dict[tuple[object, int], int] = {}  # (wrapper's id, thread) -> when it began
        self._over = False

    def start(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._over:
            return
        began = time.perf_counter_ns()
        try:
            from voirkit_instruments.identity import LoaderNumbers
            from voirkit_instruments.steps.events import StepEvents
            from voirkit_instruments.steps.record_spans import Recording
            from voirkit_instruments.steps.record_torch import TorchPatches

            if self._recorder is None:
                from voirkit.trace import recorder

                self._recorder = recorder
            recording = Recording(self._recorder, torch, self._ov.warn, self._ov.shared(LoaderNumbers))
            self._torch = TorchPatches(recording, self._ov.warn, self._ov.shared(StepEvents))
            self._torch.install()
            self._recorder.timed(0, time.perf_counter_ns() - began, "start")
        except Exception as exc:  # a torch that is not like any known one
            self._ov.warn(f"steps: nothing is recorded of torch ({type(exc).__name__}: {exc}).")

    def on_given(self, event: dict[str, Any]) -> None:
        """Record each step that is given with one of ``TASKS`` as evaluation (``voirkit.iterate("eval", ...)``). Must never raise: the
        script gives in the middle of its work."""
        wrap = event.get("$wrap")
        if wrap is None or self._torch is None or self._over or wrap.get("name") != "step" or event.get("task") not in TASKS:
            return
        key = (wrap["id"], get_ident())
        if wrap["step"] == "begin":
            self._evaluations[key] = time.perf_counter_ns()
        elif (began := self._evaluations.pop(key, None)) is not None:
            self._recorder.span(self._torch.recording.phase("given", "evaluation"), began, time.perf_counter_ns())

    def end(self, completed: bool = True) -> None:
        """The program has ended, as in ``TorchPatches.remove``: put torch back as it was, and tell what was done to it."""
        self._over = True
        if self._torch is None:
            return
        hot = self._torch.recording.hot
        device = hot.device
        self._torch.remove(completed)
        self._recorder.timed(hot.spans, hot.own_ns)
        table = self._torch.patches.table
        self._ov.summary.setdefault("patches", []).extend({"name": name, "why_not": why or None} for name, why in table.items())
        lost = {"device times": device.finish() if device is not None else 0, "collectives": self._torch.collectives.lost}
        self._ov.summary["dropped"].update({name: n for name, n in lost.items() if n})


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Record the phases of the training's steps."""
    recorder: Any = None
    if options["no_steps"]:
        from voirkit_instruments.steps.events import NoRecorder, StepEvents

        if not ov.shared(StepEvents):
            return
        recorder = NoRecorder()
    steps = Steps(ov, recorder)
    processes = UnrecordedProcesses()
    when_imported("torch", steps.start)
    if recorder is None:
        _watch(steps)
        ov.when_given(lambda given: given.subscribe(steps.on_given))
    completed = False
    try:
        yield ov.phases.run_script
        completed = True
    finally:
        commands = processes.commands() if recorder is None else []
        if commands:
            ov.summary["unrecorded_processes"] = commands
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
    from voirkit_instruments.identity import is_starting_worker

    return None if _here is None or is_starting_worker() else {"warnings": _here._ov.warnings}


def begin_in_child(offer: dict[str, Any]) -> None:
    """In such a process: record as the parent does, once it has torch."""
    from voirkit.processes.children import this_process

    if _here is None:
        steps = Steps(this_process(offer["warnings"]))
        _watch(steps)
        when_imported("torch", steps.start)


# the loss

MOST_POINTS = 256
_INFINITE = float("inf")


class Losses:
    """The first and the last loss, how many there were, and some between. Every loss is kept at first; when there are 256, every second,
    then every fourth ...: a long run costs no more than a short one."""

    def __init__(self) -> None:
        self.n = 0  # how many losses there were
        self._first: Any = None
        self._last: Any = None
        self._every = 1
        self._kept: list[tuple[int, Any]] = []
        self._read = self._bad = 0
        self._first_bad: tuple[int, float] | None = None

    def on_event(self, event: dict[str, Any]) -> None:
        """Look at a given event."""
        if "loss" in event:
            self.add(event["loss"])

    def add(self, loss: Any) -> None:
        """Take in the next loss: a number, a tensor or an array. Waits for no device."""
        if type(loss) is float and self.n and -_INFINITE < loss < _INFINITE:  # at each step: without the calls below
            self._read += 1
            if self.n % self._every == 0:
                self._sample(loss)
            self._last = loss
            self.n += 1
            return
        if type(loss) is not float:
            plain = number(loss, wait=False)
            if plain is not None:
                loss = float(plain)
            elif not may_be_read(loss):
                loss = None
            elif hasattr(loss, "detach"):
                loss = loss.detach()  # the graph behind it is the program's to free
        if type(loss) is float:
            self._check(self.n, loss)
        if self.n % self._every == 0:
            self._sample(loss)
        if self.n == 0:
            self._first = self._kept[0][1]
        self._last = loss  # the last is read before the program can write over it
        self.n += 1

    def _sample(self, loss: Any) -> None:
        self._kept.append((self.n, loss.clone() if hasattr(loss, "clone") else loss))  # the program may write over it
        if len(self._kept) >= MOST_POINTS:
            del self._kept[1::2]
            self._every *= 2

    def _check(self, index: int, loss: float) -> None:
        self._read += 1
        if not abs(loss) < _INFINITE:
            self._bad += 1
            if self._first_bad is None:
                self._first_bad = index, loss

    def summary(self) -> dict[str, Any] | None:
        """``first``, ``last``, ``n``, ``not_finite``, ``curve``; None if no loss was given, or none that is a number.

        ``curve`` is pairs of (number of the loss, from 0; loss or None if it is no finite number). ``not_finite`` is None, or ``first``
        (the number of the first loss that is not), its ``value``, ``n``, and ``of`` how many: of losses on a device only those of the
        curve are looked at.
        """
        first, last = number(self._first), number(self._last)
        if first is None or last is None:
            return None
        curve = []
        for at, kept in self._kept:
            plain = number(kept)
            if plain is not None:
                if type(kept) is not float:
                    self._check(at, float(plain))
                curve.append((at, float(plain) if abs(plain) < _INFINITE else None))
        bad = None
        if self._first_bad is not None:
            at, value = self._first_bad
            bad = {"first": at, "value": str(value), "n": self._bad, "of": self._read}
        return {"first": float(first), "last": float(last), "n": self.n, "not_finite": bad, "curve": curve}

    def means(self) -> tuple[float, float] | None:
        """Mean of the first and of the last quarter of those kept; None with less than two losses that are numbers. Of a loss for each
        sample its mean counts."""
        values = [value for _, kept in self._kept if (value := _as_float(kept)) is not None]
        quarter = max(1, len(values) // 4)
        if len(values) < 2:
            return None
        return sum(values[:quarter]) / quarter, sum(values[-quarter:]) / quarter


class LossesOfRun:
    """The losses of a run: those that are given, which win, and those that the recorder sees."""

    def __init__(self) -> None:
        self.given, self.seen = Losses(), Losses()

    def summary(self) -> dict[str, Any] | None:
        """See ``Losses.summary``."""
        return self.given.summary() or self.seen.summary()

    def latest(self) -> float | None:
        """The last loss, from any thread; None of one on a device, for which would have to be waited."""
        loss = (self.given if self.given.n else self.seen)._last
        return loss if type(loss) is float else None


def _as_float(loss: Any) -> float | None:
    plain = number(loss)
    if plain is not None:
        return float(plain)
    try:  # one loss for each sample
        return None if not may_be_read(loss) else float((loss.float() if hasattr(loss, "float") else loss).mean())
    except Exception:  # not a number of any kind
        return None


def record_loss(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Put the losses into the summary, and give what the recorder sees of the training to those who listen. Losses that are given win over
    those that the recorder sees."""
    losses = ov.shared(LossesOfRun)

    def on_event(event: dict[str, Any]) -> None:
        if "$recorder" not in event:
            losses.given.on_event(event)

    ov.when_given(lambda given: given.subscribe(on_event))
    no_steps = ov.argparser.value(ov.options, "--no-steps")

    def start(torch: Any) -> None:
        listened = ov.may_be_listened_to
        if listened or not no_steps:
            from voirkit_instruments.steps.record_values import values_of

            values_of(ov).start(torch, losses.seen, listened)

    if no_steps and ov.may_be_listened_to:
        from voirkit_instruments.steps.events import LOSS, StepEvents

        ov.shared(StepEvents).subscribe(LOSS)  # the steps instrument is to watch torch all the same
    when_imported("torch", start)
    yield ov.phases.finalize
    ov.summary["loss"] = losses.summary()
