"""Functions of torch that instruments stand around: under decorators, and where optimizers step. Checked with torch 2.1 to 2.15."""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import NamedTuple  # torch, which is there by then, has imported it

from voirkit.intercept import Patches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from voirkit.probes.around import Around


class Step(NamedTuple):
    """The step of a class of optimizers.

    Attributes:
        name: ``module.Class.step``, of the class that defines it.
        function: What does it; None: it is not written in Python.
        qualname: Where a decorator's function is defined that has all arguments in a tuple ``args``; None: it is the step itself.
    """

    name: str
    function: FunctionType | None
    qualname: str | None


# Asked in the functions themselves: where it is true torch.compile looks at a function, which is then as without voirkit. The tracer
# (dynamo) takes it for a constant, so that it is in no graph and breaks none. Modules without torch among their globals have
# torch.distributed, or keras' backend.
COMPILING = tuple(
    f"{torch}.{asked}()"
    for torch in ("torch", "dist.torch", "backend.torch.core.torch")
    for asked in ("compiler.is_dynamo_compiling", "_utils.is_compiling")
)


def innermost(function: Any) -> Any:
    """The function that decorators stand around, such as the one that keeps torch.compile off."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def as_function(method: Any) -> Any:
    """A function that calls a method: torch.compile, which copies the constants of code, copies a method with its object, no function.

    A method of an object whose copy is itself (``__deepcopy__``) can stay what it is, which saves a call.
    """
    if type(method) is FunctionType or hasattr(type(method.__self__), "__deepcopy__"):
        return method

    def call(*arguments: Any) -> Any:
        return method(*arguments)

    return call


def step_of(kind: type) -> Step:
    """Where a class of optimizers steps. It is decorated anew when its first optimizer is made."""
    step: Any = getattr(kind, "step", None)
    owner = next((above for above in kind.__mro__ if "step" in vars(above)), kind)
    name = f"{owner.__module__}.{owner.__qualname__}.step"
    if type(step) is not FunctionType:
        return Step(name, None, None)
    if step.__code__.co_name == "wrapper":
        return Step(name, step, "Optimizer.profile_hook_step.<locals>.wrapper")
    return Step(name, innermost(step), None)


def steppers(optimizer: type) -> Iterator[type]:
    """The classes below ``torch.optim.Optimizer`` of which one has been made: their step is decorated."""
    stack = [optimizer]
    while stack:
        kind = stack.pop()
        stack += kind.__subclasses__()
        if hasattr(vars(kind).get("step"), "hooked"):
            yield kind


class FunctionPatches(Patches):
    """Code around functions of torch; what does not fit is left as it is.

    Args:
        report: Gets a sentence about each function that is left.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report

    def off(self, name: str, why: str) -> None:
        """A function is not watched."""
        self.table[name] = why
        self._report(f"{name} is not watched: it {why.rstrip('.')}.")

    def upon(self, module: str, install: Callable[[ModuleType], None]) -> None:
        """Install something as soon as a module is there."""
        self.when(module, install, self.off)

    def around_path(self, module: str, path: str, around: Around) -> None:
        """As ``around``, for ``Class.method`` of a module, as soon as that is there."""
        self.upon(module, partial(self.around_now, path=path, around=around))

    def around_now(self, module: ModuleType, path: str, around: Around) -> None:
        """The same, of a module that is there."""
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        self.around_function(f"{module.__name__}.{path}", innermost(found), around)

    def around_function(self, name: str, function: Any, around: Around, qualname: str | None = None) -> None:
        """As ``around``, and reported if that is not done."""
        if not self.around(name, function, around, qualname):
            self.off(name, self.table[name])

    def around_step(self, kind: type, step: Around, decorated: Around) -> None:
        """Around the step of a class of optimizers; ``decorated``, which is passed ``args``, where that is decorated."""
        name, function, qualname = step_of(kind)
        if function is None:
            self.off(name, "is not written in Python")
        else:
            self.around_function(name, function, decorated if qualname else step, qualname)

    def around_steps(self, step: Around, decorated: Around) -> None:
        """The same of all classes of which an optimizer has been made."""

        def install(module: ModuleType) -> None:
            for kind in steppers(module.Optimizer):
                self.around_step(kind, step, decorated)

        self.upon("torch.optim.optimizer", install)
