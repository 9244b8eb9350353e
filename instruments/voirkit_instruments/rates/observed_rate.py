"""One rate while the run goes on: observations go in, a record an interval comes out into ``given`` and ``log``.

What each rate counts is said in ``record.py``. Must stay cheap: at most 2 microseconds a step, and nothing in the background.
"""

from __future__ import annotations

import time
from threading import Lock, get_ident

from voirkit_instruments.device import synchronize
from voirkit_instruments.rates.items import ItemCounter
from voirkit_instruments.rates.throughput import NEVER, Throughput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit.runner.overseer import Overseer


NO_STEP = "No step was given, and no training step of torch was seen."


class Rate:
    """One of the three rates in one run.

    Args:
        ov: The overseer.
        name: ``"train_rate"``, ``"compute_rate"`` or ``"loading_rate"``.
        clock: Monotonic nanoseconds.
        wait: Waits for the device; called once an interval after a true ``use_cuda`` was given.
    """

    def __init__(
        self,
        ov: Overseer,
        name: str,
        clock: Callable[[], int] = time.perf_counter_ns,
        wait: Callable[[], None] = synchronize,
    ) -> None:
        self._ov = ov
        self._flag = f"--{name.replace('_', '-')}"
        self._throughput = Throughput(name)
        self._unknown = Throughput(name, units="steps/s")  # of steps whose items are unknown, as long as all are
        self._clock = clock
        self._wait = wait
        self._use_cuda = self._has_wraps = False
        self._count = ItemCounter(lambda sentence: ov.warn(f"{name}: {sentence}"))
        self._last: dict[tuple[object, int], int] = {}  # (task, thread) -> when its last step ended
        self._begun: dict[tuple[object, int], int] = {}  # (wrapper's id, thread) -> when it began
        self._beginnings: set[object] = set()  # wrappers whose begin has step and batch: their end is the same step
        self._task: str | None = None
        self._lock = Lock()  # loaders are asked from any thread; given events come one after the other

    # what a stream is subscribed with

    def on_step(self, event: dict[str, Any]) -> None:
        """For ``train_rate``: an event with ``step`` and ``batch`` ends a step."""
        if "step" not in event or not ("batch" in event or "batch_size" in event):
            if "use_cuda" in event:
                self._use_cuda = bool(event["use_cuda"])
            return
        if "$wrap" in event and self._is_end_of_counted(event["$wrap"]):
            return
        now = self._clock()
        late = now >= self._throughput.due_ns or now >= self._unknown.due_ns
        if late:
            now = self._waited(now)
        task = event.get("task")
        key = (task, get_ident())
        before = event.get("$began_ns", self._last.get(key))
        self._last[key] = now
        if before is not None:
            if event.get("batch_size", 0) is None:
                self._unknown.add(task, before, now, 1)
            else:
                items = self._items(event)
                if items is not None:
                    self._throughput.add(task, before, now, items)
                    self._task = task
        if late:
            self._publish(self._close(now))

    def on_wrap(self, event: dict[str, Any]) -> None:
        """For ``compute_rate``: the begin and end of a wrapper ``compute_start``.

        Only the end's batch is looked at: at the begin ptera still shows the batch of the iteration before.
        """
        wrap = event.get("$wrap")
        if wrap is None or wrap["name"] != "compute_start":
            if "use_cuda" in event:
                self._use_cuda = bool(event["use_cuda"])
            return
        key = (wrap["id"], get_ident())
        self._has_wraps = True
        if wrap["step"] == "begin":
            self._begun[key] = self._clock()
            return
        begin = self._begun.pop(key, None)
        if begin is not None:
            self._add_span(event.get("task"), begin, self._clock(), self._items(event))

    def on_span(self, begin: int, end: int, batch: object) -> None:
        """For ``compute_rate``: what the recorder has seen a step do with its batch, unless the program gives that itself."""
        if not self._has_wraps:
            self._add_span(None, begin, end, self._count(batch))

    def _add_span(self, task: str | None, begin: int, end: int, items: int | None) -> None:
        late = end >= self._throughput.due_ns
        if late:
            end = self._waited(end)
        if items is not None:
            self._task = task
            self._throughput.add(task, begin, end, items)
        if late:
            self._publish(self._throughput.close(end))

    def on_batch(self, task: str | None, begin: int, end: int, batch: object) -> None:
        """For ``loading_rate``: a loader has returned a batch, in whatever thread. No device is waited for."""
        items = self._count(batch)
        with self._lock:
            if items is not None:
                self._throughput.add(task, begin, end, items)
            records = self._throughput.close(end) if end >= self._throughput.due_ns else []
        self._publish(records)

    def _close(self, now: int) -> list[dict[str, Any]]:
        """The records of an interval, in items wherever they are known."""
        unknown = self._unknown.close(now)
        return self._throughput.close(now) if self._throughput.due_ns != NEVER else unknown

    # how it ends

    def finish(self) -> None:
        """Give what is left, and write the figures of the run into the summary."""
        if self._use_cuda and (self._last or self._begun):
            begin = self._clock()
            self._throughput.add(self._task, begin, self._waited(begin), 0)
        with self._lock:
            is_unknown = self._throughput.due_ns == NEVER
            records = (self._unknown if is_unknown else self._throughput).finish()
        self._publish(records)
        self._ov.summary.setdefault("rates", {}).update(self._throughput.figures())
        if self._throughput.due_ns == NEVER and self._unknown.due_ns == NEVER and getattr(self._ov.options, self._flag, False):
            self._ov.warn(f"{self._flag}: nothing could be measured. {NO_STEP}")

    def _items(self, event: dict[str, Any]) -> int | None:
        size = event.get("batch_size")
        return size if type(size) is int else self._count(event.get("batch"))

    def _waited(self, now: int) -> int:
        if not self._use_cuda:
            return now
        self._wait()
        return self._clock()

    def _is_end_of_counted(self, wrap: dict[str, Any]) -> bool:
        if wrap["step"] == "begin":
            self._beginnings.add(wrap["name"])
            return False
        return wrap["name"] in self._beginnings

    def _publish(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self._ov.log(record)
            self._ov.offer(record)
