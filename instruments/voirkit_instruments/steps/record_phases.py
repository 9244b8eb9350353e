"""What the steps instrument records around functions of torch, each as a phase: module calls, backward, optimizer steps, checkpoints,
collectives, copies between devices, and pauses of python and torch (garbage collection, compilation).

What is called often is made by ``record_spans.engine``; what is seldom, closures here. They must never raise. Checked with torch 2.1 and
2.15.
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

from voirkit.imports import when_imported
from voirkit.intercept import ThreadState
from voirkit.probes.around import Around
from voirkit.trace.layout import LOSS
from voirkit_instruments.identity import Ordinals
from voirkit_instruments.layers import depends_on_mode
from voirkit_instruments.places import Owner, file_owner
from voirkit_instruments.steps.record_plain import IDLE, IN_BACKWARD, IN_FORWARD, IN_STEP, SUPPRESSED
from voirkit_instruments.steps.record_spans import UNKNOWN, Recording
from voirkit_instruments.values import tensors_of

now = time.perf_counter_ns


def around_forward(recording: Recording) -> tuple[Any, Any]:
    """Before and after the outermost module call; a loss that is called by itself is told apart."""
    intern, torch = recording.recorder.arguments, recording.torch
    graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    loss = torch.nn.modules.loss._Loss
    forward, lossy = recording.phase("compute", "forward"), recording.phase("compute", "loss")
    known: dict[tuple[str, str, bool, bool, bool], tuple[int, int]] = {}  # by class, module and flags: name and arguments

    def describe(module: Any, training: bool, grad: bool) -> tuple[int, int]:
        kind = type(module)
        frozen = grad and not training and not any(tensor.requires_grad for tensor in tensors_of(module))
        key = (kind.__name__, kind.__module__, training, grad, frozen)
        found = known.get(key)
        if found is None:
            if isinstance(module, loss):
                found = lossy, intern({"module": key[0]})
            else:
                only_if_so = {"frozen": frozen, "modal": training and depends_on_mode(torch, module)}
                flags = {"training": training, "grad": grad, **{name: True for name, holds in only_if_so.items() if holds}}
                found = forward, intern({"module": key[0], **flags, **_compiled(module)})
            known[key] = found
        return found

    return recording.hot.enter(IN_FORWARD), recording.hot.leave_call(describe, torch.is_grad_enabled, graph_task)


def _after(recording: Recording, what: str, describe: Callable[..., tuple[int, int, int] | None]) -> Callable[..., None]:
    """What is called after a function that is called seldom.

    Args:
        describe: Called with the variables that are passed; returns name, arguments and value, or None where there is nothing to record.
    """
    thread, span = recording.hot.here, recording.recorder.span

    def leave(began: int, was: int, *passed: Any) -> None:
        end = now()
        thread.inside = was
        if not began:
            return
        try:
            described = describe(*passed)
        except Exception as exc:
            recording.failed(what, exc)
            return
        if described is not None:
            name, args, value = described
            span(name, began, end, args, value)

    return leave


def after_mode(recording: Recording) -> Any:
    """After ``Module.train()``, which ``eval()`` calls: from ``eval()`` to ``train()`` models are evaluated."""
    switched = recording.phase("compute", "mode", "training")
    return _after(recording, "a model's mode", lambda mode: (switched, 0, mode is True))


def _compiled(module: Any) -> dict[str, bool]:
    """That a module is compiled: ``torch.compile(module)`` (torch 2.1 to 2.15), or ``module.compile()``; nothing is said of others."""
    own = vars(module)
    return {"compiled": True} if "_orig_mod" in own.get("_modules", ()) or own.get("_compiled_call_impl") is not None else {}


def _settings(optimizer: Any) -> dict[str, Any]:
    """How an optimizer was made, as far as advice looks at it: ``fused``, ``foreach``, and the type of its parameters' device."""
    try:
        group = optimizer.param_groups[0]
        settings = {key: bool(group[key]) for key in ("fused", "foreach") if key in group}
        device = str(group["params"][0].device.type)
        return {**settings, "device": device, **(_bfloat16() if device == "cpu" else {})}
    except Exception:  # an optimizer of somebody else's: then nothing is known of it
        return {}


def _bfloat16() -> dict[str, bool]:
    """Whether the processors have instructions for bfloat16, without which it is no faster; nothing where that cannot be told."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "").split()
    except OSError:
        return {}
    return {"bf16": not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)} if flags else {}


def after_autocast(recording: Recording) -> Any:
    """After a block of ``torch.autocast`` was entered: a record of the first one for each type of device and precision."""
    name = recording.phase("script", "autocast")
    known: set[tuple[str, str]] = set()

    def describe(block: Any) -> tuple[int, int, int] | None:
        kind = str(block.device), str(block.fast_dtype).rpartition(".")[2]
        if not block._enabled or kind in known:
            return None
        known.add(kind)
        return name, recording.recorder.arguments({"device": kind[0], "dtype": kind[1]}), 0

    return _after(recording, "a block of autocast", describe)


def around_backward(recording: Recording) -> tuple[Any, Any]:
    """Before and after the outermost walk through a graph."""
    name, with_loss = recording.phase("compute", "backward"), recording.phase("compute", "backward", LOSS)
    return recording.hot.enter(IN_BACKWARD), recording.hot.leave_backward(name, with_loss)


def around_step(recording: Recording) -> tuple[Any, Any]:
    """Before and after an optimizer's step; the step of the class above, inside of it, is no other."""
    intern = recording.recorder.arguments
    step = recording.phase("compute", "step")
    ordinals = Ordinals()
    known: dict[int, int] = {}

    def describe(optimizer: Any) -> tuple[int, int]:
        which = ordinals.of(optimizer)
        args = known.get(which)
        if args is None:
            args = known[which] = intern({"optimizer": type(optimizer).__name__, "which": which, **_settings(optimizer)})
        return step, args

    def find_device() -> None:
        recording.look_for_device()

    cuda = recording.torch.cuda
    known_as = cuda if isinstance(getattr(cuda, "_initialized", None), bool) else None
    return recording.hot.enter(IN_STEP), recording.hot.leave_step(describe, find_device, known_as)


def around_zero_grad(recording: Recording) -> tuple[Any, Any]:
    """Before and after gradients are dropped or set to zero."""
    return recording.hot.enter(SUPPRESSED), recording.hot.leave(recording.phase("compute", "zero_grad"), SUPPRESSED)


def after_checkpoint(recording: Recording, name: str) -> Any:
    """After a checkpoint was written (``capture``) or read (``restart``)."""
    checkpoint = recording.phase("checkpoint", name, "bytes")

    def describe(file: Any) -> tuple[int, int, int]:
        size = UNKNOWN
        if isinstance(file, (str, os.PathLike)):
            try:
                about = os.stat(file)
                size = about.st_size if stat.S_ISREG(about.st_mode) else UNKNOWN  # torch.distributed.checkpoint writes a folder
            except (OSError, ValueError):  # it is not there: the program is about to hear of it
                pass
        return checkpoint, 0, size

    return _after(recording, "a checkpoint", describe)


def after_collective(recording: Recording, called: Callable[..., None]) -> Any:
    """After a function of torch.distributed: the wait for it, or only its beginning if it is asynchronous.

    Args:
        called: Told then when it began and ended, the function, its arguments and keywords; must not raise.
    """
    phases: dict[str, int] = {}

    def describe(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[int, int, int]:
        name = function.__name__
        if name not in phases:
            phases[name] = recording.phase("comm", name, "bytes")
        return phases[name], 0, recording.bytes_of((*arguments, *keywords.values()))

    record = _after(recording, "a collective", describe)

    def leave(began: int, was: int, *passed: Any) -> None:
        ended = now()
        record(began, was, *passed)
        if began:
            called(began, ended, *passed)

    return leave


def after_broadcast(recording: Recording) -> Any:
    """After DDP has given the buffers of the first rank to the others, as a forward pass begins: they wait there for that rank."""
    broadcast = recording.phase("comm", "broadcast_buffers", "bytes")
    return _after(recording, "a broadcast", lambda tensors: (broadcast, 0, recording.bytes_of((tensors,))))


TENSOR_METHODS = ("to", "cuda", "cpu")


class TransferRecording:
    """Writes copies into the trace plane. ``recording``: the recording that this is a part of."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._torch = recording.torch
        self._name = recording.phase("device", "transfer", "bytes")
        self._ways: dict[tuple[Any, Any], int] = {}

    def method(self, name: str) -> Any:
        """What is to stand in ``torch.Tensor`` in place of an inherited method written in C."""
        torch = self._torch
        modes = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
        return self._recording.hot.watch_copies(getattr(torch.Tensor, name), self.leave, self._name, self._way, torch.Tensor, modes)

    def leave(self, began: int, source: Any, result: Any, device: Any) -> None:
        """After a method that returned another tensor; ``device`` has been told of its beginning, if there is one."""
        recording = self._recording
        try:
            way = self._tensor_copied(source, result)
            if way is None:
                if device is not None:
                    device.drop()
                return
            # With the time that it takes to look at it: where there are thousands of small copies this is a part of what they take.
            recording.recorder.span(self._name, began, now(), *way)
            recording.hot.spans += 1
            if device is not None:
                device.end(self._name, *way)
        except Exception as exc:
            recording.failed("a copy of a tensor", exc)

    def _tensor_copied(self, source: Any, result: Any) -> tuple[int, int] | None:
        """From where to where and how many bytes, if something was copied that is to be recorded."""
        if any(type(one).__module__.startswith("torch._subclasses") for one in (source, result)):  # a compiler's, without data
            return None
        with self._torch._C.DisableTorchFunction():
            before, after = source.device, result.device
            if before == after:
                if self._recording.hot.here.inside != IDLE or _share(source, result):
                    return None
            elif before.type == "meta" or after.type == "meta":
                return None
            return self._way(before, after), result.nbytes

    def _way(self, before: Any, after: Any) -> int:
        found = self._ways.get((before, after))
        if found is None:
            found = self._ways[before, after] = self._recording.recorder.arguments({"from": str(before), "to": str(after)})
        return found

    # modules

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
            return self._name, self._way(before, after), _size(module)

    def _home(self, module: Any) -> str | None:
        """The device of a module's first tensor."""
        try:
            with self._torch._C.DisableTorchFunction():
                tensor = next(tensors_of(module), None)
                return None if tensor is None else str(tensor.device)
        except Exception:  # a module that is half made
            return None


def _share(one: Any, other: Any) -> bool:
    """Whether two tensors lie in the same memory: nothing was copied. Tensors that have none are taken to."""
    try:
        return bool(one.data_ptr() == other.data_ptr())
    except Exception:  # vmap's and other tensors without storage
        return True


def _size(module: Any) -> int:
    try:
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(module))
    except Exception:
        return UNKNOWN


# Collections of young objects take 5 to 50 us each and are many; of what a training step waits for they are nothing.
LEAST_NS = 100_000


class CollectionRecording:
    """Writes pauses of python's garbage collector into the trace plane.

    The callback stands in ``gc.callbacks``, where the program can see it, the first of them: there is no other way to be told of a
    collection. It is written in C where that was built, so that no profiler or tracer of the program's has a frame of it.

    Args:
        recording: The recording that this is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._arguments = recording.recorder.arguments
        self._by_generation: dict[int, int] = {}
        self._callback: Any = recording.hot.collection(recording.phase("gc", "collect", "collected"), self._describe, LEAST_NS)

    def _describe(self, generation: int) -> int:
        args = self._by_generation.get(generation)
        if args is None:
            args = self._by_generation[generation] = self._arguments({"generation": generation})
        return args

    def install(self) -> None:
        """Be told of collections from now on."""
        gc.callbacks.insert(0, self._callback)

    def remove(self) -> None:
        """Be told no more."""
        if self._callback in gc.callbacks:  # the program may have emptied the list
            gc.callbacks.remove(self._callback)


class CompilationRecording:
    """Writes compilations of ``torch.compile`` into the trace plane.

    torch._dynamo calls back at the beginning and end of each. Checked with torch 2.15; before 2.4 there are no callbacks, and a
    compilation counts for the phase that it happens in.

    Args:
        recording: The recording that this is a part of.
        on_first: Called as the first one begins.
    """

    def __init__(self, recording: Recording, on_first: Callable[[], None] = lambda: None) -> None:
        self._recording, self._on_first = recording, on_first
        self._name = recording.phase("compute", "compile")
        self._handler: Any = None
        self._begun: tuple[int, int] | None = None  # the thread, and when; they are one after the other
        self._over = False

    def install(self) -> None:
        """Be told of compilations from now on; the module is imported when something is first compiled."""
        when_imported("torch._dynamo.callback", self._register)

    def _register(self, module: ModuleType) -> None:
        handler: Any = getattr(module, "callback_handler", None)
        if self._over or not hasattr(handler, "remove_end_callback"):
            return
        try:
            handler.register_start_callback(self._on_start)
            handler.register_end_callback(self._on_end)
            self._handler = handler
        except Exception as exc:  # a torch that is not like any known one
            self._recording.failed("compilations", exc)

    def remove(self) -> None:
        """Be told no more."""
        self._over = True
        handler, self._handler = self._handler, None
        for name, callback in (("start", self._on_start), ("end", self._on_end)):
            if handler is not None and callback in getattr(handler, f"{name}_callbacks", ()):  # the program may have cleared them
                getattr(handler, f"remove_{name}_callback")(callback)

    # torch 2.7 and later pass what is compiled and why

    def _on_start(self, *_: object) -> None:
        self._begun = threading.get_ident(), now()
        on_first, self._on_first = self._on_first, lambda: None
        try:
            on_first()
        except Exception as exc:
            self._recording.failed("recompilations", exc)

    def _on_end(self, *_: object) -> None:
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == threading.get_ident():
            self._recording.recorder.span(self._name, begun[1], now())


_RESUMED = "torch_dynamo_resume_in_"  # torch_dynamo_resume_in_<function>_at_<line>: what is behind a graph break is compiled by itself
_OF_MODULES = os.path.join("torch", "_dynamo", "external_utils.py")
_FRAME = re.compile(r"Line: (\d+), Name: (.*), Filename: (.*)")
_TYPE_GUARD = re.compile(r"___check_type_id\((.*), \d+\), type=<class '(.*)'>")
_LONGEST_REASON = 300


class RecompilationRecording:
    """Writes marks of what ``torch.compile`` compiles again, where its graphs break, and what it leaves to eager mode, with their reasons.

    They are what torch._dynamo keeps of a compilation when that is over: nothing of its logging is switched on. Checked with torch 2.15;
    before 2.6 it keeps no reasons of recompilations, and before 2.4 nobody is told of the first one.

    Args:
        recording: The recording that this is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._breaks = 0  # graph breaks that have been seen
        self._functions: dict[str, tuple[str, str]] = {}

    def around(self, utils: Any) -> Around:
        """What stands around ``torch._dynamo.utils.record_compilation_metrics``, which is called after each compilation."""

        def leave(_began: int, _was: int) -> None:
            try:
                breaks = utils.graph_break_reasons
                self._breaks = self._breaks if self._breaks <= len(breaks) else 0  # torch._dynamo.reset() clears them
                events = list(compilation_events(utils._compilation_metrics[-1], breaks[self._breaks :], self._functions))
                self._breaks = len(breaks)
                for event in events:
                    self._mark(*event)
            except Exception as exc:  # a torch that is not like any known one
                self._recording.failed("recompilations", exc)

        return Around(ThreadState(), 0, now, leave)

    def _mark(self, what: str, function: str, place: str, reason: str, took_ns: int) -> None:
        recorder = self._recording.recorder
        name = recorder.name("compile", what, kind="mark", value="took_ns")
        at = now()
        recorder.span(name, at, at, recorder.arguments({"function": function, "place": place, "reason": reason}), took_ns)


def compilation_events(
    metrics: Any, breaks: Iterable[Any], functions: dict[str, tuple[str, str]]
) -> Iterator[tuple[str, str, str, str, int]]:
    """What is worth a mark of a compilation that is over: what, function, ``file:line``, reason in one line, nanoseconds.

    Args:
        metrics: A ``CompilationMetrics`` of torch._dynamo.
        breaks: A ``GraphCompileReason`` for each graph break in it.
        functions: Name and place by the number that torch._dynamo gives a function (the 3 of compilation 3/1), kept from call to call:
            at the recompile limit it names none.
    """
    for one in breaks:
        frame = one.user_stack[-1]
        yield "graph break", frame.name, f"{frame.filename}:{frame.lineno}", one_line(one.reason), 0
    number = str(metrics.compile_id).partition("/")[0]
    if metrics.co_name:
        function, resumed, rest = metrics.co_name.partition(_RESUMED)
        if resumed:
            name, _, line = rest.rpartition("_at_")
            function = f"{name}, behind line {line}"
        functions[number] = _caller(metrics) or (function, f"{metrics.co_filename}:{metrics.co_firstlineno}")
    function, place = functions.get(number, ("", ""))
    why, failed = getattr(metrics, "recompile_reason", None), metrics.fail_reason
    if failed and "recompile limit exceeded" in failed:
        yield "eager fallback", function, place, f"recompile limit reached; the last guard that failed: {one_line(why or 'unknown')}", 0
        return
    if failed and metrics.fail_type in ("Unsupported", "UserError"):
        yield "eager fallback", function, place, one_line(failed), 0
    if why:
        took_us = getattr(metrics, "duration_us", None) or (metrics.entire_frame_compile_time_s or 0) * 1e6
        yield "recompilation", function, place, one_line(why), int(took_us * 1000)


def _caller(metrics: Any) -> tuple[str, str] | None:
    """Where the script calls a module of torch's own that is compiled: it is ``inner`` of external_utils.py."""
    if not metrics.co_filename.endswith(_OF_MODULES):
        return None
    frames = (_FRAME.match(line) for line in reversed(getattr(metrics, "stack_trace", None) or ()))
    return next(((f"module called in {f[2]}", f"{f[3]}:{f[1]}") for f in frames if f and file_owner(f[3]) is not Owner.TORCH), None)


def one_line(reason: str) -> str:
    """A reason of torch._dynamo's without what stands around it: the number of the compilation, the source line, stacks and hints."""
    head, *lines = reason.partition("\nUser stack trace")[0].splitlines() or [""]
    number, colon, guard = head.partition(": ")
    if colon and number.replace("/", "").isdigit():
        head = _TYPE_GUARD.sub(r"type(\1) is \2", guard.partition("  #")[0])
    if head.startswith("generic_jump"):
        head = f"data-dependent branching ({head})"
    explanation = next((line.partition("Explanation: ")[2] for line in lines if "Explanation: " in line), "")
    return f"{head.strip()}{': ' if explanation else ''}{explanation}"[:_LONGEST_REASON]
