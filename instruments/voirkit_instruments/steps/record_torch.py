"""Which functions of torch the steps instrument stands around: the one table of them. Checked with torch 2.1 and 2.15.

Nothing here imports torch; a patch that does not fit switches itself off and is told by its name.
"""

from __future__ import annotations

import sys
from functools import partial
from operator import attrgetter
from types import FunctionType

from voirkit.intercept import Patches
from voirkit.probes.around import Around
from voirkit.runner import import_times
from voirkit.runner.recording import join_group
from voirkit_instruments.steps.events import BACKWARD, BATCH_REQUESTED, FORWARD, LOADER_ITERATED, OPTIMIZER_STEP, ZERO_GRAD, StepEvents
from voirkit_instruments.steps.record_loaders import LoaderRecording
from voirkit_instruments.steps.record_phases import (
    TENSOR_METHODS,
    CollectionRecording,
    CompilationRecording,
    TransferRecording,
    after_autocast,
    after_broadcast,
    after_checkpoint,
    after_collective,
    after_mode,
    around_backward,
    around_forward,
    around_step,
    around_zero_grad,
)  # fmt: skip
from voirkit_instruments.steps.record_plain import IDLE, IN_BACKWARD, IN_FORWARD, IN_STEP, SUPPRESSED
from voirkit_instruments.steps.record_spans import Recording
from voirkit_instruments.steps.torch_functions import COMPILING, as_function, innermost, step_of, steppers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


# What writes a checkpoint (True) or reads one, and its parameter for the file. Checked with safetensors 0.7.
CHECKPOINTS = (
    ("torch.serialization", "save", True, "f"),
    ("torch.serialization", "load", False, "f"),
    ("torch.distributed.checkpoint.state_dict_saver", "save", True, "checkpoint_id"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save", True, "checkpoint_id"),
    ("torch.distributed.checkpoint.state_dict_loader", "load", False, "checkpoint_id"),
    ("safetensors.torch", "save_file", True, "filename"),
    ("safetensors.torch", "load_file", False, "filename"),
)
# Steps of optimizers that are no ``torch.optim.Optimizer``. Those that are (apex, bitsandbytes, schedulefree) need no entry. Checked with
# keras 3.15.
FOREIGN_OPTIMIZERS = (("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply"),)
_NO_COLLECTIVES = ("init_process_group", "new_group", "destroy_process_group")


class TorchPatches:
    """The patches of the steps instrument.

    Args:
        recording: Where phases are written.
        warn: Told, by its name, of a patch that does not fit.
        events: Who else is told of what happens.
    """

    def __init__(self, recording: Recording, warn: Callable[[str], None], events: StepEvents | None = None) -> None:
        self.patches = Patches()
        events = events if events is not None else StepEvents()
        self.recording = recording
        self._warn = warn
        deaf, made = recording.hot.enter(SUPPRESSED), as_function(self._made_optimizer)
        loaders, transfers = LoaderRecording(recording), TransferRecording(recording)
        self._collections, self._compilations = CollectionRecording(recording), CompilationRecording(recording)
        self._loaders, self._transfers = loaders, transfers
        told = partial(events.around, here=recording.hot.here)
        self._forward = self._around(IN_STEP, *_pair(told, FORWARD, around_forward(recording)), ("self",), phase="forward")
        walked = _pair(told, BACKWARD, around_backward(recording))
        self._grad = self._around(IN_FORWARD, *walked, phase="backward")
        loss, passed = events.before_backward(recording.hot.here, walked[0])
        self._backward = self._around(IN_FORWARD, loss, walked[1], passed, phase="backward", left=()) if passed else self._grad
        stepping = around_step(recording)
        self._foreign_step = self._around(IN_BACKWARD, *stepping, ("self",), phase="optimizer")  # who is told of steps knows torch's alone
        step = _pair(told, OPTIMIZER_STEP, stepping)
        self._step = self._around(IN_BACKWARD, *step, ("self",), phase="optimizer")
        self._decorated_step = self._around(IN_BACKWARD, *step, ("args",), phase="optimizer")
        self._mode = self._around(IN_FORWARD, deaf, after_mode(recording), ("mode",))
        zero_grad = around_zero_grad(recording)
        self._zero_grad = self._around(IN_BACKWARD, *zero_grad, phase="zero_grad")
        self._zero_grads = self._around(IN_BACKWARD, *_pair(told, ZERO_GRAD, zero_grad), ("self",), phase="zero_grad")
        self._made = self._around(SUPPRESSED, made, made, ("self",))
        scaled = events.after_scale(recording.hot.here)
        self._scale = scaled and self._around(IN_BACKWARD, *scaled, ("outputs",), value=True)
        iterated = _pair(told, LOADER_ITERATED, (deaf, loaders.after_iter()))
        self._iter = self._around(IN_BACKWARD, *iterated, ("self",), value=True, phase="wait")
        made_iterator = _pair(told, LOADER_ITERATED, (deaf, loaders.after_init()))
        self._iterator = self._around(IN_BACKWARD, *made_iterator, ("self", "loader"), phase="wait")
        asked = _pair(told, BATCH_REQUESTED, (deaf, loaders.after_next()))
        self._next = self._around(IN_BACKWARD, *asked, ("self",), value=True, phase="wait")
        # Of everybody's queues, in no graph of torch.compile.
        self._get = Around(recording.hot.here, IDLE, deaf, loaders.after_get(), (), True)
        written, read = after_checkpoint(recording, "capture"), after_checkpoint(recording, "restart")
        self._checkpoints = [
            (module, path, self._around(IN_BACKWARD, deaf, written if writes else read, (file,), phase="checkpoint"))
            for module, path, writes, file in CHECKPOINTS
        ]
        move = as_function(transfers.enter_module), as_function(transfers.leave_module)
        self._move = self._around(IN_BACKWARD, *move, ("self",), phase="transfer")
        self._group = self._around(SUPPRESSED, as_function(self._before_group), as_function(self._after_group))
        self._collective = self._around(IN_BACKWARD, deaf, after_collective(recording), ("func", "args", "kwargs"), phase="communication")
        self._autocast = self._around(IN_FORWARD, deaf, after_autocast(recording), ("self",))
        self._broadcast = self._around(IN_BACKWARD, deaf, after_broadcast(recording), ("tensors",), phase="communication")

    def _around(
        self, most: int, enter: Any, leave: Any, passed: tuple[str, ...] = (), value: bool = False, phase: str = "",
        left: tuple[str, ...] | None = None,
    ) -> Around:  # fmt: skip
        edges = sys.modules.get("voirkit_instruments.syscalls.record_phase_edges")  # loaded by --syscalls: else nothing is done for it
        if phase and edges is not None:
            enter, leave = edges.around(phase, enter, leave)
        return Around(self.recording.hot.here, most, enter, leave, passed, value, COMPILING, left)

    def put(self) -> None:
        """Put the patches in place, each as soon as its module is there. torch has been imported."""
        for module, path, around in (
            ("torch.utils.data.dataloader", "DataLoader.__iter__", self._iter),
            ("torch.utils.data.dataloader", "_SingleProcessDataLoaderIter.__init__", self._iterator),
            ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter.__init__", self._iterator),
            ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", self._next),
            ("queue", "Queue.get", self._get),
            ("torch.nn.modules.module", "Module._wrapped_call_impl", self._forward),
            ("torch.nn.modules.module", "Module.zero_grad", self._zero_grad),
            ("torch.nn.modules.module", "Module.train", self._mode),
            *(("torch.nn.modules.module", f"Module.{name}", self._move) for name in TENSOR_METHODS),
            ("torch.autograd", "backward", self._backward),
            ("torch.autograd", "grad", self._grad),
            ("torch.optim.optimizer", "Optimizer.zero_grad", self._zero_grads),
            ("torch.optim.optimizer", "Optimizer._patch_step_function", self._made),
            ("torch.amp.autocast_mode", "autocast.__enter__", self._autocast),
            *self._checkpoints,
            ("torch.nn.parallel.distributed", "DistributedDataParallel._distributed_broadcast_coalesced", self._broadcast),
            ("torch.distributed.distributed_c10d", "init_process_group", self._group),
            ("torchdata.stateful_dataloader.stateful_dataloader", "StatefulDataLoader.__iter__", self._iter),
            ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulSingleProcessDataLoaderIter.__init__", self._iterator),
            ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulMultiProcessingDataLoaderIter.__init__", self._iterator),
            ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulBaseDataLoaderIter.__next__", self._next),
        ):
            self.patches.when(module, partial(self._put_around, path, around), self._off)
        if self._scale is not None:
            scalers = "torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"  # the latter up to torch 2.2
            module = next((name for name in scalers if hasattr(sys.modules.get(name), "GradScaler")), scalers[0])
            self.patches.when(module, partial(self._put_around, "GradScaler.scale", self._scale), self._off)
        for module, path in FOREIGN_OPTIMIZERS:
            self.patches.when(module, partial(self._put_foreign, path), self._off)
        self._put_methods(self.recording.torch)
        self.patches.when("torch.distributed.distributed_c10d", self._put_collectives, self._off)
        self.patches.when("torch.optim.optimizer", self._put_steps, self._off)
        self._collections.put()
        self._compilations.put()

    def remove(self, completed: bool = True) -> None:
        """Put all back as it was.

        Args:
            completed: Whether the program came to its own end: no exception, no exit.
        """
        self._collections.remove()
        self._compilations.remove()
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

    def _put_foreign(self, path: str, module: ModuleType) -> None:
        """An optimizer that is none of torch's; where it does not train with torch (keras on jax) that is no reason to warn."""
        self.patches.around(f"{module.__name__}.{path}", innermost(attrgetter(path)(module)), self._foreign_step)

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

    # ranks

    def _before_group(self, *_: object) -> int:
        return 1

    def _after_group(self, began: int, was: int) -> None:
        """``init_process_group`` is over: the process knows its rank, if nothing in its environment has said it before."""
        self.recording.hot.here.inside = was
        try:
            ranks: Any = sys.modules["torch.distributed.distributed_c10d"]
            if ranks.is_initialized():
                join_group(ranks.get_rank(), ranks.get_world_size())
        except Exception as exc:
            self.recording.failed("a rank", exc)

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
            import_times.record()
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
