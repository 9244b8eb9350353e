"""What the parts of the steps instrument share: where a thread is, names and arguments of phases, numbers of loaders and optimizers.

Must never raise, never change what it is shown, and never wait for a device.
"""

from __future__ import annotations

import os
import threading
import weakref

from voirkit.fork import at_fork
from voirkit_instruments.loader_numbers import LoaderNumbers, is_starting_worker
from voirkit_instruments.steps import record_plain as steps_plain
from voirkit_instruments.steps.batch_sizes import count_items
from voirkit_instruments.steps.record_plain import IDLE, SUPPRESSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNKNOWN = -1


def engine() -> Any:
    """The hot path: in C if it was built."""
    if os.environ.get("VOIRKIT_NO_EXTENSION") != "1":
        try:
            from voirkit_instruments.steps import _steps  # type: ignore[attr-defined]

            if hasattr(getattr(_steps, "HotPath", None), "collection"):
                return _steps  # else it was built for another voirkit
        except ImportError:
            pass
    return steps_plain


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()


def _after_fork() -> None:
    for recording in list(_recordings):
        recording.forked()


at_fork("instruments", in_child=_after_fork)


class Recording:
    """Writes phases into the trace plane.

    Args:
        recorder: ``voirkit.trace.recorder``, or what has its ``name``, ``arguments`` and ``span``.
        torch: The module.
        warn: Told, once, of a record that failed.
        numbers: Those of the run's loaders.

    Attributes:
        hot: What is called before and after functions of torch, and what each thread is inside of.
        local: What each thread keeps from the beginning of something to its end.
    """

    def __init__(self, recorder: Any, torch: Any, warn: Callable[[str], None], numbers: LoaderNumbers | None = None) -> None:
        _recordings.add(self)
        self.hot = engine().HotPath(recorder.span, self.failed)
        self.local = threading.local()
        self.recorder, self.torch = recorder, torch
        self.numbers = numbers if numbers is not None else LoaderNumbers()
        self._warn = warn
        self._pid = os.getpid()
        self._names: dict[int, tuple[str, str, str | None]] = {}
        self._device_names: dict[int, int] = {}
        self._failed: set[str] = set()

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
        """This process makes an optimizer: it trains, even if it was taken for a loader's worker when it was forked."""
        if self._pid != os.getpid() and self.torch.utils.data.get_worker_info() is None:
            self._pid = os.getpid()
            self.hot.everywhere(IDLE)

    def forked(self) -> None:
        """This process has been forked, by one that may train. A loader's worker is deaf for ever; any other may train as well."""
        self.hot.everywhere(SUPPRESSED if is_starting_worker() else IDLE)
        self.hot.device = None
        self.hot.own_ns = self.hot.spans = 0

    def look_for_device(self) -> None:
        """Take times on the GPU from now on if the program has begun to use one."""
        cuda = self.torch.cuda
        if self.hot.device is None and cuda.is_initialized():
            from voirkit_instruments.steps.record_device import DeviceTimes

            self.hot.device = DeviceTimes(cuda, self.recorder.span, self.on_device, self.local)

    def failed(self, what: str, exc: Exception) -> None:
        """Tell, once for each kind of record, that one could not be made."""
        if what not in self._failed:
            self._failed.add(what)
            self._warn(f"steps: {what} could not be recorded ({type(exc).__name__}: {exc}); this is told once.")

    def items(self, batch: object) -> int:
        """Items in a batch, or -1. Looks at no tensor through what the program may have put in its way (``__torch_function__``)."""
        with self.torch._C.DisableTorchFunction():
            counted = count_items(batch)
        return UNKNOWN if counted is None else counted

    def bytes_of(self, values: tuple[Any, ...]) -> int:
        """Bytes of the first tensor or list of tensors among some values; -1 without any."""
        tensor_type = self.torch.Tensor
        with self.torch._C.DisableTorchFunction():
            for value in values:
                tensors = value if type(value) in (list, tuple) else (value,)
                if tensors and all(isinstance(tensor, tensor_type) for tensor in tensors):
                    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return UNKNOWN
