"""Table of all functions of torch that the steps instrument patches. Checked with torch 2.1 and
2.15.

Nothing here imports torch. A patch that does not fit is left out and reported by its name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

from voirkit import phase_names
from voirkit.probes.around import Around
from voirkit.runner.recording import join_group, record_imports
from voirkit_instruments.steps import record_foreign
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
)
from voirkit_instruments.steps.record_plain import (
    IDLE,
    IN_BACKWARD,
    IN_FORWARD,
    IN_STEP,
    SUPPRESSED,
)
from voirkit_instruments.steps.record_spans import Recording

MODULE = "torch.nn.modules.module"
OPTIMIZER = "torch.optim.optimizer"
DATALOADER = "torch.utils.data.dataloader"
STATEFUL_DATALOADER = "torchdata.stateful_dataloader.stateful_dataloader"
DATA_PARALLEL = "torch.nn.parallel.distributed"
DISTRIBUTED = "torch.distributed.distributed_c10d"
# functions that write (True) or read (False) a checkpoint, with their parameter for the file;
# checked with safetensors 0.7
CHECKPOINTS = (
    ("torch.serialization", "save", True, "f"),
    ("torch.serialization", "load", False, "f"),
    ("torch.distributed.checkpoint.state_dict_saver", "save", True, "checkpoint_id"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save", True, "checkpoint_id"),
    ("torch.distributed.checkpoint.state_dict_loader", "load", False, "checkpoint_id"),
    ("safetensors.torch", "save_file", True, "filename"),
    ("safetensors.torch", "load_file", False, "filename"),
)
_NO_COLLECTIVES = ("init_process_group", "new_group", "destroy_process_group")


class TorchPatches:
    """The patches of the steps instrument.

    Args:
        recording: The state of the steps instrument.
        warn: Called with a message about each patch that does not fit.
        events: The subscribers to training events.
    """

    def __init__(
        self, recording: Recording, warn: Callable[[str], None], events: StepEvents
    ) -> None:
        self.patches = FunctionPatches(lambda message: warn(f"steps: {message}"))
        self.recording = recording
        self._events = events
        self._loaders = LoaderRecording(recording)
        self._transfers = TransferRecording(recording)
        self._pauses = (
            CollectionRecording(recording),
            CompilationRecording(recording, self._put_recompilations),
        )
        suppress = self._suppress = recording.hot.enter(SUPPRESSED)
        step = around_step(recording)
        # ``_foreign_step`` has no event: subscribers to optimizer steps expect torch's optimizers
        # only.
        around = partial(self._around, IN_BACKWARD, step, phase=phase_names.OPTIMIZER)
        self._foreign_step = around(("self",))
        self._leave_step = step[1]
        self._step = around(("self",), event=OPTIMIZER_STEP)
        self._decorated_step = around(("args",), event=OPTIMIZER_STEP)
        self.collectives = CollectiveRecording(recording)
        collective = (suppress, after_collective(recording, self.collectives.called))
        self._collective = self._around(
            IN_BACKWARD, collective, ("func", "args", "kwargs"), phase=phase_names.COMMUNICATION
        )
        events.is_patched = True

    def _around(
        self,
        most: int,
        calls: tuple[Any, Any],
        variables: tuple[str, ...] = (),
        value: bool = False,
        phase: str = "",
        event: str = "",
        leave_with: tuple[str, ...] | None = None,
    ) -> Around:
        """Return the code to put around a function; arguments that are not listed are those of
        ``Around``.

        Args:
            calls: The callbacks before and after the function.
            phase: Name of the phase for instruments that wrap phases; empty if it is none.
            event: The event of ``StepEvents`` that the function is; empty if it is none.
        """
        thread = self.recording.hot.here
        if event:
            calls = self._events.around(event, thread, *calls)
        if phase:
            calls = self._events.wrapped(phase, calls)
        return Around(thread, most, *calls, variables, value, COMPILING, leave_with)

    def _functions(self) -> Iterator[tuple[str, str, Around]]:
        """Yield module, path and surrounding code of each function that exists as soon as its
        module is imported."""
        yield from self._loader_functions()
        yield from self._model_functions()
        yield from self._backward_functions()
        yield from self._transfer_functions()
        yield from self._distributed_functions()

    def _loader_functions(self) -> Iterator[tuple[str, str, Around]]:
        suppress, loaders, around = self._suppress, self._loaders, self._around
        calls = (suppress, loaders.after_iter())
        iterate = around(
            IN_BACKWARD, calls, ("self",), value=True, phase=phase_names.WAIT, event=LOADER_ITERATED
        )
        calls = (suppress, loaders.after_init())
        create = around(
            IN_BACKWARD, calls, ("self", "loader"), phase=phase_names.WAIT, event=LOADER_ITERATED
        )
        calls = (suppress, loaders.after_next())
        request = around(
            IN_BACKWARD, calls, ("self",), value=True, phase=phase_names.WAIT, event=BATCH_REQUESTED
        )
        draw = around(SUPPRESSED, (suppress, loaders.after_indices()), value=True)
        stop = around(SUPPRESSED, loaders.around_stop(), ("self",), event=WORKERS_STOPPED)
        yield DATALOADER, "_BaseDataLoaderIter._next_index", draw
        for module, kind in ((DATALOADER, ""), (STATEFUL_DATALOADER, "Stateful")):
            yield module, f"{kind}DataLoader.__iter__", iterate
            yield module, f"_{kind}SingleProcessDataLoaderIter.__init__", create
            yield module, f"_{kind}MultiProcessingDataLoaderIter.__init__", create
            yield module, f"_{kind}BaseDataLoaderIter.__next__", request
            yield module, f"_{kind}MultiProcessingDataLoaderIter._shutdown_workers", stop
        start = around(SUPPRESSED, loaders.before_start(), ("self", "loader"))
        yield DATALOADER, "_BaseDataLoaderIter.__init__", start
        reset = around(SUPPRESSED, loaders.after_start(), ("self", "first_iter"))
        yield DATALOADER, "_BaseDataLoaderIter._reset", reset
        # The patch applies to all queues of the process; their ``get`` is never part of a
        # torch.compile graph.
        thread = self.recording.hot.here
        get = Around(thread, IDLE, suppress, loaders.after_get(), ("self",), True)
        yield "queue", "Queue.get", get

    def _model_functions(self) -> Iterator[tuple[str, str, Around]]:
        recording, around = self.recording, self._around
        calls = around_forward(recording)
        forward = around(IN_STEP, calls, ("self",), phase=phase_names.FORWARD, event=FORWARD)
        yield MODULE, "Module._wrapped_call_impl", forward
        mode = around(IN_FORWARD, (self._suppress, after_mode(recording)), ("mode",))
        yield MODULE, "Module.train", mode
        calls = around_zero_grad(recording)
        for module, kind, event in (
            (MODULE, "Module", MODULE_ZERO_GRAD),
            (OPTIMIZER, "Optimizer", ZERO_GRAD),
        ):
            zero_grad = around(IN_BACKWARD, calls, ("self",), phase="zero_grad", event=event)
            yield module, f"{kind}.zero_grad", zero_grad
        decorate = as_function(self._made_optimizer)
        decorated = around(SUPPRESSED, (decorate, decorate), ("self",))
        yield OPTIMIZER, "Optimizer._patch_step_function", decorated

    def _backward_functions(self) -> Iterator[tuple[str, str, Around]]:
        recording, around = self.recording, self._around
        thread = recording.hot.here
        backward = self._events.around(BACKWARD, thread, *around_backward(recording))
        walk = around(IN_FORWARD, backward, phase=phase_names.BACKWARD)
        yield "torch.autograd", "grad", walk
        enter, variables = self._events.before_backward(thread, backward[0])
        if variables:
            calls = (enter, backward[1])
            walk = around(IN_FORWARD, calls, variables, phase=phase_names.BACKWARD, leave_with=())
        yield "torch.autograd", "backward", walk
        scaled = self._events.after_scale(thread)
        if scaled is not None:
            module = "torch.amp.grad_scaler"
            if not hasattr(sys.modules.get(module), "GradScaler"):
                older = "torch.cuda.amp.grad_scaler"  # GradScaler's module up to torch 2.2
                module = older if hasattr(sys.modules.get(older), "GradScaler") else module
            yield module, "GradScaler.scale", around(IN_BACKWARD, scaled, ("outputs",), value=True)
        autocast = around(IN_FORWARD, (self._suppress, after_autocast(recording)), ("self",))
        yield "torch.amp.autocast_mode", "autocast.__enter__", autocast

    def _transfer_functions(self) -> Iterator[tuple[str, str, Around]]:
        calls = (as_function(self._transfers.enter_module), self._transfers.after_module())
        move = self._around(IN_BACKWARD, calls, ("self",), phase=phase_names.TRANSFER)
        for name in TENSOR_METHODS:
            yield MODULE, f"Module.{name}", move

    def _distributed_functions(self) -> Iterator[tuple[str, str, Around]]:
        around = self._around
        calls = (self._suppress, after_broadcast(self.recording))
        broadcast = around(IN_BACKWARD, calls, ("tensors",), phase=phase_names.COMMUNICATION)
        path = "DistributedDataParallel._distributed_broadcast_coalesced"
        yield DATA_PARALLEL, path, broadcast
        leave = as_function(self._leave)
        tick = around(SUPPRESSED, (as_function(self.collectives.tick), leave))
        yield DATA_PARALLEL, "DistributedDataParallel.forward", tick
        destroy = around(SUPPRESSED, (as_function(self._before_end), leave), ("group",))
        yield DISTRIBUTED, "destroy_process_group", destroy
        calls = (as_function(self._before_group), as_function(self._after_group))
        yield DISTRIBUTED, "init_process_group", around(SUPPRESSED, calls)

    def install(self) -> None:
        """Install the patches, each as soon as its module is imported. torch must have been
        imported."""
        for module, path, around in self._functions():
            self.patches.around_path(module, path, around)
        after_write = after_checkpoint(self.recording, "capture")
        after_read = after_checkpoint(self.recording, "restart")
        for module, name, writes, file in CHECKPOINTS:
            calls = (self._suppress, after_write if writes else after_read)
            around = self._around(IN_BACKWARD, calls, (file,), phase="checkpoint")
            self.patches.when_imported(module, partial(self._put_checkpoint, name, around))
        for module, path in record_foreign.OF_LIBRARIES:
            self.patches.when_imported(module, partial(self._put_foreign, path))
        self._put_methods(self.recording.torch)
        self.patches.when_imported(DISTRIBUTED, self._put_collectives)
        self.patches.around_steps(self._step, self._decorated_step)
        for pauses in self._pauses:
            pauses.install()

    def remove(self, completed: bool = True) -> None:
        """Remove all patches. ``completed``: True if the program ran to its end, without an
        exception or an exit."""
        for pauses in self._pauses:
            pauses.remove()
        self.collectives.read()
        self._loaders.finish(completed)
        self.recording.local.__dict__.clear()
        self.patches.remove()

    def _put_checkpoint(self, name: str, around: Around, module: ModuleType) -> None:
        """Patch a function that saves or loads a checkpoint. Before torch 2.3 a missing function is
        not reported: 2.1 has other names in ``torch.distributed.checkpoint``, and ``async_save``
        came with 2.3."""
        major, minor = self.recording.torch.__version__.split(".")[:2]
        if hasattr(module, name) or (int(major), int(minor)) >= (2, 3):
            self.patches.around_now(module, name, around)

    def _put_foreign(self, path: str, module: ModuleType) -> None:
        """Patch a library's optimizer that does not derive from torch's. If the library does not
        train with torch here (keras on jax), a failure is no reason to warn."""
        function = innermost(attrgetter(path)(module))
        self.patches.around(f"{module.__name__}.{path}", function, self._foreign_step)

    def watch_program(self) -> None:
        """Patch the optimizers that the program has defined so far and that do not derive from
        torch's."""
        steps = list(record_foreign.steps_of_program())
        if not steps:
            # Without such optimizers nothing is patched: the code below would make torch.compile
            # look for patches in the program's own code.
            return
        calls = record_foreign.around_own_step(self.recording, self._leave_step)
        thread = self.recording.hot.here
        own_step = Around(thread, IDLE, *calls, ("self",), plain=COMPILING, unasked=True)
        for name, step in steps:
            if self.patches.around(name, step, own_step):
                self.recording.trains()
                record_imports()

    def _put_methods(self, torch: ModuleType) -> None:
        for name in TENSOR_METHODS:
            is_patched = False
            if name not in vars(torch.Tensor):
                is_patched = self.patches.put(torch.Tensor, name, self._transfers.method(name))
            if not is_patched:
                why = "is not the method of torch that is known"
                self.patches.mark_unpatched(f"torch.Tensor.{name}", why)

    def _put_recompilations(self) -> None:
        """Patch the compiler when the first compilation starts. The patch costs 10 ms, which
        programs that compile nothing thus avoid."""
        utils = sys.modules["torch._dynamo.utils"]
        self.patches.around_now(
            utils,
            "record_compilation_metrics",
            RecompilationRecording(self.recording).around(utils),
        )

    def _put_collectives(self, module: ModuleType) -> None:
        """Patch all functions whose errors torch logs. These are the collectives, and functions
        that create process groups, which are left out."""
        logging = "torch.distributed.c10d_logger"
        logger = getattr(sys.modules.get(logging), "_exception_logger", None)
        if logger is None:
            self.patches.mark_unpatched(f"{logging}._exception_logger", "is not there")
            return
        code = logger(len).__code__
        for name, function in list(vars(module).items()):
            is_logged = type(function) is FunctionType and function.__code__ is code
            if is_logged and name not in _NO_COLLECTIVES:
                self.patches.around_function(
                    f"torch.distributed.{name}",
                    function,
                    self._collective,
                    "_exception_logger.<locals>.wrapper",
                )

    # callbacks for process groups, ranks and new optimizers

    def _before_group(self, *_: object) -> int:
        return 1

    def _before_end(self, group: object) -> int:
        """Read the flight recorders before the default process group is destroyed: the process may
        be killed next, as Ray does with its workers."""
        if group is None:
            self.collectives.read()
        return 1

    def _leave(self, start_ns: int, was: int, *_: object) -> None:
        self.recording.hot.here.inside = was

    def _after_group(self, start_ns: int, was: int) -> None:
        """Take the rank from torch after ``init_process_group``, if the environment did not tell it
        before."""
        self.recording.hot.here.inside = was
        try:
            ranks: Any = sys.modules[DISTRIBUTED]
            if ranks.is_initialized():
                join_group(ranks.get_rank(), ranks.get_world_size())
                if ranks.get_world_size() > 1:
                    self.collectives.start_reading(ranks.get_backend_config())
        except Exception as exc:  # a torch version with different internals
            self.recording.failed("a rank", exc)

    def _made_optimizer(self, *arguments: Any) -> int:
        """Patch the step of an optimizer's class. Runs before and after
        ``Optimizer._patch_step_function``, by which torch decorates the class again when an
        optimizer is created or unpickled. Acts only after it."""
        if len(arguments) == 1:
            return 1
        _, was, optimizer = arguments
        self.recording.hot.here.inside = was
        try:
            self.recording.trains()
            record_imports()
            self.patches.around_step(type(optimizer), self._step, self._decorated_step)
        except Exception as exc:  # the program's class may be unlike any known one
            self.recording.failed("an optimizer", exc)
        return 0
