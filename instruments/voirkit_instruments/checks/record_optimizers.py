"""Optimizers: each step, clearing of gradients, step of a scheduler or scaler is a fact.

At a few steps (1 to 4, 8, 16 ... 1024, every 1024th) what they hold is looked at: which parameters have gradients, whether these are zero
or not finite, whether they are cleared before new ones come. At each step the address and version of one gradient are asked for: where they
are the same when the next backward pass begins, gradients are looked at after its step as well.
"""

from __future__ import annotations

import sys
import time
import weakref
from operator import itemgetter

from voirkit_instruments.checks.record_backward import Graphs, Unheld, display_names
from voirkit_instruments.checks.record_embeddings import EmbeddingFacts
from voirkit_instruments.checks.record_facts import DEAF, STEP, Watcher, digests, is_plain, is_quiet, largest, never_raises
from voirkit_instruments.identity import IdentityMap
from voirkit_instruments.values import number, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts, ModelFacts

now = time.perf_counter_ns

_FIRST, _RARELY = 4, 1024  # steps that are all looked at; how many there are at most between two looks
_MOST_OPTIMIZERS, _MOST_PARAMETERS = 64, 20_000  # one optimizer for each parameter: only the first are looked at
_PROBES = 3
_TINY = 1e-5  # of the highest learning rate: schedules that decay in steps come to 1e-4 of it on purpose
_DOUBTS = 2  # looks out of turn at an optimizer whose gradients another's backward pass meets before they are cleared
SKIPPED, STEPPED, UNKNOWN = 0, 1, 2  # what became of a scaler's step
RATES_ABOVE, RATES_ZERO, RATES_UNREAD = 0, 1, 2  # what the learning rates of a step are


class OptimizerState:
    """What is known of an optimizer."""

    def __init__(self, of: weakref.ref[Any], which: int) -> None:
        self.of, self.which = of, which
        self.n = 0  # steps that it has done
        self.next_look = 1  # the step after which it is examined
        self.without: dict[int, Unheld] | None = None  # the parameters that had no gradient at any look
        # Parameters with their gradients' addresses and largest values at the last look, to see whether these are cleared; None: known.
        self.probes: list[tuple[weakref.ref[Any], int, float]] | None = None
        self.stale: str | None = None  # where a backward pass has begun since with these gradients in place
        self.first: weakref.ref[Any] | None = None  # a parameter whose gradient's address and version are read at each step; None: no more
        self.last_gradient: tuple[int, int] | None = None  # these after the last step; None: no gradient, or a backward pass since
        self.doubts = 0  # how often they were the same when a backward pass began, which is then looked into
        self.doubted: str | None = None  # where that was so
        self.doubted_ns = 0  # when the step before it ended
        self.scaled = False  # a gradient scaler decides on its steps
        self.peak, self.tiny = 0.0, False  # highest learning rate of its first group; whether the last one is next to nothing of that


class OptimizerFacts(Watcher):
    """Around steps of optimizers, schedulers and scalers, and around ``zero_grad``."""

    def __init__(self, facts: Facts, torch: ModuleType, models: ModelFacts, graphs: Graphs) -> None:
        super().__init__(facts, torch)
        self._models, self._graphs = models, graphs
        self._embeddings = EmbeddingFacts(facts, torch, models)
        self._known = IdentityMap()
        self._count = 0
        self._step, self._zero_grad = facts.name("step"), facts.name("zero_grad")
        self._scheduler = facts.name("scheduler")
        self._watching: list[OptimizerState] = []
        self._compared: list[OptimizerState] = []
        self._alarmed = False
        self._written: set[str] = set()

    def _state(self, optimizer: Any) -> OptimizerState:
        state: OptimizerState | None = self._known.get(optimizer)
        if state is None:
            state = self._known[optimizer] = OptimizerState(weakref.ref(optimizer), self._count)
            self._count += 1
        return state

    def parameter_ids(self) -> set[int]:
        """Identities of all parameters that living optimizers hold."""
        return {id(parameter) for optimizer, _ in self._known.items() for parameter in _parameters(optimizer)}

    # an optimizer is made

    def enter_made(self, _optimizer: Any) -> int:
        return now()

    # each step

    def enter_step(self, _passed: Any) -> int:
        """Before an optimizer's step; the step of the class above, inside of it, is no other."""
        here = self._facts.here
        if here.inside == STEP:
            return 0
        here.inside = STEP
        return now()

    @never_raises("an optimizer's step")
    def leave_step(self, began: int, was: int, passed: Any) -> None:
        end = now()
        facts = self._facts
        facts.here.inside = was
        if not began:
            return
        optimizer = passed[0] if type(passed) is tuple else passed  # all arguments, of a decorator's function
        state = self._state(optimizer)
        state.n += 1
        facts.n_steps += 1
        where = facts.where()
        facts.span(self._step, began, end, facts.arguments(where, optimizer=state.which), _rates_state(optimizer))
        self._check_rate(state, optimizer, where)
        if state.probes is not None:
            self._cleared_or_not(state)
        if state.doubted is not None and not state.doubted_ns:
            state.doubted_ns = now()
        if (state.n >= state.next_look or self._alarmed) and state.which < _MOST_OPTIMIZERS:
            self._examine(state, optimizer, where)
        if state.first is not None:
            state.last_gradient = _gradient_version(state.first)
        facts.cost.add(end, now())

    def _check_rate(self, state: OptimizerState, optimizer: Any, where: str | None) -> None:
        """Write when the learning rate becomes next to nothing, and when it is more again."""
        rate = _rate(optimizer.param_groups[0])
        if rate is None:
            return
        state.peak = max(state.peak, rate)
        tiny = rate <= state.peak * _TINY
        if tiny is not state.tiny:
            state.tiny = tiny
            self._facts.mark("rate", where, state.n, optimizer=state.which, tiny=tiny, rate=rate, peak=state.peak)

    def enter_zero_grad(self, _owner: Any) -> int:
        self._facts.here.inside = DEAF
        return now()

    @never_raises("a zero_grad")
    def leave_zero_grad(self, began: int, was: int, owner: Any) -> None:
        """After that; that of a model has the number -1."""
        facts = self._facts
        facts.here.inside = was
        if began:
            which = self._state(owner).which if isinstance(owner, self._torch.optim.Optimizer) else -1
            facts.span(self._zero_grad, began, now(), facts.arguments(facts.where(), optimizer=which), 0)

    def enter_scheduler(self, scheduler: Any, _epoch: Any = None) -> int:
        """Before a scheduler's step; those that it asks in turn are none."""
        self._facts.here.inside = DEAF
        return now()

    @never_raises("a scheduler's step")
    def leave_scheduler(self, began: int, was: int, scheduler: Any, epoch: Any = None) -> None:
        """After it; its number is 1 if the program has said which epoch it is. That of its making is left out."""
        facts = self._facts
        facts.here.inside = was
        if not began or _is_being_made(sys._getframe(2)):
            return
        optimizer = getattr(scheduler, "optimizer", None)
        which = self._state(optimizer).which if optimizer is not None else -1
        kind = type(scheduler).__name__
        period = vars(scheduler).get("T_max") if kind == "CosineAnnealingLR" else None
        more = {"period": period} if type(period) is int else {}
        args = facts.arguments(facts.where(), optimizer=which, scheduler=kind, **more)
        facts.span(self._scheduler, began, now(), args, int(epoch is not None and kind != "ReduceLROnPlateau"))

    @never_raises("a scaler's step", returns=0)
    def enter_scaler(self, optimizer: Any) -> int:
        """Before a gradient scaler's step: returns how many steps its optimizer has done, and one."""
        return self._state(optimizer).n + 1

    @never_raises("a scaler's step")
    def leave_scaler(self, steps: int, _was: int, optimizer: Any) -> None:
        if steps:
            state = self._state(optimizer)
            state.scaled = True
            stepped = UNKNOWN if getattr(optimizer, "_step_supports_amp_scaling", False) else STEPPED if state.n >= steps else SKIPPED
            self._facts.mark("scaler", self._facts.where(), stepped, optimizer=state.which)

    # whether gradients are cleared between two steps

    def before_backward(self, where: str | None) -> None:
        """A backward pass begins: the gradients that the last steps used are in place still, or they are not."""
        for state in self._compared:
            if state.last_gradient is not None:
                if state.probes is None and _gradient_version(state.first) == state.last_gradient:
                    self._doubt(state, where)
                state.last_gradient = None
        for state in list(self._watching):
            left = [(grad, probe[2]) for probe in state.probes or () if (grad := _grad_in_place(probe)) is not None]
            if not is_quiet(self._torch):
                continue
            values = largest(self._torch, [grad for grad, _ in left])
            # Other values before the first pass since: the program lets gradients decay by hand.
            if any(value != 0 and (value == was or state.stale is not None) for value, (_, was) in zip(values, left, strict=True)):
                state.stale = state.stale or where or ""
            else:
                self._watching.remove(state)
                state.probes = None
                self._mark_cleared(state, True)

    def _doubt(self, state: OptimizerState, where: str | None) -> None:
        """A backward pass begins, and the gradients seem to be those of the last step: look whether they are before the next one."""
        if state.doubts >= _DOUBTS:
            self._compare_no_more(state)
        elif state.doubted is None:
            state.doubts += 1
            state.doubted, state.doubted_ns, state.next_look = where or "", 0, state.n + 1

    def _compare_no_more(self, state: OptimizerState) -> None:
        state.first = state.last_gradient = None
        state.doubts = _DOUBTS
        self._compared = [asked for asked in self._compared if asked is not state]

    def _mark_cleared(self, state: OptimizerState, cleared: bool) -> None:
        """Write what became of gradients that were watched, and, if they were not cleared, where that was first so."""
        doubted, state.doubted = state.doubted, None
        if cleared:
            self._facts.mark("cleared", None, state.n, optimizer=state.which)
            return
        if doubted is not None and state.doubted_ns:
            self._facts.mark_at("uncleared", state.doubted_ns, doubted or None, state.n - 1, optimizer=state.which)
        self._compare_no_more(state)
        self._facts.mark("uncleared", state.stale or None, state.n, optimizer=state.which)

    def _cleared_or_not(self, state: OptimizerState) -> None:
        """After the next step."""
        if state.stale is not None:
            still = any(_grad_in_place(probe) is not None for probe in state.probes or ())
            self._mark_cleared(state, not still)
        if state in self._watching:
            self._watching.remove(state)
        state.probes = state.stale = state.doubted = None

    def _watch(self, state: OptimizerState, parameters: list[Any], grads: list[Any], norms: list[float]) -> None:
        chosen = [
            (parameter.numel(), weakref.ref(parameter), grad.data_ptr(), norm)
            for parameter, grad, norm in zip(parameters, grads, norms, strict=True)
            if grad is not None and norm > 0 and is_plain(self._torch, grad)
        ]
        if chosen:
            state.probes = [probe[1:] for probe in sorted(chosen, key=itemgetter(0))[:_PROBES]]
            state.stale = None
            self._watching.append(state)
            if state.first is None and state.doubts < _DOUBTS:
                state.first = state.probes[0][0]
                self._compared = [*(asked for asked in self._compared if asked.of() is not None), state]

    # looks

    def loss_not_finite(self) -> None:
        """The loss of the backward pass that begins is nan or infinite: look whether parameters are, and again at the next step."""
        self._alarmed = True
        for optimizer, state in self._known.items():
            self._mark_not_finite_of("parameter", _parameters(optimizer), state, self._facts.where(), before=True)

    def _examine(self, state: OptimizerState, optimizer: Any, where: str | None) -> None:
        # Whatever else it was looked at for: the same steps on all ranks.
        state.next_look = state.n + 1 if state.n < _FIRST else min(1 << state.n.bit_length(), (state.n // _RARELY + 1) * _RARELY)
        torch, facts = self._torch, self._facts
        if not is_quiet(torch):
            return
        parameters = [p for p in _parameters(optimizer)[:_MOST_PARAMETERS] if isinstance(p, torch.Tensor)]
        with quiet(), torch._C.DisableTorchFunction():
            grads = [p.grad if p.is_leaf else None for p in parameters]
            trainable = [bool(p.requires_grad) for p in parameters]
        norms = [0.0 if grad is None else norm for grad, norm in zip(grads, _norms_of(torch, grads), strict=True)]
        had = [grad is not None for grad in grads]
        names = self._models.names()
        facts.mark(
            "look", where, state.n, optimizer=state.which, kind=type(optimizer).__name__, held=len(parameters), trainable=sum(trainable),
            graded=sum(had), zero=sum(h and norm == 0 for h, norm in zip(had, norms, strict=True)), unread=sum(norm < 0 for norm in norms),
            still=_rates_state(optimizer) == RATES_ZERO, of_models=sum(id(p) in names for p in parameters),
        )  # fmt: skip
        self._without(state, parameters, trainable, had, names, where)
        if not state.scaled:
            bad = [p for p, norm in zip(parameters, norms, strict=True) if not norm < float("inf")]
            self._mark_not_finite("gradient", bad, state, where)
        self._mark_not_finite_of("parameter", parameters, state, where)
        self._embeddings.examine(state.which, state.n, where, parameters, grads)
        self._alarmed = False
        if state.probes is None:
            self._watch(state, parameters, grads, norms)
        self._graphs.mark_unheld(self.parameter_ids(), where)
        self._models.inspect_again()
        self._models.mark_trained(state.which, {id(p) for p, has in zip(parameters, had, strict=True) if has}, where)
        if state.n >= _FIRST:
            self._models.collecting = False
        for after in facts.after_look:
            after(state.which, state.n, where, parameters)

    def _without(
        self, state: OptimizerState, parameters: list[Any], trainable: list[bool], had: list[bool], names: dict[int, Any], where: str | None
    ) -> None:  # fmt: skip
        """Write which trainable parameters had no gradient at any look."""
        if state.without is None:
            none = [p for p, wanted, has in zip(parameters, trainable, had, strict=True) if wanted and not has]
            state.without = {id(p): Unheld(p, digest) for p, digest in zip(none, digests(self._torch, none), strict=True)}
        else:
            for parameter, has in zip(parameters, had, strict=True):
                if has:
                    state.without.pop(id(parameter), None)
        left = [(known, p) for known in state.without.values() if (p := known.of()) is not None and p.requires_grad]
        if not left:
            return
        for (known, _), digest in zip(left, digests(self._torch, [p for _, p in left]), strict=True):
            known.changed = known.changed or digest != known.digest
        order = self._models.in_order()
        graded = {id(p) for p, has in zip(parameters, had, strict=True) if has}
        first = next((at for at, key in enumerate(order) if key in graded), None)
        never = {id(p): p for known, p in left if not known.changed}
        before = [key for key in order[: first or 0] if key in never]
        said = [never[key] for key in before] or list(never.values())
        self._facts.mark(
            "without", where, state.n, optimizer=state.which, never=len(never), changed=len(left) - len(never), graded=len(graded),
            called=sum(key in never for key in order), before=len(before), of_models=sum(key in names for key in never),
            model=next((names[id(p)][1] for p in said if id(p) in names), ""), names=display_names(said, names),
        )  # fmt: skip

    def _mark_not_finite_of(self, what: str, parameters: list[Any], state: OptimizerState, where: str | None, before: bool = False) -> None:
        never = state.without or {}  # those that are forgotten may hold anything
        used = [p for p in parameters[:_MOST_PARAMETERS] if p.is_leaf and p.requires_grad and id(p) not in never]
        norms = largest(self._torch, used)
        self._mark_not_finite(what, [p for p, norm in zip(used, norms, strict=True) if not norm < float("inf")], state, where, before)

    def _mark_not_finite(self, what: str, bad: list[Any], state: OptimizerState, where: str | None, before: bool = False) -> None:
        if bad and what not in self._written:
            self._written.add(what)
            names = self._models.names()
            self._facts.mark("not_finite", where, state.n, what=what, n=len(bad), before=before, names=display_names(bad, names))

    def finish(self) -> None:
        try:
            if is_quiet(self._torch):
                self._graphs.read_pending(self)
                if any(state.n > 1 for _, state in self._known.items()):
                    self._graphs.mark_unheld(self.parameter_ids(), None)
        except Exception:
            pass  # a device that the program has broken


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _rates_state(optimizer: Any) -> int:
    """Whether all learning rates are 0, or not, or that is not known: those on a device are not waited for."""
    rates = [_rate(group) for group in optimizer.param_groups]
    if any(rates):
        return RATES_ABOVE
    return RATES_UNREAD if None in rates else RATES_ZERO


def _rate(group: dict[str, Any]) -> float | None:
    """The learning rate of a group; None if it is on a device, which is not waited for."""
    rate = group.get("lr")
    return rate if type(rate) is float else number(rate, wait=False)


def _norms_of(torch: ModuleType, grads: list[Any]) -> list[float]:
    some = [grad for grad in grads if grad is not None]
    found = iter(largest(torch, some))
    return [next(found) if grad is not None else 0.0 for grad in grads]


def _grad_in_place(probe: tuple[weakref.ref[Any], int, float]) -> Any:
    """A parameter's gradient if it is the one of the last look; None if it is gone or another."""
    parameter = probe[0]()
    grad = parameter.grad if parameter is not None else None
    try:
        return grad if grad is not None and grad.data_ptr() == probe[1] else None
    except RuntimeError:  # it is sparse now
        return None


def _gradient_version(first: weakref.ref[Any] | None) -> tuple[int, int] | None:
    """The address and version of a parameter's gradient; None if there is none, or none in memory of its own."""
    parameter = None if first is None else first()
    grad = None if parameter is None else parameter.grad
    try:
        return None if grad is None else (grad.data_ptr(), grad._version)
    except RuntimeError:  # it is sparse now
        return None


def _is_being_made(frame: Any) -> bool:
    """Whether a scheduler's step is the one that its constructor does."""
    for _ in range(6):
        if frame is None:
            return False
        name = frame.f_code.co_name
        if name == "_initial_step" or (name == "__init__" and "lr_scheduler" in frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False
