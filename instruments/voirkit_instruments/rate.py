"""``rate``: voir's instrument for voirfiles that turns steps into items per second.

It counts steps that are given with a task: from one event to the next (``give(task="train",
batch=x)``), or inside ``wrap("step", task="train", batch=x)``, as ``voirkit.iterate`` does. Tasks
and threads are counted separately, batches of any type are counted, and the clock is monotonic.
"""

from __future__ import annotations

import time
from threading import get_ident

from voirkit.instrument import duration, instrument_definition
from voirkit_instruments.steps.batch_sizes import ItemCounter, count_items

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Literal

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


class _Interval:
    """Items, steps and time of one task since its last rate."""

    items = steps = time_ns = skipped = 0
    begin_ns: int | None = None


class StepRate:
    """Counter of steps that takes events and gives a rate at the end of each interval.

    Args:
        give: Called with ``rate``, ``units`` and ``task``.
        count: Returns the number of items in a batch, or None if unknown.
        interval, skip, method, sync: See ``rate``.
        clock: Returns monotonic nanoseconds.
    """

    def __init__(
        self,
        give: Callable[..., None],
        count: Callable[[object], int | None],
        interval: int | str = 1,
        skip: int = 0,
        method: Literal["delta", "wrap"] | None = None,
        sync: Callable[[], object] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if method not in ("delta", "wrap", None):
            raise ValueError(f"method={method!r} is none of 'delta', 'wrap' and None (both).")
        timed = isinstance(interval, str) and not interval.strip().isdigit()
        self._interval_ns = int(duration(str(interval)) * 1e9) if timed else None
        self._interval_steps = 1 if timed else int(interval)
        self._give, self._count, self._skip, self._method = give, count, skip, method
        self._sync, self._clock = sync, clock
        self._last: dict[tuple[object, int], int] = {}
        self._begun: dict[tuple[object, int], int] = {}
        self._intervals: dict[object, _Interval] = {}

    def on_event(self, event: dict[str, Any]) -> None:
        """Count the step that ends with a given event, if one does."""
        wrap = event.get("$wrap")
        if wrap is not None:
            key = (wrap.get("id"), get_ident())
            if wrap["name"] != "step" or self._method == "delta":
                return
            if wrap["step"] == "begin":
                self._begun[key] = self._clock()
            elif (begin_ns := self._begun.pop(key, None)) is not None and "task" in event:
                self._step(event, begin_ns, self._clock())
        elif (
            "task" in event
            and self._method != "wrap"
            and ("batch" in event or "batch_size" in event)
        ):
            key = (event["task"], get_ident())
            now, before = self._clock(), self._last.get(key)
            self._last[key] = now if before is None else self._step(event, before, now)

    def _step(self, event: dict[str, Any], begin_ns: int, end: int) -> int:
        """Count one step. Returns its end, which is later than ``end`` if the device was
        synchronised."""
        items = event.get("batch_size")
        if "batch_size" not in event and event.get("batch") is not None:
            items = self._count(event["batch"])
        if items is None:
            return end
        interval = self._intervals.setdefault(event["task"], _Interval())
        if interval.begin_ns is None:
            interval.begin_ns = begin_ns
        interval.items += items
        interval.time_ns += end - begin_ns
        interval.steps += 1
        if self._interval_ns is None:
            full = interval.steps >= self._interval_steps
        else:
            full = end - interval.begin_ns >= self._interval_ns
        if full:
            if self._sync is not None:
                self._sync()
                synchronised = self._clock()
                interval.time_ns += synchronised - end
                end = synchronised
            self._close(event["task"], interval)
        return end

    def _close(self, task: object, interval: _Interval) -> None:
        items, time_ns = interval.items, interval.time_ns
        interval.items = interval.steps = interval.time_ns = 0
        interval.begin_ns = None
        if interval.skipped < self._skip:
            interval.skipped += 1
        elif items and time_ns:
            self._give(rate=items * 1e9 / time_ns, units="items/s", task=task)

    def finish(self) -> None:
        """Give the rate of the steps that remain at the end of the run."""
        for task, interval in self._intervals.items():
            if interval.steps:
                self._close(task, interval)


@instrument_definition
def rate(
    ov: Overseer,
    interval: int | str = 1,
    skip: int = 0,
    method: Literal["delta", "wrap"] | None = None,
    batch_size_calc: Callable[[Any], int | None] = count_items,
    sync: Callable[[], object] | None = None,
) -> Iterator[Phase]:
    """Give ``rate`` (items/s), ``units`` and ``task``.

    Args:
        interval: Number of steps for each rate, or a duration such as ``"1s"``.
        skip: Number of first rates of each task to leave out (warm-up).
        method: ``"delta"``: for two events of a task, the items of the second over the time between
            them; ``"wrap"``: items over the time inside ``wrap("step", task=…)``; None: both.
        batch_size_calc: Returns the number of items in a ``batch``; not called if the event has
            ``batch_size``.
        sync: Called once for each rate, such as ``torch.cuda.synchronize``; its time counts.
    """
    yield ov.phases.load_script
    counter = ItemCounter(lambda sentence: ov.warn(f"rate: {sentence}"), batch_size_calc)
    steps = StepRate(ov.give, counter, interval, skip, method, sync)
    ov.given.subscribe(steps.on_event)
    try:
        yield ov.phases.run_script
    finally:
        steps.finish()
