"""Module calls, backward, optimizer steps, checkpoints and collectives, as the steps instrument records them.

What is called often is made by ``steps_record.engine``; what is seldom, closures here. They must never raise.
"""

from __future__ import annotations

import os
import stat
import time

from voirkit_instruments.loader_numbers import Ordinals
from voirkit_instruments.steps.record_plain import IN_BACKWARD, IN_FORWARD, IN_STEP, SUPPRESSED
from voirkit_instruments.steps.record_spans import UNKNOWN, Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

now = time.perf_counter_ns


def around_forward(recording: Recording) -> tuple[Any, Any]:
    """Before and after the outermost module call; a loss that is called by itself is told apart."""
    intern, torch = recording.recorder.arguments, recording.torch
    graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    loss = torch.nn.modules.loss._Loss
    forward, lossy = recording.phase("compute", "forward"), recording.phase("compute", "loss")
    known: dict[tuple[str, str, bool, bool], tuple[int, int]] = {}  # by class, module and flags: name and arguments

    def describe(module: Any, training: bool, grad: bool) -> tuple[int, int]:
        kind = type(module)
        key = (kind.__name__, kind.__module__, training, grad)
        found = known.get(key)
        if found is None:
            if isinstance(module, loss):
                found = lossy, intern({"module": key[0]})
            else:
                found = forward, intern({"module": key[0], "training": training, "grad": grad, **_compiled(module)})
            known[key] = found
        return found

    return recording.hot.enter(IN_FORWARD), recording.hot.leave_call(describe, torch.is_grad_enabled, graph_task)


def after_mode(recording: Recording) -> Any:
    """After ``Module.train()``, which ``eval()`` calls: from ``eval()`` to ``train()`` models are evaluated."""
    here, span = recording.hot.here, recording.recorder.span
    switched = recording.phase("compute", "mode", "training")

    def leave(began: int, was: int, mode: object) -> None:
        here.inside = was
        if began:
            span(switched, began, now(), 0, mode is True)

    return leave


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
    here, span, intern = recording.hot.here, recording.recorder.span, recording.recorder.arguments
    name = recording.phase("script", "autocast")
    known: set[tuple[str, str]] = set()

    def leave(began: int, was: int, block: Any) -> None:
        here.inside = was
        try:
            kind = str(block.device), str(block.fast_dtype).rpartition(".")[2]
            if block._enabled and kind not in known:
                known.add(kind)
                span(name, began or now(), now(), intern({"device": kind[0], "dtype": kind[1]}))
        except Exception as exc:
            recording.failed("a block of autocast", exc)

    return leave


def around_backward(recording: Recording) -> tuple[Any, Any]:
    """Before and after the outermost walk through a graph."""
    return recording.hot.enter(IN_BACKWARD), recording.hot.leave(recording.phase("compute", "backward"), IN_BACKWARD)


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

    def look() -> None:
        recording.look_for_device()

    cuda = recording.torch.cuda
    known_as = cuda if isinstance(getattr(cuda, "_initialized", None), bool) else None
    return recording.hot.enter(IN_STEP), recording.hot.leave_step(describe, look, known_as)


def around_zero_grad(recording: Recording) -> tuple[Any, Any]:
    """Before and after gradients are dropped or set to zero."""
    return recording.hot.enter(SUPPRESSED), recording.hot.leave(recording.phase("compute", "zero_grad"), SUPPRESSED)


def after_checkpoint(recording: Recording, name: str) -> Any:
    """After a checkpoint was written (``capture``) or read (``restart``)."""
    here, span = recording.hot.here, recording.recorder.span
    checkpoint = recording.phase("checkpoint", name, "bytes")

    def leave(began: int, was: int, file: Any) -> None:
        end = now()
        here.inside = was
        if not began:
            return
        size = UNKNOWN
        if isinstance(file, (str, os.PathLike)):
            try:
                about = os.stat(file)
                size = about.st_size if stat.S_ISREG(about.st_mode) else UNKNOWN  # torch.distributed.checkpoint writes a folder
            except (OSError, ValueError):  # it is not there: the program is about to hear of it
                pass
        span(checkpoint, began, end, 0, size)

    return leave


def after_collective(recording: Recording) -> Any:
    """After a function of torch.distributed: the wait for it, or only its beginning if it is asynchronous."""
    here, span = recording.hot.here, recording.recorder.span
    known: dict[str, int] = {}

    def leave(began: int, was: int, function: Any, arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
        end = now()
        here.inside = was
        if not began:
            return
        try:
            name = function.__name__
            found = known.get(name)
            if found is None:
                found = known[name] = recording.phase("comm", name, "bytes")
            span(found, began, end, 0, recording.bytes_of((*arguments, *more.values())))
        except Exception as exc:
            recording.failed("a collective", exc)

    return leave


def after_broadcast(recording: Recording) -> Any:
    """After DDP has given the buffers of the first rank to the others, as a forward pass begins: they wait there for that rank."""
    here, span = recording.hot.here, recording.recorder.span
    broadcast = recording.phase("comm", "broadcast_buffers", "bytes")

    def leave(began: int, was: int, tensors: Any) -> None:
        end = now()
        here.inside = was
        if began:
            span(broadcast, began, end, 0, recording.bytes_of((tensors,)))

    return leave
