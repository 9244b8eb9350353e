"""Which functions of torch the steps instrument stands around: the one table of them, for all versions that it was checked with (2.1 and 2.15).

Nothing here imports torch; a patch that does not fit switches itself off and is told by its name.
"""

from __future__ import annotations

import sys
from types import FunctionType

from voirkit.imports import when_imported
from voirkit.probes.around import Around
from voirkit_instruments.patching import Patches
from voirkit_instruments.steps_loaders import LoaderRecording
from voirkit_instruments.steps_record import BACKWARD, DEAF, FORWARD, STEP, Recording
from voirkit_instruments.steps_transfer import TENSOR_METHODS, TransferRecording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

# Asked in the functions themselves: where it is true torch.compile looks at a function, which is then as without voirkit. The tracer (dynamo) takes it
# for a constant, so that it is in no graph and breaks none. Modules that have no torch among their globals have torch.distributed.
_COMPILING = tuple(
    f"{torch}.{asked}()" for torch in ("torch", "dist.torch") for asked in ("compiler.is_dynamo_compiling", "_utils.is_compiling")
)

_COLLECTIVES = "torch.distributed.c10d_logger._exception_logger.<locals>.wrapper"
_NO_COLLECTIVES = ("init_process_group", "new_group", "destroy_process_group")

# Where the functions are defined that decorators put in place of an optimizer's step.
_STEP_WRAPPERS = {
    "wrapper": "Optimizer.profile_hook_step.<locals>.wrapper",
    "_use_grad": "_use_grad_for_differentiable.<locals>._use_grad",
}


class TorchPatches:
    """The patches of the steps instrument.

    Args:
        recording: Where phases are written.
        warn: Told, by its name, of a patch that does not fit.
    """

    def __init__(self, recording: Recording, warn: Callable[[str], None]) -> None:
        self.patches = Patches()
        self.recording = recording
        self._warn = warn
        self._loaders = LoaderRecording(recording)
        self._transfers = TransferRecording(recording)
        r, loaders, transfers = recording, self._loaders, self._transfers
        self._forward = self._around(STEP, r.enter_forward, r.leave_forward, ("self",))
        self._backward = self._around(FORWARD, r.enter_backward, r.leave_backward)
        self._step = self._around(BACKWARD, r.enter_step, r.leave_step, ("args",))
        self._plain_step = self._around(BACKWARD, r.enter_step, lambda began, was, self: r.leave_step(began, was, (self,)), ("self",))
        self._zero_grad = self._around(BACKWARD, r.enter_deaf, r.leave_zero_grad)
        self._made_optimizer = self._around(DEAF, r.enter_nothing, self._leave_made, ("self",))
        self._iter = self._around(BACKWARD, r.enter_deaf, loaders.leave_iter, ("self",), value=True)
        self._next = self._around(BACKWARD, r.enter_deaf, loaders.leave_next, ("self",), value=True)
        self._save = self._around(BACKWARD, r.enter_deaf, r.leave_save, ("f",))
        self._load = self._around(BACKWARD, r.enter_deaf, r.leave_load, ("f",))
        self._move = self._around(BACKWARD, transfers.enter_module, transfers.leave_module, ("self",))
        self._collective = self._around(BACKWARD, r.enter_deaf, r.leave_collective, ("func", "args", "kwargs"))

    def _around(self, most: int, enter: Any, leave: Any, passed: tuple[str, ...] = (), value: bool = False) -> Around:
        return Around(self.recording.here, most, enter, leave, passed, value, _COMPILING)

    def put(self) -> None:
        """Put the patches in place, each as soon as its module is there. torch has been imported."""
        for module, path, around in (
            ("torch.utils.data.dataloader", "DataLoader.__iter__", self._iter),
            ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", self._next),
            ("torch.nn.modules.module", "Module._wrapped_call_impl", self._forward),
            ("torch.nn.modules.module", "Module.zero_grad", self._zero_grad),
            *(("torch.nn.modules.module", f"Module.{name}", self._move) for name in TENSOR_METHODS),
            ("torch.autograd", "backward", self._backward),
            ("torch.autograd", "grad", self._backward),
            ("torch.optim.optimizer", "Optimizer.zero_grad", self._zero_grad),
            ("torch.optim.optimizer", "Optimizer._patch_step_function", self._made_optimizer),
            ("torch.serialization", "save", self._save),
            ("torch.serialization", "load", self._load),
            ("torchdata.stateful_dataloader.stateful_dataloader", "StatefulDataLoader.__iter__", self._iter),
            ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulBaseDataLoaderIter.__next__", self._next),
        ):
            self._when(module, lambda found, path=path, around=around: self._put_around(found, path, around))
        self._when("torch", self._put_methods)
        self._when("torch.distributed.distributed_c10d", self._put_collectives)
        self._when("torch.optim.optimizer", self._put_steps)

    def remove(self) -> None:
        """Put all back as it was."""
        self.recording.here.__dict__.clear()
        self.patches.remove()

    def _when(self, module: str, put: Callable[[ModuleType], None]) -> None:
        def imported(found: ModuleType) -> None:
            try:
                put(found)
            except Exception as exc:
                self._off(module, f"{type(exc).__name__}: {exc}")

        when_imported(module, imported)

    def _off(self, name: str, why: str) -> None:
        self.patches.table[name] = why
        self._warn(f"steps: {name} is not watched: it {why.rstrip('.')}.")

    def _put_around(self, module: ModuleType, path: str, around: Around) -> None:
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        name = f"{module.__name__}.{path}"
        if not self.patches.around(name, _innermost(found), around):
            self._off(name, self.patches.table[name])

    def _put_methods(self, torch: ModuleType) -> None:
        for name in TENSOR_METHODS:
            if name in vars(torch.Tensor) or not self.patches.put(torch.Tensor, name, self._transfers.method(name)):
                self._off(f"torch.Tensor.{name}", "is not the method of torch that is known")

    def _put_collectives(self, module: ModuleType) -> None:
        """All functions that torch logs the errors of: these are the collectives, and what makes groups of processes."""
        logger = getattr(sys.modules.get("torch.distributed.c10d_logger"), "_exception_logger", None)
        if logger is None:
            self._off(_COLLECTIVES, "is not there")
            return
        code = logger(len).__code__
        for name, function in list(vars(module).items()):
            if type(function) is FunctionType and function.__code__ is code and name not in _NO_COLLECTIVES:
                full = f"torch.distributed.{name}"
                if not self.patches.around(full, function, self._collective, _COLLECTIVES.removeprefix("torch.distributed.c10d_logger.")):
                    self._off(full, self.patches.table[full])

    # optimizers: the step of a class is decorated anew when its first optimizer is made

    def _put_steps(self, module: ModuleType) -> None:
        stack = [module.Optimizer]
        while stack:
            kind = stack.pop()
            stack += kind.__subclasses__()
            if hasattr(vars(kind).get("step"), "hooked"):
                self._put_step(kind)

    def _leave_made(self, began: int, was: int, optimizer: Any) -> None:
        """An optimizer is being made."""
        self.recording.here.inside = was
        try:
            self.recording.trains()
            self._put_step(type(optimizer))
        except Exception as exc:
            self.recording.failed("an optimizer", exc)

    def _put_step(self, kind: type) -> None:
        step: Any = getattr(kind, "step", None)
        code = getattr(step, "__code__", None)
        if code is None or self._step.made(code) or self._plain_step.made(code):
            return
        owner = next(above for above in kind.__mro__ if "step" in vars(above))
        name = f"{owner.__module__}.{owner.__qualname__}.step"
        has_self = code.co_argcount > 0 and code.co_varnames[0] == "self"
        if not self.patches.around(name, step, self._plain_step if has_self else self._step, _STEP_WRAPPERS.get(code.co_name)):
            self._off(name, self.patches.table[name])


def _innermost(function: Any) -> Any:
    """The function that decorators stand around, such as the one that keeps torch.compile off."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
