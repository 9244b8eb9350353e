"""Module calls, backward, optimizer steps, checkpoints and collectives, as the steps instrument records them.

What is called often is made by ``steps_record.engine``; what is seldom, closures here. They must never raise.
"""

from __future__ import annotations

import os
import time

from voirkit_instruments.loader_numbers import Ordinals
from voirkit_instruments.steps_plain import BACKWARD, DEAF, FORWARD, STEP
from voirkit_instruments.steps_record import UNKNOWN, Recording

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
                found = forward, intern({"module": key[0], "training": training, "grad": grad})
            known[key] = found
        return found

    return recording.hot.enter(FORWARD), recording.hot.leave_call(describe, torch.is_grad_enabled, graph_task)


def around_backward(recording: Recording) -> tuple[Any, Any]:
    """Before and after the outermost walk through a graph."""
    return recording.hot.enter(BACKWARD), recording.hot.leave(recording.phase("compute", "backward"), BACKWARD)


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
            args = known[which] = intern({"optimizer": type(optimizer).__name__, "which": which})
        return step, args

    def look() -> None:
        recording.look_for_device()

    return recording.hot.enter(STEP), recording.hot.leave_step(describe, look)


def around_zero_grad(recording: Recording) -> tuple[Any, Any]:
    """Before and after gradients are dropped or set to zero."""
    return recording.hot.enter(DEAF), recording.hot.leave(recording.phase("compute", "zero_grad"), DEAF)


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
                size = os.stat(file).st_size
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
