"""What is recorded of a training step, and when: called before and after the functions of torch that ``steps_torch.py`` names.

Phases of the innermost kind win later, in the analysis; here it is decided what is a phase at all: the outermost module call, not those in it; nothing
inside a request for a batch. Must never raise, never change what it is shown, and never wait for a device.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref

from voirkit_instruments.items import count_items

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit_instruments.steps_device import DeviceTimes

now = time.perf_counter_ns

# What a thread is inside of. The order says what may begin inside of what: forward in NOTHING and STEP (a closure), backward also in FORWARD (a
# gradient penalty), most others also in BACKWARD (hooks), nothing in DEAF.
NOTHING, STEP, FORWARD, BACKWARD, DEAF = 0, 1, 2, 3, 9
UNKNOWN = -1


class Here(threading.local):
    """What each thread is inside of."""

    inside = NOTHING
    home: str | None = None  # where the module was that is being moved


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()


def _after_fork() -> None:
    for recording in list(_recordings):
        recording.forked()


os.register_at_fork(after_in_child=_after_fork)


class Recording:
    """Writes phases into the trace plane.

    Args:
        recorder: ``voirkit.trace.recorder``, or what has its ``name``, ``arguments`` and ``span``.
        torch: The module.
        warn: Told, once, of a record that failed.

    Attributes:
        here: What each thread is inside of.
        device: Times on a GPU, once there is one.
    """

    def __init__(self, recorder: Any, torch: Any, warn: Callable[[str], None]) -> None:
        _recordings.add(self)
        self._pid = os.getpid()
        self.here = Here()
        self.device: DeviceTimes | None = None
        self.torch = torch
        self._warn = warn
        self.recorder = recorder
        self._span = recorder.span
        self._arguments: Callable[[dict[str, Any]], int] = recorder.arguments
        self._grad = torch.is_grad_enabled
        self._graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self._loss = torch.nn.modules.loss._Loss
        self._modules: dict[tuple[str, str, bool, bool], tuple[int, int]] = {}  # -> name, arguments
        self._comm: dict[str, int] = {}
        self._names: dict[int, tuple[str, str, str | None]] = {}
        self._device_names: dict[int, int] = {}
        self._optimizers = Ordinals()
        self._optimizer_args: dict[int, int] = {}
        self._failed: set[str] = set()
        self._forward = self.phase("compute", "forward")
        self._lossy = self.phase("compute", "loss")
        self._backward = self.phase("compute", "backward")
        self._step = self.phase("compute", "step")
        self._zero_grad = self.phase("compute", "zero_grad")
        self._capture = self.phase("checkpoint", "capture", "bytes")
        self._restart = self.phase("checkpoint", "restart", "bytes")

    def phase(self, category: str, name: str, value: str | None = None) -> int:
        """The interned name of a phase."""
        found: int = self.recorder.name(category, name, kind="phase", value=value)
        self._names[found] = (category, name, value)
        return found

    def on_device(self, name: int) -> int:
        """The interned name of what a phase does on the GPU."""
        found = self._device_names.get(name)
        if found is None:
            category, what, value = self._names[name]
            found = self._device_names[name] = self.recorder.name(category, what, kind="device", value=value)
        return found

    def trains(self) -> None:
        """This process makes an optimizer: it trains. One that another has forked is deaf until then, and a loader's worker for ever."""
        if self._pid != os.getpid() and self.torch.utils.data.get_worker_info() is None:
            self._pid = os.getpid()
            Here.inside = self.here.inside = NOTHING

    def forked(self) -> None:
        """This process has been forked, by one that may train, to load or prepare data, most often."""
        Here.inside = self.here.inside = DEAF
        self.device = None

    def look_for_device(self) -> None:
        """Take times on the GPU from now on if the program has begun to use one."""
        cuda = self.torch.cuda
        if self.device is None and cuda.is_initialized():
            from voirkit_instruments.steps_device import DeviceTimes

            self.device = DeviceTimes(cuda, self._span, self.on_device, self.here)

    def failed(self, what: str, exc: Exception) -> None:
        """Tell, once for each kind of record, that one could not be made."""
        if what not in self._failed:
            self._failed.add(what)
            self._warn(f"steps: {what} could not be recorded ({type(exc).__name__}); this is told once.")

    # before: what the thread is inside of from now on

    def enter_forward(self, *_: object) -> int:
        self.here.inside = FORWARD
        if self.device is not None:
            self.device.begin()
        return now()

    def enter_backward(self, *_: object) -> int:
        self.here.inside = BACKWARD
        if self.device is not None:
            self.device.begin()
        return now()

    def enter_step(self, *_: object) -> int:
        here = self.here
        if here.inside == STEP:  # the step of the class above
            return 0
        here.inside = STEP
        if self.device is not None:
            self.device.begin()
        return now()

    def enter_deaf(self, *_: object) -> int:
        """Inside of this nothing else is recorded."""
        self.here.inside = DEAF
        return now()

    def enter_nothing(self, *_: object) -> int:
        """For what is to be told afterwards, and is no phase."""
        return 1

    # after

    def leave_forward(self, began: int, was: int, module: Any) -> None:
        end = now()
        self.here.inside = was
        if not began:
            return
        try:
            if was == NOTHING and self._graph_task() != -1:  # in a thread of the autograd engine: a checkpoint's recomputation
                if self.device is not None:
                    self.device.drop()
                return
            kind = type(module)
            key = (kind.__name__, kind.__module__, module.training, self._grad())
            known = self._modules.get(key)
            if known is None:
                known = self._modules[key] = self._module(module, key)
            self._span(known[0], began, end, known[1])
            if self.device is not None:
                self.device.end(known[0], known[1])
        except Exception as exc:
            self.failed("a module call", exc)

    def _module(self, module: Any, key: tuple[str, str, bool, bool]) -> tuple[int, int]:
        if isinstance(module, self._loss):
            return self._lossy, self._arguments({"module": key[0]})
        return self._forward, self._arguments({"module": key[0], "training": bool(key[2]), "grad": bool(key[3])})

    def leave_backward(self, began: int, was: int) -> None:
        end = now()
        self.here.inside = was
        if began:
            self._span(self._backward, began, end)
            if self.device is not None:
                self.device.end(self._backward)

    def leave_step(self, began: int, was: int, arguments: tuple[Any, ...]) -> None:
        end = now()
        self.here.inside = was
        if not began:
            return
        try:
            args = self._optimizer(arguments[0])
            self._span(self._step, began, end, args)
            if self.device is not None:
                self.device.end(self._step, args)
            else:
                self.look_for_device()
        except Exception as exc:
            self.failed("an optimizer's step", exc)

    def _optimizer(self, optimizer: Any) -> int:
        which = self._optimizers.of(optimizer)
        args = self._optimizer_args.get(which)
        if args is None:
            args = self._optimizer_args[which] = self._arguments({"optimizer": type(optimizer).__name__, "which": which})
        return args

    def leave_zero_grad(self, began: int, was: int) -> None:
        end = now()
        self.here.inside = was
        if began:
            self._span(self._zero_grad, began, end)

    def leave_save(self, began: int, was: int, file: Any) -> None:
        self._checkpoint(self._capture, began, was, file)

    def leave_load(self, began: int, was: int, file: Any) -> None:
        self._checkpoint(self._restart, began, was, file)

    def _checkpoint(self, name: int, began: int, was: int, file: Any) -> None:
        end = now()
        self.here.inside = was
        if not began:
            return
        size = UNKNOWN
        if type(file) is str or hasattr(type(file), "__fspath__"):
            try:
                size = os.stat(file).st_size
            except (OSError, ValueError):  # it is not there, or is no file's name: the program is about to hear of it
                pass
        self._span(name, began, end, 0, size)

    def leave_collective(self, began: int, was: int, function: Any, arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
        end = now()
        self.here.inside = was
        if not began:
            return
        try:
            name = function.__name__
            known = self._comm.get(name)
            if known is None:
                known = self._comm[name] = self.phase("comm", name, "bytes")
            self._span(known, began, end, 0, self._bytes_of((*arguments, *more.values())))
        except Exception as exc:
            self.failed("a collective", exc)

    def _bytes_of(self, values: tuple[Any, ...]) -> int:
        """Bytes of the first tensors among the arguments of a collective; -1 without any."""
        with self.torch._C.DisableTorchFunction():
            for value in values:
                tensors = value if type(value) in (list, tuple) else (value,)
                if tensors and all(isinstance(tensor, self.torch.Tensor) for tensor in tensors):
                    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return UNKNOWN

    def items(self, batch: object) -> int:
        """Items in a batch, or -1. Looks at no tensor through what the program may have put in its way (``__torch_function__``)."""
        with self.torch._C.DisableTorchFunction():
            counted = count_items(batch)
        return UNKNOWN if counted is None else counted


class Ordinals:
    """Numbers objects as they come, 0, 1, ..., without keeping them alive, hashing or comparing them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._next = 0

    def of(self, thing: object) -> int:
        """The number of an object.

        Raises:
            TypeError: It can not be referred to weakly.
        """
        key = id(thing)
        known = self._known.get(key)
        if known is None or known[0]() is not thing:
            known = self._known[key] = (weakref.ref(thing, forgetting(self._known, key)), self._next)
            self._next += 1
        return known[1]


def forgetting(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Drops an entry, whose first part refers to an object weakly, when that object is gone."""

    def forget(gone: Any) -> None:
        if key in table and table[key][0] is gone:
            del table[key]

    return forget


def left_by() -> type[BaseException] | None:
    """What a body that left no value was left by; to be asked in what is called after it."""
    return sys.exc_info()[0]
