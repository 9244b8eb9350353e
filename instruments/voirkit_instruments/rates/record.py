"""``--train-rate``, ``--loading-rate``, ``--compute-rate``: items per second, given once a second
while the run goes on.

============ ========================================= ====================================
rate         items of                                  over the time
============ ========================================= ====================================
train_rate   events with ``step`` and ``batch`` (or    from the previous event of the same
             ``batch_size``)                           task and thread to this event
compute_rate the end of a wrapped block                inside the block
             ``compute_start``/``compute_end``
loading_rate batches that the iterators of a given     inside their ``__next__``
             ``loader`` return
============ ========================================= ====================================

An event with ``step`` marks the end of a step, as in ``//f(X as batch) > #endloop_X as step``: its
batch is what was worked on since the previous event. For the first event of a task, the step begins
where the step that the recorder has open began: at the request for its batch. So no rate lacks the
slow first step. If the recorder has no open step, the first event has no time and is not counted.
With ``use_cuda`` given, the device is synchronised once per interval, never within a step, and
the wait counts as time of the step.

Without probes, the steps, loaders and batches are those that the recorder sees
(``TrainingValues``). ``compute_rate`` then covers each step from the arrival of its batch to the
next request, and ``train_rate`` is in steps/s if the script has no loader.

The time that a script waits for batches is measured inside the iterators of the loaders that it has
given. This never changes what the program sees: iterators are not replaced, only methods written in
Python are wrapped, in place and reversibly. Iterators written in C and generators cannot be timed
like this, which is reported. Checked with torch 2.1 to 2.15, where
``_BaseDataLoaderIter._next_data`` is wrapped: all of ``__next__`` but the profiler's range.
``__next__`` itself warns with ``stacklevel=2``; if it were wrapped, the warning would name this
file instead of the user's line.

Costs nothing while no flag is on. The recorder's steps are reported several at once, every half
second. Each step that a program gives costs at most 2 microseconds: a dictionary look-up, three
additions, nothing in the background.
"""

from __future__ import annotations

import sys
import time
from threading import Lock, get_ident
from types import FunctionType

from voirkit.intercept import Patches, without_this_frame
from voirkit_instruments.identity import IdentityMap
from voirkit_instruments.steps.batch_sizes import ItemCounter
from voirkit_instruments.steps.events import CHECKED
from voirkit_instruments.steps.record_values import values_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.steps.record_values import FinishedStep

    Arrived = Callable[[str | None, int, int, object], None]

NO_STEP = "No step was given, and no training step of torch was seen."
UNITS = "items/s"
SECOND_NS = 1_000_000_000
# An interval shorter than this gives no rate, since one or two steps would distort it. Its
# items are carried into the next interval, or, at the end of the run, joined to the last one.
SHORTEST_NS = SECOND_NS // 10
NEVER = 1 << 62


class _Tally:
    items = time_ns = covered_ns = 0
    begin_ns = NEVER


class Throughput:
    """Counter for the rates of one kind, such as ``train_rate``.

    Args:
        name: The key under which a rate is given.
        units: The units of a rate.

    Attributes:
        due_ns: When the current interval ends. The first interval begins with the first time that
            is added. The first observation at or after ``due_ns`` should synchronise the device, be
            added, and call ``close``.

    Not thread-safe: observations must come one after the other (streams ensure this).
    """

    def __init__(self, name: str, units: str = UNITS) -> None:
        self.name = name
        self._units = units
        self.due_ns = NEVER
        self._tallies: dict[str | None, _Tally] = {}
        # task -> (items, nanoseconds) of each interval
        self._intervals: dict[str | None, list[tuple[int, int]]] = {}

    def add(self, task: str | None, begin_ns: int, end_ns: int, items: int) -> None:
        """Count items that took from begin to end. Time that several threads spend on a task at
        once counts only once, so that the rate is that of all threads together."""
        tally = self._tallies.get(task)
        if tally is None:
            tally = self._tallies[task] = _Tally()
        if self.due_ns == NEVER:
            self.due_ns = begin_ns + SECOND_NS
        tally.begin_ns = min(tally.begin_ns, begin_ns)
        begin_ns = max(tally.covered_ns, begin_ns)
        tally.items += items
        if end_ns > begin_ns:
            tally.time_ns += end_ns - begin_ns
            tally.covered_ns = end_ns

    def close(self, now_ns: int) -> list[dict[str, object]]:
        """End the interval. Returns one record for each task that was seen long enough in it."""
        self.due_ns = now_ns + SECOND_NS
        return self._records(shortest_ns=SHORTEST_NS)

    def finish(self) -> list[dict[str, object]]:
        """End the run. Returns a record for the remaining time; a very short remainder is joined to
        the previous interval instead."""
        records = self._records(shortest_ns=SHORTEST_NS)
        for task, tally in self._tallies.items():
            intervals = self._intervals.setdefault(task, [])
            if tally.items and tally.time_ns and intervals:
                items, time_ns = intervals[-1]
                intervals[-1] = (items + tally.items, time_ns + tally.time_ns)
                tally.items = tally.time_ns = 0
        return records + self._records(shortest_ns=0)

    def _records(self, shortest_ns: int) -> list[dict[str, object]]:
        records: list[dict[str, object]] = []
        for task, tally in self._tallies.items():
            if (
                not tally.items
                or not tally.time_ns
                or tally.covered_ns - tally.begin_ns < shortest_ns
            ):
                continue
            self._intervals.setdefault(task, []).append((tally.items, tally.time_ns))
            record: dict[str, object] = {
                self.name: tally.items * SECOND_NS / tally.time_ns,
                "units": self._units,
            }
            if task is not None:
                record["task"] = task
            records.append(record)
            tally.items = tally.time_ns = 0
            tally.begin_ns = NEVER
        return records

    def figures(self) -> dict[str, dict[str, object]]:
        """Return the rates for the run's summary: ``{"train_rate": {"value", "median", "p10",
        "p90", "n", "units"}, "eval_rate": {…}}``. A task other than ``train`` has its own key.
        ``value`` is all items over all time; the other values are over the rates of the intervals,
        each counted once."""
        measured: dict[str, list[tuple[int, int]]] = {}
        for task, intervals in self._intervals.items():
            if intervals:
                key = (
                    self.name
                    if task in (None, "train")
                    else f"{task}_{self.name.removeprefix('train_')}"
                )
                measured.setdefault(key, []).extend(intervals)
        return {key: figures(intervals) for key, intervals in measured.items()}


def figures(intervals: Sequence[tuple[int, int]]) -> dict[str, object]:
    """Return throughput, median, first and ninth decile (interpolated linearly), number and units
    of at least one interval. ``intervals`` holds (items, nanoseconds) of each interval."""
    ordered = sorted(items * SECOND_NS / time_ns for items, time_ns in intervals)
    value = (
        sum(items for items, _ in intervals) * SECOND_NS / sum(time_ns for _, time_ns in intervals)
    )

    def quantile(share: float) -> float:
        position = share * (len(ordered) - 1)
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    return {
        "value": value,
        "median": quantile(0.5),
        "p10": quantile(0.1),
        "p90": quantile(0.9),
        "n": len(ordered),
        "units": UNITS,
    }


def synchronize() -> None:
    """Wait until the current CUDA device has finished its work; do nothing without such a device.

    Never imports torch and never creates a CUDA context; checked with torch 2.1 to 2.15. During the
    capture of a CUDA graph a synchronisation would break the capture, so there is none.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized() and not cuda.is_current_stream_capturing():
            cuda.synchronize()
    except Exception:
        # This is a forked child, or an earlier kernel failed: the program's next call raises that
        # error.
        return


class Rate:
    """Measurement of one of the three rates in one run.

    Args:
        name: ``"train_rate"``, ``"compute_rate"`` or ``"loading_rate"``.
        clock: Returns monotonic nanoseconds.
        wait: Synchronises the device; called once per interval after a true ``use_cuda`` was given.
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
        # rate in steps/s, used as long as the number of items is unknown for all steps
        self._unknown = Throughput(name, units="steps/s")
        self._clock = clock
        self._wait = wait
        self._use_cuda = self._has_wraps = False
        self._count = ItemCounter(lambda sentence: ov.warn(f"{name}: {sentence}"))
        self._last: dict[tuple[object, int], int] = {}  # (task, thread) -> when its last step ended
        # (wrapper's id, thread) -> when the block began
        self._begun: dict[tuple[object, int], int] = {}
        # True if the steps counted so far came from the recorder, not from the program
        self._is_recorders = False
        self._has_begun = False  # True once the script has begun
        # function that returns when the current step of this thread began, as the recorder sees it
        self.step_began_ns: Callable[[], int | None] = lambda: None
        # wrapped blocks whose begin event has step and batch: their end event is of the same step
        self._beginnings: set[object] = set()
        self._task: str | None = None
        # for batches, which any thread may request; given events come one after the other anyway
        self._lock = Lock()

    # callbacks for events and steps

    def on_step(self, event: dict[str, Any]) -> None:
        """Count the step that ends with an event with ``step`` and ``batch``, for
        ``train_rate``."""
        if not ("batch" in event or "batch_size" in event):
            return
        if "$wrap" in event and self._is_end_of_counted(event["$wrap"]):
            return
        if "$recorder" in event:
            return  # counted by on_steps
        if self._is_recorders:
            self._start_anew()
        now = self._clock()
        late = now >= self._throughput.due_ns or now >= self._unknown.due_ns
        if late:
            now = self._synchronized(now)
        task = event.get("task")
        key = (task, get_ident())
        before = self._last.get(key)
        if before is None and task in (None, "train"):
            before = self.step_began_ns()
        self._last[key] = now
        if before is not None:
            items = self._items(event)
            if items is not None:
                self._throughput.add(task, before, now, items)
                self._task = task
        if late:
            self._publish(self._close(now))

    def on_steps(self, steps: list[FinishedStep]) -> None:
        """Count steps that the recorder has seen, for ``train_rate``, unless the program gives
        ``step`` or ``batch`` itself."""
        if self._ov.is_given("step", "batch"):
            return
        self._is_recorders = True
        for step in steps:
            key = (None, step.thread)
            before = self._last.get(key) if step.began_ns is None else step.began_ns
            self._last[key] = step.ended_ns
            if before is None:
                continue
            if step.arrived_ns is None:
                self._unknown.add(None, before, step.ended_ns, 1)
            else:
                self._add(before, step.ended_ns, self._items_of(step))
        self._close_if_due(steps[-1].ended_ns)

    def on_computed(self, steps: list[FinishedStep]) -> None:
        """Count the time from the arrival of the batch to the end of each step that the recorder
        has seen, for ``compute_rate``, unless the program gives ``compute_start``."""
        if self._has_wraps:
            return
        for step in steps:
            if step.arrived_ns is not None:
                self._add(step.arrived_ns, step.ended_ns, self._items_of(step))
        self._close_if_due(steps[-1].ended_ns)

    def on_fetched(self, steps: list[FinishedStep]) -> None:
        """Count the requests for batches that the recorder has seen, for ``loading_rate``."""
        for step in steps:
            if step.arrived_ns is not None and step.began_ns is not None:
                self.on_batch(None, step.began_ns, step.arrived_ns, step.batch, step.items)

    def _items_of(self, step: FinishedStep) -> int | None:
        return self._count(step.batch) if step.items is None else step.items

    def _add(self, begin_ns: int, end_ns: int, items: int | None) -> None:
        if items is not None:
            self._throughput.add(None, begin_ns, end_ns, items)
            self._task = None

    def _close_if_due(self, end_ns: int) -> None:
        """End the interval if it is over; the wait for the device is part of the interval."""
        for throughput in (self._throughput, self._unknown):
            if end_ns >= throughput.due_ns:
                waited_ns = self._synchronized(end_ns)
                throughput.add(None, end_ns, waited_ns, 0)
                self._publish(self._close(waited_ns))
                return

    def on_device(self, event: dict[str, Any]) -> None:
        """Take from an event with ``use_cuda`` whether to synchronise a device."""
        self._use_cuda = bool(event["use_cuda"])

    def _start_anew(self) -> None:
        """Forget the recorder's steps, because the program now gives its own. The program's first
        step may be the recorder's last."""
        self._is_recorders = False
        self._throughput = Throughput(self._throughput.name)
        self._unknown = Throughput(self._unknown.name, units="steps/s")
        self._last.clear()

    def on_wrap(self, event: dict[str, Any]) -> None:
        """Count the time from the begin to the end of a wrapped block ``compute_start``, for
        ``compute_rate``. Only the batch at the end is read: at the begin, ptera still shows the
        batch of the previous iteration."""
        wrap = event["$wrap"]
        if wrap["name"] != "compute_start":
            return
        key = (wrap["id"], get_ident())
        self._has_wraps = True
        if wrap["step"] == "begin":
            self._begun[key] = self._clock()
            return
        begin_ns = self._begun.pop(key, None)
        if begin_ns is not None:
            self._add_span(event.get("task"), begin_ns, self._clock(), self._items(event))

    def _add_span(self, task: str | None, begin_ns: int, end: int, items: int | None) -> None:
        late = end >= self._throughput.due_ns
        if late:
            end = self._synchronized(end)
        if items is not None:
            self._task = task
            self._throughput.add(task, begin_ns, end, items)
        if late:
            self._publish(self._throughput.close(end))

    def on_batch(
        self, task: str | None, begin_ns: int, end: int, batch: object, items: int | None = None
    ) -> None:
        """Count a batch that a loader has returned, in any thread, for ``loading_rate``. The device
        is not synchronised."""
        if items is None:
            items = self._count(batch)
        with self._lock:
            if items is not None:
                self._throughput.add(task, begin_ns, end, items)
            records = self._throughput.close(end) if end >= self._throughput.due_ns else []
        self._publish(records)

    def _close(self, now: int) -> list[dict[str, Any]]:
        """Return the records of an interval: in items if their number is known for any step,
        otherwise in steps."""
        unknown = self._unknown.close(now)
        return self._throughput.close(now) if self._throughput.due_ns != NEVER else unknown

    # the end of the run

    def until_end(self) -> Iterator[Phase]:
        """Measure until the end of the run."""
        try:
            yield self._ov.phases.load_script
            self._has_begun = True
            yield self._ov.phases.run_script
        finally:
            values_of(self._ov).tell_of_steps()
            self.finish()

    def finish(self) -> None:
        """Give the remaining rates, and write the rates of the run into the summary."""
        if self._use_cuda and (self._last or self._begun):
            begin_ns = self._clock()
            self._throughput.add(self._task, begin_ns, self._synchronized(begin_ns), 0)
        with self._lock:
            is_unknown = self._throughput.due_ns == NEVER
            records = (self._unknown if is_unknown else self._throughput).finish()
        self._publish(records)
        self._ov.summary.setdefault("rates", {}).update(self._throughput.figures())
        is_asked_for = getattr(self._ov.options, self._flag, False)
        if (
            self._has_begun
            and is_asked_for
            and self._throughput.due_ns == NEVER
            and self._unknown.due_ns == NEVER
        ):
            self._ov.warn(f"{self._flag}: nothing could be measured. {NO_STEP}")

    def _items(self, event: dict[str, Any]) -> int | None:
        size = event.get("batch_size")
        return size if type(size) is int else self._count(event.get("batch"))

    def _synchronized(self, now: int) -> int:
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


class LoaderWatch:
    """Timer of the batches of loaders, in any thread; loaders are passed to ``watch``.

    Args:
        arrived: Called with the task, begin and end (``time.perf_counter_ns()``) and the batch, in
            the thread that requested the batch.
        warn: Called with a sentence about a loader that cannot be observed; once for each type.
    """

    def __init__(self, arrived: Arrived, warn: Callable[[str], None]) -> None:
        self._arrived = arrived
        self._warn = warn
        self._patches = Patches(CHECKED)
        # by loader, and by iterator: (task,)
        self._loaders, self._iterators = IdentityMap(), IdentityMap()
        # ids of iterators in a wrapped ``__next__``: if it calls the ``__next__`` that it
        # overrides, only the outer call counts
        self._asking: set[int] = set()
        self._unobserved: set[str] = set()
        self._batches = 0
        self._seen: set[str] = set()

    @property
    def patches(self) -> list[str]:
        """Names of the methods that are wrapped now."""
        return self._patches.names

    def watch(self, loader: object, task: str | None = None) -> None:
        """Time the iterators that a loader makes from now on, and an iterator that it keeps. If the
        loader is an iterator itself, time it."""
        kind = type(loader)
        self._seen.add(kind.__qualname__)
        try:
            self._loaders[loader] = (task,)
        except TypeError:
            self._report_unobservable(loader, "it is a built-in object")
            return
        if hasattr(kind, "__next__"):
            self._watch_iterator(loader, task)
            return
        makers = [
            (owner, vars(owner)["__iter__"]) for owner in kind.__mro__ if "__iter__" in vars(owner)
        ]
        from inspect import isgeneratorfunction

        observable = [owner for owner, method in makers if not isgeneratorfunction(method)]
        # All classes with ``__iter__`` are wrapped, since a method usually calls the one that it
        # overrides (as in accelerate).
        if not [owner for owner in observable if self._patches.wrap(owner, "__iter__", self._iter)]:
            self._report_unobservable(
                loader,
                (
                    "its __iter__ is a generator function"
                    if makers
                    else "it has no __iter__ written in Python"
                ),
            )
        # a DataLoader with persistent workers reuses its first iterator
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None and hasattr(type(iterator), "__next__"):
            self._watch_iterator(iterator, task)

    def remove(self) -> None:
        """Stop timing, and warn if nothing could be timed."""
        self._patches.remove()
        if self._seen and not self._batches and not self._unobserved:
            kinds = ", ".join(sorted(self._seen))
            self._warn(
                f"no batch of the given loader ({kinds}) was seen: was it iterated after it was"
                " given?"
            )
        self._loaders, self._iterators = IdentityMap(), IdentityMap()

    def _report_unobservable(self, loader: object, because: str) -> None:
        name = type(loader).__qualname__
        if name not in self._unobserved:
            self._unobserved.add(name)
            self._warn(
                f"the loading time of a {name} cannot be observed without changing the program:"
                f" {because}."
            )

    def _watch_iterator(self, iterator: object, task: str | None) -> None:
        owner, name = _method_of_next(type(iterator))
        try:
            self._iterators[iterator] = (task,)
        except TypeError:
            owner = None
        if owner is None or not self._patches.wrap(owner, name, self._next):
            self._report_unobservable(iterator, "it is an iterator that is not written in Python")

    def _iter(
        self,
        wrapped: Callable[..., Any],
        loader: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            iterator = wrapped(*args, **kwargs)
        except BaseException as exc:  # the program's own exception, which is raised again
            without_this_frame(exc)
            raise
        entry = self._loaders.get(loader)
        if entry is not None:
            try:
                self._watch_iterator(iterator, entry[0])
            except Exception as exc:  # the program's class may raise anything when it is inspected
                self._report_unobservable(iterator, f"{type(exc).__name__}: {exc}")
        return iterator

    def _next(
        self,
        wrapped: Callable[..., Any],
        iterator: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        identity = id(iterator)
        entry = self._iterators.get(iterator)
        timed = entry is not None and identity not in self._asking
        if timed:
            self._asking.add(identity)
        start_ns = time.perf_counter_ns()
        try:
            batch = wrapped(*args, **kwargs)
        except BaseException as exc:  # the program's own exception, which is raised again
            without_this_frame(exc)
            raise
        finally:
            end = time.perf_counter_ns()
            if timed:
                self._asking.discard(identity)
        if timed:
            self._batches += 1
            try:
                self._arrived(entry[0], start_ns, end, batch)
            except Exception as exc:  # an error in counting must not reach the program
                self._warn(f"a batch could not be counted: {type(exc).__name__}: {exc}")
        return batch


def _method_of_next(kind: type) -> tuple[type | None, str]:
    """Return the class and the name of the method that does the work of ``next(iterator)``; the
    class is None if the method is not written in Python."""
    for owner in kind.__mro__:
        if "__next__" not in vars(owner):
            continue
        if owner.__module__ == "torch.utils.data.dataloader":
            for inner in kind.__mro__:
                if type(vars(inner).get("_next_data")) is FunctionType:
                    return inner, "_next_data"
        return (owner if type(vars(owner)["__next__"]) is FunctionType else None), "__next__"
    return None, "__next__"


def train_rate(ov: Overseer) -> Iterator[Phase]:
    """Measure ``train_rate`` until the end of the run."""
    rate = Rate(ov, "train_rate")
    rate.step_began_ns = values_of(ov).step_began_ns
    values_of(ov).on_steps.append(rate.on_steps)
    ov.given.watch("step", rate.on_step)
    ov.given.watch("use_cuda", rate.on_device)
    yield from rate.until_end()


def compute_rate(ov: Overseer) -> Iterator[Phase]:
    """Measure ``compute_rate`` until the end of the run."""
    rate = Rate(ov, "compute_rate")
    ov.given.watch("$wrap", rate.on_wrap, only_given=True)
    ov.given.watch("use_cuda", rate.on_device)
    values_of(ov).on_steps.append(rate.on_computed)
    yield from rate.until_end()


def loading_rate(ov: Overseer) -> Iterator[Phase]:
    """Measure ``loading_rate`` until the end of the run."""
    rate = Rate(ov, "loading_rate")
    watch = LoaderWatch(rate.on_batch, lambda sentence: ov.warn(f"loading_rate: {sentence}"))

    is_given = False

    def on_loader(event: dict[str, Any]) -> None:
        nonlocal is_given
        is_given = True
        watch.watch(event["loader"], event.get("task"))

    def on_steps(steps: list[FinishedStep]) -> None:
        if not is_given:
            rate.on_fetched(steps)

    ov.given.watch("loader", on_loader, only_given=True)
    values_of(ov).on_steps.append(on_steps)
    try:
        yield from rate.until_end()
    finally:
        watch.remove()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    for name, measure in (
        ("train_rate", train_rate),
        ("loading_rate", loading_rate),
        ("compute_rate", compute_rate),
    ):
        if options[name]:
            ov.require(measure)
