"""Recorder for optimizers that do not derive from ``torch.optim.Optimizer``: optimizers of known
libraries, and the program's own classes that have a ``step`` and a ``zero_grad``.

Library optimizers that derive from torch's (apex, bitsandbytes, schedulefree) need no entry here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from voirkit_instruments.places import Owner, file_owner
from voirkit_instruments.steps.events import innermost
from voirkit_instruments.steps.record_plain import now
from voirkit_instruments.steps.record_spans import Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit_instruments.steps.record_plain import Leave

# module and path of the function that applies gradients; checked with keras 3.15
OF_LIBRARIES = (("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply"),)
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def steps_of_program() -> Iterator[tuple[str, FunctionType]]:
    """Yield name and function of each ``step`` method that the program's modules define in a class
    that also has a ``zero_grad``. Optimizers and modules of torch are excluded."""
    for module in list(sys.modules.values()):
        if type(module) is ModuleType and _is_of_program(module):
            for kind in list(vars(module).values()):
                if isinstance(kind, type) and _is_optimizer(kind, module):
                    # the function inside its decorators, usually torch.no_grad
                    step = innermost(vars(kind)["step"])
                    yield f"{kind.__module__}.{kind.__qualname__}.step", step


def _is_of_program(module: ModuleType) -> bool:
    file = vars(module).get("__file__")
    # Checked before ``file_owner`` and its cache: for most modules the path alone shows that they
    # are not the program's.
    if type(file) is not str or "site-packages" in file or file.startswith(_STANDARD_LIBRARY):
        return False
    return file_owner(file) is Owner.PROGRAM


def _is_optimizer(kind: type, module: ModuleType) -> bool:
    """True if the module defines this class and the class serves as an optimizer."""
    torch = sys.modules["torch"]
    if kind.__module__ != module.__name__ or type(vars(kind).get("step")) is not FunctionType:
        return False
    has_zero_grad = type(getattr(kind, "zero_grad", None)) is FunctionType
    return has_zero_grad and not issubclass(kind, (torch.optim.Optimizer, torch.nn.Module))


def around_own_step(recording: Recording, leave_step: Leave) -> tuple[Any, Any]:
    """Return the callbacks before and after the ``step`` of a class of the program.

    The call is recorded as an optimizer step only if no module call, backward pass or optimizer
    step was recorded during it. Otherwise it belongs to a trainer, or to a wrapper of an optimizer
    whose own step is recorded. This is known only when the call ends, so instruments that wrap
    phases at their start (system calls, stacks) do not see these steps.
    """
    hot = recording.hot
    # by start time of the step: number of module calls, backward passes and optimizer steps so far,
    # and the recorder of GPU times if there is one
    open_steps: dict[int, tuple[int, Any]] = {}

    def enter(*_: object) -> int:
        device = hot.device
        if device is not None:
            device.begin()
        start_ns = now()
        open_steps[start_ns] = hot.trained + hot.called, device
        return start_ns

    def leave(start_ns: int, was_inside: int, optimizer: Any) -> None:
        n_done, device = open_steps.pop(start_ns, (-1, None))
        if n_done == hot.trained + hot.called:
            leave_step(start_ns, was_inside, optimizer)
        elif device is not None:
            device.drop()

    return enter, leave
