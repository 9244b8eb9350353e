"""Which functions of torch the steps instrument stands around: the one table of them. Checked with torch 2.1 and 2.15.

Nothing here imports torch; a patch that does not fit switches itself off and is told by its name.
"""

from __future__ import annotations

import sys
from functools import partial
from types import FunctionType

from voirkit.probes.around import Around
from voirkit_instruments.patching import Patches, when_there
from voirkit_instruments.steps_compute import (
    after_checkpoint,
    after_collective,
    around_backward,
    around_forward,
    around_step,
    around_zero_grad,
)  # fmt: skip
from voirkit_instruments.steps_heard import ASKED, CALLED, STEPPED, WALKED, ZEROED, Heard
from voirkit_instruments.steps_loaders import LoaderRecording
from voirkit_instruments.steps_plain import BACKWARD, DEAF, FORWARD, NOTHING, STEP
from voirkit_instruments.steps_record import Recording
from voirkit_instruments.steps_transfer import TENSOR_METHODS, TransferRecording
from voirkit_instruments.torch_functions import COMPILING, as_function, innermost, step_of, steppers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


_NO_COLLECTIVES = ("init_process_group", "new_group", "destroy_process_group")


class TorchPatches:
    """The patches of the steps instrument.

    Args:
        recording: Where phases are written.
        warn: Told, by its name, of a patch that does not fit.
        heard: Who else is told of what happens.
    """

    def __init__(self, recording: Recording, warn: Callable[[str], None], heard: Heard | None = None) -> None:
        self.patches = Patches()
        heard = heard if heard is not None else Heard()
        self.recording = recording
        self._warn = warn
        deaf, made = recording.hot.enter(DEAF), as_function(self._made_optimizer)
        loaders, transfers = LoaderRecording(recording), TransferRecording(recording)
        self._loaders, self._transfers = loaders, transfers
        told = partial(heard.around, here=recording.hot.here)
        self._forward = self._around(STEP, *_pair(told, CALLED, around_forward(recording)), ("self",), phase="forward")
        self._backward = self._around(FORWARD, *_pair(told, WALKED, around_backward(recording)), phase="backward")
        step = _pair(told, STEPPED, around_step(recording))
        self._step = self._around(BACKWARD, *step, ("self",), phase="optimizer")
        self._decorated_step = self._around(BACKWARD, *step, ("args",), phase="optimizer")
        zero_grad = around_zero_grad(recording)
        self._zero_grad = self._around(BACKWARD, *zero_grad, phase="zero_grad")
        self._zero_grads = self._around(BACKWARD, *_pair(told, ZEROED, zero_grad), ("self",), phase="zero_grad")
        self._made = self._around(DEAF, made, made, ("self",))
        self._iter = self._around(BACKWARD, deaf, loaders.after_iter(), ("self",), value=True, phase="wait")
        asked = _pair(told, ASKED, (deaf, loaders.after_next()))
        self._next = self._around(BACKWARD, *asked, ("self",), value=True, phase="wait")
        # Of everybody's queues, in no graph of torch.compile.
        self._get = Around(recording.hot.here, NOTHING, deaf, loaders.after_get(), (), True)
        self._save = self._around(BACKWARD, deaf, after_checkpoint(recording, "capture"), ("f",), phase="checkpoint")
        self._load = self._around(BACKWARD, deaf, after_checkpoint(recording, "restart"), ("f",), phase="checkpoint")
        move = as_function(transfers.enter_module), as_function(transfers.leave_module)
        self._move = self._around(BACKWARD, *move, ("self",), phase="transfer")
        self._collective = self._around(BACKWARD, deaf, after_collective(recording), ("func", "args", "kwargs"), phase="communication")

    def _around(self, most: int, enter: Any, leave: Any, passed: tuple[str, ...] = (), value: bool = False, phase: str = "") -> Around:
        edges = sys.modules.get("voirkit_instruments.syscalls_edges")  # loaded by --syscalls: else nothing is done for it
        if phase and edges is not None:
            enter, leave = edges.around(phase, enter, leave)
        return Around(self.recording.hot.here, most, enter, leave, passed, value, COMPILING)

    def put(self) -> None:
        """Put the patches in place, each as soon as its module is there. torch has been imported."""
        for module, path, around in (
            ("torch.utils.data.dataloader", "DataLoader.__iter__", self._iter),
            ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", self._next),
            ("queue", "Queue.get", self._get),
            ("torch.nn.modules.module", "Module._wrapped_call_impl", self._forward),
            ("torch.nn.modules.module", "Module.zero_grad", self._zero_grad),
            *(("torch.nn.modules.module", f"Module.{name}", self._move) for name in TENSOR_METHODS),
            ("torch.autograd", "backward", self._backward),
            ("torch.autograd", "grad", self._backward),
            ("torch.optim.optimizer", "Optimizer.zero_grad", self._zero_grads),
            ("torch.optim.optimizer", "Optimizer._patch_step_function", self._made),
            ("torch.serialization", "save", self._save),
            ("torch.serialization", "load", self._load),
            ("torchdata.stateful_dataloader.stateful_dataloader", "StatefulDataLoader.__iter__", self._iter),
            ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulBaseDataLoaderIter.__next__", self._next),
        ):
            when_there(module, partial(self._put_around, path, around), self._off)
        self._put_methods(self.recording.torch)
        when_there("torch.distributed.distributed_c10d", self._put_collectives, self._off)
        when_there("torch.optim.optimizer", self._put_steps, self._off)

    def remove(self, completed: bool = True) -> None:
        """Put all back as it was.

        Args:
            completed: Whether the program came to its own end: no exception, no exit.
        """
        self._loaders.finish(completed)
        self.recording.local.__dict__.clear()
        self.patches.remove()

    def _off(self, name: str, why: str) -> None:
        self.patches.table[name] = why
        self._warn(f"steps: {name} is not watched: it {why.rstrip('.')}.")

    def _put_around(self, path: str, around: Around, module: ModuleType) -> None:
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        self._put_function(f"{module.__name__}.{path}", innermost(found), around)

    def _put_methods(self, torch: ModuleType) -> None:
        for name in TENSOR_METHODS:
            if name in vars(torch.Tensor) or not self.patches.put(torch.Tensor, name, self._transfers.method(name)):
                self._off(f"torch.Tensor.{name}", "is not the method of torch that is known")

    def _put_collectives(self, module: ModuleType) -> None:
        """All functions that torch logs the errors of: these are the collectives, and what makes groups of processes."""
        logger = getattr(sys.modules.get("torch.distributed.c10d_logger"), "_exception_logger", None)
        if logger is None:
            self._off("torch.distributed.c10d_logger._exception_logger", "is not there")
            return
        code = logger(len).__code__
        for name, function in list(vars(module).items()):
            if type(function) is FunctionType and function.__code__ is code and name not in _NO_COLLECTIVES:
                self._put_function(f"torch.distributed.{name}", function, self._collective, "_exception_logger.<locals>.wrapper")

    # optimizers: the step of a class is decorated anew when its first optimizer is made

    def _put_steps(self, module: ModuleType) -> None:
        for kind in steppers(module.Optimizer):
            self._put_step(kind)

    def _made_optimizer(self, *arguments: Any) -> int:
        """Called before and after ``Optimizer._patch_step_function``: an optimizer is being made, or unpickled."""
        if len(arguments) == 1:
            return 1
        _, was, optimizer = arguments
        self.recording.hot.here.inside = was
        try:
            self.recording.trains()
            self._put_step(type(optimizer))
        except Exception as exc:
            self.recording.failed("an optimizer", exc)
        return 0

    def _put_step(self, kind: type) -> None:
        name, function, qualname = step_of(kind)
        if function is None:
            self._off(name, "is not written in Python")
        else:
            self._put_function(name, function, self._decorated_step if qualname else self._step, qualname)

    def _put_function(self, name: str, function: Any, around: Around, qualname: str | None = None) -> None:
        if not self.patches.around(name, function, around, qualname):
            self._off(name, self.patches.table[name])


def _pair(told: Any, event: str, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return told(event, enter=pair[0], leave=pair[1])  # type: ignore[no-any-return]
