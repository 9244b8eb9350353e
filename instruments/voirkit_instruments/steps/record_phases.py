"""Callbacks that record what torch does as phases: module calls, backward passes, optimizer steps,
checkpoints, collectives, copies between devices, and pauses of Python and torch (garbage
collection, compilation).

Callbacks on hot paths are made by ``record_spans.engine``; those that are called seldom are
closures in this module. No callback may raise. Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

import gc
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from voirkit import phase_names
from voirkit.imports import when_imported
from voirkit.intercept import ThreadState
from voirkit.probes.around import Around
from voirkit.trace.layout import LOSS
from voirkit_instruments.identity import Ordinals
from voirkit_instruments.layers import depends_on_mode
from voirkit_instruments.places import Owner, file_owner
from voirkit_instruments.steps.record_plain import (
    IDLE,
    IN_BACKWARD,
    IN_FORWARD,
    IN_STEP,
    SUPPRESSED,
)
from voirkit_instruments.steps.record_spans import UNKNOWN, Recording
from voirkit_instruments.values import tensors_of

now = time.perf_counter_ns


def around_forward(recording: Recording) -> tuple[Any, Any]:
    """Return the callbacks before and after the outermost module call. A loss module that is called
    on its own is recorded under another name."""
    intern, torch = recording.recorder.arguments, recording.torch
    graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    loss = torch.nn.modules.loss._Loss
    forward_name = recording.phase("compute", phase_names.FORWARD)
    loss_name = recording.phase("compute", "loss")
    # interned name and arguments, by class name, Python module and flags
    descriptions: dict[tuple[str, str, bool, bool, bool], tuple[int, int]] = {}

    def describe(module: Any, training: bool, grad: bool) -> tuple[int, int]:
        kind = type(module)
        frozen = (
            grad and not training and not any(tensor.requires_grad for tensor in tensors_of(module))
        )
        key = (kind.__name__, kind.__module__, training, grad, frozen)
        description = descriptions.get(key)
        if description is None:
            fields: dict[str, Any] = {"module": key[0]}
            name = loss_name
            if not isinstance(module, loss):
                name = forward_name
                fields["training"] = training
                fields["grad"] = grad
                if frozen:
                    fields["frozen"] = True
                if training and depends_on_mode(torch, module):
                    fields["modal"] = True
                fields.update(_compiled(module))
            description = descriptions[key] = (name, intern(fields))
        return description

    leave = recording.hot.leave_call(describe, torch.is_grad_enabled, graph_task)
    return recording.hot.enter(IN_FORWARD), leave


def _after(
    recording: Recording, action: str, describe: Callable[..., tuple[int, int, int] | None]
) -> Callable[..., None]:
    """Return the callback to run after a function that is called seldom.

    Args:
        action: Name of the record in warnings, such as "a checkpoint".
        describe: Called with the variables that are passed to the callback. Returns name, arguments
            and value of the record, or None if there is nothing to record.
    """
    thread, span = recording.hot.here, recording.recorder.span

    def leave(start_ns: int, was: int, *arguments: Any) -> None:
        end = now()
        thread.inside = was
        if not start_ns:
            return
        try:
            described = describe(*arguments)
        except Exception as exc:
            # ``describe`` may fail on objects of the program, or with an unknown version of torch.
            recording.failed(action, exc)
            return
        if described is not None:
            name, args, value = described
            span(name, start_ns, end, args, value)

    return leave


def after_mode(recording: Recording) -> Any:
    """Return the callback to run after ``Module.train()``, which ``eval()`` calls too. It records
    the mode: models are evaluated from ``eval()`` to the next ``train()``."""
    switched = recording.phase("compute", "mode", "training")
    return _after(recording, "a model's mode", lambda mode: (switched, 0, mode is True))


def _compiled(module: Any) -> dict[str, bool]:
    """Return ``{"compiled": True}`` for a module compiled by ``torch.compile(module)`` (torch 2.1
    to 2.15) or ``module.compile()``; an empty dict for any other module."""
    fields = vars(module)
    is_wrapped = "_orig_mod" in fields.get("_modules", ())
    if is_wrapped or fields.get("_compiled_call_impl") is not None:
        return {"compiled": True}
    return {}


def _settings(optimizer: Any) -> dict[str, Any]:
    """Return the settings of an optimizer that advice depends on: ``fused``, ``foreach``, and
    ``device``, the device type of its parameters. On a CPU, ``bf16`` is added."""
    try:
        group = optimizer.param_groups[0]
        settings: dict[str, Any] = {}
        for key in ("fused", "foreach"):
            if key in group:
                settings[key] = bool(group[key])
        device = settings["device"] = str(group["params"][0].device.type)
        if device == "cpu":
            settings.update(_bfloat16())
        return settings
    except Exception:  # another library's optimizer: its settings stay unknown
        return {}


def _bfloat16() -> dict[str, bool]:
    """Return ``{"bf16": ...}``: true if the processors have bfloat16 instructions, without which
    bfloat16 is no faster. The dict is empty if that is unknown."""
    flags: list[str] = []
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    flags = line.split()
                    break
    except OSError:
        return {}
    if not flags:
        return {}
    return {"bf16": not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)}


def after_autocast(recording: Recording) -> Any:
    """Return the callback to run after a block of ``torch.autocast`` was entered. It records the
    first block for each pair of device type and precision."""
    name = recording.phase("script", "autocast")
    recorded: set[tuple[str, str]] = set()

    def describe(block: Any) -> tuple[int, int, int] | None:
        device, dtype = str(block.device), str(block.fast_dtype).rpartition(".")[2]
        if not block._enabled or (device, dtype) in recorded:
            return None
        recorded.add((device, dtype))
        return name, recording.recorder.arguments({"device": device, "dtype": dtype}), 0

    return _after(recording, "a block of autocast", describe)


def around_backward(recording: Recording) -> tuple[Any, Any]:
    """Return the callbacks before and after the outermost backward pass."""
    name = recording.phase("compute", phase_names.BACKWARD)
    with_loss = recording.phase("compute", phase_names.BACKWARD, LOSS)
    return recording.hot.enter(IN_BACKWARD), recording.hot.leave_backward(name, with_loss)


def around_step(recording: Recording) -> tuple[Any, Any]:
    """Return the callbacks before and after an optimizer step. A base class's ``step`` that runs
    inside it is not recorded separately."""
    intern = recording.recorder.arguments
    step = recording.phase("compute", "step")
    ordinals = Ordinals()
    arguments: dict[int, int] = {}  # interned arguments, by number of the optimizer

    def describe(optimizer: Any) -> tuple[int, int]:
        number = ordinals.of(optimizer)
        args = arguments.get(number)
        if args is None:
            kind = type(optimizer).__name__
            fields = {"optimizer": kind, "which": number, **_settings(optimizer)}
            args = arguments[number] = intern(fields)
        return step, args

    def find_device() -> None:
        recording.look_for_device()

    cuda = recording.torch.cuda
    if not isinstance(getattr(cuda, "_initialized", None), bool):
        cuda = None
    return recording.hot.enter(IN_STEP), recording.hot.leave_step(describe, find_device, cuda)


def around_zero_grad(recording: Recording) -> tuple[Any, Any]:
    """Return the callbacks before and after gradients are cleared."""
    name = recording.phase("compute", "zero_grad")
    return recording.hot.enter(SUPPRESSED), recording.hot.leave(name, SUPPRESSED)


def after_checkpoint(recording: Recording, name: str) -> Any:
    """Return the callback to run after a checkpoint was written or read. ``name``: ``capture`` for
    writing, ``restart`` for reading."""
    checkpoint = recording.phase("checkpoint", name, "bytes")

    def describe(file: Any) -> tuple[int, int, int]:
        size = UNKNOWN
        if isinstance(file, (str, os.PathLike)):
            try:
                status = os.stat(file)
                # The size is known for a file, not for a directory (torch.distributed.checkpoint).
                if stat.S_ISREG(status.st_mode):
                    size = status.st_size
            # the file is missing: the program is about to get the error itself
            except (OSError, ValueError):
                pass
        return checkpoint, 0, size

    return _after(recording, "a checkpoint", describe)


def after_collective(recording: Recording, called: Callable[..., None]) -> Any:
    """Return the callback to run after a function of torch.distributed. The record covers the wait
    for the collective, or only its launch if it is asynchronous.

    Args:
        called: Called afterwards with start, end, the function, its arguments and keywords; must
            not raise.
    """
    phases: dict[str, int] = {}

    def describe(
        function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[int, int, int]:
        name = function.__name__
        if name not in phases:
            phases[name] = recording.phase("comm", name, "bytes")
        return phases[name], 0, recording.bytes_of((*arguments, *keywords.values()))

    record = _after(recording, "a collective", describe)

    def leave(start_ns: int, was: int, *arguments: Any) -> None:
        end_ns = now()
        record(start_ns, was, *arguments)
        if start_ns:
            called(start_ns, end_ns, *arguments)

    return leave


def after_broadcast(recording: Recording) -> Any:
    """Return the callback to run after DDP has broadcast the first rank's buffers, at the start of
    a forward pass. The other ranks wait there for the first."""
    broadcast = recording.phase("comm", "broadcast_buffers", "bytes")

    def describe(tensors: Any) -> tuple[int, int, int]:
        return broadcast, 0, recording.bytes_of((tensors,))

    return _after(recording, "a broadcast", describe)


TENSOR_METHODS = ("to", "cuda", "cpu")


class TransferRecording:
    """Writer of copies between devices into the trace. ``recording``: the state of the steps
    instrument, which this object is a part of."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._torch = recording.torch
        self._name = recording.phase("device", phase_names.TRANSFER, "bytes")
        self._directions: dict[tuple[Any, Any], int] = {}

    def method(self, name: str) -> Any:
        """Return the replacement in ``torch.Tensor`` of an inherited method written in C."""
        tensor = self._torch.Tensor
        modes = getattr(self._torch._C, "_len_torch_function_stack", lambda: 1)
        method = getattr(tensor, name)
        return self._recording.hot.watch_copies(
            method, self.leave, self._name, self._direction, tensor, modes
        )

    def leave(self, start_ns: int, source: Any, result: Any, device: Any) -> None:
        """Record a copy after a method that returned another tensor. ``device``: the recorder of
        GPU times, where the method's start was noted; None without a GPU."""
        recording = self._recording
        try:
            copy = self._tensor_copied(source, result)
            if copy is None:
                if device is not None:
                    device.drop()
                return
            # The span includes the time to inspect the tensors. If there are thousands of small
            # copies, the inspection is part of their cost.
            recording.recorder.span(self._name, start_ns, now(), *copy)
            recording.hot.spans += 1
            if device is not None:
                device.end(self._name, *copy)
        except Exception as exc:  # raised by a tensor class of the program
            recording.failed("a copy of a tensor", exc)

    def _tensor_copied(self, source: Any, result: Any) -> tuple[int, int] | None:
        """Return the interned direction (source and target device) and the bytes of a copy; None if
        nothing was copied, or the copy is not to be recorded."""
        # torch.compile's fake tensors, which have no data, are not copied.
        for tensor in (source, result):
            if type(tensor).__module__.startswith("torch._subclasses"):
                return None
        with self._torch._C.DisableTorchFunction():
            before, after = source.device, result.device
            if before == after:
                if self._recording.hot.here.inside != IDLE or _share(source, result):
                    return None
            elif before.type == "meta" or after.type == "meta":
                return None
            return self._direction(before, after), result.nbytes

    def _direction(self, before: Any, after: Any) -> int:
        """Return the interned arguments that name the source and target device."""
        args = self._directions.get((before, after))
        if args is None:
            fields = {"from": str(before), "to": str(after)}
            args = self._directions[before, after] = self._recording.recorder.arguments(fields)
        return args

    # copies of whole modules

    def enter_module(self, module: Any) -> int:
        self._recording.hot.here.inside = SUPPRESSED
        self._recording.local.home = self._home(module)
        return now()

    def after_module(self) -> Any:
        return _after(self._recording, "a copy of a module", self._module_copied)

    def _module_copied(self, module: Any) -> tuple[int, int, int] | None:
        before, after = self._recording.local.home, self._home(module)
        if before is None or after is None or before == after or "meta" in (before, after):
            return None
        with self._torch._C.DisableTorchFunction():
            return self._name, self._direction(before, after), _size(module)

    def _home(self, module: Any) -> str | None:
        """Return the device of a module's first tensor; None if it has no tensor."""
        try:
            with self._torch._C.DisableTorchFunction():
                tensor = next(tensors_of(module), None)
                return None if tensor is None else str(tensor.device)
        except Exception:  # a module that is only partly initialised
            return None


def _share(tensor: Any, other: Any) -> bool:
    """True if two tensors share memory, so that nothing was copied. Tensors without memory count as
    sharing."""
    try:
        return bool(tensor.data_ptr() == other.data_ptr())
    except Exception:  # tensors without storage, such as vmap's
        return True


def _size(module: Any) -> int:
    try:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(module))
    except Exception:  # a partly initialised module, or a tensor without storage
        return UNKNOWN


# Shorter pauses are not recorded: collections of young objects are frequent and take 5 to 50 us
# each, which is negligible in a training step.
LEAST_NS = 100_000


class CollectionRecording:
    """Writer of pauses of Python's garbage collector into the trace.

    The callback stands first in ``gc.callbacks``, where the program can see it: there is no other
    way to observe collections. If the C extension was built, the callback is written in C, so that
    the program's profilers and tracers see no frame of it.

    Args:
        recording: The state of the steps instrument, which this object is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._arguments = recording.recorder.arguments
        self._by_generation: dict[int, int] = {}
        name = recording.phase("gc", "collect", "collected")
        self._callback: Any = recording.hot.collection(name, self._describe, LEAST_NS)

    def _describe(self, generation: int) -> int:
        args = self._by_generation.get(generation)
        if args is None:
            args = self._by_generation[generation] = self._arguments({"generation": generation})
        return args

    def install(self) -> None:
        """Register the gc callback."""
        gc.callbacks.insert(0, self._callback)

    def remove(self) -> None:
        """Remove the gc callback."""
        if self._callback in gc.callbacks:  # the program may have emptied the list
            gc.callbacks.remove(self._callback)


class CompilationRecording:
    """Writer of the compilations by ``torch.compile`` into the trace.

    torch._dynamo calls back at the start and end of each compilation. Checked with torch 2.15.
    Before 2.4 there are no such callbacks, and a compilation counts as part of the phase that it
    happens in.

    Args:
        recording: The state of the steps instrument, which this object is a part of.
        on_first: Called when the first compilation starts.
    """

    def __init__(self, recording: Recording, on_first: Callable[[], None] = lambda: None) -> None:
        self._recording = recording
        self._on_first = on_first
        self._name = recording.phase("compute", "compile")
        self._handler: Any = None
        # thread and start of the current compilation; compilations do not overlap
        self._current: tuple[int, int] | None = None
        self._over = False

    def install(self) -> None:
        """Register the callbacks as soon as torch._dynamo's callback module is imported, which is
        when something is first compiled."""
        when_imported("torch._dynamo.callback", self._register)

    def _register(self, module: ModuleType) -> None:
        handler: Any = getattr(module, "callback_handler", None)
        if self._over or not hasattr(handler, "remove_end_callback"):
            return
        try:
            handler.register_start_callback(self._on_start)
            handler.register_end_callback(self._on_end)
            self._handler = handler
        except Exception as exc:  # a torch version with different internals
            self._recording.failed("compilations", exc)

    def remove(self) -> None:
        """Remove the callbacks."""
        self._over = True
        handler, self._handler = self._handler, None
        if handler is None:
            return
        for name, callback in (("start", self._on_start), ("end", self._on_end)):
            # the program may have cleared the callbacks
            if callback in getattr(handler, f"{name}_callbacks", ()):
                getattr(handler, f"remove_{name}_callback")(callback)

    # callbacks; torch 2.7 and later pass them what is compiled, and why, which is not used

    def _on_start(self, *_: object) -> None:
        self._current = (threading.get_ident(), now())
        on_first, self._on_first = self._on_first, lambda: None
        try:
            on_first()
        except Exception as exc:  # a torch version with different internals
            self._recording.failed("recompilations", exc)

    def _on_end(self, *_: object) -> None:
        current, self._current = self._current, None
        if current is None:
            return
        thread, start_ns = current
        if thread == threading.get_ident():
            self._recording.recorder.span(self._name, start_ns, now())


# Prefix of the name of the code after a graph break, which is compiled separately:
# torch_dynamo_resume_in_<function>_at_<line>
_RESUMED = "torch_dynamo_resume_in_"
_OF_MODULES = os.path.join("torch", "_dynamo", "external_utils.py")
_FRAME = re.compile(r"Line: (\d+), Name: (.*), Filename: (.*)")
_TYPE_GUARD = re.compile(r"___check_type_id\((.*), \d+\), type=<class '(.*)'>")
_LONGEST_REASON = 300


class RecompilationRecording:
    """Writer of marks for recompilations by ``torch.compile``, graph breaks, and functions left in
    eager mode, with their reasons.

    The data is what torch._dynamo keeps once a compilation is over; none of its logging is switched
    on. Checked with torch 2.15. Before 2.6 torch keeps no reasons of recompilations, and before 2.4
    the first compilation is missed.

    Args:
        recording: The state of the steps instrument, which this object is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._breaks = 0  # number of graph breaks read so far
        self._functions: dict[str, tuple[str, str]] = {}

    def around(self, utils: Any) -> Around:
        """Return the code to put around ``torch._dynamo.utils.record_compilation_metrics``, which
        torch calls after each compilation."""

        def leave(_start_ns: int, _was: int) -> None:
            try:
                breaks = utils.graph_break_reasons
                if self._breaks > len(breaks):  # torch._dynamo.reset() clears the list
                    self._breaks = 0
                metrics, new = utils._compilation_metrics[-1], breaks[self._breaks :]
                events = list(compilation_events(metrics, new, self._functions))
                self._breaks = len(breaks)
                for event in events:
                    self._mark(*event)
            except Exception as exc:  # a torch version with different internals
                self._recording.failed("recompilations", exc)

        return Around(ThreadState(), 0, now, leave)

    def _mark(self, event: str, function: str, place: str, reason: str, took_ns: int) -> None:
        recorder = self._recording.recorder
        name = recorder.name("compile", event, kind="mark", value="took_ns")
        at_ns = now()
        args = recorder.arguments({"function": function, "place": place, "reason": reason})
        recorder.span(name, at_ns, at_ns, args, took_ns)


def compilation_events(
    metrics: Any, breaks: Iterable[Any], functions: dict[str, tuple[str, str]]
) -> Iterator[tuple[str, str, str, str, int]]:
    """Yield the marks of a finished compilation: event, function, ``file:line``, reason in one
    line, nanoseconds.

    Args:
        metrics: A ``CompilationMetrics`` of torch._dynamo.
        breaks: A ``GraphCompileReason`` for each graph break in the compilation.
        functions: Name and place of each function, by torch._dynamo's number of it (the 3 of
            compilation 3/1). Kept between calls, since torch._dynamo names no function when the
            recompile limit is reached.
    """
    for graph_break in breaks:
        frame = graph_break.user_stack[-1]
        place = f"{frame.filename}:{frame.lineno}"
        yield "graph break", frame.name, place, one_line(graph_break.reason), 0
    number = str(metrics.compile_id).partition("/")[0]
    if metrics.co_name:
        functions[number] = _caller(metrics) or _compiled_function(metrics)
    function, place = functions.get(number, ("", ""))
    why, failure = getattr(metrics, "recompile_reason", None), metrics.fail_reason
    if failure and "recompile limit exceeded" in failure:
        guard = one_line(why or "unknown")
        reason = f"recompile limit reached; the last guard that failed: {guard}"
        yield "eager fallback", function, place, reason, 0
        return
    if failure and metrics.fail_type in ("Unsupported", "UserError"):
        yield "eager fallback", function, place, one_line(failure), 0
    if why:
        took_us = getattr(metrics, "duration_us", None)
        if not took_us:
            took_us = (metrics.entire_frame_compile_time_s or 0) * 1e6
        yield "recompilation", function, place, one_line(why), int(took_us * 1000)


def _compiled_function(metrics: Any) -> tuple[str, str]:
    """Return name and place of the function that was compiled."""
    function, is_resumed, resumed = metrics.co_name.partition(_RESUMED)
    if is_resumed:
        name, _, line = resumed.rpartition("_at_")
        function = f"{name}, behind line {line}"
    return function, f"{metrics.co_filename}:{metrics.co_firstlineno}"


def _caller(metrics: Any) -> tuple[str, str] | None:
    """Return name and place of the script's call of a compiled module of torch. torch compiles such
    a module as ``inner`` of external_utils.py. None for any other function."""
    if not metrics.co_filename.endswith(_OF_MODULES):
        return None
    for line in reversed(getattr(metrics, "stack_trace", None) or ()):
        frame = _FRAME.match(line)
        if frame and file_owner(frame[3]) is not Owner.TORCH:
            return f"module called in {frame[2]}", f"{frame[3]}:{frame[1]}"
    return None


def one_line(reason: str) -> str:
    """Return torch._dynamo's reason in one line, without the compilation's number, the source line,
    stacks and hints."""
    head, *lines = reason.partition("\nUser stack trace")[0].splitlines() or [""]
    number, colon, guard = head.partition(": ")
    if colon and number.replace("/", "").isdigit():
        head = _TYPE_GUARD.sub(r"type(\1) is \2", guard.partition("  #")[0])
    if head.startswith("generic_jump"):
        head = f"data-dependent branching ({head})"
    words = head.strip()
    for line in lines:
        _, is_explained, explanation = line.partition("Explanation: ")
        if is_explained:
            if explanation:
                words = f"{words}: {explanation}"
            break
    return words[:_LONGEST_REASON]
