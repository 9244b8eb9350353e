"""Values of a training run that the steps instrument observes and gives (``loss``, ``step``, ...),
for scripts that give none themselves and have no voirfile.

=============  ====================================================  ===============================
given          value                                                 when
=============  ====================================================  ===============================
``loss``       the value that ``backward`` is called on, if it is a  at each ``backward``
               single number; before scaling by a ``GradScaler``
``step``       the number of the step, from 0; with its ``batch``,   when the next batch is
               or ``batch_size=None`` without a loader               requested; without a loader
                                                                     after the optimizer step
``loader``     a loader                                              when it is first iterated
``model``      the outermost module that is called for training      once
``optimizer``  an optimizer                                          at its first step
``use_cuda``   True if the loss is on a GPU                          at the first ``backward``
=============  ====================================================  ===============================

A name that the program or a voirfile gives itself is not given here. Each event from here has the
key ``$recorder``. If there can be no listener, only the loss is read. Forked children give nothing.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from voirkit.fork import at_fork
from voirkit.probes.around import ABSENT
from voirkit_instruments.guard import Guard
from voirkit_instruments.identity import IdentityMap
from voirkit_instruments.steps.events import (
    BACKWARD_BEGAN,
    BATCH_REQUESTED,
    FORWARD,
    LOADER_ITERATED,
    LOSS,
    LOSS_SCALED,
    OPTIMIZER_STEP,
    StepEvents,
)
from voirkit_instruments.steps.record_plain import SUPPRESSED
from voirkit_instruments.values import ScalarReader, constant_divisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.steps.record import SeenLosses

    StepSubscriber = Callable[[list["FinishedStep"]], None]

now = time.perf_counter_ns


# Reports are batched: after a training step voirkit's data is not in the CPU caches, and reporting
# each step cost 100 us.
REPORTED_EVERY_NS = 500_000_000


class FinishedStep(NamedTuple):
    """A finished step; times are those of ``time.perf_counter_ns``."""

    # when its batch was requested; without a loader, the end of the previous step if that had none
    # either, otherwise None
    began_ns: int | None
    arrived_ns: int | None  # when its batch arrived; None without a loader
    ended_ns: int
    items: int | None  # items in its batch; None if unknown
    batch: object  # its batch, if the number of items is unknown; otherwise None
    thread: int


class _Loop(threading.local):
    """The state of one thread's training loop. A step is open from the arrival of its batch to the
    next request for a batch."""

    # weak reference to the iterator that returned the batch; None if no step is open
    iterator: Any = None
    batch: Any = None
    has_trained = False
    began_ns: int | None = None
    asked_ns = arrived_ns = 0
    items: int | None = None  # items in the batch
    stepped_ns: int | None = None  # when the last optimizer step without a loader ended


_every: weakref.WeakSet[TrainingValues] = weakref.WeakSet()


def _off_in_child() -> None:
    for values in list(_every):
        values.guard.is_off = True


at_fork("instruments", in_child=_off_in_child)


class TrainingValues:
    """The values that the steps instrument gives in one run. ``ov``: the overseer."""

    def __init__(self, ov: Overseer) -> None:
        self._ov = ov
        self._losses: SeenLosses | None = None
        self._events: StepEvents | None = None
        self._loop = _Loop()
        self._steps = 0
        # weak reference to a loss scaled by a GradScaler; the unscaled loss; the divisor of the
        # loss
        self._scaled: tuple[Any, Any, float | None] | None = None
        self._given: set[str] = set()  # names of values that are given only once, and have been
        self._seen = IdentityMap()  # loaders and optimizers that have been given
        # weak reference to the optimizer that stepped last
        self._optimizer: Callable[[], Any] = lambda: None
        # called with several finished steps at once, at most REPORTED_EVERY_NS after they ended
        self.on_steps: list[StepSubscriber] = []
        self._finished: list[FinishedStep] = []  # finished steps that are not reported yet
        self._reported_ns = 0
        self._lock = threading.Lock()
        # off in forked children, or after the first failure
        self.guard = Guard(ov.warn, "The script's loss and steps are not given any more")
        _every.add(self)

    def start(self, torch: ModuleType, losses: SeenLosses, listened: bool) -> None:
        """Subscribe to the training events. Called once torch has been imported, and before the
        steps instrument patches it.

        Args:
            losses: Receives every loss, for the summary.
            listened: True if there may be listeners for given values.
        """
        self._losses = losses
        self._events = events = self._ov.shared(StepEvents)
        self._read = ScalarReader(torch).read
        self._torch, self._tensor = torch, torch.Tensor
        self._grad_enabled = torch.is_grad_enabled
        events.subscribe(LOSS_SCALED, after=self.guard.guarded(self._after_scale))
        events.subscribe(BACKWARD_BEGAN, before=self.guard.guarded(self._keep_loss))
        if not listened:
            return
        self._criterion = torch.nn.modules.loss._Loss
        events.subscribe(LOSS, before=self.guard.guarded(self._before_backward))
        events.subscribe(OPTIMIZER_STEP, after=self.guard.guarded(self._stepped))
        events.subscribe(LOADER_ITERATED, before=self.guard.guarded(self._iterated))
        events.subscribe(
            BATCH_REQUESTED,
            before=self.guard.guarded(self._batch_requested),
            after=self.guard.guarded(self._arrived),
        )
        events.subscribe(FORWARD, before=self.guard.guarded(self._called))

    @property
    def n_losses(self) -> int:
        """Number of losses seen."""
        return 0 if self._losses is None else self._losses.n

    def step_began_ns(self) -> int | None:
        """Return the start time of this thread's open step: the request for its batch. None if no
        step is open, or the open step has not trained yet."""
        loop = self._loop
        is_open = loop.iterator is not None and loop.iterator() is not None
        return loop.began_ns if is_open and loop.has_trained else None

    def _after_scale(self, outputs: Any, scaled: Any) -> None:
        """Remember a loss that ``GradScaler.scale`` has scaled."""
        if isinstance(scaled, self._tensor):
            loss, divisor = self._read(outputs), self._divisor(outputs)
            self._scaled = (weakref.ref(scaled), loss, divisor)

    # the loss of a backward pass

    def _loss(self, tensors: Any) -> tuple[Any, float | None]:
        """Return the loss that ``backward`` is called on, unscaled, and its divisor. The scaled
        loss is forgotten only in ``_keep_loss``."""
        if type(tensors) in (tuple, list):
            if len(tensors) != 1:
                return None, None
            tensors = tensors[0]
        if self._scaled is not None:
            reference, loss, divisor = self._scaled
            if reference() is tensors:
                return loss, divisor
        return self._read(tensors), self._divisor(tensors)

    def _divisor(self, loss: Any) -> float | None:
        if self._losses is None or not self._losses.looks:
            return None
        return constant_divisor(self._torch, loss, self._read)

    def _keep_loss(self, tensors: Any) -> None:
        losses, events = self._losses, self._events
        assert losses is not None
        assert events is not None
        # This runs at each step, when the CPU caches hold nothing of voirkit: each avoided call
        # saves 1 to 2 us.
        if type(tensors) is self._tensor and self._scaled is None and not losses.looks:
            loss, divisor = self._read(tensors), None
        else:
            loss, divisor = self._loss(tensors)
            self._scaled = None
        thread = events.here
        thread.loss = loss  # kept only if it is a float: nothing is kept of a loss on a device
        if loss is not None:
            stepped = thread.stepped
            if stepped:
                thread.stepped = 0
            losses.add(loss, stepped, divisor)

    def _before_backward(self, tensors: Any) -> None:
        self._loop.has_trained = True
        if "use_cuda" in self._given and not self._ov.has_listener("loss"):
            return
        loss, _ = self._loss(tensors)
        if loss is None:
            return
        if "use_cuda" not in self._given:
            device = getattr(loss, "device", None)
            self._offer_once("use_cuda", getattr(device, "type", "cpu") == "cuda")
        self._offer({"loss": loss})

    # training steps

    def _iterated(self, *arguments: Any) -> None:
        loader = arguments[-1]
        if self._is_new(loader):
            self._offer({"loader": loader})

    def _batch_requested(self, iterator: Any) -> None:
        loop = self._loop
        loop.asked_ns = now()
        if loop.iterator is not None and loop.has_trained:
            self._end_step(loop, loop.asked_ns)

    def _arrived(self, iterator: Any, batch: Any = ABSENT) -> None:
        loop = self._loop
        opened = loop.iterator() if loop.iterator is not None else None
        if batch is ABSENT:
            if opened is iterator:
                loop.iterator = loop.batch = None
        # If another iterator's batch opened the step, this batch is of the same step (zip).
        elif opened is None or opened is iterator:
            loop.iterator, loop.batch, loop.has_trained = weakref.ref(iterator), batch, False
            loop.began_ns, loop.arrived_ns = loop.asked_ns, now()
            assert self._events is not None
            items = self._events.here.items
            loop.items = None if items < 0 else items

    def _stepped(self, optimizer: Any) -> None:
        loop = self._loop
        if self._optimizer() is not optimizer:
            self._optimizer = weakref.ref(optimizer)
            if self._is_new(optimizer):
                self._offer({"optimizer": optimizer})
        if loop.iterator is not None and loop.iterator() is None:
            # The iterator has been released: the program has left the loop.
            if loop.has_trained:
                self._end_step(loop, now())
            loop.iterator = loop.batch = None
        if loop.iterator is None:
            began_ns, loop.stepped_ns = loop.stepped_ns, now()
            self._give_step({"batch_size": None}, began_ns, None, loop.stepped_ns)
        else:
            loop.has_trained = True

    def _end_step(self, loop: _Loop, end_ns: int) -> None:
        batch, loop.batch, loop.iterator, loop.has_trained = loop.batch, None, None, False
        loop.stepped_ns = None
        self._give_step({"batch": batch}, loop.began_ns, loop.arrived_ns, end_ns, loop.items)

    def _give_step(
        self,
        batch: dict[str, Any],
        began_ns: int | None,
        arrived_ns: int | None,
        ended_ns: int,
        items: int | None = None,
    ) -> None:
        number = self._steps
        self._steps += 1
        if self._ov.has_listener("step"):
            self._offer({"step": number, **batch})
        if not self.on_steps:
            return
        uncounted = batch.get("batch") if items is None else None
        thread = threading.get_ident()
        step = FinishedStep(began_ns, arrived_ns, ended_ns, items, uncounted, thread)
        self._finished.append(step)
        if uncounted is not None or ended_ns - self._reported_ns >= REPORTED_EVERY_NS:
            self._in_no_phase(self.tell_of_steps)

    def tell_of_steps(self) -> None:
        """Report the steps that have finished so far."""
        with self._lock:
            steps, self._finished = self._finished, []
            self._reported_ns = now()
            if steps:
                for report in self.on_steps:
                    report(steps)

    # values that are given only once

    def _is_new(self, thing: Any) -> bool:
        if self._seen.get(thing):
            return False
        self._seen[thing] = True
        return True

    def _called(self, module: Any) -> None:
        if (
            "model" in self._given
            or not module.training
            or not self._grad_enabled()
            or issubclass(type(module), self._criterion)
        ):
            return
        if _has_parameters(module):
            self._offer_once("model", module)

    def _offer_once(self, name: str, value: Any) -> None:
        self._given.add(name)
        self._offer({name: value})

    def _offer(self, values: dict[str, Any]) -> None:
        """Give values, except those that the program gives itself."""
        self._in_no_phase(self._ov.offer, {**values, "$recorder": True}, True)

    def _in_no_phase(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call listeners; their time counts in no phase."""
        assert self._events is not None
        thread = self._events.here
        was, thread.inside = thread.inside, SUPPRESSED
        try:
            function(*arguments)
        finally:
            thread.inside = was


def _has_parameters(module: Any) -> bool:
    """True if a module or one of its submodules has parameters. Runs no code of the program."""
    if module._parameters:
        return True
    return any(_has_parameters(part) for part in module._modules.values() if part is not None)


def values_of(ov: Overseer) -> TrainingValues:
    """Return the values that the run gives without its script's help."""
    return ov.shared(TrainingValues, ov)
