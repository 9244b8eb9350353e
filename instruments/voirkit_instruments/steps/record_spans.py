"""The state that the parts of the steps instrument share: where a thread is, names and arguments of
phases, numbers of loaders and optimizers; and times on the GPU.

Must never raise, never change what it is shown, and never wait for a device.

How long phases take on the GPU: events are put into the stream before and after them, and asked
later whether they have happened. An event's time is known from another event only. It is put on the
host's clock by what must be true of every event: it did not happen before it was put into the
stream, nor after it was seen to have happened. The bounds are closest where the stream is empty (a
few microseconds), and each event that breaks them moves the clock, so that the drift between the
two clocks is followed. Written against torch 2.1 to 2.15 (``torch.cuda.Event``) and tested with a
fake of it only: it has never run on a device.
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
    """The hot path: in C if it was built."""
    if os.environ.get("VOIRKIT_NO_EXTENSION") != "1":
        try:
            from voirkit_instruments.steps import _steps  # type: ignore[attr-defined]

            if hasattr(getattr(_steps, "HotPath", None), "items"):
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
        warn: Called, once, with a record that failed.
        numbers: Those of the run's loaders.
    """

    def __init__(
        self,
        recorder: Any,
        torch: Any,
        warn: Callable[[str], None],
        numbers: LoaderNumbers | None = None,
    ) -> None:
        _recordings.add(self)
        # the functions around torch's, and the state of each thread
        self.hot = engine().HotPath(recorder.span, self.failed)
        # the values that each thread keeps from the beginning of something to its end
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
        number: int = self.recorder.name(category, name, kind="phase", value=value)
        self._names[number] = (category, name, value)
        return number

    def on_device(self, name: int) -> int:
        """The interned name of what a phase does on the GPU."""
        number = self._device_names.get(name)
        if number is None:
            category, label, value = self._names[name]
            number = self.recorder.name(category, label, kind="device", value=value)
            self._device_names[name] = number
        return number

    def trains(self) -> None:
        """This process makes an optimizer: it trains, even if it was taken for a loader's worker
        when it was forked."""
        if self._pid != os.getpid() and self.torch.utils.data.get_worker_info() is None:
            self._pid = os.getpid()
            self.hot.everywhere(IDLE)

    def forked(self) -> None:
        """This process has been forked, by one that may train. Nothing is recorded in a loader's
        worker; any other may train as well."""
        self.hot.everywhere(SUPPRESSED if is_starting_worker() else IDLE)
        self.hot.device = None
        self.hot.own_ns = self.hot.spans = 0

    def look_for_device(self) -> None:
        """Take times on the GPU from now on if the program has begun to use one."""
        cuda = self.torch.cuda
        if self.hot.device is None and cuda.is_initialized():
            self.hot.device = DeviceTimes(cuda, self.recorder.span, self.on_device, self.local)

    def failed(self, record: str, exc: Exception) -> None:
        """Warn, once for each kind of record, that one could not be made."""
        if record not in self._failed:
            self._failed.add(record)
            self._warn(
                f"steps: {record} could not be recorded ({type(exc).__name__}: {exc}); this is told"
                " once."
            )

    def items(self, batch: object) -> int:
        """Items in a batch, or -1. Looks at no tensor through what the program may have put in its
        way (``__torch_function__``)."""
        with self.torch._C.DisableTorchFunction():
            n_items = count_items(batch)
        return UNKNOWN if n_items is None else n_items

    def bytes_of(self, values: tuple[Any, ...]) -> int:
        """Bytes of the first tensor or list of tensors among some values; -1 without any."""
        tensor_type = self.torch.Tensor
        with self.torch._C.DisableTorchFunction():
            for value in values:
                tensors = value if type(value) in (list, tuple) else (value,)
                if tensors and all(isinstance(tensor, tensor_type) for tensor in tensors):
                    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return UNKNOWN


# times on the GPU

# spans that wait for the device; of a program that is further ahead, the oldest are given up and
# counted
MOST_PENDING = 4096
# spans that are asked for at each record: twice what comes in, so that what waits gets fewer
LOOKED_AT = 4
# events tell milliseconds in 32 bits: after a second 0.06 microseconds are left
ANCHOR_NS = 1_000_000_000


class HostClock:
    """The host's time of the events of one device. ``anchor``: an event that has
    just been put into a stream; ``put_ns``: when it was, by the host's clock."""

    def __init__(self, anchor: Any, put_ns: int) -> None:
        self._anchor = anchor
        self._at_ns = put_ns
        self._put_ns = put_ns

    def time_ns(self, event: Any, put_ns: int, seen_ns: int) -> int:
        """When an event happened that was put into a stream at ``put_ns`` or later and had happened
        by ``seen_ns``."""
        measured_ns = self._at_ns + round(self._anchor.elapsed_time(event) * 1e6)
        corrected_ns: int = min(max(measured_ns, put_ns), seen_ns)
        self._at_ns += corrected_ns - measured_ns
        if put_ns - self._put_ns > ANCHOR_NS:
            self._anchor = event
            self._at_ns = corrected_ns
            self._put_ns = put_ns
        return corrected_ns


class Span:
    """A phase on the device that has not been seen to end."""

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
    """The phases on the GPUs of one process.

    Args:
        cuda: ``torch.cuda``, initialised by the program.
        record: Writes a span: name, begin, end, arguments, value.
        name_of: The interned device name for that of a phase.
        local: Where a thread keeps what it has begun.
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
        self.unresolved = 0  # spans that were given up

    def begin(self) -> None:
        """A phase begins in this thread."""
        open_spans = self._local.__dict__.setdefault("begun", [])
        try:
            open_spans.append(
                None if self._cuda.is_current_stream_capturing() else self._start_span()
            )
        except Exception:  # the program's error of an earlier kernel: it meets it itself
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
        """Forget the span that this thread began last: it is not a phase."""
        open_spans = self._local.__dict__.get("begun")
        span = open_spans.pop() if open_spans else None
        if span is not None:
            self._pool[span.device].append(span.start)

    def end(self, name: int, args: int = 0, value: int = 0) -> None:
        """The phase that this thread began last has ended."""
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
        except Exception:  # the program's error of an earlier kernel
            self.unresolved += 1
        self.resolve(LOOKED_AT)

    def resolve(self, most: int) -> None:
        """Write those of the oldest spans that have happened by now."""
        pending = self._pending
        try:
            while most > 0 and pending and pending[0].end.query():
                self._resolve(pending.popleft())
                most -= 1
        except Exception:  # the device has failed; what waits is counted at the end
            return

    def _resolve(self, span: Span) -> None:
        try:
            self._write(span)
        except Exception:  # its beginning is in another stream, and has not happened
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
        """Wait for what is left when the program has ended. Returns how many spans have no time."""
        while self._pending:
            span = self._pending.popleft()
            try:
                span.end.synchronize()
            except Exception:  # the device has failed
                self.unresolved += 1
            else:
                self._resolve(span)
        return self.unresolved
