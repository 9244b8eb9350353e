"""Copies between devices, as the steps instrument records them: ``Tensor.to``, ``.cuda``, ``.cpu``, and those of modules.

What the program gets is what torch returned. ``torch.Tensor.to``, asked for from the class, stays torch's own method, so that whatever
compares or looks up functions (``__torch_function__``, torch.fx, torch.compile) sees no other. Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

from voirkit_instruments.steps.record_compute import now
from voirkit_instruments.steps.record_plain import IDLE, SUPPRESSED
from voirkit_instruments.steps.record_spans import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.steps.record_spans import Recording

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
        return self._recording.hot.watched(getattr(self._torch.Tensor, name), self.leave)

    def leave(self, began: int, source: Any, result: Any, device: Any) -> None:
        """After a method that returned another tensor; ``device`` has been told of its beginning, if there is one."""
        recording = self._recording
        try:
            way = self._copied(source, result)
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

    def _copied(self, source: Any, result: Any) -> tuple[int, int] | None:
        """From where to where and how many bytes, if something was copied that is to be recorded."""
        with self._torch._C.DisableTorchFunction():
            before, after = source.device, result.device
            if before == after:
                if self._recording.hot.here.inside != IDLE or _share(source, result):
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
        self._recording.hot.here.inside = SUPPRESSED
        self._recording.local.home = self._home(module)
        return now()

    def leave_module(self, began: int, was: int, module: Any) -> None:
        end = now()
        self._recording.hot.here.inside = was
        if not began:
            return
        try:
            before, after = self._recording.local.home, self._home(module)
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
