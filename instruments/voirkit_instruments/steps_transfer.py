"""Copies between devices, as the steps instrument records them: ``Tensor.to``, ``.cuda``, ``.cpu``, and those of modules.

What the program gets is what torch returned. ``torch.Tensor.to``, asked for from the class, stays torch's own method, so that whatever compares or looks
up functions (``__torch_function__``, torch.fx, torch.compile) sees no other. Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

from types import MethodType

from voirkit_instruments.patching import without_this_frame
from voirkit_instruments.steps_compute import now
from voirkit_instruments.steps_record import BACKWARD, DEAF, NOTHING, UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.steps_device import DeviceTimes
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
        self._ways: dict[tuple[str, str], int] = {}

    def method(self, name: str) -> TensorMethod:
        """What is to stand in ``torch.Tensor`` in place of an inherited method written in C."""
        return TensorMethod(self, name, getattr(self._torch.Tensor, name))

    def copied(self, source: Any, result: Any, began: int, was: int, on_device: DeviceTimes | None) -> None:
        """A method of a tensor has returned another tensor."""
        end = now()
        recording = self._recording
        try:
            with self._torch._C.DisableTorchFunction():
                before, after = source.device, result.device
                if before == after:
                    if was != NOTHING or _share(source, result):
                        return
                elif before.type == "meta" or after.type == "meta" or _is_fake(source):
                    return
                size = result.numel() * result.element_size()
            way = self._way(str(before), str(after))
            recording.recorder.span(self._name, began, end, way, size)
            if on_device is not None:
                on_device.end(self._name, way, size)
                on_device = None
        except Exception as exc:
            recording.failed("a copy of a tensor", exc)
        finally:
            if on_device is not None:
                on_device.drop()

    def _way(self, before: str, after: str) -> int:
        found = self._ways.get((before, after))
        if found is None:
            found = self._ways[before, after] = self._recording.recorder.arguments({"from": before, "to": after})
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


class TensorMethod:
    """Stands in ``torch.Tensor`` in place of a method: from the class it is the method itself, from a tensor one that is watched."""

    def __init__(self, transfers: TransferRecording, name: str, method: Any) -> None:
        recording = transfers._recording
        here, copied = recording.here, transfers.copied

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            was = here.inside
            on_device = recording.device
            if was > BACKWARD:
                began = 0
            else:
                began = now()
                if on_device is not None:
                    on_device.begin()
            try:
                result = method(self, *args, **kwargs)
            except BaseException as exc:
                if began and on_device is not None:
                    on_device.drop()
                without_this_frame(exc)
                raise
            if began:
                if result is not self:
                    copied(self, result, began, was, on_device)
                elif on_device is not None:
                    on_device.drop()
            return result

        call.__name__, call.__qualname__, call.__doc__ = name, f"Tensor.{name}", method.__doc__
        self._method, self._call = method, call

    def __get__(self, tensor: Any, owner: Any = None) -> Any:
        return self._method if tensor is None else MethodType(self._call, tensor)


def _share(one: Any, other: Any) -> bool:
    """Whether two tensors lie in the same memory: nothing was copied. Tensors that have none are taken to."""
    try:
        return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
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
