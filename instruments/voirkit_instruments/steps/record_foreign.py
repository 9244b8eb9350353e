"""Optimizers that are no ``torch.optim.Optimizer``: those of libraries, by name, and the program's
own classes that have a ``step`` and a ``zero_grad``.

A library's that is one of torch's (apex, bitsandbytes, schedulefree) needs no entry.
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

# Module and path of what applies gradients. Checked with keras 3.15.
OF_LIBRARIES = (("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply"),)
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def steps_of_program() -> Iterator[tuple[str, FunctionType]]:
    """Name and function of each ``step`` that the program's modules define in a class with a
    ``zero_grad``, which is neither an optimizer nor a module of torch."""
    for module in list(sys.modules.values()):
        if type(module) is ModuleType and _is_of_program(module):
            for kind in list(vars(module).values()):
                if isinstance(kind, type) and _is_optimizer(kind, module):
                    step = innermost(vars(kind)["step"])  # of torch.no_grad, most often
                    yield f"{kind.__module__}.{kind.__qualname__}.step", step


def _is_of_program(module: ModuleType) -> bool:
    file = vars(module).get("__file__")
    # first without a cache: of most modules the path alone says that they are no program's
    if type(file) is not str or "site-packages" in file or file.startswith(_STANDARD_LIBRARY):
        return False
    return file_owner(file) is Owner.PROGRAM


def _is_optimizer(kind: type, module: ModuleType) -> bool:
    """True if a module defines a class that is used as an optimizer."""
    torch = sys.modules["torch"]
    if kind.__module__ != module.__name__ or type(vars(kind).get("step")) is not FunctionType:
        return False
    has_zero_grad = type(getattr(kind, "zero_grad", None)) is FunctionType
    return has_zero_grad and not issubclass(kind, (torch.optim.Optimizer, torch.nn.Module))


def around_own_step(recording: Recording, leave_step: Leave) -> tuple[Any, Any]:
    """Before and after the ``step`` of a class of the program's.

    It is recorded as an optimizer's where no module is called, nothing is walked back through and
    no optimizer steps meanwhile: otherwise it is a trainer's, or a wrapper of an optimizer whose
    own step is recorded. That is known only at its end, so instruments that wrap phases as they
    begin (system calls, stacks) do not have it.
    """
    hot = recording.hot
    open_steps: dict[int, tuple[int, Any]] = {}  # by the start of a step

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
