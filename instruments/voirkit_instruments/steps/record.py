"""Records what each training step spends its time on, as phases in the trace plane, and the loss,
for the summary. Always on; ``--no-steps`` disables it.

Steps, their shares, rates and the verdict are computed from the phases afterwards. Until the
program imports torch, only that import is waited for; a program that never imports torch pays
nothing. Processes that the program starts may train as well, so they are recorded in the same way,
except those that load data.

The loss is the given ``loss``, or, if none is given, the value that ``backward`` is called on. Its
curve is recorded with a bounded number of points, and where it is not finite. No graph is kept
alive, and no device is waited for while the script runs: losses on a device are read at the end,
and only those of the curve.
"""

from __future__ import annotations

import time
from _thread import get_ident  # ``threading`` is not imported here: that is left to the program

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
    """Recording of one run in one process, with patches of torch once torch is imported.

    Args:
        ov: The overseer, or its stand-in in a process that the program has started.
        recorder: The recorder of the trace plane; ``voirkit.trace.recorder`` unless a test passes
            its own.
    """

    def __init__(self, ov: Overseer | ChildProcess, recorder: Any = None) -> None:
        self._ov = ov
        self._recorder = recorder
        self._torch: TorchPatches | None = None
        # (wrapper's id, thread) -> when the evaluation began
        self._evaluations: dict[tuple[object, int], int] = {}
        self._over = False

    def start(self, torch: ModuleType) -> None:
        """Patch torch, which has just been imported."""
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
        except Exception as exc:  # an unknown version of torch
            self._ov.warn(f"steps: nothing is recorded of torch ({type(exc).__name__}: {exc}).")

    def watch_program(self) -> None:
        """Patch the program's own optimizers, after the script's definitions have been executed."""
        if self._torch is None:
            return
        start_ns = time.perf_counter_ns()
        try:
            self._torch.watch_program()
        except Exception as exc:  # modules of the program may hold anything
            self._ov.warn(
                f"steps: the program's own optimizers are not timed ({type(exc).__name__}: {exc})."
            )
        self._recorder.timed(0, time.perf_counter_ns() - start_ns, "start")

    def on_given(self, event: dict[str, Any]) -> None:
        """Record as evaluation each step that is given with one of ``TASKS``
        (``voirkit.iterate("eval", ...)``). Must never raise: it runs in the middle of the script's
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
        """Record also in processes spawned from this one. Data loader workers are not recorded, and
        pay nothing."""
        inherit.watch(_CHILD_ENTRY, self._offer)

    def _offer(self) -> dict[str, Any] | None:
        from voirkit_instruments.identity import is_starting_worker

        return None if is_starting_worker() else {"warnings": self._ov.warnings}

    def end(self, completed: bool = True) -> None:
        """Restore torch at the end of the program, and report what was patched. ``completed``: see
        ``TorchPatches.remove``."""
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
    """Record the phases of training steps."""
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


# recording in processes that multiprocessing spawns


def begin_in_child(offer: dict[str, Any]) -> None:
    """Record in a spawned process as its parent does, once the process has imported torch."""
    from voirkit.processes.children import this_process

    if not inherit.is_watched(_CHILD_ENTRY):
        steps = Steps(this_process(offer["warnings"]))
        steps.watch_children()
        when_imported("torch", steps.start)


# the loss

MOST_POINTS = 256
_INFINITE = float("inf")


class Losses:
    """The first and the last loss, the number of losses, and samples in between. At first every
    loss is sampled; when there are 256 samples, every second loss, then every fourth ...: a long
    run costs no more than a short one."""

    def __init__(self) -> None:
        self.n = 0  # number of losses so far
        self._first: Any = None
        self._last: Any = None
        self._every = 1
        self._samples: list[tuple[int, Any]] = []  # (number of the loss, loss)
        self._n_read = self._n_not_finite = 0
        self._first_not_finite: tuple[int, float] | None = None

    def on_event(self, event: dict[str, Any]) -> None:
        """Add the loss of a given event, if it has one."""
        if "loss" in event:
            self.add(event["loss"])

    def add(self, loss: Any) -> None:
        """Add the next loss: a number, a tensor or an array. Does not wait for a device."""
        # Fast path, because this runs at each step.
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
                loss = loss.detach()  # the program's graph must not be kept alive
        if type(loss) is float:
            self._check(self.n, loss)
        if self.n % self._every == 0:
            self._sample(loss)
        if self.n == 0:
            self._first = self._samples[0][1]
        self._last = loss  # not copied: the last loss is read before the program can overwrite it
        self.n += 1

    def _sample(self, loss: Any) -> None:
        # A tensor is copied, because the program may overwrite it.
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
        """Return ``first``, ``last``, ``n``, ``not_finite``, ``curve``; None if no loss was given,
        or the first or the last loss is not a number.

        ``curve`` is pairs of (number of the loss, from 0; loss, or None if it is not finite).
        ``not_finite`` is None if all checked losses are finite. Otherwise it has ``first`` (the
        number of the first loss that is not finite), its ``value``, ``n`` (how many are not finite)
        and ``of`` (how many were checked). Of losses on a device, only those of the curve are
        checked.
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
        """Return the means of the first and of the last quarter of the samples; None with fewer
        than two losses that are numbers. A loss with a value for each item of the batch counts with
        its mean."""
        numbers = [_as_float(loss) for _, loss in self._samples]
        values = [value for value in numbers if value is not None]
        quarter = max(1, len(values) // 4)
        if len(values) < 2:
            return None
        return sum(values[:quarter]) / quarter, sum(values[-quarter:]) / quarter


MOST_SERIES = 64
_MOST_PENDING = 1024  # maximum number of backward passes that wait for an optimizer step
_MOST_ASKED = 16  # number of passes of a series whose loss is inspected for a divisor
_MOST_DIVISORS = 4


class LossSeries(Losses):
    """The losses of the backward passes whose gradients one optimizer used."""

    def __init__(self, number: int, first_pass: int) -> None:
        super().__init__()
        self.number = number  # number of the optimizer, in order of appearance
        self.updates = 0  # steps of the optimizer
        self.single = 0  # updates after a single pass
        self.first_pass = self.last_pass = first_pass  # their positions among all series' passes
        self._sizes: dict[int, int] = {}  # number of passes -> updates with that many, above 1
        self._divisors: set[float] = set()  # numbers by which losses were divided; 1: not divided

    def add_update(self, losses: list[Any]) -> None:
        """Add the losses of the passes before an update: the optimizer has stepped for the first
        time after them."""
        size = len(losses)
        self.updates += 1
        if size == 1:
            self.single += 1
        else:
            self._sizes[size] = self._sizes.get(size, 0) + 1
        for loss in losses:
            self.add(loss)

    def note_divisor(self, divisor: float | None) -> None:
        """Record that a loss was divided by this number; None: it was not divided."""
        if len(self._divisors) < _MOST_DIVISORS:
            self._divisors.add(1.0 if divisor is None else round(divisor, 6))

    def passes_of_update(self) -> int:
        """Return the number of backward passes that most updates have."""
        size = max(self._sizes, key=self._sizes.__getitem__, default=1)
        return size if self._sizes.get(size, 0) > self.single else 1

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of ``Losses``, for the losses that ``backward`` gets.

        If an update takes several passes, the summary also has ``passes``, their number. If the
        losses were divided by exactly this number, it has ``times``, the same number. If they were
        divided by another number, it has ``divided``, True.
        """
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
        self.losses: list[Any] = []  # losses of the passes since the last optimizer step
        # by inspected loss: the number that it was divided by; None: not divided
        self.divisors: list[float | None] = []
        self.optimizer = 0  # optimizer whose series the previous passes belong to
        self.series: LossSeries | None = None  # the series of that optimizer
        self.next_optimizer: dict[int, int] = {}  # by optimizer: the one that stepped after it
        self.never_steps = False

    def end_series(self, n_passes: int) -> None:
        """Record that this thread's series ends: at this moment there were ``n_passes`` passes of
        all series."""
        if self.series is not None:
            self.series.last_pass = max(self.series.last_pass, n_passes)


class SeenLosses:
    """The losses that the recorder sees: a series for each optimizer, with the losses of the passes
    before its steps. ``n`` is the number of all losses."""

    def __init__(self) -> None:
        self.n = 0
        # number of passes that are still to be inspected for the divisor of their loss
        self.looks = _MOST_ASKED
        self._last: Any = None
        # by number of the optimizer; 0 stands for passes that no optimizer used
        self._series: dict[int, LossSeries] = {}
        self._n_series = 0
        self._threads: dict[int, _Passes] = {}

    def add(self, loss: Any, stepped: int = 0, divisor: float | None = None) -> None:
        """Add the loss of a backward pass that is about to begin. Does not wait for a device.

        Args:
            loss: A number, or a tensor.
            stepped: The optimizer that has stepped since this thread's last pass; 0 if none has.
            divisor: The number by which the loss was divided, if the loss was inspected for it
                (``looks``).
        """
        thread = get_ident()
        passes = self._threads.get(thread)
        if passes is None:
            passes = self._threads[thread] = _Passes()
        is_read = type(loss) is float
        series, pending = passes.series, passes.losses
        # Fast path for nearly all steps of most programs: one pass before the step, the same
        # optimizer, and no divisor to look for.
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
        """Return a loss that is not read yet. A loss that will be sampled is copied, as the program
        may overwrite it before the optimizer steps."""
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
        """Put the pending losses into a series whose optimizer has not stepped after them."""
        if passes.losses:
            series = self._of(passes, optimizer)
            for loss in passes.losses:
                series.add(loss)
            passes.losses = []

    def _of(self, passes: _Passes, optimizer: int) -> LossSeries:
        """Return the series of an optimizer. The caller is about to put the losses of a thread into
        it."""
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
        """Return the summary of the series with the most updates; if several have the most, of the
        last one. If there is more than one series, ``series`` holds the summaries of all."""
        for passes in list(self._threads.values()):
            following = passes.next_optimizer.get(passes.optimizer, passes.optimizer)
            series = self._series.get(following)
            if following and series is not None and len(passes.losses) == series.passes_of_update():
                # The last step has not been noticed yet: that happens only at the next pass.
                self._step(passes, following)
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
    """The losses of a run: given losses, which take precedence, and losses that the recorder
    sees."""

    def __init__(self) -> None:
        self.given = Losses()
        self.seen = SeenLosses()

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of the given losses, or else of the losses that the recorder sees; see
        ``Losses.summary``."""
        return self.given.summary() or self.seen.summary()

    def latest(self) -> float | None:
        """Return the last loss, from any thread; None if it is on a device, as reading it would
        wait for the device."""
        loss = self.given._last if self.given.n else self.seen._last
        return loss if type(loss) is float else None


def _as_float(loss: Any) -> float | None:
    plain = number(loss)
    if plain is not None:
        return float(plain)
    try:  # the loss may have a value for each item of the batch
        if not may_be_read(loss):
            return None
        losses = loss.float() if hasattr(loss, "float") else loss
        return float(losses.mean())
    except Exception:  # the loss is not a number of any kind
        return None


def record_loss(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Put the losses into the summary, and give what the recorder sees of the training to
    listeners. Given losses take precedence over losses that the recorder sees."""
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

        # Because of this subscription the steps instrument patches torch in spite of
        # ``--no-steps``.
        ov.shared(StepEvents).subscribe(LOSS)
    when_imported("torch", start)
    yield ov.phases.finalize
    ov.summary["loss"] = losses.summary()
