"""State shared by the parts of the steps instrument: interned names and arguments of phases,
numbers of loaders and optimizers, what each thread is inside of, and the recorder of GPU times.

Nothing here may raise, change an object of the program, or wait for a device.

GPU times of phases: CUDA events are put into the stream before and after a phase, and queried
later. torch tells only the time between two events. It is converted to host time with two bounds
that hold for every event: it did not happen before it was put into the stream, nor after it was
seen to have happened. The bounds are tightest where the stream is empty (a few microseconds). An
event outside its bounds shifts the clock, so the drift between the two clocks is followed. Written
against torch 2.1 to 2.15 (``torch.cuda.Event``) and tested only with a fake of it: it has never run
on a device.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from voirkit.fork import at_fork
from voirkit_instruments.identity import LoaderNumbers, is_starting_worker
from voirkit_instruments.steps import record_plain as steps_plain
from voirkit_instruments.steps.batch_sizes import count_items
from voirkit_instruments.steps.record_plain import IDLE, SUPPRESSED

now = time.perf_counter_ns
UNKNOWN = -1


def engine() -> Any:
    """Return the module with the hot path: the C extension if it was built, else the Python
    version."""
    if os.environ.get("VOIRKIT_NO_EXTENSION") != "1":
        try:
            from voirkit_instruments.steps import _steps  # type: ignore[attr-defined]

            if hasattr(getattr(_steps, "HotPath", None), "items"):
                return _steps  # if ``items`` is missing, it was built for another voirkit version
        except ImportError:
            pass
    return steps_plain


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()


def _after_fork() -> None:
    for recording in list(_recordings):
        recording.forked()


at_fork("instruments", in_child=_after_fork)


class Recording:
    """Writer of phases into the trace.

    Args:
        recorder: ``voirkit.trace.recorder``, or an object with its ``name``, ``arguments`` and
            ``span``.
        torch: The torch module of the program.
        warn: Called once for each kind of record that failed.
        numbers: Numbers of the run's loaders.
    """

    def __init__(
        self,
        recorder: Any,
        torch: Any,
        warn: Callable[[str], None],
        numbers: LoaderNumbers | None = None,
    ) -> None:
        _recordings.add(self)
        # the callbacks around torch's functions, and the state of each thread
        self.hot = engine().HotPath(recorder.span, self.failed)
        # values that each thread keeps from the start of an operation to its end
        self.local = threading.local()
        self.recorder, self.torch = recorder, torch
        self.numbers = numbers if numbers is not None else LoaderNumbers()
        self._warn = warn
        self._pid = os.getpid()
        self._names: dict[int, tuple[str, str, str | None]] = {}
        self._device_names: dict[int, int] = {}
        self._failed: set[str] = set()

    def phase(self, category: str, name: str, value: str | None = None) -> int:
        """Return the interned name of a phase."""
        number: int = self.recorder.name(category, name, kind="phase", value=value)
        self._names[number] = (category, name, value)
        return number

    def on_device(self, name: int) -> int:
        """Return the interned name of a phase's part on the GPU."""
        number = self._device_names.get(name)
        if number is None:
            category, label, value = self._names[name]
            number = self.recorder.name(category, label, kind="device", value=value)
            self._device_names[name] = number
        return number

    def trains(self) -> None:
        """Note that this process makes an optimizer, and so trains. It is then recorded even if it
        was taken for a loader's worker when it was forked."""
        if self._pid != os.getpid() and self.torch.utils.data.get_worker_info() is None:
            self._pid = os.getpid()
            self.hot.everywhere(IDLE)

    def forked(self) -> None:
        """Reset the state after this process was forked, perhaps from a training process. Nothing
        is recorded in a loader's worker; any other child may train too."""
        self.hot.everywhere(SUPPRESSED if is_starting_worker() else IDLE)
        self.hot.device = None
        self.hot.own_ns = self.hot.spans = 0

    def look_for_device(self) -> None:
        """Start to record GPU times if the program has begun to use a GPU."""
        cuda = self.torch.cuda
        if self.hot.device is None and cuda.is_initialized():
            self.hot.device = DeviceTimes(cuda, self.recorder.span, self.on_device, self.local)

    def failed(self, record: str, exc: Exception) -> None:
        """Warn, once for each kind of record, that a record could not be made."""
        if record not in self._failed:
            self._failed.add(record)
            self._warn(
                f"steps: {record} could not be recorded ({type(exc).__name__}: {exc}); this is told"
                " once."
            )

    def items(self, batch: object) -> int:
        """Return the number of items in a batch, or -1 if unknown. Bypasses the program's
        ``__torch_function__``."""
        with self.torch._C.DisableTorchFunction():
            n_items = count_items(batch)
        return UNKNOWN if n_items is None else n_items

    def bytes_of(self, values: tuple[Any, ...]) -> int:
        """Return the bytes of the first tensor or list of tensors among some values; -1 if there is
        no tensor."""
        tensor_type = self.torch.Tensor
        with self.torch._C.DisableTorchFunction():
            for value in values:
                tensors = value if type(value) in (list, tuple) else (value,)
                if tensors and all(isinstance(tensor, tensor_type) for tensor in tensors):
                    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return UNKNOWN


# GPU times of phases

# maximum number of spans that wait for the device; with more, the oldest are dropped and counted
MOST_PENDING = 4096
# number of waiting spans that are checked when one is added: more than one, so that the queue
# shrinks
LOOKED_AT = 4
# age at which the anchor event is replaced: torch returns the time between events as milliseconds
# in 32 bits, and after a second their resolution is 0.06 microseconds
ANCHOR_NS = 1_000_000_000


class HostClock:
    """Converter from the events of one device to the host's clock.

    Args:
        anchor: An event that has just been put into a stream.
        put_ns: Host time when it was put there.
    """

    def __init__(self, anchor: Any, put_ns: int) -> None:
        self._anchor = anchor
        self._at_ns = put_ns
        self._put_ns = put_ns

    def time_ns(self, event: Any, put_ns: int, seen_ns: int) -> int:
        """Return the host time of an event in nanoseconds. The event was put into a stream at
        ``put_ns`` or later, and had happened by ``seen_ns``."""
        measured_ns = self._at_ns + round(self._anchor.elapsed_time(event) * 1e6)
        corrected_ns: int = min(max(measured_ns, put_ns), seen_ns)
        self._at_ns += corrected_ns - measured_ns
        if put_ns - self._put_ns > ANCHOR_NS:
            self._anchor = event
            self._at_ns = corrected_ns
            self._put_ns = put_ns
        return corrected_ns


class Span:
    """A phase on the device that is not known to have ended yet."""

    __slots__ = (
        "args",
        "device",
        "end",
        "end_put_ns",
        "name",
        "start",
        "start_put_ns",
        "value",
    )

    def __init__(self, device: int, start: Any, start_put_ns: int) -> None:
        self.device, self.start, self.start_put_ns = device, start, start_put_ns
        self.end: Any = None
        self.name = self.args = self.value = self.end_put_ns = 0


class DeviceTimes:
    """Recorder of the phases on the GPUs of one process.

    Args:
        cuda: ``torch.cuda``, initialised by the program.
        record: Writes a span: name, start, end, arguments, value.
        name_of: Returns the interned device name for the name of a phase.
        local: A ``threading.local`` for the open spans of each thread.
    """

    def __init__(
        self,
        cuda: Any,
        record: Callable[[int, int, int, int, int], None],
        name_of: Callable[[int], int],
        local: Any,
    ) -> None:
        self._cuda, self._record, self._name_of, self._local = cuda, record, name_of, local
        self._pool: dict[int, list[Any]] = {}
        self._clocks: dict[int, HostClock] = {}
        self._pending: deque[Span] = deque()
        self.unresolved = 0  # number of spans that have no time: dropped ones and failed ones

    def begin(self) -> None:
        """Note that a phase starts in this thread."""
        open_spans = self._local.__dict__.setdefault("begun", [])
        try:
            open_spans.append(
                None if self._cuda.is_current_stream_capturing() else self._start_span()
            )
        except Exception:
            # an earlier kernel of the program failed: the program gets this error itself
            open_spans.append(None)

    def _start_span(self) -> Span:
        device = self._cuda.current_device()
        event, put_ns = self._record_event(device)
        if device not in self._clocks:
            self._clocks[device] = HostClock(event, put_ns)
            event, put_ns = self._record_event(device)
        return Span(device, event, put_ns)

    def _record_event(self, device: int) -> tuple[Any, int]:
        pool = self._pool.setdefault(device, [])
        event = pool.pop() if pool else self._cuda.Event(enable_timing=True)
        put_ns = now()
        event.record()
        return event, put_ns

    def drop(self) -> None:
        """Discard the span that this thread opened last: it turned out to be no phase."""
        open_spans = self._local.__dict__.get("begun")
        span = open_spans.pop() if open_spans else None
        if span is not None:
            self._pool[span.device].append(span.start)

    def end(self, name: int, args: int = 0, value: int = 0) -> None:
        """End the phase that this thread opened last."""
        open_spans = self._local.__dict__.get("begun")
        span = open_spans.pop() if open_spans else None
        try:
            if (
                span is not None
                and not self._cuda.is_current_stream_capturing()
                and self._cuda.current_device() == span.device
            ):
                span.end, span.end_put_ns = self._record_event(span.device)
                span.name, span.args, span.value = name, args, value
                self._pending.append(span)
                if len(self._pending) > MOST_PENDING:
                    self._pending.popleft()
                    self.unresolved += 1
        except Exception:  # an earlier kernel of the program failed
            self.unresolved += 1
        self.resolve(LOOKED_AT)

    def resolve(self, most: int) -> None:
        """Write up to ``most`` of the oldest spans, as far as they have happened on the device."""
        pending = self._pending
        try:
            while most > 0 and pending and pending[0].end.query():
                self._resolve(pending.popleft())
                most -= 1
        except Exception:  # the device has failed; the remaining spans are counted at the end
            return

    def _resolve(self, span: Span) -> None:
        try:
            self._write(span)
        except Exception:  # its start event, in another stream, has not happened yet
            self.unresolved += 1

    def _write(self, span: Span) -> None:
        seen_ns = now()
        clock = self._clocks[span.device]
        start_ns = clock.time_ns(span.start, span.start_put_ns, seen_ns)
        end_ns = max(start_ns, clock.time_ns(span.end, span.end_put_ns, seen_ns))
        self._record(self._name_of(span.name), start_ns, end_ns, span.args, span.value)
        pool = self._pool[span.device]
        for event in (span.start, span.end):
            if event is not clock._anchor:
                pool.append(event)

    def finish(self) -> int:
        """Wait for the remaining spans at the program's end. Returns the number of spans without a
        time."""
        while self._pending:
            span = self._pending.popleft()
            try:
                span.end.synchronize()
            except Exception:  # the device has failed
                self.unresolved += 1
            else:
                self._resolve(span)
        return self.unresolved
