"""Module calls, backward, optimizer steps, checkpoints and collectives, as the steps instrument records them.

What is called before and after them are closures: the quickest (a module call costs 1 microsecond), and torch.compile, which copies the
constants of code, copies a method with its object but no function. They must never raise.
"""

from __future__ import annotations

import os
import time

from voirkit_instruments.steps_record import BACKWARD, DEAF, FORWARD, NOTHING, STEP, UNKNOWN, Ordinals, Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

now = time.perf_counter_ns


def enter_deaf(recording: Recording) -> Any:
    """Called before that inside of which nothing else is recorded."""
    here = recording.here

    def enter(*_: object) -> int:
        here.inside = DEAF
        return now()

    return enter


def around_forward(recording: Recording) -> tuple[Any, Any]:
    """Before and after the outermost module call; a loss that is called by itself is told apart."""
    here, span, intern = recording.here, recording.recorder.span, recording.recorder.arguments
    grad_enabled = recording.torch.is_grad_enabled
    graph_task = getattr(recording.torch._C, "_current_graph_task_id", lambda: -1)
    loss = recording.torch.nn.modules.loss._Loss
    forward, lossy = recording.phase("compute", "forward"), recording.phase("compute", "loss")
    known: dict[tuple[str, str, bool, bool], tuple[int, int]] = {}  # by class, module and flags: name and arguments

    def enter(_: object) -> int:
        here.inside = FORWARD
        if recording.device is not None:
            recording.device.begin()
        return now()

    def leave(began: int, was: int, module: Any) -> None:
        end = now()
        here.inside = was
        if not began:
            return
        try:
            if was == NOTHING and graph_task() != -1:  # in a thread of the autograd engine: a checkpoint's recomputation
                if recording.device is not None:
                    recording.device.drop()
                return
            kind = type(module)
            key = (kind.__name__, kind.__module__, module.training, grad_enabled())
            found = known.get(key)
            if found is None:
                found = known[key] = describe(module, key)
            span(found[0], began, end, found[1])
            if recording.device is not None:
                recording.device.end(found[0], found[1])
        except Exception as exc:
            recording.failed("a module call", exc)

    def describe(module: Any, key: tuple[str, str, bool, bool]) -> tuple[int, int]:
        if isinstance(module, loss):
            return lossy, intern({"module": key[0]})
        return forward, intern({"module": key[0], "training": bool(key[2]), "grad": bool(key[3])})

    return enter, leave


def around_backward(recording: Recording) -> tuple[Any, Any]:
    """Before and after the outermost walk through a graph."""
    here, span = recording.here, recording.recorder.span
    backward = recording.phase("compute", "backward")

    def enter() -> int:
        here.inside = BACKWARD
        if recording.device is not None:
            recording.device.begin()
        return now()

    def leave(began: int, was: int) -> None:
        end = now()
        here.inside = was
        if began:
            span(backward, began, end)
            if recording.device is not None:
                recording.device.end(backward)

    return enter, leave


def around_step(recording: Recording) -> tuple[Any, Any]:
    """Before and after an optimizer's step; the step of the class above, inside of it, is no other."""
    here, span, intern = recording.here, recording.recorder.span, recording.recorder.arguments
    step = recording.phase("compute", "step")
    ordinals = Ordinals()
    known: dict[int, int] = {}

    def enter(*_: object) -> int:
        if here.inside == STEP:
            return 0
        here.inside = STEP
        if recording.device is not None:
            recording.device.begin()
        return now()

    def leave(began: int, was: int, optimizer: Any) -> None:
        end = now()
        here.inside = was
        if not began:
            return
        try:
            if type(optimizer) is tuple:  # all arguments, of a decorator's function
                optimizer = optimizer[0]
            which = ordinals.of(optimizer)
            args = known.get(which)
            if args is None:
                args = known[which] = intern({"optimizer": type(optimizer).__name__, "which": which})
            span(step, began, end, args)
            if recording.device is not None:
                recording.device.end(step, args)
            else:
                recording.look_for_device()
        except Exception as exc:
            recording.failed("an optimizer's step", exc)

    return enter, leave


def after_zero_grad(recording: Recording) -> Any:
    """After gradients were dropped or set to zero."""
    here, span = recording.here, recording.recorder.span
    zero_grad = recording.phase("compute", "zero_grad")

    def leave(began: int, was: int) -> None:
        end = now()
        here.inside = was
        if began:
            span(zero_grad, began, end)

    return leave


def after_checkpoint(recording: Recording, name: str) -> Any:
    """After a checkpoint was written (``capture``) or read (``restart``)."""
    here, span = recording.here, recording.recorder.span
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
    here, span = recording.here, recording.recorder.span
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
