"""``--train-rate``, ``--loading-rate``, ``--compute-rate``: items per second while the run goes on, once a second.

============ ============================================= ===========================================================
rate         items of                                      over the time
============ ============================================= ===========================================================
train_rate   events with ``step`` and ``batch`` (or        from the event before it, of the same task and thread, to
             ``batch_size``)                               this one
compute_rate the end of ``compute_start``/``compute_end``  inside the wrapper
loading_rate what the iterators of a given ``loader``      inside their ``__next__``
             return
============ ============================================= ===========================================================

An event with ``step`` is taken for the end of that step, as ``//f(X as batch) > #endloop_X as step`` is: its batch is
what was worked on since the event before it. The first event of a task has no time and is not counted. With
``use_cuda`` given, the device is waited for once an interval, never in a step, and the wait counts as the step's time.

Must stay cheap: at most 2 microseconds a step, nothing in the background, and nothing at all while no flag is on.
"""

from __future__ import annotations

import time
from threading import Lock, get_ident

from voirkit_instruments.device import synchronize
from voirkit_instruments.items import ItemCounter
from voirkit_instruments.throughput import Throughput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase


class Rate:
    """One of the three rates: what is observed goes in, a record an interval comes out into ``given`` and ``log``.

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
        self._throughput = Throughput(name)
        self._clock = clock
        self._wait = wait
        self._use_cuda = False
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
        late = now >= self._throughput.due_ns
        if late:
            now = self._waited(now)
        task = event.get("task")
        key = (task, get_ident())
        before = self._last.get(key)
        self._last[key] = now
        if before is not None:
            items = self._items(event)
            if items is not None:
                self._throughput.add(task, before, now, items)
                self._task = task
        if late:
            self._publish(self._throughput.close(now))

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
        if wrap["step"] == "begin":
            self._begun[key] = self._clock()
            return
        begin = self._begun.pop(key, None)
        if begin is None:
            return
        now = self._clock()
        late = now >= self._throughput.due_ns
        if late:
            now = self._waited(now)
        items = self._items(event)
        if items is not None:
            self._task = event.get("task")
            self._throughput.add(self._task, begin, now, items)
        if late:
            self._publish(self._throughput.close(now))

    def on_batch(self, task: str | None, begin: int, end: int, batch: object) -> None:
        """For ``loading_rate``: a loader has returned a batch, in whatever thread. No device is waited for."""
        items = self._count(batch)
        with self._lock:
            if items is not None:
                self._throughput.add(task, begin, end, items)
            records = self._throughput.close(end) if end >= self._throughput.due_ns else []
        self._publish(records)

    # how it ends

    def finish(self) -> None:
        """Give what is left, and write the figures of the run into the summary."""
        if self._use_cuda and (self._last or self._begun):
            begin = self._clock()
            self._throughput.add(self._task, begin, self._waited(begin), 0)
        with self._lock:
            records = self._throughput.finish()
        self._publish(records)
        self._ov.summary.setdefault("rates", {}).update(self._throughput.figures())

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
            self._ov.give(**record)


def train_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``train_rate`` to the end of the run."""
    rate = Rate(ov, "train_rate")
    ov.given.subscribe(rate.on_step)
    try:
        yield ov.phases.run_script
    finally:
        rate.finish()


def compute_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``compute_rate`` to the end of the run."""
    rate = Rate(ov, "compute_rate")
    ov.given.subscribe(rate.on_wrap)
    try:
        yield ov.phases.run_script
    finally:
        rate.finish()


def loading_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``loading_rate`` to the end of the run."""
    from voirkit_instruments.loading import LoaderWatch

    rate = Rate(ov, "loading_rate")
    watch = LoaderWatch(rate.on_batch, lambda sentence: ov.warn(f"loading_rate: {sentence}"))

    def on_loader(event: dict[str, Any]) -> None:
        if "loader" in event:
            watch.watch(event["loader"], event.get("task"))

    ov.given.subscribe(on_loader)
    try:
        yield ov.phases.run_script
    finally:
        watch.remove()
        rate.finish()


FLAGS = {
    "--train-rate": (train_rate, "give train_rate (items/s from step and batch) once a second"),
    "--loading-rate": (loading_rate, "give loading_rate (items/s that the given loader delivers) once a second"),
    "--compute-rate": (compute_rate, "give compute_rate (items/s between compute_start and compute_end) once a second"),
}


def instrument_rates(ov: Overseer) -> Iterator[Phase]:
    """Adds the three flags, and measures what is asked for."""
    yield ov.phases.init
    for flag, (_, text) in FLAGS.items():
        ov.argparser.add_argument(flag, action="store_true", dest=flag, help=text)
    yield ov.phases.parse_args
    for flag, (measure, _) in FLAGS.items():
        if getattr(ov.options, flag):
            ov.require(measure)
