"""Patches of torch's functions under their decorators and where optimizers step; and the events of
a training: only one instrument can stand around a function, and it calls the others.

Subscribers subscribe before torch is imported. They must not raise; their time is in no phase.
Checked with torch 2.1 to 2.15.
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

# In which versions of each library it was checked that the functions that instruments stand around
# are there, with the variables that are passed.
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

# Asked in the functions themselves: where it is true torch.compile looks at a function, which is
# then as without voirkit. The tracer (dynamo) takes it for a constant, so that it is in no graph
# and breaks none. Modules without torch among their globals have torch.distributed, or keras'
# backend.
COMPILING = tuple(
    f"{torch}.{condition}()"
    for torch in ("torch", "dist.torch", "backend.torch.core.torch")
    for condition in ("compiler.is_dynamo_compiling", "_utils.is_compiling")
)


def innermost(function: Any) -> Any:
    """The function that decorators stand around, such as the one that keeps torch.compile off."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def as_function(method: Any) -> Any:
    """A function that calls a method: torch.compile, which copies the constants of code, copies a
    method with its object, no function. A method of an object whose copy is itself
    (``__deepcopy__``) can stay what it is, which saves a call."""
    if type(method) is FunctionType or hasattr(type(method.__self__), "__deepcopy__"):
        return method

    def call(*arguments: Any) -> Any:
        return method(*arguments)

    return call


class FunctionPatches(Patches):
    """Code around functions of torch; what does not fit is left as it is. ``report``: gets a
    sentence about each function that is left."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(CHECKED)
        self._report = report

    def mark_unpatched(self, name: str, why: str) -> None:
        """Report a function that is not watched."""
        self.table[name] = why
        self._report(f"{name} is not watched: it {why.rstrip('.')}.")

    def when_imported(self, module: str, install: Callable[[ModuleType], None]) -> None:
        """Install something as soon as a module is there."""
        self.when(module, install, self.mark_unpatched)

    def around_path(self, module: str, path: str, around: Around) -> None:
        """As ``around``, for ``Class.method`` of a module, as soon as that is there."""
        self.when_imported(module, partial(self.around_now, path=path, around=around))

    def around_now(self, module: ModuleType, path: str, around: Around) -> None:
        """The same, of a module that is there."""
        function: Any = module
        for part in path.split("."):
            function = getattr(function, part, None)
        self.around_function(f"{module.__name__}.{path}", innermost(function), around)

    def around_function(
        self, name: str, function: Any, around: Around, qualname: str | None = None
    ) -> None:
        """As ``around``, and reported if that is not done."""
        if not self.around(name, function, around, qualname):
            self.mark_unpatched(name, self.table[name])

    def around_step(self, kind: type, step: Around, decorated: Around) -> None:
        """Around the step of a class of optimizers; ``decorated``, which is passed ``args``, where
        that is decorated. It is decorated again when the first optimizer of a class is made."""
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
        """The same of all classes of which an optimizer has been made."""

        def install(module: ModuleType) -> None:
            stack = [module.Optimizer]
            while stack:
                kind = stack.pop()
                stack += kind.__subclasses__()
                if hasattr(vars(kind).get("step"), "hooked"):  # it is decorated
                    self.around_step(kind, step, decorated)

        self.when_imported("torch.optim.optimizer", install)


class StepEvents:
    """Subscribers to the events of one run.

    Events:
        ``step``: An optimizer's outermost step; the optimizer.
        ``zero_grad``, ``module's zero_grad``: Gradients are cleared; the optimizer, or the module.
        ``forward``: The outermost module call, and what is called in an optimizer's step; the
            module.
        ``backward``: Nothing is passed.
        ``loss``: Before a walk through a graph that ``backward`` begins; what it is called on.
        ``backward began``: The same, as the first that is a part of that walk.
        ``scale``: After ``GradScaler.scale``; the loss, and what it became.
        ``iter``: A loader makes an iterator; at last the loader.
        ``next``: A loader is asked for a batch; its iterator, and afterwards the batch, or
            ``ABSENT``.
        ``stop``: The workers of an iterator are stopped, if they have not been before; the
            iterator.
    """

    def __init__(self) -> None:
        # what each thread is inside of, once there are subscribers
        self.here: Any = None
        self._is_expected = False
        self._before: dict[str, list[Subscriber]] = {}
        self._after: dict[str, list[Subscriber]] = {}
        self._wrap_phase: list[Callable[[str, Calls], Calls]] = []
        # True once the code around the phases is made, so that nobody can wrap it any more
        self.is_patched = False

    def __bool__(self) -> bool:
        return self._is_expected

    def subscribe(
        self, event: str, before: Subscriber | None = None, after: Subscriber | None = None
    ) -> None:
        """Call a subscriber before and after the function's body, with what the event passes; after
        it even if it has raised. With neither, somebody will subscribe before torch is there."""
        self._is_expected = True
        for table, subscriber in ((self._before, before), (self._after, after)):
            if subscriber is not None:
                table.setdefault(event, []).append(subscriber)

    def wrap_phases(self, wrap: Callable[[str, Calls], Calls]) -> bool:
        """Wrap what is called before and after the functions that are phases, and ``fetch``, the
        loader instrument's.

        Args:
            wrap: Of a phase's name and the two functions, those that take their place.

        Returns:
            True if it comes in time: False once the functions of torch are patched.
        """
        self._wrap_phase.append(wrap)
        return not self.is_patched

    def wrapped(self, phase: str, calls: Calls) -> Calls:
        """The functions that are called before and after one that is a phase, with all wraps."""
        for wrap in self._wrap_phase:
            calls = wrap(phase, calls)
        return calls

    def around(self, event: str, thread: Any, enter: Any, leave: Any) -> tuple[Any, Any]:
        """The functions of the steps instrument around one of torch's, with all subscribers."""
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
            # the step of the class above is no other
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
        """The function that is called before ``torch.autograd.backward``, and the variables that it
        takes of it."""
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
        """The functions around ``GradScaler.scale``; None without a subscriber."""
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
    """Pass the first argument alone, where a decorator's function has all of them in a tuple."""

    def call(*arguments: Any) -> None:
        if arguments and type(arguments[0]) is tuple:
            arguments = arguments[0][:1]
        subscriber(*arguments)

    return call


class NoRecorder:
    """Stands for the recorder where phases are not to be recorded (``--no-steps``), and there are
    subscribers all the same."""

    def name(self, *_: object, **__: object) -> int:
        return 1

    def arguments(self, _: object) -> int:
        return 0

    def span(self, *_: object) -> None:
        pass

    timed = span
