"""Patches of torch's functions and of optimizer steps, and the events of a training.

Functions are patched inside their decorators. Only one instrument can patch a function, so the
steps instrument does, and calls the subscribers of the others. They subscribe before torch is
imported, and must not raise; their time is in no phase. Checked with torch 2.1 to 2.15.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from voirkit.intercept import Patches
from voirkit.probes.around import Around
from voirkit_instruments.steps.record_plain import IN_STEP

TYPE_CHECKING = False
if TYPE_CHECKING:
    Subscriber = Callable[..., None]
    Calls = tuple[Callable[..., Any], Callable[..., Any]]

# The versions of each library with which it was checked that the patched functions exist and have
# the variables that are passed on.
CHECKED = {
    "python": "3.10 to 3.15",
    "torch": "2.1 to 2.15",
    "torchdata": "0.11",
    "torchvision": "0.16 to 0.29",
    "albumentations": "2.0",
    "safetensors": "0.7",
    "keras": "3.15",
}

OPTIMIZER_STEP = "step"
ZERO_GRAD = "zero_grad"
MODULE_ZERO_GRAD = "module's zero_grad"
FORWARD = "forward"
LOSS = "loss"
LOSS_SCALED = "scale"
BACKWARD = "backward"
BACKWARD_BEGAN = "backward began"
LOADER_ITERATED = "iter"
BATCH_REQUESTED = "next"
WORKERS_STOPPED = "stop"

# Conditions that the patched functions check. If one is true, torch.compile is tracing the
# function, which then behaves as without voirkit. The tracer (dynamo) takes the condition for a
# constant, so it is not in the compiled graph and does not break the graph. A condition reaches
# torch through a global of the patched function's module: ``torch``, ``dist`` or keras'
# ``backend``.
COMPILING = tuple(
    f"{torch}.{condition}()"
    for torch in ("torch", "dist.torch", "backend.torch.core.torch")
    for condition in ("compiler.is_dynamo_compiling", "_utils.is_compiling")
)


def innermost(function: Any) -> Any:
    """Return the function inside all decorators, such as the one that disables torch.compile."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def as_function(method: Any) -> Any:
    """Return a function that calls a method. torch.compile, which copies the constants of code,
    copies a method together with its object, but copies no function. A method of an object whose
    copy is the object itself (``__deepcopy__``) is returned as it is, which saves a call."""
    if type(method) is FunctionType or hasattr(type(method.__self__), "__deepcopy__"):
        return method

    def call(*arguments: Any) -> Any:
        return method(*arguments)

    return call


class FunctionPatches(Patches):
    """Patches around functions of torch. A function that does not fit is left as it is, and
    ``report`` is called with a sentence about it."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(CHECKED)
        self._report = report

    def mark_unpatched(self, name: str, why: str) -> None:
        """Note and report a function that is not watched."""
        self.table[name] = why
        self._report(f"{name} is not watched: it {why.rstrip('.')}.")

    def when_imported(self, module: str, install: Callable[[ModuleType], None]) -> None:
        """Call ``install`` with a module as soon as it is imported."""
        self.when(module, install, self.mark_unpatched)

    def around_path(self, module: str, path: str, around: Around) -> None:
        """Put code around ``Class.method`` of a module, as ``around`` does, as soon as the module
        is imported."""
        self.when_imported(module, partial(self.around_now, path=path, around=around))

    def around_now(self, module: ModuleType, path: str, around: Around) -> None:
        """Put code around ``Class.method`` of a module that has been imported."""
        function: Any = module
        for part in path.split("."):
            function = getattr(function, part, None)
        self.around_function(f"{module.__name__}.{path}", innermost(function), around)

    def around_function(
        self, name: str, function: Any, around: Around, qualname: str | None = None
    ) -> None:
        """Put code around a function, as ``around`` does, and report the function if that is not
        possible."""
        if not self.around(name, function, around, qualname):
            self.mark_unpatched(name, self.table[name])

    def around_step(self, kind: type, step: Around, decorated: Around) -> None:
        """Put code around the step of an optimizer class: ``step``, or ``decorated`` if torch has
        decorated the class's step. ``decorated`` is passed ``args``. torch decorates the step again
        when the first optimizer of a class is made."""
        function: Any = getattr(kind, "step", None)
        owner = next((above for above in kind.__mro__ if "step" in vars(above)), kind)
        name = f"{owner.__module__}.{owner.__qualname__}.step"
        if type(function) is not FunctionType:
            self.mark_unpatched(name, "is not written in Python")
        elif function.__code__.co_name == "wrapper":
            qualname = "Optimizer.profile_hook_step.<locals>.wrapper"
            self.around_function(name, function, decorated, qualname)
        else:
            self.around_function(name, innermost(function), step)

    def around_steps(self, step: Around, decorated: Around) -> None:
        """Put code around the steps of all classes of which an optimizer has been made."""

        def install(module: ModuleType) -> None:
            stack = [module.Optimizer]
            while stack:
                kind = stack.pop()
                stack += kind.__subclasses__()
                # torch decorates a step when it makes the first optimizer of the class
                if hasattr(vars(kind).get("step"), "hooked"):
                    self.around_step(kind, step, decorated)

        self.when_imported("torch.optim.optimizer", install)


class StepEvents:
    """Subscribers to the events of one run.

    Events:
        ``step``: An optimizer's outermost step. Passes the optimizer.
        ``zero_grad``, ``module's zero_grad``: Gradients are cleared. Passes the optimizer, or the
            module.
        ``forward``: The outermost module call, or a module call in an optimizer's step. Passes the
            module.
        ``backward``: A backward pass. Passes nothing.
        ``loss``: Before ``backward`` begins a backward pass. Passes what it is called on.
        ``backward began``: The same, but as the first part of the backward pass.
        ``scale``: After ``GradScaler.scale``. Passes the loss and the scaled loss.
        ``iter``: A loader makes an iterator. The loader is the last argument.
        ``next``: A loader is asked for a batch. Passes its iterator, and afterwards also the batch,
            or ``ABSENT``.
        ``stop``: The workers of an iterator are stopped, if they have not been before. Passes the
            iterator.
    """

    def __init__(self) -> None:
        # the state of each thread, such as the operation it is inside of; None until code is put
        # around a function that has subscribers
        self.here: Any = None
        self._is_expected = False
        self._before: dict[str, list[Subscriber]] = {}
        self._after: dict[str, list[Subscriber]] = {}
        self._wrap_phase: list[Callable[[str, Calls], Calls]] = []
        # True once the callbacks around the phases have been made, and can no longer be wrapped
        self.is_patched = False

    def __bool__(self) -> bool:
        return self._is_expected

    def subscribe(
        self, event: str, before: Subscriber | None = None, after: Subscriber | None = None
    ) -> None:
        """Call a subscriber before and after the function's body, with what the event passes.
        ``after`` is called even if the body has raised. With neither, only note that there will be
        a subscriber before torch is imported."""
        self._is_expected = True
        for table, subscriber in ((self._before, before), (self._after, after)):
            if subscriber is not None:
                table.setdefault(event, []).append(subscriber)

    def wrap_phases(self, wrap: Callable[[str, Calls], Calls]) -> bool:
        """Wrap the functions that are called before and after each phase, and before and after the
        loader instrument's ``fetch``.

        Args:
            wrap: Takes the name of a phase and the two functions, and returns the two functions to
                call instead.

        Returns:
            True if the wrap takes effect; False if torch's functions have been patched already.
        """
        self._wrap_phase.append(wrap)
        return not self.is_patched

    def wrapped(self, phase: str, calls: Calls) -> Calls:
        """Return the functions to call before and after a phase, with all wraps applied."""
        for wrap in self._wrap_phase:
            calls = wrap(phase, calls)
        return calls

    def around(self, event: str, thread: Any, enter: Any, leave: Any) -> tuple[Any, Any]:
        """Return the steps instrument's functions around a function of torch, with all subscribers
        added."""
        before = tuple(self._before.get(event, ()))
        after = tuple(self._after.get(event, ()))
        if not before and not after:
            return enter, leave
        self.here = thread
        is_step = event == OPTIMIZER_STEP
        if is_step:
            before = tuple(map(_with_first, before))
            after = tuple(map(_with_first, after))

        def entering(*arguments: Any) -> Any:
            # A base class's ``step`` is part of the same step, which has been reported.
            if not (is_step and thread.inside == IN_STEP):
                for subscriber in before:
                    subscriber(*arguments)
            return enter(*arguments)

        def leaving(start_ns: int, was_inside: int, *arguments: Any) -> None:
            leave(start_ns, was_inside, *arguments)
            if start_ns:
                for subscriber in after:
                    subscriber(*arguments)

        return (entering if before else enter), (leaving if after else leave)

    def before_backward(self, thread: Any, enter: Any) -> tuple[Any, tuple[str, ...]]:
        """Return the function to call before ``torch.autograd.backward``, and the names of the
        variables that are passed to it."""
        before = tuple(self._before.get(LOSS, ()))
        within = tuple(self._before.get(BACKWARD_BEGAN, ()))
        if not before and not within:
            return enter, ()
        self.here = thread

        def entering(tensors: Any) -> Any:
            for subscriber in before:
                subscriber(tensors)
            start_ns = enter()
            for subscriber in within:
                subscriber(tensors)
            return start_ns

        return entering, ("tensors",)

    def after_scale(self, thread: Any) -> tuple[Any, Any] | None:
        """Return the functions around ``GradScaler.scale``; None without a subscriber."""
        after = tuple(self._after.get(LOSS_SCALED, ()))
        if not after:
            return None

        def entering(_: object) -> int:
            return 1

        def leaving(start_ns: int, was_inside: int, outputs: Any, scaled: Any) -> None:
            thread.inside = was_inside
            for subscriber in after:
                subscriber(outputs, scaled)

        return entering, leaving


def _with_first(subscriber: Subscriber) -> Subscriber:
    """Return a subscriber that gets the first argument alone if a decorator's function passes all
    arguments in a tuple."""

    def call(*arguments: Any) -> None:
        if arguments and type(arguments[0]) is tuple:
            arguments = arguments[0][:1]
        subscriber(*arguments)

    return call


class NoRecorder:
    """Stand-in for the recorder if phases are not recorded (``--no-steps``) but there are
    subscribers."""

    def name(self, *_: object, **__: object) -> int:
        return 1

    def arguments(self, _: object) -> int:
        return 0

    def span(self, *_: object) -> None:
        pass

    timed = span
