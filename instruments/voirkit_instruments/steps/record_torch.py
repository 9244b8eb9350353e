"""Which functions of torch the steps instrument stands around: the one table of them. Checked with torch 2.1 and 2.15.

Nothing here imports torch; a patch that does not fit switches itself off and is told by its name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

from voirkit.probes.around import Around
from voirkit.runner.recording import join_group, record_imports
from voirkit_instruments.steps.events import (
    BACKWARD,
    BATCH_REQUESTED,
    COMPILING,
    FORWARD,
    LOADER_ITERATED,
    MODULE_ZERO_GRAD,
    OPTIMIZER_STEP,
    WORKERS_STOPPED,
    ZERO_GRAD,
    FunctionPatches,
    StepEvents,
    as_function,
    innermost,
)
from voirkit_instruments.steps.record_collectives import CollectiveRecording
from voirkit_instruments.steps.record_loaders import LoaderRecording
from voirkit_instruments.steps.record_phases import (
    TENSOR_METHODS,
    CollectionRecording,
    CompilationRecording,
    RecompilationRecording,
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

MODULE = "torch.nn.modules.module"
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
    """The patches of the steps instrument. ``warn``: told, by its name, of a patch that does not fit; ``events``: who else is told of what
    happens."""

    def __init__(self, recording: Recording, warn: Callable[[str], None], events: StepEvents) -> None:
        self.patches = FunctionPatches(lambda said: warn(f"steps: {said}"))
        self.recording = recording
        self._events = events
        self._loaders, self._transfers = LoaderRecording(recording), TransferRecording(recording)
        self._pauses = CollectionRecording(recording), CompilationRecording(recording, self._put_recompilations)
        suppress, step = recording.hot.enter(SUPPRESSED), around_step(recording)
        self._suppress = suppress
        self._foreign_step = self._around(IN_BACKWARD, step, ("self",), phase="optimizer")  # who is told of steps knows torch's alone
        self._step = self._around(IN_BACKWARD, step, ("self",), phase="optimizer", event=OPTIMIZER_STEP)
        self._decorated_step = self._around(IN_BACKWARD, step, ("args",), phase="optimizer", event=OPTIMIZER_STEP)
        self.collectives = CollectiveRecording(recording)
        collective = suppress, after_collective(recording, self.collectives.called)
        self._collective = self._around(IN_BACKWARD, collective, ("func", "args", "kwargs"), phase="communication")
        events.is_patched = True

    def _around(
        self, most: int, calls: tuple[Any, Any], passed: tuple[str, ...] = (), value: bool = False, phase: str = "", event: str = "",
        leave_with: tuple[str, ...] | None = None,
    ) -> Around:  # fmt: skip
        """What stands around a function; arguments that are not here are those of ``Around``. ``calls``: what is called before and after
        the function; ``event``: which of ``StepEvents`` it is."""
        if event:
            calls = self._events.around(event, self.recording.hot.here, *calls)
        if phase:
            calls = self._events.wrapped(phase, calls)
        return Around(self.recording.hot.here, most, *calls, passed, value, COMPILING, leave_with)

    def _functions(self) -> Iterator[tuple[str, str, Around]]:
        """(module, function, what stands around it) of the functions that are there once their module is."""
        recording, suppress, around = self.recording, self._suppress, self._around
        thread = recording.hot.here
        iterate = around(IN_BACKWARD, (suppress, self._loaders.after_iter()), ("self",), value=True, phase="wait", event=LOADER_ITERATED)
        make = around(IN_BACKWARD, (suppress, self._loaders.after_init()), ("self", "loader"), phase="wait", event=LOADER_ITERATED)
        request = around(IN_BACKWARD, (suppress, self._loaders.after_next()), ("self",), value=True, phase="wait", event=BATCH_REQUESTED)
        draw = around(SUPPRESSED, (suppress, self._loaders.after_indices()), value=True)
        loaders = self._loaders
        stop = around(SUPPRESSED, loaders.around_stop(), ("self",), event=WORKERS_STOPPED)
        yield "torch.utils.data.dataloader", "_BaseDataLoaderIter._next_index", draw
        for module, kind in (("torch.utils.data.dataloader", ""), ("torchdata.stateful_dataloader.stateful_dataloader", "Stateful")):
            yield module, f"{kind}DataLoader.__iter__", iterate
            yield module, f"_{kind}SingleProcessDataLoaderIter.__init__", make
            yield module, f"_{kind}MultiProcessingDataLoaderIter.__init__", make
            yield module, f"_{kind}BaseDataLoaderIter.__next__", request
            yield module, f"_{kind}MultiProcessingDataLoaderIter._shutdown_workers", stop
        yield "torch.utils.data.dataloader", "_BaseDataLoaderIter.__init__", around(SUPPRESSED, loaders.before_start(), ("self", "loader"))
        yield "torch.utils.data.dataloader", "_BaseDataLoaderIter._reset", around(SUPPRESSED, loaders.after_start(), ("self", "first_iter"))
        # Of everybody's queues, in no graph of torch.compile.
        yield "queue", "Queue.get", Around(thread, IDLE, suppress, self._loaders.after_get(), ("self",), True)

        yield MODULE, "Module._wrapped_call_impl", around(IN_STEP, around_forward(recording), ("self",), phase="forward", event=FORWARD)
        yield MODULE, "Module.train", around(IN_FORWARD, (suppress, after_mode(recording)), ("mode",))
        zero_grad = around_zero_grad(recording)
        yield MODULE, "Module.zero_grad", around(IN_BACKWARD, zero_grad, ("self",), phase="zero_grad", event=MODULE_ZERO_GRAD)
        yield "torch.optim.optimizer", "Optimizer.zero_grad", around(IN_BACKWARD, zero_grad, ("self",), phase="zero_grad", event=ZERO_GRAD)
        made = as_function(self._made_optimizer)
        yield "torch.optim.optimizer", "Optimizer._patch_step_function", around(SUPPRESSED, (made, made), ("self",))

        backward = self._events.around(BACKWARD, thread, *around_backward(recording))
        walk = around(IN_FORWARD, backward, phase="backward")
        enter, passed = self._events.before_backward(thread, backward[0])
        is_told = bool(passed)
        yield "torch.autograd", "grad", walk
        yield (
            "torch.autograd", "backward",
            around(IN_FORWARD, (enter, backward[1]), passed, phase="backward", leave_with=()) if is_told else walk,
        )  # fmt: skip
        scaled = self._events.after_scale(thread)
        if scaled is not None:
            scalers = "torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"  # the latter up to torch 2.2
            module = next((name for name in scalers if hasattr(sys.modules.get(name), "GradScaler")), scalers[0])
            yield module, "GradScaler.scale", around(IN_BACKWARD, scaled, ("outputs",), value=True)
        yield "torch.amp.autocast_mode", "autocast.__enter__", around(IN_FORWARD, (suppress, after_autocast(recording)), ("self",))

        move = as_function(self._transfers.enter_module), self._transfers.after_module()
        moves = around(IN_BACKWARD, move, ("self",), phase="transfer")
        for name in TENSOR_METHODS:
            yield MODULE, f"Module.{name}", moves
        broadcast = around(IN_BACKWARD, (suppress, after_broadcast(recording)), ("tensors",), phase="communication")
        yield "torch.nn.parallel.distributed", "DistributedDataParallel._distributed_broadcast_coalesced", broadcast
        ticks = around(SUPPRESSED, (as_function(self.collectives.tick), as_function(self._leave)))
        yield "torch.nn.parallel.distributed", "DistributedDataParallel.forward", ticks
        ends = around(SUPPRESSED, (as_function(self._before_end), as_function(self._leave)), ("group",))
        yield "torch.distributed.distributed_c10d", "destroy_process_group", ends
        group = as_function(self._before_group), as_function(self._after_group)
        yield "torch.distributed.distributed_c10d", "init_process_group", around(SUPPRESSED, group)

    def install(self) -> None:
        """Put the patches in place, each as soon as its module is there. torch has been imported."""
        for module, path, around in self._functions():
            self.patches.around_path(module, path, around)
        written, read = after_checkpoint(self.recording, "capture"), after_checkpoint(self.recording, "restart")
        for module, name, writes, file in CHECKPOINTS:
            calls = self._suppress, written if writes else read
            around = self._around(IN_BACKWARD, calls, (file,), phase="checkpoint")
            self.patches.upon(module, partial(self._put_checkpoint, name, around))
        for module, path in FOREIGN_OPTIMIZERS:
            self.patches.upon(module, partial(self._put_foreign, path))
        self._put_methods(self.recording.torch)
        self.patches.upon("torch.distributed.distributed_c10d", self._put_collectives)
        self.patches.around_steps(self._step, self._decorated_step)
        for pauses in self._pauses:
            pauses.install()

    def remove(self, completed: bool = True) -> None:
        """Put all back as it was; ``completed``: the program came to its own end, by no exception and no exit."""
        for pauses in self._pauses:
            pauses.remove()
        self.collectives.read()
        self._loaders.finish(completed)
        self.recording.local.__dict__.clear()
        self.patches.remove()

    def _put_checkpoint(self, name: str, around: Around, module: ModuleType) -> None:
        """What saves or loads; torch 2.1 has other names in ``torch.distributed.checkpoint``, and ``async_save`` came with 2.3."""
        major, minor = self.recording.torch.__version__.split(".")[:2]
        if hasattr(module, name) or (int(major), int(minor)) >= (2, 3):
            self.patches.around_now(module, name, around)

    def _put_foreign(self, path: str, module: ModuleType) -> None:
        """An optimizer that is none of torch's; where it does not train with torch (keras on jax) that is no reason to warn."""
        self.patches.around(f"{module.__name__}.{path}", innermost(attrgetter(path)(module)), self._foreign_step)

    def _put_methods(self, torch: ModuleType) -> None:
        for name in TENSOR_METHODS:
            if name in vars(torch.Tensor) or not self.patches.put(torch.Tensor, name, self._transfers.method(name)):
                self.patches.off(f"torch.Tensor.{name}", "is not the method of torch that is known")

    def _put_recompilations(self) -> None:
        """Something is compiled; a program that compiles nothing does not pay for it (10 ms)."""
        utils = sys.modules["torch._dynamo.utils"]
        self.patches.around_now(utils, "record_compilation_metrics", RecompilationRecording(self.recording).around(utils))

    def _put_collectives(self, module: ModuleType) -> None:
        """All functions that torch logs the errors of: these are the collectives, and what makes groups of processes."""
        logger = getattr(sys.modules.get("torch.distributed.c10d_logger"), "_exception_logger", None)
        if logger is None:
            self.patches.off("torch.distributed.c10d_logger._exception_logger", "is not there")
            return
        code = logger(len).__code__
        for name, function in list(vars(module).items()):
            if type(function) is FunctionType and function.__code__ is code and name not in _NO_COLLECTIVES:
                self.patches.around_function(f"torch.distributed.{name}", function, self._collective, "_exception_logger.<locals>.wrapper")

    # ranks

    def _before_group(self, *_: object) -> int:
        return 1

    def _before_end(self, group: object) -> int:
        """A group is done with. If it is the whole, the process may be killed next, as Ray does with its workers."""
        if group is None:
            self.collectives.read()
        return 1

    def _leave(self, began: int, was: int, *_: object) -> None:
        self.recording.hot.here.inside = was

    def _after_group(self, began: int, was: int) -> None:
        """``init_process_group`` is over: the process knows its rank, if nothing in its environment has said it before."""
        self.recording.hot.here.inside = was
        try:
            ranks: Any = sys.modules["torch.distributed.distributed_c10d"]
            if ranks.is_initialized():
                join_group(ranks.get_rank(), ranks.get_world_size())
                if ranks.get_world_size() > 1:
                    self.collectives.start_reading(ranks.get_backend_config())
        except Exception as exc:
            self.recording.failed("a rank", exc)

    def _made_optimizer(self, *arguments: Any) -> int:
        """Called before and after ``Optimizer._patch_step_function``: an optimizer is made, or unpickled; its class is decorated anew."""
        if len(arguments) == 1:
            return 1
        _, was, optimizer = arguments
        self.recording.hot.here.inside = was
        try:
            self.recording.trains()
            record_imports()
            self.patches.around_step(type(optimizer), self._step, self._decorated_step)
        except Exception as exc:
            self.recording.failed("an optimizer", exc)
        return 0
