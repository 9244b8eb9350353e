"""Functions of torch that instruments stand around: under decorators, and where optimizers step. Checked with torch 2.1 to 2.15."""

from __future__ import annotations

from types import FunctionType
from typing import NamedTuple  # torch, which is there by then, has imported it

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


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
