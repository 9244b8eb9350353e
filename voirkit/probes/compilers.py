"""Keeps torch.compile from compiling what has taps: it can not have functions among a code's constants (torch 2.15).

A function with taps runs as it is, between two compiled pieces, and so its events are right; what it calls is compiled
as ever. With ``fullgraph=True`` torch says that it can not.  Nothing here imports torch.
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from voirkit.imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

MARK = "_torchdynamo_disable"  # what torch.compiler.disable sets on a function


class Tapped(functools.partial):  # type: ignore[type-arg]  # it stands for a function of any kind
    """A tap in code whose functions are not known: a constant to torch.compile, which breaks the graph; 40 ns slower."""

    __slots__ = ()


def is_there() -> bool:
    """Whether the compiler has been imported."""
    return "torch._dynamo" in sys.modules


def spare(function: FunctionType, code: CodeType) -> None:
    """Have the compiler leave a function alone, while it runs some code."""
    function.__dict__.setdefault(MARK, _Ours)
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if not hasattr(frames, "skip_code"):
        return
    frames.skip_code(code)
    for tap in code.co_consts:
        if isinstance(tap, FunctionType):
            if hasattr(frames, "set_code_exec_strategy"):  # and what it calls, the subscribers
                action = frames.FrameAction.SKIP
                frames.set_code_exec_strategy(tap.__code__, frames.FrameExecStrategy(action, action))
            else:
                frames.skip_code(tap.__code__)


def release(function: FunctionType) -> None:
    """Let the compiler have a function again."""
    if function.__dict__.get(MARK) is _Ours:
        del function.__dict__[MARK]


class _Ours:
    """What stands for True in the mark, to know it again."""


def when_there(functions: Any) -> None:
    """Spare, when the compiler is imported, the functions and codes that a callable gives."""

    def tell(_: Any) -> None:
        constants = getattr(sys.modules.get("torch._dynamo.utils"), "common_constant_types", None)
        if constants is not None:
            constants.add(Tapped)
        pairs: Iterable[tuple[FunctionType, CodeType]] = functions()
        for function, code in pairs:
            spare(function, code)

    when_imported("torch._dynamo", tell)
