"""Items over time, per task, reduced to one figure an interval: the arithmetic behind every rate.

Knows no stream and no clock: who observes calls :meth:`Throughput.add` with nanoseconds of ``time.perf_counter_ns()``.
Nothing here runs in the background, and a step costs a dictionary look-up and three additions.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

UNITS = "items/s"
SECOND_NS = 1_000_000_000
# What covers less than this at the end of an interval is left for the next, and at the end of the run joined to the
# last: a rate over one or two steps would spoil the figures.
SHORTEST_NS = SECOND_NS // 10
NEVER = 1 << 62


class _Tally:
    __slots__ = ("begin_ns", "covered_ns", "items", "time_ns")

    def __init__(self) -> None:
        self.items = self.time_ns = self.covered_ns = 0
        self.begin_ns = NEVER


class Throughput:
    """The rates of one kind, such as ``train_rate``.

    Args:
        name: The key under which a rate is given.
        interval_ns: How long an interval is; the first begins with the first time that is added.
        units: What is counted, a second.

    Attributes:
        due_ns: When the interval ends. The first observation at or after it should synchronise the device, be added,
            and call ``close``.

    Not thread-safe: observations come one after the other (streams see to that).
    """

    def __init__(self, name: str, interval_ns: int = SECOND_NS, units: str = UNITS) -> None:
        self.name = name
        self._units = units
        self.due_ns = NEVER
        self._interval_ns = interval_ns
        self._tallies: dict[str | None, _Tally] = {}
        self._intervals: dict[str | None, list[tuple[int, int]]] = {}  # task -> (items, nanoseconds) of each interval

    def add(self, task: str | None, begin_ns: int, end_ns: int, items: int) -> None:
        """Count items that took from begin to end.

        Time that several threads spend at once on a task counts once, so that the rate is that of all of them together.
        """
        tally = self._tallies.get(task)
        if tally is None:
            tally = self._tallies[task] = _Tally()
        if self.due_ns == NEVER:
            self.due_ns = begin_ns + self._interval_ns
        if begin_ns < tally.begin_ns:
            tally.begin_ns = begin_ns
        if begin_ns < tally.covered_ns:
            begin_ns = tally.covered_ns
        tally.items += items
        if end_ns > begin_ns:
            tally.time_ns += end_ns - begin_ns
            tally.covered_ns = end_ns

    def close(self, now_ns: int) -> list[dict[str, object]]:
        """End the interval: one record for each task that was seen in it long enough."""
        self.due_ns = now_ns + self._interval_ns
        return self._records(shortest_ns=SHORTEST_NS)

    def finish(self) -> list[dict[str, object]]:
        """End the run: a record for what is left; what is very short is joined to the interval before it, silently."""
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
            if not tally.items or not tally.time_ns or tally.covered_ns - tally.begin_ns < shortest_ns:
                continue
            self._intervals.setdefault(task, []).append((tally.items, tally.time_ns))
            record: dict[str, object] = {self.name: tally.items * SECOND_NS / tally.time_ns, "units": self._units}
            if task is not None:
                record["task"] = task
            records.append(record)
            tally.items = tally.time_ns = 0
            tally.begin_ns = NEVER
        return records

    def figures(self) -> dict[str, dict[str, object]]:
        """What the run's summary holds: ``{"train_rate": {"value", "median", "p10", "p90", "n", "units"}, "eval_rate": {…}}``.

        A task other than ``train`` has a key of its own. ``value`` is items over time, the rest that of the intervals: each counts once.
        """
        measured: dict[str, list[tuple[int, int]]] = {}
        for task, intervals in self._intervals.items():
            if intervals:
                measured.setdefault(self._key(task), []).extend(intervals)
        return {key: figures(intervals) for key, intervals in measured.items()}

    def _key(self, task: str | None) -> str:
        if task in (None, "train"):
            return self.name
        return f"{task}_{self.name.removeprefix('train_')}"


def figures(intervals: Sequence[tuple[int, int]]) -> dict[str, object]:
    """Throughput, median, first and ninth decile (linear between neighbours), number and units of at least one interval.

    Args:
        intervals: Of each its items and its nanoseconds.
    """
    ordered = sorted(items * SECOND_NS / time_ns for items, time_ns in intervals)
    value = sum(items for items, _ in intervals) * SECOND_NS / sum(time_ns for _, time_ns in intervals)

    def quantile(share: float) -> float:
        at = share * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

    return {"value": value, "median": quantile(0.5), "p10": quantile(0.1), "p90": quantile(0.9), "n": len(ordered), "units": UNITS}
