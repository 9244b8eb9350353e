"""Copies between devices, as the steps instrument records them: ``Tensor.to``, ``.cuda``, ``.cpu``, and those of modules.

What the program gets is what torch returned. ``torch.Tensor.to``, asked for from the class, stays torch's own method, so that whatever
compares or looks up functions (``__torch_function__``, torch.fx, torch.compile) sees no other. Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

import os
from types import MethodType

from voirkit_instruments.patching import without_this_frame
from voirkit_instruments.steps_compute import now
from voirkit_instruments.steps_record import BACKWARD, DEAF, NOTHING, UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.steps_record import Recording

TENSOR_METHODS = ("to", "cuda", "cpu")


class TransferRecording:
    """Writes copies into the trace plane.

    Args:
        recording: The recording that this is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._torch = recording.torch
        self._name = recording.phase("device", "transfer", "bytes")
        self._ways: dict[tuple[Any, Any], int] = {}

    def method(self, name: str) -> Any:
        """What is to stand in ``torch.Tensor`` in place of an inherited method written in C."""
        method = getattr(self._torch.Tensor, name)
        try:
            if os.environ.get("VOIRKIT_NO_EXTENSION") == "1":
                return Watched(method, self.enter, self.leave)
            from voirkit_instruments._watched import Watched as InC  # type: ignore[import-not-found, unused-ignore]
        except ImportError:  # it was not built
            return Watched(method, self.enter, self.leave)
        return InC(method, self.enter, self.leave)

    def enter(self) -> Any:
        """Before a method of a tensor: when it began, and the times on the device that are to hear of the end; None if it is no phase."""
        recording = self._recording
        if recording.here.inside > BACKWARD:
            return None
        device = recording.device
        if device is None:
            return now()
        device.begin()
        return now(), device

    def leave(self, began: Any, source: Any, result: Any) -> None:
        """After a method that returned another tensor; for times on a device, whatever it returned or raised."""
        device = None
        if type(began) is tuple:
            began, device = began
        try:
            way = None if source is None else self._copied(source, result)
            if way is None:
                if device is not None:
                    device.drop()
                return
            # With the time that it takes to look at it: where there are thousands of small copies this is a part of what they take.
            self._recording.recorder.span(self._name, began, now(), *way)
            if device is not None:
                device.end(self._name, *way)
        except Exception as exc:
            self._recording.failed("a copy of a tensor", exc)

    def _copied(self, source: Any, result: Any) -> tuple[int, int] | None:
        """From where to where and how many bytes, if something was copied that is to be recorded."""
        with self._torch._C.DisableTorchFunction():
            before, after = source.device, result.device
            if before == after:
                if self._recording.here.inside != NOTHING or _share(source, result):
                    return None
            elif before.type == "meta" or after.type == "meta" or _is_fake(source):
                return None
            return self._way(before, after), result.nbytes

    def _way(self, before: Any, after: Any) -> int:
        found = self._ways.get((before, after))
        if found is None:
            found = self._ways[before, after] = self._recording.recorder.arguments({"from": str(before), "to": str(after)})
        return found

    # modules

    def enter_module(self, module: Any) -> int:
        self._recording.here.inside = DEAF
        self._recording.here.home = self._home(module)
        return now()

    def leave_module(self, began: int, was: int, module: Any) -> None:
        end = now()
        here = self._recording.here
        here.inside = was
        if not began:
            return
        try:
            before, after = here.home, self._home(module)
            if before is None or after is None or before == after or "meta" in (before, after):
                return
            with self._torch._C.DisableTorchFunction():
                size = _size(module)
            self._recording.recorder.span(self._name, began, end, self._way(before, after), size)
        except Exception as exc:
            self._recording.failed("a copy of a module", exc)

    def _home(self, module: Any) -> str | None:
        """The device of a module's first tensor."""
        try:
            with self._torch._C.DisableTorchFunction():
                tensor = next(_tensors(module), None)
                return None if tensor is None else str(tensor.device)
        except Exception:  # a module that is half made
            return None


class Watched:
    """What ``_watched.c`` does, with a frame of Python: a warning of the method names this file, on python 3.10 a traceback too."""

    def __init__(self, method: Any, enter: Any, leave: Any) -> None:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            began = enter()
            result = None
            try:
                result = method(self, *args, **kwargs)
                return result
            except BaseException as exc:
                without_this_frame(exc)
                raise
            finally:
                if began is not None and result is not None and result is not self:
                    leave(began, self, result)
                elif type(began) is tuple:
                    leave(began, None, None)

        call.__name__, call.__qualname__, call.__doc__ = method.__name__, f"Tensor.{method.__name__}", method.__doc__
        self._method, self._call = method, call

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        return self._method if tensor is None else MethodType(self._call, tensor)


def _share(one: Any, other: Any) -> bool:
    """Whether two tensors lie in the same memory: nothing was copied. Tensors that have none are taken to."""
    try:
        return bool(one.data_ptr() == other.data_ptr())
    except Exception:  # vmap's and other tensors without storage
        return True


def _is_fake(tensor: Any) -> bool:
    """Whether this is a tensor without data, as compilers use them."""
    return type(tensor).__module__.startswith("torch._subclasses")


def _tensors(module: Any) -> Any:
    """The parameters and buffers of a module and those in it, each once, by the tables themselves (methods may be the program's)."""
    seen: set[int] = set()
    stack = [module]
    while stack:
        at = stack.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        for table in (at._parameters, at._buffers):
            for tensor in table.values():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor
        stack += [inner for inner in at._modules.values() if inner is not None]


def _size(module: Any) -> int:
    try:
        return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(module))
    except Exception:
        return UNKNOWN
