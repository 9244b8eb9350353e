"""Recording of what each step of the training spends its time on, written into the trace plane as
phases; and of the loss from first to last, for the summary. Always on; ``--no-steps`` disables it.

It only records; steps, their shares, rates and the verdict are computed from the phases
afterwards. Until the program imports torch nothing is done but to wait for that, and a program that
never does pays nothing. The same is done in the processes that the program starts, which may train
as well; not in those that load data.

The loss is the given ``loss``, or, if none is given, what ``backward`` is called on: a curve in a
bounded number of points, and where it is no number. It keeps no graph alive and never waits for a
device while the script runs: what lies on one is read at the end, and only for the curve.
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


_CHILD_ENTRY = "voirkit_instruments.steps.record:begin_in_child"
TASKS = ("eval", "evaluate", "evaluation", "val", "valid", "validate", "validation", "test")


class Steps:
    """The patches of one run in one process, once torch is there.

    Args:
        ov: The overseer, or what stands for it in a process that the program has started.
        recorder: The trace plane's recorder; ``voirkit.trace.recorder`` unless a test brings its
            own.
    """

    def __init__(self, ov: Overseer | ChildProcess, recorder: Any = None) -> None:
        self._ov = ov
        self._recorder = recorder
        self._torch: TorchPatches | None = None
        # (wrapper's id, thread) -> when it began
        self._evaluations: dict[tuple[object, int], int] = {}
        self._over = False

    def start(self, torch: ModuleType) -> None:
        """torch has been imported."""
        if self._over:
            return
        start_ns = time.perf_counter_ns()
        try:
            from voirkit_instruments.identity import LoaderNumbers
            from voirkit_instruments.steps.events import StepEvents
            from voirkit_instruments.steps.record_spans import Recording
            from voirkit_instruments.steps.record_torch import TorchPatches

            if self._recorder is None:
                from voirkit.trace import recorder

                self._recorder = recorder
            numbers = self._ov.shared(LoaderNumbers)
            recording = Recording(self._recorder, torch, self._ov.warn, numbers)
            self._torch = TorchPatches(recording, self._ov.warn, self._ov.shared(StepEvents))
            self._torch.install()
            self._recorder.timed(0, time.perf_counter_ns() - start_ns, "start")
        except Exception as exc:  # a torch that is not like any known one
            self._ov.warn(f"steps: nothing is recorded of torch ({type(exc).__name__}: {exc}).")

    def watch_program(self) -> None:
        """The script's definitions have been executed."""
        if self._torch is None:
            return
        start_ns = time.perf_counter_ns()
        try:
            self._torch.watch_program()
        except Exception as exc:  # modules of the program's may hold anything
            self._ov.warn(
                f"steps: the program's own optimizers are not timed ({type(exc).__name__}: {exc})."
            )
        self._recorder.timed(0, time.perf_counter_ns() - start_ns, "start")

    def on_given(self, event: dict[str, Any]) -> None:
        """Record each step that is given with one of ``TASKS`` as evaluation
        (``voirkit.iterate("eval", ...)``). Must never raise: the script gives in the middle of its
        work."""
        wrap = event.get("$wrap")
        if wrap is None or self._torch is None or self._over:
            return
        if wrap.get("name") != "step" or event.get("task") not in TASKS:
            return
        key = (wrap["id"], get_ident())
        if wrap["step"] == "begin":
            self._evaluations[key] = time.perf_counter_ns()
            return
        start_ns = self._evaluations.pop(key, None)
        if start_ns is not None:
            name = self._torch.recording.phase("given", "evaluation")
            self._recorder.span(name, start_ns, time.perf_counter_ns())

    def watch_children(self) -> None:
        """Record in the processes that are spawned from this one too; not in one that loads
        data, which pays nothing."""
        inherit.watch(_CHILD_ENTRY, self._offer)

    def _offer(self) -> dict[str, Any] | None:
        from voirkit_instruments.identity import is_starting_worker

        return None if is_starting_worker() else {"warnings": self._ov.warnings}

    def end(self, completed: bool = True) -> None:
        """The program has ended, as in ``TorchPatches.remove``: put torch back as it was, and
        report what was done to it."""
        self._over = True
        if self._torch is None:
            return
        hot = self._torch.recording.hot
        device = hot.device
        self._torch.remove(completed)
        self._recorder.timed(hot.spans, hot.own_ns)
        patches = self._ov.summary.setdefault("patches", [])
        for name, why in self._torch.patches.table.items():
            patches.append({"name": name, "why_not": why or None})
        n_lost = {
            "device times": device.finish() if device is not None else 0,
            "collectives": self._torch.collectives.lost,
        }
        self._ov.summary["dropped"].update({name: n for name, n in n_lost.items() if n})


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
        steps.watch_children()
        ov.when_given(lambda given: given.watch("$wrap", steps.on_given, only_given=True))
    completed = False
    try:
        yield ov.phases.load_script
        steps.watch_program()
        yield ov.phases.run_script
        completed = True
    finally:
        commands = processes.commands() if recorder is None else []
        if commands:
            ov.summary["unrecorded_processes"] = commands
        inherit.unwatch(_CHILD_ENTRY)
        steps.end(completed)


# in processes that multiprocessing spawns


def begin_in_child(offer: dict[str, Any]) -> None:
    """In such a process: record as the parent does, once it has torch."""
    from voirkit.processes.children import this_process

    if not inherit.is_watched(_CHILD_ENTRY):
        steps = Steps(this_process(offer["warnings"]))
        steps.watch_children()
        when_imported("torch", steps.start)


# the loss

MOST_POINTS = 256
_INFINITE = float("inf")


class Losses:
    """The first and the last loss, how many there were, and some between. Every loss is kept at
    first; when there are 256, every second, then every fourth ...: a long run costs no more than a
    short one."""

    def __init__(self) -> None:
        self.n = 0  # how many losses there were
        self._first: Any = None
        self._last: Any = None
        self._every = 1
        self._samples: list[tuple[int, Any]] = []  # number, loss
        self._n_read = self._n_not_finite = 0
        self._first_not_finite: tuple[int, float] | None = None

    def on_event(self, event: dict[str, Any]) -> None:
        """Add the loss of a given event, if it has one."""
        if "loss" in event:
            self.add(event["loss"])

    def add(self, loss: Any) -> None:
        """Add the next loss: a number, a tensor or an array. Waits for no device."""
        # at each step: without the calls below
        if type(loss) is float and self.n and -_INFINITE < loss < _INFINITE:
            self._n_read += 1
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
            self._first = self._samples[0][1]
        self._last = loss  # the last is read before the program can write over it
        self.n += 1

    def _sample(self, loss: Any) -> None:
        # the program may write over it
        self._samples.append((self.n, loss.clone() if hasattr(loss, "clone") else loss))
        if len(self._samples) >= MOST_POINTS:
            del self._samples[1::2]
            self._every *= 2

    def _check(self, index: int, loss: float) -> None:
        self._n_read += 1
        if not abs(loss) < _INFINITE:
            self._n_not_finite += 1
            if self._first_not_finite is None:
                self._first_not_finite = index, loss

    def summary(self) -> dict[str, Any] | None:
        """``first``, ``last``, ``n``, ``not_finite``, ``curve``; None if no loss was given, or none
        that is a number.

        ``curve`` is pairs of (number of the loss, from 0; loss or None if it is no finite number).
        ``not_finite`` is None, or ``first`` (the number of the first loss that is not), its
        ``value``, ``n``, and ``of`` how many: of losses on a device only those of the curve are
        looked at.
        """
        first, last = number(self._first), number(self._last)
        if first is None or last is None:
            return None
        curve = []
        for index, loss in self._samples:
            plain = number(loss)
            if plain is not None:
                if type(loss) is not float:
                    self._check(index, float(plain))
                curve.append((index, float(plain) if abs(plain) < _INFINITE else None))
        not_finite = None
        if self._first_not_finite is not None:
            index, value = self._first_not_finite
            not_finite = {
                "first": index,
                "value": str(value),
                "n": self._n_not_finite,
                "of": self._n_read,
            }
        return {
            "first": float(first),
            "last": float(last),
            "n": self.n,
            "not_finite": not_finite,
            "curve": curve,
        }

    def means(self) -> tuple[float, float] | None:
        """Mean of the first and of the last quarter of the samples; None with less than two losses
        that are numbers. Of a loss for each sample its mean counts."""
        numbers = [_as_float(loss) for _, loss in self._samples]
        values = [value for value in numbers if value is not None]
        quarter = max(1, len(values) // 4)
        if len(values) < 2:
            return None
        return sum(values[:quarter]) / quarter, sum(values[-quarter:]) / quarter


MOST_SERIES = 64
_MOST_PENDING = 1024  # backward passes without a step of an optimizer
_MOST_ASKED = 16  # passes of a series of which it is asked whether their loss was divided
_MOST_DIVISORS = 4


class LossSeries(Losses):
    """The losses of the backward passes whose gradients one optimizer used."""

    def __init__(self, number: int, first_pass: int) -> None:
        super().__init__()
        self.number = number  # of the optimizers, as they came
        self.updates = 0  # steps of the optimizer
        self.single = 0  # those after one pass
        self.first_pass = self.last_pass = first_pass  # among the passes of all series
        self._sizes: dict[int, int] = {}  # how many of the others had so many passes
        self._divisors: set[float] = set()  # by what losses were divided; 1: by nothing

    def add_update(self, losses: list[Any]) -> None:
        """The optimizer has stepped, for the first time since these losses."""
        size = len(losses)
        self.updates += 1
        if size == 1:
            self.single += 1
        else:
            self._sizes[size] = self._sizes.get(size, 0) + 1
        for loss in losses:
            self.add(loss)

    def note_divisor(self, divisor: float | None) -> None:
        """A loss was divided by this."""
        if len(self._divisors) < _MOST_DIVISORS:
            self._divisors.add(1.0 if divisor is None else round(divisor, 6))

    def passes_of_update(self) -> int:
        """How many passes most of the updates have."""
        size = max(self._sizes, key=self._sizes.__getitem__, default=1)
        return size if self._sizes.get(size, 0) > self.single else 1

    def summary(self) -> dict[str, Any] | None:
        """As of ``Losses``, as ``backward`` gets them; where several passes are one update,
        ``passes``: how many, and ``times``: that number, if the losses were divided by just it, or
        ``divided``: whether they were divided by another one."""
        summary = super().summary()
        passes = self.passes_of_update()
        if summary is None or passes == 1:
            return summary
        summary["passes"] = passes
        if self._divisors == {float(passes)}:
            summary["times"] = passes
        elif self._divisors - {1.0}:
            summary["divided"] = True
        return summary


class _Passes:
    """The backward passes of one thread."""

    def __init__(self) -> None:
        self.losses: list[Any] = []  # of the passes since the last step
        # by what they were divided, of those of which it was asked
        self.divisors: list[float | None] = []
        self.optimizer = 0  # whose series the ones before are of
        self.series: LossSeries | None = None  # that one
        self.next_optimizer: dict[int, int] = {}  # which optimizer stepped after which
        self.never_steps = False

    def end_series(self, n_passes: int) -> None:
        """Note that so many passes of all series had ended with one of this thread's series."""
        if self.series is not None:
            self.series.last_pass = max(self.series.last_pass, n_passes)


class SeenLosses:
    """The losses that the recorder sees: a series for each optimizer, of the losses of the passes
    since the step before. ``n``: of all."""

    def __init__(self) -> None:
        self.n = 0
        # passes of which it is still to be asked by what their loss was divided
        self.looks = _MOST_ASKED
        self._last: Any = None
        # by the optimizer; 0: of passes that no optimizer used
        self._series: dict[int, LossSeries] = {}
        self._n_series = 0
        self._threads: dict[int, _Passes] = {}

    def add(self, loss: Any, stepped: int = 0, divisor: float | None = None) -> None:
        """Add the loss of a backward pass that is about to begin. Waits for no device.

        Args:
            loss: A number, or a tensor.
            stepped: The optimizer that has stepped since the last pass of this thread; 0: none has.
            divisor: By what the loss was divided, if that was asked for (``looks``).
        """
        thread = get_ident()
        passes = self._threads.get(thread)
        if passes is None:
            passes = self._threads[thread] = _Passes()
        is_read = type(loss) is float
        series, pending = passes.series, passes.losses
        # At nearly each step of most programs: one pass before it, no other optimizer, and nothing
        # to ask for.
        if (
            series is not None
            and stepped == passes.optimizer
            and is_read
            and len(pending) == 1
            and not self.looks
        ):
            series.updates += 1
            series.single += 1
            series.add(pending[0])
            pending[0] = self._last = loss
            self.n += 1
            return
        if stepped:
            self._step(passes, stepped)
        self.n += 1
        self._last = loss
        if self.looks:
            self.looks -= 1
            passes.divisors.append(divisor)
        passes.losses.append(loss if is_read else self._copied(passes, loss))
        if passes.never_steps or len(passes.losses) >= _MOST_PENDING:
            passes.never_steps = True
            self._flush(passes, 0)

    def _copied(self, passes: _Passes, loss: Any) -> Any:
        """A loss that is not read yet, and may be written over before the optimizer steps."""
        is_sampled = passes.series is None or not self.n % passes.series._every
        return loss.clone() if is_sampled and hasattr(loss, "clone") else loss

    def _step(self, passes: _Passes, optimizer: int) -> None:
        passes.never_steps = False
        if passes.losses:
            if passes.next_optimizer.get(passes.optimizer) != optimizer:
                passes.next_optimizer[passes.optimizer] = optimizer
            self._of(passes, optimizer).add_update(passes.losses)
            passes.losses = []

    def _flush(self, passes: _Passes, optimizer: int) -> None:
        """Put losses into a series whose optimizer has not stepped after them."""
        if passes.losses:
            series = self._of(passes, optimizer)
            for loss in passes.losses:
                series.add(loss)
            passes.losses = []

    def _of(self, passes: _Passes, optimizer: int) -> LossSeries:
        """The series of an optimizer, into which the losses of a thread are about to be put."""
        first_pass = self.n - len(passes.losses)
        passes.end_series(first_pass)
        passes.optimizer = optimizer
        series = self._series.get(optimizer)
        if series is None:
            if len(self._series) >= MOST_SERIES:
                del self._series[min(self._series, key=lambda key: self._series[key].n)]
            series = self._series[optimizer] = LossSeries(self._n_series, first_pass)
            self._n_series += 1
            self.looks = _MOST_ASKED
        passes.series = series
        if passes.divisors:
            for divisor in passes.divisors:
                series.note_divisor(divisor)
            passes.divisors = []
        return series

    def summary(self) -> dict[str, Any] | None:
        """As of the ``LossSeries`` with most updates, of several the last; with all of them as
        ``series`` if there are more."""
        for passes in list(self._threads.values()):
            following = passes.next_optimizer.get(passes.optimizer, passes.optimizer)
            series = self._series.get(following)
            if following and series is not None and len(passes.losses) == series.passes_of_update():
                self._step(passes, following)  # nobody has asked since whether it has stepped
            else:
                self._flush(passes, following)
            passes.end_series(self.n)
        summaries: dict[LossSeries, dict[str, Any]] = {}
        for series in sorted(self._series.values(), key=lambda series: series.number):
            summary = series.summary()
            if summary is not None:
                summaries[series] = summary
        if not summaries:
            return None
        main = summaries[max(summaries, key=lambda series: (series.updates, series.number))]
        if len(summaries) == 1:
            return main
        rows = [
            {
                "optimizer": series.number,
                "updates": series.updates,
                "passes_from_to": [series.first_pass, series.last_pass],
                **summary,
            }
            for series, summary in summaries.items()
        ]
        return {**main, "series": rows}


class LossesOfRun:
    """The losses of a run: those that are given, which win, and those that the recorder sees."""

    def __init__(self) -> None:
        self.given = Losses()
        self.seen = SeenLosses()

    def summary(self) -> dict[str, Any] | None:
        """See ``Losses.summary``."""
        return self.given.summary() or self.seen.summary()

    def latest(self) -> float | None:
        """The last loss, from any thread; None of one on a device, for which would have to be
        waited."""
        loss = self.given._last if self.given.n else self.seen._last
        return loss if type(loss) is float else None


def _as_float(loss: Any) -> float | None:
    plain = number(loss)
    if plain is not None:
        return float(plain)
    try:  # one loss for each sample
        if not may_be_read(loss):
            return None
        losses = loss.float() if hasattr(loss, "float") else loss
        return float(losses.mean())
    except Exception:  # not a number of any kind
        return None


def record_loss(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Put the losses into the summary, and give what the recorder sees of the training to those who
    listen. Losses that are given win over those that the recorder sees."""
    losses = ov.shared(LossesOfRun)

    ov.when_given(lambda given: given.watch("loss", losses.given.on_event, only_given=True))
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
