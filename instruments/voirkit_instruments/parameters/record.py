"""``--parameters``: records norms, changes and gradients of each parameter at optimizer steps into
the trace plane.

It only reads, under no_grad. It adds no hook and no wrapper, draws no random number, changes no
tensor of the program, and keeps only weak references. The steps instrument reports the optimizer
steps (``StepEvents``). An unexpected exception, such as one of torch, is reported once, and
recording stops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit.phases import Phase, PhaseWithPriority
from voirkit_instruments.identity import Ordinals
from voirkit_instruments.parameters.record_plan import (
    GRAD_NONE,
    GRAD_NOT_ZERO,
    GRAD_ZERO,
    Models,
    More,
    Name,
    Plan,
    Records,
)
from voirkit_instruments.steps.events import (
    BACKWARD,
    FORWARD,
    OPTIMIZER_STEP,
    ZERO_GRAD,
    StepEvents,
)
from voirkit_instruments.values import ProbeCost, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.parameters.record_look import Inspection


# By default a parameter is read every 50 steps. That costs 4 % of Adam.step
# (benchmarks/parameters.py).
EVERY = 50


class Parameters:
    """Subscribes to the step events of one run, and passes them to a ``Watch``, which is made when
    torch is imported."""

    def __init__(self, ov: Overseer, every: int, of: Sequence[str]) -> None:
        self._ov = ov
        self._every = every
        self._of = of
        self._watch: Watch | None = None
        self._over = False
        events = ov.shared(StepEvents)
        events.subscribe(FORWARD, before=self._pass_to("called"))
        events.subscribe(BACKWARD, after=self._pass_to("walked"))
        events.subscribe(OPTIMIZER_STEP, self._pass_to("before_step"), self._pass_to("after_step"))
        events.subscribe(
            ZERO_GRAD, self._pass_to("before_zero_grad"), self._pass_to("after_zero_grad")
        )

    def _pass_to(self, method: str) -> Any:
        """Return a subscriber that passes an event to a method of the watch, if it exists yet."""

        def pass_on(*arguments: Any) -> None:
            watch = self._watch
            if watch is not None:
                getattr(watch, method)(*arguments)

        return pass_on

    def torch_imported(self, torch: ModuleType) -> None:
        if self._over:
            return
        try:
            from voirkit.trace import recorder

            self._watch = Watch(torch, recorder, self._every, self._ov.warn, self._of)
        except Exception as exc:  # an unknown version of torch
            self._ov.warn(f"parameters: nothing is recorded of them ({type(exc).__name__}: {exc}).")

    def end(self) -> None:
        self._over = True
        if self._watch is not None:
            self._watch.finish()
            self._watch = None


@instrument_definition
@once("--parameters")
def parameters(ov: Overseer, every: int = EVERY, *of: str) -> Iterator[Phase | PhaseWithPriority]:
    """Record norms, changes and gradients of the parameters at optimizer steps.

    Args:
        every: Steps from one reading of a parameter to the next; 1 to read all at each step.
        of: Other tensors to read: ``buffers`` of the models, ``state`` of the optimizers.
    """
    recording = Parameters(ov, every, of)
    when_imported("torch", recording.torch_imported)
    try:
        yield ov.phases.run_script(priority=1)
    finally:
        recording.end()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    return parameters(options["parameters"] or EVERY, *(options["parameters_of"] or ()))(ov)


now = time.perf_counter_ns
# longest wait for another thread's inspection. After a fork, that thread does not exist in the
# child, so the lock that it holds is never released.
LONGEST_S = 1.0
_OURS = ("voirkit", "torch", "numpy", "contextlib")


def unnoticed(torch: Any) -> type:
    """Return the class of a context manager in which torch records no graph, and no function mode
    or autocast of the program applies. Entering and leaving takes 2 us."""
    set_grad = torch._C._set_grad_enabled
    is_grad = torch.is_grad_enabled
    no_function = torch._C.DisableTorchFunction
    no_autocast = getattr(torch._C, "_DisableAutocast", None)

    class Unnoticed:
        def __enter__(self) -> None:
            self.guards = [quiet(), no_function()]
            if no_autocast is not None:
                self.guards.append(no_autocast())
            for guard in self.guards:
                guard.__enter__()
            self.grad = is_grad()
            # after the guards, since function modes of the program would see this call
            set_grad(False)

        def __exit__(self, *raised: Any) -> None:
            set_grad(self.grad)
            for guard in reversed(self.guards):
                guard.__exit__(None, None, None)

    return Unnoticed


class Watch:
    """Reads the parameters of one process at optimizer steps. ``of``: other tensors to read,
    ``buffers`` and ``state``."""

    def __init__(
        self,
        torch: Any,
        recorder: Any,
        every: int,
        warn: Callable[[str], None],
        of: Collection[str] = (),
    ) -> None:
        # Imported only now, with torch: these modules import numpy, which the script may configure
        # before.
        from voirkit_instruments.parameters import record_look
        from voirkit_instruments.parameters.record_figures import Figures, Later

        self._torch = torch
        self._every = every
        self._warn = warn
        self._inspection = record_look.Inspection
        self._records = Records(recorder)
        self._figures = Figures(torch)
        self._later = Later(torch)
        self._models = Models()
        self._more = More(of, self._models, torch) if of else None
        self._names: dict[int, Name] = {}
        self._names_of = -1  # ``Models.changes`` when the names were read
        self._optimizers = Ordinals()
        self._plans: dict[int, Plan] = {}
        self._thread = threading.local()
        self._plain_types = {torch.Tensor, torch.nn.Parameter}
        self._modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
        self._quiet = unnoticed(torch)
        self._warnings: set[str] = set()
        self._lock = threading.RLock()  # one inspection at a time: several threads may train
        self._cost = ProbeCost(recorder)
        self.is_off = False

    # callbacks of the steps instrument

    def called(self, module: Any) -> None:
        if not self.is_off:
            try:
                self._models.called(module)
            except Exception as exc:  # an unknown kind of module
                self._failed(exc)

    def walked(self) -> None:
        thread_state = self._thread.__dict__
        thread_state["walks"] = thread_state.get("walks", 0) + 1

    def before_step(self, optimizer: Any) -> None:
        start_ns = now()
        thread_state = self._thread.__dict__
        thread_state["inspection"] = None
        if self.is_off:
            return
        inspection = self._unnoticed(lambda: self._inspect(optimizer))
        thread_state["inspection"] = inspection
        thread_state["walked"] = thread_state.get("walks", 0)
        end_ns = now()
        self._cost.add(start_ns, end_ns)
        if inspection is not None:
            inspection.start_ns = end_ns

    def after_step(self, optimizer: Any) -> None:
        end_ns = now()
        thread_state = self._thread.__dict__
        inspection = thread_state.pop("inspection", None)
        if inspection is None or self.is_off:
            return

        def finish_inspection() -> None:
            more: Iterable[tuple[str, Name, Any]] = ()
            if self._more is not None:
                more = self._more.tensors(inspection.plan, inspection.in_turn, optimizer)
            inspection.end(end_ns, thread_state.get("walks", 0) != thread_state["walked"], more)
            if inspection.plan.n == 1:
                # Names are not kept: their keys are ids, which later objects may reuse.
                self._names, self._names_of = {}, -1

        self._unnoticed(finish_inspection)
        self._cost.add(end_ns, now())

    def before_zero_grad(self, optimizer: Any) -> None:
        self._thread.zeroing_ns = now()

    def after_zero_grad(self, optimizer: Any) -> None:
        end_ns = now()
        start_ns = self._thread.__dict__.pop("zeroing_ns", end_ns)
        if self.is_off:
            return

        def record_zeroed() -> None:
            plan = self._plans.get(self._optimizers.of(optimizer))
            if plan is not None:  # None before the first step, when names are not known
                self._records.zero_grad(plan, start_ns, end_ns)
                self._zeroed(plan, start_ns)

        self._unnoticed(record_zeroed)
        self._cost.add(end_ns, now())

    def finish(self) -> None:
        """Record the last values of all parameters that exist at the end of the program."""
        if self.is_off:
            return

        def record_last() -> None:
            self._later.finish()
            for plan in self._plans.values():
                self._inspection.last(plan, self._figures, self._later, self._records)
            self._later.finish()

        self._unnoticed(record_last)
        self._cost.report(self._records.n_records)

    def _unnoticed(self, inspect: Callable[[], Any]) -> Any:
        """Call ``inspect`` while no other thread inspects, and return its result. None if the lock
        is not free within ``LONGEST_S``, or if ``inspect`` failed."""
        if not self._lock.acquire(timeout=LONGEST_S):
            return None
        try:
            with self._quiet():
                return inspect()
        except Exception as exc:  # an unknown version of torch, or kind of tensor
            self._failed(exc)
        finally:
            self._lock.release()
        return None

    # plans: the parameters of an optimizer, and the steps in which each is read

    def _inspect(self, optimizer: Any) -> Inspection | None:
        if self._modes():
            self._warn_once(
                "parameters are not looked at where a TorchDispatchMode is on: it would see it."
            )
            return None
        cuda = self._torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return None
        self._later.deliver()
        plan, parameters = self._plan(optimizer)
        # the divisor of the gradients: under GradScaler, a fused optimizer unscales them in its
        # step
        scale = getattr(optimizer, "grad_scale", None)
        return self._inspection(plan, parameters, scale, self._figures, self._later, self._records)

    def _plan(self, optimizer: Any) -> tuple[Plan, list[Any]]:
        ordinal = self._optimizers.of(optimizer)
        plan = self._plans.get(ordinal)
        is_new = plan is None
        if plan is None:
            plan = self._plans[ordinal] = Plan(ordinal, type(optimizer).__name__, self._every)
            self._records.optimizer(plan, id(optimizer), self._every)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        without_optimizer = self._without_optimizer(plan, parameters)
        parameters += without_optimizer
        if is_new or not plan.is_of(parameters):
            places: list[Any] = [
                (number, index)
                for number, group in enumerate(optimizer.param_groups)
                for index in range(len(group["params"]))
            ]
            places += [None] * len(without_optimizer)
            plan.adopt(parameters, places, self._name_in(plan))
            self._see(plan, parameters, range(len(parameters)))
            plan.arrange(parameters)
        elif self._see(plan, parameters, plan.in_turn()):  # one of them changed: check all
            self._see(plan, parameters, range(len(parameters)))
        return plan, parameters

    def _see(self, plan: Plan, parameters: list[Any], indices: Sequence[int]) -> bool:
        """Compare the metadata (dtype, device, shape ...) of some parameters with the last known,
        and record changes. Returns True if any changed."""
        changed = False
        for index in indices:
            p, watched = parameters[index], plan.watched[index]
            is_readable = self._figures.is_readable(p)
            shape = p.shape if type(p) in self._plain_types else ()
            meta = type(p), p.dtype, p.device, p.requires_grad, shape, is_readable
            if meta != watched.meta:
                changed = True
                watched.meta, watched.why_not = meta, self._why_not(p)
                self._records.metadata(plan, watched, p, now())
        if changed:
            plan.arrange(parameters)
        return changed

    def _without_optimizer(self, plan: Plan, parameters: list[Any]) -> list[Any]:
        """Return the parameters of models that no optimizer holds, if the plan is that of the first
        optimizer, in whose steps they are read; empty for other plans."""
        if plan.ordinal != min(self._plans):
            return []
        if plan.n_models == self._models.changes and plan.n_optimizers == len(self._plans):
            tensors = [watched.ref() for watched in plan.watched if watched.where is None]
            return [tensor for tensor in tensors if tensor is not None]
        plan.n_models, plan.n_optimizers = self._models.changes, len(self._plans)
        with_optimizer = set(map(id, parameters))
        for other in self._plans.values():
            if other is not plan:
                with_optimizer.update(map(id, other.tensors()))
        return [p for p in self._models.parameters() if id(p) not in with_optimizer]

    def _name_in(self, plan: Plan) -> Callable[[Any, Any], Name]:
        if self._names_of != self._models.changes:
            self._names, self._names_of = self._models.names(), self._models.changes

        def name_of(parameter: Any, where: Any) -> Name:
            name = self._names.get(id(parameter))
            if name is not None:
                return name
            if where is None:
                return Name(f"parameter{id(parameter)}")
            return Name(f"optimizer{plan.ordinal}.group{where[0]}.{where[1]}")

        return name_of

    def _why_not(self, parameter: Any) -> str:
        """Return the reason why a parameter's data cannot be read; empty if it can be."""
        if type(parameter) not in self._plain_types:
            module = type(parameter).__module__
            if type(parameter).__name__.startswith("Uninitialized"):
                return "it is not initialized yet"
            return f"it is of a class of its own ({module}.{type(parameter).__qualname__})"
        if parameter.layout is not self._torch.strided:
            return f"its layout is {parameter.layout}"
        if parameter.device.type == "meta":
            return "it has no data (meta)"
        if parameter.is_quantized:
            return "it is quantized"
        if not parameter.is_leaf:
            return "it is no leaf of the graph"
        if not self._figures.is_readable(parameter):
            return "its memory is freed between its uses"
        return ""

    def _zeroed(self, plan: Plan, at_ns: int) -> None:
        """Record the gradients after zero_grad: None, zero or not zero. Gradients that are not None
        are read only if the last step read the parameter in full, or if nothing is known of it."""
        in_turn = set(plan.turns[(plan.n - 1) % plan.every])
        with_gradient = []
        for index, watched in enumerate(plan.watched):
            parameter = watched.ref()
            if parameter is None or watched.where is None or watched.why_not:
                continue
            is_known = watched.zeroed in (GRAD_ZERO, GRAD_NOT_ZERO)
            if parameter.grad is None:
                self._zeroed_is(watched, at_ns, GRAD_NONE)
            elif index in in_turn or not is_known:
                with_gradient.append((watched, parameter.grad))
        if not self._modes():
            self._any_not_zero(with_gradient, at_ns)

    def _any_not_zero(self, with_gradient: list[tuple[Any, Any]], at_ns: int) -> None:
        pairs = [pair for pair in with_gradient if self._figures.is_readable(pair[1])]

        def receive(any_not_zero: list[Any]) -> None:
            for (watched, _), value in zip(pairs, any_not_zero, strict=True):
                self._zeroed_is(watched, at_ns, GRAD_NOT_ZERO if value[0] else GRAD_ZERO)

        self._later.bring([(gradient != 0).any() for _, gradient in pairs], receive)

    def _zeroed_is(self, watched: Any, at_ns: int, flags: int) -> None:
        if watched.zeroed != flags:
            watched.zeroed = flags
            self._records.flags(watched, "zeroed", at_ns, flags)

    # warnings and failures

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            self._warn(f"parameters: {text}")

    def _failed(self, exc: Exception) -> None:
        """Stop recording, with a warning. If code of the program raised the exception (a signal
        handler), raise it again instead."""
        trace = exc.__traceback__
        while trace is not None:
            if not str(trace.tb_frame.f_globals.get("__name__")).startswith(_OURS):
                raise exc
            trace = trace.tb_next
        self.is_off = True
        self._warn_once(
            f"no more is recorded of them ({type(exc).__name__}: {str(exc).partition(chr(10))[0]})."
        )
