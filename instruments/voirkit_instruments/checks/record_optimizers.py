"""Recording of optimizers for ``--checks``: each step, each clearing of gradients, and each step of
a scheduler or gradient scaler is a fact.

At a few steps (1 to 4, 8, 16 ... 1024, every 1024th) the parameters of an optimizer are examined:
which have gradients, if these are zero or not finite, and if they are cleared before new ones come.
At each step the address and version of one gradient are read. If both are unchanged when the next
backward pass begins, gradients are examined after its step as well.
"""

from __future__ import annotations

import sys
import time
import weakref
from dataclasses import dataclass
from itertools import compress

from voirkit_instruments.checks.record_backward import Graphs, UntrackedParameter, display_names
from voirkit_instruments.checks.record_embeddings import EmbeddingFacts
from voirkit_instruments.checks.record_facts import (
    STEP,
    SUPPRESSED,
    Watcher,
    digests,
    is_plain,
    is_quiet,
    largest,
    never_raises,
)
from voirkit_instruments.identity import IdentityMap
from voirkit_instruments.values import number, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts, ModelFacts, Named

now = time.perf_counter_ns

# The first ``_FIRST`` steps are all examined; later, at most ``_RARELY`` steps lie between two
# inspections.
_FIRST, _RARELY = 4, 1024
# limits for programs with one optimizer per parameter: only the first optimizers are examined
_MOST_OPTIMIZERS, _MOST_PARAMETERS = 64, 20_000
_PROBES = 3
# learning rates up to this share of the highest one count as close to zero: schedules that decay in
# steps reach 1e-4 on purpose
_TINY = 1e-5
# most additional inspections of an optimizer whose gradients are not yet cleared when the backward
# pass of another optimizer begins
_DOUBTS = 2
SKIPPED, STEPPED, UNKNOWN = 0, 1, 2  # outcome of a scaler's step
RATES_ABOVE, RATES_ZERO, RATES_UNREAD = 0, 1, 2  # state of the learning rates at a step


class OptimizerState:
    """The state of one optimizer."""

    def __init__(self, reference: weakref.ref[Any], number: int) -> None:
        self.reference = reference
        self.number = number
        self.n = 0  # number of steps that the optimizer has done
        self.next_look = 1  # number of the step after which the optimizer is examined next
        # the parameters that had no gradient at any inspection; None before the first one
        self.without: dict[int, UntrackedParameter] | None = None
        # Parameters with the addresses and largest values of their gradients at the last
        # inspection, to find out if the program clears these gradients. None: no gradients are
        # watched.
        self.probes: list[tuple[weakref.ref[Any], int, float]] | None = None
        # line of the first backward pass that began after the last inspection while the gradients
        # of ``probes`` were still in place; None: no such pass
        self.stale: str | None = None
        # the parameter whose gradient's address and version are read at each step; None: not read
        self.first: weakref.ref[Any] | None = None
        # address and version of the gradient of ``first`` after the last step; None: it has no
        # gradient, or a backward pass has begun since
        self.last_gradient: tuple[int, int] | None = None
        # how often a backward pass began while address and version were unchanged; each time, an
        # inspection is planned
        self.doubts = 0
        self.doubted: str | None = None  # line of the last such backward pass
        self.doubted_ns = 0  # end of the step after that backward pass; 0 before this step
        self.scaled = False  # True if a gradient scaler decides whether steps are done
        self.peak = 0.0  # highest learning rate so far of the first parameter group
        self.tiny = False  # True if the current rate is close to zero compared with ``peak``


@dataclass(frozen=True)
class HeldParameters:
    """The parameters that an optimizer holds when it is examined, as lists of the same length."""

    parameters: list[Any]
    trainable: list[bool]
    grads: list[Any]  # None: no gradient
    # largest value of each gradient; 0 without a gradient, -1 if unknown
    norms: list[float]

    def graded_ids(self) -> set[int]:
        """Return the ids of the parameters that have a gradient."""
        pairs = zip(self.parameters, self.grads, strict=True)
        return {id(parameter) for parameter, grad in pairs if grad is not None}

    def counts(self) -> dict[str, int]:
        """Count all parameters, the trainable ones and the ones with gradients. Also count the
        gradients that are zero, or were not read."""
        pairs = zip(self.grads, self.norms, strict=True)
        norms = [norm for grad, norm in pairs if grad is not None]
        n_unread = sum(norm < 0 for norm in norms)
        return {
            "held": len(self.parameters),
            "trainable": sum(self.trainable),
            "graded": len(norms),
            "zero": norms.count(0.0),
            "unread": n_unread,
        }


class OptimizerFacts(Watcher):
    """Code that runs around steps of optimizers, schedulers and scalers and around ``zero_grad``,
    and records them."""

    def __init__(self, facts: Facts, torch: ModuleType, models: ModelFacts, graphs: Graphs) -> None:
        super().__init__(facts, torch)
        self._models = models
        self._graphs = graphs
        self._embeddings = EmbeddingFacts(facts, torch, models)
        self._states = IdentityMap()  # by optimizer: its ``OptimizerState``
        self._count = 0
        self._step = facts.name("step")
        self._zero_grad = facts.name("zero_grad")
        self._scheduler = facts.name("scheduler")
        self._watching: list[OptimizerState] = []
        self._compared: list[OptimizerState] = []
        self._alarmed = False
        self._written: set[str] = set()

    def _state(self, optimizer: Any) -> OptimizerState:
        state: OptimizerState | None = self._states.get(optimizer)
        if state is None:
            reference = weakref.ref(optimizer)
            state = self._states[optimizer] = OptimizerState(reference, self._count)
            self._count += 1
        return state

    def parameter_ids(self) -> set[int]:
        """Return the ids of all parameters that live optimizers hold."""
        optimizers = [optimizer for optimizer, _ in self._states.items()]
        return {id(parameter) for optimizer in optimizers for parameter in _parameters(optimizer)}

    # Creation of an optimizer

    def enter_made(self, _optimizer: Any) -> int:
        return now()

    # Steps of optimizers, schedulers and scalers, and ``zero_grad``

    def enter_step(self, _arguments: Any) -> int:
        """Handle the start of an optimizer step; the step of a base class inside it does not
        count."""
        thread = self._facts.here
        if thread.inside == STEP:
            return 0
        thread.inside = STEP
        return now()

    @never_raises("an optimizer's step")
    def leave_step(self, start_ns: int, was: int, arguments: Any) -> None:
        end = now()
        facts = self._facts
        facts.here.inside = was
        if not start_ns:
            return
        # if the step function is decorated, ``arguments`` is the tuple of all its arguments
        optimizer = arguments[0] if type(arguments) is tuple else arguments
        state = self._state(optimizer)
        state.n += 1
        facts.n_steps += 1
        where = facts.where()
        args = facts.arguments(where, optimizer=state.number)
        facts.span(self._step, start_ns, end, args, _rates_state(optimizer))
        self._check_rate(state, optimizer, where)
        if state.probes is not None:
            self._cleared_or_not(state)
        if state.doubted is not None and not state.doubted_ns:
            state.doubted_ns = now()
        if (state.n >= state.next_look or self._alarmed) and state.number < _MOST_OPTIMIZERS:
            self._examine(state, optimizer, where)
        if state.first is not None:
            state.last_gradient = _gradient_version(state.first)
        facts.cost.add(end, now())

    def _check_rate(self, state: OptimizerState, optimizer: Any, where: str | None) -> None:
        """Record when the learning rate becomes close to zero, and when it rises again."""
        rate = _rate(optimizer.param_groups[0])
        if rate is None:
            return
        state.peak = max(state.peak, rate)
        tiny = rate <= state.peak * _TINY
        if tiny is not state.tiny:
            state.tiny = tiny
            self._facts.mark(
                "rate",
                where,
                state.n,
                optimizer=state.number,
                tiny=tiny,
                rate=rate,
                peak=state.peak,
            )

    def enter_zero_grad(self, _owner: Any) -> int:
        self._facts.here.inside = SUPPRESSED
        return now()

    @never_raises("a zero_grad")
    def leave_zero_grad(self, start_ns: int, was: int, owner: Any) -> None:
        """Record a ``zero_grad``; a call on a model gets the optimizer number -1."""
        facts = self._facts
        facts.here.inside = was
        if start_ns:
            number = -1
            if isinstance(owner, self._torch.optim.Optimizer):
                number = self._state(owner).number
            args = facts.arguments(facts.where(), optimizer=number)
            facts.span(self._zero_grad, start_ns, now(), args, 0)

    def enter_scheduler(self, scheduler: Any, _epoch: Any = None) -> int:
        """Handle the start of a scheduler step; steps of inner schedulers do not count."""
        self._facts.here.inside = SUPPRESSED
        return now()

    @never_raises("a scheduler's step")
    def leave_scheduler(self, start_ns: int, was: int, scheduler: Any, epoch: Any = None) -> None:
        """Record a scheduler step; the fact's value is 1 if the program has passed the epoch. The
        step that the constructor makes is left out."""
        facts = self._facts
        facts.here.inside = was
        if not start_ns or _is_being_made(sys._getframe(2)):
            return
        optimizer = getattr(scheduler, "optimizer", None)
        number = -1 if optimizer is None else self._state(optimizer).number
        kind = type(scheduler).__name__
        period = vars(scheduler).get("T_max") if kind == "CosineAnnealingLR" else None
        more = {"period": period} if type(period) is int else {}
        args = facts.arguments(facts.where(), optimizer=number, scheduler=kind, **more)
        has_epoch = int(epoch is not None and kind != "ReduceLROnPlateau")
        facts.span(self._scheduler, start_ns, now(), args, has_epoch)

    @never_raises("a scaler's step", returns=0)
    def enter_scaler(self, optimizer: Any) -> int:
        """Return the optimizer's number of steps, plus one, before a gradient scaler's step."""
        return self._state(optimizer).n + 1

    @never_raises("a scaler's step")
    def leave_scaler(self, steps: int, _was: int, optimizer: Any) -> None:
        if steps:
            state = self._state(optimizer)
            state.scaled = True
            stepped = STEPPED if state.n >= steps else SKIPPED
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                stepped = UNKNOWN
            self._facts.mark("scaler", self._facts.where(), stepped, optimizer=state.number)

    # Clearing of gradients between two steps

    def before_backward(self, where: str | None) -> None:
        """Check, when a backward pass begins, if the gradients that the last steps used are still
        in place."""
        for state in self._compared:
            if state.last_gradient is not None:
                if state.probes is None and _gradient_version(state.first) == state.last_gradient:
                    self._doubt(state, where)
                state.last_gradient = None
        for state in list(self._watching):
            self._check_cleared(state, where)

    def _check_cleared(self, state: OptimizerState, where: str | None) -> None:
        """Check, when a backward pass begins, if the gradients of the last inspection are
        cleared."""
        grads, values_before = [], []
        for probe in state.probes or ():
            grad = _grad_in_place(probe)
            if grad is not None:
                grads.append(grad)
                values_before.append(probe[2])
        if not is_quiet(self._torch):
            return
        values = zip(largest(self._torch, grads), values_before, strict=True)
        # Gradients whose values have changed before the first backward pass count as cleared: the
        # program lets gradients decay by hand.
        is_stale = state.stale is not None
        if any(value != 0 and (value == was or is_stale) for value, was in values):
            state.stale = state.stale or where or ""
            return
        self._watching.remove(state)
        state.probes = None
        self._mark_cleared(state, True)

    def _doubt(self, state: OptimizerState, where: str | None) -> None:
        """Plan an inspection at the next step: a backward pass begins, and the gradients seem to be
        the same as at the last step."""
        if state.doubts >= _DOUBTS:
            self._compare_no_more(state)
        elif state.doubted is None:
            state.doubts += 1
            state.doubted = where or ""
            state.doubted_ns = 0
            state.next_look = state.n + 1

    def _compare_no_more(self, state: OptimizerState) -> None:
        state.first = state.last_gradient = None
        state.doubts = _DOUBTS
        self._compared = [other for other in self._compared if other is not state]

    def _mark_cleared(self, state: OptimizerState, cleared: bool) -> None:
        """Record if watched gradients were cleared and, if not, the line where this was first
        seen."""
        doubted, state.doubted = state.doubted, None
        if cleared:
            self._facts.mark("cleared", None, state.n, optimizer=state.number)
            return
        if doubted is not None and state.doubted_ns:
            self._facts.mark_at(
                "uncleared", state.doubted_ns, doubted or None, state.n - 1, optimizer=state.number
            )
        self._compare_no_more(state)
        self._facts.mark("uncleared", state.stale or None, state.n, optimizer=state.number)

    def _cleared_or_not(self, state: OptimizerState) -> None:
        """Record, after the next step, if the gradients of the last inspection were cleared."""
        if state.stale is not None:
            is_in_place = any(_grad_in_place(probe) is not None for probe in state.probes or ())
            self._mark_cleared(state, not is_in_place)
        if state in self._watching:
            self._watching.remove(state)
        state.probes = state.stale = state.doubted = None

    def _watch(self, state: OptimizerState, examined: HeldParameters) -> None:
        rows = zip(examined.parameters, examined.grads, examined.norms, strict=True)
        plain = [row for row in rows if row[2] > 0 and is_plain(self._torch, row[1])]
        if not plain:
            return
        smallest = sorted(plain, key=lambda row: row[0].numel())[:_PROBES]
        state.probes = [
            (weakref.ref(parameter), grad.data_ptr(), norm) for parameter, grad, norm in smallest
        ]
        state.stale = None
        self._watching.append(state)
        if state.first is None and state.doubts < _DOUBTS:
            state.first = state.probes[0][0]
            live = [other for other in self._compared if other.reference() is not None]
            self._compared = [*live, state]

    # Inspections of an optimizer

    def loss_not_finite(self) -> None:
        """Handle a loss that is nan or infinite, when its backward pass begins: check if parameters
        are, now and at the next step."""
        self._alarmed = True
        for optimizer, state in self._states.items():
            parameters = _parameters(optimizer)
            self._mark_parameters(parameters, state, self._facts.where(), before=True)

    def _examine(self, state: OptimizerState, optimizer: Any, where: str | None) -> None:
        # The next inspection does not depend on the reason for this one: all ranks must examine the
        # same steps.
        state.next_look = _next_look(state.n)
        torch, facts = self._torch, self._facts
        if not is_quiet(torch):
            return
        examined = self._inspect(optimizer)
        graded = examined.graded_ids()
        names = self._models.names()
        n_of_models = sum(id(parameter) in names for parameter in examined.parameters)
        facts.mark(
            "look",
            where,
            state.n,
            optimizer=state.number,
            kind=type(optimizer).__name__,
            **examined.counts(),
            still=_rates_state(optimizer) == RATES_ZERO,
            of_models=n_of_models,
        )
        self._follow_ungraded(state, examined, graded)
        self._mark_ungraded(state, graded, names, where)
        if not state.scaled:
            bad = _not_finite(examined.parameters, examined.norms)
            self._mark_not_finite("gradient", bad, state, where)
        self._mark_parameters(examined.parameters, state, where)
        self._embeddings.examine(state.number, state.n, where, examined.parameters, examined.grads)
        self._alarmed = False
        if state.probes is None:
            self._watch(state, examined)
        self._graphs.mark_unheld(self.parameter_ids(), where)
        self._models.inspect_again()
        self._models.mark_trained(state.number, graded, where)
        if state.n >= _FIRST:
            self._models.collecting = False
        for after in facts.after_look:
            after(state.number, state.n, where, examined.parameters)

    def _inspect(self, optimizer: Any) -> HeldParameters:
        torch = self._torch
        examined = _parameters(optimizer)[:_MOST_PARAMETERS]
        parameters = [parameter for parameter in examined if isinstance(parameter, torch.Tensor)]
        with quiet(), torch._C.DisableTorchFunction():
            grads = [parameter.grad if parameter.is_leaf else None for parameter in parameters]
            trainable = [bool(parameter.requires_grad) for parameter in parameters]
        return HeldParameters(parameters, trainable, grads, _norms_of(torch, grads))

    def _follow_ungraded(
        self, state: OptimizerState, examined: HeldParameters, graded: set[int]
    ) -> None:
        """Remember the trainable parameters that had no gradient at any inspection."""
        if state.without is not None:
            for key in graded:
                state.without.pop(key, None)
            return
        trainable = compress(examined.parameters, examined.trainable)
        ungraded = [parameter for parameter in trainable if id(parameter) not in graded]
        state.without = {}
        for parameter, digest in zip(ungraded, digests(self._torch, ungraded), strict=True):
            state.without[id(parameter)] = UntrackedParameter(parameter, digest)

    def _mark_ungraded(
        self, state: OptimizerState, graded: set[int], names: dict[int, Named], where: str | None
    ) -> None:
        """Record which trainable parameters had no gradient at any inspection, and never
        changed."""
        live = _live_parameters(state)
        if not live:
            return
        never = self._never_changed(live)
        order = self._models.in_order()
        first = next((index for index, key in enumerate(order) if key in graded), 0)
        before = [key for key in order[:first] if key in never]
        named = before or list(never)
        models = [names[key][1] for key in named if key in names]
        n_never = len(never)
        n_called = sum(key in never for key in order)
        n_of_models = sum(key in names for key in never)
        shown_names = display_names([never[key] for key in named], names)
        self._facts.mark(
            "without",
            where,
            state.n,
            optimizer=state.number,
            never=n_never,
            changed=len(live) - n_never,
            graded=len(graded),
            called=n_called,
            before=len(before),
            of_models=n_of_models,
            model=models[0] if models else "",
            names=shown_names,
        )

    def _never_changed(self, live: list[tuple[UntrackedParameter, Any]]) -> dict[int, Any]:
        """Return a dict from id to each parameter that has not changed since it was first seen."""
        parameters = [parameter for _, parameter in live]
        never = {}
        for (untracked, parameter), digest in zip(
            live, digests(self._torch, parameters), strict=True
        ):
            untracked.changed = untracked.changed or digest != untracked.digest
            if not untracked.changed:
                never[id(parameter)] = parameter
        return never

    def _mark_parameters(
        self,
        parameters: list[Any],
        state: OptimizerState,
        where: str | None,
        before: bool = False,
    ) -> None:
        """Record which of the trained parameters are not finite."""
        # parameters that never have gradients are left out: they may hold any values
        never = state.without or {}
        trained = [
            parameter
            for parameter in parameters[:_MOST_PARAMETERS]
            if parameter.is_leaf and parameter.requires_grad and id(parameter) not in never
        ]
        bad = _not_finite(trained, largest(self._torch, trained))
        self._mark_not_finite("parameter", bad, state, where, before)

    def _mark_not_finite(
        self,
        kind: str,
        bad: list[Any],
        state: OptimizerState,
        where: str | None,
        before: bool = False,
    ) -> None:
        if bad and kind not in self._written:
            self._written.add(kind)
            names = self._models.names()
            self._facts.mark(
                "not_finite",
                where,
                state.n,
                what=kind,
                n=len(bad),
                before=before,
                names=display_names(bad, names),
            )

    def finish(self) -> None:
        try:
            if is_quiet(self._torch):
                self._graphs.read_pending(self)
                if any(state.n > 1 for _, state in self._states.items()):
                    self._graphs.mark_unheld(self.parameter_ids(), None)
        except Exception:
            pass  # the program may have broken the device, and its tensors cannot be read


def _live_parameters(state: OptimizerState) -> list[tuple[UntrackedParameter, Any]]:
    """Return the trainable parameters that had no gradient at any inspection and still exist."""
    live = []
    for untracked in (state.without or {}).values():
        parameter = untracked.reference()
        if parameter is not None and parameter.requires_grad:
            live.append((untracked, parameter))
    return live


def _next_look(n: int) -> int:
    """Return the step at which an optimizer is next examined, after ``n`` steps."""
    if n < _FIRST:
        return n + 1
    return min(1 << n.bit_length(), (n // _RARELY + 1) * _RARELY)


def _not_finite(parameters: list[Any], norms: list[float]) -> list[Any]:
    pairs = zip(parameters, norms, strict=True)
    return [parameter for parameter, norm in pairs if not norm < float("inf")]


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _rates_state(optimizer: Any) -> int:
    """Return ``RATES_ZERO`` if all learning rates are 0; ``RATES_UNREAD`` if this is unknown,
    because a rate on a device is not waited for; otherwise ``RATES_ABOVE``."""
    rates = [_rate(group) for group in optimizer.param_groups]
    if any(rates):
        return RATES_ABOVE
    return RATES_UNREAD if None in rates else RATES_ZERO


def _rate(group: dict[str, Any]) -> float | None:
    """Return the learning rate of a group; None if it is on a device, which is not waited for."""
    rate = group.get("lr")
    return rate if type(rate) is float else number(rate, wait=False)


def _norms_of(torch: ModuleType, grads: list[Any]) -> list[float]:
    """Return the largest value of each gradient; 0 without a gradient, -1 if it cannot be read."""
    norms = iter(largest(torch, [grad for grad in grads if grad is not None]))
    return [0.0 if grad is None else next(norms) for grad in grads]


def _grad_in_place(probe: tuple[weakref.ref[Any], int, float]) -> Any:
    """Return a parameter's gradient if it is the same as at the last inspection; otherwise None."""
    parameter = probe[0]()
    grad = parameter.grad if parameter is not None else None
    try:
        return grad if grad is not None and grad.data_ptr() == probe[1] else None
    except RuntimeError:  # the gradient has become sparse, and has no address
        return None


def _gradient_version(first: weakref.ref[Any] | None) -> tuple[int, int] | None:
    """Return the address and version of a parameter's gradient; None without a gradient, or if it
    has no memory of its own."""
    parameter = None if first is None else first()
    grad = None if parameter is None else parameter.grad
    try:
        return None if grad is None else (grad.data_ptr(), grad._version)
    except RuntimeError:  # the gradient has become sparse, and has no address
        return None


def _is_being_made(frame: Any) -> bool:
    """True if a scheduler's step is made by its constructor."""
    for _ in range(6):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_name == "_initial_step":
            return True
        if code.co_name == "__init__" and "lr_scheduler" in code.co_filename:
            return True
        frame = frame.f_back
    return False
