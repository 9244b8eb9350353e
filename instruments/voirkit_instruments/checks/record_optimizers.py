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

from voirkit_instruments.calls.record_quiet import quiet
from voirkit_instruments.checks.record_backward import _NAMED, Graphs, Unheld, shown
from voirkit_instruments.checks.record_facts import DEAF, STEP
from voirkit_instruments.checks.record_values import digests, is_plain, is_quiet, largest
from voirkit_instruments.loader_numbers import forgetting
from voirkit_instruments.values import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts
    from voirkit_instruments.checks.record_models import ModelFacts

now = time.perf_counter_ns

_FIRST, _RARELY = 4, 1024  # steps that are all looked at; how many there are at most between two looks
_MOST_OPTIMIZERS, _MOST_PARAMETERS = 64, 20_000  # one optimizer for each parameter: only the first are looked at
_PROBES = 3
_TINY = 1e-5  # of the highest learning rate: schedules that decay in steps come to 1e-4 of it on purpose
_DOUBTS = 2  # looks out of turn at an optimizer whose gradients another's backward pass meets before they are cleared
SKIPPED, STEPPED, UNKNOWN = 0, 1, 2  # what became of a scaler's step


class Held:
    """What is known of an optimizer.

    Attributes:
        which: Its number.
        n: How many steps it has done.
        next_look: The step after which it is looked at.
        without: References to the parameters that had no gradient at any look.
        probes: Of the last look, parameters with their gradients' addresses and largest values, to see whether these are cleared;
            None: that is known.
        stale: Where a backward pass has begun since with these gradients in place.
        first: A parameter whose gradient is asked for at each step, by its address and version alone; None: no more.
        left: What these were after the last step; None: there was none, or a backward pass has begun since.
        doubts: How often they were the same when a backward pass began, which is then looked into.
        doubted_ns: When the step ended before which that was so, and ``doubted`` where.
        scaled: Whether a gradient scaler decides on its steps.
        peak, tiny: Of its first group, the highest learning rate so far; whether the last one is next to nothing of that.
    """

    __slots__ = (
        "doubted", "doubted_ns", "doubts", "first", "left", "n", "next_look", "of", "peak", "probes", "scaled", "stale", "tiny", "which",
        "without",
    )  # fmt: skip

    def __init__(self, of: weakref.ref[Any], which: int) -> None:
        self.of, self.which = of, which
        self.n, self.next_look = 0, 1
        self.peak, self.tiny = 0.0, False
        self.without: dict[int, Unheld] | None = None
        self.probes: list[tuple[weakref.ref[Any], int, float]] | None = None
        self.stale: str | None = None
        self.first: weakref.ref[Any] | None = None
        self.left: tuple[int, int] | None = None
        self.doubts = self.doubted_ns = 0
        self.doubted: str | None = None
        self.scaled = False


class OptimizerFacts:
    """What is told of optimizers.

    Args:
        facts: Where facts are written.
        torch: The module.
        models: Knows the names of parameters.
        graphs: Knows of parameters that no optimizer holds.
    """

    def __init__(self, facts: Facts, torch: ModuleType, models: ModelFacts, graphs: Graphs) -> None:
        self._facts, self._torch, self._models, self._graphs = facts, torch, models, graphs
        self._known: dict[int, tuple[Any, Held]] = {}
        self._count = 0
        self._step, self._zero_grad = facts.name("step"), facts.name("zero_grad")
        self._scheduler, self._scaler = facts.name("scheduler"), facts.name("scaler")
        self._watching: list[Held] = []
        self._asked: list[Held] = []
        self._arguments: dict[tuple[str | None, int], int] = {}
        self._alarmed = False
        self._told: set[str] = set()

    def __deepcopy__(self, memo: object) -> OptimizerFacts:
        return self  # torch.compile copies the constants of code, of which its methods are some

    def _held(self, optimizer: Any) -> Held:
        key = id(optimizer)
        known = self._known.get(key)
        if known is None or known[0]() is not optimizer:
            held = Held(weakref.ref(optimizer), self._count)
            known = self._known[key] = (weakref.ref(optimizer, forgetting(self._known, key)), held)
            self._count += 1
        return known[1]

    def _at(self, where: str | None, which: int) -> int:
        """The arguments of a fact of an optimizer."""
        found = self._arguments.get((where, which))
        if found is None:
            if len(self._arguments) > _MOST_PARAMETERS:
                self._arguments.clear()
            found = self._arguments[where, which] = self._facts.arguments(where, optimizer=which)
        return found

    def held(self) -> set[int]:
        """Identities of all parameters that living optimizers hold."""
        found: set[int] = set()
        for known, _ in list(self._known.values()):
            optimizer = known()
            if optimizer is not None:
                found.update(map(id, _parameters(optimizer)))
        return found

    # an optimizer is made

    def enter_made(self, _optimizer: Any) -> int:
        """Before ``Optimizer._patch_step_function``."""
        return now()

    # each step

    def enter_step(self, _given: Any) -> int:
        """Before an optimizer's step; the step of the class above, inside of it, is no other."""
        here = self._facts.here
        if here.inside == STEP:
            return 0
        here.inside = STEP
        return now()

    def leave_step(self, began: int, was: int, given: Any) -> None:
        """After it."""
        end = now()
        facts = self._facts
        facts.here.inside = was
        if not began:
            return
        try:
            optimizer = given[0] if type(given) is tuple else given  # all arguments, of a decorator's function
            held = self._held(optimizer)
            held.n += 1
            where = facts.places.of(sys._getframe(1))
            facts.span(self._step, began, end, self._at(where, held.which), _is_still(optimizer))
            self._look_at_rate(held, optimizer, where)
            if held.probes is not None:
                self._cleared_or_not(held)
            if held.doubted is not None and not held.doubted_ns:
                held.doubted_ns = now()
            if (held.n >= held.next_look or self._alarmed) and held.which < _MOST_OPTIMIZERS:
                self._look(held, optimizer, where)
            if held.first is not None:
                held.left = _left(held.first)
            facts.cost.add(end, now())
        except Exception as exc:
            facts.failed("an optimizer's step", exc)

    def _look_at_rate(self, held: Held, optimizer: Any, where: str | None) -> None:
        """Tell when the learning rate becomes next to nothing, and when it is more again."""
        rate = _rate(optimizer.param_groups[0])
        if rate is None:
            return
        held.peak = max(held.peak, rate)
        tiny = rate <= held.peak * _TINY
        if tiny is not held.tiny:
            held.tiny = tiny
            self._facts.mark("rate", where, held.n, optimizer=held.which, tiny=tiny, rate=rate, peak=held.peak)

    def enter_zero_grad(self, _owner: Any) -> int:
        """Before gradients are cleared."""
        self._facts.here.inside = DEAF
        return now()

    def leave_zero_grad(self, began: int, was: int, owner: Any) -> None:
        """After that; of a model it is told with the number -1."""
        facts = self._facts
        facts.here.inside = was
        if not began:
            return
        try:
            which = self._held(owner).which if isinstance(owner, self._torch.optim.Optimizer) else -1
            where = facts.places.of(sys._getframe(1))
            facts.span(self._zero_grad, began, now(), self._at(where, which), 0)
        except Exception as exc:
            facts.failed("a zero_grad", exc)

    def enter_scheduler(self, scheduler: Any, _epoch: Any = None) -> int:
        """Before a scheduler's step; those that it asks in turn are none."""
        self._facts.here.inside = DEAF
        return now()

    def leave_scheduler(self, began: int, was: int, scheduler: Any, epoch: Any = None) -> None:
        """After it; its number is 1 if the program has said which epoch it is. That of its making is left out."""
        facts = self._facts
        facts.here.inside = was
        if not began:
            return
        try:
            frame = sys._getframe(1)
            if _is_being_made(frame):
                return
            optimizer = getattr(scheduler, "optimizer", None)
            which = self._held(optimizer).which if optimizer is not None else -1
            kind = type(scheduler).__name__
            period = vars(scheduler).get("T_max") if kind == "CosineAnnealingLR" else None
            more = {"period": period} if type(period) is int else {}
            args = facts.arguments(facts.places.of(frame), optimizer=which, scheduler=kind, **more)
            facts.span(self._scheduler, began, now(), args, int(epoch is not None and kind != "ReduceLROnPlateau"))
        except Exception as exc:
            facts.failed("a scheduler's step", exc)

    def enter_scaler(self, optimizer: Any) -> int:
        """Before a gradient scaler's step: returns how many steps its optimizer has done, and one."""
        try:
            return self._held(optimizer).n + 1
        except Exception as exc:
            self._facts.failed("a scaler's step", exc)
            return 0

    def leave_scaler(self, steps: int, _was: int, optimizer: Any) -> None:
        """After it."""
        if not steps:
            return
        try:
            held = self._held(optimizer)
            held.scaled = True
            stepped = UNKNOWN if getattr(optimizer, "_step_supports_amp_scaling", False) else STEPPED if held.n >= steps else SKIPPED
            args = self._at(self._facts.places.of(sys._getframe(1)), held.which)
            self._facts.recorder.mark(self._scaler, now(), args, stepped)
        except Exception as exc:
            self._facts.failed("a scaler's step", exc)

    # whether gradients are cleared between two steps

    def before_backward(self, where: str | None) -> None:
        """A backward pass begins: the gradients that the last steps used are in place still, or they are not."""
        for held in self._asked:
            if held.left is not None:
                if held.probes is None and _left(held.first) == held.left:
                    self._doubt(held, where)
                held.left = None
        for held in list(self._watching):
            left = [(grad, probe[2]) for probe in held.probes or () if (grad := _grad_in_place(probe)) is not None]
            if not is_quiet(self._torch):
                continue
            values = largest(self._torch, [grad for grad, _ in left])
            # Other values before the first pass since: the program lets gradients decay by hand.
            if any(value != 0 and (value == was or held.stale is not None) for value, (_, was) in zip(values, left, strict=True)):
                held.stale = held.stale or where or ""
            else:
                self._watching.remove(held)
                held.probes = None
                self._tell_cleared(held, True)

    def _doubt(self, held: Held, where: str | None) -> None:
        """A backward pass begins, and the gradients seem to be those of the last step: look whether they are before the next one."""
        if held.doubts >= _DOUBTS:
            self._ask_no_more(held)
        elif held.doubted is None:
            held.doubts += 1
            held.doubted, held.doubted_ns, held.next_look = where or "", 0, held.n + 1

    def _ask_no_more(self, held: Held) -> None:
        held.first = held.left = None
        held.doubts = _DOUBTS
        self._asked = [asked for asked in self._asked if asked is not held]

    def _tell_cleared(self, held: Held, cleared: bool) -> None:
        """Tell what became of gradients that were watched, and, if they were not cleared, where that was first so."""
        doubted, held.doubted = held.doubted, None
        if cleared:
            self._facts.mark("cleared", None, held.n, optimizer=held.which)
            return
        if doubted is not None and held.doubted_ns:
            recorder, args = self._facts.recorder, self._facts.arguments(doubted or None, optimizer=held.which)
            recorder.mark(self._facts.name("uncleared"), held.doubted_ns, args, held.n - 1)
        self._ask_no_more(held)
        self._facts.mark("uncleared", held.stale or None, held.n, optimizer=held.which)

    def _cleared_or_not(self, held: Held) -> None:
        """After the next step."""
        if held.stale is not None:
            still = any(_grad_in_place(probe) is not None for probe in held.probes or ())
            self._tell_cleared(held, not still)
        if held in self._watching:
            self._watching.remove(held)
        held.probes = held.stale = held.doubted = None

    def _watch(self, held: Held, parameters: list[Any], grads: list[Any], norms: list[float]) -> None:
        chosen = [
            (parameter.numel(), weakref.ref(parameter), grad.data_ptr(), norm)
            for parameter, grad, norm in zip(parameters, grads, norms, strict=True)
            if grad is not None and norm > 0 and is_plain(self._torch, grad)
        ]
        if chosen:
            held.probes = [probe[1:] for probe in sorted(chosen, key=itemgetter(0))[:_PROBES]]
            held.stale = None
            self._watching.append(held)
            if held.first is None and held.doubts < _DOUBTS:
                held.first = held.probes[0][0]
                self._asked = [*(asked for asked in self._asked if asked.of() is not None), held]

    # looks

    def loss_not_finite(self) -> None:
        """The loss of the backward pass that begins is nan or infinite: look whether parameters are, and again at the next step."""
        self._alarmed = True
        for known, held in list(self._known.values()):
            optimizer = known()
            if optimizer is not None:
                self._tell_bad("parameter", _parameters(optimizer), held, self._facts.where(3), before=True)

    def _look(self, held: Held, optimizer: Any, where: str | None) -> None:
        # Whatever else it was looked at for: the same steps on all ranks.
        held.next_look = held.n + 1 if held.n < _FIRST else min(1 << held.n.bit_length(), (held.n // _RARELY + 1) * _RARELY)
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
            "look", where, held.n, optimizer=held.which, kind=type(optimizer).__name__, held=len(parameters), trainable=sum(trainable),
            graded=sum(had), zero=sum(h and norm == 0 for h, norm in zip(had, norms, strict=True)), still=bool(_is_still(optimizer)),
            of_models=sum(id(p) in names for p in parameters),
        )  # fmt: skip
        self._without(held, parameters, trainable, had, names, where)
        if not held.scaled:
            bad = [p for p, norm in zip(parameters, norms, strict=True) if not norm < float("inf")]
            self._tell("gradient", bad, held, where)
        self._tell_bad("parameter", parameters, held, where)
        self._alarmed = False
        if held.probes is None:
            self._watch(held, parameters, grads, norms)
        self._graphs.look_at_unheld(self.held(), where)
        self._models.look_again()
        self._models.tell_trained(held.which, {id(p) for p, has in zip(parameters, had, strict=True) if has}, where)
        if held.n >= _FIRST:
            self._models.collecting = False
        for after in facts.after_look:
            after(held.which, held.n, where, parameters)

    def _without(
        self, held: Held, parameters: list[Any], trainable: list[bool], had: list[bool], names: dict[int, Any], where: str | None
    ) -> None:  # fmt: skip
        """Tell of the trainable parameters that had no gradient at any look."""
        if held.without is None:
            none = [p for p, wanted, has in zip(parameters, trainable, had, strict=True) if wanted and not has]
            held.without = {id(p): Unheld(p, digest) for p, digest in zip(none, digests(self._torch, none), strict=True)}
        else:
            for parameter, has in zip(parameters, had, strict=True):
                if has:
                    held.without.pop(id(parameter), None)
        left = [(known, p) for known in held.without.values() if (p := known.of()) is not None and p.requires_grad]
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
            "without", where, held.n, optimizer=held.which, never=len(never), changed=len(left) - len(never), graded=len(graded),
            called=sum(key in never for key in order), before=len(before), of_models=sum(key in names for key in never),
            model=next((names[id(p)][1] for p in said if id(p) in names), ""), names=", ".join(shown(p, names) for p in said[:_NAMED]),
        )  # fmt: skip

    def _tell_bad(self, what: str, parameters: list[Any], held: Held, where: str | None, before: bool = False) -> None:
        never = held.without or {}  # those that are forgotten may hold anything
        used = [p for p in parameters[:_MOST_PARAMETERS] if p.is_leaf and p.requires_grad and id(p) not in never]
        norms = largest(self._torch, used)
        self._tell(what, [p for p, norm in zip(used, norms, strict=True) if not norm < float("inf")], held, where, before)

    def _tell(self, what: str, bad: list[Any], held: Held, where: str | None, before: bool = False) -> None:
        if bad and what not in self._told:
            self._told.add(what)
            names = self._models.names()
            self._facts.mark(
                "not_finite", where, held.n, what=what, n=len(bad), before=before, names=", ".join(shown(p, names) for p in bad[:_NAMED])
            )

    def finish(self) -> None:
        """The program has ended."""
        try:
            if is_quiet(self._torch):
                self._graphs.read_pending(self)
                if any(held.n > 1 for _, held in self._known.values()):
                    self._graphs.look_at_unheld(self.held(), None)
        except Exception:
            pass  # a device that the program has broken


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_still(optimizer: Any) -> int:
    """1 if all learning rates are 0; those on a device are not waited for."""
    return int(all(_rate(group) == 0 for group in optimizer.param_groups))


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


def _left(first: weakref.ref[Any] | None) -> tuple[int, int] | None:
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
